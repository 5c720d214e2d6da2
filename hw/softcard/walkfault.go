package softcard

import (
	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// Defects that the debug page puts into the walk, so that a mirror of it can be
// shown to see them (WALK_FAULT; STALE_CACHE is the key cache's).

// defect says what is wrong with the walk of the next packet. With WALK_FAULT_COUNT
// the Nth one has it, and no other until the count is set again or the fault is
// taken back; without, every one has it.
func (c *Card) defect() hw.WalkFault {
	f, n := c.live.debug.walkFault, &c.regs.tests.walkFaultCount
	s := &c.qps.walk
	switch {
	case f == hw.WalkFaultNone:
		s.struck = false
		return f
	case n.Load() != 0:
		if s.struck = strike(n); s.struck {
			return f
		}
		return hw.WalkFaultNone
	case s.struck:
		return hw.WalkFaultNone
	}
	return f
}

// spoilBefore changes what a packet's walk begins with. swapped is the first of two
// segments that have changed places, to be put right after it, or -1.
func (w *walk) spoilBefore(f hw.WalkFault, segs []gather.Segment, at *gather.Cursor) (swapped int) {
	w.skip = f == hw.WalkFaultLookupSkipped
	swapped = -1
	if f == hw.WalkFaultSegmentsSwapped {
		i := at.Segment
		if at.Offset != 0 {
			i++ // the one that is begun stays
		}
		if i+1 < len(segs) {
			segs[i], segs[i+1] = segs[i+1], segs[i]
			swapped = i
		}
	}
	return swapped
}

// spoilAfter changes what a packet's walk ended with.
func spoilAfter(f hw.WalkFault, h *roce.Header, o *outgoing, at *gather.Cursor, payload []byte) (n int) {
	n = len(payload)
	last := o.flags&hw.TraceFlagLast != 0
	switch {
	case f == hw.WalkFaultCursorOffByOne && at.Left > 1:
		at.Offset, at.Left = at.Offset+1, at.Left-1
	case f == hw.WalkFaultShortLast && last && n > 0:
		n--
	case f == hw.WalkFaultACKReqMissing && last:
		o.flags &^= hw.TraceFlagACKReq
		h.AckReq = false
	case f == hw.WalkFaultPayloadFlipped && n > 0:
		payload[n/2] ^= 0xff
	}
	return n
}
