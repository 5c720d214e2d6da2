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
}
