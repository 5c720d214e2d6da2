package vfiouser

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// The server's table against a model that keeps one entry for each page:
// random maps, unmaps, checks and slices.
func TestDMATableRandom(t *testing.T) {
	const page, space = 4096, 256
	type entry struct {
		id   int // of the map that made it
		prot vfio.Prot
		file bool
		off  uint64 // page of the file
	}
	fd := alloc(t, space*page)
	for i := range fd.Bytes() {
		if i%page == 0 {
			fd.Bytes()[i] = byte(i / page)
		}
	}
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 9))
		h := newHost(nil, limits{maps: 20}, time.Second)
		h.SetBusMaster(true)
		model := make(map[uint64]entry)
		ids := make(map[int][2]uint64)
		for step := range 3000 {
			first, n := rng.Uint64N(space), 1+rng.Uint64N(8)
			switch rng.IntN(4) {
			case 0:
				e := entry{id: step, prot: vfio.Prot(1 + rng.IntN(3)), file: rng.IntN(2) == 0, off: rng.Uint64N(space - 8)}
				var want error
				for p := first; p < first+n; p++ {
					if _, ok := model[p]; ok {
						want = vfio.ErrExists
					}
				}
				if want == nil && len(ids) == 20 {
					want = unix.ENOSPC
				}
				f := -1
				if e.file {
					f = fd.FD()
				}
				if err := h.mapDMA(first*page, n*page, e.prot, f, e.off*page); !errors.Is(err, want) {
					t.Fatalf("seed %d step %d: map %d+%d: %v, want %v", seed, step, first, n, err, want)
				}
				if want == nil {
					ids[step] = [2]uint64{first, n}
					for k := range n {
						model[first+k] = entry{e.id, e.prot, e.file, e.off + k}
					}
				}
			case 1:
				var want error
				inside := make(map[int]bool)
				for p := first; p < first+n; p++ {
					if e, ok := model[p]; ok {
						inside[e.id] = true
					}
				}
				for id := range inside {
					if r := ids[id]; r[0] < first || r[0]+r[1] > first+n {
						want = vfio.ErrInvalid
					}
				}
				if err := h.unmapDMA(first*page, (first+n)*page-1); !errors.Is(err, want) {
					t.Fatalf("seed %d step %d: unmap %d+%d: %v, want %v", seed, step, first, n, err, want)
				}
				if want == nil {
					for id := range inside {
						for p := ids[id][0]; p < ids[id][0]+ids[id][1]; p++ {
							delete(model, p)
						}
						delete(ids, id)
					}
				}
			default:
				right := vfio.Prot(1 + rng.IntN(2))
				iova := first*page + rng.Uint64N(page)
				size := 1 + rng.Uint64N(n*page)
				var why DMAReason
				at := uint64(0)
				one := true // one piece of the file
				for p := iova / page; p <= (iova+size-1)/page && why == 0; p++ {
					e, ok := model[p]
					if !ok {
						why = DMAUnmapped
					} else if e.prot&right == 0 {
						why = DMAPermission
					}
					if why != 0 {
						at = max(iova, p*page)
					}
					one = one && e.file && e.off == model[iova/page].off+(p-iova/page)
				}
				h.Enter()
				gotAt, got := h.check(iova, size, right)
				s := h.Slice(iova, size, right == vfio.ProtWrite)
				h.Exit()
				if got != why || gotAt != at {
					t.Fatalf("seed %d step %d: check %#x+%#x: %v at %#x, want %v at %#x", seed, step, iova, size, got, gotAt, why, at)
				}
				if (s != nil) != (why == 0 && one) {
					t.Fatalf("seed %d step %d: slice %#x+%#x: %v, want %v", seed, step, iova, size, s != nil, why == 0 && one)
				}
				if s != nil && (uint64(len(s)) != size || iova%page == 0 && s[0] != byte(model[iova/page].off)) {
					t.Fatalf("seed %d step %d: slice %#x+%#x shows another place", seed, step, iova, size)
				}
			}
		}
		if len(h.files) > 1 {
			t.Errorf("%d mappings of one file", len(h.files))
		}
		h.close()
		if len(h.maps) != 0 || len(h.files) != 0 {
			t.Errorf("seed %d: %d maps, %d files after the end", seed, len(h.maps), len(h.files))
		}
	}
}

// DMA through shared memory allocates nothing.
func TestDMAAllocatesNothing(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 1<<16)
	for i := range uint64(16) {
		if err := r.MapDMA(0x100000+4096*i, m, 4096*i, 4096, vfio.ProtReadWrite); err != nil {
			t.Fatal(err)
		}
	}
	r.e.do(func(h Host) {
		buf := make([]byte, 5000)
		n := testing.AllocsPerRun(100, func() {
			h.Enter()
			if h.Read(0x100123, buf) != nil || h.Write(0x108123, buf) != nil || h.Slice(0x100ff0, 64, true) == nil {
				t.Error("DMA failed")
			}
			h.Exit()
			h.Trigger(vfio.IRQMSIX, 0)
		})
		if n != 0 {
			t.Errorf("%v allocations for a read, a write, a slice and an interrupt", n)
		}
	})
}

// An open device and its server take no time of the processor while nothing
// happens: all of their goroutines are blocked.
func TestIdle(t *testing.T) {
	_ = newRig(t)
	var a, b syscall.Rusage
	usage := func(u *syscall.Rusage) time.Duration {
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := usage(&a)
	time.Sleep(300 * time.Millisecond)
	if used := usage(&b) - before; used > 100*time.Millisecond {
		t.Errorf("%v of processor time in 300 ms of idleness", used)
	}
}

func TestErrorsSpeak(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 0x1000)
	err := r.MapDMA(0x100000, m, 0, 0x1001, vfio.ProtReadWrite)
	for _, part := range []string{"test:engine", "map DMA", "0x100000+0x1001", "rw", "0x1000 bytes"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	e := &DMAError{IOVA: 0x1234, N: 8, Write: true, Reason: DMARejected, Err: unix.ENODEV}
	if s := e.Error(); s != "DMA write of 8 bytes at 0x1234: refused by the client: no such device" || !errors.Is(e, unix.ENODEV) {
		t.Error(s)
	}
	for r := DMAUnmapped; r <= DMAFault; r++ {
		if strings.HasPrefix(r.String(), "reason") {
			t.Errorf("reason %d has no name", int(r))
		}
	}
	if s := fmt.Sprint(DMAReason(99), command(99), vfio.Event(99)); s != "reason 99 command 99 event 99" {
		t.Error(s)
	}
}

func BenchmarkDMARead4K(b *testing.B) {
	r := newRig(b)
	m := alloc(b, 1<<21)
	if err := r.MapDMA(0x200000, m, 0, 1<<21, vfio.ProtReadWrite); err != nil {
		b.Fatal(err)
	}
	r.e.do(func(h Host) {
		buf := make([]byte, 4096)
		b.SetBytes(4096)
		b.ResetTimer()
		for i := range b.N {
			h.Enter()
			_ = h.Read(0x200000+uint64(i%500)*4096, buf)
			h.Exit()
		}
	})
}

func BenchmarkDMARead64(b *testing.B) {
	r := newRig(b)
	m := alloc(b, 1<<21)
	if err := r.MapDMA(0x200000, m, 0, 1<<21, vfio.ProtReadWrite); err != nil {
		b.Fatal(err)
	}
	r.e.do(func(h Host) {
		buf := make([]byte, 64)
		h.Enter()
		defer h.Exit()
		b.ResetTimer()
		for i := range b.N {
			_ = h.Read(0x200000+uint64(i%500)*4096, buf)
		}
	})
}

func BenchmarkRegisterRead(b *testing.B) {
	r := newRig(b)
	for b.Loop() {
		_ = r.bar.Load32(0)
	}
}

func BenchmarkMapUnmap(b *testing.B) {
	r := newRig(b)
	m := alloc(b, 4096)
	for b.Loop() {
		if err := errors.Join(r.MapDMA(0x200000, m, 0, 4096, vfio.ProtReadWrite), r.UnmapDMA(0x200000, 4096)); err != nil {
			b.Fatal(err)
		}
	}
}
