package gather

import "rnic/hw"

// Limits of a message.
const (
	// MaxSegments is the most data segments a work request can have (G6).
	MaxSegments = 63
	// MaxMessage is the longest message in bytes (InfiniBand Architecture
	// Specification vol. 1, 9.7.7: 2^31).
	MaxMessage = 1 << 31
)

// Segment is one data segment: Length bytes from the virtual address Addr on,
// under the key Key: an lkey where software named the memory, the RETH's
// R_Key where the wire did (G4, G6).
type Segment struct {
	Addr   uint64
	Length uint32
	Key    uint32
}

// Cursor is the in-flight transfer state of a message (G8): the segment that
// is active, the offset in it of the next byte, and the bytes of the message
// that are left. Between packets it is in normal form: it stands on a segment
// that holds bytes, or at (count, 0, 0) when nothing is left.
type Cursor struct {
	Segment int
	Offset  uint32
	Left    uint32
}

// Done reports whether no byte is left. A message of length 0 is done before
// its only packet (G7).
func (c Cursor) Done() bool { return c.Left == 0 }

// normal is c in G8's normal form over segs. (A value, here and in piece: a cursor
// that has an address is kept in memory, which the walk would wait for.)
func (c Cursor) normal(segs []Segment) Cursor {
	if c.Left == 0 {
		return Cursor{Segment: len(segs)}
	}
	for c.Segment < len(segs) && c.Offset == segs[c.Segment].Length {
		c.Segment, c.Offset = c.Segment+1, 0
	}
	return c
}

// Start returns the cursor at the first byte of a message made of segs. It
// refuses more than MaxSegments segments (hw.ReasonMalformed) and a total over
// MaxMessage (hw.ReasonLength, naming the segment in which the sum passes it). No
// key is looked up: a list can be started whose keys are bad.
func Start(segs []Segment) (c Cursor, f Fault, ok bool) {
	if len(segs) > MaxSegments {
		return Cursor{}, Fault{Segment: MaxSegments, Key: segs[MaxSegments].Key, Reason: hw.ReasonMalformed}, false
	}
	var sum uint64
	for i := range segs {
		if sum += uint64(segs[i].Length); sum > MaxMessage {
			return Cursor{}, Fault{Segment: i, Key: segs[i].Key, Reason: hw.ReasonLength}, false
		}
	}
	return Cursor{Left: uint32(sum)}.normal(segs), Fault{}, true
}

// Seek returns the cursor of segs from which off bytes have been taken, in
// normal form: where a retransmission that begins in mid-message resumes. ok
// is false when the list cannot be started or off lies beyond its end.
func Seek(segs []Segment, off uint32) (c Cursor, ok bool) {
	c, _, ok = Start(segs)
	if !ok || off > c.Left {
		return Cursor{}, false
	}
	c.Left -= off
	for c.Left != 0 && off >= segs[c.Segment].Length {
		off -= segs[c.Segment].Length
		c.Segment++
	}
	c.Offset = off
	return c.normal(segs), true
}

// Packets returns how many packets a message of length bytes takes at a path
// MTU of mtu bytes, which must not be 0: at least one (G7).
func Packets(length, mtu uint32) uint32 {
	if length == 0 {
		return 1
	}
	return (length-1)/mtu + 1
}
