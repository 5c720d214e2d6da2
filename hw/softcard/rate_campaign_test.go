package softcard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
)

// rateScale is 10,000 schedules with RNIC_FULL=1, else what the gate has time for; under the
// race detector, where they run besides, a tenth of that.
func rateScale() int {
	switch {
	case underRace:
		return 100
	case os.Getenv("RNIC_FULL") == "1":
		return 10_000
	}
	return 1000
}

// departure is a frame that left.
type departure struct {
	at    int64
	bytes uint64
}

// limitedQP is a queue pair of a schedule and what is known of it.
type limitedQP struct {
	*tQP
	entry    uint32
	mtu      uint32
	most     uint32 // bytes: the largest burst so far
	left     []departure
	allowed  []allowance
	expected uint64 // lookups that its packets need
}

// allowance is the rate from a time on.
type allowance struct {
	at   int64
	rate uint64
}

// worth is the bytes that the rate lets pass from the first setting on until a time: an
// integral, by a plain sum over the changes.
func (q *limitedQP) worth(until int64) (sum float64) {
	for i, a := range q.allowed {
		end := until
		if i+1 < len(q.allowed) {
			end = min(end, q.allowed[i+1].at)
		}
		if end > a.at {
			sum += float64(a.rate) * float64(end-a.at) / 1e9
		}
	}
	return sum
}

// windows wants no window from one departure to another, both included, to hold more than
// the rate lets pass in it and the largest burst. With S the bytes sent and W the worth,
// S(j) - S(i-1) - W(j) + W(i) is largest for the i before j with the least S(i-1) - W(i).
func (q *limitedQP) windows(t *testing.T, what string) {
	t.Helper()
	const rounding = 0.01 // bytes
	sent, least := float64(0), math.Inf(1)
	for _, d := range q.left {
		w := q.worth(d.at)
		least = min(least, sent-w)
		sent += float64(d.bytes)
		if over := sent - w - least; over > float64(q.most)+rounding {
			t.Fatalf("%s: QP %d: until %d ns, a window has %.2f bytes more than its rate, the burst is %d", what, q.number, d.at, over, q.most)
		}
	}
}

func stats(qs []*limitedQP) (all []hw.QPStats) {
	for _, q := range qs {
		_, s := q.query()
		all = append(all, s)
	}
	return all
}

// schedule is a random run of limited queue pairs beside one that is not limited, in
// virtual time. It gives the departures of the latter.
func schedule(t *testing.T, p *two, qs []*limitedQP, free *tQP, rnd *rand.Rand, limits bool) (others []departure) {
	t.Helper()
	seed := rnd.Uint64() // the load is the same, with and without the limited ones
	load := rand.New(rand.NewPCG(seed, 1))
	byQPN := map[uint32]*limitedQP{}
	for _, q := range qs {
		byQPN[q.number] = q // and its peer's
		q.left, q.allowed, q.expected = nil, nil, 0
	}
	p.onWire = func(dir string, f *frame) {
		if dir != "A>B" {
			return
		}
		n := parsed(t, f.bytes()).BTH().DestQP()
		d := departure{p.now, uint64(f.end - f.start)}
		if n == free.number {
			others = append(others, d)
		} else if q := byQPN[n]; q != nil {
			q.left = append(q.left, d)
		}
	}
	set := func(q *limitedQP, rate uint64, burst uint32) {
		p.pair.a.must(hw.CommandSetRate, q.entry, 0, (&hw.RateLimit{Rate: rate, Burst: burst}).AsBytes())
		q.most = max(q.most, burst)
		q.allowed = append(q.allowed, allowance{p.now, rate})
	}
	random := func(q *limitedQP) (uint64, uint32) {
		return uint64(1000) << rnd.IntN(22) * uint64(100+rnd.IntN(100)) / 100, fullFrame(4096) + uint32(rnd.IntN(1<<rnd.IntN(16)))
	}
	if limits {
		for _, q := range qs {
			rate, burst := random(q)
			set(q, rate, burst)
		}
	}
	frames := 0
	for range 3 + load.IntN(6) {
		for range load.IntN(4) {
			size := uint32(load.IntN(9000))
			frames += max(1, int(size+4095)/4096)
			free.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(uint32(load.IntN(1000)), size)}})
		}
		for _, q := range qs {
			for n := rnd.IntN(4); limits && n > 0; n-- {
				var sges []hw.DataSegment
				var segs []gather.Segment
				for range rnd.IntN(5) {
					s := p.src.sge(uint32(rnd.IntN(100<<10)), uint32(rnd.IntN(1<<rnd.IntN(14))))
					sges = append(sges, s)
					segs = append(segs, gather.Segment{Addr: s.Addr, Length: s.Length, Key: s.LKey})
				}
				q.expected += lookupsOf(segs, q.mtu)
				q.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: sges})
			}
		}
		p.run()
		if len(others) != frames {
			t.Fatalf("the QP that is not limited has sent %d frames of %d", len(others), frames)
		}
		// Some time passes, timer by timer or in between; the rate may change in mid-message.
		for steps := rnd.IntN(12); steps > 0; steps-- {
			if rnd.IntN(3) != 0 && p.tick() {
				continue
			}
			p.now += int64(rnd.IntN(1 << rnd.IntN(24)))
			p.run()
		}
		if q := qs[rnd.IntN(len(qs))]; limits && rnd.IntN(3) == 0 {
			rate, burst := random(q)
			set(q, rate, burst)
			p.run()
		}
	}
	for p.tick() {
	}
	return others
}

// lookupsOf is how many translations a message takes: one for each segment that a packet
// touches (G9), counted byte range by byte range.
func lookupsOf(segs []gather.Segment, mtu uint32) (n uint64) {
	at := uint32(0)
	for _, s := range segs {
		if s.Length == 0 {
			continue
		}
		first, last := at/mtu, (at+s.Length-1)/mtu
		n += uint64(last-first) + 1
		at += s.Length
	}
	return n
}

// TestG16_Schedules: in random schedules in virtual time, with random rates, bursts, messages,
// path MTUs, idle times and changes of the rate in mid-message, no window of a limited queue pair
// has more than its rate lets pass in it and a burst; a queue pair that is held takes no lookup and
// no read; those that are not limited send exactly what they send without it. 10,000 schedules
// with RNIC_FULL=1.
func TestG16_Schedules(t *testing.T) {
	rnd := rand.New(rand.NewPCG(16, 15))
	held := uint64(0)
	const together = 20 // schedules that use the same cards, one after the other
	for done := 0; done < rateScale(); done += together {
		p := newTwo(t, defaultLink())
		var qs []*limitedQP
		for i := range uint32(1 + rnd.IntN(3)) {
			k := defaultLink()
			k.mtu = hw.MTU(1 + rnd.IntN(5))
			a, _ := p.connected(20+i, k)
			q := &limitedQP{tQP: a, entry: 1 + i, mtu: mtuBytes(k.mtu)}
			a.modify(hw.QPAttrRateLimit, hw.QPContext{RateIndex: uint16(q.entry)})
			qs = append(qs, q)
		}
		for n := range together {
			what := fmt.Sprintf("schedule %d", done+n)
			seed := rnd.Uint64()
			before := stats(qs)
			with := schedule(t, p, qs, p.a, rand.New(rand.NewPCG(seed, 2)), true)
			for i, q := range qs {
				_, s := q.query()
				held += s.GateHolds - before[i].GateHolds
				if s.HeldLookups != 0 || s.HeldReads != 0 || s.Lookups-before[i].Lookups != q.expected || s.PayloadReads-before[i].PayloadReads != q.expected {
					t.Fatalf("%s: %d lookups and %d reads, the packets sent need %d; %d and %d while held", what, s.Lookups-before[i].Lookups,
						s.PayloadReads-before[i].PayloadReads, q.expected, s.HeldLookups, s.HeldReads)
				}
				q.windows(t, what)
			}
			without := schedule(t, p, qs, p.a, rand.New(rand.NewPCG(seed, 2)), false)
			if len(with) != len(without) {
				t.Fatalf("%s: the QP that is not limited sent %d frames, without the limited ones %d", what, len(with), len(without))
			}
			for i := range with {
				if with[i].bytes != without[i].bytes {
					t.Fatalf("%s: frame %d of the QP that is not limited has %d bytes, without the limited ones %d", what, i, with[i].bytes, without[i].bytes)
				}
			}
		}
	}
	if held < uint64(rateScale()) {
		t.Errorf("the gate held %d times: the test shows nothing", held)
	}
}

// TestG16_LongRun: a limited queue pair that always has something to send gets at least 99 % of its rate.
func TestG16_LongRun(t *testing.T) {
	rnd := rand.New(rand.NewPCG(99, 16))
	for n := range rateScale() / 20 {
		k := defaultLink()
		k.mtu = hw.MTU(1 + rnd.IntN(5))
		p := newTwo(t, k)
		rate := uint64(1000) << rnd.IntN(24)
		p.pair.a.limit(p.a, 1, rate, fullFrame(4096)+uint32(rnd.IntN(10_000)))
		var left []departure
		held := int64(-1) // the gate's first refusal
		p.onWire = func(dir string, f *frame) {
			if dir == "A>B" {
				left = append(left, departure{p.now, uint64(f.end - f.start)})
			}
		}
		for range 120 {
			p.write(p.src.sge(uint32(rnd.IntN(1000)), uint32(4096+rnd.IntN(8000))))
		}
		p.run()
		if x, _ := p.a.query(); x.Held == 1 {
			held = p.now
		}
		for p.tick() {
		}
		sum, last := float64(0), left[len(left)-1].at
		for _, d := range left {
			if d.at > held {
				sum += float64(d.bytes)
			}
		}
		if want := float64(rate) * float64(last-held) / 1e9; held < 0 || last == held || sum < 0.99*want {
			t.Fatalf("schedule %d, %d B/s: %.0f bytes in %d ns from the first hold at %d on, %.0f were due", n, rate, sum, last-held, held, want)
		}
	}
}
