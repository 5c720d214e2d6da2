package vfiouser

import (
	"fmt"

	"rnic/vfio"
)

// Function is a PCI function that a server offers: a card in software.
//
// All methods are called from one goroutine of the connection, in the order
// of the client's commands. They must not block and must not do DMA: a client
// in the middle of a command may be unable to answer. In particular they must
// not wait for a lock that a worker holds across Host.Read or Host.Write,
// since DMA by message waits for the client, and a client such as QEMU
// answers nothing while its register access is unanswered.
type Function interface {
	// Regions lists the regions by ascending index. It is asked once for each
	// client, before Attach.
	Regions() []RegionSpec
	// IRQs lists the interrupt indices, once for each client.
	IRQs() []IRQSpec
	// ReadRegion fills p from off of region i: offset and length are inside
	// the region. It is also called for mappable areas. An error becomes an
	// error reply: an errno in its chain, else EIO.
	ReadRegion(i int, off uint64, p []byte) error
	// WriteRegion is ReadRegion's counterpart. p is the function's only until
	// it returns.
	WriteRegion(i int, off uint64, p []byte) error
	// Reset is DEVICE_RESET. A function level reset comes as a configuration
	// write instead.
	Reset()
	// Attach begins a client's session. The Host is valid until Detach.
	Attach(h Host)
	// Detach ends the session: to be treated as a reset. No DMA is possible
	// any more when it is called.
	Detach()
}

// RegionSpec is one region that a function offers.
type RegionSpec struct {
	Index int
	Size  uint64           // bytes
	Flags vfio.RegionFlags // Read, Write; Mmap and Caps follow from Areas
	// Areas are the mappable pieces: whole pages, ascending, not overlapping.
	// The client maps FD at FileOffset + Area.Offset (linux/vfio.h: a sparse
	// area's offset is added to the region's file offset), so the file has the
	// region's shape. It must be a memfd sealed against shrinking (vfio.AllocMemory
	// makes such). FD stays the function's and open while a client is attached.
	Areas      []vfio.Area
	FD         int
	FileOffset uint64
	// IOFDs are the sub-regions whose accesses a client may direct to a file
	// descriptor (VFIO_USER_DEVICE_GET_REGION_IO_FDS).
	IOFDs []IOFD
}

// IOFD is a sub-region with its own file descriptor.
type IOFD struct {
	Offset, Size uint64
	Type         IOFDType
	Flags        uint32 // KVM_IOEVENTFD_FLAG_* or KVM_IOREGION_*
	Data         uint64 // datamatch or user_data
	FD           int    // stays the function's
}

// IOFDType is the notification method of an IOFD.
type IOFDType uint32

// Methods of notification (VFIO_USER_IO_FD_TYPE_*).
const (
	IOEventFD  IOFDType = 0
	IORegionFD IOFDType = 1
)

// IRQSpec is one interrupt index that a function offers.
type IRQSpec struct {
	Index int // vfio.IRQINTx …
	Count int // vectors
	Flags vfio.IRQFlags
}

// Host is what a function may do to its client: DMA and interrupts. Its
// methods may be called from any goroutine but the one that calls Function;
// SetBusMaster and Trigger may be called from that one as well.
//
// DMA happens between Enter and Exit, of which one pair is open at a time (a
// card's worker opens one for each Step). An unmap waits for the bracket, so
// that after its answer no DMA touches the memory. DMA by message leaves the
// bracket while it waits for the client, and comes back into it after: an
// unmap, a reset or bus mastering turned off meanwhile abandons it.
type Host interface {
	Enter()
	Exit()
	// Read reads len(p) bytes of the client's memory. On a *DMAError p's
	// content means nothing.
	Read(iova uint64, p []byte) error
	// Write writes len(p) bytes; a range that is not allowed as a whole is
	// refused as a whole. Writes by one goroutine land in their order.
	Write(iova uint64, p []byte) error
	// WriteOwned is Write of an entry of a ring, of more than 4 bytes, whose last 4 say whose it
	// is: they land after the rest.
	WriteOwned(iova uint64, p []byte) error
	// Slice is a direct view of n bytes, where they are one piece of shared
	// memory that the device may read (and write, if write is set), else nil.
	// It is valid until the next Read or Write, or Exit. The client's memory
	// may change while it is looked at: read once, then use the copy. A fault
	// in it is for vfio.Guard to catch.
	Slice(iova, n uint64, write bool) []byte
	// SetBusMaster follows the command register's bit. It is off at Attach;
	// while off, all DMA and message-signalled interrupts fail.
	SetBusMaster(on bool)
	// Trigger fires a vector; nothing happens if the client has not set it up.
	Trigger(irq, vector int)
	// RequestRelease asks the client to give the function back (REQ).
	RequestRelease()
	// Stats counts what the session's DMA did, up to the last Exit, message or
	// failure.
	Stats() DMAStats
}

// DMAStats counts a session's DMA since Attach.
type DMAStats struct {
	ReadBytes, WriteBytes               uint64 // through shared memory
	MessageReadBytes, MessageWriteBytes uint64 // by message: slow
	Messages                            uint64 // DMA_READ and DMA_WRITE sent
	Faults                              uint64 // Read and Write that failed
	Abandoned                           uint64 // of those, cut off by unmap or reset
}

// DMAReason is why a DMA failed.
type DMAReason int

// Reasons of DMA failure.
const (
	DMAUnmapped   DMAReason = iota + 1 // no mapping holds the address
	DMAPermission                      // the mapping does not allow it
	DMABusMaster                       // bus mastering is off
	DMAAbandoned                       // an unmap, a reset or the end of the session cut it off
	DMATimeout                         // the client did not answer
	DMARejected                        // the client answered with an error
	DMAFault                           // the shared memory could not be accessed
)

// String names the reason.
func (r DMAReason) String() string {
	switch r {
	case DMAUnmapped:
		return "not mapped"
	case DMAPermission:
		return "not permitted by the mapping"
	case DMABusMaster:
		return "bus mastering is off"
	case DMAAbandoned:
		return "abandoned"
	case DMATimeout:
		return "no answer from the client"
	case DMARejected:
		return "refused by the client"
	case DMAFault:
		return "memory fault"
	}
	return fmt.Sprintf("reason %d", int(r))
}

// DMAError is a failed DMA access.
type DMAError struct {
	IOVA   uint64 // the first address that failed
	N      int    // bytes asked for
	Write  bool
	Reason DMAReason
	Err    error // the client's errno for DMARejected, else nil
}

// Error names direction, address, length and reason.
func (e *DMAError) Error() string {
	op := "read"
	if e.Write {
		op = "write"
	}
	s := fmt.Sprintf("DMA %s of %d bytes at %#x: %v", op, e.N, e.IOVA, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the client's errno.
func (e *DMAError) Unwrap() error { return e.Err }
