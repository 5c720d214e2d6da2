package vfio

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Random use against a plain model: a set of pages in use. Ranges are whole,
// aligned, inside the usable addresses, and never overlap.
func TestIOVAAllocatorRandom(t *testing.T) {
	const page, huge = 4096, 2 << 20
	ranges := []IOVARange{{0, 0x1fffff}, {0x300000, 0xfedfffff}, {0xfef00000, 0xffffffff}}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a, err := NewIOVAAllocator(ranges, 0x40201000, 0)
		if err != nil {
			t.Fatal(err)
		}
		used := make(map[uint64]bool) // pages
		type piece struct{ iova, n uint64 }
		var live []piece
		take := func(iova, n uint64) {
			size := (n + page - 1) / page * page
			in := false
			for _, r := range ranges {
				in = in || iova >= max(r.First, 0x10000) && iova+size-1 <= r.Last
			}
			if !in || iova%page != 0 || size >= huge && iova%huge != 0 {
				t.Fatalf("seed %d: %#x bytes at %#x", seed, n, iova)
			}
			for p := iova; p < iova+size; p += page {
				if used[p] {
					t.Fatalf("seed %d: page %#x twice", seed, p)
				}
				used[p] = true
			}
			live = append(live, piece{iova, n})
		}
		for range 2000 {
			switch k := rng.IntN(10); {
			case k < 5:
				n := uint64(1) << rng.IntN(24)
				n += rng.Uint64N(n)
				if iova, err := a.Alloc(n); err == nil {
					take(iova, n)
				} else if !errors.Is(err, ErrExhausted) {
					t.Fatal(err)
				}
			case k < 6:
				iova := rng.Uint64N(1<<32) &^ (huge - 1)
				free := true
				for p := iova; p < iova+huge; p += page {
					free = free && !used[p]
				}
				usable := iova >= 0x400000 && !(iova >= 0xfec00000 && iova < 0xff000000)
				err := a.Reserve(iova, huge)
				switch {
				case err == nil:
					take(iova, huge)
				case usable && free:
					t.Fatalf("seed %d: reserve %#x: %v", seed, iova, err)
				}
			case len(live) > 0:
				i := rng.IntN(len(live))
				p := live[i]
				a.Free(p.iova, p.n)
				for q := p.iova; q < p.iova+(p.n+page-1)/page*page; q += page {
					delete(used, q)
				}
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			}
		}
		// When all is given back, all is one again.
		for _, p := range live {
			a.Free(p.iova, p.n)
		}
		for len(a.quarantine) > 0 {
			a.release()
		}
		if len(a.free) != 3 || a.held != 0 || a.free[0] != (IOVARange{0x10000, 0x1fffff}) {
			t.Fatalf("seed %d: %v", seed, a.free)
		}
	}
}

func TestIOVAQuarantine(t *testing.T) {
	a, err := NewIOVAAllocator([]IOVARange{{0x10000, 0x1ffff}}, 4096, 0) // 16 pages
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	a.Free(first, 4096)
	for range 15 { // all others come before the one just freed
		if iova, err := a.Alloc(4096); err != nil || iova == first {
			t.Fatalf("%#x, %v: the freed page is used again while others are free", iova, err)
		}
	}
	if iova, err := a.Alloc(4096); err != nil || iova != first {
		t.Errorf("%#x, %v: the last page is in quarantine and is needed", iova, err)
	}
	_, err = a.Alloc(1)
	if !errors.Is(err, ErrExhausted) {
		t.Errorf("%v", err)
	}
	// A page of the quarantine is given to who asks for it by name.
	a.Free(first, 4096)
	if err := a.Reserve(first, 4096); err != nil {
		t.Error(err)
	}
	if err := a.Reserve(first, 4096); !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}
	if err := a.Reserve(0x20000, 4096); !errors.Is(err, ErrExhausted) {
		t.Errorf("%v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("freeing twice went unnoticed")
		}
	}()
	a.Free(first, 4096)
	a.Free(first, 4096)
}

func TestIOVAAllocatorBounds(t *testing.T) {
	// The device's own width cuts the ranges.
	a, err := NewIOVAAllocator(FallbackIOVARanges(), 4096, 28)
	if err != nil {
		t.Fatal(err)
	}
	for {
		iova, err := a.Alloc(1 << 20)
		if err != nil {
			break
		}
		if iova+1<<20 > 1<<28 {
			t.Fatalf("%#x is beyond 28 bits", iova)
		}
	}
	// No range contains the window of message-signalled interrupts.
	for _, r := range FallbackIOVARanges() {
		if r.First <= 0xfeefffff && r.Last >= 0xfee00000 {
			t.Errorf("%v holds the MSI window", r)
		}
	}
	for _, c := range []struct {
		ranges []IOVARange
		pages  uint64
		bits   int
	}{
		{nil, 4096, 0}, {FallbackIOVARanges(), 0, 0}, {FallbackIOVARanges(), 4096, 10},
		{FallbackIOVARanges(), 4096, 65}, {[]IOVARange{{0x100000, 0x1fffff}, {0x180000, 0x2fffff}}, 4096, 0},
		{[]IOVARange{{0x100001, 0x100fff}}, 4096, 0},
	} {
		if _, err := NewIOVAAllocator(c.ranges, c.pages, c.bits); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
	full, err := NewIOVAAllocator([]IOVARange{{0, ^uint64(0)}}, 4096, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{0, ^uint64(0), ^uint64(4094)} {
		if _, err := full.Alloc(n); err == nil {
			t.Errorf("%#x bytes were allocated", n)
		}
	}
	if err := full.Reserve(^uint64(4095), 8192); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
}
