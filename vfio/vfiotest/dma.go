package vfiotest

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

// mapping is memory of the program that functions reach.
type mapping struct {
	va   unsafe.Pointer
	n    uint64
	prot vfio.Prot
}

// space is an address space: of a container or of iommufd.
type space struct {
	k       *Kernel
	maps    map[uint64]mapping
	entries int  // limit; 0: none
	type1   bool // VFIO's own, and not iommufd's
}

func newSpace(k *Kernel, entries int) *space {
	return &space{k: k, maps: map[uint64]mapping{}, entries: entries}
}

func (s *space) add(iova uint64, va unsafe.Pointer, n uint64, p vfio.Prot) error {
	page := s.k.m.PageSizes & -s.k.m.PageSizes
	last := iova + n - 1
	inside := false
	for _, r := range s.k.m.Ranges {
		inside = inside || r.First <= iova && last <= r.Last
	}
	if n == 0 || p == 0 || (iova|n|uint64(uintptr(va)))%page != 0 || last < iova || !inside {
		return unix.EINVAL
	}
	for at, m := range s.maps {
		if iova <= at+m.n-1 && at <= last {
			return unix.EEXIST
		}
	}
	if s.entries > 0 && len(s.maps) >= s.entries {
		return unix.ENOSPC
	}
	if s.k.m.Memlock > 0 && s.k.locked+n > s.k.m.Memlock {
		return unix.ENOMEM
	}
	s.k.accountLocked(int64(n))
	s.maps[iova] = mapping{va, n, p}
	return nil
}

// remove unmaps the mappings inside [iova, iova+n) and gives their bytes. One
// that is cut is EINVAL.
func (s *space) remove(iova, n uint64) (uint64, error) {
	if n == 0 || iova+n-1 < iova {
		return 0, unix.EINVAL
	}
	last := iova + n - 1
	if s.type1 && last == 1<<64-1 {
		return 0, nil // as before Linux commit ef270ec44637: the end that it compares with is 0
	}
	got := uint64(0)
	for at, m := range s.maps {
		if end := at + m.n - 1; at <= last && iova <= end && (at < iova || end > last) {
			return 0, unix.EINVAL
		}
	}
	for at, m := range s.maps {
		if at >= iova && at <= last {
			got += m.n
			s.k.accountLocked(-int64(m.n))
			delete(s.maps, at)
		}
	}
	return got, nil
}

func (s *space) end() {
	for at, m := range s.maps {
		s.k.accountLocked(-int64(m.n))
		delete(s.maps, at)
	}
}

// access copies between p and the program's memory, as a function does.
func (s *space) access(iova uint64, p []byte, write bool) error {
	right := vfio.ProtRead
	if write {
		right = vfio.ProtWrite
	}
	for at, m := range s.maps {
		if iova < at || iova-at >= m.n {
			continue
		}
		off := iova - at
		if m.prot&right == 0 || uint64(len(p)) > m.n-off {
			return unix.EFAULT
		}
		mem := unsafe.Slice((*byte)(unsafe.Add(m.va, off)), len(p))
		if write {
			dmaCopy(mem, p)
		} else {
			dmaCopy(p, mem)
		}
		return nil
	}
	return unix.EFAULT
}

// dmaCopy copies what the function reads or writes. A program orders its own
// accesses with the function's by what the race detector does not see: it must
// not see the function's either.
//
//go:norace
func dmaCopy(dst, src []byte) {
	for i := range min(len(dst), len(src)) {
		dst[i] = src[i]
	}
}

// container is /dev/vfio/vfio, or /dev/iommu used as one.
type container struct {
	k      *Kernel
	compat bool
	groups map[*group]bool
	space  *space // with SET_IOMMU
}

// drop ends the IOMMU with the last group.
func (c *container) drop() {
	if len(c.groups) == 0 {
		c.end()
	}
}

func (c *container) end() {
	if c.space != nil {
		c.space.end()
		c.space = nil
	}
}

func (c *container) ioctl(req uint, arg unsafe.Pointer, n int) (int, error) {
	switch req {
	case uapi.VFIO_GET_API_VERSION:
		return uapi.VFIO_API_VERSION, nil
	case uapi.VFIO_CHECK_EXTENSION:
		if n == uapi.VFIO_TYPE1v2_IOMMU && (!c.k.m.NoV2 || c.compat) || n == uapi.VFIO_UNMAP_ALL {
			return 1, nil
		}
		return 0, nil
	case uapi.VFIO_SET_IOMMU:
		switch {
		case len(c.groups) == 0, c.space != nil, n != uapi.VFIO_TYPE1v2_IOMMU:
			return -1, unix.EINVAL
		case c.k.m.NoRemap && !c.compat:
			return -1, unix.EPERM
		}
		entries := c.k.m.DMAEntryLimit
		if c.compat {
			entries = 0
		}
		c.space = newSpace(c.k, entries)
		c.space.type1 = !c.compat
		return 0, nil
	}
	if c.space == nil {
		return -1, unix.EINVAL
	}
	switch req {
	case uapi.VFIO_IOMMU_GET_INFO:
		return 0, c.info(arg)
	case uapi.VFIO_IOMMU_MAP_DMA:
		m := (*uapi.DMAMap)(arg)
		return 0, c.space.add(m.Iova, pointer(&m.Vaddr), m.Size, vfio.Prot(m.Flags))
	case uapi.VFIO_IOMMU_UNMAP_DMA:
		m := (*uapi.DMAUnmap)(arg)
		got, err := c.space.remove(m.Iova, m.Size)
		if err == nil {
			m.Size = got
		}
		return 0, err
	}
	return -1, unix.ENOTTY
}

// pointer reads an address that a structure has.
func pointer(word *uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(word)) }

// info answers VFIO_IOMMU_GET_INFO: the fixed part, and where there is room
// the capabilities.
func (c *container) info(arg unsafe.Pointer) error {
	h := (*uapi.Type1Info)(arg)
	fixed := uint32(unsafe.Sizeof(*h))
	room := h.Argsz
	if room < 16 {
		return unix.EINVAL
	}
	h.Flags, h.IovaPgsizes = uapi.VFIO_IOMMU_INFO_PGSIZES, c.k.m.PageSizes
	if c.k.m.NoCaps {
		return nil
	}
	ne := binary.NativeEndian
	cap1 := 16 + 16*uint32(len(c.k.m.Ranges))
	b := make([]byte, 0, 256)
	b = ne.AppendUint16(b, uapi.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)
	b = ne.AppendUint16(b, 1)
	b = ne.AppendUint32(b, fixed+cap1)
	b = ne.AppendUint32(b, uint32(len(c.k.m.Ranges)))
	b = ne.AppendUint32(b, 0)
	for _, r := range c.k.m.Ranges {
		b = ne.AppendUint64(b, r.First)
		b = ne.AppendUint64(b, r.Last)
	}
	avail := ^uint32(0) // iommufd keeps no count
	if !c.compat {
		avail = uint32(c.k.m.DMAEntryLimit - len(c.space.maps))
	}
	b = ne.AppendUint16(b, uapi.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL)
	b = ne.AppendUint16(b, 1)
	b = ne.AppendUint32(b, 0)
	b = ne.AppendUint32(b, avail)
	b = ne.AppendUint32(b, 0)
	h.Flags |= uapi.VFIO_IOMMU_INFO_CAPS
	if room < fixed+uint32(len(b)) {
		h.Argsz, h.CapOffset = fixed+uint32(len(b)), 0
		return nil
	}
	h.CapOffset = fixed
	copy(unsafe.Slice((*byte)(unsafe.Add(arg, fixed)), len(b)), b)
	return nil
}

// iommufd is /dev/iommu.
type iommufd struct {
	k         *Kernel
	spaces    map[uint32]*space
	container *container
}

func (i *iommufd) ioctl(req uint, arg unsafe.Pointer, n int) (int, error) {
	switch req {
	case uapi.IOMMU_IOAS_ALLOC:
		a := (*uapi.IoasAlloc)(arg)
		i.k.ioases++
		a.OutIoasID = i.k.ioases
		i.spaces[a.OutIoasID] = newSpace(i.k, 0)
		return 0, nil
	case uapi.IOMMU_IOAS_IOVA_RANGES:
		return 0, i.ranges((*uapi.IoasIovaRanges)(arg))
	case uapi.IOMMU_IOAS_MAP:
		m := (*uapi.IoasMap)(arg)
		s := i.spaces[m.IoasID]
		switch {
		case s == nil:
			return -1, unix.ENOENT
		case m.Flags&uapi.IOMMU_IOAS_MAP_FIXED_IOVA == 0:
			return -1, unix.EOPNOTSUPP // Linux would choose an address
		}
		var p vfio.Prot
		if m.Flags&uapi.IOMMU_IOAS_MAP_READABLE != 0 {
			p |= vfio.ProtRead
		}
		if m.Flags&uapi.IOMMU_IOAS_MAP_WRITEABLE != 0 {
			p |= vfio.ProtWrite
		}
		return 0, s.add(m.Iova, pointer(&m.UserVa), m.Length, p)
	case uapi.IOMMU_IOAS_UNMAP:
		m := (*uapi.IoasUnmap)(arg)
		s := i.spaces[m.IoasID]
		if s == nil {
			return -1, unix.ENOENT
		}
		got, err := s.remove(m.Iova, m.Length)
		if err == nil && got == 0 {
			err = unix.ENOENT
		}
		if err == nil {
			m.Length = got
		}
		return 0, err
	}
	return i.container.ioctl(req, arg, n)
}

// ranges answers IOMMU_IOAS_IOVA_RANGES.
func (i *iommufd) ranges(q *uapi.IoasIovaRanges) error {
	if i.spaces[q.IoasID] == nil {
		return unix.ENOENT
	}
	room := q.NumIovas
	q.NumIovas = uint32(len(i.k.m.Ranges))
	q.OutIovaAlignment = 1 << bits.TrailingZeros64(i.k.m.PageSizes)
	out := unsafe.Slice((*uapi.IommuIovaRange)(pointer(&q.AllowedIovas)), room)
	for n := range min(int(room), len(i.k.m.Ranges)) {
		out[n] = uapi.IommuIovaRange{Start: i.k.m.Ranges[n].First, Last: i.k.m.Ranges[n].Last}
	}
	runtime.KeepAlive(q)
	if int(room) < len(i.k.m.Ranges) {
		return unix.EMSGSIZE
	}
	return nil
}
