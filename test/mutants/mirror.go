package main

// Where the host gather and verification keep rule G21.
const (
	driverPkg   = "./driver"
	hostedGo    = "hw/softcard/hostgather.go"
	examGo      = "driver/exam.go"
	pollGo      = "driver/cq.go"
	shadowKeyGo = "driver/shadow.go"
)

func init() { mutants = append(mutants, mirrorMutants...) }

// mirrorMutants are defects of the software's walk, of what the card believes of it, and of
// the comparison.
var mirrorMutants = []mutant{
	{rule: "G21", what: "the host's cursor is believed", file: hostedGo, pkg: card, test: "TestG21_HostGatherHostile",
		old: " || after != (gather.Cursor{Segment: int(r.CursorSegment), Offset: r.CursorOffset, Left: r.CursorLeft})", new: ""},
	{rule: "G21", what: "a staging slot is free before its answer is there", file: hostedGo, pkg: card, test: "TestG21_HostGatherLateAnswer",
		old: "		c.hosted.slots[h.slot].q = nil\n		c.hostEnded(q)\n", new: "		c.hosted.slots[h.slot].q = nil\n		c.hostEnded(q)\n		c.freeSlot(h.slot)\n"},
	{rule: "G21", what: "the host's fault is not carried to the completion", file: hostedGo, pkg: card, test: "TestG21_HostGatherSameFrames",
		old: "Key: o.segs[r.FaultSegment].Key, Reason: r.Reason}", new: "Key: o.segs[r.FaultSegment].Key, Reason: hw.ReasonHostGather}"},
	{rule: "G21", what: "a missing answer is waited for without end", file: hostedGo, pkg: card, test: "TestG21_HostGatherLateAnswer",
		old: "		q.hostAt = c.now() + int64(c.lim.CompletionTimeout)*1000\n", new: ""},
	{rule: "G15", what: "the host is asked before the gate", file: requesterGo, pkg: card, test: "TestG15_HostGather",
		old: "	if q.host.stage != hostAsked && !c.gate(q, size) {\n", new: "	if q.host.stage == hostDone && !c.gate(q, size) {\n"},
	{rule: "G21", what: "the driver's walk uses a key that was cleared", file: shadowKeyGo, pkg: driverPkg, test: "TestG21_HostGatherDereg",
		old: "		delete(s.keys, m.key>>8)\n", new: ""},
	{rule: "G21", what: "the payload is not compared", file: examGo, pkg: driverPkg, test: "TestG21_VerifyAlways",
		old: "	x.hex(\"handover.crc\", end.CRC, x.end.CRC)\n", new: ""},
	{rule: "G21", what: "the cursor after a packet is not compared", file: examGo, pkg: driverPkg, test: "TestG21_VerifyAlways",
		old: "	differs(x, \"handover.cursor\", end.Cursor, x.end.Cursor)\n", new: ""},
	{rule: "G21", what: "a completion is handed out before its packets are compared", file: pollGo, pkg: driverPkg, test: "TestG21_VerifyAlways",
		old: "				verify.catchUp() // with all that the card reported before it wrote these\n", new: ""},
	{rule: "G21", what: "an AckReq in mid-message is not compared", file: examGo, pkg: driverPkg, test: "TestG21_VerifyAckReq",
		old: "e.response || !e.ackReqMoving {", new: "e.response {"},
	{rule: "G21", what: "a READ response ends the walk of a request that the host gathers", file: "driver/verify.go", pkg: driverPkg, test: "TestG21_VerifyCampaign",
		old: "walkOf{r.QPN, r.Flags&hw.TraceFlagResponse != 0}", new: "walkOf{r.QPN, false}"},
	{rule: "Interrupts", what: "an event from before the descriptor was made is not on it", file: pollGo, pkg: driverPkg, test: "TestInterrupts_Early",
		old: "if len(c.wake) > 0 {", new: "if len(c.wake) > 1 {"},
	{rule: "Interrupts", what: "an event does not reach the descriptor", file: pollGo, pkg: driverPkg, test: "TestInterrupts_Completions",
		old: "		if fd := c.eventFD.Load(); fd >= 0 {\n			_, _ = unix.Write(int(fd), []byte", new: "		if fd := c.eventFD.Load(); fd > 1<<20 {\n			_, _ = unix.Write(int(fd), []byte"},
	{rule: "Sleep", what: "the card sleeps without a last look", file: "hw/softcard/sleep.go", pkg: driverPkg, test: "TestSleep_EachInterleaving",
		old: "	if c.lastLook() {\n		c.setSleep(0)", new: "	if c.closed {\n		c.setSleep(0)"},
	{rule: "Sleep", what: "the card looks before its flag is set", file: "hw/softcard/sleep.go", pkg: driverPkg, test: "TestSleep_EachInterleaving",
		old: "	c.setSleep(1)\n	mmio.StoreLoad()\n	if between != nil {\n		between()\n	}\n	if c.lastLook() {",
		new: "	awake := c.lastLook()\n	c.setSleep(1)\n	mmio.StoreLoad()\n	if between != nil {\n		between()\n	}\n	if awake {"},
	{rule: "Sleep", what: "the last look leaves receive queues out", file: "hw/softcard/doorbell.go", pkg: driverPkg, test: "TestSleep_EachInterleaving",
		old: " || b.rq != nil && mmio.Load32(b.rq) != b.rqSeen", new: ""},
	{rule: "Sleep", what: "a doorbell does not kick", file: "queues/doorbell.go", pkg: driverPkg, test: "TestSleep_EachInterleaving",
		old: "	if mmio.Doorbell(word, v, d.Sleep) != 0 {", new: "	if mmio.Doorbell(word, v, d.Sleep) > 1 {"},
	{rule: "Sleep", what: "the driver looks at the flag before its store", file: "queues/doorbell.go", pkg: driverPkg, test: "TestSleep_SplitDoorbell",
		old: "	if mmio.Doorbell(word, v, d.Sleep) != 0 {", new: "	sleeps := mmio.Load32(d.Sleep) != 0\n	mmio.ToDevice()\n	mmio.Store32(word, v)\n	if sleeps {"},
	{rule: "Sleep", what: "the driver has ToDevice instead of the full barrier", file: "queues/doorbell.go", pkg: "./queues", test: "TestSleep_BothSeeNothing",
		old: "	if mmio.Doorbell(word, v, d.Sleep) != 0 {", new: "	mmio.Store32(word, v)\n	mmio.ToDevice()\n	if mmio.Load32(d.Sleep) != 0 {"},
	{rule: "Sleep", what: "an arm has no full barrier", file: "queues/doorbell.go", pkg: "./queues", test: "TestSleep_BothSeeNothing",
		old: "	mmio.StoreLoad()\n", new: "	mmio.ToDevice()\n"},
	{rule: "Sleep", what: "the card has no full barrier", file: "hw/softcard/sleep.go", pkg: card, test: "TestSleep_LosesNoDoorbell",
		old: "	c.setSleep(1)\n	mmio.StoreLoad()\n", new: "	c.setSleep(1)\n"},
	{rule: "Flush", what: "the driver leaves what the card cannot flush", file: "driver/event.go", pkg: driverPkg, test: "TestFlush_RingFaults",
		old: "			if e.Subtype == hw.ReasonRingRead {\n", new: "			if e.Subtype == hw.ReasonVerify {\n"},
	{rule: "Flush", what: "a ring that cannot be read takes posts in ERR", file: "driver/qp.go", pkg: driverPkg, test: "TestFlush_RingFaults",
		old: "	if send == nil && q.unread.Load() {\n", new: "	if send == nil && q.unread.Load() && q.closed {\n"},
	{rule: "Flush", what: "the card does not say from where on it flushes none", file: "hw/softcard/flush.go", pkg: driverPkg, test: "TestFlush_FromWhereTheCardSays",
		old: "hw.ReasonRingRead, q.number, q.unreadFrom)", new: "hw.ReasonRingRead, q.number, 0)"},
	{rule: "Flush", what: "the driver believes that no event is lost", file: "driver/event.go", pkg: driverPkg, test: "TestFlush_EventsLost",
		old: "				signal(v.d.lostAsk)\n", new: ""},
	{rule: "Flush", what: "a completion queue whose overflow was lost goes on", file: "driver/asking.go", pkg: driverPkg, test: "TestFlush_EventsLost",
		old: "if err == nil && i.Overflowed {", new: "if err == nil && i.Overflowed && c.destroyed {"},
	{rule: "G19", what: "a late duplicate READ of a region that is gone ends the connection", file: "hw/softcard/responder.go", pkg: card, test: "TestG19_DuplicateOfAGoneRegion",
		old: "c.rangeReason(q, hw.AccessRemoteRead, reth.RKey(), reth.VA(), n) == hw.ReasonNone && ", new: "c.checkRange(q, hw.AccessRemoteRead, reth.RKey(), reth.VA(), n) && "},
	{rule: "G19", what: "a duplicate READ's region that goes in mid-response ends the connection", file: "hw/softcard/answer.go", pkg: card, test: "TestG19_DuplicateOfAGoneRegion",
		old: "	if !ok && a.again {\n", new: "	if !ok && a.again && a.packet == 0 {\n"},
	{rule: "G16", what: "each change of the rate fills the bucket", file: gateGo, pkg: card, test: "TestG16_Schedules",
		old: "			tokens = min(tokens, r.tokens)\n", new: "			tokens = min(tokens, tokens)\n"},
	{rule: "G16", what: "a bucket fills too slowly", file: gateGo, pkg: card, test: "TestG16_LongRun",
		old: "bits.Mul64(r.rate, uint64(now-r.at))", new: "bits.Mul64(r.rate-r.rate/50, uint64(now-r.at))"},
}
