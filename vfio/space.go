package vfio

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Space is the DMA address space of a device: it chooses addresses, and shares
// mappings of the same memory among their users, since a device keeps only so
// many. It is safe for concurrent use.
type Space struct {
	dev  Device
	iova *IOVAAllocator

	mu   sync.Mutex // held across the device's calls: mapping is not a hot path
	maps map[*Memory][]*spaceMap
}

// spaceMap is one mapping of the device.
type spaceMap struct {
	m          *Memory
	iova, off  uint64
	n          uint64
	prot       Prot
	users      int
	unshared   bool // at an address that its user chose
	unfinished bool // its unmap was tried and may be repeated
}

// NewSpace makes the address space of d. addressBits is the width of the
// device's own DMA addresses, which VFIO does not know; 0 means no limit.
func NewSpace(d Device, addressBits int) (*Space, error) {
	a, err := NewIOVAAllocator(d.IOVARanges(), d.PageSizes(), addressBits)
	if err != nil {
		return nil, err
	}
	return &Space{dev: d, iova: a, maps: make(map[*Memory][]*spaceMap)}, nil
}

// Allocator is the space's address allocator.
func (s *Space) Allocator() *IOVAAllocator { return s.iova }

// DMA is a user's hold on mapped memory.
type DMA struct {
	s    *Space
	r    *spaceMap // nil once unmapped
	iova uint64
	n    uint64
}

// IOVA is the device's address of the first byte.
func (d *DMA) IOVA() uint64 { return d.iova }

// Len is the length in bytes, as it was asked for.
func (d *DMA) Len() uint64 { return d.n }

// pages widens [off, off+n) to whole pages of the mapping.
func (s *Space) pages(m *Memory, off, n uint64) (first, size uint64, err error) {
	page := s.iova.Page()
	if n == 0 || off > m.Size() || n > m.Size()-off {
		return 0, 0, &Error{Addr: s.dev.Addr(), Op: "map DMA", Object: fmt.Sprintf("%#x bytes at %#x of %#x", n, off, m.Size()), Err: ErrInvalid}
	}
	first = off &^ (page - 1)
	size = (off + n - first + page - 1) &^ (page - 1)
	if size > m.Size()-first {
		return 0, 0, &Error{Addr: s.dev.Addr(), Op: "map DMA", Object: fmt.Sprintf("%#x bytes at %#x of %#x", n, off, m.Size()),
			Err: fmt.Errorf("%w of %#x bytes", ErrAlignment, page)}
	}
	return first, size, nil
}

// Map lets the device reach n bytes of m at off. The pages around them are
// mapped; a mapping with the same rights that holds them already is used
// again. The device's limit of mappings reached is ErrExhausted.
func (s *Space) Map(m *Memory, off, n uint64, prot Prot) (*DMA, error) {
	first, size, err := s.pages(m, off, n)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.maps[m] {
		if r.prot == prot && !r.unshared && !r.unfinished && r.off <= off && off-r.off <= r.n-n && n <= r.n {
			r.users++
			return &DMA{s: s, r: r, iova: r.iova + (off - r.off), n: n}, nil
		}
	}
	iova, err := s.iova.Alloc(size)
	if err != nil {
		return nil, err
	}
	return s.add(&spaceMap{m: m, iova: iova, off: first, n: size, prot: prot, users: 1}, off, n)
}

// MapAt is Map at a chosen address: iova is where byte off of m will be, and
// both are equally far into their pages. The mapping is not shared.
func (s *Space) MapAt(iova uint64, m *Memory, off, n uint64, prot Prot) (*DMA, error) {
	first, size, err := s.pages(m, off, n)
	if err != nil {
		return nil, err
	}
	start := iova - (off - first)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.iova.Reserve(start, size); err != nil {
		return nil, err
	}
	return s.add(&spaceMap{m: m, iova: start, off: first, n: size, prot: prot, users: 1, unshared: true}, off, n)
}

func (s *Space) add(r *spaceMap, off, n uint64) (*DMA, error) {
	if err := s.dev.MapDMA(r.iova, r.m, r.off, r.n, r.prot); err != nil {
		s.iova.Free(r.iova, r.n)
		return nil, err
	}
	s.maps[r.m] = append(s.maps[r.m], r)
	return &DMA{s: s, r: r, iova: r.iova + (off - r.off), n: n}, nil
}

// Unmap ends the user's hold, and the mapping with its last user: after nil no
// DMA on this user's behalf touches the memory. On an error the mapping stays
// and the call can be repeated. On a device that is gone or closed there is
// nothing left to unmap, and all is well. It is idempotent.
func (d *DMA) Unmap() error {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r := d.r
	if r == nil {
		return nil
	}
	if r.users > 1 {
		r.users--
		d.r = nil
		return nil
	}
	if err := s.dev.UnmapDMA(r.iova, r.n); err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrClosed) {
		r.unfinished = true
		return err
	}
	d.r = nil
	s.iova.Free(r.iova, r.n)
	left := slices.DeleteFunc(s.maps[r.m], func(x *spaceMap) bool { return x == r })
	if len(left) == 0 {
		delete(s.maps, r.m)
	} else {
		s.maps[r.m] = left
	}
	return nil
}

// Mappings is the number of mappings that the device holds for the space.
func (s *Space) Mappings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.maps {
		n += len(l)
	}
	return n
}
