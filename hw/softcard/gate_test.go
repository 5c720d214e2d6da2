package softcard

import (
	"testing"

	"rnic/hw"
)

// limit gives QP q the rate-limit entry i.
func (n *node) limit(q *tQP, i uint32, rate uint64, burst uint32) {
	n.tb.Helper()
	n.must(hw.CommandSetRate, i, 0, (&hw.RateLimit{Rate: rate, Burst: burst}).AsBytes())
	q.modify(hw.QPAttrRateLimit, hw.QPContext{RateIndex: uint16(i)})
}

// TestG15_TheGateComesFirst: a held QP takes no lookup and no payload read, and
// when it is let go, it takes them once.
func TestG15_TheGateComesFirst(t *testing.T) {
	p := newTwo(t, defaultLink())
	const burst = 4300 // one full packet and little more
	p.pair.a.limit(p.a, 3, 1_000_000, burst)
	p.write(p.src.sge(0, 2000), p.src.sge(2000, 2096), p.src.sge(5000, 1000), p.src.sge(7000, 3096))
	p.run()
	first := len(p.sent["A>B"])
	x, s := p.a.query()
	if first != 1 || x.Held != 1 || s.GateHolds == 0 {
		t.Fatalf("%d frames, held %d, %d holds: expected one packet, then the gate", first, x.Held, s.GateHolds)
	}
	c := p.pair.a.card
	lookups, reads := c.count[cntLookups], c.count[cntDMAReads]
	if s.Lookups != 2 || s.PayloadReads != 2 || lookups != 2 {
		t.Errorf("first packet: %d lookups, %d reads, expected 2 and 2", s.Lookups, s.PayloadReads)
	}
	for range 1000 { // held: turns pass, and time short of the next packet's bytes
		p.now += 1000
		p.run()
	}
	if c.count[cntLookups] != lookups || c.count[cntDMAReads] != reads {
		t.Errorf("while held: %d lookups, %d DMA reads", c.count[cntLookups]-lookups, c.count[cntDMAReads]-reads)
	}
	for p.tick() {
	}
	wantWCs(t, "send queue", p.a.sendCQ, good(0))
	x, s = p.a.query()
	if s.Lookups != 4 || s.PayloadReads != 4 || s.HeldLookups != 0 || s.HeldReads != 0 || x.Held != 0 {
		t.Errorf("%d lookups, %d reads, %d and %d while held, held %d", s.Lookups, s.PayloadReads, s.HeldLookups, s.HeldReads, x.Held)
	}
}

// TestG16_NoWindowHasMoreThanRateAndBurst: over every window of time, whole frames,
// retransmissions included.
func TestG16_NoWindowHasMoreThanRateAndBurst(t *testing.T) {
	const rate, burst = 3_333_333, 9001
	k := defaultLink()
	k.mtu = hw.MTU1024
	p := newTwo(t, k)
	p.pair.a.limit(p.a, 1, rate, burst)
	type event struct {
		at    int64
		bytes int
	}
	var events []event
	n := 0
	p.onWire = func(dir string, f *frame) {
		if dir != "A>B" {
			return
		}
		events = append(events, event{p.now, f.end - f.start})
		if n++; n%17 == 5 {
			spoil(f) // it is sent again
		}
	}
	total := 0
	for i := range 40 {
		size := uint32(i*i*37%7000 + 1)
		p.write(p.src.sge(uint32(i), size))
		total += int(size)
		if i%7 == 0 {
			p.a.post(tWR{op: hw.OpcodeRDMARead, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(100<<10, 3000)}})
		}
	}
	p.run()
	for p.tick() {
	}
	if got := len(p.a.sendCQ.all()); got != 40 {
		t.Fatalf("%d completions, expected 40", got)
	}
	// An idle time that is worth more than the burst, and then all at once.
	p.now += burst * 3 / 2 * int64(1e9) / rate
	for range 20 {
		p.write(p.src.sge(0, 1000))
	}
	p.run()
	for p.tick() {
	}
	_, s := p.a.query()
	if s.Retransmits == 0 || s.GateHolds == 0 {
		t.Fatalf("%d retransmissions, %d holds: the test shows nothing", s.Retransmits, s.GateHolds)
	}
	for i := range events {
		sum := 0
		for j := i; j < len(events); j++ {
			sum += events[j].bytes
			window := float64(events[j].at - events[i].at)
			if float64(sum) > rate*window/1e9+burst {
				t.Fatalf("%d bytes in %v ns: more than %d B/s and %d bytes", sum, window, rate, burst)
			}
		}
	}
	// And it does get its rate: within a packet for each time the wire was idle.
	span := float64(events[len(events)-1].at-events[0].at) / 1e9
	sum := 0
	for _, e := range events {
		sum += e.bytes
	}
	if want := rate*span + burst; span < 1e9 && float64(sum) < want/2 {
		t.Errorf("%d bytes in %v s: expected about %v", sum, span, want)
	}
}

// TestG16_ABurstBelowOnePacketIsRefused when it is set.
func TestG16_ABurstBelowOnePacketIsRefused(t *testing.T) {
	p := newTwo(t, defaultLink())
	full := uint32(14 + 4 + 40 + 8 + 12 + 28 + 4096 + 4) // tagged IPv6, the longest headers
	for burst, want := range map[uint32]result{full: ok, full - 1: param(hw.CommandSyndromeRate), 0: param(hw.CommandSyndromeRate)} {
		r, _ := p.pair.a.command(hw.CommandSetRate, 2, 0, (&hw.RateLimit{Rate: 1, Burst: burst}).AsBytes(), 0)
		if r != want {
			t.Errorf("burst %d: %v, expected %v", burst, r, want)
		}
	}
	if r, _ := p.pair.a.command(hw.CommandSetRate, 0, 0, (&hw.RateLimit{Rate: 1, Burst: full}).AsBytes(), 0); r.status != hw.CommandStatusBadObject {
		t.Errorf("entry 0: %v", r)
	}
}

// TestG16_AnswersAreNotHeld: ACKs and READ responses of a held QP leave.
func TestG16_AnswersAreNotHeld(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.pair.a.limit(p.a, 1, 1, 5000) // a byte a second
	p.write(p.src.sge(0, 4096), p.src.sge(0, 4096))
	p.run()
	if x, _ := p.a.query(); x.Held != 1 {
		t.Fatal("the QP is not held")
	}
	p.b.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.src.base, rkey: p.src.key, sges: []hw.DataSegment{p.dst.sge(0, 20000)}})
	p.b.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.src.base, rkey: p.src.key, sges: []hw.DataSegment{p.dst.sge(0, 20000)}})
	p.run()
	wantWCs(t, "the far end's", p.b.sendCQ, good(0), good(1))
	if _, s := p.a.query(); s.HeldLookups != 0 || s.HeldReads != 0 {
		t.Errorf("%d lookups and %d reads count as taken while held", s.HeldLookups, s.HeldReads)
	}
}

// TestDeficitRoundRobin: QPs with packets of different sizes get the same bytes.
func TestDeficitRoundRobin(t *testing.T) {
	p := newTwo(t, defaultLink())
	c, _ := p.connected(18, defaultLink())
	for range 200 {
		p.write(p.src.sge(0, 4096))
	}
	for range 100 {
		for range 2 {
			c.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 64)}})
		}
	}
	bytes := map[uint32]int{}
	low := 0
	p.onWire = func(dir string, f *frame) {
		if dir != "A>B" {
			return
		}
		bytes[parsed(t, f.bytes()).BTH().DestQP()] += f.end - f.start
		if d := bytes[17] - bytes[18]; bytes[18] < 200*(64+74) {
			low = max(low, d, -d)
		}
	}
	p.run()
	if low > 2*quantum {
		t.Errorf("one QP was %d bytes ahead of the other: more than two rounds", low)
	}
	if len(p.a.sendCQ.all()) != 200 {
		t.Error("not all completed")
	}
}
