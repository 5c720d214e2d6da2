package queues

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"rnic/hw"
	"rnic/hw/mmio"
)

// RQ is a receive queue: a ring of WQEs of one size, a power of two of bytes.
type RQ struct {
	ctl  []hw.RecvControl // the ring's 16-byte segments
	data []hw.DataSegment // the same

	entries  uint32
	segs     uint32 // 16-byte segments from one WQE to the next
	producer uint32 // absolute count of receives posted
	seen     uint32
	word     *uint32
	domain   *Domain

	_        [64]byte
	consumer uint32 // absolute: first receive that is the card's
}

// RQStride is log2 of the bytes of a receive WQE with so many data segments,
// at least 5.
func RQStride(segments int) uint8 {
	return uint8(max(bits.Len(uint((segments+1)*hw.WQESegment-1)), 5))
}

// NewRQ makes a receive queue of a ring of a power of two of WQEs of 2^stride
// bytes, stride 5 to 10, and of its doorbell word.
func NewRQ(ring []byte, stride uint8, word *uint32, d *Domain) (*RQ, error) {
	if stride < 5 || stride > 10 {
		return nil, fmt.Errorf("queues: receive WQE of 2^%d bytes: want 2^5 to 2^10", stride)
	}
	n := len(ring) >> stride
	if len(ring) != n<<stride || bits.OnesCount(uint(n)) != 1 || n > 1<<30 {
		return nil, fmt.Errorf("queues: receive ring of %d bytes: want a power of two of WQEs of %d", len(ring), 1<<stride)
	}
	q := &RQ{ctl: hw.SliceRecvControl(ring), data: hw.SliceDataSegment(ring), entries: uint32(n), segs: 1 << stride / hw.WQESegment, word: word, domain: d}
	if q.ctl == nil || q.data == nil {
		return nil, fmt.Errorf("queues: receive ring is not aligned to %d bytes", hw.RecvControlAlign)
	}
	return q, nil
}

// Entries is the ring's size in WQEs.
func (q *RQ) Entries() uint32 { return q.entries }

// Producer is the absolute number of the next receive.
func (q *RQ) Producer() uint32 { return q.producer }

// Consumer is the absolute number of the first receive that is the card's.
func (q *RQ) Consumer() uint32 { return atomic.LoadUint32(&q.consumer) }

// Room reports whether n more receives fit while at most limit are the card's.
func (q *RQ) Room(n, limit uint32) bool {
	if q.producer+n-q.seen <= limit {
		return true
	}
	q.seen = atomic.LoadUint32(&q.consumer)
	return q.producer+n-q.seen <= limit
}

// Release gives back every receive before the absolute number n.
func (q *RQ) Release(n uint32) { mmio.Release32(&q.consumer, n) }

// Put writes the next receive, of no more data segments than the stride has
// room for, and gives its index. The card does not look at it before Ring.
func (q *RQ) Put(sges []SGE) (index uint32) {
	index = q.producer
	at := (index & (q.entries - 1)) * q.segs
	c := &q.ctl[at]
	*c = hw.RecvControl{}
	c.Segments, c.Index = uint8(len(sges)), index
	put(q.data[at+1:at+q.segs], sges)
	q.producer++
	return index
}

// Ring hands all receives put to the card with one store.
func (q *RQ) Ring() {
	q.domain.ring(q.word, q.producer)
}

// Reset empties the queue while the card's QP is in RESET, and the doorbell
// with it.
func (q *RQ) Reset() {
	q.producer, q.seen = 0, 0
	mmio.Release32(&q.consumer, 0)
	mmio.Store32(q.word, 0)
}
