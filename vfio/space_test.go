package vfio

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// ledger is a device that keeps its DMA mappings as the kernel's type1v2 does.
type ledger struct {
	Device
	maps  map[uint64]uint64
	limit int
	fail  error
}

func newLedger() *ledger { return &ledger{maps: make(map[uint64]uint64), limit: 1 << 16} }

func (l *ledger) Addr() string            { return "test:ledger" }
func (l *ledger) IOVARanges() []IOVARange { return FallbackIOVARanges() }
func (l *ledger) PageSizes() uint64       { return 4096 }

func (l *ledger) MapDMA(iova uint64, m *Memory, off, n uint64, p Prot) error {
	switch {
	case l.fail != nil:
		return l.fail
	case len(l.maps) == l.limit:
		return ErrExhausted
	case (iova|off|n)%4096 != 0 || n == 0 || off+n > m.Size():
		return fmt.Errorf("map of %#x+%#x: %w", iova, n, ErrInvalid)
	}
	for f, k := range l.maps {
		if iova < f+k && f < iova+n {
			return ErrExists
		}
	}
	l.maps[iova] = n
	return m.Retain()
}

func (l *ledger) UnmapDMA(iova, n uint64) error {
	switch {
	case l.fail != nil:
		return l.fail
	case l.maps[iova] != n || n == 0:
		return ErrNotMapped
	}
	delete(l.maps, iova)
	return nil
}

func mustAlloc(t *testing.T, n int) *Memory {
	t.Helper()
	m, err := AllocMemory(n, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSpaceShares(t *testing.T) {
	l := newLedger()
	s, err := NewSpace(l, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := mustAlloc(t, 0x10000)
	a, err := s.Map(m, 0x1100, 0x3000, ProtReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if a.IOVA()%4096 != 0x100 || a.Len() != 0x3000 || l.maps[a.IOVA()-0x100] != 0x4000 {
		t.Errorf("%#x+%#x, device has %#x", a.IOVA(), a.Len(), l.maps)
	}
	b, err := s.Map(m, 0x2000, 0x2000, ProtReadWrite)
	if err != nil || b.IOVA() != a.IOVA()+0xf00 || s.Mappings() != 1 {
		t.Errorf("a part of it: %#x, %v, %d mappings", b.IOVA(), err, s.Mappings())
	}
	c, err := s.Map(m, 0x2000, 0x2000, ProtRead)
	if err != nil || s.Mappings() != 2 || c.IOVA() == b.IOVA() {
		t.Errorf("with other rights: %v, %d mappings", err, s.Mappings())
	}
	d, err := s.Map(m, 0x4000, 0x2000, ProtReadWrite)
	if err != nil || s.Mappings() != 3 {
		t.Errorf("reaching over the end: %v, %d mappings", err, s.Mappings())
	}
	e, err := s.MapAt(0x40000100, m, 0x100, 0x100, ProtReadWrite)
	if err != nil || e.IOVA() != 0x40000100 || l.maps[0x40000000] != 0x1000 {
		t.Errorf("at a chosen address: %v", err)
	}
	if _, err := s.MapAt(0x40000100, m, 0x100, 0x100, ProtReadWrite); !errors.Is(err, ErrExists) {
		t.Errorf("twice: %v", err)
	}
	if _, err := s.MapAt(0x40010000, m, 0x100, 0x100, ProtReadWrite); !errors.Is(err, ErrInvalid) {
		t.Errorf("otherwise far into the page: %v", err)
	}
	if err := a.Unmap(); err != nil || len(l.maps) != 4 {
		t.Errorf("first user: %v, %d mappings", err, len(l.maps))
	}
	if err := a.Unmap(); err != nil || len(l.maps) != 4 {
		t.Errorf("first user twice: %v, %d mappings", err, len(l.maps))
	}
	// The device fails: the mapping stays, is not handed out, and can be
	// unmapped again.
	l.fail = ErrTimeout
	if err := b.Unmap(); !errors.Is(err, ErrTimeout) {
		t.Errorf("%v", err)
	}
	l.fail = nil
	f, err := s.Map(m, 0x2000, 0x1000, ProtReadWrite)
	if err != nil || f.IOVA() == b.IOVA() {
		t.Errorf("a mapping that is being ended was shared: %v", err)
	}
	for _, x := range []*DMA{b, c, d, e, f} {
		if err := x.Unmap(); err != nil {
			t.Error(err)
		}
	}
	if len(l.maps) != 0 || s.Mappings() != 0 {
		t.Errorf("left: %#x", l.maps)
	}
	// A failed map takes no address.
	free := s.Allocator().Largest()
	l.limit = 0
	if _, err := s.Map(m, 0, 0x1000, ProtRead); !errors.Is(err, ErrExhausted) {
		t.Errorf("%v", err)
	}
	for _, c := range [][2]uint64{{0, 0}, {0x10000, 1}, {0xffff, 2}, {^uint64(0), 2}} {
		if _, err := s.Map(m, c[0], c[1], ProtRead); !errors.Is(err, ErrInvalid) {
			t.Errorf("%#x: %v", c, err)
		}
	}
	if got := s.Allocator().Largest(); got != free {
		t.Errorf("largest free range %#x, was %#x", got, free)
	}
	// A gone device has nothing to unmap.
	l.limit = 10
	g, err := s.Map(m, 0, 0x1000, ProtRead)
	if err != nil {
		t.Fatal(err)
	}
	l.fail = &Error{Op: "unmap DMA", Err: ErrGone}
	if err := g.Unmap(); err != nil || s.Mappings() != 0 {
		t.Errorf("gone: %v", err)
	}
}

// Random blocks: aligned, zeroed, apart from each other, on both sides.
func TestArenaRandom(t *testing.T) {
	l := newLedger()
	s, err := NewSpace(l, 0)
	if err != nil {
		t.Fatal(err)
	}
	a := NewArena(s, MemoryOptions{})
	rng := rand.New(rand.NewPCG(3, 4))
	type live struct {
		b   Block
		tag byte
	}
	var blocks []live
	check := func(x live) {
		for i, v := range x.b.Bytes {
			if v != x.tag {
				t.Fatalf("byte %d of a block of %d is %d, want %d", i, len(x.b.Bytes), v, x.tag)
			}
		}
	}
	for i := range 3000 {
		if rng.IntN(5) < 3 || len(blocks) == 0 {
			n, align := 1+rng.IntN(20000), 1<<rng.IntN(13)
			b, err := a.Alloc(n, align)
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Bytes) != n || b.IOVA%uint64(align) != 0 || addr(b.Bytes)%uintptr(align) != 0 || b.IOVA%64 != 0 {
				t.Fatalf("%d bytes aligned to %d: %d at %#x, %#x", n, align, len(b.Bytes), b.IOVA, addr(b.Bytes))
			}
			x := live{b, 0}
			check(x)
			x.tag = byte(i%255 + 1)
			for k := range b.Bytes {
				b.Bytes[k] = x.tag
			}
			blocks = append(blocks, x)
		} else {
			k := rng.IntN(len(blocks))
			check(blocks[k])
			a.Free(blocks[k].b)
			blocks[k] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		}
	}
	if a.InUse() != len(blocks) {
		t.Errorf("%d in use, %d live", a.InUse(), len(blocks))
	}
	if len(l.maps) > 12 {
		t.Errorf("%d mappings for about %d bytes", len(l.maps), 10000*len(blocks))
	}
	for _, x := range blocks {
		check(x)
		a.Free(x.b)
	}
	for len(a.quarantine) > 0 {
		a.release()
	}
	for _, c := range a.chunks {
		if len(c.free) != 1 || len(c.used) != 0 || a.held != 0 {
			t.Errorf("a chunk is in %d pieces with %d blocks", len(c.free), len(c.used))
		}
	}
	big, err := a.Alloc(5<<20, 2<<20)
	if err != nil || big.IOVA%(2<<20) != 0 {
		t.Errorf("larger than a chunk: %#x, %v", big.IOVA, err)
	}
	for _, c := range [][2]int{{0, 1}, {-1, 1}, {1, 3}, {1, -4}, {1, 4 << 20}} {
		if _, err := a.Alloc(c[0], c[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
	func() {
		a.Free(big)
		defer func() {
			if recover() == nil {
				t.Error("freeing twice went unnoticed")
			}
		}()
		a.Free(big)
	}()
	l.fail = ErrTimeout
	if err := a.Close(); !errors.Is(err, ErrTimeout) {
		t.Errorf("%v", err)
	}
}

// A freed block's address is nobody's until 2 MiB, or 1,024 blocks, were freed after
// it, unless nothing else is left.
func TestArenaQuarantine(t *testing.T) {
	l := newLedger()
	s, err := NewSpace(l, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ size, rest int }{{4096, 512}, {64, 1023}, {200 << 10, 10}} {
		a := NewArena(s, MemoryOptions{})
		alloc := func() Block {
			b, err := a.Alloc(c.size, 64)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		first := alloc()
		if a.Quarantined(first.IOVA, 1) {
			t.Error("a block in use is in quarantine")
		}
		a.Free(first)
		for i := range c.rest {
			if !a.Quarantined(first.IOVA, uint64(c.size)) {
				t.Fatalf("blocks of %d: in quarantine until %d were freed after it", c.size, i)
			}
			b := alloc()
			if b.IOVA == first.IOVA {
				t.Fatalf("blocks of %d: taken over after %d others", c.size, i)
			}
			a.Free(b)
		}
		if a.Quarantined(first.IOVA, uint64(c.size)+64) || !a.Quarantined(first.IOVA+1, uint64(c.size)-1) {
			t.Error("more than the block is in quarantine, or less")
		}
		a.Free(alloc())
		if a.Quarantined(first.IOVA, 1) {
			t.Errorf("blocks of %d: in quarantine after %d others", c.size, c.rest+1)
		}
	}
	a := NewArena(s, MemoryOptions{})
	b, err := a.Alloc(2<<20, 64)
	if err != nil {
		t.Fatal(err)
	}
	a.Free(b)
	l.fail = ErrExhausted
	if c, err := a.Alloc(2<<20, 64); err != nil || c.IOVA != b.IOVA {
		t.Errorf("nothing else is left: %#x, %v; want %#x", c.IOVA, err, b.IOVA)
	}
	if _, err := a.Alloc(64, 64); !errors.Is(err, ErrExhausted) {
		t.Errorf("nothing is left: %v", err)
	}
}
