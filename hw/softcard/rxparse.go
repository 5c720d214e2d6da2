package softcard

import (
	"rnic/hw"
	"rnic/hw/roce"
)

// receive takes in frames that have arrived, at most budget of them.
func (c *Card) receive(budget int) (worked bool) {
	for ; budget > 0; budget-- {
		f := c.rxNext()
		if f == nil {
			break
		}
		worked = true
		c.qps.promise = f.answers
		qpn, taken := c.parse(f)
		if l := c.qps.promise; l != nil {
			c.answerReturn(l) // nothing was answered
			c.qps.promise = nil
		}
		c.rxDone(f, qpn, !taken)
	}
	return worked
}

// parse checks a frame and hands it to the QP that it is for. A frame that
// anything is wrong with is dropped and counted: taken is false.
func (c *Card) parse(f *frame) (qpn uint32, taken bool) {
	p := &c.qps.pkt
	if err := roce.Parse(f.bytes(), p); err != nil {
		if err == roce.ErrICRC {
			c.count[cntRXDropICRC]++
		} else {
			c.count[cntRXDropMalformed]++
		}
		return 0, false
	}
	if p.Ethernet().Dst() != c.net.ctx.MAC || !c.net.addressed(p) {
		c.count[cntRXDropAddress]++
		return 0, false
	}
	bth := p.BTH()
	q := c.qps.table.find(bth.DestQP())
	if q == nil || !q.receives() || p.Opcode().Transport() != roce.RC {
		c.count[cntRXDropQP]++
		return 0, false
	}
	if !q.flow.Answers(p) {
		c.count[cntRXDropAddress]++
		return q.number, false
	}
	if !pkeyMatch(bth.PKey(), q.pkey) {
		c.count[cntRXDropPKey]++
		return q.number, false
	}
	q.stats.RXPackets++
	q.stats.RXBytes += uint64(f.end - f.start)
	if p.Opcode().Operation().Request() {
		return q.number, c.receiveRequest(q, p)
	}
	if !c.receiveResponse(q, p) {
		c.count[cntRXDropStale]++
		return q.number, false
	}
	return q.number, true
}

// receives reports whether the QP's state takes packets in.
func (q *qp) receives() bool {
	return q.ctx.State == hw.QPStateRTR || q.ctx.State == hw.QPStateRTS || q.ctx.State == hw.QPStateSQD
}

// pkeyMatch compares P_Keys: the same partition, and one of the two a full
// member (InfiniBand specification, volume 1, section 10.9.3).
func pkeyMatch(a, b uint16) bool {
	return a&0x7fff == b&0x7fff && a&0x7fff != 0 && (a|b)&0x8000 != 0
}
