//go:build rtl

package rtl

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rnic/hw"
	"rnic/hw/gather/oracle"
	"rnic/hw/roce"
)

// differential is a run of the engine against hw/gather.
type differential struct {
	rng   *rand.Rand
	width int
	walks int
	saw   map[string]int // what the walks had in them
}

// TestRTL_Differential: random walks give the same frames, lookups, cursors and faults in the engine and in hw/gather:
// all contexts at once, or one alone, whose hits and misses are compared as well; limited, with ticks given by
// hand; with a key that is invalidated in mid-walk.
func TestRTL_Differential(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		d := &differential{rng: rand.New(rand.NewPCG(seed(t), uint64(width))), width: width, saw: map[string]int{}}
		for trial := 0; d.walks < walks(t) && !t.Failed(); trial++ {
			way := [...]func(*testing.T){d.together, d.together, d.alone, d.alone, d.alone, d.limited, d.invalidated, d.invalidated}[trial%8]
			if way(t); t.Failed() {
				t.Fatalf("seed %d, width %d, trial %d", seed(t), width, trial)
			}
		}
		t.Logf("%d walks: %v", d.walks, d.saw)
		least := []string{"one segment", "63 segments", "an empty segment", "faults", "READ responses", "inline", "held", "gone", "not gone", "resumed"}
		if walks(t) >= 5000 {
			least = append(least, "64 KiB")
			for _, r := range []hw.Reason{hw.ReasonKeyIndex, hw.ReasonKeyTag, hw.ReasonPD, hw.ReasonAccess, hw.ReasonBounds, hw.ReasonDMARead, hw.ReasonMalformed} {
				least = append(least, r.String())
			}
		}
		for _, what := range least {
			if walks(t) >= 300 && d.saw[what] == 0 {
				t.Errorf("no walk with: %s", what)
			}
		}
	})
}

// scene is a new engine over a new scene.
func (d *differential) scene(t *testing.T) (*rig, *scene, *mirror) {
	r := newRig(t, d.width, d.rng.Uint64())
	r.stalls(d.rng)
	s := randomScene(d.rng)
	r.read = s.read
	for i, g := range s.regions {
		r.region(i, g)
	}
	return r, s, newMirror(t, r, s)
}

// message draws a message and has the mirror walk it.
func (d *differential) message(s *scene, w *mirror, faulty bool) *message {
	w.beyond = 0
	if faulty && d.rng.IntN(30) == 0 {
		w.beyond = 1 + d.rng.Uint32N(5000)
	}
	m := randomMessage(d.rng, w.gather, s, faulty)
	for m.trans == roce.UD && w.beyond != 0 { // it would be more than one packet
		m = randomMessage(d.rng, w.gather, s, faulty)
	}
	if m.request.Inline == nil {
		m.beyond = w.beyond
	}
	d.walks++
	if m.kind == ReadResponse {
		d.saw["READ responses"]++
	}
	if m.request.Inline != nil {
		d.saw["inline"]++
	}
	switch len(m.request.Segments) {
	case 1:
		d.saw["one segment"]++
	case 63:
		d.saw["63 segments"]++
	}
	for _, g := range m.request.Segments {
		switch g.Length {
		case 0:
			d.saw["an empty segment"]++
		case 65536:
			d.saw["64 KiB"]++
		}
	}
	if f := m.walk.Fault; f != nil {
		d.saw["faults"]++
		d.saw[f.Reason]++
	}
	return m
}

// traced compares the steps of walks, and the cursor after each packet, with what the engine traced in a context.
func (r *rig) traced(c int, hits bool, walks ...oracle.Walk) error {
	var steps []oracle.Step
	var cursors []oracle.Cursor
	for _, w := range walks {
		steps = append(steps, w.Steps...)
		for _, p := range w.Packets {
			cursors = append(cursors, p.Cursor)
		}
	}
	if err := sameTrace(r.traces[c], steps, hits); err != nil {
		return err
	}
	at := 0
	for _, s := range r.traces[c] {
		if s.Kind == hw.TraceKindHandover {
			if got := (oracle.Cursor{Segment: int(s.Segment), Offset: s.Offset, Left: s.Bytes}); got != cursors[at] {
				return fmt.Errorf("cursor %+v after packet %d, want %+v", got, at, cursors[at])
			}
			at++
		}
	}
	return nil
}

// together has messages in all contexts at once; one of them is traced.
func (d *differential) together(t *testing.T) {
	r, s, w := d.scene(t)
	token := uint32(0)
	var all [Contexts][]sent
	var traced []oracle.Walk
	for range 1 + d.rng.IntN(12) {
		c := d.rng.IntN(Contexts)
		m := d.message(s, w, d.rng.IntN(2) == 0)
		before := len(all[c])
		all[c] = r.submit(d.rng, c, m, c == 1, &token, all[c])
		if len(all[c]) > before+1 {
			d.saw["resumed"]++
		}
		if c == 1 {
			traced = append(traced, m.walk)
		}
	}
	r.run(int(token))
	for c := range all {
		r.check(t, c, all[c])
	}
	if err := r.traced(1, false, traced...); err != nil {
		t.Error(err)
	}
	if n := r.e.Count(TraceLost); n != 0 {
		t.Errorf("%d steps were lost", n)
	}
}

// alone has one context's messages only: each lookup hits or misses as the mirror's. After a read that failed the
// engine's cache may have what was looked up ahead.
func (d *differential) alone(t *testing.T) {
	r, s, w := d.scene(t)
	c := d.rng.IntN(Contexts)
	token, hits := uint32(0), true
	var all []sent
	var walks []oracle.Walk
	for range 1 + d.rng.IntN(6) {
		m := d.message(s, w, d.rng.IntN(2) == 0)
		all = r.submit(d.rng, c, m, true, &token, all)
		walks = append(walks, m.walk)
		hits = hits && (m.walk.Fault == nil || m.walk.Fault.Reason != hw.ReasonDMARead.String())
	}
	r.run(int(token))
	r.check(t, c, all)
	if err := r.traced(c, hits, walks...); err != nil {
		t.Error(err)
	}
}

// limited has each context's message behind the gate, in a bucket of its own that is filled by hand. After each tick just those
// packets have been looked up and have left whose bytes were there (rules G15, G16).
func (d *differential) limited(t *testing.T) {
	r, s, w := d.scene(t)
	type limit struct {
		m                      *message
		sizes                  []int
		passed                 int
		tokens, quantum, burst uint64 // nanobytes
	}
	var limits [Contexts]*limit
	index := 1 + d.rng.IntN(10)
	for c := range limits {
		if d.rng.IntN(3) == 0 {
			continue
		}
		m := d.message(s, w, d.rng.IntN(3) == 0)
		for len(m.sizes()) > 30 {
			m = d.message(s, w, false)
		}
		l := &limit{m: m, sizes: m.sizes()}
		most := 0
		for _, n := range l.sizes {
			most = max(most, n)
		}
		l.burst = uint64(most + d.rng.IntN(3*most))
		l.quantum = 1 + uint64(d.rng.Int64N(int64(l.burst)*1_500_000_000))
		r.e.SetRate(uint8(index+c), l.quantum, uint32(l.burst))
		l.burst *= 1_000_000_000
		l.tokens = l.burst
		j := m.job(0, 0)
		j.Rate = uint8(index + c)
		r.e.Submit(c, j)
		limits[c] = l
	}
	for tick := 0; ; tick++ {
		frames, lookups, results, left := 0, 0, 0, 0
		ahead := false // packets behind a read that fails have been looked up, perhaps
		for _, l := range limits {
			if l == nil {
				continue
			}
			for l.passed < len(l.sizes) && l.tokens >= uint64(l.sizes[l.passed])*1_000_000_000 {
				l.tokens -= uint64(l.sizes[l.passed]) * 1_000_000_000
				l.passed++
			}
			frames += min(l.passed, len(l.m.walk.Packets))
			ahead = ahead || l.passed > len(l.m.walk.Packets)+1 && l.m.walk.Fault.Reason == hw.ReasonDMARead.String()
			for _, step := range l.m.walk.Steps {
				if step.Kind == "lookup" && step.Packet < l.passed {
					lookups++
				}
			}
			if l.passed == len(l.sizes) {
				results++
			} else {
				left++
				d.saw["held"]++
			}
		}
		out := func() (f, e int) {
			for c := range limits {
				f += len(r.frames[c])
				e += len(r.results[c])
			}
			return f, e
		}
		r.e.Run(2_000_000, r, func() bool {
			f, e := out()
			return f >= frames && e >= results && r.e.Count(Lookups) >= uint64(lookups)
		})
		r.settle(2000)
		if f, e := out(); f != frames || e != results || r.e.Count(Lookups) != uint64(lookups) && !ahead {
			t.Fatalf("after %d ticks %d frames, %d results and %d lookups, want %d, %d and %d", tick, f, e, r.e.Count(Lookups), frames, results, lookups)
		}
		if left == 0 {
			break
		}
		n := 1 + d.rng.IntN(3)
		r.e.Tick(uint32(n))
		for _, l := range limits {
			if l != nil {
				l.tokens = min(l.tokens+uint64(n)*l.quantum, l.burst)
			}
		}
	}
	for c, l := range limits {
		if l != nil {
			r.check(t, c, []sent{{m: l.m, n: len(l.m.walk.Packets), failed: l.m.walk.Fault != nil}})
		}
	}
}

// invalidated has a key go in mid-walk. When that takes effect is the engine's; but there is one place in the order of the
// walks' lookups, not before those that it had made by then, from which everything is as hw/gather has it where the key
// goes there. After the fence no read goes to the region.
func (d *differential) invalidated(t *testing.T) {
	r, s, w := d.scene(t)
	s.bad = func(uint64) bool { return false }
	c := d.rng.IntN(Contexts)
	type job struct{ message, first, n int }
	var ms []*message
	var jobs []job
	var victims []uint32
	for range 1 + d.rng.IntN(3) {
		m := d.message(s, w, false)
		if m.walk.Fault != nil { // by the region's rights
			continue
		}
		whole := len(m.walk.Packets)
		for at := 0; at < whole; {
			n := whole - at
			if d.rng.IntN(2) == 0 {
				n = 1 + d.rng.IntN(n)
			}
			j := m.job(at, n)
			j.Token, j.Trace, j.Chain = uint32(len(jobs)), true, at > 0
			r.e.Submit(c, j)
			jobs = append(jobs, job{len(ms), at, n})
			at += n
		}
		ms = append(ms, m)
		for _, g := range m.request.Segments {
			if g.Length > 0 {
				victims = append(victims, g.Key>>8)
			}
		}
	}
	if len(victims) == 0 {
		return
	}
	victim := victims[d.rng.IntN(len(victims))]
	steps := d.rng.IntN(w.lookups + 1)
	r.e.Run(5_000_000, r, func() bool { return len(r.traces[c]) >= steps || len(r.results[c]) == len(jobs) })
	r.settle(d.rng.Uint32N(60))
	made := lookups(r.traces[c])
	r.keys[victim].Valid = 0
	r.e.Fence(victim)
	if !r.e.Run(5_000_000, r, func() bool { return len(r.fenced) == 1 }) {
		t.Fatal("the fence was not acknowledged")
	}
	g := s.regions[victim]
	r.seen = func(iova uint64, n uint32) {
		if iova+uint64(n) > g.IOVA && iova < g.IOVA+g.Length {
			t.Errorf("a read of %d bytes at %#x after the fence", n, iova)
		}
	}
	r.run(len(jobs))

	var err error
	for gone := made; gone <= max(lookups(r.traces[c]), made); gone++ {
		again := newMirror(t, r, s)
		again.gone, again.victim = gone, victim
		var walks []oracle.Walk
		for _, m := range ms {
			walks = append(walks, again.gather(m.request))
		}
		if e := r.traced(c, true, walks...); e != nil {
			if err == nil {
				err = e
			}
			continue
		}
		var all []sent
		for i, j := range jobs {
			m := *ms[j.message]
			m.walk = walks[j.message]
			whole := len(m.walk.Packets)
			e := sent{m: &m, first: j.first, n: j.n, token: uint32(i)}
			if m.walk.Fault != nil && j.first+j.n > whole {
				e.n, e.failed, e.flush = whole-j.first, j.first <= whole, j.first > whole
			}
			all = append(all, e)
		}
		r.check(t, c, all)
		for _, walk := range walks {
			d.saw[map[bool]string{true: "gone", false: "not gone"}[walk.Fault != nil]]++
		}
		return
	}
	t.Errorf("the key of index %#x went after lookup %d, but from no place on is the walk that of hw/gather: %v", victim, made, err)
}

// lookups counts those of a trace.
func lookups(steps []Trace) (n int) {
	for _, s := range steps {
		if s.Kind == hw.TraceKindLookup {
			n++
		}
	}
	return n
}
