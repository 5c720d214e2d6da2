package vfio

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// arenaChunk is how much an arena maps at once.
const arenaChunk = 2 << 20

// arenaAlign is the least alignment of a block: a cache line, so that two
// blocks never share one.
const arenaAlign = 64

// Freed blocks are kept out of use until more than so many bytes or blocks were
// freed after them: they stay mapped, so DMA that comes late does not fault, but
// hits nothing that took the address over.
const (
	arenaQuarantineBytes  = 2 << 20
	arenaQuarantineBlocks = 1024
)

// Arena carves small pieces of DMA memory from chunks that are mapped once,
// for the device to read and write. It is safe for concurrent use.
type Arena struct {
	s *Space
	o MemoryOptions

	mu         sync.Mutex
	chunks     []*arenaPiece
	quarantine []Block // oldest first
	held       uint64  // bytes in quarantine
	closed     bool
}

type arenaPiece struct {
	m    *Memory
	d    *DMA
	free []Area              // ascending, not adjacent
	used map[uint64]struct{} // offsets of the blocks that were not freed
}

// Block is a piece of an arena.
type Block struct {
	Bytes []byte // zero when allocated; invalid after Free and after the arena's Close
	IOVA  uint64
	chunk *arenaPiece
	area  Area
}

// NewArena makes an empty arena in s; memory is taken as o says when needed.
func NewArena(s *Space, o MemoryOptions) *Arena { return &Arena{s: s, o: o} }

// Alloc takes n zeroed bytes whose address, here and for the device, is a
// multiple of align: a power of two up to 2 MiB for the device and up to the
// page size here.
func (a *Arena) Alloc(n, align int) (Block, error) {
	if n <= 0 || align < 0 || align&(align-1) != 0 || align > arenaChunk {
		return Block{}, &Error{Addr: a.s.dev.Addr(), Op: "allocate from arena", Object: fmt.Sprintf("%d bytes aligned to %d", n, align), Err: ErrInvalid}
	}
	size := (uint64(n) + arenaAlign - 1) &^ (arenaAlign - 1)
	al := uint64(max(align, arenaAlign))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return Block{}, &Error{Addr: a.s.dev.Addr(), Op: "allocate from arena", Err: ErrClosed}
	}
	if b, ok := a.take(uint64(n), size, al); ok {
		return b, nil
	}
	if err := a.grow(size); err != nil {
		for len(a.quarantine) > 0 { // nothing else is left
			a.release()
			if b, ok := a.take(uint64(n), size, al); ok {
				return b, nil
			}
		}
		return Block{}, err
	}
	b, _ := a.chunks[len(a.chunks)-1].take(uint64(n), size, al) // a new chunk starts aligned and is large enough
	return b, nil
}

func (a *Arena) take(n, size, align uint64) (Block, bool) {
	for _, c := range a.chunks {
		if b, ok := c.take(n, size, align); ok {
			return b, true
		}
	}
	return Block{}, false
}

// grow adds a chunk with room for size bytes.
func (a *Arena) grow(size uint64) error {
	m, err := AllocMemory(int(max(size, arenaChunk)), a.o)
	if err != nil {
		return err
	}
	d, err := a.s.Map(m, 0, m.Size(), ProtReadWrite)
	if err != nil {
		return errors.Join(err, m.Close())
	}
	a.chunks = append(a.chunks, &arenaPiece{m: m, d: d, free: []Area{{0, m.Size()}}, used: map[uint64]struct{}{}})
	return nil
}

func (c *arenaPiece) take(n, size, align uint64) (Block, bool) {
	for i, f := range c.free {
		at := (f.Offset + align - 1) &^ (align - 1)
		if pad := at - f.Offset; pad > f.Size || size > f.Size-pad {
			continue
		}
		var rest []Area
		if at > f.Offset {
			rest = append(rest, Area{f.Offset, at - f.Offset})
		}
		if end := at + size; end < f.Offset+f.Size {
			rest = append(rest, Area{end, f.Offset + f.Size - end})
		}
		c.free = slices.Replace(c.free, i, i+1, rest...)
		c.used[at] = struct{}{}
		b := Block{Bytes: c.m.Bytes()[at : at+n : at+size], IOVA: c.d.IOVA() + at, chunk: c, area: Area{at, size}}
		clear(b.Bytes[:size])
		return b, true
	}
	return Block{}, false
}

// Free gives a block back, into the quarantine. The device must not use it any
// more: the arena stays mapped, so nothing would stop it. A chunk without blocks
// stays for the next ones. A block that was freed already is a bug and panics.
func (a *Arena) Free(b Block) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := b.chunk
	if c == nil || a.closed {
		return
	}
	if _, ok := c.used[b.area.Offset]; !ok {
		panic(fmt.Sprintf("vfio: Arena.Free of %#x+%#x, which is free", b.area.Offset, b.area.Size))
	}
	delete(c.used, b.area.Offset)
	a.quarantine = append(a.quarantine, b)
	a.held += b.area.Size
	for a.held-a.quarantine[0].area.Size > arenaQuarantineBytes || len(a.quarantine) > arenaQuarantineBlocks {
		a.release()
	}
}

// Quarantined reports whether the n bytes at iova are of one block that was freed
// and that nobody has taken over.
func (a *Arena) Quarantined(iova, n uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.quarantine, func(b Block) bool {
		return b.IOVA <= iova && n <= b.area.Size && iova-b.IOVA <= b.area.Size-n
	})
}

// release takes the oldest block out of quarantine.
func (a *Arena) release() {
	b := a.quarantine[0]
	a.quarantine = a.quarantine[1:]
	a.held -= b.area.Size
	c := b.chunk
	i, _ := slices.BinarySearchFunc(c.free, b.area.Offset, func(f Area, off uint64) int {
		if f.Offset < off {
			return -1
		}
		return 1
	})
	c.free = slices.Insert(c.free, i, b.area)
	if i+1 < len(c.free) && c.free[i].Offset+c.free[i].Size == c.free[i+1].Offset {
		c.free[i].Size += c.free[i+1].Size
		c.free = slices.Delete(c.free, i+1, i+2)
	}
	if i > 0 && c.free[i-1].Offset+c.free[i-1].Size == c.free[i].Offset {
		c.free[i-1].Size += c.free[i].Size
		c.free = slices.Delete(c.free, i, i+1)
	}
}

// InUse is the number of blocks that were not freed.
func (a *Arena) InUse() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.chunks {
		n += len(c.used)
	}
	return n
}

// Close unmaps and frees all chunks, blocks in use included. On an error what
// could not be unmapped stays, and the call can be repeated.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for len(a.chunks) > 0 {
		c := a.chunks[len(a.chunks)-1]
		if err := c.d.Unmap(); err != nil {
			return err
		}
		if err := c.m.Close(); err != nil {
			return err
		}
		a.chunks = a.chunks[:len(a.chunks)-1]
	}
	return nil
}
