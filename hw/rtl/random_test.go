//go:build rtl

package rtl

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"rnic/hw"
	"rnic/hw/gather/oracle"
	"rnic/hw/roce"
	"rnic/hw/roce/rocetest"
)

// walks is how many random messages a width gets: RTL_WALKS, or 300; the full scale is 5,000.
func walks(t *testing.T) int {
	if s := os.Getenv("RTL_WALKS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if os.Getenv("RNIC_FULL") == "1" {
		return 5000
	}
	return 300
}

// seed is that of a run: RTL_SEED, or 1. A failure names it.
func seed(t *testing.T) uint64 {
	if s := os.Getenv("RTL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 1
}

// scene is a key table and a memory with bad places in it.
type scene struct {
	regions map[uint32]oracle.Region
	keys    []uint32 // index << 8 | tag, good ones
	bad     func(iova uint64) bool
}

const boundQPN = 17 // of memory windows

const end = 1 << 20 // key indices from here on are beyond the table

func randomScene(rng *rand.Rand) *scene {
	s := &scene{regions: map[uint32]oracle.Region{}}
	n := 1 + rng.IntN(40)
	for range n {
		index := rng.Uint32() & (end - 1)
		if rng.IntN(2) == 0 {
			index = index&^63 | 5 // one set of the cache
		}
		g := oracle.Region{Valid: true, Tag: uint8(rng.Uint32()), PD: 3, Rights: 4, Base: rng.Uint64N(1 << 46), Length: 1 + rng.Uint64N(1<<17), IOVA: rng.Uint64N(1<<50) &^ 0xfff}
		g.IOVA += g.Base & 0xfff
		switch rng.IntN(20) {
		case 0:
			g.Rights = 3 // not for READ responses
		case 1:
			g.Window, g.QP = true, boundQPN // for READ responses only
		}
		s.regions[index] = g
		s.keys = append(s.keys, index<<8|uint32(g.Tag))
	}
	page := rng.Uint64()
	rate := uint64(400)
	if rng.IntN(4) == 0 {
		rate = 20
	}
	s.bad = func(iova uint64) bool { return ((iova>>9)*0x9e3779b97f4a7c15^page)>>40%rate == 0 }
	if rng.IntN(3) != 0 {
		s.bad = func(uint64) bool { return false }
	}
	return s
}

func (s *scene) read(iova uint64) (byte, bool) { return pattern(iova), !s.bad(iova) }

// segment draws a data segment; one in fault is wrong in one of the ways of rule G10.
func (s *scene) segment(rng *rand.Rand, most int, fault int) oracle.Segment {
	key := s.keys[rng.IntN(len(s.keys))]
	g := s.regions[key>>8]
	length := rng.IntN(most + 1)
	switch rng.IntN(6) {
	case 0:
		length = 0
	case 1:
		length = min(most, 1+rng.IntN(70))
	case 2:
		if rng.IntN(8) == 0 {
			length = most
		}
	}
	length = min(length, int(g.Length))
	off := rng.Uint64N(g.Length - uint64(length) + 1)
	seg := oracle.Segment{Addr: g.Base + off, Length: uint32(length), Key: key}
	if fault != 0 && rng.IntN(fault) == 0 {
		switch rng.IntN(5) {
		case 0:
			seg.Key ^= 1 << 8 << rng.IntN(24) // another index
		case 1:
			seg.Key ^= 1 << rng.IntN(8)
		case 2:
			seg.Addr = g.Base + g.Length - uint64(length)/2
		case 3:
			seg.Addr = g.Base - 1
		case 4:
			seg.Addr = -uint64(length) / 2
		}
	}
	return seg
}

// randomMessage draws a request and has w walk it.
func randomMessage(rng *rand.Rand, w func(oracle.Request) oracle.Walk, s *scene, faulty bool) *message {
	m := &message{header: randomHeader(rng), psn: rng.Uint32() & roce.PSNMask, ipid: uint16(rng.Uint32()),
		kind: Kind(1 + rng.IntN(3)), solicit: rng.IntN(2) == 0}
	r := &m.request
	r.MTU, r.PD, r.QPN = 256<<rng.IntN(5), 3, rng.Uint32()&roce.PSNMask
	if rng.IntN(2) == 0 {
		r.QPN = boundQPN
	}
	m.trans = roce.RC
	if m.kind != ReadResponse {
		m.trans = roce.Transport(rng.IntN(2)) // RC, UC
		m.imm = rng.IntN(3) == 0
		m.inv = !m.imm && m.kind == Send && m.trans == roce.RC && rng.IntN(3) == 0
		r.AckEvery = uint32([]int{0, 0, 1, 2, 5}[rng.IntN(5)])
	}
	if m.kind == Send && rng.IntN(6) == 0 { // UD: one packet
		m.trans, m.inv = roce.UD, false
	}
	r.Reliable = m.trans == roce.RC
	r.Op = [...]string{Send: "send", Write: "write", ReadResponse: "read-response"}[m.kind]
	fault := 0
	if faulty {
		fault = 5
	}
	n, most := rng.IntN(6), 9000
	switch rng.IntN(12) {
	case 0:
		n, most = 63, 200
	case 1:
		n, most = 1, 65536
	case 2, 3:
		n, most = 1+rng.IntN(63), 300
	case 4:
		n, most = 1+rng.IntN(63), 65536/(1<<rng.IntN(10))
	}
	if m.trans == roce.UD {
		most = int(r.MTU) / max(n, 1)
	}
	switch {
	case m.kind == ReadResponse:
		r.Segments = []oracle.Segment{s.segment(rng, 20000, fault)}
	case m.kind == Send && m.trans != roce.UD && rng.IntN(5) == 0:
		r.Inline = make([]byte, rng.IntN(961))
		for i := range r.Inline {
			r.Inline[i] = byte(rng.Uint32())
		}
	default:
		total := uint32(0)
		for range n {
			g := s.segment(rng, most, fault)
			if fill := r.MTU - total%r.MTU; rng.IntN(4) == 0 && fill <= g.Length {
				g.Length = fill // it ends with its packet
			}
			total += g.Length
			r.Segments = append(r.Segments, g)
		}
	}
	if faulty && rng.IntN(20) == 0 {
		r.PD = 4
	}
	m.walk = w(*r)
	return m
}

// sent is what a context was given, in order, and what must come of it.
type sent struct {
	m      *message
	first  int // packets [first, first+n)
	n      int
	failed bool // it ends in the message's fault
	token  uint32
	flush  bool // it falls with the job before
}

// submit splits a message into jobs. After its fault nothing of it is submitted but, now and then, a job
// that must fall with it.
func (r *rig) submit(rng *rand.Rand, c int, m *message, traced bool, token *uint32, out []sent) []sent {
	whole := len(m.walk.Packets)
	chain := false
	for at := 0; ; {
		n := 0 // to the end
		if rng.IntN(3) == 0 {
			n = 1 + rng.IntN(3)
		}
		j := m.job(at, n)
		*token++
		j.Token, j.Chain, j.Trace = *token, chain, traced
		e := sent{m: m, first: at, n: whole - at, token: *token}
		if n != 0 && n <= whole-at {
			e.n = n
		}
		last := at+e.n == whole && m.walk.Fault == nil
		e.failed = at+e.n == whole && m.walk.Fault != nil && (n == 0 || n > e.n)
		r.e.Submit(c, j)
		out = append(out, e)
		chain = true
		at += e.n
		if e.failed && rng.IntN(2) == 0 {
			*token++
			fall := m.job(0, 0)
			fall.Token, fall.Chain = *token, true
			r.e.Submit(c, fall)
			out = append(out, sent{m: m, token: *token, flush: true})
		}
		if last || e.failed {
			return out
		}
	}
}

// check compares what came out of a context with what must have.
func (r *rig) check(t *testing.T, c int, all []sent) {
	t.Helper()
	frames, results := r.frames[c], r.results[c]
	if len(results) != len(all) {
		t.Fatalf("context %d: %d results, want %d", c, len(results), len(all))
	}
	for i, e := range all {
		got := results[i]
		fault := e.m.walk.Fault
		switch {
		case got.Token != e.token:
			t.Fatalf("context %d: result %d has token %d, want %d", c, i, got.Token, e.token)
		case e.flush:
			if got.Fault.Reason != hw.ReasonFlushed || got.PSNs != 0 {
				t.Fatalf("context %d: a job that falls with the one before gave %+v", c, got)
			}
			continue
		case int(got.PSNs) != e.n:
			t.Fatalf("context %d: job %d sent %d packets (%v), want %d; the message's fault is %+v", c, i, got.PSNs, got.Fault, e.n, fault)
		case e.failed:
			if got.Fault.Segment != fault.Segment || got.Fault.Key != fault.Key || got.Fault.Offset != fault.Offset || got.Fault.Reason.String() != fault.Reason {
				t.Fatalf("context %d: fault %+v, want %+v", c, got.Fault, *fault)
			}
		case got.Fault.Reason != hw.ReasonNone:
			t.Fatalf("context %d: fault %+v, want none", c, got.Fault)
		}
		if e.n > 0 {
			want := e.m.walk.Packets[e.first+e.n-1].Cursor
			if e.m.request.Inline != nil && want.Left == 0 {
				want = oracle.Cursor{Segment: 1}
			}
			if oracle.Cursor(got.Cursor) != want {
				t.Fatalf("context %d: cursor %+v after packet %d, want %+v", c, got.Cursor, e.first+e.n-1, want)
			}
		}
		for p := range e.n {
			if len(frames) == 0 {
				t.Fatalf("context %d: packet %d of a message is missing", c, e.first+p)
			}
			if err := same(frames[0], e.m.frame(e.first+p)); err != nil {
				t.Fatalf("context %d: packet %d of %d, MTU %d, segments %+v, inline %d: %v", c, e.first+p, len(e.m.walk.Packets), e.m.request.MTU, e.m.request.Segments, len(e.m.request.Inline), err)
			}
			icrc, err := rocetest.ICRC(frames[0])
			stored, _ := rocetest.Stored(frames[0])
			if err != nil || icrc != stored {
				t.Fatalf("context %d: ICRC %#x, want %#x (%v)", c, stored, icrc, err)
			}
			frames = frames[1:]
		}
	}
	if len(frames) != 0 {
		t.Fatalf("context %d: %d frames too many", c, len(frames))
	}
}

// TestRandom: random messages of every kind through all contexts at once, memory in any order, every
// stall, every fault: the frames, cursors and faults of the oracle and of hw/roce.
func TestRandom(t *testing.T) {
	for _, width := range widths {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed(t), uint64(width)))
			total, packets, faults := 0, 0, 0
			for trial := 0; total < walks(t); trial++ {
				if !t.Run(fmt.Sprint(trial), func(t *testing.T) {
					r := newRig(t, width, rng.Uint64())
					r.stalls(rng)
					s := randomScene(rng)
					r.read = s.read
					for i, g := range s.regions {
						r.region(i, g)
					}
					w := &oracle.World{Regions: s.regions, Read: s.read}
					token := uint32(0)
					var all [Contexts][]sent
					n := 1 + rng.IntN(12)
					for range n {
						c := rng.IntN(Contexts)
						m := randomMessage(rng, w.Gather, s, rng.IntN(2) == 0)
						all[c] = r.submit(rng, c, m, rng.IntN(2) == 0, &token, all[c])
						packets += len(m.walk.Packets)
						if m.walk.Fault != nil {
							faults++
						}
					}
					total += n
					r.run(int(token))
					for c := range all {
						r.check(t, c, all[c])
					}
				}) {
					t.Fatalf("seed %d, width %d, trial %d", seed(t), width, trial)
				}
			}
			t.Logf("%d messages, %d packets, %d faults", total, packets, faults)
		})
	}
}

// TestAlone: one context alone. Now the trace is the oracle's too, hits and misses included: each
// lookup in the walk's order, none missing, none too many (rules G9, G12, G22).
func TestAlone(t *testing.T) {
	for _, width := range widths {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed(t), uint64(width)))
			for trial := 0; trial < (walks(t)+7)/8; trial++ {
				if !t.Run(fmt.Sprint(trial), func(t *testing.T) {
					r := newRig(t, width, rng.Uint64())
					r.stalls(rng)
					s := randomScene(rng)
					r.read = s.read
					for i, g := range s.regions {
						r.region(i, g)
					}
					w := &oracle.World{Regions: s.regions, Read: s.read, Sets: 64, Ways: 4}
					c := rng.IntN(Contexts)
					results, hits := 0, true
					for range 8 {
						m := randomMessage(rng, w.Gather, s, rng.IntN(2) == 0)
						j := m.job(0, 0)
						j.Trace = true
						r.traces[c] = nil
						r.e.Submit(c, j)
						results++
						r.run(results)
						compareTrace(t, r.traces[c], m.walk.Steps, hits)
						if f := m.walk.Fault; f != nil && f.Reason == "DMA_READ" {
							hits = false // what was looked up ahead of the fault is in the cache
						}
						if t.Failed() {
							t.Fatalf("request %+v", m.request)
						}
					}
				}) {
					t.Fatalf("seed %d, width %d, trial %d", seed(t), width, trial)
				}
			}
		})
	}
}
