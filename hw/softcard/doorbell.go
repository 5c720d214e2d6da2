package softcard

import "rnic/hw"

// A doorbell word holds a level, the absolute producer index. The card looks at
// the words of all live QPs; that stores merge loses nothing.

// pollDoorbells looks at the producer index of each send queue (and, of a QP
// that flushes, of its receive queue) and wakes those that have something new.
// A responder looks at its receive queue when it needs a receive.
func (c *Card) pollDoorbells() (worked bool) {
	for _, q := range c.qps.live {
		switch q.ctx.State {
		case hw.QPStateRTS:
			if pi := c.dbLoad(q.ctx.SQDoorbell); pi != q.sqSeen {
				worked = true
				c.sendPosted(q, pi)
			}
		case hw.QPStateErr:
			pi, ri := c.dbLoad(q.ctx.SQDoorbell), c.dbLoad(q.ctx.RQDoorbell)
			if pi != q.sqSeen || ri != q.rqSeen {
				worked = true
				c.sendPosted(q, pi)
				c.recvPosted(q, ri)
				c.wake(q)
			}
		}
	}
	return worked
}

// doorbellsPending reports whether a doorbell says something that the card has
// not seen: the last look before it sleeps.
func (c *Card) doorbellsPending() bool {
	for _, q := range c.qps.live {
		switch q.ctx.State {
		case hw.QPStateRTS:
			if c.dbLoad(q.ctx.SQDoorbell) != q.sqSeen {
				return true
			}
		case hw.QPStateErr:
			if c.dbLoad(q.ctx.SQDoorbell) != q.sqSeen || c.dbLoad(q.ctx.RQDoorbell) != q.rqSeen {
				return true
			}
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
