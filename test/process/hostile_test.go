package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/vfio"
)

// Commands of vfio-user (QEMU's docs/interop/vfio-user.rst).
const (
	userVersion     = 1
	userDMAMap      = 2
	userSetIRQs     = 8
	userRegionRead  = 9
	userRegionWrite = 10
	userDMARead     = 11
)

const (
	hostileMemory   = 64 << 10
	hostileReplies  = 32 << 10 // where its reply ring is
	hostileCommands = 6        // log2 of the entries of its command ring
)

// hostile is a client of a card that does what no driver does.
type hostile struct {
	t *testing.T
	*net.UnixConn
	mem      int // a memfd, at IOVA 0
	irq      int // eventfd of vector 0, which waits
	producer uint32
}

// newHostile takes a card and starts its command queue, in memory that is sealed against
// shrinking or is not.
func newHostile(t *testing.T, path string, seals int) *hostile {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h := &hostile{t: t, UnixConn: c}
	if err := errors.Join(c.SetDeadline(time.Now().Add(deadline)), c.SetReadBuffer(1), c.SetWriteBuffer(1)); err != nil {
		t.Fatal(err)
	}
	h.call(userVersion, words32(1<<16)) // 0.1
	if h.mem, err = unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
		t.Cleanup(func() { _ = unix.Close(h.mem) })
		err = unix.Ftruncate(h.mem, hostileMemory)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(h.mem), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		h.irq, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(h.irq) })
	nop := hw.CommandEntry{Opcode: hw.CommandNop, Token: 1}
	if _, err := unix.Pwrite(h.mem, bytes.Repeat(nop.AsBytes(), 1<<hostileCommands), 0); err != nil {
		t.Fatal(err)
	}
	h.call(userDMAMap, words64(32|uint64(vfio.ProtReadWrite)<<32, 0, 0, hostileMemory), h.mem)
	const trigger, eventFD = 1 << 5, 1 << 2
	h.call(userSetIRQs, words32(20, trigger|eventFD, vfio.IRQMSIX, 0, 1), h.irq)
	h.call(userRegionWrite, append(access(vfio.RegionConfig, 4, 2), 6, 0)) // memory and bus master
	for _, w := range []struct {
		reg uint64
		v   uint32
	}{
		{hw.RegControlCommandRing, 0}, {hw.RegControlCommandRing + 4, 0}, {hw.RegControlReplyRing, hostileReplies}, {hw.RegControlReplyRing + 4, 0},
		{hw.RegControlCommandSize, hostileCommands}, {hw.RegControlCommandVector, 0}, {hw.RegControlCommandEnable, 1},
	} {
		h.call(userRegionWrite, append(access(hw.BARCtrl, w.reg, 4), words32(w.v)...))
	}
	return h
}

func words32(v ...uint32) (b []byte) {
	for _, v := range v {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func words64(v ...uint64) (b []byte) {
	for _, v := range v {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// access begins a read or a write of a region.
func access(region int, off uint64, n uint32) []byte {
	return append(words64(off), words32(uint32(region), n)...)
}

// say sends a command. Its descriptors stay the caller's.
func (h *hostile) say(cmd uint32, body []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	b := append(words32(cmd<<16|1, uint32(16+len(body)), 0, 0), body...)
	n, _, err := h.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = h.Write(b[n:])
	}
	return err
}

// hear reads messages until one that ok wants, and gives its header. The card's commands are not
// answered.
func (h *hostile) hear(what string, ok func(cmd, flags uint32) bool) (head [16]byte) {
	h.t.Helper()
	for {
		if _, err := io.ReadFull(h, head[:]); err != nil {
			h.t.Fatalf("%s: %v", what, err)
		}
		rest := int64(binary.LittleEndian.Uint32(head[4:])) - int64(len(head))
		if _, err := io.CopyN(io.Discard, h, rest); err != nil {
			h.t.Fatalf("%s: %v", what, err)
		}
		if ok(binary.LittleEndian.Uint32(head[:])>>16, binary.LittleEndian.Uint32(head[8:])) {
			return head
		}
	}
}

// call sends a command and takes its reply.
func (h *hostile) call(cmd uint32, body []byte, fds ...int) {
	h.t.Helper()
	if err := h.say(cmd, body, fds...); err != nil {
		h.t.Fatal(err)
	}
	head := h.hear("a reply", func(c, flags uint32) bool { return c == cmd && flags&0xf == 1 })
	if head[8]&0x20 != 0 {
		h.t.Fatalf("command %d: errno %d", cmd, binary.LittleEndian.Uint32(head[12:]))
	}
}

// replies are those in memory.
func (h *hostile) replies() (b [hw.CommandReplySize << hostileCommands]byte) {
	if _, err := unix.Pread(h.mem, b[:], hostileReplies); err != nil {
		h.t.Error(err)
	}
	return b
}

// interrupted waits for an interrupt, and takes it.
func (h *hostile) interrupted() {
	h.t.Helper()
	p := []unix.PollFd{{Fd: int32(h.irq), Events: unix.POLLIN}}
	n, err := unix.Poll(p, int(deadline/time.Millisecond))
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(p, int(deadline/time.Millisecond))
	}
	if err != nil || n != 1 {
		h.t.Fatalf("its card does not interrupt: %v", err)
	}
	_, _ = unix.Read(h.irq, make([]byte, 8))
}

// ring gives the card a ring full of commands.
func (h *hostile) ring() error {
	h.producer += 1 << hostileCommands
	return h.say(userRegionWrite, append(access(hw.BARCtrl, hw.RegControlCommandDoorbell, 4), words32(h.producer)...))
}

// TestProcesses_HostileClientHarmsNoOther: a client of one card of several shrinks the memory
// that its card reads, stops reading what it asks for, or keeps its interrupts waiting. Traffic between
// two other cards goes on, and its own card is the next program's once it is gone, with nothing
// left open.
func TestProcesses_HostileClientHarmsNoOther(t *testing.T) {
	for _, c := range []struct {
		name  string
		seals int
		play  func(h *hostile) // returns in the midst of it
	}{
		{"shrinks its memory", 0, func(h *hostile) {
			if err := errors.Join(unix.Ftruncate(h.mem, 0), h.ring()); err != nil {
				h.t.Error(err)
			}
			h.hear("the card's reading", func(c, flags uint32) bool { return c == userDMARead && flags&0xf == 0 })
		}},
		{"reads no answers", unix.F_SEAL_SHRINK, func(h *hostile) {
			_ = h.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			for err := error(nil); !errors.Is(err, os.ErrDeadlineExceeded); err = errors.Join(h.ring(), h.say(userRegionRead, access(hw.BARCtrl, 0, 4096))) {
				if err != nil {
					h.t.Error(err)
					return
				}
			}
		}},
		{"keeps its interrupts waiting", unix.F_SEAL_SHRINK, func(h *hostile) {
			full := words64(1<<64 - 2)
			if err := h.ring(); err != nil {
				h.t.Error(err)
			}
			h.interrupted()
			for range 200 {
				_, err := unix.Pwrite(h.mem, make([]byte, hw.CommandReplySize<<hostileCommands), hostileReplies)
				if err = errors.Join(err, unix.SetNonblock(h.irq, true), h.ring()); err != nil {
					h.t.Error(err)
					return
				}
				for now := h.replies(); bytes.Equal(now[len(now)-hw.CommandReplySize:], make([]byte, hw.CommandReplySize)); {
					_ = unix.SetNonblock(h.irq, true)
					_, _ = unix.Read(h.irq, make([]byte, 8)) // the card sees the room
					_, _ = unix.Write(h.irq, full)
					_ = unix.SetNonblock(h.irq, false)
					before := now
					for limit := time.Now().Add(2 * time.Second); now == before; now = h.replies() {
						if time.Now().After(limit) {
							return // the card waits for it
						}
					}
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := simulate(t, "c", "d", "hostile")
			w.listen(t, "d")
			neighbour := w.connect(t, "c", "d")
			neighbour.progress(t, 20)
			fds, mappings := w.holds(t)
			h := newHostile(t, w.path("hostile"), c.seals)
			c.play(h)
			neighbour.drop()
			neighbour.progress(t, 200)
			_ = h.Close()
			neighbour.drop()
			neighbour.progress(t, 20)
			if err := open(t, w.addr("hostile")).Close(); err != nil {
				t.Errorf("the next program of the card: %v", err)
			}
			for limit := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
				n, m := w.holds(t)
				if n <= fds && m <= mappings+1 { // the ring of Linux AIO
					break
				}
				if time.Now().After(limit) {
					t.Fatalf("left behind: %d descriptors and %d mappings; before: %d, %d", n, m, fds, mappings)
				}
			}
		})
	}
}
