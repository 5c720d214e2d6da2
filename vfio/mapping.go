package vfio

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a region in the address space of this process. The whole
// region's range is reserved without access; its areas are mapped at their
// places in it, so an offset in the region is an offset in the mapping.
type Mapping struct {
	base unsafe.Pointer // set once; the range is released only by Release
	size uintptr        // reserved bytes, whole pages

	mu       sync.Mutex
	areas    []Area // mapped ones
	revoked  bool
	released bool
}

// maxMapping is the largest region that is reserved, in bytes: all regions of a
// function, each as large, leave the process the most of its address space.
const maxMapping = 1 << 42

// NewMapping maps areas of the file fd, whose region begins at file offset
// base, into a reserved range of size bytes. A mapping that is not writable
// faults on a store. Device implementations call it; fd may be closed after.
func NewMapping(size uint64, areas []Area, fd int, base uint64, writable bool) (*Mapping, error) {
	page := uint64(os.Getpagesize())
	fail := func(obj string, err error) error { return &Error{Op: "map region", Object: obj, Err: err} }
	if size > maxMapping {
		return nil, fail(fmt.Sprintf("of %#x bytes", size), ErrInvalid)
	}
	m := &Mapping{size: uintptr(max(size+page-1, page) &^ (page - 1))}
	p, err := unix.MmapPtr(-1, 0, nil, m.size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fail(fmt.Sprintf("of %#x bytes: reserve", size), err)
	}
	m.base = p
	AddWindow(uintptr(p), m.size)
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	end := uint64(0)
	for _, a := range areas {
		obj := fmt.Sprintf("area %#x+%#x", a.Offset, a.Size)
		if a.Offset < end || a.Size == 0 || a.Size > size || a.Offset > size-a.Size ||
			a.Offset%page != 0 || a.Size%page != 0 || (base+a.Offset)%page != 0 || base+a.Offset < base {
			m.Release()
			return nil, fail(obj, ErrInvalid)
		}
		end = a.Offset + a.Size
		if _, err := unix.MmapPtr(fd, int64(base+a.Offset), unsafe.Add(m.base, a.Offset), uintptr(a.Size), prot, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			m.Release()
			return nil, fail(obj, err)
		}
		if err := madvise(unsafe.Add(m.base, a.Offset), uintptr(a.Size), unix.MADV_DONTFORK); err != nil {
			m.Release()
			return nil, fail(obj+": MADV_DONTFORK", err)
		}
		m.areas = append(m.areas, a)
	}
	return m, nil
}

func madvise(p unsafe.Pointer, n uintptr, advice int) error {
	return unix.Madvise(unsafe.Slice((*byte)(p), n), advice)
}

// mapped says whether n bytes at off lie in one area. The areas do not change
// before Release.
func (m *Mapping) mapped(off, n uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.released {
		return false
	}
	for _, a := range m.areas {
		if off >= a.Offset && n <= a.Size && off-a.Offset <= a.Size-n {
			return true
		}
	}
	return false
}

// Areas are the mapped pieces, ascending.
func (m *Mapping) Areas() []Area {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Area(nil), m.areas...)
}

// Word32 is the register at off for use with mmio.Load32 and Store32, or nil
// where it is not mapped or off is not a multiple of 4. Keep it: the look-up
// takes a lock. It is invalid after Release.
func (m *Mapping) Word32(off uint64) *uint32 {
	if off%4 != 0 || !m.mapped(off, 4) {
		return nil
	}
	return (*uint32)(unsafe.Add(m.base, off))
}

// Word64 is Word32 for 64-bit registers, at multiples of 8.
func (m *Mapping) Word64(off uint64) *uint64 {
	if off%8 != 0 || !m.mapped(off, 8) {
		return nil
	}
	return (*uint64)(unsafe.Add(m.base, off))
}

// Bytes is a window of n bytes at off, or nil where it is not mapped as one
// piece. It is for pages that hold memory (a memfd-backed BAR): copy may use
// any access width. It is invalid after Release.
func (m *Mapping) Bytes(off, n uint64) []byte {
	if n == 0 || !m.mapped(off, n) {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(m.base, off)), n)
}

// Released says whether Release was called.
func (m *Mapping) Released() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.released
}

// Revoke replaces every area by private pages of 0xFF at the same address,
// each piece in one step: a goroutine that is loading or storing there sees all
// ones, as from a function that has left its slot, and never a fault. Stores
// reach nobody. The kernel's hold on the device's pages is dropped. It is
// idempotent.
func (m *Mapping) Revoke() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.revoked || m.released {
		return nil
	}
	fd, err := onesFile()
	for _, a := range m.areas {
		// From the end down: of a mapping of a BAR that is taken away in pieces, Linux 6.1 on x86 gives back the attributes
		// of its memory (PAT) for pieces at its end alone, and complains of others in the kernel's log.
		for end := a.Offset + a.Size; err == nil && end > a.Offset; {
			n := min(onesSize, end-a.Offset)
			end -= n
			_, err = unix.MmapPtr(fd, 0, unsafe.Add(m.base, end), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED)
		}
		if err != nil {
			return &Error{Op: "revoke region mapping", Object: fmt.Sprintf("area %#x+%#x", a.Offset, a.Size), Err: err}
		}
	}
	m.revoked = true
	return nil
}

// onesSize is the piece in which Revoke replaces areas: a BAR has tens of MiB,
// and filling as much memory for each device that goes would take seconds.
const onesSize = 2 << 20

// onesFile is a file of onesSize bytes of 0xFF, whose pages all revoked areas
// share until one is stored to. It stays open for the process's life.
var onesFile = sync.OnceValues(func() (int, error) {
	fd, err := unix.MemfdCreate("rnic-ones", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	if _, err = unix.Write(fd, bytes.Repeat([]byte{0xff}, onesSize)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
})

// Release unmaps the region. No pointer from the mapping may be used after
// it: call it when nobody is inside. It is idempotent.
func (m *Mapping) Release() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.released {
		return nil
	}
	m.released = true
	m.areas = nil
	RemoveWindow(uintptr(m.base))
	if err := unix.MunmapPtr(m.base, m.size); err != nil {
		return &Error{Op: "release region mapping", Err: err}
	}
	return nil
}
