// Peer is a program as a user writes it, for the tests to kill, to stop and to
// watch: it holds a card and sends to another process, or serves one after
// another. It says what it does, a JSON object a line.
//
//	peer -listen SOCKET [-caller-memory] ADDR
//	peer -connect SOCKET [-count N] [-stay] ADDR
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

// said is a line of output.
type said struct {
	Event string `json:"event"` // ready, connected, progress, idle, done, error
	PID   int    `json:"pid"`
	QPN   uint32 `json:"qpn,omitempty"`
	Key   uint32 `json:"key,omitempty"`
	Addr  uint64 `json:"addr,omitempty"` // of the region
	Done  int    `json:"done,omitempty"` // rounds
	Error string `json:"error,omitempty"`
	Gone  bool   `json:"gone,omitempty"` // the error is ErrDeviceGone
	Typed bool   `json:"typed,omitempty"`
}

func say(s said) {
	s.PID = os.Getpid()
	b, _ := json.Marshal(s) // of plain fields
	os.Stdout.Write(append(b, '\n'))
}

var (
	listen  = flag.String("listen", "", "serve peers that come to this UNIX socket")
	connect = flag.String("connect", "", "send to the peer that listens at this UNIX socket")
	count   = flag.Int("count", 0, "rounds to do; 0: no end")
	stay    = flag.Bool("stay", false, "after the rounds, wait for what never comes")
	caller  = flag.Bool("caller-memory", false, "register memory of the program's own, which the card reaches by messages")
)

func main() {
	flag.Parse()
	if err := run(flag.Arg(0)); err != nil {
		var typed *driver.DeviceError
		say(said{Event: "error", Error: err.Error(), Gone: errors.Is(err, driver.ErrDeviceGone), Typed: errors.As(err, &typed)})
		os.Exit(1)
	}
}

// The region: what is sent, in three pieces, and where it is received, written
// and read.
const (
	message    = 7680 // bytes of a SEND
	slots      = 16   // receives that are posted
	regionSize = 256 << 10
	sourceAt   = slots * message // behind the receives
	oneSided   = 4096            // bytes of a WRITE and of a READ
	answerSize = 8               // bytes of the answer to a SEND: its number
	sinkAt     = sourceAt + 2*message
	targetAt   = regionSize - oneSided
)

type side struct {
	dev *driver.Device
	pd  *driver.PD
	mr  *driver.MR
	cq  *driver.CQ
	qp  *driver.QP
}

func run(addr string) error {
	ctx := context.Background()
	s := &side{}
	var err error
	if s.dev, err = driver.Open(ctx, addr); err != nil {
		return err
	}
	defer s.dev.Close()
	if s.pd, err = s.dev.AllocPD(ctx); err != nil {
		return err
	}
	access := driver.LocalWrite | driver.RemoteWrite | driver.RemoteRead
	if *caller {
		b, e := syscall.Mmap(-1, 0, regionSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
		if e != nil {
			return e
		}
		s.mr, err = s.pd.RegMR(ctx, b, access)
	} else {
		s.mr, err = s.pd.AllocMR(ctx, regionSize, access)
	}
	if err != nil {
		return err
	}
	if s.cq, err = s.dev.CreateCQ(ctx, 64); err != nil {
		return err
	}
	if *listen != "" {
		return s.serve(ctx)
	}
	return s.send(ctx)
}

// connect makes a queue pair and connects it over c.
func (s *side) connect(ctx context.Context, c net.Conn) (remote driver.RemoteMR, err error) {
	s.qp, err = s.pd.CreateQP(ctx, driver.QPInit{
		Type: driver.RC, SendCQ: s.cq, RecvCQ: s.cq,
		MaxSendWR: 2 * slots, MaxRecvWR: slots, MaxSendSGE: 3, MaxRecvSGE: 1, MaxInline: answerSize,
	})
	if err != nil {
		return remote, err
	}
	for i := range slots {
		if err := s.receive(i); err != nil {
			return remote, err
		}
	}
	say(said{Event: "ready", QPN: s.qp.Number(), Key: s.mr.RKey(), Addr: s.mr.Addr()})
	private, err := s.mr.Remote().MarshalBinary()
	if err != nil {
		return remote, err
	}
	peer, err := s.qp.ConnectVia(ctx, c, private)
	if err != nil {
		return remote, err
	}
	say(said{Event: "connected", QPN: peer.QPN})
	return remote, remote.UnmarshalBinary(peer.Private)
}

func (s *side) receive(slot int) error {
	return s.qp.PostRecv(&driver.RecvWR{WRID: uint64(slot), SGEs: []driver.SGE{s.mr.SGE(slot*message, message)}})
}

// serve takes one peer after another. The end of a peer's connection, and
// nothing else, ends its turn.
func (s *side) serve(ctx context.Context) error {
	l, err := net.Listen("unix", *listen)
	if err != nil {
		return err
	}
	defer l.Close()
	say(said{Event: "listening"})
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := s.connect(ctx, c); err != nil {
			return err
		}
		turn, end := context.WithCancelCause(ctx)
		go func() {
			_, err := c.Read(make([]byte, 1))
			end(fmt.Errorf("the peer has left: %w", err))
		}()
		err = s.take(turn)
		if errors.Is(err, driver.ErrDeviceGone) || turn.Err() == nil {
			return err
		}
		say(said{Event: "left"})
		if err := errors.Join(s.qp.Close(), c.Close()); err != nil {
			return err
		}
	}
}

// take receives until the context ends, and answers each message once there is
// room for the next.
func (s *side) take(ctx context.Context) error {
	var wc [slots]driver.WC
	var answer [answerSize]byte
	for next := uint64(0); ; {
		n, err := s.cq.Wait(ctx, wc[:])
		if err != nil {
			return err
		}
		for i := range n {
			w := &wc[i]
			if err := w.Err(); err != nil {
				return err
			}
			if w.Flags&driver.WCRecv == 0 {
				continue // an answer has arrived
			}
			got := s.mr.Bytes()[w.WRID*message:][:w.ByteLen]
			if w.ByteLen != message || binary.LittleEndian.Uint64(got) != next || binary.LittleEndian.Uint64(got[message-8:]) != ^next {
				return fmt.Errorf("message %d has %d bytes and begins % x", next, w.ByteLen, got[:8])
			}
			if err := s.receive(int(w.WRID)); err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(answer[:], next)
			if err := s.qp.PostSend(&driver.SendWR{Opcode: driver.Send, Flags: driver.Signaled, Inline: [][]byte{answer[:]}}); err != nil {
				return err
			}
			next++
		}
	}
}

// send does rounds of a SEND from three pieces, which is answered, a WRITE, and
// a READ of what was written.
func (s *side) send(ctx context.Context) error {
	c, err := net.Dial("unix", *connect)
	if err != nil {
		return err
	}
	defer c.Close()
	remote, err := s.connect(ctx, c)
	if err != nil {
		return err
	}
	target := remote.At(targetAt)
	told := time.Now()
	for round := 0; *count == 0 || round < *count; round++ {
		b := s.mr.Bytes()[sourceAt:][:message]
		binary.LittleEndian.PutUint64(b, uint64(round))
		binary.LittleEndian.PutUint64(b[message-8:], ^uint64(round))
		_, err := s.qp.PostSendBatch([]driver.SendWR{
			{WRID: 1, Opcode: driver.Send, SGEs: []driver.SGE{s.mr.SGE(sourceAt, 1024), s.mr.SGE(sourceAt+1024, 6144), s.mr.SGE(sourceAt+7168, 512)}},
			{WRID: 2, Opcode: driver.Write, SGEs: []driver.SGE{s.mr.SGE(sourceAt, oneSided)}, Remote: target},
			{WRID: 3, Opcode: driver.Read, Flags: driver.Signaled, SGEs: []driver.SGE{s.mr.SGE(sinkAt, oneSided)}, Remote: target},
		})
		if err != nil {
			return err
		}
		// The completion of the READ, and the answer.
		for range 2 {
			var wc [1]driver.WC
			if _, err := s.cq.Wait(ctx, wc[:]); err != nil {
				return err
			}
			if err := wc[0].Err(); err != nil {
				return err
			}
			if wc[0].Flags&driver.WCRecv == 0 {
				continue
			}
			if got := s.mr.Bytes()[wc[0].WRID*message:]; binary.LittleEndian.Uint64(got) != uint64(round) {
				return fmt.Errorf("the answer to message %d begins % x", round, got[:answerSize])
			}
			if err := s.receive(int(wc[0].WRID)); err != nil {
				return err
			}
		}
		if !bytes.Equal(b[:oneSided], s.mr.Bytes()[sinkAt:][:oneSided]) {
			return fmt.Errorf("round %d: what was read is not what was written", round)
		}
		if now := time.Now(); now.Sub(told) > 20*time.Millisecond {
			told = now
			say(said{Event: "progress", Done: round + 1})
		}
	}
	say(said{Event: "done", Done: *count})
	if *stay {
		var wc [1]driver.WC
		_, err := s.cq.Wait(ctx, wc[:])
		return err
	}
	return nil
}
