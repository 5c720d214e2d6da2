package queues

import (
	"fmt"
	"math/bits"

	"rnic/hw"
	"rnic/hw/mmio"
)

// CQ is a completion queue: a ring that the card fills.
type CQ struct {
	ring     []hw.CQE
	log      uint8
	sequence uint8
	consumer uint32 // absolute count of CQEs taken
	owned    uint32 // phase of the entry at consumer
	ci, arm  *uint32
	domain   *Domain
}

// NewCQ makes a completion queue of a zeroed ring of a power of two of CQEs,
// and of its doorbell words (CQ_DOORBELL_CI, CQ_DOORBELL_ARM).
func NewCQ(ring []byte, ci, arm *uint32, d *Domain) (*CQ, error) {
	n := len(ring) / hw.CQESize
	if len(ring)%hw.CQESize != 0 || bits.OnesCount(uint(n)) != 1 || n > 1<<23 {
		return nil, fmt.Errorf("queues: completion ring of %d bytes: want a power of two of entries of %d", len(ring), hw.CQESize)
	}
	q := &CQ{ring: hw.SliceCQE(ring), log: uint8(bits.Len(uint(n)) - 1), owned: phase(0, 0), ci: ci, arm: arm, domain: d}
	if q.ring == nil {
		return nil, fmt.Errorf("queues: completion ring is not aligned to %d bytes", hw.CQEAlign)
	}
	return q, nil
}

// Entries is the ring's size.
func (q *CQ) Entries() uint32 { return uint32(len(q.ring)) }

// Consumer is the absolute count of CQEs taken.
func (q *CQ) Consumer() uint32 { return q.consumer }

// at is the entry with absolute number n, if the card has written it.
func (q *CQ) at(n uint32) *hw.CQE {
	e := &q.ring[n&uint32(len(q.ring)-1)]
	if (mmio.Owner32(&e.Owner)^phase(n, q.log))&1 != 0 {
		return nil
	}
	return e
}

// Peek is the oldest CQE that is there, or nil. It is the caller's until Pop.
func (q *CQ) Peek() *hw.CQE {
	e := &q.ring[q.consumer&uint32(len(q.ring)-1)]
	if (mmio.Owner32(&e.Owner)^q.owned)&1 != 0 {
		return nil
	}
	return e
}

// Ready is how many CQEs are there, at most so many.
func (q *CQ) Ready(most int) (n int) {
	for n < min(most, len(q.ring)) && q.at(q.consumer+uint32(n)) != nil {
		n++
	}
	return n
}

// Pop takes the CQE that Peek gave. Publish tells the card.
func (q *CQ) Pop() {
	if q.consumer++; q.consumer&uint32(len(q.ring)-1) == 0 {
		q.owned ^= 1
	}
}

// Publish tells the card how many CQEs are taken, so that it may write more.
// The card looks at this when it writes one and sleeps on nothing for its
// sake, so there is no kick. The barrier keeps the store behind the loads of
// what was taken.
func (q *CQ) Publish() { mmio.Consumed32(q.ci, q.consumer) }

// Arm asks for one event when a CQE is there at or after those taken; with
// solicitedOnly, a solicited one or an error. The caller looks at the ring
// again before it sleeps.
func (q *CQ) Arm(solicitedOnly bool) {
	q.sequence++
	w := hw.CQArmWord(0).WithCI(q.consumer).WithSequence(q.sequence).WithSolicitedOnly(solicitedOnly).WithArmed(true)
	mmio.ToDevice() // the consumer index first
	mmio.Store32(q.arm, uint32(w))
	if q.domain.Sleep == nil {
		mmio.StoreLoad() // the look at the ring that follows must not overtake it
		return
	}
	q.domain.Wake() // holds the same barrier
}

// Purge drops the CQEs of a QP that are in the ring; the card writes no more
// of them. A dropped one stays in its place, with QP number 0, which no QP has.
func (q *CQ) Purge(qpn uint32) (dropped int) {
	for n := q.consumer; n-q.consumer < uint32(len(q.ring)); n++ {
		e := q.at(n)
		if e == nil {
			break
		}
		if e.QPN == qpn {
			e.QPN = 0
			dropped++
		}
	}
	return dropped
}
