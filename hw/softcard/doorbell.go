package softcard

import (
	"rnic/hw"
	"rnic/hw/mmio"
)

// A doorbell word holds a level, the absolute producer index. The card looks at
// the words of the QPs that may have something to send or to flush; that stores
// merge loses nothing. They stand side by side in a table, since a card that goes
// through a thousand contexts for them does nothing else.

// bell is what is watched of a QP.
type bell struct {
	sq, rq         *uint32 // producer indices; rq nil: a responder looks at it when it needs a receive
	sqSeen, rqSeen uint32
	q              *qp
}

// watch follows the QP's state: the send queue's word is watched in RTS and ERR,
// the receive queue's in ERR, where receives are flushed.
func (c *Card) watch(q *qp) {
	t := &c.qps.bells
	state := q.ctx.State
	if q.gone || state != hw.QPStateRTS && state != hw.QPStateErr {
		if q.bell == 0 {
			return
		}
		last := len(*t) - 1
		moved := (*t)[last]
		moved.q.bell = q.bell
		(*t)[q.bell-1] = moved
		(*t)[last] = bell{}
		*t = (*t)[:last]
		q.bell = 0
		return
	}
	if q.bell == 0 {
		*t = append(*t, bell{q: q})
		q.bell = len(*t)
	}
	b := &(*t)[q.bell-1]
	b.sq, b.sqSeen = c.mem.word(q.ctx.SQDoorbell), q.sqSeen
	b.rq, b.rqSeen = nil, q.rqSeen
	if state == hw.QPStateErr {
		b.rq = c.mem.word(q.ctx.RQDoorbell)
	}
}

// rung reports whether the words say something that the card has not seen.
func (b *bell) rung() bool {
	return mmio.Load32(b.sq) != b.sqSeen || b.rq != nil && mmio.Load32(b.rq) != b.rqSeen
}

// A look costs a load from another page for each QP, of a line that the driver's CPU may hold. So a
// Step that has something to do anyway looks at a part of the words, and the next one goes on from
// there: in at most bellParts Steps each has been looked at. And words are loaded so many at a time
// before one is compared: no load then waits for what another leads to.
const (
	bellParts  = 8
	leastBells = 64
	bellBatch  = 16
)

// pollDoorbells takes over what the words say and wakes the QPs that it is news to. It looks at
// all of them, or at the next part.
func (c *Card) pollDoorbells(all bool) (worked bool) {
	s := &c.qps
	n := len(s.bells)
	if !all {
		n = min(n, max(leastBells, (n+bellParts-1)/bellParts))
	}
	var said [bellBatch]uint32
	for n > 0 {
		if s.bell >= len(s.bells) {
			s.bell = 0
		}
		batch := s.bells[s.bell:][:min(n, bellBatch, len(s.bells)-s.bell)]
		for i := range batch {
			said[i] = mmio.Load32(batch[i].sq)
		}
		mmio.FromDevice() // the words before what they tell of
		for i := range batch {
			b := &batch[i] // it stays there: no QP is made or destroyed here, nor leaves RTS but for ERR
			if said[i] == b.sqSeen && (b.rq == nil || mmio.Load32(b.rq) == b.rqSeen) {
				continue
			}
			worked = true
			q := b.q
			c.sendPosted(q, said[i])
			if q.ctx.State == hw.QPStateErr {
				c.recvPosted(q, c.dbLoad(q.ctx.RQDoorbell))
			}
			c.watch(q)
		}
		s.bell += len(batch)
		n -= len(batch)
	}
	return worked
}

// doorbellsPending reports whether a doorbell says something that the card has
// not seen: the last look before it sleeps.
func (c *Card) doorbellsPending() bool {
	for i := range c.qps.bells {
		if c.qps.bells[i].rung() {
			return true
		}
	}
	return false
}

// sendPosted takes over a new producer index of the send queue. One that runs
// back or past the ring is nonsense: the QP goes to ERR. What it would have
// posted is not known and is not flushed.
func (c *Card) sendPosted(q *qp, pi uint32) {
	was := q.sqSeen
	q.sqSeen = pi
	if oldest := q.send.consumer(); pi-oldest > q.sqMask+1 || pi-was > q.sqMask+1 {
		q.send.fetched = pi
		c.qpError(q, hw.ReasonMalformed)
		return
	}
	c.wake(q)
}

// recvPosted is sendPosted for the receive queue.
func (c *Card) recvPosted(q *qp, pi uint32) {
	was := q.rqSeen
	q.rqSeen = pi
	if pi-q.recv.head > q.rqMask+1 || pi-was > q.rqMask+1 {
		q.recv.head = pi
		c.qpError(q, hw.ReasonMalformed)
		return
	}
	if q.ctx.State == hw.QPStateErr {
		c.wake(q)
	}
}

// recvAvailable reports whether a receive is posted. Only when none is known it
// looks at the producer index again.
func (c *Card) recvAvailable(q *qp) bool {
	if q.recv.head == q.rqSeen {
		if pi := c.dbLoad(q.ctx.RQDoorbell); pi != q.rqSeen {
			c.recvPosted(q, pi)
		}
	}
	return q.recv.head != q.rqSeen && q.ctx.State != hw.QPStateErr
}
