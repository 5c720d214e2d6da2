package softcard

import (
	"errors"
	"hash/crc32"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// walk is what the engine of package gather works on: the card's keys and
// memory, on behalf of one QP. There is one a card, filled for each packet.
type walk struct {
	c      *Card
	q      *qp
	gather bool // it reads payload; else it places it
	held   bool // the gate holds the QP: there must be no walk (G15)
	pieces int  // read so far

	// Defects of the debug page.
	struck             bool // WALK_FAULT_COUNT has run down
	skip               bool // the last translation is used again
	lastAddr, lastIOVA uint64
	lastKey            uint32

	// For the trace, where one is wanted.
	segs []gather.Segment
	at   gather.Cursor // as the packet began; after a read, behind it
	rec  hw.TraceRecord
}

var errDMA = errors.New("softcard: DMA refused")

// Translate is one key lookup (G9, G10).
func (w *walk) Translate(key uint32, who gather.Who, addr uint64, n uint32) (uint64, bool, hw.Reason) {
	if w.skip && w.lastIOVA != 0 {
		return w.lastIOVA + addr - w.lastAddr, true, hw.ReasonNone
	}
	if w.gather {
		w.q.stats.Lookups++
		if w.held {
			w.q.stats.HeldLookups++
		}
	}
	iova, hit, r := w.c.keys.Translate(key, who, addr, n)
	if r == hw.ReasonNone {
		w.lastAddr, w.lastIOVA, w.lastKey = addr, iova, key
	}
	return iova, hit, r
}

// Read is one payload DMA read.
func (w *walk) Read(iova uint64, dst []byte) error {
	w.pieces++
	w.q.stats.PayloadReads++
	if w.held {
		w.q.stats.HeldReads++
	}
	if w.c.payloadRead(iova, dst, use{w.q.number, w.lastKey}) != hw.ReasonNone {
		return errDMA
	}
	return nil
}

// Write is one payload DMA write.
func (w *walk) Write(iova uint64, src []byte) error {
	if w.c.payloadWrite(iova, src, use{w.q.number, w.lastKey}) != hw.ReasonNone {
		return errDMA
	}
	return nil
}

// stepTracer reports the steps of a walk to the trace ring (G22).
type stepTracer walk

func (t *stepTracer) Lookup(seg int, off, n uint32, hit bool, r hw.Reason) {
	if t.skip {
		return // there was none
	}
	rec := t.rec
	rec.Kind, rec.Lookup = hw.TraceKindLookup, hw.LookupMiss
	if hit {
		rec.Lookup = hw.LookupHit
	}
	rec.Segment, rec.Offset, rec.Bytes, rec.Key, rec.Reason = uint8(seg), off, n, t.segs[seg].Key, r
	setCursor(&rec, t.at)
	t.c.trace(&rec)
}

func (t *stepTracer) Read(seg int, off, n uint32, r hw.Reason) {
	if r != hw.ReasonNone {
		return // the FAULT record names it
	}
	t.at = gather.Cursor{Segment: seg, Offset: off + n, Left: t.at.Left - n}
	for t.at.Segment < len(t.segs) && t.at.Offset == t.segs[t.at.Segment].Length {
		t.at.Segment, t.at.Offset = t.at.Segment+1, 0
	}
	rec := t.rec
	rec.Kind = hw.TraceKindRead
	rec.Segment, rec.Offset, rec.Bytes, rec.Key = uint8(seg), off, n, t.segs[seg].Key
	setCursor(&rec, t.at)
	t.c.trace(&rec)
}

func setCursor(r *hw.TraceRecord, at gather.Cursor) {
	r.CursorSegment, r.CursorOffset, r.CursorLeft = uint8(at.Segment), at.Offset, at.Left
}

// outgoing is a packet that is to be gathered.
type outgoing struct {
	op     gather.Op
	segs   []gather.Segment
	inline []byte // with flag TraceFlagInline: the payload itself
	// What the trace says of it.
	index  uint32 // WQE, or the responder's READ
	packet uint32
	psn    uint32
	opcode hw.Opcode
	flags  hw.TraceFlag
	traced bool // its steps are reported
}

// gatherPacket assembles the payload of the packet at the cursor in the frame,
// whole or not at all (G17), and hands it to TX Packet Build.
func (c *Card) gatherPacket(q *qp, o *outgoing, at *gather.Cursor, f *frame) (n int, fault gather.Fault, ok bool) {
	w := &c.qps.walk
	w.q, w.gather, w.held, w.pieces = q, true, q.gateAt != 0 && o.op != gather.ReadResponse, 0
	traced := c.traceWanted(q.number)
	var tr gather.Tracer
	hosted := c.hostGathers(o, at)
	again := hosted && q.host.stage != hostIdle // its PACKET record was written
	if again {
		traced = traced && q.host.traced
	} else {
		traced = traced && c.trc.sampled()
	}
	o.traced = traced
	if traced {
		w.segs, w.at = o.segs, *at
		w.rec = hw.TraceRecord{QPN: q.number, WQEIndex: o.index, Packet: o.packet, PSN: o.psn, Opcode: o.opcode, Flags: o.flags}
		tr = (*stepTracer)(w)
	}
	if traced && !again {
		rec := w.rec
		rec.Kind, rec.Bytes = hw.TraceKindPacket, min(q.mtu, at.Left)
		if o.op == gather.ReadResponse {
			rec.Key, rec.Offset, rec.CRC = o.segs[0].Key, uint32(o.segs[0].Addr), uint32(o.segs[0].Addr>>32)
		}
		setCursor(&rec, *at)
		c.trace(&rec)
	}
	payload := f.payload(int(q.mtu))
	asked := hosted && q.host.stage != hostDone
	if asked && !c.askHost(q, o, at) {
		q.host.traced = traced
		return 0, gather.Fault{Reason: reasonAsked}, false
	}
	defect := c.defect()
	swapped := -1
	f.built = false
	switch {
	case asked:
		fault = noSegment(hw.ReasonHostGather)
	case hosted:
		n, fault, ok = c.takeHost(q, o, at, payload)
	case c.rtl != nil && defect == hw.WalkFaultNone:
		n, fault, ok = c.rtl.gather(q, o, at, f, tr)
	case o.flags&hw.TraceFlagInline != 0:
		n, fault, ok = gather.InlinePacket(o.inline, at, q.mtu, payload)
	default:
		swapped = w.spoilBefore(defect, o.segs, at)
		who := gather.Who{PD: q.ctx.PD, QPN: q.number, Access: o.op.Access()}
		n, fault, ok = gather.Packet(w, w, tr, o.segs, who, at, q.mtu, payload)
	}
	if o.flags&hw.TraceFlagInline == 0 {
		c.count[cntGathers]++
		q.stats.Gathers++
		if w.pieces > 1 {
			c.count[cntGathersMulti]++
			q.stats.GathersMulti++
		}
	}
	if w.skip = false; swapped >= 0 {
		o.segs[swapped], o.segs[swapped+1] = o.segs[swapped+1], o.segs[swapped]
	}
	if !ok && fault.Reason == reasonHeld {
		return 0, fault, false
	}
	if !ok {
		c.count[cntGatherFaults]++
		if traced {
			rec := w.rec
			rec.Kind, rec.Segment, rec.Offset, rec.Key, rec.Reason = hw.TraceKindFault, uint8(fault.Segment), fault.Offset, fault.Key, fault.Reason
			setCursor(&rec, *at)
			c.trace(&rec)
		}
		return 0, fault, false
	}
	if defect != hw.WalkFaultNone {
		n = spoilAfter(defect, &c.qps.hdr, o, at, payload[:n])
		w.rec.Flags = o.flags
	}
	if n > 0 && strike(&c.regs.tests.flipByte) {
		payload[0] ^= 0xff
		if f.built {
			if _, err := roce.Finish(f.bytes()); err != nil { // its ICRC goes with the byte
				panic("softcard: " + err.Error())
			}
		}
	}
	if traced {
		rec := w.rec
		rec.Kind, rec.Bytes, rec.CRC = hw.TraceKindHandover, uint32(n), crc32.ChecksumIEEE(payload[:n])
		setCursor(&rec, *at)
		c.trace(&rec)
	}
	return n, gather.Fault{}, true
}

// traceSent reports that the packet of the walk left the port.
func (c *Card) traceSent(q *qp, o *outgoing, bytes int) {
	if !o.traced {
		return
	}
	c.trace(&hw.TraceRecord{QPN: q.number, WQEIndex: o.index, Packet: o.packet, PSN: o.psn, Opcode: o.opcode, Flags: o.flags,
		Kind: hw.TraceKindSent, Bytes: uint32(bytes)})
}
