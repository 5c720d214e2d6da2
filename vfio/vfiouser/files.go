package vfiouser

import (
	"fmt"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// maxFiles is how many different files one client may have mapped here at
// once, each whole: the process's number of mappings is limited, and other
// clients need theirs. What comes beyond is reached by message.
const maxFiles = 64

// maxFileBytes is how much address space all of them may take: that of the
// process is what its other clients and its heap live in.
const maxFileBytes = 1 << 40

// fileKey identifies an open file. The mapping holds the inode, so its number
// is not used again while the key is in the table.
type fileKey struct {
	dev, ino uint64
	writable bool
}

// sharedFile is a client's memfd, mapped whole and once however many DMA
// mappings name it: QEMU sends one for each page of its guest's IOMMU.
type sharedFile struct {
	key  fileKey
	b    []byte
	refs int
}

// files are the mapped files of one client. The host's lock guards them.
type files map[fileKey]*sharedFile

// get gives the mapped file behind fd, or nil where it is to be reached by
// message: it could shrink under our feet, or cannot be mapped as needed. A
// file that does not hold n bytes at off is an error.
func (f files) get(fd int, off, n uint64, write bool) (*sharedFile, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size < 0 || off > uint64(st.Size) || n > uint64(st.Size)-off {
		return nil, fmt.Errorf("%w: file of %#x bytes, mapping wants %#x at %#x", vfio.ErrInvalid, st.Size, n, off)
	}
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	writable := mode&unix.O_ACCMODE == unix.O_RDWR && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) == 0
	if write && !writable {
		return nil, nil
	}
	key := fileKey{dev: uint64(st.Dev), ino: st.Ino, writable: writable}
	if s := f[key]; s != nil && off+n <= uint64(len(s.b)) {
		s.refs++
		return s, nil
	}
	if len(f) >= maxFiles || f[key] != nil { // the latter: it has grown since
		return nil, nil
	}
	left := int64(maxFileBytes)
	for _, s := range f {
		left -= int64(len(s.b))
	}
	if st.Size > left {
		return nil, nil
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil
	}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(b)
		return nil, nil
	}
	vfio.AddWindow(addressOf(b), uintptr(len(b)))
	s := &sharedFile{key: key, b: b, refs: 1}
	f[key] = s
	return s, nil
}

// put ends a get.
func (f files) put(s *sharedFile) {
	if s.refs--; s.refs > 0 {
		return
	}
	delete(f, s.key)
	vfio.RemoveWindow(addressOf(s.b))
	_ = unix.Munmap(s.b)
}
