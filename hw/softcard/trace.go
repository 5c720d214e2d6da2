package softcard

import (
	"math/rand/v2"

	"rnic/hw"
)

// ring is a trace or a capture ring. The client's consumer index is in the
// domain page.
type ring struct {
	ctx      hw.RingContext
	producer uint32
	consumer uint32
	lost     uint32 // since the record before

	// Sampling: the packet of this block that is reported, and how many of the
	// block have been.
	random          rand.PCG
	choice, counted uint32
}

// sampled decides whether a gathered packet is reported: one, at random, in each
// block of so many. A fixed one would see the same packet of each message.
func (q *ring) sampled() bool {
	n := q.ctx.Sample
	if n <= 1 {
		return true
	}
	if q.counted == 0 {
		q.choice = uint32(q.random.Uint64() % uint64(n))
	}
	hit := q.counted == q.choice
	q.counted = (q.counted + 1) % n
	return hit
}

// wants says whether the ring watches a QP.
func (q *ring) wants(qpn uint32) bool { return q.ctx.IOVA != 0 && (q.ctx.All != 0 || q.ctx.QPN == qpn) }

// place gives the address of the next entry, or counts it as lost.
func (c *Card) place(q *ring, doorbell uint32) (iova uint64, free bool) {
	size := uint32(1) << q.ctx.LogEntries
	if q.producer-q.consumer == size {
		q.consumer = advance(q.consumer, q.producer, c.dbLoad(doorbell))
		if q.producer-q.consumer == size {
			q.lost++
			return 0, false
		}
	}
	return q.ctx.IOVA + uint64(q.producer&(size-1))<<q.ctx.LogStride, true
}

// setRing starts or stops a ring by SET_TRACE or SET_CAPTURE.
func (c *Card) setRing(cmd *command, q *ring, minStride, maxStride uint8) result {
	var x hw.RingContext
	if r := c.mailbox(cmd, x.AsBytes()); r != ok {
		return r
	}
	switch {
	case !x.ReservedZero():
		return result{status: hw.CommandStatusReservedNotZero}
	case x.IOVA == 0:
		*q = ring{}
		return ok
	case x.LogEntries == 0 || x.LogEntries > 20 || x.LogStride < minStride || x.LogStride > maxStride:
		return param(hw.CommandSyndromeRingSize)
	case x.IOVA%4096 != 0 || wraps(x.IOVA, uint64(1)<<(x.LogEntries+x.LogStride)):
		return param(hw.CommandSyndromeRingAlign)
	case x.All > 1, x.Sample != 0 && q != &c.trc:
		return param(hw.CommandSyndromeNone)
	}
	*q = ring{ctx: x}
	q.random.Seed(c.cfg.Seed, uint64(c.now()))
	return ok
}

func (c *Card) setTrace(cmd *command) result {
	r := c.setRing(cmd, &c.trc, 6, 6)
	c.clearWord(r, hw.DomainTraceCI)
	return r
}

// clearWord zeroes the consumer index of a ring that was started.
func (c *Card) clearWord(r result, off uint32) {
	if r == ok {
		c.mem.store(off, 0)
	}
}

// traceWanted says whether steps of a QP are to be traced (rule G22).
func (c *Card) traceWanted(qpn uint32) bool { return c.trc.wants(qpn) }

// traceAll is traceWanted of steps that are no gathered packet's.
func (c *Card) traceAll(qpn uint32) bool { return c.trc.wants(qpn) && c.trc.ctx.Sample <= 1 }

// trace writes a step of a walk to the trace ring. Time, lost and owner are set
// here. It never waits: what does not fit is counted.
func (c *Card) trace(x *hw.TraceRecord) {
	q := &c.trc
	iova, free := c.place(q, hw.DomainTraceCI)
	if !free {
		c.count[cntTraceLost]++
		return
	}
	r := &c.out.trace
	*r = *x
	r.Time, r.Lost, r.Owner = uint64(c.now()), q.lost, phase(q.producer, q.ctx.LogEntries)
	if c.writeOwned(iova, r.AsBytes()) != hw.ReasonNone {
		c.trc = ring{} // its memory is gone
		return
	}
	q.lost = 0
	q.producer++
	c.count[cntTraceRecords]++
}
