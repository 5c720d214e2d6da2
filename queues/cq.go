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
	q := &CQ{ring: hw.SliceCQE(ring), log: uint8(bits.Len(uint(n)) - 1), ci: ci, arm: arm, domain: d}
	if q.ring == nil {
		return nil, fmt.Errorf("queues: completion ring is not aligned to %d bytes", hw.CQEAlign)
	}
	return q, nil
}

// Entries is the ring's size.
func (q *CQ) Entries() uint32 { return uint32(len(q.ring)) }

// Consumer is the absolute count of CQEs taken.
func (q *CQ) Consumer() uint32 { return q.consumer }

// At is the CQE n places behind the oldest, if it is there, or nil. It is the caller's
// until Take.
func (q *CQ) At(n int) *hw.CQE {
	at := q.consumer + uint32(n)
	e := &q.ring[at&uint32(len(q.ring)-1)]
	if (mmio.Owner32(&e.Owner)^phase(at, q.log))&1 != 0 {
		return nil
	}
	return e
}

// Take takes the n oldest CQEs. Publish tells the card.
func (q *CQ) Take(n int) { q.consumer += uint32(n) }

// Ready is how many CQEs are there, at most so many.
func (q *CQ) Ready(most int) (n int) {
	for n < min(most, len(q.ring)) && q.At(n) != nil {
		n++
	}
	return n
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
	for n := range q.ring {
		e := q.At(n)
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
