package vfiouser

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// engine is a small PCI function: configuration space with PCI Express and
// MSI-X, BAR 0 with a register page, a doorbell page and an MSI-X table, BAR 2
// read-only, and a DMA engine that copies and interrupts.
//
// BAR 0: 0x00 magic; 0x08 scratch; 0x10 source; 0x18 destination; 0x20 length;
// 0x24 command (1: copy, then fire the vector in bits 8..); 0x28 status.
// Doorbells at 0x1000 are memory of the function's.
type engine struct {
	mu       sync.Mutex
	config   [256]byte
	bar0     [0x1000]byte
	doorbell *vfio.Memory
	resets   int
	attached int
	detached int
	h        Host
	work     chan func(Host)
	hold     func() // called in WriteRegion of the scratch register
	writes   []uint64
	io       []IOFD
	areas    []vfio.Area
	wg       sync.WaitGroup
	last     error // of the engine
}

const (
	engineMagic   = 0x656e6769
	statusIdle    = 0
	statusDone    = 1
	statusFailed  = 2
	capPCIe       = 0x40
	capMSIX       = 0x80
	engineVectors = 40
)

func newEngine(t testing.TB) *engine {
	t.Helper()
	m, err := vfio.AllocMemory(0x4000, vfio.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{doorbell: m, work: make(chan func(Host), 64), areas: []vfio.Area{{Offset: 0x1000, Size: 0x1000}}}
	b := binary.LittleEndian
	c := e.config[:]
	b.PutUint16(c[0x00:], 0x1de5)
	b.PutUint16(c[0x02:], 0x0001)
	b.PutUint16(c[0x06:], 1<<4)
	c[0x08] = 7
	c[0x09], c[0x0a], c[0x0b] = 0, 0x07, 0x02
	c[0x34] = capPCIe
	c[capPCIe], c[capPCIe+1] = 0x10, capMSIX
	b.PutUint32(c[capPCIe+4:], 1<<28)
	c[capMSIX], c[capMSIX+1] = 0x11, 0
	b.PutUint16(c[capMSIX+2:], engineVectors-1)
	b.PutUint32(c[capMSIX+4:], 0x2800) // table: BAR 0, behind the doorbells
	b.PutUint32(c[capMSIX+8:], 0x3000) // pending bits
	b.PutUint32(e.bar0[:], engineMagic)
	e.wg.Go(func() {
		for f := range e.work {
			e.mu.Lock()
			h := e.h
			e.mu.Unlock()
			if h != nil {
				f(h)
			}
		}
	})
	t.Cleanup(func() {
		close(e.work)
		e.wg.Wait()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *engine) Regions() []RegionSpec {
	rw := vfio.RegionRead | vfio.RegionWrite
	return []RegionSpec{
		{Index: vfio.RegionBAR0, Size: 0x4000, Flags: rw, Areas: e.areas, FD: e.doorbell.FD(), IOFDs: e.io},
		{Index: vfio.RegionBAR2, Size: 0x100, Flags: vfio.RegionRead},
		{Index: vfio.RegionConfig, Size: 256, Flags: rw},
	}
}

func (e *engine) IRQs() []IRQSpec {
	return []IRQSpec{
		{Index: vfio.IRQINTx, Count: 1, Flags: vfio.IRQEventFD | vfio.IRQMaskable | vfio.IRQAutomasked},
		{Index: vfio.IRQMSIX, Count: engineVectors, Flags: vfio.IRQEventFD},
		{Index: vfio.IRQERR, Count: 1, Flags: vfio.IRQEventFD},
		{Index: vfio.IRQREQ, Count: 1, Flags: vfio.IRQEventFD},
	}
}

func (e *engine) ReadRegion(i int, off uint64, p []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case i == vfio.RegionConfig:
		copy(p, e.config[off:])
	case i == vfio.RegionBAR2:
		for k := range p {
			p[k] = byte(off) + byte(k)
		}
	case off+uint64(len(p)) <= 0x1000:
		copy(p, e.bar0[off:])
	case off >= 0x1000 && off+uint64(len(p)) <= 0x2000:
		copy(p, e.doorbell.Bytes()[off:])
	case off < 0x2000: // across the border
		return unix.EIO
	default:
		clear(p)
	}
	return nil
}

func (e *engine) WriteRegion(i int, off uint64, p []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writes = append(e.writes, uint64(i)<<32|off)
	switch {
	case i == vfio.RegionConfig:
		copy(e.config[off:], p)
		e.h.SetBusMaster(e.config[4]&vfio.CommandBusMaster != 0)
		if e.config[capPCIe+9]&0x80 != 0 { // FLR: self-clearing
			e.config[capPCIe+9] &^= 0x80
			e.resetLocked()
		}
	case off+uint64(len(p)) <= 0x1000:
		copy(e.bar0[off:], p)
		if off == 0x08 && e.hold != nil {
			e.hold()
		}
		if off == 0x24 {
			e.start()
		}
	case off >= 0x1000 && off+uint64(len(p)) <= 0x2000:
		copy(e.doorbell.Bytes()[off:], p)
	default:
		return unix.ENXIO
	}
	return nil
}

func (e *engine) start() {
	b := binary.LittleEndian
	src, dst := b.Uint64(e.bar0[0x10:]), b.Uint64(e.bar0[0x18:])
	n, vector := b.Uint32(e.bar0[0x20:]), int(b.Uint32(e.bar0[0x24:])>>8)
	b.PutUint32(e.bar0[0x28:], statusIdle)
	e.work <- func(h Host) {
		buf := make([]byte, n)
		h.Enter()
		err := h.Read(src, buf)
		if err == nil {
			err = h.Write(dst, buf)
		}
		h.Exit()
		e.mu.Lock()
		e.last = err
		status := uint32(statusDone)
		if err != nil {
			status = statusFailed
		}
		b.PutUint32(e.bar0[0x28:], status)
		e.mu.Unlock()
		h.Trigger(vfio.IRQMSIX, vector)
	}
}

func (e *engine) resetLocked() {
	e.resets++
	e.config[4] = 0
	clear(e.bar0[8:])
	e.h.SetBusMaster(false)
}

func (e *engine) Reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.resetLocked()
}

func (e *engine) Attach(h Host) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.h = h
	e.attached++
	e.config[4] = 0
}

func (e *engine) Detach() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.h = nil
	e.detached++
}

func (e *engine) lastError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// counts gives how often the engine was attached, detached, reset and written to.
func (e *engine) counts() (attached, detached, resets, writes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.attached, e.detached, e.resets, len(e.writes)
}

func (e *engine) host() Host {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.h
}

// do runs f on the engine's worker and waits for it.
func (e *engine) do(f func(h Host)) {
	done := make(chan bool)
	e.work <- func(h Host) { defer close(done); f(h) }
	<-done
}

// serve runs a server for e on c; the result comes on the channel.
func serve(t testing.TB, c *net.UnixConn, e Function, opts ...Option) <-chan error {
	t.Helper()
	res := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		res <- Serve(ctx, c, e, opts...)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return res
}

// open connects a client to e over a socket pair.
func open(t testing.TB, e Function, opts ...Option) (*Device, <-chan error) {
	t.Helper()
	cc, sc, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	res := serve(t, sc, e, opts...)
	d, err := Client(context.Background(), cc, "test:engine", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, res
}

// rig is an open engine with its BAR, configuration space and address space.
type rig struct {
	*Device
	e   *engine
	bar *vfio.BAR
	cfg *vfio.Config
	s   *vfio.Space
	irq int // eventfd of vector 0
	res <-chan error
}

func newRig(t testing.TB, opts ...Option) *rig {
	t.Helper()
	e := newEngine(t)
	d, res := open(t, e, opts...)
	r := &rig{Device: d, e: e, res: res}
	var err error
	if r.bar, err = vfio.NewBAR(d, vfio.RegionBAR0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.bar.Release() })
	if r.cfg, err = vfio.NewConfig(d); err != nil {
		t.Fatal(err)
	}
	if r.s, err = vfio.NewSpace(d, 0); err != nil {
		t.Fatal(err)
	}
	if r.irq, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(r.irq) })
	if err := d.SetIRQs(vfio.IRQMSIX, 0, []int{r.irq}); err != nil {
		t.Fatal(err)
	}
	if err := r.cfg.SetBusMaster(true); err != nil {
		t.Fatal(err)
	}
	return r
}

// waitEventFD blocks until the eventfd fires and gives its count.
func waitEventFD(t testing.TB, fd int) uint64 {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 10_000)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 {
			t.Fatalf("interrupt did not come: %d, %v", n, err)
		}
		break
	}
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:])
}

// fired says whether the eventfd has fired, without waiting.
func fired(t testing.TB, fd int) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

// copyBy has the engine copy n bytes and gives its error.
func (r *rig) copyBy(t testing.TB, src, dst uint64, n uint32) error {
	t.Helper()
	r.bar.Store64(0x10, src)
	r.bar.Store64(0x18, dst)
	r.bar.Store32(0x20, n)
	r.bar.Store32(0x24, 1)
	waitEventFD(t, r.irq)
	if err := r.bar.Err(); err != nil {
		t.Fatal(err)
	}
	err := r.e.lastError()
	if want := uint32(statusDone); (err == nil) != (r.bar.Load32(0x28) == want) {
		t.Fatalf("status %d, error %v", r.bar.Load32(0x28), err)
	}
	return err
}

func reasonOf(err error) DMAReason {
	var e *DMAError
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}
