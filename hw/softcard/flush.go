package softcard

import "rnic/hw"

// enterError brings the QP to ERR for the first cause r. Nothing more is sent
// or answered; what was posted is flushed, one work request a turn.
func (c *Card) enterError(q *qp, r hw.Reason, segment uint8, key uint32) {
	if q.ctx.State == hw.QPStateErr || q.ctx.State == hw.QPStateReset {
		return
	}
	q.ctx.State = hw.QPStateErr
	q.errReason, q.errSegment, q.errKey = r, segment, key
	q.answers.clear()
	c.dropHost(q)
	q.stopTimers()
	c.unload(q)
	c.watch(q)
	c.wake(q)
}

// qpError brings the QP to ERR by a cause that no completion reports.
func (c *Card) qpError(q *qp, r hw.Reason) {
	if q.ctx.State == hw.QPStateErr || q.ctx.State == hw.QPStateReset {
		return
	}
	c.enterError(q, r, hw.NoSegment, 0)
	c.event(hw.EventTypeQPFatal, r, q.number, 0)
}

// flush completes one work request of a QP in ERR: the send queue's first, then
// the receive queue's, each in order.
func (c *Card) flush(q *qp) turn {
	s := &q.send
	if s.head != s.tail {
		op := s.op(s.head)
		s.head++
		c.flushed(q, op.opcode, op.index, false)
		return turnWorked
	}
	if s.fetched != q.sqSeen {
		c.flushPosted(q)
		return turnWorked
	}
	if q.recv.head != q.rqSeen {
		index := q.recv.head
		q.recv.head++
		c.flushed(q, 0, index, true)
		return turnWorked
	}
	return turnNone
}

// flushPosted flushes the next WQE that was posted and never started. Where one
// cannot be parsed, its end is not known: the next is the next block that bears
// its own number.
func (c *Card) flushPosted(q *qp) {
	s := &q.send
	var ctl hw.ControlSegment
	if q.unread { // more was posted meanwhile
		s.fetched = q.sqSeen
		return
	}
	raw := c.qps.scratch[:hw.WQEBlock]
	if r := c.readSQ(q, s.fetched, 1, raw); r != hw.ReasonNone {
		q.unread, q.unreadFrom = true, s.fetched
		s.fetched = q.sqSeen // the driver knows what they were
		c.event(hw.EventTypeQPFatal, hw.ReasonRingRead, q.number, q.unreadFrom)
		return
	}
	copy(ctl.AsBytes(), raw)
	index, left := s.fetched, q.sqSeen-s.fetched
	blocks := (uint32(ctl.Segments) + 3) / 4
	if ctl.Index != index {
		s.fetched++
		return
	}
	if blocks == 0 || blocks > hw.WQEMaxBlocks || blocks > left {
		blocks = 1
	}
	s.fetched += blocks
	c.flushed(q, ctl.Opcode, index, false)
}

// flushed writes the completion of a work request that was not done.
func (c *Card) flushed(q *qp, o hw.Opcode, index uint32, recv bool) {
	e := hw.CQE{QPN: q.number, WQEIndex: index, Opcode: completionOpcode(o), Flags: hw.CQEFlagSolicited, Status: hw.StatusWRFlushErr,
		Reason: hw.ReasonFlushed, FaultSegment: hw.NoSegment}
	cq := q.sendCQ
	if recv {
		e.Opcode = hw.CQEOpcodeRecv
		e.Flags |= hw.CQEFlagRecv
		cq = q.recvCQ
	}
	c.cqe(cq, &e, true)
}
