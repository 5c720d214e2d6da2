package queues

import (
	"fmt"
	"math/bits"

	"rnic/hw"
	"rnic/hw/mmio"
)

// Trace is a trace ring (rule G22): records that the card writes as it walks.
type Trace struct {
	ring     []hw.TraceRecord
	log      uint8
	consumer uint32
	word     *uint32
}

// NewTrace makes a trace ring of zeroed memory of a power of two of records,
// and of the domain page's DOMAIN_TRACE_CI word.
func NewTrace(ring []byte, word *uint32) (*Trace, error) {
	n := len(ring) / hw.TraceRecordSize
	if len(ring)%hw.TraceRecordSize != 0 || bits.OnesCount(uint(n)) != 1 || n > 1<<30 {
		return nil, fmt.Errorf("queues: trace ring of %d bytes: want a power of two of records of %d", len(ring), hw.TraceRecordSize)
	}
	q := &Trace{ring: hw.SliceTraceRecord(ring), log: uint8(bits.Len(uint(n)) - 1), word: word}
	if q.ring == nil {
		return nil, fmt.Errorf("queues: trace ring is not aligned to %d bytes", hw.TraceRecordAlign)
	}
	return q, nil
}

// LogEntries is log2 of the ring's size.
func (q *Trace) LogEntries() uint8 { return q.log }

// Next takes the oldest record, if there is one. Publish tells the card.
func (q *Trace) Next(r *hw.TraceRecord) bool {
	p := &q.ring[q.consumer&uint32(len(q.ring)-1)]
	if (mmio.Load32(&p.Owner)^phase(q.consumer, q.log))&1 != 0 {
		return false
	}
	mmio.FromDevice()
	*r = *p
	q.consumer++
	return true
}

// Publish tells the card how many records are taken. A full ring makes the
// card count, not wait, so there is no kick.
func (q *Trace) Publish() {
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
