package main

// Where the soft card's data plane keeps the rules.
const (
	card        = "./hw/softcard"
	requesterGo = "hw/softcard/requester.go"
	responseGo  = "hw/softcard/response.go"
	responderGo = "hw/softcard/responder.go"
	answerGo    = "hw/softcard/answer.go"
	gateGo      = "hw/softcard/gate.go"
	flushGo     = "hw/softcard/flush.go"
	wqeGo       = "hw/softcard/wqe.go"
	cardWalkGo  = "hw/softcard/gather.go"
	txbuildGo   = "hw/softcard/txbuild.go"
	keyCacheGo  = "hw/softcard/keycache.go"
	keyTableGo  = "hw/softcard/keytable.go"
	traceGo     = "hw/softcard/trace.go"
)

func init() { mutants = append(mutants, cardMutants...) }

// cardMutants are defects of the soft card, where the rules meet queues and wire.
var cardMutants = []mutant{
	{rule: "G02", what: "a READ request looks its segments up before it leaves", file: requesterGo, pkg: card, test: "TestG02_",
		old: "	size := q.flow.FrameLen(h.Opcode, 0)\n", new: "	c.keys.Translate(w.segs[0].Key, q.who(0), w.segs[0].Addr, 1)\n	size := q.flow.FrameLen(h.Opcode, 0)\n"},
	{rule: "G03", what: "an inline payload is gathered from the segments of an older WQE", file: cardWalkGo, pkg: card, test: "TestG03_",
		old: "	case o.flags&hw.TraceFlagInline != 0:", new: "	case o.flags&hw.TraceFlagInline != 0 && at.Left == 0:"},
	{rule: "G11", what: "a SEND whose first lookup is held is refused when it comes again", file: responderGo, pkg: card, test: "TestG11_HeldFillIsALostPacket",
		old: "				r.in, r.wqe = messageNone, nil\n			}\n			return\n", new: "			}\n			return\n"},
	{rule: "G11", what: "a fence leaves the cached copy", file: keyCacheGo, pkg: card, test: "TestG11_",
		old: "	k.cache.Invalidate(index)\n", new: ""},
	{rule: "G11", what: "a fence lets a fill under way become an entry", file: keyCacheGo, pkg: card, test: "TestG11_",
		old: "	k.cache.Invalidate(index)\n", new: "	if _, held := k.cache.Peek(index); held {\n		k.cache.Invalidate(index)\n	}\n"},
	{rule: "G11", what: "a fence is answered and not done", file: keyTableGo, pkg: card, test: "TestG11_",
		old: "	c.keys.fence(cmd.Object)\n	c.count[cntKeyFences]++", new: "	c.count[cntKeyFences]++"},
	{rule: "G11", what: "the card's own change of a key leaves a copy", file: keyTableGo, pkg: card, test: "TestG11_",
		old: "	c.mem.setEntry(cmd.Object, &e)\n	c.keys.fence(cmd.Object)", new: "	c.mem.setEntry(cmd.Object, &e)"},
	{rule: "G11", what: "hits are not counted", file: keyCacheGo, pkg: card, test: "TestG11_",
		old: "		c.count[cntKeyCacheHits]++\n", new: ""},
	{rule: "G13", what: "an RDMA WRITE's last packet does not ask", file: requesterGo, pkg: card, test: "TestG13_",
		old: "h.AckReq = c.ackReq(kind, s.packet, op.packets)", new: "h.AckReq = !write && c.ackReq(kind, s.packet, op.packets)"},
	{rule: "G13", what: "the interval counts from the packet before", file: txbuildGo, pkg: card, test: "TestG13_",
		old: "return gather.AckReq(op, true, i, n, c.live.debug.ackReqInterval)", new: "return gather.AckReq(op, true, i, n, 0) || c.live.debug.ackReqInterval != 0 && i != 0 && i%c.live.debug.ackReqInterval == 0"},
	{rule: "G13", what: "a READ response asks for an acknowledgement", file: answerGo, pkg: card, test: "TestG13_",
		old: "h.Opcode, h.SE, h.AckReq, h.PSN = responseOpcode(a.packet, n), false, false, a.psn", new: "h.Opcode, h.SE, h.AckReq, h.PSN = responseOpcode(a.packet, n), false, a.packet+1 == n, a.psn"},
	{rule: "G13", what: "an AckReq in mid-message is not answered", file: responderGo, pkg: card, test: "TestG13_",
		old: "if p.BTH().AckReq() {", new: "if p.BTH().AckReq() && q.recv.in == messageNone {"},
	{rule: "G14", what: "a header bit tells that there were many buffers", file: requesterGo, pkg: card, test: "TestG14_",
		old: "	n, fault, ok := c.gatherPacket(q, &o, &s.cursor, f)", new: "	if s.cursor.Segment < len(w.segs) && len(w.segs) > 3 {\n		h.SE = true\n	}\n	n, fault, ok := c.gatherPacket(q, &o, &s.cursor, f)"},
	{rule: "G15", what: "the gate comes after the gather", file: requesterGo, pkg: card, test: "TestG15_",
		old: "	if q.host.stage != hostAsked && !c.gate(q, size) {\n",
		new: "	before := s.cursor\n	if c.gatherPacket(q, &outgoing{op: kind, segs: w.segs, inline: w.inline, flags: c.sendFlags(q, op, last, h.AckReq)}, &before, f); q.host.stage != hostAsked && !c.gate(q, size) {\n"},
	{rule: "G15", what: "a held QP keeps its turns", file: gateGo, pkg: card, test: "TestG15_",
		old: "	c.arm(q)\n	c.count[cntGateHolds]++", new: "	c.arm(q)\n	q.gateAt = 0\n	c.wake(q)\n	c.count[cntGateHolds]++"},
	{rule: "G16", what: "headers are not counted", file: requesterGo, pkg: card, test: "TestG16_",
		old: "	c.gateTake(q, size)\n	c.build(q, f, n)", new: "	c.gateTake(q, n)\n	c.build(q, f, n)"},
	{rule: "G16", what: "what is sent again is free", file: requesterGo, pkg: card, test: "TestG16_",
		old: "	c.gateTake(q, size)\n	c.build(q, f, n)", new: "	if s.psn == s.max {\n		c.gateTake(q, size)\n	}\n	c.build(q, f, n)"},
	{rule: "G16", what: "a READ request is free", file: requesterGo, pkg: card, test: "TestG16_",
		old: "	c.gateTake(q, size)\n	o := outgoing{index", new: "	o := outgoing{index"},
	{rule: "G16", what: "the bucket grows over its burst", file: gateGo, pkg: card, test: "TestG16_",
		old: "hi != 0 || carry != 0 || sum > full", new: "hi != 0 || carry != 0 || sum > 2*full"},
	{rule: "G16", what: "a burst below one packet is taken", file: gateGo, pkg: card, test: "TestG16_",
		old: "in.Rate != 0 && in.Burst < c.leastBurst(i)", new: "in.Rate != 0 && in.Burst < c.leastBurst(i)-64"},
	{rule: "G16", what: "a held QP answers no READ", file: answerGo, pkg: card, test: "TestG16_",
		old: "	a := q.answers.first()\n	if a.kind", new: "	a := q.answers.first()\n	if q.gateAt != 0 {\n		c.answerReturn(f.link)\n		return turnBlocked\n	}\n	if a.kind"},
	{rule: "G17", what: "a packet that failed takes a PSN", file: requesterGo, pkg: card, test: "TestG17_",
		old: "		c.failLocal(q, op, fault)\n		return turnNone\n	}\n	c.gateTake(q, size)", new: "		s.max++\n		c.failLocal(q, op, fault)\n		return turnNone\n	}\n	c.gateTake(q, size)"},
	{rule: "G17", what: "what was gathered before the fault is sent", file: requesterGo, pkg: card, test: "TestG17_",
		old: "		c.failLocal(q, op, fault)\n		return turnNone\n	}\n	c.gateTake(q, size)",
		new: "		c.build(q, f, 100)\n		c.send(f, q.number)\n		c.failLocal(q, op, fault)\n		return turnNone\n	}\n	c.gateTake(q, size)"},
	{rule: "G18", what: "the failing request completes before the ones in flight", file: requesterGo, pkg: card, test: "TestG18_",
		old: "		default:\n			c.drained(q)\n			return\n		}", new: "		default:\n			if s.failed {\n				op.state = opFailed\n				continue\n			}\n			c.drained(q)\n			return\n		}"},
	{rule: "G18", what: "a failing request that is not signaled completes silently", file: requesterGo, pkg: card, test: "TestG18_",
		old: "			c.cqe(q.sendCQ, &e, true)\n", new: "			if op.flags&hw.WQEFlagSignaled != 0 {\n				c.cqe(q.sendCQ, &e, true)\n			}\n"},
	{rule: "G18", what: "a DMA fault is a protection error", file: wqeGo, pkg: card, test: "TestG18_",
		old: "hw.ReasonAccess, hw.ReasonBounds:\n		return hw.StatusLocProtErr", new: "hw.ReasonAccess, hw.ReasonBounds, hw.ReasonDMARead:\n		return hw.StatusLocProtErr"},
	{rule: "G18", what: "the segment is not named", file: requesterGo, pkg: card, test: "TestG18_",
		old: "uint8(f.fault.Segment), f.fault.Key, uint64(f.fault.Offset)", new: "uint8(hw.NoSegment), f.fault.Key, uint64(f.fault.Offset)"},
	{rule: "G18", what: "receives are not flushed", file: flushGo, pkg: card, test: "TestG18_",
		old: "if q.recv.head != q.rqSeen {", new: "if q.recv.head != q.rqSeen && false {"},
	{rule: "G18", what: "a WQE with a reserved byte is taken", file: wqeGo, pkg: card, test: "TestG18_",
		old: "if !ctl.ReservedZero() || !ctl.Flags.Valid()", new: "if !ctl.Flags.Valid()"},
	{rule: "G18", what: "a WQE of another index is taken", file: wqeGo, pkg: card, test: "TestG18_",
		old: " || ctl.Index != index {\n		return malformed", new: " {\n		return malformed"},
	{rule: "G19", what: "a READ is accepted by its first byte", file: responderGo, pkg: card, test: "TestG19_",
		old: "c.keys.Translate(rkey, q.who(access), va, n)", new: "c.keys.Translate(rkey, q.who(access), va, 1)"},
	{rule: "G19", what: "a key that is gone in mid-response is an operational error", file: answerGo, pkg: card, test: "TestG19_",
		old: "case hw.ReasonKeyIndex, hw.ReasonKeyTag,", new: "case hw.ReasonKeyTag,"},
	{rule: "G19", what: "data follows after the NAK", file: answerGo, pkg: card, test: "TestG19_",
		old: "		q.answers.pop()\n		c.sendAnswer(q, &x, f)\n		return turnWorked\n	}\n	c.build(q, f, size)",
		new: "		x.event = 0\n		c.sendAnswer(q, &x, f)\n		a.cursor.Left, a.packet = 0, n-1\n		return turnWorked\n	}\n	c.build(q, f, size)"},
	{rule: "G20", what: "a fault ends the card's turn for all", file: requesterGo, pkg: card, test: "TestG20_",
		old: "	c.unload(q)\n	c.retire(q)\n}", new: "	c.unload(q)\n	c.retire(q)\n	for _, o := range c.qps.live {\n		c.enterError(o, f.fault.Reason, 0, 0)\n	}\n}"},
	{rule: "G22", what: "a full trace ring is overwritten", file: traceGo, pkg: card, test: "TestG22_",
		old: "		if q.producer-q.consumer == size {\n			q.lost++", new: "		if q.producer-q.consumer == size+1 {\n			q.lost++"},
	{rule: "G22", what: "records that were lost are not told", file: traceGo, pkg: card, test: "TestG22_",
		old: "r.Time, r.Lost, r.Owner = uint64(c.now()), q.lost,", new: "r.Time, r.Lost, r.Owner = uint64(c.now()), 0,"},
	{rule: "G22", what: "other QPs are traced as well", file: traceGo, pkg: card, test: "TestG22_",
		old: "(q.ctx.All != 0 || q.ctx.QPN == qpn)", new: "(q.ctx.All != 0 || q.ctx.QPN != 0)"},
	{rule: "G22", what: "a lookup that failed is not traced", file: cardWalkGo, pkg: card, test: "TestG22_",
		old: "func (t *stepTracer) Lookup(seg int, off, n uint32, hit bool, r hw.Reason) {\n", new: "func (t *stepTracer) Lookup(seg int, off, n uint32, hit bool, r hw.Reason) {\n	if r != hw.ReasonNone {\n		return\n	}\n"},
	{rule: "G22", what: "the cursor after a read stays on an ended segment", file: cardWalkGo, pkg: card, test: "TestG22_",
		old: "for t.at.Segment < len(t.segs) && t.at.Offset", new: "for t.at.Segment < 0 && t.at.Offset"},
	{rule: "G22", what: "a packet that was dropped is traced as handed over", file: cardWalkGo, pkg: card, test: "TestG22_",
		old: "rec.Kind, rec.Segment, rec.Offset, rec.Key, rec.Reason = hw.TraceKindFault", new: "rec.Kind, rec.Segment, rec.Offset, rec.Key, rec.Reason = hw.TraceKindHandover"},
	{rule: "Doorbell", what: "while others work the first doorbells alone are looked at", file: "hw/softcard/doorbell.go", pkg: card, test: "TestDoorbell_OfAnyIsSeenWhileOthersWork",
		old: "if s.bell >= len(s.bells) {", new: "if s.bell >= min(len(s.bells), 2*leastBells) {"},
	{rule: "Owner", what: "an entry's owner word is stored before the rest", file: "vfio/guard.go", pkg: "./vfio/vfiouser", test: "TestOwner_WordComesLast",
		old: "copy(dst, src[:owner])\n\tmmio.ToDevice()\n\tcopy(dst[owner:], src[owner:])", new: "copy(dst[owner:], src[owner:])\n\tmmio.ToDevice()\n\tcopy(dst, src[:owner])"},
}
