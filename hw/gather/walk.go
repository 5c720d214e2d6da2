package gather

import "rnic/hw"

// Translator turns a piece of a segment into a DMA address. One call is one
// lookup (G9): key-table access and the checks of G10, for the n bytes at
// virtual address addr. hit says whether the key cache answered.
type Translator interface {
	Translate(key uint32, who Who, addr uint64, n uint32) (iova uint64, hit bool, r hw.Reason)
}

// Memory reads the len(dst) bytes at iova by DMA. It may split the read as
// the bus wants; an error fails the whole piece.
type Memory interface {
	Read(iova uint64, dst []byte) error
}

// Tracer is told each step of a walk as it is taken, in the walk's order
// (G22): the lookup of a piece of n bytes at offset off of segment seg, and
// then the read (or, scattering, the write) of that piece. A step that failed
// has a reason, and is the last. A Tracer must not allocate.
type Tracer interface {
	Lookup(seg int, off, n uint32, hit bool, r hw.Reason)
	Read(seg int, off, n uint32, r hw.Reason)
}

// Packet assembles the payload of the next packet: it walks segs from *c,
// takes min(mtu, bytes left) bytes (G7) into dst, which must have room for
// them, and leaves the cursor in normal form where the packet ended (G8). n
// is how many bytes it took.
//
// Every segment visited is looked up once for this packet, before its read
// and after the read of the one before it, even under the key of the segment
// before (G9). An empty segment is passed over without a lookup (G12); a
// message without bytes looks up nothing.
//
// It is all or nothing (G17): on a fault n is 0, the cursor stays where the
// packet began, and what dst holds must not be sent. tr may be nil. Nothing
// is allocated.
//
// A cursor that does not lie in segs, as when a WQE changed between two
// fetches, and an mtu of 0 are faults too (hw.ReasonMalformed).
func Packet(t Translator, m Memory, tr Tracer, segs []Segment, who Who, c *Cursor, mtu uint32, dst []byte) (n int, f Fault, ok bool) {
	want := min(mtu, c.Left)
	if mtu == 0 || c.Segment < 0 || len(segs) > MaxSegments {
		return 0, Fault{Segment: c.Segment, Offset: c.Offset, Reason: hw.ReasonMalformed}, false
	}
	at := *c
	for done := uint32(0); done < want; {
		s, take, valid := at.piece(segs, want-done)
		if !valid {
			return 0, Fault{Segment: at.Segment, Offset: at.Offset, Reason: hw.ReasonMalformed}, false
		}
		if take == 0 {
			at.Segment, at.Offset = at.Segment+1, 0
			continue
		}
		iova, hit, r := lookup(t, s, who, at.Offset, take)
		if tr != nil {
			tr.Lookup(at.Segment, at.Offset, take, hit, r)
		}
		if r == hw.ReasonNone {
			if m.Read(iova, dst[done:done+take]) != nil {
				r = hw.ReasonDMARead
			}
			if tr != nil {
				tr.Read(at.Segment, at.Offset, take, r)
			}
		}
		if r != hw.ReasonNone {
			return 0, Fault{Segment: at.Segment, Key: s.Key, Offset: at.Offset, Reason: r}, false
		}
		done += take
		at.Offset += take
		at.Left -= take
	}
	*c = at.normal(segs)
	return int(want), Fault{}, true
}

// piece returns the segment under the cursor and how many of the most bytes
// wanted can be taken from it: none where it is empty, or ended. valid is false
// when the cursor lies outside segs.
func (c Cursor) piece(segs []Segment, most uint32) (s *Segment, take uint32, valid bool) {
	if c.Segment >= len(segs) || c.Offset > segs[c.Segment].Length {
		return nil, 0, false
	}
	s = &segs[c.Segment]
	return s, min(most, s.Length-c.Offset), true
}

// lookup translates the piece of n bytes at offset off of segment s. A segment
// that runs over the end of the address space is out of bounds from there on,
// whatever region lies at address 0; that is the last of G10's checks, so an
// earlier reason stands.
func lookup(t Translator, s *Segment, who Who, off, n uint32) (iova uint64, hit bool, r hw.Reason) {
	addr := s.Addr + uint64(off)
	iova, hit, r = t.Translate(s.Key, who, addr, n)
	if r == hw.ReasonNone && addr < s.Addr {
		r = hw.ReasonBounds
	}
	return iova, hit, r
}

// InlinePacket is the other side of the fork of G3: the payload was copied
// into the WQE when it was posted, so it has no segment and no key, and this
// takes no Translator and no Memory. It cuts the next packet out of inline at
// the cursor just as Packet does; StartInline gives the first cursor.
func InlinePacket(inline []byte, c *Cursor, mtu uint32, dst []byte) (n int, f Fault, ok bool) {
	want := min(mtu, c.Left)
	if mtu == 0 || want != 0 && (c.Segment != 0 || uint64(c.Offset)+uint64(want) > uint64(len(inline))) {
		return 0, Fault{Segment: c.Segment, Offset: c.Offset, Reason: hw.ReasonMalformed}, false
	}
	copy(dst[:want], inline[c.Offset:])
	c.Offset += want
	c.Left -= want
	if c.Left == 0 {
		*c = Cursor{Segment: 1}
	}
	return int(want), Fault{}, true
}

// StartInline returns the cursor at the first byte of an inline payload of n
// bytes. It counts as one segment.
func StartInline(n uint32) Cursor {
	if n == 0 {
		return Cursor{Segment: 1}
	}
	return Cursor{Left: n}
}
