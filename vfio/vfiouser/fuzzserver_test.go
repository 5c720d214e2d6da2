package vfiouser

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// spares are descriptors of each kind that a peer may send, trusted and not.
type spares struct {
	sealed, open, readOnly, eventfd, pipe, dir int
}

func newSpares(tb testing.TB) *spares {
	memfd := func(seals int) int {
		fd, err := unix.MemfdCreate("spare", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err == nil {
			err = unix.Ftruncate(fd, 0x4000)
		}
		if err == nil && seals != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		}
		if err != nil {
			tb.Fatal(err)
		}
		return fd
	}
	s := &spares{sealed: memfd(unix.F_SEAL_SHRINK), open: memfd(0), readOnly: memfd(unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE)}
	var p [2]int
	err := unix.Pipe2(p[:], unix.O_CLOEXEC)
	if err == nil {
		s.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		s.dir, err = unix.Open(".", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		tb.Fatal(err)
	}
	s.pipe = p[1]
	tb.Cleanup(func() { closeFDs([]int{s.sealed, s.open, s.readOnly, s.eventfd, s.dir, p[0], p[1]}) })
	return s
}

// pick gives the descriptors that a byte of the input stands for.
func (s *spares) pick(k byte) []int {
	switch k % 12 {
	case 1:
		return []int{s.sealed}
	case 2:
		return []int{s.open}
	case 3:
		return []int{s.readOnly}
	case 4:
		return []int{s.eventfd}
	case 5:
		return []int{s.eventfd, s.eventfd, s.eventfd}
	case 6:
		return []int{s.pipe}
	case 7:
		return []int{s.dir}
	case 8:
		return []int{s.sealed, s.open}
	case 9:
		return []int{s.eventfd, s.sealed}
	case 10:
		fds := make([]int, maxFDs)
		for i := range fds {
			fds[i] = s.eventfd
		}
		return fds
	case 11:
		return append(s.pick(10), s.eventfd)
	}
	return nil
}

// rest is what is open and running, to see that nothing is left behind.
type rest struct{ fds, maps, goroutines int }

func resting(tb testing.TB) rest { return rest{countFDs(tb), countMaps(tb), runtime.NumGoroutine()} }

// again waits until no more is open than was, for as long as goroutines need to end.
func (r rest) again(tb testing.TB) {
	tb.Helper()
	var now rest
	for range 4000 {
		if now = resting(tb); now.fds <= r.fds && now.maps <= r.maps && now.goroutines <= r.goroutines {
			return
		}
		time.Sleep(500 * time.Microsecond)
	}
	tb.Errorf("left behind: %d descriptors, %d mappings and %d goroutines; before: %d, %d, %d", now.fds, now.maps, now.goroutines, r.fds, r.maps, r.goroutines)
}

// mover is quiet, with DMA: at each write to its BAR it reads and writes at some addresses,
// on a goroutine of its own, and interrupts.
type mover struct {
	quiet
	mu   sync.Mutex
	h    Host
	kick chan struct{}
	done sync.WaitGroup
}

func newMover() *mover {
	m := &mover{kick: make(chan struct{}, 1)}
	m.done.Go(func() {
		var b [64]byte
		for range m.kick {
			m.mu.Lock()
			h := m.h
			m.mu.Unlock()
			if h == nil {
				continue
			}
			for i := range uint64(3) {
				h.Enter()
				_ = h.Read(0x10000+i*0xff8, b[:])
				_ = h.Write(0x10010+i*0xff8, b[:])
				if s := h.Slice(0x10000, 16, true); s != nil {
					_ = vfio.Guard(func() { s[0]++ })
				}
				h.Exit()
				h.Trigger(vfio.IRQMSIX, int(i))
			}
		}
	})
	return m
}

func (m *mover) Attach(h Host) {
	m.quiet.Attach(h)
	m.mu.Lock()
	m.h = h
	m.mu.Unlock()
	h.SetBusMaster(true)
}

func (m *mover) Detach() {
	m.quiet.Detach()
	m.mu.Lock()
	m.h = nil
	m.mu.Unlock()
}

func (m *mover) WriteRegion(i int, off uint64, p []byte) error {
	select {
	case m.kick <- struct{}{}:
	default:
	}
	return m.quiet.WriteRegion(i, off, p)
}

// fuzzMessage is a message of the conversation, of 8 bytes of the input: the command, the
// descriptors, and what its fields are. Then up to 7 changes of a byte.
func fuzzMessage(b []byte) (msg []byte, fd byte, left []byte) {
	x := b[:8]
	b = b[8:]
	cmd := command(x[0] % 20)
	addr, n := 0x10000+uint64(x[2]%8)*0x1000, uint64(x[3]%5)*0x1000
	var body []byte
	switch cmd {
	case cmdDMAMap:
		body = dwords(words(nil, dmaMapSize, uint32(x[4]%4)), uint64(x[5]%4)*0x1000, addr, n)
	case cmdDMAUnmap:
		body = dwords(words(nil, dmaUnmapSize, uint32(x[4]%4)), addr, n)
	case cmdGetInfo:
		body = words(nil, deviceInfoSize, 0, 0, 0)
	case cmdGetRegionInfo:
		body = dwords(words(nil, vfio.RegionInfoSize, 0, uint32(x[2]), 0), 0, 0)
	case cmdGetIOFDs, cmdGetIRQInfo:
		body = words(nil, irqInfoSize, 0, uint32(x[2]), 0)
	case cmdSetIRQs:
		body = words(nil, irqSetSize, 1<<(x[4]%3)|8<<(x[5]%3), uint32(x[2]%8), uint32(x[3]%8), uint32(x[6]%20))
		body = append(body, make([]byte, x[7]%20)...)
	case cmdRegionRead, cmdRegionWrite:
		body = words(dwords(nil, uint64(x[2])<<(x[5]%12)), uint32(x[3]%10), uint32(x[4]))
		if cmd == cmdRegionWrite {
			body = append(body, make([]byte, x[4])...)
		}
	case cmdDMARead, cmdDMAWrite: // of an answer that nobody asked for
		body = dwords(nil, addr, n)
	case cmdWriteMulti:
		body = dwords(nil, uint64(x[2]%4))
		for range x[3] % 4 {
			body = append(words(dwords(body, uint64(x[5])), 0, uint32(x[6]%10)), make([]byte, 8)...)
		}
	default:
		body = make([]byte, x[2])
	}
	h := header{id: uint16(x[7]), cmd: cmd, size: uint32(headerSize + len(body))}
	if x[7] >= 240 {
		h.flags = uint32(x[7] & 3)
	} else if x[7] >= 200 {
		h.flags = flagNoReply
	}
	msg = append(h.append(nil), body...)
	for k := x[6] % 8; k > 0 && len(b) >= 2; k-- {
		msg[int(b[0])%len(msg)] ^= b[1]
		b = b[2:]
	}
	return msg, x[1], b
}

// FuzzConversation: messages with descriptors, in any order, between DMA that the client
// answers well, late, twice, wrongly or never. The session ends; nothing is left behind.
func FuzzConversation(f *testing.F) {
	m := func(cmd command, fd, a, n, x, y, z, id byte) []byte { return []byte{byte(cmd), fd, a, n, x, y, z, id} }
	join := func(p ...[]byte) (b []byte) {
		for _, x := range p {
			b = append(b, x...)
		}
		return b
	}
	f.Add([]byte{0, 1, 2, 3, 4, 5}, join(m(cmdDMAMap, 1, 0, 2, 3, 0, 0, 1), m(cmdRegionWrite, 0, 0, 0, 4, 0, 0, 2), m(cmdDMAUnmap, 0, 0, 2, 0, 0, 0, 3)))
	f.Add([]byte{0, 0, 0, 0, 0, 0}, join(m(cmdDMAMap, 0, 0, 2, 3, 0, 0, 1), m(cmdRegionWrite, 0, 0, 0, 4, 0, 0, 2), m(cmdDMAUnmap, 0, 0, 2, 0, 0, 0, 3)))
	f.Add([]byte{2, 3, 4, 1}, join(m(cmdDMAMap, 2, 0, 4, 3, 0, 0, 1), m(cmdRegionWrite, 0, 0, 0, 4, 0, 0, 210), m(cmdReset, 0, 0, 0, 0, 0, 0, 3), m(cmdDMAMap, 3, 4, 2, 1, 0, 0, 1)))
	f.Add([]byte{}, join(m(cmdSetIRQs, 5, 2, 0, 2, 2, 3, 0), m(cmdSetIRQs, 10, 2, 0, 2, 2, 16, 0), m(cmdSetIRQs, 0, 2, 0, 0, 2, 3, 0), m(cmdSetIRQs, 6, 2, 0, 2, 2, 1, 0)))
	f.Add([]byte{}, join(m(cmdGetInfo, 0, 0, 0, 0, 0, 0, 1), m(cmdGetRegionInfo, 0, 7, 0, 0, 0, 0, 2), m(cmdGetIRQInfo, 0, 2, 0, 0, 0, 0, 2), m(cmdWriteMulti, 0, 2, 2, 0, 8, 8, 0), m(cmdRegionRead, 0, 1, 0, 64, 3, 0, 0)))
	f.Add([]byte{5}, join(m(cmdDMAMap, 11, 0, 2, 3, 0, 0, 1)))
	f.Add([]byte{}, m(cmdDMARead, 0, 0, 0, 0, 0, 0, 241))
	s := newSpares(f)
	hello := fuzzHello()
	f.Fuzz(func(t *testing.T, answers, script []byte) {
		before := resting(t)
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		fn := newMover()
		res := make(chan error, 1)
		go func() {
			res <- Serve(context.Background(), sc, fn, WithTimeout(2*time.Second), WithDMATimeout(2*time.Millisecond))
		}()
		var reader sync.WaitGroup
		reader.Go(func() { answerDMA(t, cc, answers) })
		_, _ = cc.Write(hello)
		for n := 0; len(script) >= 8 && n < 40; n++ {
			var msg []byte
			var fd byte
			msg, fd, script = fuzzMessage(script)
			var oob []byte
			if fds := s.pick(fd); len(fds) > 0 {
				oob = unix.UnixRights(fds...)
			}
			if _, _, err := cc.WriteMsgUnix(msg, oob, nil); err != nil {
				break
			}
		}
		_ = cc.CloseWrite()
		select {
		case err := <-res:
			if errors.Is(err, vfio.ErrTimeout) {
				t.Errorf("the session ended by its time: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the session does not end")
		}
		_ = cc.Close()
		reader.Wait()
		close(fn.kick)
		fn.done.Wait()
		if fn.attached != fn.detached || fn.attached != 1 {
			t.Errorf("attached %d, detached %d", fn.attached, fn.detached)
		}
		before.again(t)
	})
}

// answerDMA reads what the server sends until its end, and answers its DMA as the bytes say.
func answerDMA(t testing.TB, c *net.UnixConn, how []byte) {
	r := &raw{t: t, UnixConn: c}
	defer func() { closeFDs(r.fds) }()
	var late [][]byte
	for {
		b, err := r.recv()
		if err != nil {
			return
		}
		h, err := parseHeader(b)
		if err != nil {
			t.Errorf("the server sent %x: %v", b, err)
			return
		}
		if h.reply() {
			continue
		}
		k := byte(0)
		if len(how) > 0 {
			k, how = how[0], how[1:]
		}
		body := append([]byte{}, b[headerSize:][:dmaRWSize]...)
		if h.cmd == cmdDMARead {
			body = append(body, make([]byte, le.Uint64(body[8:]))...)
		}
		answer := append(header{id: h.id, cmd: h.cmd, flags: flagReply, size: uint32(headerSize + len(body))}.append(nil), body...)
		switch k % 7 {
		case 0:
			_, _ = c.Write(answer)
		case 1: // never
		case 2:
			_, _ = c.Write(append(answer, answer...))
		case 3:
			answer[headerSize+8]++
			_, _ = c.Write(answer)
		case 4:
			_, _ = c.Write(header{id: h.id, cmd: h.cmd, flags: flagReply | flagError, size: headerSize, errno: 14}.append(nil))
		case 5:
			late = append(late, answer)
		case 6:
			for _, a := range late {
				_, _ = c.Write(a)
			}
			late = nil
		}
	}
}
