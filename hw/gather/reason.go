package gather

import "fmt"

// Reason says why a lookup, a read or a whole walk failed. The values up to
// [ReasonBounds] stand in the order in which rule G10 checks them; the first that
// fails is the reason. Zero is no failure.
type Reason uint8

// Reasons. The numbers are part of the card's contract: a completion's vendor
// syndrome carries them (rule G18).
const (
	ReasonNone      Reason = iota // nothing failed
	ReasonKeyIndex                // no such key: index beyond the table, or entry not valid
	ReasonKeyTag                  // the key's low 8 bits are not the entry's tag
	ReasonPD                      // another protection domain's key (a memory window: or another QP's)
	ReasonAccess                  // the region does not grant this access
	ReasonBounds                  // bytes of this piece lie outside the region
	ReasonDMARead                 // the memory refused the read
	ReasonDMAWrite                // the memory refused the write (scatter only)
	ReasonLengthMax               // the lengths add up to more than MaxMessage
	ReasonMalformed               // not a list of segments, or a cursor that is not in it
	ReasonNoRoom                  // scatter: more bytes than the segments have left
	reasons                       // how many there are
)

var reasonNames = [reasons]string{
	ReasonNone: "none", ReasonKeyIndex: "key-index", ReasonKeyTag: "key-tag", ReasonPD: "pd", ReasonAccess: "access", ReasonBounds: "bounds",
	ReasonDMARead: "dma-read", ReasonDMAWrite: "dma-write", ReasonLengthMax: "length-max", ReasonMalformed: "malformed", ReasonNoRoom: "no-room",
}

// String returns the reason's stable name, as it stands in logs, JSON and
// test tables.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Fault names the place at which a walk failed: the segment (counted from 0),
// its key, the offset in that segment of the first byte of the piece that
// failed, and why. It is a value; the zero Fault is no fault.
type Fault struct {
	Segment int
	Key     uint32
	Offset  uint32
	Reason  Reason
}

// Error makes a Fault usable as a Go error where one is wanted; the walk
// itself returns it as a value so that nothing is allocated.
func (f Fault) Error() string {
	return fmt.Sprintf("gather: segment %d (key %#x) at offset %d: %s", f.Segment, f.Key, f.Offset, f.Reason)
}
