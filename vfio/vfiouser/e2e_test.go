package vfiouser

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/hw/mmio"
	"rnic/vfio"
)

func alloc(t testing.TB, n int) *vfio.Memory {
	t.Helper()
	m, err := vfio.AllocMemory(n, vfio.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// pages gives n whole pages of the Go heap, wrapped: memory without a
// descriptor.
func wrap(t testing.TB, n int) *vfio.Memory {
	t.Helper()
	b := make([]byte, n+4096)
	skip := int(-addressOf(b) & 4095)
	m, err := vfio.WrapMemory(b[skip:][:n:n])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDescribe(t *testing.T) {
	r := newRig(t)
	if got, want := r.Info(), (vfio.DeviceInfo{Backend: "vfio-user", PCI: true, Reset: true, NumRegions: 9, NumIRQs: 5}); got != want {
		t.Errorf("info %+v, want %+v", got, want)
	}
	info := r.bar.Info()
	if info.Size != 0x4000 || len(info.Areas) != 1 || info.Areas[0] != (vfio.Area{Offset: 0x1000, Size: 0x1000}) ||
		info.Flags != vfio.RegionRead|vfio.RegionWrite|vfio.RegionMmap|vfio.RegionCaps {
		t.Errorf("region %+v", info)
	}
	if q, err := r.IRQ(vfio.IRQMSIX); err != nil || q.Count != engineVectors || q.Flags != vfio.IRQEventFD {
		t.Errorf("interrupt %+v, %v", q, err)
	}
	if q, err := r.IRQ(vfio.IRQMSI); err != nil || q.Count != 0 {
		t.Errorf("interrupt %+v, %v", q, err)
	}
	id, err := r.cfg.ID()
	if err != nil || id.Vendor != 0x1de5 || id.Device != 1 || id.Class != 0x020700 || id.Revision != 7 {
		t.Errorf("identity %+v, %v", id, err)
	}
	caps, err := r.cfg.Capabilities()
	if err != nil || len(caps) != 2 || caps[0] != (vfio.Capability{ID: 0x10, Offset: capPCIe}) || caps[1] != (vfio.Capability{ID: 0x11, Offset: capMSIX}) {
		t.Errorf("capabilities %+v, %v", caps, err)
	}
	for _, i := range []int{-1, 9, 1000} {
		if _, err := r.Region(i); !errors.Is(err, vfio.ErrNotFound) {
			t.Errorf("region %d: %v", i, err)
		}
	}
	if _, err := r.IRQ(5); !errors.Is(err, vfio.ErrNotFound) {
		t.Errorf("interrupt 5: %v", err)
	}
	if x, err := r.Region(vfio.RegionVGA); err != nil || x.Size != 0 {
		t.Errorf("region without implementation: %+v, %v", x, err)
	}
}

func TestRegisters(t *testing.T) {
	r := newRig(t)
	if v := r.bar.Load32(0); v != engineMagic {
		t.Errorf("magic %#x", v)
	}
	r.bar.Store64(0x10, 0x1122334455667788)
	if v := r.bar.Load64(0x10); v != 0x1122334455667788 {
		t.Errorf("64 bits: %#x", v)
	}
	// The doorbell page is mapped: a store is seen by the function without a message.
	db := r.bar.Word32(0x1010)
	if db == nil || r.bar.Word32(0x0ffc) != nil || r.bar.Word32(0x2000) != nil {
		t.Fatalf("doorbell mapped: %v, outside: %v %v", db, r.bar.Word32(0x0ffc), r.bar.Word32(0x2000))
	}
	_, _, _, before := r.e.counts()
	mmio.Store32(db, 0xd00be11)
	if got := le.Uint32(r.e.doorbell.Bytes()[0x1010:]); got != 0xd00be11 {
		t.Errorf("doorbell is %#x in the function", got)
	}
	if _, _, _, after := r.e.counts(); after != before {
		t.Errorf("the store came by message")
	}
	// The same word by message.
	var b [4]byte
	if err := r.ReadRegion(vfio.RegionBAR0, 0x1010, b[:]); err != nil || le.Uint32(b[:]) != 0xd00be11 {
		t.Errorf("read of a mapped page by message: %x, %v", b, err)
	}
	if err := r.bar.Err(); err != nil {
		t.Fatal(err)
	}
	// Bad accesses are refused and harm nothing.
	if _, err := r.bar.Read32(0x4000); !errors.Is(err, vfio.ErrRange) {
		t.Errorf("outside: %v", err)
	}
	if _, err := r.bar.Read32(2); !errors.Is(err, vfio.ErrRange) {
		t.Errorf("misaligned: %v", err)
	}
	if err := r.ReadRegion(vfio.RegionBAR0, 0x3ffd, b[:]); !errors.Is(err, vfio.ErrRange) {
		t.Errorf("over the end: %v", err)
	}
	if err := r.ReadRegion(vfio.RegionBAR0, ^uint64(0), b[:]); !errors.Is(err, vfio.ErrRange) {
		t.Errorf("wrapping: %v", err)
	}
	if err := r.WriteRegion(vfio.RegionBAR2, 0, b[:]); !errors.Is(err, vfio.ErrPermission) {
		t.Errorf("write to a read-only region: %v", err)
	}
	if err := r.WriteRegion(vfio.RegionBAR0, 0x3000, b[:]); !errors.Is(err, unix.ENXIO) {
		t.Errorf("the function's own error: %v", err)
	}
	if v := r.bar.Load32(0); v != engineMagic || r.bar.Err() != nil {
		t.Errorf("after errors: %#x, %v", v, r.bar.Err())
	}
}

// The engine copies between memory of each kind; both ways of DMA give the
// same bytes, and the counters say which way was taken.
func TestDMA(t *testing.T) {
	for _, c := range []struct {
		name     string
		src, dst func(testing.TB, int) *vfio.Memory
	}{{"fd", alloc, alloc}, {"message", wrap, wrap}, {"message to fd", wrap, alloc}, {"fd to message", alloc, wrap}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			const size = 3 << 20 // more than one message holds
			src, dst := c.src(t, size), c.dst(t, size)
			rng := rand.NewChaCha8([32]byte{1})
			_, _ = rng.Read(src.Bytes())
			s, err := r.s.Map(src, 0, size, vfio.ProtRead)
			if err != nil {
				t.Fatal(err)
			}
			d, err := r.s.Map(dst, 0, size, vfio.ProtWrite)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []uint32{1, 4, 4095, 4097, 65536, 1<<20 + 1, size - 7} {
				clear(dst.Bytes())
				if err := r.copyBy(t, s.IOVA()+3, d.IOVA()+5, n); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				want := make([]byte, size)
				copy(want[5:], src.Bytes()[3:3+n])
				if !bytes.Equal(dst.Bytes(), want) {
					t.Fatalf("%d bytes: the copy differs", n)
				}
			}
			st := r.e.host().Stats()
			if byMessage := src.FD() < 0; byMessage != (st.MessageReadBytes > 0) || byMessage == (st.ReadBytes > 0) {
				t.Errorf("reads: %+v", st)
			}
			if byMessage := dst.FD() < 0; byMessage != (st.MessageWriteBytes > 0) || byMessage == (st.WriteBytes > 0) {
				t.Errorf("writes: %+v", st)
			}
			if err := s.Unmap(); err != nil {
				t.Fatal(err)
			}
			if err := d.Unmap(); err != nil {
				t.Fatal(err)
			}
			if err := r.copyBy(t, s.IOVA(), d.IOVA(), 4); reasonOf(err) != DMAUnmapped {
				t.Errorf("after unmap: %v", err)
			}
			if err := src.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Rights of a mapping hold against the function, by either way.
func TestDMAPermissions(t *testing.T) {
	for _, kind := range []func(testing.TB, int) *vfio.Memory{alloc, wrap} {
		r := newRig(t)
		m := kind(t, 0x3000)
		for i := range m.Bytes() {
			m.Bytes()[i] = 0xaa
		}
		ro, err := r.s.Map(m, 0, 0x1000, vfio.ProtRead)
		if err != nil {
			t.Fatal(err)
		}
		wo, err := r.s.Map(m, 0x1000, 0x1000, vfio.ProtWrite)
		if err != nil {
			t.Fatal(err)
		}
		rw, err := r.s.Map(m, 0x2000, 0x1000, vfio.ProtReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name     string
			src, dst uint64
			n        uint32
			want     DMAReason
			at       uint64
		}{
			{"write to read-only", rw.IOVA(), ro.IOVA(), 16, DMAPermission, ro.IOVA()},
			{"read from write-only", wo.IOVA(), rw.IOVA(), 16, DMAPermission, wo.IOVA()},
			{"read outside", 0xdead0000, rw.IOVA(), 16, DMAUnmapped, 0xdead0000},
			{"read over the end", rw.IOVA() + 0xff8, wo.IOVA(), 16, DMAUnmapped, rw.IOVA() + 0x1000},
			{"wrap-around", ^uint64(0) - 7, wo.IOVA(), 16, DMAUnmapped, ^uint64(0) - 7},
			{"allowed", ro.IOVA(), rw.IOVA(), 16, 0, 0},
		} {
			err := r.copyBy(t, c.src, c.dst, c.n)
			var e *DMAError
			if c.want == 0 {
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			} else if !errors.As(err, &e) || e.Reason != c.want || e.IOVA != c.at {
				t.Errorf("%s: %v, want %v at %#x", c.name, err, c.want, c.at)
			}
		}
		for i, b := range m.Bytes() {
			if b != 0xaa {
				t.Fatalf("byte %#x was written", i)
			}
		}
	}
}

// A write that is not allowed as a whole changes nothing.
func TestDMAWriteIsWhole(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 0x2000)
	if err := r.MapDMA(0x100000, m, 0, 0x1000, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	if err := r.MapDMA(0x101000, m, 0x1000, 0x1000, vfio.ProtRead); err != nil {
		t.Fatal(err)
	}
	r.e.do(func(h Host) {
		h.Enter()
		defer h.Exit()
		if err := h.Write(0x100ff0, bytes.Repeat([]byte{1}, 32)); reasonOf(err) != DMAPermission {
			t.Errorf("write over a border of rights: %v", err)
		}
		if err := h.Read(0x100ff0, make([]byte, 32)); err != nil {
			t.Errorf("read over two mappings: %v", err)
		}
		// Neighbours in the address space and in the file are one piece.
		if s := h.Slice(0x100ff0, 32, false); len(s) != 32 {
			t.Errorf("slice over two mappings: %d bytes", len(s))
		}
		if s := h.Slice(0x100ff0, 32, true); s != nil {
			t.Errorf("writable slice over a border of rights")
		}
		if s := h.Slice(0x101ff0, 32, false); s != nil {
			t.Errorf("slice over the end")
		}
	})
	for i, b := range m.Bytes() {
		if b != 0 {
			t.Fatalf("byte %#x was written", i)
		}
	}
}

func TestBusMaster(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 0x1000)
	d, err := r.s.Map(m, 0, 0x1000, vfio.ProtReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.copyBy(t, d.IOVA(), d.IOVA()+64, 64); err != nil {
		t.Fatal(err)
	}
	if err := r.cfg.SetBusMaster(false); err != nil {
		t.Fatal(err)
	}
	r.e.do(func(h Host) {
		h.Enter()
		if err := h.Read(d.IOVA(), make([]byte, 4)); reasonOf(err) != DMABusMaster {
			t.Errorf("read: %v", err)
		}
		if err := h.Write(d.IOVA(), make([]byte, 4)); reasonOf(err) != DMABusMaster {
			t.Errorf("write: %v", err)
		}
		if h.Slice(d.IOVA(), 4, false) != nil {
			t.Error("slice")
		}
		h.Exit()
		h.Trigger(vfio.IRQMSIX, 0)
	})
	if fired(t, r.irq) {
		t.Error("an MSI-X message was sent without bus mastering")
	}
	if err := r.cfg.SetBusMaster(true); err != nil {
		t.Fatal(err)
	}
	if err := r.copyBy(t, d.IOVA(), d.IOVA()+64, 64); err != nil {
		t.Fatal(err)
	}
}

func TestInterrupts(t *testing.T) {
	r := newRig(t)
	// 40 vectors with holes: several messages.
	fds := make([]int, engineVectors)
	for i := range fds {
		fds[i] = -1
		if i != 7 && i != 8 && i != 30 {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			fds[i] = fd
		}
	}
	if err := r.SetIRQs(vfio.IRQMSIX, 0, fds); err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		r.e.do(func(h Host) { h.Trigger(vfio.IRQMSIX, i); h.Trigger(vfio.IRQMSIX, i) })
		if fd >= 0 {
			if n := waitEventFD(t, fd); n != 2 {
				t.Errorf("vector %d fired %d times", i, n)
			}
		}
	}
	r.e.do(func(h Host) { h.Trigger(vfio.IRQMSIX, -1); h.Trigger(vfio.IRQMSIX, engineVectors); h.Trigger(99, 0) })
	// Loopback.
	if err := r.TriggerIRQs(vfio.IRQMSIX, 10, 3); err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		if fd >= 0 && fired(t, fd) != (i >= 10 && i < 13) {
			t.Errorf("vector %d after loopback of 10 to 12", i)
		}
	}
	for i := 10; i < 13; i++ {
		waitEventFD(t, fds[i])
	}
	// Disconnect one; then all.
	if err := r.SetIRQs(vfio.IRQMSIX, 3, []int{-1}); err != nil {
		t.Fatal(err)
	}
	r.e.do(func(h Host) { h.Trigger(vfio.IRQMSIX, 3); h.Trigger(vfio.IRQMSIX, 4) })
	if fired(t, fds[3]) || !fired(t, fds[4]) {
		t.Error("vector 3 disconnected, 4 not")
	}
	waitEventFD(t, fds[4])
	if err := r.DisableIRQs(vfio.IRQMSIX); err != nil {
		t.Fatal(err)
	}
	r.e.do(func(h Host) { h.Trigger(vfio.IRQMSIX, 4) })
	if fired(t, fds[4]) {
		t.Error("vector 4 after disabling")
	}
	// INTx masks itself.
	if err := r.SetIRQs(vfio.IRQINTx, 0, []int{fds[0]}); err != nil {
		t.Fatal(err)
	}
	r.e.do(func(h Host) { h.Trigger(vfio.IRQINTx, 0); h.Trigger(vfio.IRQINTx, 0) })
	if n := waitEventFD(t, fds[0]); n != 1 {
		t.Errorf("INTx fired %d times before it was unmasked", n)
	}
	if err := r.MaskIRQs(vfio.IRQINTx, 0, 1, false); err != nil {
		t.Fatal(err)
	}
	if n := waitEventFD(t, fds[0]); n != 1 {
		t.Errorf("INTx fired %d times after", n)
	}
	for name, err := range map[string]error{
		"mask of MSI-X":        r.MaskIRQs(vfio.IRQMSIX, 0, 1, true),
		"too many vectors":     r.SetIRQs(vfio.IRQMSIX, engineVectors-1, fds[:2]),
		"index that is absent": r.SetIRQs(vfio.IRQMSI, 0, fds[:1]),
	} {
		if !errors.Is(err, vfio.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) }()
	if err := r.SetIRQs(vfio.IRQMSIX, 0, p[1:]); !errors.Is(err, vfio.ErrInvalid) {
		t.Errorf("a pipe as eventfd: %v", err)
	}
}

func TestEvents(t *testing.T) {
	r := newRig(t)
	r.e.host().RequestRelease()
	if e := <-r.Events(); e != vfio.EventRequest {
		t.Errorf("event %v", e)
	}
	r.e.host().Trigger(vfio.IRQERR, 0)
	if e := <-r.Events(); e != vfio.EventError {
		t.Errorf("event %v", e)
	}
	// A reader that never comes holds nothing up: 1,000 requests, then the end.
	for range 1000 {
		r.e.host().RequestRelease()
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	var last vfio.Event
	for e := range r.Events() {
		last = e
	}
	if last != vfio.EventGone {
		t.Errorf("last event %v", last)
	}
}

func TestResetAndFLR(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 0x1000)
	d, err := r.s.Map(m, 0, 0x1000, vfio.ProtReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	if v, err := r.cfg.Read16(vfio.ConfigCommand); err != nil || v != 0 {
		t.Errorf("command %#x after reset, %v", v, err)
	}
	if err := r.cfg.SetBusMaster(true); err != nil {
		t.Fatal(err)
	}
	if err := r.copyBy(t, d.IOVA(), d.IOVA()+8, 8); err != nil {
		t.Errorf("mappings are gone after reset: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.cfg.FLR(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, n, _ := r.e.counts(); n != 2 {
		t.Errorf("%d resets, want 2", n)
	}
}

func TestMapDMARefusals(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 0x4000)
	if err := r.MapDMA(0x100000, m, 0, 0x2000, vfio.ProtRead); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		iova, off, n uint64
		prot         vfio.Prot
		want         error
	}{
		{"same", 0x100000, 0, 0x2000, vfio.ProtRead, vfio.ErrExists},
		{"overlap at the end", 0x101000, 0, 0x2000, vfio.ProtRead, vfio.ErrExists},
		{"overlap at the start", 0xff000, 0, 0x2000, vfio.ProtRead, vfio.ErrExists},
		{"around", 0xff000, 0, 0x4000, vfio.ProtRead, vfio.ErrExists},
		{"misaligned", 0x200800, 0, 0x1000, vfio.ProtRead, vfio.ErrAlignment},
		{"length", 0x200000, 0, 0x800, vfio.ProtRead, vfio.ErrAlignment},
		{"empty", 0x200000, 0, 0, vfio.ProtRead, vfio.ErrAlignment},
		{"outside the memory", 0x200000, 0x3000, 0x2000, vfio.ProtRead, vfio.ErrInvalid},
		{"wrap-around", ^uint64(0xfff), 0, 0x2000, vfio.ProtRead, vfio.ErrInvalid},
		{"no rights", 0x200000, 0, 0x1000, 0, vfio.ErrInvalid},
	} {
		if err := r.MapDMA(c.iova, m, c.off, c.n, c.prot); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for _, c := range [][2]uint64{{0x100000, 0x1000}, {0x101000, 0x1000}, {0x300000, 0x1000}, {0x100000, 0}} {
		if err := r.UnmapDMA(c[0], c[1]); !errors.Is(err, vfio.ErrNotMapped) {
			t.Errorf("unmap of %#x+%#x: %v", c[0], c[1], err)
		}
	}
	if err := m.Close(); !errors.Is(err, vfio.ErrInUse) {
		t.Errorf("closing mapped memory: %v", err)
	}
	if err := r.UnmapDMA(0x100000, 0x2000); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("closing unmapped memory: %v", err)
	}
	if err := r.MapDMA(0x100000, m, 0, 0, vfio.ProtRead); err == nil {
		t.Error("closed memory was mapped")
	}
}

func TestWriteMultiAndPosted(t *testing.T) {
	r := newRig(t)
	w := func(off uint64, b ...byte) RegionWrite { return RegionWrite{Region: 0, Offset: off, Data: b} }
	if n, err := r.WriteMulti([]RegionWrite{w(0x10, 1), w(0x11, 2, 3), w(0x18, 1, 2, 3, 4, 5, 6, 7, 8)}); err != nil || n != 3 {
		t.Fatalf("%d, %v", n, err)
	}
	var b [16]byte
	if err := r.ReadRegion(0, 0x10, b[:]); err != nil || b != [16]byte{1, 2, 3, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8} {
		t.Errorf("%x, %v", b, err)
	}
	if n, err := r.WriteMulti([]RegionWrite{w(0x10, 9), w(0x4000, 1), w(0x11, 9)}); err == nil || n != 1 {
		t.Errorf("a bad write in the middle: %d, %v", n, err)
	}
	if n, err := r.WriteMulti([]RegionWrite{w(0x4000, 1)}); !errors.Is(err, vfio.ErrInvalid) || n != 0 {
		t.Errorf("a bad write: %d, %v", n, err)
	}
	if _, err := r.WriteMulti([]RegionWrite{w(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)}); !errors.Is(err, vfio.ErrInvalid) {
		t.Errorf("nine bytes: %v", err)
	}
	// A posted write is performed before a later command is answered.
	for i := range 200 {
		if err := r.PostRegion(0, 0x08, le.AppendUint32(nil, uint32(i))); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			if v := r.bar.Load32(0x08); v != uint32(i) {
				t.Fatalf("read %d after posting %d", v, i)
			}
		}
	}
}

func TestIOFDs(t *testing.T) {
	e := newEngine(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	e.io = []IOFD{
		{Offset: 0x24, Size: 4, Type: IOEventFD, Flags: 1, Data: 1, FD: fd},
		{Offset: 0x1000, Size: 8, Type: IORegionFD, Data: 77, FD: e.doorbell.FD()},
		{Offset: 0x28, Size: 4, Type: IOEventFD, FD: fd},
	}
	d, _ := open(t, e)
	got, err := d.RegionIOFDs(0)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	if got[0].FD != got[2].FD || got[0].FD == got[1].FD {
		t.Errorf("sharing of descriptors: %v", got)
	}
	for i, x := range got {
		want := e.io[i]
		want.FD = x.FD
		if x != want {
			t.Errorf("sub-region %d: %+v, want %+v", i, x, want)
		}
	}
	if signal(got[0].FD); !fired(t, fd) {
		t.Error("the eventfd is another one")
	}
	_, _ = unix.Close(got[0].FD), unix.Close(got[1].FD)
	if _, err := d.RegionIOFDs(2); !errors.Is(err, vfio.ErrNotSupported) {
		t.Errorf("a region without: %v", err)
	}
}
