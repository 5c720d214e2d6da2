package queues

import (
	"fmt"
	"math/bits"

	"rnic/hw"
	"rnic/hw/mmio"
)

// Records is a ring of records that the card writes: a trace ring (rule G22) or a
// DMA log.
type Records[T any] struct {
	ring     []T
	owner    func(*T) *uint32
	log      uint8
	consumer uint32
	word     *uint32
}

// NewTrace makes a trace ring of zeroed memory of a power of two of records,
// and of the domain page's DOMAIN_TRACE_CI word.
func NewTrace(ring []byte, word *uint32) (*Records[hw.TraceRecord], error) {
	return newRecords(ring, hw.TraceRecordSize, hw.SliceTraceRecord, func(r *hw.TraceRecord) *uint32 { return &r.Owner }, word)
}

// NewDMALog is NewTrace for a DMA log, with the domain page's DOMAIN_DMA_LOG_CI
// word.
func NewDMALog(ring []byte, word *uint32) (*Records[hw.DMARecord], error) {
	return newRecords(ring, hw.DMARecordSize, hw.SliceDMARecord, func(r *hw.DMARecord) *uint32 { return &r.Owner }, word)
}

func newRecords[T any](ring []byte, size int, view func([]byte) []T, owner func(*T) *uint32, word *uint32) (*Records[T], error) {
	n := len(ring) / size
	if len(ring)%size != 0 || bits.OnesCount(uint(n)) != 1 || n > 1<<30 {
		return nil, fmt.Errorf("queues: ring of %d bytes: want a power of two of records of %d", len(ring), size)
	}
	q := &Records[T]{ring: view(ring), owner: owner, log: uint8(bits.Len(uint(n)) - 1), word: word}
	if q.ring == nil {
		return nil, fmt.Errorf("queues: ring of records is not aligned to %d bytes", size)
	}
	return q, nil
}

// LogEntries is log2 of the ring's size.
func (q *Records[T]) LogEntries() uint8 { return q.log }

// Next takes the oldest record, if there is one. Publish tells the card.
func (q *Records[T]) Next(r *T) bool {
	p := &q.ring[q.consumer&uint32(len(q.ring)-1)]
	if (mmio.Load32(q.owner(p))^phase(q.consumer, q.log))&1 != 0 {
		return false
	}
	mmio.FromDevice()
	*r = *p
	q.consumer++
	return true
}

// Publish tells the card how many records are taken. A full ring makes the
// card count, not wait, so there is no kick.
func (q *Records[T]) Publish() {
	mmio.FromDevice()
	mmio.Store32(q.word, q.consumer)
}

// Capture is a capture ring: slots that hold a head and a frame's bytes.
type Capture struct {
	ring     []byte
	entries  uint32
	log      uint8
	stride   uint8
	consumer uint32
	word     *uint32
}

// NewCapture makes a capture ring of zeroed memory of a power of two of slots
// of 2^stride bytes, stride 7 to 14, and of the domain page's
// DOMAIN_CAPTURE_CI word.
func NewCapture(ring []byte, stride uint8, word *uint32) (*Capture, error) {
	if stride < 7 || stride > 14 {
		return nil, fmt.Errorf("queues: capture slot of 2^%d bytes: want 2^7 to 2^14", stride)
	}
	n := len(ring) >> stride
	if len(ring) != n<<stride || bits.OnesCount(uint(n)) != 1 {
		return nil, fmt.Errorf("queues: capture ring of %d bytes: want a power of two of slots of %d", len(ring), 1<<stride)
	}
	if hw.ViewCaptureRecord(ring) == nil {
		return nil, fmt.Errorf("queues: capture ring is not aligned to %d bytes", hw.CaptureRecordAlign)
	}
	return &Capture{ring: ring, entries: uint32(n), log: uint8(bits.Len(uint(n)) - 1), stride: stride, word: word}, nil
}

// LogEntries is log2 of the ring's size in slots.
func (q *Capture) LogEntries() uint8 { return q.log }

// Peek gives the oldest slot's head and the frame's bytes in the ring, if
// there is one. The bytes are the caller's until Pop.
func (q *Capture) Peek(r *hw.CaptureRecord) (frame []byte, ok bool) {
	slot := q.ring[(q.consumer&(q.entries-1))<<q.stride:][:1<<q.stride]
	p := hw.ViewCaptureRecord(slot)
	if (mmio.Load32(&p.Owner)^phase(q.consumer, q.log))&1 != 0 {
		return nil, false
	}
	mmio.FromDevice()
	*r = *p
	frame = slot[hw.CaptureHeader:]
	return frame[:min(uint64(r.Captured), uint64(len(frame)))], true
}

// Pop takes the slot that Peek gave. Publish tells the card.
func (q *Capture) Pop() { q.consumer++ }

// Publish tells the card how many slots are taken.
func (q *Capture) Publish() {
	mmio.FromDevice()
	mmio.Store32(q.word, q.consumer)
}
