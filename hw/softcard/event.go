package softcard

import (
	"rnic/hw"
	"rnic/hw/mmio"
)

// eq is an event queue.
type eq struct {
	number   uint32
	ctx      hw.EQContext
	producer uint32
	consumer uint32 // as last seen, never beyond producer
	lost     uint32 // since the last EQ_OVERFLOW
}

func (q *eq) entries() uint32 { return 1 << q.ctx.LogEntries }

// word is the doorbell word at an offset of BAR DOORBELL.
func (m *sharedPages) word(off uint32) *uint32 { return &m.doorbells[off/4].Word }

// dbLoad loads the doorbell word at an offset that a context stated and that
// claimDoorbell accepted. What the word tells of, descriptors that are there or
// entries that are free, is accessed after it.
func (c *Card) dbLoad(off uint32) uint32 {
	v := mmio.Load32(c.mem.word(off))
	mmio.FromDevice()
	return v
}

// dbOwner says which queue has a doorbell page.
type dbOwner struct {
	kind   ownerKind
	number uint32
}

type ownerKind uint8

const (
	ownerNone ownerKind = iota
	ownerQP
	ownerCQ
	ownerEQ
)

// claimDoorbell gives the doorbell page of an offset to a queue. size is the
// bytes of its words there, which are size-aligned. It is false where the offset
// is unaligned, out of range, in page 0 or in another queue's page.
func (c *Card) claimDoorbell(off, size uint32, by dbOwner) bool {
	if off%size != 0 || uint64(off)+uint64(size) > hw.BARDoorbellSize {
		return false
	}
	page := off / c.mem.stride
	if page == 0 || c.owner[page] != (dbOwner{}) && c.owner[page] != by {
		return false
	}
	c.owner[page] = by
	for at := off; at < off+size; at += 4 { // of the queue that had the page before
		mmio.Store32(c.mem.word(at), 0)
	}
	return true
}

func (c *Card) releaseDoorbell(off uint32) { c.owner[off/c.mem.stride] = dbOwner{} }

// advance gives the consumer index that a client states, if it can be true: not
// behind what was seen before and not beyond the producer.
func advance(seen, producer, stated uint32) uint32 {
	if stated-seen <= producer-seen {
		return stated
	}
	return seen
}

// room says whether the queue has room, looking at the doorbell if it seems full.
func (c *Card) eqRoom(q *eq) bool {
	if q.producer-q.consumer < q.entries() {
		return true
	}
	q.consumer = advance(q.consumer, q.producer, c.dbLoad(q.ctx.Doorbell))
	return q.producer-q.consumer < q.entries()
}

// event reports an asynchronous event on the EQ that has them. Without one it is
// counted as lost.
func (c *Card) event(t hw.EventType, sub hw.Reason, object, info uint32) {
	if c.async == nil {
		c.count[cntEventsLost]++
		return
	}
	c.post(c.async, t, sub, object, info)
}

// post puts an event on an EQ and raises its vector. What does not fit is
// counted, and told by EQ_OVERFLOW when there is room again.
func (c *Card) post(q *eq, t hw.EventType, sub hw.Reason, object, info uint32) {
	if q.lost != 0 && !c.tellLost(q) || !c.eqRoom(q) {
		q.lost++
		c.count[cntEventsLost]++
		return
	}
	c.writeEQE(q, hw.EQE{Type: t, Subtype: sub, Object: object, Info: info})
}

// tellLost reports events that were lost, and is false while there is no room.
func (c *Card) tellLost(q *eq) bool {
	if !c.eqRoom(q) {
		return false
	}
	e := hw.EQE{Type: hw.EventTypeEQOverflow, Object: q.number, Info: q.lost}
	q.lost = 0
	c.writeEQE(q, e)
	return true
}

func (c *Card) writeEQE(q *eq, x hw.EQE) {
	e := &c.out.eqe
	*e = x
	e.Time = uint64(c.now())
	e.Owner = phase(q.producer, q.ctx.LogEntries)
	iova := q.ctx.IOVA + uint64(q.producer&(q.entries()-1))*hw.EQESize
	q.producer++
	if c.writeOwned(iova, e.AsBytes()) == hw.ReasonNone {
		c.count[cntEvents]++
	} else {
		c.count[cntEventsLost]++
	}
	c.interrupt(uint32(q.ctx.Vector))
}

// phase is the owner word of entry n of a ring: 1 in the first turn, then 0, 1, …
func phase(n uint32, log uint8) uint32 { return ^(n >> log) & 1 }

// pollEvents tells EQ_OVERFLOW where there is room again.
func (c *Card) pollEvents() (worked bool) {
	for _, q := range c.eqs {
		if q != nil && q.lost != 0 && c.tellLost(q) {
			worked = true
		}
	}
	return worked
}

func (c *Card) createEQ(cmd *command) result {
	n := cmd.Object
	var x hw.EQContext
	if r := c.mailbox(cmd, x.AsBytes()); r != ok {
		return r
	}
	switch {
	case n >= uint32(len(c.eqs)):
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeEQN)
	case c.eqs[n] != nil:
		return bad(hw.CommandStatusInUse, hw.CommandSyndromeEQN)
	case !x.ReservedZero():
		return result{status: hw.CommandStatusReservedNotZero}
	case x.LogEntries == 0 || uint32(x.LogEntries) > c.lim.EQLogEntries:
		return param(hw.CommandSyndromeRingSize)
	case x.IOVA%4096 != 0 || wraps(x.IOVA, hw.EQESize<<x.LogEntries):
		return param(hw.CommandSyndromeRingAlign)
	case uint32(x.Vector) >= c.lim.Vectors:
		return param(hw.CommandSyndromeVector)
	case x.Async > 1:
		return param(hw.CommandSyndromeNone)
	case x.Async == 1 && c.async != nil:
		return bad(hw.CommandStatusInUse, hw.CommandSyndromeNone)
	case !c.claimDoorbell(x.Doorbell, 4, dbOwner{ownerEQ, n}):
		return param(hw.CommandSyndromeDoorbell)
	}
	x.Producer, x.Lost = 0, 0
	q := &eq{number: n, ctx: x}
	c.eqs[n] = q
	if x.Async == 1 {
		c.async = q
	}
	return ok
}

func (c *Card) findEQ(n uint32) *eq {
	if n >= uint32(len(c.eqs)) {
		return nil
	}
	return c.eqs[n]
}

func (c *Card) destroyEQ(cmd *command) result {
	q := c.findEQ(cmd.Object)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeEQN)
	}
	for _, k := range c.liveCQ {
		if k.eq == q {
			return bad(hw.CommandStatusInUse, hw.CommandSyndromeEQN)
		}
	}
	if c.async == q {
		c.async = nil
	}
	c.releaseDoorbell(q.ctx.Doorbell)
	c.eqs[cmd.Object] = nil
	return ok
}

func (c *Card) queryEQ(cmd *command) result {
	q := c.findEQ(cmd.Object)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeEQN)
	}
	x := q.ctx
	x.Producer, x.Lost = q.producer, q.lost
	return c.answer(cmd, x.AsBytes())
}

// wraps says whether n bytes at an address run over the end of the address space.
func wraps(addr, n uint64) bool { return n != 0 && addr+(n-1) < addr }
