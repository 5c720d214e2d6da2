package softcard

import "rnic/hw"

// cq is a completion queue.
type cq struct {
	number   uint32
	ctx      hw.CQContext
	eq       *eq
	producer uint32
	consumer uint32 // as last seen, never beyond producer
	users    uint32 // queues that complete here; the QP commands count
	live     int    // its place in Card.liveCQ

	arm       hw.CQArmWord // as last seen
	waiting   bool         // armed, and not fired yet
	solicited uint32       // producer index behind the newest CQE that fires a solicited-only arm
	hasSol    bool
}

func (q *cq) entries() uint32 { return 1 << q.ctx.LogEntries }

// cqRoom says whether a CQ has room for one more CQE.
func (c *Card) cqRoom(q *cq) bool { return c.cqFree(q, 1) }

// cqFree says whether a CQ has room for n more CQEs.
func (c *Card) cqFree(q *cq, n uint32) bool {
	if q.ctx.Overflowed != 0 {
		return false
	}
	if q.producer-q.consumer+n <= q.entries() {
		return true
	}
	q.consumer = advance(q.consumer, q.producer, c.dbLoad(q.ctx.Doorbell+hw.CQDoorbellCI))
	return q.producer-q.consumer+n <= q.entries()
}

// cqe writes a completion: its time and owner are set here. Its payload has been
// written before. solicited says that it fires an arm for solicited events;
// errors always do. A CQE that finds no room is the CQ's end: never is one
// overwritten that the client has not taken.
func (c *Card) cqe(q *cq, x *hw.CQE, solicited bool) {
	if !c.cqRoom(q) {
		c.overflow(q)
		return
	}
	e := &c.out.cqe
	*e = *x
	e.Time = uint64(c.now())
	e.Owner = phase(q.producer, q.ctx.LogEntries)
	iova := q.ctx.IOVA + uint64(q.producer&(q.entries()-1))*hw.CQESize
	if c.writeOwned(iova, e.AsBytes()) != hw.ReasonNone {
		c.overflow(q) // the client cannot see it: nothing more may complete here
		return
	}
	q.producer++
	c.count[cntCQEs]++
	if solicited || e.Status != hw.StatusSuccess {
		q.solicited, q.hasSol = q.producer, true
	}
	if q.waiting {
		c.fire(q)
	}
}

// overflow ends a CQ: an asynchronous event, and its QPs go to ERR.
func (c *Card) overflow(q *cq) {
	if q.ctx.Overflowed != 0 {
		return
	}
	q.ctx.Overflowed = 1
	c.count[cntCQOverflows]++
	c.event(hw.EventTypeCQError, hw.ReasonCQOverflow, q.number, 0)
	c.cqFailed(q)
}

// pollArms looks at the arm words of all CQs.
func (c *Card) pollArms() (worked bool) {
	for _, q := range c.liveCQ {
		w := hw.CQArmWord(c.dbLoad(q.ctx.Doorbell + hw.CQDoorbellArm))
		if w == q.arm {
			continue
		}
		worked = true
		fresh := w.Sequence() != q.arm.Sequence() || !q.arm.Armed()
		q.arm = w
		if w.Armed() && (fresh || q.waiting) {
			q.waiting = true
			c.fire(q)
		} else if !w.Armed() {
			q.waiting = false
		}
	}
	return worked
}

// fire sends the completion event of an armed CQ if a CQE at or after the arm's
// consumer index is there, once for each sequence number.
func (c *Card) fire(q *cq) {
	last := q.producer
	if q.arm.SolicitedOnly() {
		if last = q.solicited; !q.hasSol {
			return
		}
	}
	// The CQEs before last are there. One of them is at or after ci if ci is
	// less, in the 24 bits that the arm word holds.
	if ahead := (last - uint32(q.arm.CI())) & 0xffffff; ahead == 0 || ahead >= 1<<23 {
		return
	}
	q.waiting = false
	c.post(q.eq, hw.EventTypeCompletion, hw.ReasonNone, q.number, 0)
}

func (c *Card) findCQ(n uint32) *cq {
	if n >= uint32(len(c.cqs)) {
		return nil
	}
	return c.cqs[n]
}

func (c *Card) createCQ(cmd *command) result {
	n := cmd.Object
	var x hw.CQContext
	if r := c.mailbox(cmd, x.AsBytes()); r != ok {
		return r
	}
	switch {
	case n >= uint32(len(c.cqs)):
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeCQN)
	case c.cqs[n] != nil:
		return bad(hw.CommandStatusInUse, hw.CommandSyndromeCQN)
	case !x.ReservedZero():
		return result{status: hw.CommandStatusReservedNotZero}
	case x.LogEntries == 0 || uint32(x.LogEntries) > c.lim.CQLogEntries:
		return param(hw.CommandSyndromeRingSize)
	case x.IOVA%4096 != 0 || wraps(x.IOVA, hw.CQESize<<x.LogEntries):
		return param(hw.CommandSyndromeRingAlign)
	case c.findEQ(x.EQN) == nil:
		return param(hw.CommandSyndromeEQN)
	case !c.claimDoorbell(x.Doorbell, 8, dbOwner{ownerCQ, n}):
		return param(hw.CommandSyndromeDoorbell)
	}
	x.Overflowed, x.Producer, x.Consumer, x.Users = 0, 0, 0, 0
	q := &cq{number: n, ctx: x, eq: c.eqs[x.EQN], live: len(c.liveCQ)}
	c.cqs[n] = q
	c.liveCQ = append(c.liveCQ, q)
	return ok
}

func (c *Card) destroyCQ(cmd *command) result {
	q := c.findCQ(cmd.Object)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeCQN)
	}
	if q.users != 0 {
		return bad(hw.CommandStatusInUse, hw.CommandSyndromeCQN)
	}
	last := c.liveCQ[len(c.liveCQ)-1]
	last.live = q.live
	c.liveCQ[q.live] = last
	c.liveCQ[len(c.liveCQ)-1] = nil
	c.liveCQ = c.liveCQ[:len(c.liveCQ)-1]
	c.releaseDoorbell(q.ctx.Doorbell)
	c.cqs[cmd.Object] = nil
	return ok
}

func (c *Card) queryCQ(cmd *command) result {
	q := c.findCQ(cmd.Object)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeCQN)
	}
	q.consumer = advance(q.consumer, q.producer, c.dbLoad(q.ctx.Doorbell+hw.CQDoorbellCI))
	x := q.ctx
	x.Producer, x.Consumer, x.Users = q.producer, q.consumer, q.users
	return c.answer(cmd, x.AsBytes())
}
