// Package vfio is the way to a PCI function from user space: its regions,
// its DMA mappings and its interrupts, behind one interface.
//
// A Device is opened by address. "0000:03:00.0" (package vfio/vfiopci) is a PCI
// function through the kernel's VFIO; "vfio-user:PATH" (package vfio/vfiouser)
// reaches a function in another process over a UNIX socket; other packages
// add schemes with Register. The names, indices and flags are those of
// linux/vfio.h.
package vfio

import (
	"context"
	"fmt"
	"strings"
)

// Region indices of a PCI function (linux/vfio.h, VFIO_PCI_*_REGION_INDEX).
const (
	RegionBAR0 = iota
	RegionBAR1
	RegionBAR2
	RegionBAR3
	RegionBAR4
	RegionBAR5
	RegionROM
	RegionConfig
	RegionVGA
	NumPCIRegions // VFIO_PCI_NUM_REGIONS; device-specific regions follow
)

// Interrupt indices of a PCI function (linux/vfio.h, VFIO_PCI_*_IRQ_INDEX).
const (
	IRQINTx = iota
	IRQMSI
	IRQMSIX
	IRQERR     // the function has failed (AER)
	IRQREQ     // the function is wanted back
	NumPCIIRQs // VFIO_PCI_NUM_IRQS
)

// RegionFlags are the VFIO_REGION_INFO_FLAG_* bits.
type RegionFlags uint32

// Region flags.
const (
	RegionRead  RegionFlags = 1 << 0
	RegionWrite RegionFlags = 1 << 1
	RegionMmap  RegionFlags = 1 << 2
	RegionCaps  RegionFlags = 1 << 3
)

// IRQFlags are the VFIO_IRQ_INFO_* bits.
type IRQFlags uint32

// Interrupt flags.
const (
	IRQEventFD    IRQFlags = 1 << 0 // eventfd signalling
	IRQMaskable   IRQFlags = 1 << 1 // MASK and UNMASK work
	IRQAutomasked IRQFlags = 1 << 2 // masks itself when it fires
	IRQNoResize   IRQFlags = 1 << 3 // vectors are enabled as one set
)

// Prot says what the device may do with mapped memory. The values are those
// of VFIO_DMA_MAP_FLAG_READ and _WRITE, which are the vfio-user ones as well.
type Prot uint32

// Access rights of a DMA mapping, as the device sees it.
const (
	ProtRead      Prot = 1 << 0 // the device may read
	ProtWrite     Prot = 1 << 1 // the device may write
	ProtReadWrite      = ProtRead | ProtWrite
)

// String gives "r", "w", "rw" or "none".
func (p Prot) String() string {
	var b strings.Builder
	if p&ProtRead != 0 {
		b.WriteByte('r')
	}
	if p&ProtWrite != 0 {
		b.WriteByte('w')
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}

// DeviceInfo describes an open device (struct vfio_device_info).
type DeviceInfo struct {
	Backend    string // "vfio-user"; of the kernel "type1v2", "iommufd" or "iommufd-compat"
	PCI        bool   // VFIO_DEVICE_FLAGS_PCI
	Reset      bool   // VFIO_DEVICE_FLAGS_RESET: Reset works
	NumRegions int
	NumIRQs    int
}

// Area is a piece of a region that can be mapped (struct
// vfio_region_sparse_mmap_area). Offset and Size are in bytes and whole pages.
type Area struct{ Offset, Size uint64 }

// RegionInfo describes a region. Size 0 means that the function has none.
type RegionInfo struct {
	Index int
	Size  uint64 // bytes
	Flags RegionFlags
	// Areas are the mappable pieces, in ascending order, not overlapping.
	// A region mappable as a whole has one area.
	Areas []Area
}

// IRQInfo describes an interrupt index; Count is its number of vectors.
type IRQInfo struct {
	Index int
	Count int
	Flags IRQFlags
}

// IOVARange is a range of DMA addresses, both ends included.
type IOVARange struct{ First, Last uint64 }

// String gives "0x10000-0xfedfffff".
func (r IOVARange) String() string { return fmt.Sprintf("%#x-%#x", r.First, r.Last) }

// Event is something that befell a device outside the order of calls.
type Event int

// Device events.
const (
	EventRequest Event = iota + 1 // the function is wanted back (REQ): stop, unmap, close
	EventError                    // the function has failed (ERR)
	EventGone                     // the function or its server is gone; always the last
)

// String names the event.
func (e Event) String() string {
	switch e {
	case EventRequest:
		return "release requested"
	case EventError:
		return "device error"
	case EventGone:
		return "device gone"
	}
	return fmt.Sprintf("event %d", int(e))
}

// Device is one PCI function that this process holds. All methods are safe
// for concurrent use. Each ends: by its context where it has one, else within
// the backend's deadline (5 s). Errors are *Error; once the device is gone
// every method's error is ErrGone.
type Device interface {
	// Addr is the address that the device was opened by.
	Addr() string
	// Info describes the device. It does not change.
	Info() DeviceInfo

	// Region describes region i. An index that the device does not have is
	// ErrNotFound; a region that the function lacks has size 0.
	Region(i int) (RegionInfo, error)
	// ReadRegion reads len(p) bytes at off of region i, all or error.
	ReadRegion(i int, off uint64, p []byte) error
	// WriteRegion writes len(p) bytes at off of region i. The write has
	// reached the function when it returns.
	WriteRegion(i int, off uint64, p []byte) error
	// MapRegion reserves address space of the whole region and maps its areas
	// at their places in it. A region without areas gives a Mapping in which
	// nothing is mapped. The caller releases it.
	MapRegion(i int) (*Mapping, error)

	// IOVARanges are the usable DMA addresses, ascending.
	IOVARanges() []IOVARange
	// PageSizes has a bit for each page size (bytes) of the DMA mapping.
	PageSizes() uint64
	// MaxMappings is how many DMA mappings can exist at once.
	MaxMappings() int
	// MapDMA lets the device reach n bytes of m at off, at the given DMA
	// address. All three are multiples of the smallest page size. Overlap
	// with another mapping is ErrExists. m stays open until it is unmapped.
	MapDMA(iova uint64, m *Memory, off, n uint64, p Prot) error
	// UnmapDMA ends a mapping; iova and n must equal those of a former MapDMA.
	// After nil, no DMA touches the memory. After ErrTimeout, the memory may
	// still be in use and the call can be repeated.
	UnmapDMA(iova, n uint64) error

	// IRQ describes interrupt index i.
	IRQ(i int) (IRQInfo, error)
	// SetIRQs connects eventfds to vectors start, start+1, … of index i;
	// -1 disconnects a vector. The fds stay the caller's. Where the index has
	// IRQNoResize, one call must span the largest set that is wanted. More
	// vectors than the machine has is a *VectorsError, and none is connected.
	SetIRQs(i, start int, fds []int) error
	// DisableIRQs disconnects all vectors of index i.
	DisableIRQs(i int) error
	// TriggerIRQs fires n vectors from start as if the function had
	// (VFIO_IRQ_SET_DATA_NONE loopback).
	TriggerIRQs(i, start, n int) error
	// MaskIRQs masks (or unmasks) n vectors from start; IRQMaskable only.
	MaskIRQs(i, start, n int, mask bool) error

	// Reset resets the function. Its DMA mappings stay.
	Reset(ctx context.Context) error

	// Events delivers what happens to the device. It holds each kind at most
	// once until read, so that nothing waits for the reader, and is closed by
	// Close.
	Events() <-chan Event
	// Done is closed once the device is gone or closed. By then every Mapping
	// of it has been revoked.
	Done() <-chan struct{}
	// Err is the first cause once Done is closed (ErrGone, ErrClosed), else nil.
	Err() error
	// Close gives the device back and ends all its mappings and interrupts.
	// It is idempotent.
	Close() error
}
