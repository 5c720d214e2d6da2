package driver

import (
	"fmt"
	"slices"

	"rnic/hw"
)

// A card that cannot read the send ring of a queue pair in ERR (its DMA address faults)
// cannot tell which work requests it holds. It says from which block on it flushes none, and the driver,
// which knows them, completes them: each work request outstanding completes
// (InfiniBand specification volume 1, section 10.3.1, the Error state).

// lostRing is the part of a send queue that the driver flushes. It is under the
// lock of the send CQ.
type lostRing struct {
	from, to uint32 // blocks
	time     uint64 // of the event
}

// ringLost has the driver flush the send queue, from a block on. The card says it once, by event, and each time that
// it is asked; the first word counts. time is the event's, 0 where it was lost.
func (q *QP) ringLost(from uint32, time uint64) {
	if q.unread.Swap(true) {
		return
	}
	q.sqMu.Lock()
	if q.sendErr == nil {
		q.sendErr = q.unreadable()
	}
	to := q.sq.Producer() // nothing is posted any more
	q.sqMu.Unlock()
	c := q.init.SendCQ
	c.mu.Lock()
	if c.qps[q.n] == q {
		c.forget(q)
		c.lost = append(c.lost, q)
		q.flush = lostRing{from: from, to: to, time: time}
	}
	c.mu.Unlock()
	c.notify()
}

// unreadable is why nothing more is posted.
func (q *QP) unreadable() error {
	return q.fail("post send", fmt.Errorf("the card cannot read its send ring; bring it to RESET or close it: %w", ErrState))
}

// forget drops what is left to flush of a queue pair. The caller holds c.mu.
func (c *CQ) forget(q *QP) {
	c.lost = slices.DeleteFunc(c.lost, func(x *QP) bool { return x == q })
}

// flushLost completes what cards could not flush, once the ring is empty: what the card
// completed itself comes first. The caller holds c.mu.
func (c *CQ) flushLost(wc []WC) (n int) {
	for n < len(wc) && len(c.lost) > 0 {
		q := c.lost[0]
		n += q.flushSends(wc[n:])
		if q.flush.from == q.flush.to {
			c.forget(q)
		}
	}
	if len(c.lost) == 0 {
		c.lost = nil
	}
	return n
}

// flushSends completes sends in the card's place, as many as fit.
func (q *QP) flushSends(wc []WC) (n int) {
	takeOver(&q.posted)
	f := &q.flush
	if behind := f.from - q.sqDone; behind > q.sendMask+1 || behind > f.to-q.sqDone {
		f.from = q.sqDone // the card completed more, or its word is no place in the ring
	}
	for n < len(wc) && f.from != f.to {
		r := &q.sends[f.from&q.sendMask]
		if r.index != f.from || r.blocks == 0 { // within the one that failed first
			f.from++
			continue
		}
		wc[n] = WC{WRID: r.wrid, Status: StatusWRFlushErr, Opcode: r.op, QPN: q.n, Reason: hw.ReasonFlushed, Flags: WCFlags(hw.CQEFlagSolicited), Time: f.time, FaultSegment: -1}
		n++
		f.from += uint32(r.blocks)
		q.sqDone = f.from
	}
	q.release(q.init.SendCQ)
	return n
}
