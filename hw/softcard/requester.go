package softcard

import (
	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// opState is how far a send work request has come.
type opState uint8

const (
	opFetched opState = iota // parsed, nothing sent
	opStarted                // a packet of it was sent, so it has PSNs
	opDone                   // acknowledged, or its response is placed
	opFailed                 // completes in error when it is the oldest
)

// sendOp is a send work request that was fetched and has not completed.
type sendOp struct {
	index   uint32 // its first block
	psn     uint32 // of its first packet, from opStarted on
	packets uint32 // PSNs it takes
	length  uint32 // bytes of the message
	got     uint32 // READ: response packets placed
	mark    uint32 // of the WQE, as first fetched
	blocks  uint8
	opcode  hw.Opcode
	flags   hw.WQEFlag
	state   opState
}

func (o *sendOp) last() uint32 { return roce.PSNAdd(o.psn, int32(o.packets-1)) }

// failure is why a work request completes in error.
type failure struct {
	status   hw.Status
	fault    gather.Fault
	syndrome roce.Syndrome
}

// requester is the sending half of a QP. Its work requests are numbered from 0
// on, as they are fetched: head is the oldest that has not completed, cur the
// one whose packets are sent, tail the next to be fetched. PSNs: una is the
// oldest not acknowledged, psn the next to send, max the next new one; psn is
// behind max while packets are sent again.
type requester struct {
	ops             []sendOp // a ring of a power of two
	head, cur, tail uint32
	fetched         uint32 // first block not fetched

	una, psn, max uint32
	asked         uint32 // last PSN that was sent with AckReq, valid with asking
	asking        bool
	failed        bool   // a work request failed (fail); none is started after it
	implied       bool   // a response was missed and is asked for again
	retries       uint8  // left without progress
	rnrRetries    uint8  // likewise
	reads         uint32 // READs and atomics in flight

	// The message being sent.
	wqe    *wqe // that of cur, nil where it is not loaded
	cursor gather.Cursor
	packet uint32

	// The response being placed.
	sink       uint32 // number of the work request
	sinkLoaded bool
	sinkAt     gather.Cursor
	sinkSegs   []gather.Segment

	fail failure
}

func (s *requester) op(n uint32) *sendOp { return &s.ops[n&uint32(len(s.ops)-1)] }

// firstOps is how many work requests a QP's list of them takes at first. It grows
// with what is in flight: a client that makes large rings and does not use them
// costs the card little.
const firstOps = 16

// next is the place of the next work request, which is counted. With none in flight the count begins
// anew: a QP that has one at a time then has it always in the same place.
func (s *requester) next() *sendOp {
	if s.head == s.tail {
		s.head, s.cur, s.tail = 0, 0, 0
	}
	if s.tail-s.head == uint32(len(s.ops)) {
		grown := make([]sendOp, 2*len(s.ops))
		for n := s.head; n != s.tail; n++ {
			grown[n&uint32(len(grown)-1)] = *s.op(n)
		}
		s.ops = grown
	}
	s.tail++
	return s.op(s.tail - 1)
}

// consumer is the first block that has not completed.
func (s *requester) consumer() uint32 {
	if s.head != s.tail {
		return s.op(s.head).index
	}
	return s.fetched
}

// request sends the QP's next request packet.
func (c *Card) request(q *qp) turn {
	s := &q.send
	if q.ctx.State != hw.QPStateRTS && q.ctx.State != hw.QPStateSQD || q.rnrAt != 0 || q.gateAt != 0 {
		return turnNone
	}
	if s.wqe == nil && !c.load(q) {
		return turnNone
	}
	op := s.op(s.cur)
	if op.state == opFetched && !c.mayStart(q, op) {
		return turnNone
	}
	l := c.route(q.peer)
	f := c.txRequest(l)
	if f == nil {
		return turnBlocked
	}
	if isRead(op.opcode) {
		return c.requestRead(q, op, f)
	}
	return c.requestData(q, op, f)
}

// mayStart decides whether the first packet of a work request may be sent now.
// Whatever ends the wait wakes the QP.
func (c *Card) mayStart(q *qp, op *sendOp) bool {
	s := &q.send
	switch {
	case q.ctx.State != hw.QPStateRTS:
		return false
	case op.flags&hw.WQEFlagFence != 0 && s.reads != 0:
		return false
	case isRead(op.opcode) && s.reads >= uint32(q.ctx.MaxRDAtomic):
		return false
	}
	// Not more than half of the PSNs may be in flight (InfiniBand specification,
	// volume 1, section 9.7.2): from the oldest work request on.
	base := s.psn
	if s.head != s.cur {
		base = s.op(s.head).psn
	}
	return (s.psn-base)&roce.PSNMask+op.packets <= 1<<23
}

// load makes the WQE of cur the one being sent: the next of the ring, or one
// whose packets are sent again. false: there is nothing to send.
func (c *Card) load(q *qp) bool {
	s := &q.send
	if s.cur != s.tail {
		return c.reload(q)
	}
	if s.failed || q.ctx.State != hw.QPStateRTS || s.fetched == q.sqSeen {
		return false
	}
	w := c.takeWQE()
	fault := c.fetchWQE(q, w, s.fetched, q.sqSeen-s.fetched)
	op := s.next()
	*op = sendOp{index: s.fetched, blocks: uint8(w.blocks), opcode: w.opcode, flags: w.flags}
	s.fetched += max(w.blocks, 1)
	if fault.Reason == hw.ReasonNone && isRead(w.opcode) && q.ctx.MaxRDAtomic == 0 {
		fault = noSegment(hw.ReasonUnsupported) // it would wait for ever
	}
	if fault.Reason != hw.ReasonNone {
		if c.traceWanted(q.number) {
			c.trace(&hw.TraceRecord{QPN: q.number, WQEIndex: op.index, PSN: s.psn, Kind: hw.TraceKindFault, Opcode: op.opcode,
				Segment: uint8(fault.Segment), Key: fault.Key, Reason: fault.Reason})
		}
		c.qps.wqes = append(c.qps.wqes, w)
		c.failLocal(q, op, fault)
		return false
	}
	op.length, op.mark = w.length, w.mark
	op.packets = 1
	if !isAtomic(op.opcode) {
		op.packets = gather.Packets(op.length, q.mtu)
	}
	s.wqe, s.packet = w, 0
	if w.flags&hw.WQEFlagInline != 0 {
		s.cursor = gather.StartInline(w.length)
	} else {
		s.cursor, _ = gather.Seek(w.segs, 0)
	}
	if c.traceAll(q.number) {
		rec := hw.TraceRecord{QPN: q.number, WQEIndex: op.index, PSN: s.psn, Bytes: op.length, Kind: hw.TraceKindWQE, Opcode: op.opcode}
		setCursor(&rec, s.cursor)
		c.trace(&rec)
	}
	return true
}

// takeWQE gives a place for a WQE. Few QPs are in the midst of a message: the places of
// the others would be cold, and most of what a QP takes.
func (c *Card) takeWQE() *wqe {
	n := len(c.qps.wqes)
	if n == 0 {
		return new(wqe)
	}
	w := c.qps.wqes[n-1]
	c.qps.wqes = c.qps.wqes[:n-1]
	return w
}

// unload gives back the WQE of the message that is being sent, if one is loaded.
func (c *Card) unload(q *qp) {
	if w := q.send.wqe; w != nil {
		q.send.wqe = nil
		c.qps.wqes = append(c.qps.wqes, w)
	}
}

// reload fetches the WQE of cur again and goes to the packet with the PSN psn.
func (c *Card) reload(q *qp) bool {
	s := &q.send
	op := s.op(s.cur)
	if op.state == opFailed {
		return false
	}
	w := c.takeWQE()
	if !c.fetchAgain(q, op, w) {
		c.qps.wqes = append(c.qps.wqes, w)
		return false
	}
	s.packet = 0
	if op.state == opStarted {
		s.packet = (s.psn - op.psn) & roce.PSNMask
	}
	s.wqe = w
	if isRead(op.opcode) {
		return true
	}
	off := s.packet * q.mtu
	if w.flags&hw.WQEFlagInline == 0 {
		s.cursor, _ = gather.Seek(w.segs, off)
	} else if s.cursor = gather.StartInline(w.length); s.cursor.Left != 0 {
		s.cursor.Offset, s.cursor.Left = off, w.length-off
	}
	return true
}

// fetchAgain fetches the WQE of a work request that was parsed before. One that
// is not what it was ends the QP: the request fails.
func (c *Card) fetchAgain(q *qp, op *sendOp, w *wqe) bool {
	fault := c.fetchWQE(q, w, op.index, uint32(op.blocks))
	if fault.Reason != hw.ReasonDMARead && (fault.Reason != hw.ReasonNone || w.mark != op.mark || w.length != op.length) {
		fault = noSegment(hw.ReasonChanged)
	}
	if fault.Reason != hw.ReasonNone {
		c.failLocal(q, op, fault)
		return false
	}
	return true
}

// requestData sends the next packet of a SEND or WRITE: gate, gather, build.
func (c *Card) requestData(q *qp, op *sendOp, f *frame) turn {
	s, w := &q.send, q.send.wqe
	write := op.opcode == hw.OpcodeRDMAWrite || op.opcode == hw.OpcodeRDMAWriteWithImm
	imm := op.opcode == hw.OpcodeSendWithImm || op.opcode == hw.OpcodeRDMAWriteWithImm
	last := s.packet+1 == op.packets
	kind := gather.Send
	if write {
		kind = gather.Write
	}
	h := &c.qps.hdr
	h.Opcode = requestOpcode(write, imm, s.packet, op.packets)
	h.SE = last && op.flags&hw.WQEFlagSolicited != 0 && (!write || imm)
	h.AckReq = c.ackReq(kind, s.packet, op.packets)
	h.PSN = s.psn
	h.RETH = roce.RETHFields{VA: w.remote, RKey: w.rkey, DMALen: op.length}
	h.Imm = w.imm
	size := q.flow.FrameLen(h.Opcode, int(min(q.mtu, s.cursor.Left)))
	if q.host.stage != hostAsked && !c.gate(q, size) {
		c.dropHost(q) // gathered or not, what is held keeps no staging slot
		return turnNone
	}
	o := outgoing{op: kind, segs: w.segs, inline: w.inline, index: op.index, packet: s.packet, psn: s.psn, opcode: op.opcode, flags: c.sendFlags(q, op, last, h.AckReq)}
	n, fault, ok := c.gatherPacket(q, &o, &s.cursor, f)
	if !ok {
		switch fault.Reason {
		case reasonHeld:
			return turnBlocked
		case reasonAsked:
			return turnNone
		}
		c.failLocal(q, op, fault)
		return turnNone
	}
	c.gateTake(q, size)
	c.build(q, f, n)
	c.sent(q, op, f, &o, 1)
	if s.packet++; last {
		s.cur++
		c.unload(q)
	}
	return turnWorked
}

// requestRead sends a READ request or an atomic. There is nothing to gather, and
// no lookup before it leaves (G2).
func (c *Card) requestRead(q *qp, op *sendOp, f *frame) turn {
	s, w, h := &q.send, q.send.wqe, &c.qps.hdr
	h.SE, h.AckReq, h.PSN = false, c.ackReq(gather.ReadRequest, 0, 1), s.psn
	psns := op.packets
	switch op.opcode {
	case hw.OpcodeRDMARead:
		h.Opcode = roce.RCReadRequest
		h.RETH = roce.RETHFields{VA: w.remote, RKey: w.rkey, DMALen: op.length}
		if op.state == opStarted { // again: what is missing
			h.RETH.VA += uint64(op.got) * uint64(q.mtu)
			h.RETH.DMALen -= op.got * q.mtu
			psns -= op.got
		}
	case hw.OpcodeAtomicCmpAndSwp:
		h.Opcode = roce.RCCompareSwap
	case hw.OpcodeAtomicFetchAndAdd:
		h.Opcode = roce.RCFetchAdd
	}
	h.Atomic = roce.AtomicETHFields{VA: w.remote, RKey: w.rkey, SwapAdd: w.swapAdd, Compare: w.compare}
	size := q.flow.FrameLen(h.Opcode, 0)
	if !c.gate(q, size) {
		return turnNone
	}
	c.gateTake(q, size)
	o := outgoing{index: op.index, psn: s.psn, opcode: op.opcode, flags: c.sendFlags(q, op, true, h.AckReq), traced: c.traceAll(q.number)}
	if op.state == opFetched {
		s.reads++
	}
	c.build(q, f, 0)
	c.sent(q, op, f, &o, psns)
	s.cur++
	c.unload(q)
	return turnWorked
}

// sendFlags is what the trace says of a request packet.
func (c *Card) sendFlags(q *qp, op *sendOp, last, ackReq bool) (f hw.TraceFlag) {
	if ackReq {
		f |= hw.TraceFlagACKReq
	}
	if last {
		f |= hw.TraceFlagLast
	}
	if q.send.psn != q.send.max {
		f |= hw.TraceFlagRetransmit
	}
	if op.flags&hw.WQEFlagInline != 0 {
		f |= hw.TraceFlagInline
	}
	return f
}

// sent sends the frame of a request, which takes so many PSNs.
func (c *Card) sent(q *qp, op *sendOp, f *frame, o *outgoing, psns uint32) {
	s := &q.send
	length := f.end - f.start
	c.send(f, q.number)
	c.traceSent(q, o, length)
	if op.state == opFetched {
		op.state, op.psn = opStarted, s.psn
	}
	again := s.psn != s.max
	s.psn = roce.PSNAdd(s.psn, int32(psns))
	if again {
		c.count[cntRetransmits]++
		q.stats.Retransmits++
	}
	if roce.PSNLess(s.max, s.psn) || !again {
		s.max = s.psn
	}
	if c.qps.hdr.AckReq {
		s.asked, s.asking = roce.PSNAdd(s.psn, -1), true
		if q.ackAt == 0 {
			c.startAckTimer(q)
		}
	}
}

// startAckTimer starts the transport timer, if the QP has one.
func (c *Card) startAckTimer(q *qp) {
	q.ackAt = 0
	if t := roce.AckTimeout(q.ctx.Timeout); t != 0 {
		q.ackAt = c.now() + int64(t)
		c.arm(q)
	}
}

// failLocal marks a work request as failed by this side (G17, G18). Those
// before it go on; none after it is started.
func (c *Card) failLocal(q *qp, op *sendOp, fault gather.Fault) {
	c.fail(q, op, failure{status: localStatus(fault.Reason), fault: fault})
}

// fail marks a work request as failed. It completes when it is the oldest.
func (c *Card) fail(q *qp, op *sendOp, f failure) {
	s := &q.send
	if op.state == opDone || op.state == opFailed {
		return
	}
	n := s.head
	for ; s.op(n) != op; n++ {
		if s.op(n).state == opFailed {
			return // an older one failed before: that one counts
		}
	}
	if s.cur-s.head > n-s.head {
		s.cur = n // what comes after it is not sent any more
	}
	c.dropHost(q)
	op.state = opFailed
	s.failed, s.fail = true, f
	c.unload(q)
	c.retire(q)
}

// retire completes the work requests that are done, in order.
func (c *Card) retire(q *qp) {
	s := &q.send
	for s.head != s.tail && q.ctx.State != hw.QPStateErr {
		op := s.op(s.head)
		e := hw.CQE{QPN: q.number, WQEIndex: op.index, Opcode: completionOpcode(op.opcode), FaultSegment: hw.NoSegment}
		switch op.state {
		case opDone:
			s.head++
			q.stats.Messages++
			if q.ctx.SignalAll == 0 && op.flags&hw.WQEFlagSignaled == 0 {
				continue
			}
			if isAtomic(op.opcode) {
				e.ByteLen = atomicSize
			} else if op.opcode == hw.OpcodeRDMARead {
				e.ByteLen = op.length
			}
			c.cqe(q.sendCQ, &e, false)
		case opFailed:
			s.head++
			f := &s.fail
			e.Status, e.Reason, e.AETHSyndrome = f.status, f.fault.Reason, uint8(f.syndrome)
			e.FaultSegment, e.FaultKey, e.FaultOffset = uint8(f.fault.Segment), f.fault.Key, uint64(f.fault.Offset)
			e.Flags = hw.CQEFlagSolicited
			c.enterError(q, e.Reason, e.FaultSegment, e.FaultKey)
			c.cqe(q.sendCQ, &e, true)
			return
		default:
			c.drained(q)
			return
		}
	}
	c.drained(q)
}

// drained sends the event of a send queue that was asked to drain, once nothing
// is in flight.
func (c *Card) drained(q *qp) {
	s := &q.send
	if q.ctx.State != hw.QPStateSQD || !q.drainAsked || s.head != s.tail && s.op(s.head).state != opFetched {
		return
	}
	q.drainAsked = false
	c.event(hw.EventTypeSQDrained, hw.ReasonNone, q.number, 0)
}
