package vfiotest

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

func (d *device) irqInfo(q *uapi.IRQInfo) error {
	f := d.f
	q.Flags, q.Count = uapi.VFIO_IRQ_INFO_EVENTFD, 0
	switch int(q.Index) {
	case vfio.IRQINTx:
		q.Flags |= uapi.VFIO_IRQ_INFO_MASKABLE | uapi.VFIO_IRQ_INFO_AUTOMASKED
		q.Count = 1
	case vfio.IRQMSI:
		q.Flags |= uapi.VFIO_IRQ_INFO_NORESIZE
		q.Count = uint32(f.MSI)
	case vfio.IRQMSIX:
		if f.NoResize {
			q.Flags |= uapi.VFIO_IRQ_INFO_NORESIZE
		}
		q.Count = uint32(f.MSIX)
	case vfio.IRQERR:
		if f.NotExpress {
			return unix.EINVAL
		}
		q.Count = 1
	case vfio.IRQREQ:
		q.Count = 1
	default:
		return unix.EINVAL
	}
	return nil
}

// setIRQs is vfio_pci_set_irqs_ioctl: most of what it does not like is EINVAL.
func (d *device) setIRQs(s *uapi.IRQSet, arg unsafe.Pointer) (int, error) {
	i, start, count := int(s.Index), int(s.Start), int(s.Count)
	q := uapi.IRQInfo{Index: s.Index}
	const data = uapi.VFIO_IRQ_SET_DATA_NONE | uapi.VFIO_IRQ_SET_DATA_BOOL | uapi.VFIO_IRQ_SET_DATA_EVENTFD
	if d.irqInfo(&q) != nil || start > int(q.Count) || count > int(q.Count)-start {
		return -1, unix.EINVAL
	}
	connected := d.irqs[i]
	switch s.Flags {
	case uapi.VFIO_IRQ_SET_DATA_NONE | uapi.VFIO_IRQ_SET_ACTION_TRIGGER:
		switch {
		case connected == nil:
			return -1, unix.EINVAL
		case count == 0:
			d.disconnect(i)
		case start+count > len(connected):
			return -1, unix.EINVAL
		default:
			for v := start; v < start+count; v++ {
				d.signal(i, v)
			}
		}
		return 0, nil
	case uapi.VFIO_IRQ_SET_DATA_NONE | uapi.VFIO_IRQ_SET_ACTION_MASK, uapi.VFIO_IRQ_SET_DATA_NONE | uapi.VFIO_IRQ_SET_ACTION_UNMASK:
		if q.Flags&uapi.VFIO_IRQ_INFO_MASKABLE == 0 {
			return -1, unix.ENOTTY
		}
		if connected == nil {
			return -1, unix.EINVAL
		}
		d.mask[i] = s.Flags&uapi.VFIO_IRQ_SET_ACTION_MASK != 0
		return 0, nil
	case uapi.VFIO_IRQ_SET_DATA_EVENTFD | uapi.VFIO_IRQ_SET_ACTION_TRIGGER:
	default:
		if s.Flags&data == 0 {
			return -1, unix.EINVAL
		}
		return -1, unix.ENOTTY
	}
	if count == 0 || s.Argsz < uint32(unsafe.Sizeof(*s))+4*uint32(count) {
		return -1, unix.EINVAL
	}
	if i <= vfio.IRQMSIX {
		for other := vfio.IRQINTx; other <= vfio.IRQMSIX; other++ {
			if other != i && d.irqs[other] != nil {
				return -1, unix.EINVAL
			}
		}
	}
	switch {
	case connected == nil:
		if d.f.Vectors > 0 && start+count > d.f.Vectors && i <= vfio.IRQMSIX {
			return d.f.Vectors, nil // the number that can be had
		}
	case start+count > len(connected) && q.Flags&uapi.VFIO_IRQ_INFO_NORESIZE != 0:
		return -1, unix.EINVAL
	}
	for len(connected) < start+count {
		connected = append(connected, -1)
	}
	d.irqs[i] = connected
	for v := range count {
		fd := int(*(*int32)(unsafe.Add(arg, unsafe.Sizeof(*s)+4*uintptr(v))))
		if old := connected[start+v]; old >= 0 {
			_ = unix.Close(old)
		}
		connected[start+v] = -1
		if fd >= 0 {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return -1, err
			}
			connected[start+v] = own
		}
	}
	return 0, nil
}

func (d *device) disconnect(i int) {
	for _, fd := range d.irqs[i] {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	delete(d.irqs, i)
	delete(d.mask, i)
}

// signal adds one to a vector's eventfd. INTx masks itself.
func (d *device) signal(i, v int) bool {
	if v >= len(d.irqs[i]) || d.irqs[i][v] < 0 || d.mask[i] {
		return false
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	if _, err := unix.Write(d.irqs[i][v], one[:]); err != nil {
		return false
	}
	if i == vfio.IRQINTx {
		d.mask[i] = true
	}
	return true
}
