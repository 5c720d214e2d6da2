package softcard

import (
	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/mmio"
)

// Host gather: a card whose engine is switched off, or that has none, has the
// host gather the packets of SENDs and WRITEs. A packet that has passed the gate
// is put on the request ring, and its QP leaves the schedule; the host walks the
// segments, fills the staging slot that the request names, and answers on the
// reply ring, which wakes the QP. The card then reads the slot, one contiguous
// piece, and builds the frame. It believes nothing of an answer that it can tell
// itself: bytes and cursor must be those of the packet, a fault must lie in the
// message.
//
// A QP has one packet at the host at a time. What it no longer wants (it went to
// ERR, or sends again from an earlier PSN) is given up, but the host may still
// write to the slot: a slot is free again when its answer is there, not before.

const (
	// reasonAsked is no reason of the contract: the packet is at the host, and its
	// QP is woken by the answer.
	reasonAsked hw.Reason = 0xfe

	gatherSlotBytes  = 2048 // of the request ring
	maxGatherLogSize = 12
)

// hostGather is the card's side of the rings.
type hostGather struct {
	ctx      hw.HostGatherContext // RequestIOVA 0: there are none
	producer uint32               // requests written
	consumer uint32               // taken by the host, as last seen
	replies  uint32               // answers taken
	slots    []gatherSlot         // the staging slots
	free     []uint32             // their numbers
	waiters  []*qp                // that wait for a slot
	waiting  int                  // QPs that wait for a slot or an answer
	broken   bool                 // the host does not keep to the rings; they are dead

	request  hw.HostGatherRequest
	segments [hw.MaxSegments * hw.WQESegment]byte
	reply    hw.HostGatherReply
}

// gatherSlot is a staging slot.
type gatherSlot struct {
	token uint32
	asked bool // an answer is owed
	q     *qp  // who waits for it; nil: nobody any more
}

// hostStage is how far the packet of a QP has come.
type hostStage uint8

const (
	hostIdle   hostStage = iota
	hostQueued           // waits for a slot
	hostAsked            // waits for the answer
	hostDone             // the answer is there, and the slot is the QP's
)

// hostPacket is the packet that a QP has at the host.
type hostPacket struct {
	stage  hostStage
	slot   uint32
	traced bool
	reply  hw.HostGatherReply
}

func (g *hostGather) on() bool { return g.ctx.RequestIOVA != 0 }

// hostGathers decides whether the host gathers a packet: payload of this side's
// own segments. A READ response is one range, which the card reads itself.
func (c *Card) hostGathers(o *outgoing, at *gather.Cursor) bool {
	return (c.hosted.on() || c.cfg.Engine == hw.EngineNone) && o.op != gather.ReadResponse && o.flags&hw.TraceFlagInline == 0 && at.Left != 0
}

// setHostGather is SET_HOST_GATHER. What is at the host is asked for anew where it
// is wanted still.
func (c *Card) setHostGather(cmd *command) result {
	var x hw.HostGatherContext
	if r := c.mailbox(cmd, x.AsBytes()); r != ok {
		return r
	}
	n := uint64(1) << (x.LogEntries & 31)
	switch {
	case !x.ReservedZero():
		return result{status: hw.CommandStatusReservedNotZero}
	case x.RequestIOVA == 0:
		x = hw.HostGatherContext{}
		n = 0
	case x.LogEntries == 0 || x.LogEntries > maxGatherLogSize || x.StagingLogStride > 16 || 1<<x.StagingLogStride < mtuBytes(c.lim.MaxMTU):
		return param(hw.CommandSyndromeRingSize)
	case x.RequestIOVA%ringAlign != 0 || x.ReplyIOVA%ringAlign != 0 || x.StagingIOVA%ringAlign != 0 ||
		wraps(x.RequestIOVA, n*gatherSlotBytes) || wraps(x.ReplyIOVA, n*hw.HostGatherReplySize) || wraps(x.StagingIOVA, n<<x.StagingLogStride):
		return param(hw.CommandSyndromeRingAlign)
	case uint32(x.Vector) >= c.lim.Vectors:
		return param(hw.CommandSyndromeVector)
	}
	c.hosted = hostGather{ctx: x, slots: make([]gatherSlot, n), free: make([]uint32, 0, n)}
	for i := range uint32(n) {
		c.hosted.free = append(c.hosted.free, uint32(n)-1-i)
	}
	c.mem.store(hw.DomainGatherCI, 0)
	c.mem.store(hw.DomainGatherReplyPI, 0)
	for _, q := range c.qps.live {
		q.hostListed = false
		if q.host.stage != hostIdle {
			q.host, q.hostAt = hostPacket{}, 0
			c.wake(q)
		}
	}
	return ok
}

// askHost puts the packet at the cursor on the request ring, unless it is there.
// The QP is woken when there is an answer or, without a free slot, one slot is
// free again; hostTimeout ends both waits. refused: there is nobody to ask.
func (c *Card) askHost(q *qp, o *outgoing, at *gather.Cursor) (refused bool) {
	g, h := &c.hosted, &q.host
	if h.stage == hostAsked {
		return false
	}
	if !g.on() || g.broken {
		return true
	}
	if h.stage == hostIdle {
		g.waiting++
		q.hostAt = c.now() + int64(c.lim.CompletionTimeout)*1000
		c.arm(q)
	}
	h.stage = hostQueued
	size := uint32(len(g.slots))
	if g.producer-g.consumer == size {
		g.consumer = advance(g.consumer, g.producer, c.dbLoad(hw.DomainGatherCI))
	}
	if len(g.free) == 0 || g.producer-g.consumer == size {
		if !q.hostListed {
			q.hostListed = true
			g.waiters = append(g.waiters, q)
		}
		return false
	}
	h.slot = g.free[len(g.free)-1]
	s := &g.slots[h.slot]
	s.token += size // the slot's number stays in its low bits
	s.token = s.token&^(size-1) | h.slot
	g.request = hw.HostGatherRequest{
		QPN: q.number, PD: q.ctx.PD, WQEIndex: o.index, Packet: o.packet, Bytes: min(q.mtu, at.Left),
		CursorSegment: uint8(at.Segment), CursorOffset: at.Offset, CursorLeft: at.Left,
		Segments: uint8(len(o.segs)), Slot: h.slot, Token: s.token, Owner: phase(g.producer, g.ctx.LogEntries),
	}
	list := g.segments[:len(o.segs)*hw.WQESegment]
	for i, x := range o.segs {
		b := list[i*hw.WQESegment:]
		le.PutUint64(b, x.Addr)
		le.PutUint32(b[8:], x.Length)
		le.PutUint32(b[12:], x.Key)
	}
	iova := g.ctx.RequestIOVA + uint64(g.producer&(size-1))*gatherSlotBytes
	if c.dmaWrite(iova+hw.HostGatherRequestSize, list) != hw.ReasonNone || c.writeOwned(iova, g.request.AsBytes()) != hw.ReasonNone {
		c.breakHost()
		return false
	}
	g.free = g.free[:len(g.free)-1]
	s.asked, s.q = true, q
	h.stage = hostAsked
	g.producer++
	c.interrupt(uint32(g.ctx.Vector))
	return false
}

// pollHost takes the answers that are there. A producer index or an entry that
// cannot be ends the rings: whoever waits fails.
func (c *Card) pollHost() (worked bool) {
	g := &c.hosted
	if !c.hostAnswered() {
		return false
	}
	pi := c.dbLoad(hw.DomainGatherReplyPI)
	if pi-g.replies > g.producer-g.replies {
		c.breakHost()
		return true
	}
	mmio.FromDevice() // the index before the entries
	mask := uint32(len(g.slots)) - 1
	for g.replies != pi {
		r := &g.reply
		if c.dmaRead(g.ctx.ReplyIOVA+uint64(g.replies&mask)*hw.HostGatherReplySize, r.AsBytes()) != hw.ReasonNone ||
			r.Owner != phase(g.replies, g.ctx.LogEntries) {
			c.breakHost()
			return true
		}
		g.replies++
		s := &g.slots[r.Token&mask]
		if !s.asked || s.token != r.Token {
			c.breakHost()
			return true
		}
		s.asked = false
		q := s.q
		if s.q = nil; q == nil {
			c.freeSlot(r.Token & mask)
			continue
		}
		q.host.stage, q.host.reply = hostDone, *r
		c.hostEnded(q)
		c.wake(q)
	}
	return true
}

// hostAnswered reports whether the reply ring's index has moved.
func (c *Card) hostAnswered() bool {
	return c.hosted.on() && !c.hosted.broken && c.dbLoad(hw.DomainGatherReplyPI) != c.hosted.replies
}

// hostEnded ends the QP's wait.
func (c *Card) hostEnded(q *qp) {
	c.hosted.waiting--
	q.hostAt = 0
}

// freeSlot gives a slot back and lets those try again who wait for one, in their
// order.
func (c *Card) freeSlot(n uint32) {
	g := &c.hosted
	g.free = append(g.free, n)
	for _, q := range g.waiters {
		q.hostListed = false
		if q.host.stage == hostQueued {
			c.wake(q)
		}
	}
	clear(g.waiters)
	g.waiters = g.waiters[:0]
}

// dropHost gives up the packet that the QP has at the host.
func (c *Card) dropHost(q *qp) {
	h := &q.host
	switch h.stage {
	case hostIdle:
		return
	case hostQueued: // the list of waiters drops it when it is next gone through
		c.hostEnded(q)
	case hostAsked:
		c.hosted.slots[h.slot].q = nil
		c.hostEnded(q)
	case hostDone:
		if !c.hosted.broken {
			c.freeSlot(h.slot)
		}
	}
	q.host = hostPacket{}
}

// breakHost ends the rings, until they are set anew. The packets at the host fail.
func (c *Card) breakHost() {
	g := &c.hosted
	g.broken = true
	g.waiters = nil
	for _, q := range c.qps.live {
		q.hostListed = false
		if q.host.stage == hostQueued || q.host.stage == hostAsked {
			c.hostEnded(q)
			q.host = hostPacket{}
			c.wake(q) // it asks again, and is refused
		}
	}
}

// hostTimeout is the end of a QP's wait: the request at the host fails.
func (c *Card) hostTimeout(q *qp) {
	c.dropHost(q)
	s := &q.send
	if s.wqe != nil && s.cur != s.tail {
		op := s.op(s.cur)
		c.count[cntGatherFaults]++
		if c.traceWanted(q.number) {
			rec := hw.TraceRecord{QPN: q.number, WQEIndex: op.index, Packet: s.packet, PSN: s.psn, Opcode: op.opcode,
				Kind: hw.TraceKindFault, Segment: hw.NoSegment, Reason: hw.ReasonHostGather}
			setCursor(&rec, s.cursor)
			c.trace(&rec)
		}
		c.failLocal(q, op, noSegment(hw.ReasonHostGather))
	}
}

// takeHost takes the host's answer for the packet at the cursor, with its payload
// from the staging slot.
func (c *Card) takeHost(q *qp, o *outgoing, at *gather.Cursor, payload []byte) (n int, fault gather.Fault, ok bool) {
	h, r := &q.host, &q.host.reply
	refused := noSegment(hw.ReasonHostGather)
	fault, ok = refused, false
	want := min(q.mtu, at.Left)
	switch {
	case !r.ReservedZero():
	case r.Reason != hw.ReasonNone:
		if r.Bytes == 0 && int(r.FaultSegment) < len(o.segs) && r.FaultOffset <= o.segs[r.FaultSegment].Length && hostReason(r.Reason) {
			fault = gather.Fault{Segment: int(r.FaultSegment), Offset: r.FaultOffset, Key: o.segs[r.FaultSegment].Key, Reason: r.Reason}
		}
	default:
		after, valid := gather.Seek(o.segs, messageLength(o.segs)-at.Left+want)
		if !valid || r.Bytes != want || after != (gather.Cursor{Segment: int(r.CursorSegment), Offset: r.CursorOffset, Left: r.CursorLeft}) {
			break
		}
		q.stats.Lookups += uint64(r.Lookups)
		q.stats.PayloadReads++
		if q.gateAt != 0 {
			q.stats.HeldReads++
		}
		if reason := c.payloadRead(c.hosted.ctx.StagingIOVA+uint64(h.slot)<<c.hosted.ctx.StagingLogStride, payload[:want], use{qpn: q.number}); reason != hw.ReasonNone {
			fault = noSegment(reason)
			break
		}
		*at, fault, ok, n = after, gather.Fault{}, true, int(want)
	}
	c.dropHost(q)
	return n, fault, ok
}

// hostReason tells the faults of a walk from what a host may not say.
func hostReason(r hw.Reason) bool {
	switch r {
	case hw.ReasonKeyIndex, hw.ReasonKeyTag, hw.ReasonPD, hw.ReasonAccess, hw.ReasonBounds, hw.ReasonDMARead:
		return true
	}
	return false
}

func messageLength(segs []gather.Segment) uint32 {
	c, _, _ := gather.Start(segs)
	return c.Left
}
