package queues

import (
	"fmt"
	"math/bits"

	"rnic/hw"
	"rnic/hw/mmio"
)

// EQ is an event queue: a ring that the card fills before it raises the
// queue's interrupt.
type EQ struct {
	ring     []hw.EQE
	log      uint8
	consumer uint32
	word     *uint32
	domain   *Domain
}

// NewEQ makes an event queue of a zeroed ring of a power of two of EQEs, and
// of its doorbell word.
func NewEQ(ring []byte, word *uint32, d *Domain) (*EQ, error) {
	n := len(ring) / hw.EQESize
	if len(ring)%hw.EQESize != 0 || bits.OnesCount(uint(n)) != 1 || n > 1<<30 {
		return nil, fmt.Errorf("queues: event ring of %d bytes: want a power of two of entries of %d", len(ring), hw.EQESize)
	}
	q := &EQ{ring: hw.SliceEQE(ring), log: uint8(bits.Len(uint(n)) - 1), word: word, domain: d}
	if q.ring == nil {
		return nil, fmt.Errorf("queues: event ring is not aligned to %d bytes", hw.EQEAlign)
	}
	return q, nil
}

// Entries is the ring's size.
func (q *EQ) Entries() uint32 { return uint32(len(q.ring)) }

// Consumer is the absolute count of EQEs taken.
func (q *EQ) Consumer() uint32 { return q.consumer }

// Next takes the oldest EQE, if there is one. Publish tells the card.
func (q *EQ) Next(e *hw.EQE) bool {
	p := &q.ring[q.consumer&uint32(len(q.ring)-1)]
	if (mmio.Load32(&p.Owner)^phase(q.consumer, q.log))&1 != 0 {
		return false
	}
	mmio.FromDevice()
	*e = *p
	q.consumer++
	return true
}

// Publish tells the card how many EQEs are taken. A card that found the queue
// full has an overflow to report then, so a sleeping one is kicked.
func (q *EQ) Publish() {
	mmio.FromDevice()
	mmio.Store32(q.word, q.consumer)
	q.domain.Wake()
}
