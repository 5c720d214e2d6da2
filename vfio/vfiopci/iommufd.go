package vfiopci

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

const iommuNode = "/dev/iommu"

// ioas is an address space of iommufd.
type ioas struct {
	sys System
	fd  int // -1 when not open
	id  uint32
	lim limits
}

// openIOMMUFD binds the function's character device to an iommufd and attaches
// it to a new address space. Before it is bound, the device answers nothing.
func openIOMMUFD(sys System, f *function) (s *ioas, device int, err error) {
	s, device = &ioas{sys: sys, fd: -1, lim: limits{perUser: true}}, -1
	defer func() {
		if err != nil {
			if device >= 0 {
				_ = sys.Close(device)
			}
			s.close()
			s, device = nil, -1
		}
	}()
	if f.cdev == "" {
		return s, -1, &vfio.SetupError{Check: vfio.CheckNoModule, Object: f.bdf, Value: "has no node in /dev/vfio/devices", Limit: "a kernel with CONFIG_VFIO_DEVICE_CDEV (6.6 or later)",
			Fix: "open " + f.bdf + "?vfio=type1", Err: vfio.ErrNotSupported}
	}
	if device, err = openNode(sys, f.cdev, f); err != nil {
		return s, device, err
	}
	if s.fd, err = openNode(sys, iommuNode, f); err != nil {
		return s, device, err
	}
	bind := uapi.BindIommufd{Iommufd: int32(s.fd)}
	bind.Argsz = uint32(unsafe.Sizeof(bind))
	_, err = retryAgain(func() (int, error) {
		return sys.Ioctl(device, uapi.VFIO_DEVICE_BIND_IOMMUFD, unsafe.Pointer(&bind))
	})
	if err != nil {
		return s, device, s.bindError(f, device, err)
	}
	alloc := uapi.IoasAlloc{}
	alloc.Size = uint32(unsafe.Sizeof(alloc))
	if _, err = sys.Ioctl(s.fd, uapi.IOMMU_IOAS_ALLOC, unsafe.Pointer(&alloc)); err != nil {
		return s, device, fmt.Errorf("allocate an address space: %w", iommufdCause(err))
	}
	s.id = alloc.OutIoasID
	attach := uapi.AttachIommufdPt{PtID: s.id}
	attach.Argsz = uint32(unsafe.Sizeof(attach))
	if _, err = sys.Ioctl(device, uapi.VFIO_DEVICE_ATTACH_IOMMUFD_PT, unsafe.Pointer(&attach)); err != nil {
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) {
			return s, device, s.bindError(f, device, err)
		}
		return s, device, fmt.Errorf("attach to address space %d: %w", s.id, iommufdCause(err))
	}
	// The ranges are those of all attached functions: they are asked for now,
	// and nothing is attached or detached later.
	if err = s.query(); err != nil {
		return s, device, fmt.Errorf("ask for DMA addresses: %w", iommufdCause(err))
	}
	return s, device, nil
}

// bindError explains what BIND and ATTACH refuse. A second BIND of an open
// device is EINVAL.
func (s *ioas) bindError(f *function, device int, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return notRemapped(f, "iommufd", err)
	case errors.Is(err, unix.EBUSY) && len(offenders(s.sys.Files(), f.group)) > 0:
		return notViable(s.sys.Files(), f.group, fmt.Errorf("%w: %w", vfio.ErrBusy, err))
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EINVAL): // EINVAL: its other holder may be another user's, and not seen
		pids := holders(s.sys.Files(), device, f.cdev, "/dev/vfio/"+f.group)
		return fmt.Errorf("bind %s to iommufd: %w: %w", f.cdev, busyBy(pids), err)
	}
	return fmt.Errorf("bind %s to iommufd: %w", f.cdev, iommufdCause(err))
}

// iommufdCause names iommufd's errnos (linux/iommufd.h, General ioctl format).
func iommufdCause(err error) error {
	switch {
	case errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("%w: the kernel does not know the request: %w", vfio.ErrNotSupported, err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: the kernel's structure is smaller than ours: %w", vfio.ErrNotSupported, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: the kernel knows the request, and not this value of it: %w", vfio.ErrNotSupported, err)
	}
	return err
}

// query asks for the address ranges, with room for more where there are more.
func (s *ioas) query() error {
	n := 8
	for try := 0; ; try++ {
		ranges := make([]uapi.IommuIovaRange, n)
		var pin runtime.Pinner
		pin.Pin(&ranges[0])
		q := uapi.IoasIovaRanges{IoasID: s.id, NumIovas: uint32(n), AllowedIovas: uint64(uintptr(unsafe.Pointer(&ranges[0])))}
		q.Size = uint32(unsafe.Sizeof(q))
		_, err := s.sys.Ioctl(s.fd, uapi.IOMMU_IOAS_IOVA_RANGES, unsafe.Pointer(&q))
		pin.Unpin()
		if errors.Is(err, unix.EMSGSIZE) && int(q.NumIovas) > n && q.NumIovas <= maxInfo/16 && try < 4 {
			n = int(q.NumIovas)
			continue
		}
		if err != nil {
			return err
		}
		if int(q.NumIovas) > n {
			return fmt.Errorf("%w: %d ranges in room for %d", vfio.ErrProtocol, q.NumIovas, n)
		}
		s.lim.ranges = nil
		for _, r := range ranges[:q.NumIovas] {
			s.lim.ranges = append(s.lim.ranges, vfio.IOVARange{First: r.Start, Last: r.Last})
		}
		s.lim.ranges = withoutMSI(s.lim.ranges)
		// Mappings are made of whole pages of memory, which the alignment
		// does not exceed; if ever it does, it is the unit.
		s.lim.pageSizes = max(uint64(os.Getpagesize()), q.OutIovaAlignment)
		s.lim.mappings = noLimit
		return nil
	}
}

func (s *ioas) backend() string { return backendIOMMUFD }
func (s *ioas) limits() limits  { return s.lim }

func (s *ioas) mapDMA(iova uint64, va unsafe.Pointer, n uint64, p vfio.Prot) error {
	m := uapi.IoasMap{Flags: uapi.IOMMU_IOAS_MAP_FIXED_IOVA, IoasID: s.id, UserVa: uint64(uintptr(va)), Length: n, Iova: iova}
	m.Size = uint32(unsafe.Sizeof(m))
	if p&vfio.ProtRead != 0 {
		m.Flags |= uapi.IOMMU_IOAS_MAP_READABLE
	}
	if p&vfio.ProtWrite != 0 {
		m.Flags |= uapi.IOMMU_IOAS_MAP_WRITEABLE
	}
	_, err := s.sys.Ioctl(s.fd, uapi.IOMMU_IOAS_MAP, unsafe.Pointer(&m))
	return err
}

func (s *ioas) unmapDMA(iova, n uint64) (uint64, error) {
	m := uapi.IoasUnmap{IoasID: s.id, Iova: iova, Length: n}
	m.Size = uint32(unsafe.Sizeof(m))
	_, err := s.sys.Ioctl(s.fd, uapi.IOMMU_IOAS_UNMAP, unsafe.Pointer(&m))
	if errors.Is(err, unix.ENOENT) { // what type 1 calls nothing unmapped
		return 0, nil
	}
	return m.Length, err
}

// close ends the address space and all mappings in it.
func (s *ioas) close() {
	if s.fd >= 0 {
		_ = s.sys.Close(s.fd)
		s.fd = -1
	}
}
