package softcard

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/vfio"
)

func pageSize() uint32 { return uint32(max(os.Getpagesize(), 4096)) }

// sharedPages is the card's memory that a client maps: doorbell pages and key
// table, a memfd each. They are sparse (a page is taken when it is touched),
// sealed against a change of size, and hostile: the client stores what it likes
// at any time, so each word is loaded once and atomically.
type sharedPages struct {
	doorbellFD, keyFD   int
	doorbellMap, keyMap *vfio.Mapping
	doorbells           []hw.CQArm // every 32-bit word of BAR DOORBELL, by offset / 4
	keys                []hw.KeyEntry
	stride, pages       uint32
}

func (m *sharedPages) open(stride uint64) (err error) {
	m.stride, m.pages = uint32(stride), uint32(hw.BARDoorbellSize/stride)
	m.doorbellFD, m.keyFD = -1, -1
	if m.doorbellFD, m.doorbellMap, err = sparse("rnic-doorbell", hw.BARDoorbellSize); err == nil {
		m.keyFD, m.keyMap, err = sparse("rnic-keytable", hw.BARKeytableSize)
	}
	if err != nil {
		m.close()
		return err
	}
	m.doorbells = hw.SliceCQArm(m.doorbellMap.Bytes(0, hw.BARDoorbellSize))
	m.keys = hw.SliceKeyEntry(m.keyMap.Bytes(0, hw.BARKeytableSize))
	return nil
}

func sparse(name string, size uint64) (int, *vfio.Mapping, error) {
	fail := func(op string, err error) (int, *vfio.Mapping, error) {
		return -1, nil, fmt.Errorf("%s of %d bytes: %s: %w", name, size, op, err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fail("memfd_create", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fail("size and seal", err)
	}
	m, err := vfio.NewMapping(size, []vfio.Area{{Size: size}}, fd, 0, true)
	if err != nil {
		_ = unix.Close(fd)
		return fail("map", err)
	}
	return fd, m, nil
}

// clear zeroes both, as a reset does, and gives the pages back.
func (m *sharedPages) clear() {
	const hole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if unix.Fallocate(m.doorbellFD, hole, 0, hw.BARDoorbellSize) != nil {
		clear(m.doorbells)
	}
	if unix.Fallocate(m.keyFD, hole, 0, hw.BARKeytableSize) != nil {
		clear(m.keys)
	}
}

func (m *sharedPages) close() error {
	var first error
	for _, p := range []*vfio.Mapping{m.doorbellMap, m.keyMap} {
		if p != nil {
			if err := p.Release(); err != nil && first == nil {
				first = err
			}
		}
	}
	for _, fd := range []int{m.doorbellFD, m.keyFD} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	m.doorbellFD, m.keyFD, m.doorbells, m.keys = -1, -1, nil, nil
	return first
}
