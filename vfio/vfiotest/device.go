package vfiotest

import (
	"encoding/binary"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

// group is /dev/vfio/N.
type group struct {
	k         *Kernel
	n         int
	members   []*Function
	opened    bool
	container *container
}

func (g *group) viable() bool {
	for _, f := range g.members {
		if !f.vfio() && f.Driver != "none" && f.Driver != "pcieport" && f.Driver != "pci-stub" {
			return false
		}
	}
	return true
}

// byCdev holds while a function of the group is open by its character device.
func (g *group) byCdev() bool {
	for _, f := range g.members {
		if f.open != nil && f.open.bound != nil {
			return true
		}
	}
	return false
}

func (g *group) ioctl(k *Kernel, req uint, arg unsafe.Pointer) (int, error) {
	switch req {
	case uapi.VFIO_GROUP_GET_STATUS:
		st := (*uapi.GroupStatus)(arg)
		st.Flags = 0
		if g.viable() {
			st.Flags |= uapi.VFIO_GROUP_FLAGS_VIABLE
		}
		if g.container != nil {
			st.Flags |= uapi.VFIO_GROUP_FLAGS_CONTAINER_SET
		}
		return 0, nil
	case uapi.VFIO_GROUP_SET_CONTAINER:
		f := k.fds[int(*(*int32)(arg))]
		switch {
		case f == nil || f.container == nil && f.iommufd == nil || g.container != nil:
			return -1, unix.EINVAL
		case !g.viable():
			return -1, unix.EBUSY
		}
		if g.container = f.container; f.iommufd != nil {
			g.container = f.iommufd.container
		}
		g.container.groups[g] = true
		return 0, nil
	case uapi.VFIO_GROUP_GET_DEVICE_FD:
		if g.container == nil || g.container.space == nil {
			return -1, unix.EINVAL
		}
		name, option, _ := strings.Cut(unix.BytePtrToString((*byte)(arg)), " ")
		for _, f := range g.members {
			if f.Addr != name {
				continue
			}
			token := strings.TrimPrefix(option, "vf_token=")
			switch {
			case f.VFToken == "" && option != "":
				return -1, unix.EINVAL
			case f.VFToken != token:
				return -1, unix.EACCES
			case f.open != nil:
				return -1, unix.EBUSY
			case k.m.NoRemap && g.container.compat:
				return -1, unix.EPERM
			}
			d := &device{f: f}
			fd, err := k.descriptor(&file{device: d})
			if err != nil {
				return -1, err
			}
			d.start()
			return fd, d.back(fd)
		}
		return -1, unix.ENODEV
	}
	return -1, unix.ENOTTY
}

// device is a function's open descriptor.
type device struct {
	f       *Function
	bound   *iommufd // by the character device
	space   *space   // attached
	started bool
	file    int
	irqs    map[int][]int // eventfds of the connected vectors, duplicates of the program's
	mask    map[int]bool
}

// start is what the kernel does when a function is opened.
func (d *device) start() {
	d.started = true
	d.irqs, d.mask = map[int][]int{}, map[int]bool{}
	d.f.reset()
	d.f.resets = 0
	d.f.open, d.f.released = d, make(chan struct{})
}

// back makes the descriptor's file large enough for all BARs: they are mapped
// from it and read from it.
func (d *device) back(fd int) error {
	d.file = fd
	return unix.Ftruncate(fd, 7<<regionShift)
}

func (d *device) ready() bool { return d.started }

func (d *device) close() {
	if !d.started {
		return
	}
	for i := range d.irqs {
		d.disconnect(i)
	}
	d.f.open = nil
	close(d.f.released)
}

func (d *device) ioctl(k *Kernel, req uint, arg unsafe.Pointer) (int, error) {
	f := d.f
	if req == uapi.VFIO_DEVICE_BIND_IOMMUFD {
		b := (*uapi.BindIommufd)(arg)
		x := k.fds[int(b.Iommufd)]
		switch {
		case x == nil || x.iommufd == nil || d.started:
			return -1, unix.EINVAL
		case f.group.opened, !f.group.viable():
			return -1, unix.EBUSY
		case f.open != nil: // only groups may open a device more than once
			return -1, unix.EINVAL
		case k.m.NoRemap:
			return -1, unix.EPERM
		}
		d.bound, b.OutDevid = x.iommufd, 1
		d.start()
		return 0, nil
	}
	if !d.started {
		return -1, unix.EINVAL
	}
	switch req {
	case uapi.VFIO_DEVICE_ATTACH_IOMMUFD_PT:
		a := (*uapi.AttachIommufdPt)(arg)
		if d.bound == nil {
			return -1, unix.ENOTTY
		}
		if d.space = d.bound.spaces[a.PtID]; d.space == nil {
			return -1, unix.ENOENT
		}
		return 0, nil
	case uapi.VFIO_DEVICE_GET_INFO:
		i := (*uapi.DeviceInfo)(arg)
		i.Flags, i.NumRegions, i.NumIrqs = uapi.VFIO_DEVICE_FLAGS_PCI, uapi.VFIO_PCI_NUM_REGIONS, uapi.VFIO_PCI_NUM_IRQS
		if !f.NoReset {
			i.Flags |= uapi.VFIO_DEVICE_FLAGS_RESET
		}
		return 0, nil
	case uapi.VFIO_DEVICE_GET_REGION_INFO:
		return 0, d.regionInfo((*uapi.RegionInfo)(arg), arg)
	case uapi.VFIO_DEVICE_GET_IRQ_INFO:
		return 0, d.irqInfo((*uapi.IRQInfo)(arg))
	case uapi.VFIO_DEVICE_SET_IRQS:
		return d.setIRQs((*uapi.IRQSet)(arg), arg)
	case uapi.VFIO_DEVICE_RESET:
		if f.NoReset {
			return -1, unix.EINVAL
		}
		f.resets++ // configuration space is saved and restored
		for i := range f.BARs {
			if f.BARs[i].Size > 0 {
				zero := make([]byte, f.BARs[i].Size)
				if _, err := unix.Pwrite(d.file, zero, int64(i)<<regionShift); err != nil {
					return -1, err
				}
			}
		}
		return 0, nil
	}
	return -1, unix.ENOTTY
}

func (d *device) regionInfo(r *uapi.RegionInfo, arg unsafe.Pointer) error {
	room := r.Argsz
	if room < vfio.RegionInfoSize {
		return unix.EINVAL
	}
	i := int(r.Index)
	r.Flags, r.Size, r.CapOffset, r.Offset = 0, 0, 0, uint64(i)<<regionShift
	switch {
	case i == vfio.RegionConfig:
		r.Flags, r.Size = uapi.VFIO_REGION_INFO_FLAG_READ|uapi.VFIO_REGION_INFO_FLAG_WRITE, uint64(len(d.f.config))
		return nil
	case i == vfio.RegionVGA && !d.f.VGA, i > vfio.RegionVGA:
		return unix.EINVAL
	case i >= len(d.f.BARs) || d.f.BARs[i].Size == 0:
		return nil
	}
	b := d.f.BARs[i]
	r.Size, r.Flags = b.Size, uapi.VFIO_REGION_INFO_FLAG_READ|uapi.VFIO_REGION_INFO_FLAG_WRITE
	if b.NoMmap {
		return nil
	}
	r.Flags |= uapi.VFIO_REGION_INFO_FLAG_MMAP
	ne := binary.NativeEndian
	var caps []byte
	if len(b.Sparse) > 0 {
		caps = ne.AppendUint16(caps, uapi.VFIO_REGION_INFO_CAP_SPARSE_MMAP)
		caps = ne.AppendUint16(caps, 1)
		caps = ne.AppendUint32(caps, 0)
		caps = ne.AppendUint32(caps, uint32(len(b.Sparse)))
		caps = ne.AppendUint32(caps, 0)
		for _, a := range b.Sparse {
			caps = ne.AppendUint64(caps, a.Offset)
			caps = ne.AppendUint64(caps, a.Size)
		}
	} else if i == d.f.MSIXBAR && b.MSIXMappable {
		caps = ne.AppendUint16(caps, uapi.VFIO_REGION_INFO_CAP_MSIX_MAPPABLE)
		caps = ne.AppendUint16(caps, 1)
		caps = ne.AppendUint32(caps, 0)
	}
	if len(caps) == 0 {
		return nil
	}
	r.Flags |= uapi.VFIO_REGION_INFO_FLAG_CAPS
	if room < vfio.RegionInfoSize+uint32(len(caps)) {
		r.Argsz = vfio.RegionInfoSize + uint32(len(caps))
		return nil
	}
	r.CapOffset = vfio.RegionInfoSize
	copy(unsafe.Slice((*byte)(unsafe.Add(arg, vfio.RegionInfoSize)), len(caps)), caps)
	return nil
}

// transfer reads or writes a region. Revision and class come from the function
// itself, as all registers; the IDs are made up by the kernel.
func (d *device) transfer(p []byte, off int64, write bool) (int, error) {
	i, at := int(off>>regionShift), int(off&(1<<regionShift-1))
	f := d.f
	if i == vfio.RegionConfig {
		if at+len(p) > len(f.config) {
			return -1, unix.EINVAL
		}
		if !write {
			copy(p, f.config[at:])
			for n := range p {
				if k := at + n; f.gone && k >= vfio.ConfigCommand {
					p[n] = 0xff
				}
			}
			return len(p), nil
		}
		for n, v := range p {
			if k := at + n; k == vfio.ConfigCommand || k == vfio.ConfigCommand+1 {
				f.config[k] = v // the rest is read-only here
			}
		}
		return len(p), nil
	}
	if i >= len(f.BARs) || uint64(at) >= f.BARs[i].Size {
		return -1, unix.EINVAL
	}
	p = p[:min(len(p), int(f.BARs[i].Size)-at)]
	switch {
	case f.gone && !write:
		for n := range p {
			p[n] = 0xff
		}
		return len(p), nil
	case f.gone:
		return len(p), nil
	case f.config[vfio.ConfigCommand]&vfio.CommandMemory == 0:
		return -1, unix.EIO
	case write:
		return unix.Pwrite(d.file, p, off)
	}
	return unix.Pread(d.file, p, off)
}
