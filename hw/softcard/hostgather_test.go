package softcard

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/gather/oracle"
)

func hostRings(f func(*hw.HostGatherContext)) []byte {
	x := hw.HostGatherContext{RequestIOVA: 1 << 20, ReplyIOVA: 2 << 20, StagingIOVA: 3 << 20, StagingLogStride: 12, LogEntries: 4}
	f(&x)
	return x.AsBytes()
}

// tGather is the client's side of the host gather: the plain oracle walks.
type tGather struct {
	n        *node
	log      uint8
	mtu      uint32 // the path's, in bytes
	requests []byte
	replies  []byte
	staging  []byte
	ci, pi   uint32
	world    oracle.World
	held     []hw.HostGatherReply // answers that were not given

	// spoil, if set, may change an answer; keep holds it back.
	spoil func(r *hw.HostGatherReply) (keep bool)
}

// hostGather gives the card rings of 2^log entries, and the oracle the keys of mrs.
func (n *node) hostGather(log uint8, mrs ...*tMR) *tGather {
	g := &tGather{n: n, log: log, mtu: 1024, world: oracle.World{Regions: map[uint32]oracle.Region{}}}
	var x hw.HostGatherContext
	x.RequestIOVA, g.requests = n.host.alloc(n.tb, gatherSlotBytes<<log)
	x.ReplyIOVA, g.replies = n.host.alloc(n.tb, hw.HostGatherReplySize<<log)
	x.StagingIOVA, g.staging = n.host.alloc(n.tb, 4096<<log)
	x.StagingLogStride, x.LogEntries, x.Vector = 12, log, 3
	n.must(hw.CommandSetHostGather, 0, 0, x.AsBytes())
	for _, m := range mrs {
		g.world.Regions[m.key>>8] = oracle.Region{Valid: true, Tag: uint8(m.key), PD: testPD, Rights: 15, Base: m.base, Length: uint64(len(m.mem)), IOVA: m.iova}
	}
	g.world.Read = func(iova uint64) (byte, bool) {
		b, err := n.host.at(iova, 1, false)
		if err != nil {
			return 0, false
		}
		return b[0], true
	}
	return g
}

// serve answers the requests that are there.
func (g *tGather) serve() (worked bool) {
	for {
		slot := g.requests[g.ci%(1<<g.log)*gatherSlotBytes:][:gatherSlotBytes]
		var q hw.HostGatherRequest
		copy(q.AsBytes(), slot)
		if q.Phase() != (g.ci>>g.log&1 == 0) {
			return worked
		}
		worked = true
		g.ci++
		g.n.ring(hw.DomainGatherCI, g.ci)
		r := g.walk(&q, slot[hw.HostGatherRequestSize:])
		if g.spoil != nil && g.spoil(&r) {
			g.held = append(g.held, r)
			continue
		}
		g.answer(r)
	}
}

func (g *tGather) answer(r hw.HostGatherReply) {
	r.SetPhase(g.pi>>g.log&1 == 0)
	copy(g.replies[g.pi%(1<<g.log)*hw.HostGatherReplySize:], r.AsBytes())
	g.pi++
	g.n.ring(hw.DomainGatherReplyPI, g.pi)
}

// walk has the oracle gather the message that the request's segments are, and
// answers with the packet that is asked for.
func (g *tGather) walk(q *hw.HostGatherRequest, list []byte) hw.HostGatherReply {
	t := g.n.tb
	x := oracle.Request{Op: "send", Reliable: true, MTU: g.mtu, PD: q.PD, QPN: q.QPN}
	for i := range int(q.Segments) {
		b := list[16*i:]
		x.Segments = append(x.Segments, oracle.Segment{Addr: le.Uint64(b), Length: le.Uint32(b[8:]), Key: le.Uint32(b[12:])})
	}
	out := g.world.Gather(x)
	r := hw.HostGatherReply{Token: q.Token}
	for _, s := range out.Steps {
		if s.Kind == "lookup" && s.Packet == int(q.Packet) {
			r.Lookups++
		}
	}
	if int(q.Packet) >= len(out.Packets) {
		if out.Fault == nil {
			t.Fatalf("asked for packet %d of %d", q.Packet, len(out.Packets))
		}
		r.FaultSegment, r.FaultKey, r.FaultOffset = uint8(out.Fault.Segment), out.Fault.Key, out.Fault.Offset
		for v := hw.ReasonNone; v.Valid(); v++ {
			if v.String() == out.Fault.Reason {
				r.Reason = v
			}
		}
		return r
	}
	p := out.Packets[q.Packet]
	if int(q.Bytes) != len(p.Payload) {
		t.Errorf("packet %d: %d bytes are asked for, the rules say %d", q.Packet, q.Bytes, len(p.Payload))
	}
	if q.Packet > 0 {
		if c := out.Packets[q.Packet-1].Cursor; c != (oracle.Cursor{Segment: int(q.CursorSegment), Offset: q.CursorOffset, Left: q.CursorLeft}) {
			t.Errorf("packet %d: cursor %d, %d, %d, the rules say %+v", q.Packet, q.CursorSegment, q.CursorOffset, q.CursorLeft, c)
		}
	}
	copy(g.staging[q.Slot<<12:], p.Payload)
	r.Bytes, r.CursorSegment, r.CursorOffset, r.CursorLeft = q.Bytes, uint8(p.Cursor.Segment), p.Cursor.Offset, p.Cursor.Left
	return r
}

// runHost runs the cards and the host until none of them finds anything to do.
func (p *two) runHost(g *tGather) {
	for p.run(); g.serve(); {
		p.run()
	}
}

func newHosted(t testing.TB, log uint8) (*two, *tGather) {
	k := defaultLink()
	k.mtu, k.timeout = hw.MTU1024, 0
	p := newTwo(t, k)
	return p, p.pair.a.hostGather(log, p.src)
}

// TestG21_HostGatherSameFrames: whoever gathers, the same frames and completions, and
// the card's own count of gathers from several segments is 0.
func TestG21_HostGatherSameFrames(t *testing.T) {
	run := func(host bool) (frames map[string][][]byte, wcs []wc, card *Card, s hw.QPStats) {
		k := defaultLink()
		k.mtu, k.timeout = hw.MTU1024, 0
		p := newTwo(t, k)
		work := p.run
		if host {
			g := p.pair.a.hostGather(3, p.src)
			work = func() { p.runHost(g) }
		}
		p.send(p.src.sge(10, 300), p.src.sge(0, 0), p.src.sge(5000, 400), p.src.sge(9000, 500), p.src.sge(20000, 1800))
		work()
		p.write(p.src.sge(77, 2048), p.src.sge(3, 1))
		p.send()
		p.b.recv(p.dst.sge(0, 4096))
		p.a.post(tWR{op: hw.OpcodeSendWithImm, flags: hw.WQEFlagSignaled, imm: 7, inline: []byte("inline payload"), isInline: true})
		p.a.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(100<<10, 3000)}})
		work()
		p.b.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.src.base, rkey: p.src.key, sges: []hw.DataSegment{p.dst.sge(100<<10, 3000)}})
		work()
		var bad []hw.DataSegment // the third packet's second segment is of no key
		bad = append(bad, p.src.sge(0, 2500), hw.DataSegment{Addr: 5, Length: 700, LKey: noKey})
		p.write(bad...)
		work()
		for _, e := range p.a.sendCQ.all() {
			wcs = append(wcs, wc{e.WQEIndex, e.Status, e.Reason, e.FaultSegment, e.FaultKey, e.FaultOffset})
		}
		_, s = p.a.query()
		return p.sent, wcs, p.pair.a.card, s
	}
	want, wantWC, card, wantStats := run(false)
	if card.count[cntGathersMulti] == 0 {
		t.Fatal("the card gathered nothing from several segments: the test shows nothing")
	}
	got, gotWC, card, stats := run(true)
	for dir := range want {
		if len(got[dir]) != len(want[dir]) {
			t.Fatalf("%s: %d frames, with the card's engine %d", dir, len(got[dir]), len(want[dir]))
		}
		for i := range want[dir] {
			if !bytes.Equal(got[dir][i], want[dir][i]) {
				t.Errorf("%s: frame %d differs\n%x\n%x", dir, i, got[dir][i], want[dir][i])
			}
		}
	}
	if fmt.Sprint(gotWC) != fmt.Sprint(wantWC) || len(wantWC) != 6 {
		t.Errorf("completions\n%v\nwith the card's engine\n%v", gotWC, wantWC)
	}
	if e := wantWC[5]; e.reason != hw.ReasonKeyIndex || e.seg != 1 || e.key != noKey {
		t.Errorf("the faulty one completes with %+v", e)
	}
	if n := card.count[cntGathersMulti]; n != 0 || stats.GathersMulti != 0 {
		t.Errorf("the card counts %d gathers of its own from several segments", n)
	}
	// The faulty packet's lookups are the host's to count.
	if stats.Gathers != wantStats.Gathers || stats.Lookups+2 != wantStats.Lookups {
		t.Errorf("%d gathers, %d lookups; with the card's engine %d, %d", stats.Gathers, stats.Lookups, wantStats.Gathers, wantStats.Lookups)
	}
	if card.hosted.waiting != 0 || len(card.hosted.free) != 8 {
		t.Errorf("%d wait, %d slots are free of 8", card.hosted.waiting, len(card.hosted.free))
	}
}

// TestG21_HostGatherHostile: an answer that cannot be fails the request, and nothing
// of it is sent.
func TestG21_HostGatherHostile(t *testing.T) {
	for name, spoil := range map[string]func(*hw.HostGatherReply){
		"short":           func(r *hw.HostGatherReply) { r.Bytes-- },
		"long":            func(r *hw.HostGatherReply) { r.Bytes = 1 << 31 },
		"none":            func(r *hw.HostGatherReply) { r.Bytes = 0 },
		"cursor":          func(r *hw.HostGatherReply) { r.CursorOffset++ },
		"cursor left":     func(r *hw.HostGatherReply) { r.CursorLeft = 0 },
		"cursor segment":  func(r *hw.HostGatherReply) { r.CursorSegment = 255 },
		"reason":          func(r *hw.HostGatherReply) { r.Bytes, r.Reason = 0, 200 },
		"other reason":    func(r *hw.HostGatherReply) { r.Bytes, r.Reason = 0, hw.ReasonRNR },
		"fault segment":   func(r *hw.HostGatherReply) { r.Bytes, r.Reason, r.FaultSegment = 0, hw.ReasonPD, 3 },
		"fault offset":    func(r *hw.HostGatherReply) { r.Bytes, r.Reason, r.FaultOffset = 0, hw.ReasonPD, 9999 },
		"fault and bytes": func(r *hw.HostGatherReply) { r.Reason = hw.ReasonPD },
		"token":           func(r *hw.HostGatherReply) { r.Token++ },
		"old token":       func(r *hw.HostGatherReply) { r.Token -= 8 },
		"reserved":        func(r *hw.HostGatherReply) { r.AsBytes()[40] = 1 },
	} {
		p, g := newHosted(t, 3)
		g.spoil = func(r *hw.HostGatherReply) bool { spoil(r); return false }
		index := p.write(p.src.sge(0, 700), p.src.sge(900, 700), p.src.sge(2000, 100))
		p.runHost(g)
		if n := len(p.sent["A>B"]); n != 0 {
			t.Errorf("%s: %d frames were sent", name, n)
		}
		wantWCs(t, name, p.a.sendCQ, wc{index: index, status: hw.StatusLocQPOpErr, reason: hw.ReasonHostGather, seg: hw.NoSegment})
		if w := p.pair.a.card.hosted.waiting; w != 0 {
			t.Errorf("%s: %d wait", name, w)
		}
	}
}

// TestG21_HostGatherBadIndex: a producer index beyond what was asked, and an entry of
// the turn before, end the rings and those who wait; new rings begin anew.
func TestG21_HostGatherBadIndex(t *testing.T) {
	for name, f := range map[string]func(*tGather){
		"beyond":    func(g *tGather) { g.n.ring(hw.DomainGatherReplyPI, 2) },
		"behind":    func(g *tGather) { g.n.ring(hw.DomainGatherReplyPI, ^uint32(0)) },
		"old entry": func(g *tGather) { g.n.ring(hw.DomainGatherReplyPI, 1) },
	} {
		p, g := newHosted(t, 3)
		p.write(p.src.sge(0, 100))
		p.run()
		f(g)
		p.run()
		wantWCs(t, name, p.a.sendCQ, wc{status: hw.StatusLocQPOpErr, reason: hw.ReasonHostGather, seg: hw.NoSegment})
		if p.pair.a.card.hostAnswered() {
			t.Errorf("%s: the dead ring keeps the card awake", name)
		}
		a, b := p.connected(18, defaultLink())
		a.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 10)}})
		p.run()
		wantWCs(t, name+": after it", a.sendCQ, wc{status: hw.StatusLocQPOpErr, reason: hw.ReasonHostGather, seg: hw.NoSegment})
		p.pair.a.hostGather(3, p.src)
		_ = b
	}
}

// TestG21_HostGatherLateAnswer: without an answer the request fails in the card's
// completion time-out. What the host writes later goes into no frame, and its
// staging slot is not used again before its answer is there.
func TestG21_HostGatherLateAnswer(t *testing.T) {
	p, g := newHosted(t, 1) // two slots
	g.spoil = func(*hw.HostGatherReply) bool { return true }
	index := p.write(p.src.sge(0, 100), p.src.sge(300, 100))
	p.runHost(g)
	card := p.pair.a.card
	if at, want := card.nextTimer(), p.now+5_000_000_000; at != want {
		t.Fatalf("the wait ends at %d, expected %d", at, want)
	}
	for p.tick() {
	}
	wantWCs(t, "without an answer", p.a.sendCQ, wc{index: index, status: hw.StatusLocQPOpErr, reason: hw.ReasonHostGather, seg: hw.NoSegment})
	if card.hosted.waiting != 0 || len(card.hosted.free) != 1 {
		t.Fatalf("%d wait, %d slots are free, expected 0 and 1", card.hosted.waiting, len(card.hosted.free))
	}
	late := g.held[0]
	g.spoil = nil
	a, _ := p.connected(18, defaultLink())
	var want []wc
	for i := range uint32(5) {
		want = append(want, good(a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base + uint64(i), rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(i, 1)}})))
	}
	for p.run(); g.serve(); p.run() {
		for i := range g.staging[:4096] { // the slot of the late one: a host that is still at it
			if late.Token&1 == 0 {
				g.staging[i] = 0xee
			} else {
				g.staging[4096+i] = 0xee
			}
		}
	}
	wantWCs(t, "after it", a.sendCQ, want...)
	if !bytes.Equal(p.dst.mem[:5], p.src.mem[:5]) {
		t.Errorf("%x arrived, %x was sent", p.dst.mem[:5], p.src.mem[:5])
	}
	g.answer(late)
	p.run()
	if len(card.hosted.free) != 2 || card.hosted.broken {
		t.Errorf("after the late answer %d slots are free, broken %v", len(card.hosted.free), card.hosted.broken)
	}
}

// TestG21_HostGatherNoEngine: a card without an engine refuses what it is not told how
// to gather, and sends what needs no gather.
func TestG21_HostGatherNoEngine(t *testing.T) {
	p, _ := newHosted(t, 3)
	p.pair.a.card.cfg.Engine = hw.EngineNone
	var off hw.HostGatherContext
	p.pair.a.must(hw.CommandSetHostGather, 0, 0, off.AsBytes())
	first := p.send()
	second := p.write(p.src.sge(0, 10))
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(first), wc{index: second, status: hw.StatusLocQPOpErr, reason: hw.ReasonHostGather, seg: hw.NoSegment})
}

// TestG21_HostGatherMoreQPsThanSlots: those that find no slot wait for one.
func TestG21_HostGatherMoreQPsThanSlots(t *testing.T) {
	p, g := newHosted(t, 1)
	var qps []*tQP
	for i := range uint32(9) {
		a, _ := p.connected(100+i, defaultLink())
		for j := range uint32(4) {
			a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base + uint64(100*i+10*j), rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(100*i+10*j, 4), p.src.sge(100*i+10*j+4, 6)}})
		}
		qps = append(qps, a)
	}
	p.runHost(g)
	for i, a := range qps {
		if n := len(a.sendCQ.all()); n != 4 {
			t.Errorf("QP %d: %d completions", i, n)
		}
		if at := 100 * i; !bytes.Equal(p.dst.mem[at:at+40], p.src.mem[at:at+40]) {
			t.Errorf("QP %d: other bytes arrived", i)
		}
	}
	if h := &p.pair.a.card.hosted; h.waiting != 0 || len(h.free) != 2 {
		t.Errorf("%d wait, %d slots are free", h.waiting, len(h.free))
	}
}

// TestG15_HostGather: the gate comes before the request: while a QP is held the
// host is asked nothing, and nothing was taken for what it sends later.
func TestG15_HostGather(t *testing.T) {
	p, g := newHosted(t, 3)
	p.pair.a.limit(p.a, 3, 100_000, 4300)
	index := p.write(p.src.sge(0, 1500), p.src.sge(2000, 6500))
	p.runHost(g)
	asked, sent := g.ci, len(p.sent["A>B"])
	x, _ := p.a.query()
	if x.Held != 1 || int(asked) != sent || sent == 0 {
		t.Fatalf("held %d, %d packets asked for, %d sent", x.Held, asked, sent)
	}
	for range 100 {
		p.now += 1000
		p.runHost(g)
	}
	if g.ci != asked {
		t.Errorf("%d packets were asked for while it was held", g.ci-asked)
	}
	for p.tick() {
		p.runHost(g)
	}
	wantWCs(t, "send queue", p.a.sendCQ, good(index))
	if _, s := p.a.query(); s.HeldLookups != 0 || s.HeldReads != 0 || g.ci != 8 || s.PayloadReads != 8 {
		t.Errorf("%d lookups, %d reads while held; %d packets asked for, %d read", s.HeldLookups, s.HeldReads, g.ci, s.PayloadReads)
	}
}

// TestG21_HostGatherGivenUp: what a QP no longer wants frees its slot when the answer
// is there: a QP in ERR, in RESET, destroyed, and one that sends again.
func TestG21_HostGatherGivenUp(t *testing.T) {
	for name, f := range map[string]func(p *two){
		"ERR":       func(p *two) { p.a.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateErr}) },
		"RESET":     func(p *two) { p.a.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateReset}) },
		"destroyed": func(p *two) { p.pair.a.must(hw.CommandDestroyQP, p.a.number, 0, nil) },
	} {
		p, g := newHosted(t, 2)
		g.spoil = func(*hw.HostGatherReply) bool { return true }
		p.write(p.src.sge(0, 100))
		p.runHost(g)
		f(p)
		p.run()
		h := &p.pair.a.card.hosted
		if h.waiting != 0 || len(h.free) != 3 || p.pair.a.card.nextTimer() != noTimer {
			t.Errorf("%s: %d wait, %d slots are free, next timer %d", name, h.waiting, len(h.free), p.pair.a.card.nextTimer())
		}
		g.answer(g.held[0])
		p.run()
		if len(h.free) != 4 || len(p.sent["A>B"]) != 0 {
			t.Errorf("%s: after the answer %d slots are free, %d frames sent", name, len(h.free), len(p.sent["A>B"]))
		}
	}

	// A packet is lost: the NAK comes while a later one is at the host.
	p, g := newHosted(t, 2)
	n := 0
	p.onWire = func(dir string, f *frame) {
		if n++; dir == "A>B" && n == 2 {
			spoil(f)
		}
	}
	index := p.write(p.src.sge(0, 5000), p.src.sge(6000, 3000))
	p.runHost(g)
	wantWCs(t, "after a loss", p.a.sendCQ, good(index))
	want := append(append([]byte{}, p.src.mem[:5000]...), p.src.mem[6000:9000]...)
	if _, s := p.a.query(); !bytes.Equal(p.dst.mem[:8000], want) || s.Retransmits == 0 {
		t.Errorf("%d sent again; the bytes are right: %v", s.Retransmits, bytes.Equal(p.dst.mem[:8000], want))
	}
	if h := &p.pair.a.card.hosted; len(h.free) != 4 {
		t.Errorf("%d slots are free of 4", len(h.free))
	}
}
