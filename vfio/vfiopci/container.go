package vfiopci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

// iommu is what a function's DMA goes through.
type iommu interface {
	backend() string
	// limits are fixed once the function is attached.
	limits() limits
	// mapDMA and unmapDMA give errnos; unmapDMA the bytes that it unmapped.
	mapDMA(iova uint64, va unsafe.Pointer, n uint64, p vfio.Prot) error
	unmapDMA(iova, n uint64) (uint64, error)
	close()
}

type limits struct {
	ranges    []vfio.IOVARange
	pageSizes uint64
	mappings  int
	perUser   bool // locked memory is counted for all processes of a user
}

// The window of message-signalled interrupts on x86: an access there is an
// interrupt and no DMA, whatever an IOMMU driver reports.
const msiFirst, msiLast = 0xfee00000, 0xfeefffff

// withoutMSI cuts the window out of ranges.
func withoutMSI(ranges []vfio.IOVARange) (out []vfio.IOVARange) {
	for _, r := range ranges {
		if r.Last < msiFirst || r.First > msiLast {
			out = append(out, r)
			continue
		}
		if r.First < msiFirst {
			out = append(out, vfio.IOVARange{First: r.First, Last: msiFirst - 1})
		}
		if r.Last > msiLast {
			out = append(out, vfio.IOVARange{First: msiLast + 1, Last: r.Last})
		}
	}
	return out
}

// container is the legacy interface, of VFIO's own driver or of iommufd.
type container struct {
	sys       System
	fd, group int // -1 when not open
	name      string
	lim       limits
}

// openContainer follows the order that the kernel demands: container, group,
// group into container, IOMMU, device. It gives the device's descriptor.
func openContainer(sys System, f *function, node, backend, token string) (c *container, device int, err error) {
	c = &container{sys: sys, fd: -1, group: -1, name: backend, lim: limits{perUser: backend == backendCompat}}
	defer func() {
		if err != nil {
			c.close()
			c, device = nil, -1
		}
	}()
	if c.fd, err = openNode(sys, node, f); err != nil {
		return c, -1, err
	}
	version, err := sys.IoctlInt(c.fd, uapi.VFIO_GET_API_VERSION, 0)
	if err != nil {
		return c, -1, fmt.Errorf("ask %s for its version: %w", node, err)
	}
	if version != uapi.VFIO_API_VERSION {
		return c, -1, fmt.Errorf("%s has VFIO version %d, want %d: %w", node, version, uapi.VFIO_API_VERSION, vfio.ErrNotSupported)
	}
	if v, err := sys.IoctlInt(c.fd, uapi.VFIO_CHECK_EXTENSION, uapi.VFIO_TYPE1v2_IOMMU); err != nil || v <= 0 {
		return c, -1, &vfio.SetupError{Check: vfio.CheckNoModule, Object: node, Value: "without a type 1 v2 IOMMU driver", Limit: "with one",
			Fix: "modprobe vfio_iommu_type1", Err: errors.Join(vfio.ErrNotSupported, err)}
	}
	groupNode := "/dev/vfio/" + f.group
	if c.group, err = openNode(sys, groupNode, f); err != nil {
		return c, -1, err
	}
	var st uapi.GroupStatus
	st.Argsz = uint32(unsafe.Sizeof(st))
	if _, err := sys.Ioctl(c.group, uapi.VFIO_GROUP_GET_STATUS, unsafe.Pointer(&st)); err != nil {
		return c, -1, fmt.Errorf("status of group %s: %w", f.group, err)
	}
	if st.Flags&uapi.VFIO_GROUP_FLAGS_VIABLE == 0 {
		return c, -1, notViable(sys.Files(), f.group, vfio.ErrBusy)
	}
	fd := int32(c.fd)
	if _, err := sys.Ioctl(c.group, uapi.VFIO_GROUP_SET_CONTAINER, unsafe.Pointer(&fd)); err != nil {
		if errors.Is(err, unix.EBUSY) || len(offenders(sys.Files(), f.group)) > 0 {
			return c, -1, notViable(sys.Files(), f.group, fmt.Errorf("%w: %w", vfio.ErrBusy, err))
		}
		return c, -1, c.noRemap(f, fmt.Errorf("put group %s into a container: %w", f.group, err))
	}
	if _, err := sys.IoctlInt(c.fd, uapi.VFIO_SET_IOMMU, uapi.VFIO_TYPE1v2_IOMMU); err != nil {
		return c, -1, c.noRemap(f, fmt.Errorf("set the container's IOMMU to type 1 v2: %w", err))
	}
	if device, err = c.device(f, token); err != nil {
		return c, -1, err
	}
	if c.lim, err = c.info(); err != nil {
		_ = sys.Close(device)
		return c, -1, err
	}
	return c, device, nil
}

// noRemap explains EPERM, which the kernel gives where interrupts are not
// remapped: a function could then raise any interrupt of the machine.
func (c *container) noRemap(f *function, err error) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	module := "vfio_iommu_type1"
	if c.name == backendCompat {
		module = "iommufd"
	}
	return notRemapped(f, module, err)
}

func notRemapped(f *function, module string, err error) error {
	return &vfio.SetupError{Check: vfio.CheckMSINoRemap, Object: f.bdf, Value: "behind an IOMMU that does not remap interrupts", Limit: "interrupt remapping on",
		Fix: "switch on interrupt remapping (x2APIC, VT-d) in the firmware; or, if every program that opens the card is trusted: echo Y > /sys/module/" + module + "/parameters/allow_unsafe_interrupts",
		Err: fmt.Errorf("%w: %w", vfio.ErrNotSupported, err)}
}

// device gets the function's descriptor. A token is passed only where one is
// given: the kernel refuses one that is not wanted.
func (c *container) device(f *function, token string) (int, error) {
	name := f.bdf
	if token != "" {
		name += " vf_token=" + token
	}
	b, err := unix.ByteSliceFromString(name)
	if err != nil {
		return -1, err
	}
	fd, err := retryAgain(func() (int, error) {
		return c.sys.Ioctl(c.group, uapi.VFIO_GROUP_GET_DEVICE_FD, unsafe.Pointer(&b[0]))
	})
	if err == nil {
		return fd, nil
	}
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL) && token != "":
		return -1, vfToken(f, token, err)
	case errors.Is(err, unix.EPERM):
		return -1, c.noRemap(f, err)
	case errors.Is(err, unix.EBUSY):
		return -1, fmt.Errorf("open function of group %s: %w: %w", f.group, busy(c.sys, -1, f.cdev), err)
	case errors.Is(err, unix.ENODEV):
		return -1, fmt.Errorf("group %s has no %s: %w: %w", f.group, f.bdf, vfio.ErrNotFound, err)
	}
	return -1, fmt.Errorf("open function: %w", err)
}

// vfToken says what the kernel says only in its log.
func vfToken(f *function, token string, err error) error {
	e := &vfio.SetupError{Check: vfio.CheckVFToken, Object: f.bdf, Err: fmt.Errorf("%w: %w", vfio.ErrPermission, err)}
	switch {
	case token != "" && f.physfn == "" && !f.sriov:
		e.Value, e.Limit, e.Fix = "a VF token was given", "no token: SR-IOV is not involved", "open "+f.bdf+" without vf_token="
	case token != "":
		e.Value, e.Limit, e.Fix = "the VF token was refused", "the token that the holder of the physical function set", "open "+f.bdf+"?vf_token=UUID with its UUID"
	case f.physfn != "":
		e.Value, e.Limit = "a virtual function, opened without a VF token", "opened with the token that the holder of physical function "+f.physfn+" set"
		e.Fix = "open " + f.bdf + "?vf_token=UUID with its UUID, or have the holder set one"
	default:
		e.Value, e.Limit, e.Fix = "VF token required", "opened with the token of its virtual functions' users", "open "+f.bdf+"?vf_token=UUID, or end the programs that hold its virtual functions"
	}
	return e
}

// noLimit is MaxMappings where the kernel keeps no count.
const noLimit = 1<<31 - 1

const maxInfo = 64 << 10 // of an INFO structure with its capabilities

// info asks for addresses, page sizes and mappings.
func (c *container) info() (limits, error) {
	lim := limits{ranges: vfio.FallbackIOVARanges(), pageSizes: 4096, mappings: 65535, perUser: c.lim.perUser}
	const fixed = int(unsafe.Sizeof(uapi.Type1Info{}))
	b, err := infoOf(c.sys, c.fd, uapi.VFIO_IOMMU_GET_INFO, fixed, 0)
	if err != nil {
		return lim, fmt.Errorf("describe IOMMU: %w", err)
	}
	ne := binary.NativeEndian
	flags := ne.Uint32(b[4:])
	if flags&uapi.VFIO_IOMMU_INFO_PGSIZES != 0 && ne.Uint64(b[8:]) != 0 {
		lim.pageSizes = ne.Uint64(b[8:])
	}
	if flags&uapi.VFIO_IOMMU_INFO_CAPS == 0 {
		return lim, nil
	}
	caps, err := uapi.Capabilities(b, ne.Uint32(b[16:]), fixed)
	if err != nil {
		return lim, fmt.Errorf("describe IOMMU: %w: %w", vfio.ErrProtocol, err)
	}
	for _, k := range caps {
		switch {
		case k.ID == uapi.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE && len(k.Data) >= 16:
			n := uint64(ne.Uint32(k.Data[8:]))
			if n > uint64(len(k.Data)-16)/16 {
				return lim, fmt.Errorf("describe IOMMU: %w: %d address ranges do not fit", vfio.ErrProtocol, n)
			}
			lim.ranges = nil
			for i := range n {
				r := k.Data[16+16*i:]
				lim.ranges = append(lim.ranges, vfio.IOVARange{First: ne.Uint64(r), Last: ne.Uint64(r[8:])})
			}
		case k.ID == uapi.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL && len(k.Data) >= 12:
			lim.mappings = int(min(ne.Uint32(k.Data[8:]), noLimit)) // iommufd's container says that there is none
		}
	}
	lim.ranges = withoutEnd(withoutMSI(lim.ranges))
	return lim, nil
}

// lastIOVA is the last address that is used where the IOMMU's are of 64 bits. Type 1 maps the last page, and finds nothing to
// unmap there: the end of the range, one past it, is 0 (mended by Linux commit ef270ec44637 of 2025). A page has at most 64 KiB.
const lastIOVA = 1<<64 - 1 - 64<<10

// withoutEnd cuts the end of the address space off ranges.
func withoutEnd(ranges []vfio.IOVARange) (out []vfio.IOVARange) {
	for _, r := range ranges {
		if r.First <= lastIOVA {
			out = append(out, vfio.IOVARange{First: r.First, Last: min(r.Last, lastIOVA)})
		}
	}
	return out
}

// infoOf does an INFO request: once with the fixed part, again where argsz says
// that more follows. Its bytes begin with argsz, flags and, at offset 8, index.
func infoOf(sys System, fd int, req uint, fixed int, index uint32) ([]byte, error) {
	size := fixed
	for try := 0; ; try++ {
		words := make([]uint64, (size+7)/8) // aligned as the structures are
		b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))[:size]
		binary.NativeEndian.PutUint32(b, uint32(size))
		binary.NativeEndian.PutUint32(b[8:], index)
		_, err := sys.Ioctl(fd, req, unsafe.Pointer(&words[0]))
		runtime.KeepAlive(words)
		if err != nil {
			return nil, err
		}
		want := int(binary.NativeEndian.Uint32(b))
		switch {
		case want <= size:
			return b, nil
		case want > maxInfo || try == 4:
			return nil, fmt.Errorf("%w: the kernel wants %d bytes for an answer", vfio.ErrProtocol, want)
		}
		size = want
	}
}

func (c *container) backend() string { return c.name }
func (c *container) limits() limits  { return c.lim }

func (c *container) mapDMA(iova uint64, va unsafe.Pointer, n uint64, p vfio.Prot) error {
	m := uapi.DMAMap{Flags: uint32(p), Vaddr: uint64(uintptr(va)), Iova: iova, Size: n}
	m.Argsz = uint32(unsafe.Sizeof(m))
	_, err := c.sys.Ioctl(c.fd, uapi.VFIO_IOMMU_MAP_DMA, unsafe.Pointer(&m))
	return err
}

func (c *container) unmapDMA(iova, n uint64) (uint64, error) {
	m := uapi.DMAUnmap{Iova: iova, Size: n}
	m.Argsz = uint32(unsafe.Sizeof(m))
	_, err := c.sys.Ioctl(c.fd, uapi.VFIO_IOMMU_UNMAP_DMA, unsafe.Pointer(&m))
	return m.Size, err
}

// close gives group and container back; the device's descriptor is closed
// before.
func (c *container) close() {
	for _, fd := range []int{c.group, c.fd} {
		if fd >= 0 {
			_ = c.sys.Close(fd)
		}
	}
	c.group, c.fd = -1, -1
}
