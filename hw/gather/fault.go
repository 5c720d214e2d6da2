package gather

import (
	"fmt"

	"rnic/hw"
)

// Fault names the place at which a walk failed: the segment (counted from 0),
// its key, the offset in that segment of the first byte of the piece that
// failed, and why: up to hw.ReasonBounds the checks of G10, then
// hw.ReasonDMARead and hw.ReasonDMAWrite, hw.ReasonLength for lengths that add
// up to too much or segments that are too short for what is scattered, and
// hw.ReasonMalformed. It is a value; the zero Fault is no fault.
type Fault struct {
	Segment int
	Key     uint32
	Offset  uint32
	Reason  hw.Reason
}

// Error makes a Fault usable as a Go error where one is wanted; the walk
// itself returns it as a value so that nothing is allocated.
func (f Fault) Error() string {
	return fmt.Sprintf("gather: segment %d (key %#x) at offset %d: %s", f.Segment, f.Key, f.Offset, f.Reason)
}
