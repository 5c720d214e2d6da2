package queues

import (
	"fmt"
	"math/bits"

	"rnic/hw"
	"rnic/hw/mmio"
)

// GatherSlot is the bytes of a slot of the host gather's request ring.
const GatherSlot = 2048

// Gather is the rings of the host gather (HostGatherContext of docs/card.md):
// packets that the card asks for, and the answers.
type Gather struct {
	requests []byte
	replies  []hw.HostGatherReply
	log      uint8
	consumer uint32
	producer uint32
	ci, pi   *uint32
	domain   *Domain
}

// NewGather makes the rings of zeroed memory, as many slots of each, a power of
// two, and of the domain page's words DOMAIN_GATHER_CI and
// DOMAIN_GATHER_REPLY_PI.
func NewGather(requests, replies []byte, ci, pi *uint32, d *Domain) (*Gather, error) {
	n := len(requests) / GatherSlot
	if len(requests) != n*GatherSlot || len(replies) != n*hw.HostGatherReplySize || bits.OnesCount(uint(n)) != 1 || n > 1<<12 {
		return nil, fmt.Errorf("queues: host gather with rings of %d and %d bytes: want a power of two of slots of %d and as many of %d",
			len(requests), len(replies), GatherSlot, hw.HostGatherReplySize)
	}
	g := &Gather{requests: requests, replies: hw.SliceHostGatherReply(replies), log: uint8(bits.Len(uint(n)) - 1), ci: ci, pi: pi, domain: d}
	if g.replies == nil || hw.ViewHostGatherRequest(requests) == nil {
		return nil, fmt.Errorf("queues: host gather's rings are not aligned to %d bytes", hw.HostGatherReplyAlign)
	}
	return g, nil
}

// LogEntries is log2 of the slots of each ring.
func (g *Gather) LogEntries() uint8 { return g.log }

// Next takes the oldest request, if there is one, and its data segments, as many
// as it says and list has room for: each byte is read once.
func (g *Gather) Next(r *hw.HostGatherRequest, list *[hw.MaxSegments]hw.DataSegment) (segments []hw.DataSegment, ok bool) {
	slot := g.requests[int(g.consumer&(1<<g.log-1))*GatherSlot:][:GatherSlot]
	p := hw.ViewHostGatherRequest(slot)
	if (mmio.Load32(&p.Owner)^phase(g.consumer, g.log))&1 != 0 {
		return nil, false
	}
	mmio.FromDevice()
	*r = *p
	segments = list[:min(int(r.Segments), len(list))]
	copy(segments, hw.SliceDataSegment(slot[hw.HostGatherRequestSize:][:len(segments)*hw.DataSegmentSize]))
	g.consumer++
	mmio.FromDevice()
	mmio.Store32(g.ci, g.consumer)
	return segments, true
}

// Reply answers a request, whose staging slot was filled before. The owner word
// of r is set here.
func (g *Gather) Reply(r *hw.HostGatherReply) {
	p := &g.replies[g.producer&(1<<g.log-1)]
	r.Owner = phase(g.producer, g.log)
	*p = *r
	g.producer++
	mmio.ToDevice() // payload and answer before the index
	mmio.Store32(g.pi, g.producer)
	g.domain.Wake()
}
