package softcard

import (
	"encoding/binary"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// receiveResponse takes in what the far end answers to a request. false: it fits
// no request in flight and is dropped.
func (c *Card) receiveResponse(q *qp, p *roce.Packet) bool {
	s := &q.send
	if q.ctx.State != hw.QPStateRTS && q.ctx.State != hw.QPStateSQD {
		return false
	}
	psn := p.BTH().PSN()
	// Only PSNs from the oldest not acknowledged to the last one sent are.
	if (psn-s.una)&roce.PSNMask >= (s.max-s.una)&roce.PSNMask {
		return false
	}
	switch p.Opcode().Operation() {
	case roce.OpReadResponse:
		return c.receiveRead(q, p, psn)
	case roce.OpAtomicAcknowledge:
		return c.receiveAtomic(q, p, psn)
	}
	switch syn := p.AETH().Syndrome(); syn.Kind() {
	case roce.ACK:
		c.count[cntACKsReceived]++
		c.acknowledge(q, psn)
		c.retire(q)
	case roce.RNRNAK:
		c.count[cntRNRNAKsReceived]++
		q.stats.RNRNAKs++
		c.receiveRNR(q, psn, syn)
	case roce.NAK:
		c.count[cntNAKsReceived]++
		c.receiveNAK(q, psn, syn)
	default:
		return false
	}
	return true
}

// acknowledge takes all PSNs up to psn as acknowledged. READs and atomics are
// acknowledged by their response alone: an ACK for a later PSN says that it was
// lost, and it is asked for again (InfiniBand specification, volume 1, section
// 9.7.5.2.8, implied NAK).
func (c *Card) acknowledge(q *qp, psn uint32) {
	s := &q.send
	una := roce.PSNAdd(psn, 1)
	missed := false
	for n := s.head; n != s.tail; n++ {
		op := s.op(n)
		if op.state != opStarted && op.state != opDone || roce.PSNDiff(psn, op.psn) < 0 {
			break
		}
		if op.state == opStarted && isRead(op.opcode) {
			una, missed = roce.PSNAdd(op.psn, int32(op.got)), true
			break
		}
		if roce.PSNLess(psn, op.last()) {
			break
		}
		op.state = opDone
	}
	c.progress(q, una)
	if missed {
		c.impliedNAK(q)
	}
}

// progress moves the oldest PSN that is not acknowledged on to una.
func (c *Card) progress(q *qp, una uint32) {
	s := &q.send
	by := (una - s.una) & roce.PSNMask
	if by == 0 {
		return
	}
	behind := (s.psn-s.una)&roce.PSNMask < by
	s.una = una
	s.retries, s.rnrRetries, s.implied = q.ctx.RetryCnt, q.ctx.RNRRetry, false
	if s.asking = s.asking && roce.PSNDiff(s.asked, una) >= 0; s.asking && q.rnrAt == 0 {
		c.startAckTimer(q)
	} else {
		q.ackAt = 0
	}
	if behind { // packets that were to be sent again have arrived
		c.rewind(q, una)
	}
	c.wake(q)
}

// rewind makes psn the next PSN to send, and cur the work request that has it.
func (c *Card) rewind(q *qp, psn uint32) {
	c.dropHost(q)
	s := &q.send
	s.psn = psn
	c.unload(q)
	for s.cur = s.head; s.cur != s.tail; s.cur++ {
		op := s.op(s.cur)
		if op.state == opFetched || op.state == opFailed ||
			op.state == opStarted && (psn-op.psn)&roce.PSNMask < op.packets {
			return
		}
	}
}

// restart sends again from the oldest PSN that is not acknowledged, unless the
// retries are used up: then the oldest work request fails.
func (c *Card) restart(q *qp, f failure) {
	s := &q.send
	if s.retries == 0 {
		c.fail(q, s.op(s.head), f)
		return
	}
	s.retries--
	c.rewind(q, s.una)
	c.wake(q)
}

// ackTimeout is the end of the transport timer: an answer has stayed out.
func (c *Card) ackTimeout(q *qp) {
	s := &q.send
	if s.head == s.tail || q.rnrAt != 0 {
		return
	}
	c.count[cntTimeouts]++
	s.asking, s.implied = false, false
	c.restart(q, failure{status: hw.StatusRetryExcErr, fault: noSegment(hw.ReasonTimeout)})
}

// impliedNAK asks for responses again of which one was missed, once.
func (c *Card) impliedNAK(q *qp) {
	s := &q.send
	if s.implied || s.psn == s.una {
		return
	}
	s.implied = true
	c.restart(q, failure{status: hw.StatusRetryExcErr, fault: noSegment(hw.ReasonTimeout)})
}

// receiveRNR waits for the receiver as long as it asks for, and then sends the
// request that was refused again, from its oldest packet that is not
// acknowledged. (Only the last packet of a WRITE with immediate can be refused
// when others came before it; soft-RoCE sends the whole WRITE again, too.)
func (c *Card) receiveRNR(q *qp, psn uint32, syn roce.Syndrome) {
	s := &q.send
	op := s.started(psn)
	if q.rnrAt != 0 || op == nil {
		return
	}
	if roce.PSNLess(s.una, op.psn) {
		c.acknowledgeBefore(q, op.psn)
	}
	if s.head == s.tail || s.op(s.head) != op || op.state != opStarted {
		return
	}
	if q.ctx.RNRRetry != 7 {
		if s.rnrRetries == 0 {
			c.fail(q, op, failure{status: hw.StatusRNRRetryExcErr, fault: noSegment(hw.ReasonRNR), syndrome: syn})
			return
		}
		s.rnrRetries--
	}
	s.asking = false
	q.ackAt = 0
	q.rnrAt = c.now() + int64(roce.RNRTimer(syn.Value()))
	c.arm(q)
	c.rewind(q, s.una)
}

// started is the work request in flight that has the PSN, nil if none has.
func (s *requester) started(psn uint32) *sendOp {
	for n := s.head; n != s.tail; n++ {
		if op := s.op(n); op.state == opStarted && (psn-op.psn)&roce.PSNMask < op.packets {
			return op
		}
	}
	return nil
}

// acknowledgeBefore takes all PSNs before psn, which a NAK acknowledges.
func (c *Card) acknowledgeBefore(q *qp, psn uint32) {
	if psn != q.send.una {
		c.acknowledge(q, roce.PSNAdd(psn, -1))
		c.retire(q)
	}
}

// receiveNAK sends again after a sequence error, and ends the request, and with
// it the connection, after any other.
func (c *Card) receiveNAK(q *qp, psn uint32, syn roce.Syndrome) {
	s := &q.send
	if syn == roce.NAKPSNSequenceError && s.psn == s.una && s.psn != s.max {
		return // the packets are about to be sent again: this NAK is of the same loss
	}
	c.acknowledgeBefore(q, psn)
	if q.ctx.State == hw.QPStateErr {
		return
	}
	if syn == roce.NAKPSNSequenceError {
		if s.una == psn && s.psn != psn && q.rnrAt == 0 {
			c.restart(q, failure{status: hw.StatusRetryExcErr, fault: noSegment(hw.ReasonRemoteNAK), syndrome: syn})
		}
		return
	}
	status := hw.StatusRemOpErr
	switch syn {
	case roce.NAKInvalidRequest:
		status = hw.StatusRemInvReqErr
	case roce.NAKRemoteAccessError:
		status = hw.StatusRemAccessErr
	}
	if op := s.started(psn); op != nil {
		c.fail(q, op, failure{status: status, fault: noSegment(hw.ReasonRemoteNAK), syndrome: syn})
	}
}

// oldestRead is the oldest READ or atomic in flight, nil if there is none.
func (s *requester) oldestRead() (op *sendOp, n uint32) {
	for n = s.head; n != s.tail; n++ {
		if op = s.op(n); op.state == opStarted && isRead(op.opcode) {
			return op, n
		}
		if op.state == opFetched || op.state == opFailed {
			break
		}
	}
	return nil, 0
}

// expected reports whether a response with that PSN is the next one of op, the
// oldest READ or atomic. It acknowledges all that was sent before it. A later one
// says that one was lost.
func (c *Card) expected(q *qp, op *sendOp, psn uint32) (yes, stale bool) {
	if op == nil {
		return false, true
	}
	next := roce.PSNAdd(op.psn, int32(op.got))
	switch d := roce.PSNDiff(psn, next); {
	case d < 0:
		return false, true
	case d > 0:
		c.acknowledge(q, psn)
		c.retire(q)
		return false, false
	}
	if next != q.send.una {
		c.acknowledge(q, roce.PSNAdd(next, -1))
		c.retire(q)
	}
	return q.ctx.State != hw.QPStateErr, false
}

// receiveRead places a packet of a READ response.
func (c *Card) receiveRead(q *qp, p *roce.Packet, psn uint32) bool {
	s := &q.send
	op, n := s.oldestRead()
	if yes, stale := c.expected(q, op, psn); !yes {
		return !stale
	}
	payload := p.Payload()
	left := op.length - op.got*q.mtu
	lastOne := op.got+1 == op.packets
	if op.opcode != hw.OpcodeRDMARead || p.Opcode().Position().Ends() != lastOne || uint32(len(payload)) != min(left, q.mtu) {
		c.fail(q, op, failure{status: hw.StatusBadRespErr, fault: noSegment(hw.ReasonBadResponse)})
		return true
	}
	if !c.openSink(q, op, n) {
		return true
	}
	if fault, ok := c.scatter(q, s.sinkSegs, hw.AccessLocalWrite, &s.sinkAt, payload); !ok {
		if fault.Reason == reasonHeld {
			return false
		}
		c.failLocal(q, op, fault)
		return true
	}
	op.got++
	if lastOne {
		c.responded(q, op)
	}
	c.progress(q, roce.PSNAdd(psn, 1))
	c.retire(q)
	return true
}

// receiveAtomic places the result of an atomic.
func (c *Card) receiveAtomic(q *qp, p *roce.Packet, psn uint32) bool {
	s := &q.send
	op, n := s.oldestRead()
	if yes, stale := c.expected(q, op, psn); !yes {
		return !stale
	}
	if !isAtomic(op.opcode) {
		c.fail(q, op, failure{status: hw.StatusBadRespErr, fault: noSegment(hw.ReasonBadResponse)})
		return true
	}
	if !c.openSink(q, op, n) {
		return true
	}
	binary.LittleEndian.PutUint64(c.qps.result[:], p.AtomicAckETH().OrigRemoteData())
	if fault, ok := c.scatter(q, s.sinkSegs, hw.AccessLocalWrite, &s.sinkAt, c.qps.result[:]); !ok {
		if fault.Reason == reasonHeld {
			return false
		}
		c.failLocal(q, op, fault)
		return true
	}
	op.got++
	c.responded(q, op)
	c.progress(q, roce.PSNAdd(psn, 1))
	c.retire(q)
	return true
}

// responded ends a READ or atomic whose response is placed.
func (c *Card) responded(q *qp, op *sendOp) {
	op.state = opDone
	q.send.reads--
	q.send.sinkLoaded = false
}

// openSink makes the data segments of work request n those that responses are
// placed in. They are in its WQE, which is fetched again.
func (c *Card) openSink(q *qp, op *sendOp, n uint32) bool {
	s := &q.send
	if s.sinkLoaded && s.sink == n {
		return true
	}
	w := &c.qps.again
	if !c.fetchAgain(q, op, w) {
		return false
	}
	s.sink, s.sinkLoaded = n, true
	s.sinkSegs = append(s.sinkSegs[:0], w.segs...)
	s.sinkAt, _ = gather.Seek(s.sinkSegs, op.got*q.mtu)
	return true
}
