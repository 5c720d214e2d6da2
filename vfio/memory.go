package vfio

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is memory that a device may be given to. It is made of whole pages
// and lies outside the Go heap, unless it wraps a caller's.
type Memory struct {
	b     []byte
	fd    int // -1 for wrapped memory
	mu    sync.Mutex
	users int // DMA mappings that refer to it
	done  bool
}

// MemoryOptions say how memory is allocated. The zero value takes pages of
// the system's size from any node.
type MemoryOptions struct {
	Huge      bool  // 2 MiB pages, from the huge-page pool
	NUMANodes []int // nodes to take the pages from; empty: any
}

const hugePage = 2 << 20

// AllocMemory allocates n bytes, rounded up to whole pages, as a sealed memfd
// that is mapped shared, zeroed and populated at once: a page that cannot be
// had is an error now and no SIGBUS later. The memory is not copied at fork.
// The caller closes it.
func AllocMemory(n int, o MemoryOptions) (*Memory, error) {
	fail := func(op string, err error) error {
		return &Error{Op: "allocate DMA memory", Object: fmt.Sprintf("of %d bytes", n), Err: fmt.Errorf("%s: %w", op, err)}
	}
	if n <= 0 {
		return nil, fail("size", ErrInvalid)
	}
	page, flags := os.Getpagesize(), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING
	if o.Huge {
		page, flags = hugePage, flags|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB
	}
	size := (n + page - 1) &^ (page - 1)
	if size < n {
		return nil, fail("size", ErrInvalid)
	}
	fd, err := unix.MemfdCreate("rnic-dma", flags)
	if err != nil {
		return nil, fail("memfd_create", err)
	}
	m := &Memory{fd: fd}
	if err := m.fill(size, o); err != nil {
		m.Close()
		if o.Huge && (errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC)) {
			err = fmt.Errorf("%w; reserve huge pages: echo %d > /proc/sys/vm/nr_hugepages", err, size/hugePage)
		}
		return nil, fail("map", err)
	}
	return m, nil
}

func (m *Memory) fill(size int, o MemoryOptions) error {
	if err := unix.Ftruncate(m.fd, int64(size)); err != nil {
		return err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, seals); err != nil {
		return err
	}
	b, err := unix.Mmap(m.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.b = b
	if err := bindNodes(b, o.NUMANodes); err != nil {
		return err
	}
	// fallocate takes the pages and fails where they cannot be had.
	if err := unix.Fallocate(m.fd, 0, 0, int64(size)); err != nil {
		return err
	}
	if err := unix.Madvise(b, unix.MADV_POPULATE_WRITE); err != nil && err != unix.EINVAL {
		return err // EINVAL: before Linux 5.14; the pages are allocated all the same
	}
	return unix.Madvise(b, unix.MADV_DONTFORK)
}

// bindNodes prefers the given NUMA nodes for b's pages (mbind(2)).
func bindNodes(b []byte, nodes []int) error {
	if len(nodes) == 0 {
		return nil
	}
	var mask [16]uint64
	for _, n := range nodes {
		if n < 0 || n >= 64*len(mask) {
			return fmt.Errorf("NUMA node %d: %w", n, ErrInvalid)
		}
		mask[n/64] |= 1 << (n % 64)
	}
	const mpolBind = 2
	_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), mpolBind,
		uintptr(unsafe.Pointer(&mask)), uintptr(64*len(mask)+1), 0)
	if e != 0 && e != unix.ENOSYS { // ENOSYS: a kernel without NUMA
		return fmt.Errorf("mbind to nodes %v: %w", nodes, e)
	}
	return nil
}

// WrapMemory makes a caller's memory mappable. It must start and end on page
// borders, must hold no Go pointers, and is referenced until Close. It has no
// file descriptor, so a vfio-user device reaches it by messages, slowly.
func WrapMemory(b []byte) (*Memory, error) {
	page := uintptr(os.Getpagesize())
	if len(b) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%page != 0 || uintptr(len(b))%page != 0 {
		return nil, &Error{Op: "wrap memory", Object: fmt.Sprintf("%p+%d", unsafe.SliceData(b), len(b)),
			Err: fmt.Errorf("%w of %d bytes; use AllocMemory", ErrAlignment, page)}
	}
	return &Memory{b: b, fd: -1}, nil
}

// Bytes is the memory, Size bytes. It must not be used after Close.
func (m *Memory) Bytes() []byte { return m.b }

// FD is the memfd behind the memory, or -1 for wrapped memory. It stays
// Memory's.
func (m *Memory) FD() int { return m.fd }

// Size is the memory's size in bytes: whole pages.
func (m *Memory) Size() uint64 { return uint64(len(m.b)) }

// Retain notes a DMA mapping of the memory, so that Close refuses while it
// exists. Device implementations call it. It fails on closed memory.
func (m *Memory) Retain() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		return &Error{Op: "use DMA memory", Err: ErrClosed}
	}
	m.users++
	return nil
}

// Unretain ends a Retain.
func (m *Memory) Unretain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users <= 0 {
		panic("vfio: Memory.Unretain without Retain")
	}
	m.users--
}

// Close frees the memory. While a DMA mapping refers to it, it is ErrInUse and
// nothing happens. It is idempotent.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		return nil
	}
	if m.users > 0 {
		return &Error{Op: "free DMA memory", Object: fmt.Sprintf("of %d bytes with %d mappings", len(m.b), m.users), Err: ErrInUse}
	}
	m.done = true
	b := m.b
	m.b = nil
	if m.fd < 0 {
		return nil
	}
	var err error
	if b != nil {
		err = unix.Munmap(b)
	}
	return errors.Join(err, unix.Close(m.fd))
}
