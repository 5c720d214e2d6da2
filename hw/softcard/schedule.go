package softcard

import "rnic/hw"

// The schedule is a round robin over the QPs that have something to send, one
// packet a turn, with a deficit of bytes (deficit round robin, Shreedhar and
// Varghese 1995): a QP keeps the turn while its deficit lasts, so each gets the
// same bytes, whatever its packets' size. A QP that waits for the gate, a
// fence, the read limit, an RNR timer or an acknowledgement is not in the list;
// what it waits for wakes it.

// quantum is the bytes a round gives each QP: a full packet and its headers, so
// that every QP in the list sends in every round.
const quantum = 4096 + 192

// minCost is what a turn costs that sends nothing, as a flush.
const minCost = 64

// turn is what came of a QP's turn.
type turn uint8

const (
	turnNone    turn = iota // nothing to do: leave the list
	turnWorked              // something was done, and perhaps there is more
	turnBlocked             // the wire has no room
)

// readyList is a queue of QPs, linked through them.
type readyList struct{ first, last *qp }

func (l *readyList) push(q *qp) {
	q.next = nil
	if l.last == nil {
		l.first = q
	} else {
		l.last.next = q
	}
	l.last = q
}

func (l *readyList) pop() {
	if l.first = l.first.next; l.first == nil {
		l.last = nil
	}
}

// wake gives the QP turns until one of them finds nothing to do.
func (c *Card) wake(q *qp) {
	q.woken = true
	if q.queued || q.gone {
		return
	}
	q.queued = true
	q.deficit = quantum
	c.qps.ready.push(q)
}

// transmitPending reports whether a QP waits for its turn.
func (c *Card) transmitPending() bool { return c.qps.ready.first != nil }

// transmit gives turns, at most budget of them. blocked reports that it ended
// because the wire has no room.
func (c *Card) transmit(budget int) (worked, blocked bool) {
	l := &c.qps.ready
	var first *qp // of those that wait for room
	for ; budget > 0 && l.first != nil; budget-- {
		q := l.first
		sent := q.stats.TXBytes
		t := turnNone
		q.woken = false
		if !q.gone {
			t = c.turn(q)
		}
		switch t {
		case turnNone:
			if q.woken {
				continue
			}
			l.pop()
			q.queued = false
			budget++ // it was not this QP's turn
			if q == first {
				first = nil
			}
			continue
		case turnBlocked:
			// On a cable all wait for the same room. On a switch the next one may
			// send to another port, until all have been asked.
			if blocked = true; q == first || len(c.port.links.Load().out) <= 2 {
				return worked, true
			}
			if first == nil {
				first = q
			}
			budget++
			l.pop()
			l.push(q)
			continue
		}
		worked, first = true, nil
		if q.deficit -= max(int(q.stats.TXBytes-sent), minCost); q.deficit <= 0 {
			q.deficit += quantum
			l.pop()
			l.push(q)
		}
	}
	return worked || l.first != nil && !blocked, blocked
}

// turn sends a packet of the QP: an answer that is queued or a request, each in
// its turn where it has both.
func (c *Card) turn(q *qp) turn {
	if q.ctx.State == hw.QPStateErr {
		return c.flush(q)
	}
	if q.answers.empty() {
		q.requested = true
		return c.request(q)
	}
	if !q.requested {
		q.requested = true
		if t := c.request(q); t != turnNone {
			return t
		}
	}
	q.requested = false
	return c.respond(q)
}
