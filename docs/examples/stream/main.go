// Stream sends messages from one program to another, each with a card of its
// own, until it is interrupted. Each message is gathered from three pieces of
// memory; the receiver checks it and answers.
//
//	stream -card ADDR -listen HOST:PORT
//	stream -card ADDR -connect HOST:PORT [-n MESSAGES] [-every 10ms]
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft" // soft: addresses work too
)

var (
	card    = flag.String("card", "soft:", "address of the card")
	listen  = flag.String("listen", "", "receive from the program that comes to this address")
	connect = flag.String("connect", "", "send to the program at this address")
	count   = flag.Int("n", 0, "messages to send; 0: until interrupted")
	every   = flag.Duration("every", 10*time.Millisecond, "a message so often")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// peer is the TCP connection over which the two programs find each other.
func peer(ctx context.Context) (net.Conn, error) {
	if *listen == "" {
		return new(net.Dialer).DialContext(ctx, "tcp", *connect)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	return l.Accept()
}

const (
	size  = 7680 // bytes of a message
	depth = 16   // receives that are posted
)

type end struct {
	mr *driver.MR
	cq *driver.CQ
	qp *driver.QP
}

func run(ctx context.Context) error {
	if (*listen == "") == (*connect == "") {
		return errors.New("give either -listen or -connect")
	}
	dev, err := driver.Open(ctx, *card)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD(ctx)
	if err != nil {
		return err
	}
	e := &end{}
	if e.mr, err = pd.AllocMR(ctx, (depth+1)*size, driver.LocalWrite); err != nil {
		return err
	}
	if e.cq, err = dev.CreateCQ(ctx, 4*depth); err != nil {
		return err
	}
	e.qp, err = pd.CreateQP(ctx, driver.QPInit{
		Type: driver.RC, SendCQ: e.cq, RecvCQ: e.cq,
		MaxSendWR: 2 * depth, MaxRecvWR: depth, MaxSendSGE: 3, MaxRecvSGE: 1, MaxInline: 8,
	})
	if err != nil {
		return err
	}
	for slot := range depth {
		if err := e.receive(slot); err != nil {
			return err
		}
	}
	c, err := peer(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	far, err := e.qp.ConnectVia(ctx, c, nil)
	if err != nil {
		return err
	}
	fmt.Printf("QP %#x on %s is connected to QP %#x of %v\n", e.qp.Number(), *card, far.QPN, far.GID)
	if *connect != "" {
		return e.send(ctx)
	}
	// The sender leaves by closing the connection.
	ctx, left := context.WithCancelCause(ctx)
	go func() {
		_, err := c.Read(make([]byte, 1))
		left(err)
	}()
	if err := e.answer(ctx); ctx.Err() == nil {
		return err
	}
	fmt.Println("the sender has left")
	return nil
}

func (e *end) receive(slot int) error {
	return e.qp.PostRecv(&driver.RecvWR{WRID: uint64(slot), SGEs: []driver.SGE{e.mr.SGE(slot*size, size)}})
}

// next waits for a message and gives its slot.
func (e *end) next(ctx context.Context) (*driver.WC, error) {
	for {
		var wc [1]driver.WC
		if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
			return nil, err
		}
		if err := wc[0].Err(); err != nil {
			return nil, err
		}
		if wc[0].Flags&driver.WCRecv != 0 {
			return &wc[0], nil
		}
	}
}

func fill(b []byte, n uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n)
	}
}

// send sends a message, waits for the answer, and so on.
func (e *end) send(ctx context.Context) error {
	out := e.mr.Bytes()[depth*size:]
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for n := 0; *count == 0 || n < *count; n++ {
		fill(out, uint64(n))
		at := depth * size
		pieces := []driver.SGE{e.mr.SGE(at, 1024), e.mr.SGE(at+1024, 6144), e.mr.SGE(at+7168, 512)}
		err := e.qp.PostSend(&driver.SendWR{WRID: uint64(n), Opcode: driver.Send, Flags: driver.Signaled, SGEs: pieces})
		if err != nil {
			return err
		}
		w, err := e.next(ctx)
		if err != nil {
			return err
		}
		if err := e.receive(int(w.WRID)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	fmt.Printf("sent %d messages of %d bytes, each answered\n", *count, size)
	return nil
}

// answer checks each message and sends its number back.
func (e *end) answer(ctx context.Context) error {
	want, number := make([]byte, size), make([]byte, 8)
	for n := uint64(0); ; n++ {
		w, err := e.next(ctx)
		if err != nil {
			return err
		}
		fill(want, n)
		if got := e.mr.Bytes()[w.WRID*size:][:w.ByteLen]; !bytes.Equal(got, want) {
			return fmt.Errorf("message %d of %d bytes is not what was sent", n, len(got))
		}
		if err := e.receive(int(w.WRID)); err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(number, n)
		if err := e.qp.PostSend(&driver.SendWR{WRID: n, Opcode: driver.Send, Flags: driver.Signaled, Inline: [][]byte{number}}); err != nil {
			return err
		}
	}
}
