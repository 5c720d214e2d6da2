package vfiouser

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// fullest is the most that a write adds to an eventfd: the next waits, or is refused.
var fullest = le.AppendUint64(nil, 1<<64-2)

// connect gives vector 0 of a raw client's MSI-X an eventfd that waits.
func connect(t testing.TB, r *raw) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	r.send(`0200 0800 2400 0000 0000 0000 0000 0000  1400 0000 2400 0000 0200 0000 0000 0000 0100 0000`, fd)
	r.expect("irqs", `0200 0800 1000 0000 0100 0000 0000 0000`)
	return fd
}

// TestH03_Signal: each signal counts, by as many workers as there are, and a counter that is full
// takes no more.
func TestH03_Signal(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	const workers, each = 4, 10 * aioSlots
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				signal(fd)
			}
		})
	}
	wg.Wait()
	if n := waitEventFD(t, fd); n != workers*each {
		t.Errorf("%d signals counted, of %d", n, workers*each)
	}
	if fired(t, fd) {
		t.Error("the eventfd fires again")
	}
	signal(-1)
}

// TestH03_FullEventFD: a client lets its eventfd wait, and fills it whenever the function may
// have seen room: the worker that interrupts goes on, the session ends, and nothing is left.
func TestH03_FullEventFD(t *testing.T) {
	good := newRig(t)
	e := newEngine(t)
	before := resting(t)
	r, served := rawClient(t, e)
	fd := connect(t, r)
	e.host().SetBusMaster(true)
	var count atomic.Uint64
	var stop atomic.Bool
	stopped := make(chan struct{})
	e.work <- func(h Host) {
		defer close(stopped)
		for !stop.Load() {
			h.Trigger(vfio.IRQMSIX, 0)
			count.Add(1)
		}
	}
	err := func() error {
		for round := range 1000 {
			if err := unix.SetNonblock(fd, true); err != nil {
				return err
			}
			_, _ = unix.Read(fd, make([]byte, 8))
			for range round % 64 { // the worker sees the room
				_ = count.Load()
			}
			_, _ = unix.Write(fd, fullest)
			if err := unix.SetNonblock(fd, false); err != nil {
				return err
			}
			from := count.Load()
			for limit := time.Now().Add(5 * time.Second); count.Load() < from+2; {
				if time.Now().After(limit) {
					return fmt.Errorf("round %d: the worker waits for its client", round)
				}
			}
		}
		return nil
	}()
	if err != nil {
		t.Error(err)
		_ = unix.SetNonblock(fd, true)
		_, _ = unix.Read(fd, make([]byte, 8)) // lets it go
	}
	if v := good.bar.Load32(0); v != engineMagic {
		t.Errorf("the other session: %#x, %v", v, good.bar.Err())
	}
	_ = r.Close()
	<-served // the function interrupts on
	stop.Store(true)
	<-stopped
	before.fds++ // the client's eventfd
	before.again(t)
}

func BenchmarkSignal(b *testing.B) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	b.ReportAllocs()
	for b.Loop() {
		signal(fd)
	}
}

// BenchmarkInterrupt is an interrupt from a function's worker to a client that waits for it.
func BenchmarkInterrupt(b *testing.B) {
	r := newRig(b)
	ask := make(chan struct{})
	r.e.work <- func(h Host) {
		for range ask {
			h.Trigger(vfio.IRQMSIX, 0)
		}
	}
	b.ReportAllocs()
	buf := make([]byte, 8)
	for b.Loop() {
		ask <- struct{}{}
		if _, err := unix.Read(r.irq, buf); err != nil {
			b.Fatal(err)
		}
	}
	close(ask)
}
