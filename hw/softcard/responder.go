package softcard

import (
	"encoding/binary"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// message is what the responder is in the middle of.
type message uint8

const (
	messageNone message = iota
	messageSend
	messageWrite
)

// responder is the receiving half of a QP.
type responder struct {
	psn  uint32 // next expected
	msn  uint32 // messages completed
	head uint32 // receives consumed

	in     message
	nakked bool     // a sequence NAK was sent; the expected PSN has not come since
	rnr    bool     // an RNR NAK was sent; likewise
	dead   bool     // a NAK that ends the connection is on its way
	wqe    *recvWQE // of the SEND under way
	target [1]gather.Segment
	at     gather.Cursor // in target, of the WRITE under way
	length uint32        // of the WRITE

	reads uint32        // READs executed, for the trace
	saved []savedAtomic // results of the last atomics, for duplicates
	next  int           // place in saved of the next one
}

// savedAtomic is the result of an atomic that was executed.
type savedAtomic struct {
	psn   uint32
	value uint64
}

// receiveRequest takes in a request packet. false: it had no effect.
func (c *Card) receiveRequest(q *qp, p *roce.Packet) bool {
	r := &q.recv
	if r.dead {
		return false
	}
	if q.ctx.State == hw.QPStateRTR && !q.estDone {
		q.estDone = true
		c.event(hw.EventTypeCommEst, hw.ReasonNone, q.number, 0)
	}
	switch d := roce.PSNDiff(p.BTH().PSN(), r.psn); {
	case d < 0:
		q.stats.Duplicates++
		return c.duplicate(q, p)
	case d > 0:
		// One NAK until the expected PSN comes; none while the requester waits
		// for a receive, since it sends all of it again.
		if r.nakked || r.rnr {
			return false
		}
		r.nakked = true
		q.stats.SequenceErrors++
		c.nak(q, roce.NAKPSNSequenceError, 0, hw.ReasonNone)
		return false
	}
	r.nakked, r.rnr = false, false
	switch p.Opcode().Operation() {
	case roce.OpSend:
		if p.Opcode().Has(roce.ExtIETH) { // no memory windows on this card
			c.invalidRequest(q)
			return true
		}
		c.receiveSend(q, p)
	case roce.OpWrite:
		c.receiveWrite(q, p)
	case roce.OpReadRequest:
		c.receiveReadRequest(q, p)
	default:
		c.receiveAtomicRequest(q, p)
	}
	return true
}

// invalidRequest refuses a request that breaks the protocol.
func (c *Card) invalidRequest(q *qp) {
	c.nak(q, roce.NAKInvalidRequest, hw.EventTypeQPReqErr, hw.ReasonNone)
}

// accept moves on to the next PSN, and answers where that is asked for.
func (c *Card) accept(q *qp, p *roce.Packet) {
	if !q.receives() {
		return // its completion found no room: nobody was told
	}
	psn := q.recv.psn
	q.recv.psn = roce.PSNAdd(psn, 1)
	if p.BTH().AckReq() {
		c.ack(q, psn)
	}
}

// inSequence checks that a packet of a SEND or WRITE comes where it may in its
// message and has as many bytes as its place says (InfiniBand specification,
// volume 1, section 9.7.4.1.3: FIRST and MIDDLE are full, LAST is not empty).
func (q *qp) inSequence(p *roce.Packet, m message) bool {
	pos, n := p.Opcode().Position(), uint32(len(p.Payload()))
	if pos.Starts() != (q.recv.in == messageNone) || !pos.Starts() && q.recv.in != m {
		return false
	}
	switch pos {
	case roce.First, roce.Middle:
		return n == q.mtu
	case roce.Last:
		return n > 0 && n <= q.mtu
	}
	return n <= q.mtu
}

// notReady sends an RNR NAK: no receive is posted, also at the second look.
func (c *Card) notReady(q *qp) {
	q.recv.rnr = true
	c.nak(q, roce.SyndromeRNR(q.ctx.MinRNRTimer), 0, hw.ReasonNone)
}

// receiveSend places a packet of a SEND in the receive that it takes.
func (c *Card) receiveSend(q *qp, p *roce.Packet) {
	r := &q.recv
	if !q.inSequence(p, messageSend) {
		c.invalidRequest(q)
		return
	}
	pos := p.Opcode().Position()
	if pos.Starts() {
		if !c.recvAvailable(q) {
			if q.receives() {
				c.notReady(q)
			}
			return
		}
		r.wqe = c.takeRecv()
		if fault := c.fetchRecv(q, r.wqe, r.head); fault.Reason != hw.ReasonNone {
			c.failRecv(q, localStatus(fault.Reason), fault, roce.NAKRemoteOperationalError)
			return
		}
		r.in = messageSend
	}
	payload := p.Payload()
	if uint32(len(payload)) > r.wqe.cursor.Left {
		c.failRecv(q, hw.StatusLocLenErr, noSegment(hw.ReasonLength), roce.NAKInvalidRequest)
		return
	}
	if fault, ok := c.scatter(q, r.wqe.segs, hw.AccessLocalWrite, &r.wqe.cursor, payload); !ok {
		if fault.Reason == reasonHeld { // as if the packet had been lost
			if pos.Starts() {
				c.qps.recvs = append(c.qps.recvs, r.wqe)
				r.in, r.wqe = messageNone, nil
			}
			return
		}
		c.failRecv(q, localStatus(fault.Reason), fault, roce.NAKRemoteOperationalError)
		return
	}
	r.wqe.got += uint32(len(payload))
	if pos.Ends() {
		got := r.wqe.got
		c.qps.recvs = append(c.qps.recvs, r.wqe)
		r.in, r.wqe = messageNone, nil
		r.msn = (r.msn + 1) & mask24
		c.received(q, p, hw.CQEOpcodeRecv, got)
	}
	c.accept(q, p)
}

// takeRecv is takeWQE for a receive.
func (c *Card) takeRecv() *recvWQE {
	n := len(c.qps.recvs)
	if n == 0 {
		return new(recvWQE)
	}
	w := c.qps.recvs[n-1]
	c.qps.recvs = c.qps.recvs[:n-1]
	return w
}

// received consumes the oldest receive and completes it.
func (c *Card) received(q *qp, p *roce.Packet, opcode hw.CQEOpcode, bytes uint32) {
	r := &q.recv
	e := hw.CQE{QPN: q.number, WQEIndex: r.head, ByteLen: bytes, Opcode: opcode, Flags: hw.CQEFlagRecv, FaultSegment: hw.NoSegment}
	r.head++
	if imm := p.ImmDt(); imm != nil {
		e.Imm = imm.Imm()
		e.Flags |= hw.CQEFlagImm
	}
	solicited := p.BTH().SE()
	if solicited {
		e.Flags |= hw.CQEFlagSolicited
	}
	c.cqe(q.recvCQ, &e, solicited)
}

// failRecv completes the receive under way in error, and ends the connection.
func (c *Card) failRecv(q *qp, status hw.Status, fault gather.Fault, syn roce.Syndrome) {
	r := &q.recv
	e := hw.CQE{QPN: q.number, WQEIndex: r.head, Opcode: hw.CQEOpcodeRecv, Flags: hw.CQEFlagRecv | hw.CQEFlagSolicited, Status: status, Reason: fault.Reason,
		FaultSegment: uint8(fault.Segment), FaultKey: fault.Key, FaultOffset: uint64(fault.Offset)}
	r.head++
	event := hw.EventTypeQPFatal
	if syn == roce.NAKInvalidRequest {
		event = hw.EventTypeQPReqErr
	}
	c.cqe(q.recvCQ, &e, true)
	c.nak(q, syn, event, fault.Reason)
}

// receiveWrite places a packet of an RDMA WRITE. The whole range of its RETH is
// checked with the first one; then each packet has its own lookup.
func (c *Card) receiveWrite(q *qp, p *roce.Packet) {
	r := &q.recv
	if !q.inSequence(p, messageWrite) {
		c.invalidRequest(q)
		return
	}
	pos, payload := p.Opcode().Position(), p.Payload()
	if pos.Starts() {
		if !c.startWrite(q, p) {
			return
		}
		r.in = messageWrite
	}
	n := uint32(len(payload))
	if n > r.at.Left || pos.Ends() != (n == r.at.Left) {
		c.invalidRequest(q) // the RETH's length is not the data's
		return
	}
	imm := p.Opcode().Has(roce.ExtImmDt)
	if imm && !c.recvAvailable(q) {
		if q.receives() {
			if pos.Starts() {
				r.in = messageNone // it comes again with its RETH
			}
			c.notReady(q)
		}
		return
	}
	if fault, ok := c.scatter(q, r.target[:], hw.AccessRemoteWrite, &r.at, payload); !ok {
		if fault.Reason != reasonHeld {
			syn, event := responderFault(fault.Reason)
			c.nak(q, syn, event, fault.Reason)
		} else if pos.Starts() { // as if the packet had been lost
			r.in = messageNone
		}
		return
	}
	if pos.Ends() {
		r.in = messageNone
		r.msn = (r.msn + 1) & mask24
		if imm {
			c.received(q, p, hw.CQEOpcodeRecvRDMAWithImm, r.length)
		}
	}
	c.accept(q, p)
}

// startWrite checks the RETH of a WRITE. Without bytes there is nothing to check.
func (c *Card) startWrite(q *qp, p *roce.Packet) bool {
	r, reth := &q.recv, p.RETH()
	n := reth.DMALen()
	if q.ctx.Access&hw.AccessRemoteWrite == 0 || n > hw.MaxMessage {
		c.invalidRequest(q)
		return false
	}
	if !c.checkRange(q, hw.AccessRemoteWrite, reth.RKey(), reth.VA(), n) {
		return false
	}
	r.target[0] = gather.Segment{Addr: reth.VA(), Length: n, Key: reth.RKey()}
	r.at, _ = gather.Seek(r.target[:], 0)
	r.length = n
	return true
}

// checkRange looks up the whole range that a request names (G19), and refuses
// the request if this QP may not use it so.
func (c *Card) checkRange(q *qp, access hw.Access, rkey uint32, va uint64, n uint32) bool {
	reason := c.rangeReason(q, access, rkey, va, n)
	if reason != hw.ReasonNone && reason != reasonHeld {
		c.nak(q, roce.NAKRemoteAccessError, hw.EventTypeQPAccessErr, reason)
	}
	return reason == hw.ReasonNone
}

// rangeReason is why this QP may not use a range so. No bytes are always allowed.
func (c *Card) rangeReason(q *qp, access hw.Access, rkey uint32, va uint64, n uint32) hw.Reason {
	if n == 0 {
		return hw.ReasonNone
	}
	_, _, reason := c.keys.Translate(rkey, q.who(access), va, n)
	return reason
}

// receiveReadRequest accepts an RDMA READ; its response is gathered in turns.
func (c *Card) receiveReadRequest(q *qp, p *roce.Packet) {
	r, reth := &q.recv, p.RETH()
	n := reth.DMALen()
	if r.in != messageNone || q.ctx.Access&hw.AccessRemoteRead == 0 || n > hw.MaxMessage || !q.mayRead(c) {
		c.invalidRequest(q)
		return
	}
	if !c.checkRange(q, hw.AccessRemoteRead, reth.RKey(), reth.VA(), n) {
		return
	}
	r.msn = (r.msn + 1) & mask24
	psn := r.psn
	r.psn = roce.PSNAdd(psn, int32(gather.Packets(n, q.mtu)))
	c.answerRead(q, psn, reth, false)
}

// mayRead holds the responder's READs to what the card keeps of a QP. (What the
// QP's own attribute asks for, max_dest_rd_atomic, is the least that it serves.)
func (q *qp) mayRead(c *Card) bool { return q.answers.read < c.lim.RDAtomic }

// answerRead queues the response to a READ, again where it is a duplicate's.
func (c *Card) answerRead(q *qp, psn uint32, reth roce.RETH, again bool) bool {
	a := answer{kind: answerRead, again: again, psn: psn, msn: q.recv.msn, value: reth.VA(), key: reth.RKey(), length: reth.DMALen(), count: q.recv.reads}
	a.cursor = gather.Cursor{Left: a.length}
	if a.length == 0 {
		a.cursor.Segment = 1
	}
	q.recv.reads++
	if !c.owe(q, &a) {
		return false
	}
	// As much as there is room for is read now: what a request behind it does to
	// the same memory then comes after. (Without a fence the requester may not
	// rely on that: InfiniBand specification, volume 1, section 9.5, table 79.)
	for range readAhead {
		if q.answers.empty() || c.respond(q) != turnWorked {
			break
		}
	}
	return true
}

// readAhead bounds the packets that a READ may send when it is taken in.
const readAhead = 32

// receiveAtomicRequest executes an atomic. It is atomic among the operations of
// this card, which a Step does one after another.
func (c *Card) receiveAtomicRequest(q *qp, p *roce.Packet) {
	r, x := &q.recv, p.AtomicETH()
	if r.in != messageNone || q.ctx.Access&hw.AccessRemoteAtomic == 0 || x.VA()%atomicSize != 0 {
		c.invalidRequest(q)
		return
	}
	iova, _, reason := c.keys.Translate(x.RKey(), q.who(hw.AccessRemoteAtomic), x.VA(), atomicSize)
	if reason == reasonHeld {
		return
	}
	if reason != hw.ReasonNone {
		c.nak(q, roce.NAKRemoteAccessError, hw.EventTypeQPAccessErr, reason)
		return
	}
	b := c.qps.result[:]
	u := use{q.number, x.RKey()}
	reason = c.payloadRead(iova, b, u)
	was := binary.LittleEndian.Uint64(b)
	if reason == hw.ReasonNone && (p.Opcode() == roce.RCFetchAdd || was == x.Compare()) {
		now := x.SwapAdd()
		if p.Opcode() == roce.RCFetchAdd {
			now += was
		}
		binary.LittleEndian.PutUint64(b, now)
		reason = c.payloadWrite(iova, b, u)
	}
	if reason != hw.ReasonNone {
		c.nak(q, roce.NAKRemoteOperationalError, hw.EventTypeQPFatal, reason)
		return
	}
	r.msn = (r.msn + 1) & mask24
	psn := r.psn
	r.psn = roce.PSNAdd(psn, 1)
	r.save(savedAtomic{psn, was}, max(1, int(q.ctx.MaxDestRDAtomic)))
	c.answerAtomic(q, psn, was)
}

func (c *Card) answerAtomic(q *qp, psn uint32, value uint64) bool {
	return c.owe(q, &answer{kind: answerAtomic, syndrome: roce.SyndromeACK(roce.CreditInvalid), psn: psn, msn: q.recv.msn, value: value})
}

// save keeps the result of an atomic; the oldest of so many makes room.
func (r *responder) save(a savedAtomic, keep int) {
	if len(r.saved) < keep {
		r.saved = append(r.saved, a)
		return
	}
	r.next %= len(r.saved)
	r.saved[r.next] = a
	r.next++
}

// duplicate answers a request that was executed before. A SEND or WRITE is
// acknowledged again, and not placed again; a READ is executed again; an atomic
// is answered from its saved result (InfiniBand specification, volume 1, section
// 9.7.1). What cannot be answered so is dropped.
func (c *Card) duplicate(q *qp, p *roce.Packet) bool {
	r := &q.recv
	psn := p.BTH().PSN()
	switch p.Opcode().Operation() {
	case roce.OpSend, roce.OpWrite:
		c.ack(q, roce.PSNAdd(r.psn, -1))
		return true
	case roce.OpReadRequest:
		reth := p.RETH()
		n := reth.DMALen()
		if q.ctx.Access&hw.AccessRemoteRead == 0 || n > hw.MaxMessage || !q.mayRead(c) {
			return false
		}
		// Its PSNs are those it had: it may not reach past the expected one.
		if int64(roce.PSNDiff(r.psn, psn)) < int64(gather.Packets(n, q.mtu)) {
			return false
		}
		return c.rangeReason(q, hw.AccessRemoteRead, reth.RKey(), reth.VA(), n) == hw.ReasonNone && c.answerRead(q, psn, reth, true)
	}
	for i := range r.saved {
		if r.saved[i].psn == psn {
			return c.answerAtomic(q, psn, r.saved[i].value)
		}
	}
	return false
}
