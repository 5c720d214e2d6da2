package driver

import (
	"fmt"
	"hash/crc32"

	"rnic/hw"
	"rnic/hw/gather"
)

// exam is what there is to know of a packet to walk it again: rule G21's same
// inputs.
type exam struct {
	qpn, pd   uint32
	opcode    Opcode
	packet    uint32
	mtu       uint32 // bytes
	response  bool   // of a READ: one segment, which the wire named
	isInline  bool
	inline    []byte
	segs      []gather.Segment
	malformed bool // the request cannot be started: its list is at fault

	ackReq       uint32 // every so manieth packet asks for an acknowledgement, too; 0: the last only (G13)
	ackReqMoving bool   // that is being changed: it holds for the last packet alone
}

// examiner does exams: the software walk, its steps, and the comparison.
type examiner struct {
	w       walker
	payload [1 << stagingLogStride]byte
	n       int           // bytes of it
	steps   []TraceRecord // lookups and reads of the software walk
	end     TraceRecord   // its HANDOVER or FAULT
	begin   TraceRecord   // its PACKET
	cursor  gather.Cursor
	segs    []gather.Segment
	diffs   []Difference
}

// Difference is one thing in which the card's report of a packet is not what the
// software walk did.
type Difference struct {
	What   string `json:"what"`   // as "handover.crc", "step 3.segment", "steps"
	Card   string `json:"card"`   // as the card has it
	Driver string `json:"driver"` // as the rules have it
}

// String gives "what: card x, driver y".
func (d Difference) String() string {
	return fmt.Sprintf("%s: card %s, driver %s", d.What, d.Card, d.Driver)
}

// Lookup and Read make the examiner the walk's gather.Tracer.
func (x *examiner) Lookup(seg int, off, n uint32, hit bool, r hw.Reason) {
	x.step(TraceRecord{Kind: hw.TraceKindLookup, Segment: seg, Offset: off, Bytes: n, Key: x.segs[seg].Key, Reason: r})
}

// Read is of gather.Tracer.
func (x *examiner) Read(seg int, off, n uint32, r hw.Reason) {
	if r != hw.ReasonNone {
		return
	}
	at := gather.Cursor{Segment: seg, Offset: off + n, Left: x.cursor.Left - n}
	for at.Segment < len(x.segs) && at.Offset == x.segs[at.Segment].Length {
		at.Segment, at.Offset = at.Segment+1, 0
	}
	x.cursor = at
	x.step(TraceRecord{Kind: hw.TraceKindRead, Segment: seg, Offset: off, Bytes: n, Key: x.segs[seg].Key})
}

func (x *examiner) step(r TraceRecord) {
	setCursor(&r, x.cursor)
	x.steps = append(x.steps, r)
}

func setCursor(r *TraceRecord, c gather.Cursor) {
	r.Cursor.Segment, r.Cursor.Offset, r.Cursor.Left = c.Segment, c.Offset, c.Left
}

// walk does the packet of e again. The caller holds the shadow's mu.
func (x *examiner) walk(e *exam) {
	x.steps, x.n, x.segs = x.steps[:0], 0, e.segs
	flags := hw.TraceFlag(0)
	first, fault, ok := gather.Start(e.segs)
	if e.isInline {
		first, flags = gather.StartInline(uint32(len(e.inline))), hw.TraceFlagInline
	}
	packets := gather.Packets(first.Left, e.mtu)
	at, valid := first, ok
	switch done := uint64(e.packet) * uint64(e.mtu); {
	case !ok:
	case e.packet >= packets:
		valid = false
	case e.isInline && done != 0:
		at.Offset, at.Left = uint32(done), first.Left-uint32(done)
	case !e.isInline:
		at, valid = gather.Seek(e.segs, uint32(done))
	}
	if ok && !valid {
		fault = gather.Fault{Segment: hw.NoSegment, Reason: hw.ReasonMalformed} // no such packet
	}
	x.begin = TraceRecord{Kind: hw.TraceKindPacket, Bytes: min(e.mtu, at.Left)}
	setCursor(&x.begin, at)
	op := gather.Send
	if e.response {
		op, flags = gather.ReadResponse, hw.TraceFlagResponse
	}
	if e.packet+1 == packets {
		flags |= hw.TraceFlagLast
	}
	if gather.AckReq(op, true, e.packet, packets, e.ackReq) {
		flags |= hw.TraceFlagACKReq
	}
	if ok = valid; ok {
		x.cursor = at
		if e.isInline {
			x.n, fault, ok = gather.InlinePacket(e.inline, &at, e.mtu, x.payload[:])
		} else {
			who := gather.Who{PD: e.pd, QPN: e.qpn, Access: op.Access()}
			x.n, fault, ok = gather.Packet(&x.w, &x.w, x, e.segs, who, &at, e.mtu, x.payload[:])
		}
	}
	if !ok {
		x.end = TraceRecord{Kind: hw.TraceKindFault, Flags: flags, Segment: fault.Segment, Offset: fault.Offset, Key: fault.Key, Reason: fault.Reason}
	} else {
		x.end = TraceRecord{Kind: hw.TraceKindHandover, Flags: flags, Bytes: uint32(x.n), CRC: crc32.ChecksumIEEE(x.payload[:x.n])}
	}
	setCursor(&x.end, at)
}

// compare puts the card's records of the packet, from PACKET to HANDOVER or FAULT,
// beside the walk that was done. What differs is in diffs. skip: it is a fault that
// the software walk cannot have.
func (x *examiner) compare(e *exam, begin *TraceRecord, steps []TraceRecord, end *TraceRecord) (skip bool) {
	x.diffs = x.diffs[:0]
	if end.Kind == hw.TraceKindFault {
		switch end.Reason {
		case ReasonHostGather, ReasonChanged:
			return true
		case ReasonDMARead:
			// The memory refused a read. As far as it came, the walk is the same.
			if end.Segment == hw.NoSegment {
				return true // a staging slot
			}
			n := len(steps)
			differs(x, "steps", n, min(n, len(x.steps)))
			x.compareSteps(steps[:min(n, len(x.steps))])
			if n > 0 {
				last := &steps[n-1]
				differs(x, "fault.segment", end.Segment, last.Segment)
				differs(x, "fault.offset", int(end.Offset), int(last.Offset))
				x.hex("fault.key", end.Key, last.Key)
			}
			return false
		}
	}
	if !e.malformed {
		differs(x, "packet.opcode", begin.Opcode, e.opcode)
		differs(x, "packet.bytes", int(begin.Bytes), int(x.begin.Bytes))
		differs(x, "packet.cursor", begin.Cursor, x.begin.Cursor)
	}
	differs(x, "steps", len(steps), len(x.steps))
	x.compareSteps(steps[:min(len(steps), len(x.steps))])
	if end.Kind != x.end.Kind {
		x.diff("end", describe(end), describe(&x.end))
		return false
	}
	if end.Kind == hw.TraceKindFault {
		differs(x, "fault.reason", end.Reason, x.end.Reason)
		differs(x, "fault.segment", end.Segment, x.end.Segment)
		differs(x, "fault.offset", int(end.Offset), int(x.end.Offset))
		x.hex("fault.key", end.Key, x.end.Key)
		return false
	}
	differs(x, "handover.bytes", int(end.Bytes), int(x.end.Bytes))
	differs(x, "handover.cursor", end.Cursor, x.end.Cursor)
	x.hex("handover.crc", end.CRC, x.end.CRC)
	mask := hw.TraceFlagLast | hw.TraceFlagResponse | hw.TraceFlagInline
	if x.end.Flags&hw.TraceFlagLast != 0 || e.response || !e.ackReqMoving {
		mask |= hw.TraceFlagACKReq
	}
	differs(x, "handover.flags", end.Flags&mask, x.end.Flags&mask)
	return false
}

func (x *examiner) compareSteps(card []TraceRecord) {
	for i := range card {
		c, d := &card[i], &x.steps[i]
		if c.Kind == d.Kind && c.Segment == d.Segment && c.Offset == d.Offset && c.Bytes == d.Bytes && c.Key == d.Key && c.Reason == d.Reason && c.Cursor == d.Cursor {
			continue
		}
		x.diff(fmt.Sprintf("step %d", i+1), describe(c), describe(d))
	}
}

// describe is a record as a difference shows it.
func describe(r *TraceRecord) string {
	switch r.Kind {
	case hw.TraceKindHandover:
		return fmt.Sprintf("HANDOVER of %d bytes", r.Bytes)
	case hw.TraceKindFault:
		return fmt.Sprintf("FAULT %v in segment %d at offset %d", r.Reason, r.Segment, r.Offset)
	}
	s := fmt.Sprintf("%v of segment %d, offset %d, %d bytes, key %#x, cursor %v", r.Kind, r.Segment, r.Offset, r.Bytes, r.Key, r.Cursor)
	if r.Reason != ReasonNone {
		s += ", " + r.Reason.String()
	}
	return s
}

func (x *examiner) diff(what, card, driver string) {
	x.diffs = append(x.diffs, Difference{What: what, Card: card, Driver: driver})
}

func (x *examiner) hex(what string, card, driver uint32) {
	if card != driver {
		x.diff(what, fmt.Sprintf("%#x", card), fmt.Sprintf("%#x", driver))
	}
}

// differs notes two values that are not the same.
func differs[T comparable](x *examiner, what string, card, driver T) {
	if card != driver {
		x.diff(what, fmt.Sprint(card), fmt.Sprint(driver))
	}
}

// parse reads the inputs of a send work request out of a copy of its WQE, which
// this driver has built. list and e.inline are of the caller and of raw.
func (e *exam) parse(raw []byte, list *[hw.MaxSegments]gather.Segment) bool {
	var ctl hw.ControlSegment
	copy(ctl.AsBytes(), raw)
	e.opcode = Opcode(ctl.Opcode)
	at := 1
	switch ctl.Opcode {
	case hw.OpcodeSend, hw.OpcodeSendWithImm:
	case hw.OpcodeRDMAWrite, hw.OpcodeRDMAWriteWithImm, hw.OpcodeRDMARead:
		at = 2
	case hw.OpcodeAtomicCmpAndSwp, hw.OpcodeAtomicFetchAndAdd:
		at = 3
	default:
		return false
	}
	n := int(ctl.Segments) - at
	if n < 0 || int(ctl.Segments)*hw.WQESegment > len(raw) {
		return false
	}
	body := raw[at*hw.WQESegment : int(ctl.Segments)*hw.WQESegment]
	if e.isInline = ctl.Flags&hw.WQEFlagInline != 0; e.isInline {
		if int(ctl.InlineLength) > len(body) {
			return false
		}
		e.inline, e.segs = body[:ctl.InlineLength], nil
		return true
	}
	if n > len(list) {
		return false
	}
	e.inline, e.segs = nil, list[:n]
	for i := range e.segs {
		var d hw.DataSegment
		copy(d.AsBytes(), body[i*hw.WQESegment:])
		e.segs[i] = gather.Segment{Addr: d.Addr, Length: d.Length, Key: d.LKey}
	}
	return true
}
