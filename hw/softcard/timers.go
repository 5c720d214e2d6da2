package softcard

import "math"

// A QP has up to four times to wait for: the acknowledgement's, the RNR
// timer's, the gate's and the host gather's. Setting one is a store. The heap holds for a QP a
// time that is not later than its earliest; where that has moved on, the entry
// is put right when it comes to the top. So an acknowledgement, which moves the
// timer with each packet, touches no heap.

// nextAt is the QP's earliest time, or 0.
func (q *qp) nextAt() int64 {
	at := q.ackAt
	if q.rnrAt != 0 && (at == 0 || q.rnrAt < at) {
		at = q.rnrAt
	}
	if q.gateAt != 0 && (at == 0 || q.gateAt < at) {
		at = q.gateAt
	}
	if q.hostAt != 0 && (at == 0 || q.hostAt < at) {
		at = q.hostAt
	}
	return at
}

func (q *qp) stopTimers() { q.ackAt, q.rnrAt, q.gateAt, q.hostAt = 0, 0, 0, 0 }

// timerHeap is a binary heap by heapAt.
type timerHeap []*qp

func (h *timerHeap) clear() {
	for _, q := range *h {
		q.heapIndex = 0
	}
	clear(*h)
	*h = (*h)[:0]
}

func (h timerHeap) set(i int, q *qp) {
	h[i] = q
	q.heapIndex = i + 1
}

// fix moves the QP at i to where its heapAt belongs.
func (h timerHeap) fix(i int) {
	q := h[i]
	for i > 0 && q.heapAt < h[(i-1)/2].heapAt {
		h.set(i, h[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		k := 2*i + 1
		if k >= len(h) {
			break
		}
		if k+1 < len(h) && h[k+1].heapAt < h[k].heapAt {
			k++
		}
		if q.heapAt <= h[k].heapAt {
			break
		}
		h.set(i, h[k])
		i = k
	}
	h.set(i, q)
}

func (h *timerHeap) popTop() {
	old := *h
	top, last := old[0], len(old)-1
	top.heapIndex = 0
	moved := old[last]
	old[last] = nil
	*h = old[:last]
	if last > 0 {
		h.set(0, moved)
		h.fix(0)
	}
}

// arm makes sure that the QP is looked at by its earliest time.
func (c *Card) arm(q *qp) {
	at := q.nextAt()
	if at == 0 || q.gone {
		return
	}
	h := &c.qps.timers
	switch {
	case q.heapIndex == 0:
		q.heapAt = at
		*h = append(*h, q)
		h.fix(len(*h) - 1)
	case at < q.heapAt:
		q.heapAt = at
		h.fix(q.heapIndex - 1)
	}
}

// nextTimer is the card time in ns of the next timer, or math.MaxInt64.
func (c *Card) nextTimer() int64 {
	h := &c.qps.timers
	for len(*h) > 0 {
		q := (*h)[0]
		at := q.nextAt()
		switch {
		case at == 0 || q.gone:
			h.popTop()
		case at > q.heapAt:
			q.heapAt = at
			h.fix(0)
		default:
			return at
		}
	}
	return math.MaxInt64
}

// runTimers serves the timers that are due.
func (c *Card) runTimers() (worked bool) {
	now := c.now()
	if c.live.debug.rateIgnored { // whoever the gate holds may go
		for _, q := range c.qps.timers {
			if q.gateAt != 0 {
				q.gateAt, worked = 0, true
				c.wake(q)
			}
		}
	}
	for len(c.qps.timers) > 0 && c.nextTimer() <= now {
		q := c.qps.timers[0]
		worked = true
		if q.gateAt != 0 && q.gateAt <= now {
			q.gateAt = 0
			c.wake(q)
		}
		if q.rnrAt != 0 && q.rnrAt <= now {
			q.rnrAt = 0
			c.wake(q)
		}
		if q.ackAt != 0 && q.ackAt <= now {
			q.ackAt = 0
			c.ackTimeout(q)
		}
		if q.hostAt != 0 && q.hostAt <= now {
			q.hostAt = 0
			c.hostTimeout(q)
		}
	}
	return worked
}
