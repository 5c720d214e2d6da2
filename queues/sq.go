package queues

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"rnic/hw"
	"rnic/hw/mmio"
)

// SGE is one scatter-gather entry: Length bytes at the virtual address Addr of
// the region that LKey names.
type SGE struct {
	Addr         uint64
	Length, LKey uint32
}

const segsPerBlock = hw.WQEBlock / hw.WQESegment

// Blocks is the blocks of a WQE of so many segments.
func Blocks(segments uint32) uint32 { return (segments + segsPerBlock - 1) / segsPerBlock }

// SQ is a send queue: a ring of 64-byte blocks, in which a WQE takes 1 to 17
// and may wrap at the ring's end.
//
// A WQE is built in order: Control, then what its opcode needs (Remote,
// Atomic), then Data or Inline, then Commit. Control, Remote and
// Atomic give the place of the next segment: a queue's field would be stored and
// loaded between them. Room says beforehand whether it fits. Ring hands everything
// committed to the card.
type SQ struct {
	// The ring's 16-byte segments, as each kind of segment.
	ctl    []hw.ControlSegment
	remote []hw.RemoteSegment
	atomic []hw.AtomicSegment
	data   []hw.DataSegment
	ring   []byte

	blocks   uint32 // of the ring, a power of two
	mask     uint32 // segments of the ring - 1
	producer uint32 // absolute, in blocks
	seen     uint32 // consumer, as last loaded
	word     *uint32
	domain   *Domain

	_        [64]byte // the consumer is stored by whoever polls
	consumer uint32   // absolute, in blocks: first block that is the card's
}

// NewSQ makes a send queue of a ring, whose length is a power of two of at
// least 32 blocks of 64 bytes, and of its doorbell word.
func NewSQ(ring []byte, word *uint32, d *Domain) (*SQ, error) {
	n := len(ring) / hw.WQEBlock
	if len(ring)%hw.WQEBlock != 0 || n < hw.SQMinBlocks || bits.OnesCount(uint(n)) != 1 || n > 1<<30 {
		return nil, fmt.Errorf("queues: send ring of %d bytes: want a power of two of at least %d blocks of %d", len(ring), hw.SQMinBlocks, hw.WQEBlock)
	}
	q := &SQ{
		ctl: hw.SliceControlSegment(ring), remote: hw.SliceRemoteSegment(ring), atomic: hw.SliceAtomicSegment(ring), data: hw.SliceDataSegment(ring),
		ring: ring, blocks: uint32(n), mask: uint32(n*segsPerBlock - 1), word: word, domain: d,
	}
	if q.ctl == nil || q.data == nil {
		return nil, fmt.Errorf("queues: send ring is not aligned to %d bytes", hw.ControlSegmentAlign)
	}
	return q, nil
}

// Blocks is the ring's size in blocks.
func (q *SQ) Blocks() uint32 { return q.blocks }

// Producer is the absolute number of the next WQE's first block.
func (q *SQ) Producer() uint32 { return q.producer }

// Consumer is the absolute number of the first block that is still the card's.
func (q *SQ) Consumer() uint32 { return atomic.LoadUint32(&q.consumer) }

// Fits reports whether a WQE of so many blocks fits into what was free when Room
// last looked.
func (q *SQ) Fits(blocks uint32) bool { return q.producer+blocks-q.seen <= q.blocks }

// Room reports whether a WQE of so many blocks fits.
func (q *SQ) Room(blocks uint32) bool {
	if q.Fits(blocks) {
		return true
	}
	q.seen = atomic.LoadUint32(&q.consumer)
	return q.Fits(blocks)
}

// Release gives back every block before the absolute block n, after the
// completion of the WQE that ends there. It may be called by another holder
// than the one that posts.
func (q *SQ) Release(n uint32) { mmio.Release32(&q.consumer, n) }

// Control begins a WQE of so many 16-byte segments, this one included.
// inline is the number of its payload bytes, 0 unless flags has WQEFlagInline.
func (q *SQ) Control(op hw.Opcode, flags hw.WQEFlag, segments uint8, imm uint32, inline uint16) (next uint32) {
	index := q.producer
	at := index * segsPerBlock
	c := &q.ctl[at&q.mask]
	*c = hw.ControlSegment{} // then field by field: a literal would be built aside and copied
	c.Opcode, c.Flags, c.Segments, c.Imm, c.Index, c.InlineLength = op, flags, segments, imm, index, inline
	return at + 1
}

// Remote adds the far end's address, for RDMA and atomics.
func (q *SQ) Remote(at uint32, addr uint64, rkey uint32) (next uint32) {
	r := &q.remote[at&q.mask]
	*r = hw.RemoteSegment{}
	r.Addr, r.RKey = addr, rkey
	return at + 1
}

// Atomic adds an atomic's operands.
func (q *SQ) Atomic(at uint32, swapAdd, compare uint64) (next uint32) {
	a := &q.atomic[at&q.mask]
	a.SwapAdd, a.Compare = swapAdd, compare
	return at + 1
}

// Data adds the data segments. It is compiled in place, for the few that most
// requests have.
func (q *SQ) Data(at uint32, sges []SGE) {
	for i := range sges {
		s, d := &sges[i], &q.data[at&q.mask] // a WQE may wrap at the ring's end
		d.Addr, d.Length, d.LKey = s.Addr, s.Length, s.LKey
		at++
	}
}

// DataList is Data for a long list: a third faster at 63 segments.
func (q *SQ) DataList(at uint32, sges []SGE) {
	first := int(at & q.mask)
	if room := len(q.data) - first; room < len(sges) { // the WQE wraps at the ring's end
		put(q.data[first:], sges[:room])
		sges, first = sges[room:], 0
	}
	put(q.data[first:], sges)
}

func put(dst []hw.DataSegment, sges []SGE) {
	dst = dst[:len(sges)]
	for i := range sges {
		s := &sges[i]
		d := &dst[i]
		d.Addr, d.Length, d.LKey = s.Addr, s.Length, s.LKey
	}
}

// Inline adds the payload itself (rule G3), the pieces of bufs one behind the
// other, filled with zeros to whole segments.
func (q *SQ) Inline(at uint32, bufs [][]byte) {
	size := uint32(len(q.ring))
	off := at * hw.WQESegment
	for _, b := range bufs {
		n := copy(q.ring[off&(size-1):], b)
		if n < len(b) { // the WQE wraps at the ring's end
			copy(q.ring, b[n:])
		}
		off += uint32(len(b))
	}
	for ; off%hw.WQESegment != 0; off++ {
		q.ring[off&(size-1)] = 0
	}
}

// Commit ends the WQE, of so many blocks, and gives its index, the absolute number of
// its first block. The card does not look at it before Ring.
func (q *SQ) Commit(blocks uint32) (index uint32) {
	index = q.producer
	q.producer = index + blocks
	return index
}

// Copy copies so many blocks of the ring from the absolute block index on: a WQE
// that the card has not completed.
func (q *SQ) Copy(index, blocks uint32, dst []byte) []byte {
	dst = dst[:blocks*hw.WQEBlock]
	at := int(index&(q.blocks-1)) * hw.WQEBlock
	n := copy(dst, q.ring[at:])
	copy(dst[n:], q.ring)
	return dst
}

// Ring hands all committed WQEs to the card with one store.
func (q *SQ) Ring() {
	q.domain.ring(q.word, q.producer)
}

// Reset empties the queue while the card's QP is in RESET, and the doorbell
// with it.
func (q *SQ) Reset() {
	q.producer, q.seen = 0, 0
	mmio.Release32(&q.consumer, 0)
	mmio.Store32(q.word, 0)
}
