package kerneltrace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"
	"syscall"
	"time"

	"rnic/vfio/uapi"
)

// Kind is what the kernel did.
type Kind string

// The kinds of Event.
const (
	// Map is a mapping made: VFIO_IOMMU_MAP_DMA or IOMMU_IOAS_MAP.
	Map Kind = "map"
	// Unmap is a mapping undone: VFIO_IOMMU_UNMAP_DMA or IOMMU_IOAS_UNMAP.
	Unmap Kind = "unmap"
	// Pin is memory of the program made to stay where it is, inside of a Map.
	Pin Kind = "pin"
	// Release is the end of a container or of an iommufd: what is still mapped in it is undone.
	Release Kind = "release"
	// Interrupt is an interrupt of a card that VFIO hands on to an eventfd.
	Interrupt Kind = "interrupt"
	// DeviceReset is a program's VFIO_DEVICE_RESET.
	DeviceReset Kind = "device-reset"
	// HotReset is a program's VFIO_DEVICE_PCI_HOT_RESET.
	HotReset Kind = "hot-reset"
	// Reset is the kernel's reset of a function, for whatever reason: VFIO does one at open and at close.
	Reset Kind = "reset"
	// Fault is an access of a card that the IOMMU refused.
	Fault Kind = "fault"
)

// Event is one thing that the kernel did.
type Event struct {
	// Time is that of the kernel's CLOCK_MONOTONIC when it began; of a fault, that of the kernel's log.
	Time time.Duration
	// PID is the process; 0 of an interrupt and of a fault.
	PID  int
	Kind Kind
	// Device is the PCI address of an interrupt, a reset or a fault, where it is known; else "".
	Device string
	// Address is the IOVA, of a pin the program's address.
	Address uint64
	// Size is in bytes.
	Size uint64
	// Duration is from entry to return; 0 of an interrupt and of a fault.
	Duration time.Duration
	// Err is the kernel's refusal, or 0.
	Err syscall.Errno
	// Detail is what else there is to say: the interrupt's handler, the kernel's own words of a fault.
	Detail string
	// Lost counts the events before this one for which there was no room.
	Lost uint64
}

// decode reads a record of the ring. The bool is false for one that is none of a card: numbers of ioctls mean different things on
// different files.
func decode(b []byte, page uint64) (Event, bool, error) {
	if len(b) != recordSize {
		return Event{}, false, fmt.Errorf("a record of %d bytes; want %d", len(b), recordSize)
	}
	n := binary.NativeEndian
	e := Event{
		Time:     time.Duration(n.Uint64(b[recTime:])),
		Duration: time.Duration(n.Uint64(b[recDuration:])),
		PID:      int(n.Uint64(b[recPID:]) >> 32),
	}
	result := int64(n.Uint64(b[recResult:]))
	command := n.Uint32(b[recCommand:])
	data := b[recData:]
	switch kind := n.Uint32(b[recKind:]); kind {
	case recordIoctl:
		if result < 0 {
			e.Err = syscall.Errno(-result)
		}
		return e, e.ioctl(command, data), nil
	case recordInterrupt:
		e.Kind, e.PID = Interrupt, 0
		name := text(data)
		e.Detail = fmt.Sprintf("IRQ %d %s", command, name)
		if m := handler.FindStringSubmatch(name); m != nil {
			e.Device = m[1]
		}
	case recordPin:
		e.Kind, e.Address, e.Size = Pin, n.Uint64(b[recAddress:]), n.Uint64(b[recPages:])*page
		switch result = int64(int32(result)); { // long in one function, int in the other: a count of pages fits both
		case result < 0:
			e.Err = syscall.Errno(-result)
		default:
			e.Size = uint64(result) * page
		}
	case recordReset:
		e.Kind, e.Device = Reset, text(data)
		if r := int32(result); r < 0 {
			e.Err = syscall.Errno(-r)
		}
	case recordRelease:
		e.Kind = Release
	default:
		return Event{}, false, fmt.Errorf("a record of kind %d", kind)
	}
	return e, true, nil
}

// handler is the name under which VFIO asks for an interrupt.
var handler = regexp.MustCompile(`^vfio-[a-z]+\[\d+\]\(([0-9a-f:.]+)\)$`)

// ioctl reads the caller's structure, as include/uapi/linux/vfio.h and iommufd.h have it.
func (e *Event) ioctl(command uint32, b []byte) bool {
	n := binary.NativeEndian
	size, flags := n.Uint32(b), n.Uint32(b[4:])
	switch command {
	case uapi.VFIO_IOMMU_MAP_DMA:
		if flags == 0 { // a mapping reads, writes or both: this is VFIO_DEVICE_PCI_HOT_RESET, which has the same number
			e.Kind = HotReset
			return true
		}
		e.Kind, e.Address, e.Size = Map, n.Uint64(b[16:]), n.Uint64(b[24:])
	case uapi.VFIO_IOMMU_UNMAP_DMA:
		if size != 24 && flags == 0 { // VFIO_DEVICE_QUERY_GFX_PLANE, which has the same number
			return false
		}
		e.Kind, e.Address, e.Size = Unmap, n.Uint64(b[8:]), n.Uint64(b[16:])
	case uapi.IOMMU_IOAS_MAP:
		e.Kind, e.Address, e.Size = Map, n.Uint64(b[32:]), n.Uint64(b[24:])
	case uapi.IOMMU_IOAS_UNMAP:
		e.Kind, e.Address, e.Size = Unmap, n.Uint64(b[8:]), n.Uint64(b[16:])
	case uapi.VFIO_DEVICE_RESET:
		e.Kind = DeviceReset
	default:
		return false
	}
	return true
}

// text is a name up to its end.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
