package gather_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/gather/oracle"
)

// full is set for the scale of the acceptance lists instead of the gate's.
var full = os.Getenv("RNIC_FULL") == "1"

// scene is one request in one world. The engine and the oracle look at the
// same regions and bytes, each through its own code.
type scene struct {
	request oracle.Request
	regions map[uint32]oracle.Region
	memory  []byte // at IOVA memoryAt
	bad     map[uint64]bool
	sets    int
	ways    int
	at      int    // before which packet change happens
	change  func() // nil: none
	changed uint32 // the key index that change alters
}

const (
	memoryAt   = 0x4000_0000
	regionSize = 128 << 10
	domain     = 5
	queuePair  = 17
)

var (
	mtus   = []uint32{256, 512, 1024, 2048, 4096}
	random = func() []byte {
		b := make([]byte, 8*regionSize)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}()
)

// Entry is the engine's view of the key table.
func (s *scene) Entry(index uint32) (gather.Key, bool) {
	r, ok := s.regions[index]
	k := gather.Key{Tag: r.Tag, PD: r.PD, Access: hw.Access(r.Rights), Base: r.Base, Length: r.Length, IOVA: r.IOVA, BoundQPN: r.QP}
	if r.Valid {
		k.State = hw.KeyStateValid
	}
	if r.Window {
		k.Type = hw.KeyTypeMW2
	}
	return k, ok
}

func (s *scene) span(iova uint64, n int) ([]byte, error) {
	off := iova - memoryAt
	if iova < memoryAt || off > uint64(len(s.memory)) || uint64(n) > uint64(len(s.memory))-off {
		return nil, errDMA
	}
	for b := range s.bad {
		if b >= iova && b-iova < uint64(n) {
			return nil, errDMA
		}
	}
	return s.memory[off:][:n], nil
}

func (s *scene) Read(iova uint64, dst []byte) error {
	b, err := s.span(iova, len(dst))
	copy(dst, b)
	return err
}

// world is the oracle's view.
func (s *scene) world() *oracle.World {
	w := &oracle.World{Regions: s.regions, Sets: s.sets, Ways: s.ways}
	w.Read = func(iova uint64) (byte, bool) {
		if iova < memoryAt || iova-memoryAt >= uint64(len(s.memory)) || s.bad[iova] {
			return 0, false
		}
		return s.memory[iova-memoryAt], true
	}
	w.Before = func(packet int) {
		if s.change != nil && packet == s.at {
			s.change()
			w.Invalidate(s.changed)
		}
	}
	return w
}

// recorder writes the engine's steps as the oracle's.
type recorder struct {
	verb   string // read or write
	packet int
	steps  []oracle.Step
}

func reason(r hw.Reason) string {
	if r == hw.ReasonNone {
		return ""
	}
	return r.String()
}

func (r *recorder) Lookup(seg int, off, n uint32, hit bool, why hw.Reason) {
	r.steps = append(r.steps, oracle.Step{Kind: "lookup", Packet: r.packet, Segment: seg, Offset: off, Bytes: n, Hit: hit, Reason: reason(why)})
}

func (r *recorder) Read(seg int, off, n uint32, why hw.Reason) {
	r.steps = append(r.steps, oracle.Step{Kind: r.verb, Packet: r.packet, Segment: seg, Offset: off, Bytes: n, Reason: reason(why)})
}

func fault(f gather.Fault) *oracle.Fault {
	return &oracle.Fault{Segment: f.Segment, Key: f.Key, Offset: f.Offset, Reason: f.Reason.String()}
}

func (s *scene) segments() (segs []gather.Segment) {
	for _, g := range s.request.Segments {
		segs = append(segs, gather.Segment(g))
	}
	return segs
}

var ops = map[string]gather.Op{"send": gather.Send, "write": gather.Write, "read-response": gather.ReadResponse}

// engine walks the scene with package gather.
func (s *scene) engine(t testing.TB) (out oracle.Walk, stats gather.CacheStats) {
	t.Helper()
	cache := newCache(t, s.sets, s.ways)
	keys := &gather.Keys{Table: s, Cache: cache}
	segs, op := s.segments(), ops[s.request.Op]
	who := gather.Who{PD: s.request.PD, QPN: s.request.QPN, Access: op.Access()}
	c, f, ok := gather.Start(segs)
	if !ok {
		return oracle.Walk{Fault: fault(f), Steps: []oracle.Step{{Kind: "fault", Segment: f.Segment, Reason: f.Reason.String()}}}, cache.Stats()
	}
	packets := gather.Packets(c.Left, s.request.MTU)
	total := c.Left
	rec := &recorder{verb: "read"}
	for n := uint32(0); n < packets; n++ {
		if s.change != nil && int(n) == s.at {
			s.change()
			cache.Invalidate(s.changed)
		}
		if at, ok := gather.Seek(segs, total-c.Left); !ok || at != c {
			t.Fatalf("seek to the cursor %v gives %v", c, at)
		}
		rec.packet = int(n)
		rec.steps = append(rec.steps, oracle.Step{Kind: "packet", Packet: int(n), Bytes: min(s.request.MTU, c.Left)})
		payload := make([]byte, min(s.request.MTU, c.Left))
		began := c
		took, f, ok := gather.Packet(keys, s, rec, segs, who, &c, s.request.MTU, payload)
		if !ok {
			if took != 0 || c != began {
				t.Fatalf("fault %v: %d bytes, cursor %v → %v", f, took, began, c)
			}
			out.Fault = fault(f)
			rec.steps = append(rec.steps, oracle.Step{Kind: "fault", Packet: int(n), Segment: f.Segment, Offset: f.Offset, Reason: f.Reason.String()})
			break
		}
		out.Packets = append(out.Packets, oracle.Packet{
			Payload: payload[:took], Cursor: oracle.Cursor(c),
			AckReq: gather.AckReq(op, s.request.Reliable, n, packets, s.request.AckEvery),
		})
		rec.steps = append(rec.steps, oracle.Step{Kind: "handover", Packet: int(n), Bytes: uint32(took)})
	}
	out.Steps = rec.steps
	return out, cache.Stats()
}

// compare walks the scene twice and says where the walks part.
func (s *scene) compare(t testing.TB, what string) oracle.Walk {
	t.Helper()
	regions := map[uint32]oracle.Region{}
	for i, r := range s.regions {
		regions[i] = r
	}
	want := s.world().Gather(s.request)
	for i := range s.regions { // what change altered, back again
		s.regions[i] = regions[i]
	}
	got, _ := s.engine(t)
	if diff := differ(got, want); diff != "" {
		t.Fatalf("%s: %s\nrequest %+v", what, diff, s.request)
	}
	return want
}

func differ(got, want oracle.Walk) string {
	for i := range min(len(got.Steps), len(want.Steps)) {
		if got.Steps[i] != want.Steps[i] {
			return fmt.Sprintf("step %d: %+v, the rules say %+v", i, got.Steps[i], want.Steps[i])
		}
	}
	for i := range min(len(got.Packets), len(want.Packets)) {
		g, w := got.Packets[i], want.Packets[i]
		if !bytes.Equal(g.Payload, w.Payload) {
			return fmt.Sprintf("packet %d: other bytes (%d, the rules say %d)", i, len(g.Payload), len(w.Payload))
		}
		if g.AckReq != w.AckReq || g.Cursor != w.Cursor {
			return fmt.Sprintf("packet %d: ackreq %v cursor %+v, the rules say %v %+v", i, g.AckReq, g.Cursor, w.AckReq, w.Cursor)
		}
	}
	if len(got.Steps) != len(want.Steps) || len(got.Packets) != len(want.Packets) || !reflect.DeepEqual(got.Fault, want.Fault) {
		return fmt.Sprintf("%d steps, %d packets, fault %+v; the rules say %d, %d, %+v", len(got.Steps), len(got.Packets), got.Fault, len(want.Steps), len(want.Packets), want.Fault)
	}
	return ""
}

// regionsFor makes n regions of regionSize at random virtual bases; one may
// lie at the very end of the address space.
func regionsFor(rng *rand.Rand, n int) map[uint32]oracle.Region {
	m := map[uint32]oracle.Region{}
	for i := range n {
		base := rng.Uint64() >> (1 + rng.IntN(40)) &^ 0xffff_ffff
		base += uint64(i) << 24 // apart from the others
		base += uint64(rng.IntN(4096))
		if rng.IntN(16) == 0 {
			base = math.MaxUint64 - regionSize + 1
		}
		m[uint32(i*3+1)] = oracle.Region{
			Valid: true, Tag: byte(rng.Uint32()), PD: domain, Rights: 1 | 2 | 4 | 8, Base: base, Length: regionSize,
			IOVA: memoryAt + uint64(i)*regionSize,
		}
	}
	return m
}

// logUniform is 0, or up to most with each power of two as likely.
func logUniform(rng *rand.Rand, most int) uint32 {
	if rng.IntN(17) == 0 {
		return 0
	}
	return uint32(min(float64(most), math.Exp(rng.Float64()*math.Log(float64(most)+1))))
}

// newScene draws a request that has no fault: 1 to 63 segments of 0 B to
// 64 KiB, at any alignment, in several regions.
func newScene(rng *rand.Rand, mtu uint32) *scene {
	s := &scene{memory: random, sets: 1 << rng.IntN(4), ways: 1 + rng.IntN(4), bad: map[uint64]bool{}}
	regions := 1 + rng.IntN(6)
	s.regions = regionsFor(rng, regions)
	count := 1 + rng.IntN(63)
	s.request = oracle.Request{
		Op: []string{"send", "write", "read-response"}[rng.IntN(3)], Reliable: rng.IntN(4) != 0,
		MTU: mtu, PD: domain, QPN: queuePair, AckEvery: []uint32{0, 0, 1, 7, 66}[rng.IntN(5)],
	}
	if s.request.Op == "read-response" && rng.IntN(2) == 0 {
		count = 1 // as on the wire; the engine takes a list all the same (G5)
	}
	for range count {
		index := uint32(rng.IntN(regions)*3 + 1)
		r := s.regions[index]
		length := logUniform(rng, 64<<10)
		s.request.Segments = append(s.request.Segments, oracle.Segment{
			Addr: r.Base + uint64(rng.IntN(regionSize-int(length)+1)), Length: length, Key: index<<8 | uint32(r.Tag),
		})
	}
	return s
}

// kinds of fault that spoil can make.
var faultKinds = []string{"key-index", "key-free", "key-tag", "pd", "access", "bounds", "bounds-wrap", "dma-read", "window", "revoked", "length", "malformed"}

// spoil makes one fault in segment i, at its byte b where the kind has a
// place in the segment, before packet p where it is a key that goes away.
func (s *scene) spoil(kind string, i int, b uint32, p int) {
	g := &s.request.Segments[i]
	index := g.Key >> 8
	r := s.regions[index]
	other := func(change func(*oracle.Region)) { // the same memory under a key of its own
		o := r
		change(&o)
		s.regions[1000] = o
		g.Key = 1000<<8 | uint32(r.Tag)
	}
	switch kind {
	case "key-index":
		g.Key = 2000<<8 | g.Key&0xff
	case "key-free":
		other(func(o *oracle.Region) { o.Valid = false })
	case "key-tag":
		g.Key ^= 1 << (b % 8)
	case "pd":
		other(func(o *oracle.Region) { o.PD = domain + 1 })
	case "access":
		s.request.Op = "read-response"
		other(func(o *oracle.Region) { o.Rights = 1 | 2 | 8 })
	case "window":
		other(func(o *oracle.Region) { o.Window, o.QP = true, queuePair+b%2 })
	case "bounds": // byte b is the first outside
		other(func(o *oracle.Region) { o.Length = g.Addr - o.Base + uint64(b) })
	case "bounds-wrap": // byte b would be at address 0
		g.Addr = -uint64(b)
		if b == 0 {
			g.Addr = 1
		}
		other(func(o *oracle.Region) { o.Base, o.Length = g.Addr, regionSize })
	case "dma-read":
		s.bad[r.IOVA+(g.Addr-r.Base)+uint64(b)] = true
	case "revoked":
		other(func(*oracle.Region) {})
		s.at, s.changed = p, 1000
		s.change = func() { o := s.regions[1000]; o.Valid = false; s.regions[1000] = o }
	case "length":
		g.Length = 1<<31 - 1
		s.request.Segments = append(s.request.Segments, oracle.Segment{Length: 1, Key: 7}, oracle.Segment{Length: 1, Key: 9})
		if len(s.request.Segments) > 63 {
			s.request.Segments = s.request.Segments[len(s.request.Segments)-63:]
		}
	case "malformed":
		for len(s.request.Segments) < 64 {
			s.request.Segments = append(s.request.Segments, *g)
		}
	default:
		panic(kind)
	}
}

// wants says whether a spoiled walk ended as that kind of fault can end.
func wants(kind string, f *oracle.Fault) bool {
	if f == nil {
		return false
	}
	switch kind {
	case "window":
		return f.Reason == "PD" || f.Reason == "ACCESS"
	}
	return f.Reason == map[string]string{
		"key-index": "KEY_INDEX", "key-free": "KEY_INDEX", "revoked": "KEY_INDEX", "key-tag": "KEY_TAG", "pd": "PD",
		"access": "ACCESS", "bounds": "BOUNDS", "bounds-wrap": "BOUNDS", "dma-read": "DMA_READ", "length": "LENGTH", "malformed": "MALFORMED",
	}[kind]
}

// TestG21_RandomWalks compares whole walks, step by step, with the oracle.
func TestG21_RandomWalks(t *testing.T) {
	t.Parallel()
	n := 2000
	if full {
		n = 20000
	}
	if underRace {
		n /= 10
	}
	ended := map[string]int{}
	for i := range n {
		rng := rand.New(rand.NewPCG(0x6a74, uint64(i)))
		s := newScene(rng, mtus[i%len(mtus)])
		kind := "none"
		if rng.IntN(2) == 0 {
			kind = faultKinds[rng.IntN(len(faultKinds))]
			seg := rng.IntN(len(s.request.Segments))
			length := s.request.Segments[seg].Length
			b := uint32(0)
			if length > 0 {
				b = rng.Uint32N(length)
			}
			s.spoil(kind, seg, b, rng.IntN(8))
		}
		walk := s.compare(t, fmt.Sprintf("walk %d (fault %s)", i, kind))
		if walk.Fault != nil {
			ended[walk.Fault.Reason]++
		} else {
			ended["whole"]++
		}
	}
	// The draw must have met every end that a gather has.
	for _, r := range []string{"whole", "KEY_INDEX", "KEY_TAG", "PD", "ACCESS", "BOUNDS", "DMA_READ", "LENGTH", "MALFORMED"} {
		if ended[r] < n/200 {
			t.Errorf("only %d of %d walks ended as %s: %v", ended[r], n, r, ended)
		}
	}
}

// TestG17_EachFaultAtEachPosition makes each kind of fault in each segment of
// a list, at its first, middle and last byte and around each packet's edge,
// and, for a key that goes away, before each packet; at each MTU.
func TestG17_EachFaultAtEachPosition(t *testing.T) {
	t.Parallel()
	lengths := []uint32{1, 0, 700, 256, 0, 5000, 3, 4096, 1024, 0}
	for _, mtu := range mtus {
		if underRace && mtu != 1024 {
			continue
		}
		for _, kind := range faultKinds {
			for seg, length := range lengths {
				if length == 0 && kind != "length" && kind != "malformed" {
					continue
				}
				positions := []uint32{0, 1, length / 2, length - 1}
				for edge, at := mtu-before(lengths, seg)%mtu, 0; edge <= length && at < 4; edge, at = edge+mtu, at+1 {
					positions = append(positions, edge-1, edge, edge+1)
				}
				if length == 0 {
					positions = []uint32{0}
				}
				for _, b := range positions {
					if b >= length && length != 0 || kind == "bounds-wrap" && b == 0 {
						continue
					}
					for p := range 1 + int(12000/mtu) {
						if kind != "revoked" && p > 0 {
							break
						}
						rng := rand.New(rand.NewPCG(uint64(mtu), 3))
						s := &scene{memory: random, sets: 4, ways: 2, bad: map[uint64]bool{}, regions: regionsFor(rng, 2)}
						s.request = oracle.Request{Op: "send", Reliable: true, MTU: mtu, PD: domain, QPN: queuePair}
						for i, l := range lengths {
							index := uint32(i%2*3 + 1)
							r := s.regions[index]
							s.request.Segments = append(s.request.Segments, oracle.Segment{Addr: r.Base + uint64(i)*7001, Length: l, Key: index<<8 | uint32(r.Tag)})
						}
						s.spoil(kind, seg, b, p)
						what := fmt.Sprintf("mtu %d, %s in segment %d at byte %d, packet %d", mtu, kind, seg, b, p)
						walk := s.compare(t, what)
						if kind == "revoked" { // perhaps gone only after its last use
							continue
						}
						if !wants(kind, walk.Fault) {
							t.Fatalf("%s: the fault did not show: %+v", what, walk.Fault)
						}
						if kind != "length" && kind != "malformed" && walk.Fault.Segment != seg {
							t.Fatalf("%s: fault in segment %d", what, walk.Fault.Segment)
						}
					}
				}
			}
		}
	}
}

// before is how many bytes of a list stand before segment i.
func before(lengths []uint32, i int) (n uint32) {
	for _, l := range lengths[:i] {
		n += l
	}
	return n
}

// sink is the engine's memory for scatters.
type sink struct{ *scene }

func (s sink) Write(iova uint64, src []byte) error {
	b, err := s.span(iova, len(src))
	copy(b, src)
	return err
}

// TestG02_RandomScatters compares scatters, memory included, with the oracle.
func TestG02_RandomScatters(t *testing.T) {
	t.Parallel()
	n := 200
	if full {
		n = 2000
	}
	if underRace {
		n /= 10
	}
	faults := 0
	for i := range n {
		rng := rand.New(rand.NewPCG(0x5ca7, uint64(i)))
		s := newScene(rng, mtus[i%len(mtus)])
		s.change = nil
		kind := []string{"key-index", "key-tag", "pd", "bounds", "dma-read", "revoked", "none", "none"}[rng.IntN(8)]
		if seg := rng.IntN(len(s.request.Segments)); kind != "none" && s.request.Segments[seg].Length > 0 {
			s.spoil(kind, seg, rng.Uint32N(s.request.Segments[seg].Length), rng.IntN(4))
		}
		total := 0
		for _, g := range s.request.Segments {
			total += int(g.Length)
		}
		left := total
		switch rng.IntN(8) {
		case 0, 2:
			left = rng.IntN(total + 1) // a message shorter than its segments
		case 1:
			left += 1 // or longer
		}
		var payloads [][]byte
		for ok := true; ok; ok = left > 0 {
			take := min(left, int(s.request.MTU))
			payloads = append(payloads, random[rng.IntN(len(random)-take):][:take])
			left -= take
		}
		rights := uint8(1 + rng.IntN(2))

		s.memory = slices.Clone(random)
		regions := map[uint32]oracle.Region{}
		for i, r := range s.regions {
			regions[i] = r
		}
		w := s.world()
		w.Write = func(iova uint64, b byte) bool {
			_, ok := w.Read(iova)
			if ok {
				s.memory[iova-memoryAt] = b
			}
			return ok
		}
		want := w.Scatter(s.request.Segments, payloads, domain, queuePair, rights)
		wantMemory := s.memory
		for i := range s.regions {
			s.regions[i] = regions[i]
		}

		s.memory = slices.Clone(random)
		var got oracle.Walk
		keys := &gather.Keys{Table: s, Cache: newCache(t, s.sets, s.ways)}
		segs := s.segments()
		rec := &recorder{verb: "write"}
		c, f, ok := gather.Start(segs)
		for p := 0; ok && p < len(payloads); p++ {
			if s.change != nil && p == s.at {
				s.change()
				keys.Cache.Invalidate(s.changed)
			}
			rec.packet = p
			began := c
			if f, ok = gather.Scatter(keys, sink{s}, rec, segs, gather.Who{PD: domain, QPN: queuePair, Access: hw.Access(rights)}, &c, payloads[p]); ok {
				got.Packets = append(got.Packets, oracle.Packet{Cursor: oracle.Cursor(c)})
			} else if c != began {
				t.Fatalf("scatter %d: the cursor moved from %v to %v in spite of %v", i, began, c, f)
			}
		}
		if !ok {
			got.Fault = fault(f)
			faults++
		}
		got.Steps = rec.steps
		if diff := differ(got, want); diff != "" {
			t.Fatalf("scatter %d (%s): %s", i, kind, diff)
		}
		// A piece whose write failed may be there in part: the oracle writes
		// up to the bad byte, this memory refuses the piece whole.
		if got.Fault == nil || got.Fault.Reason != "DMA_WRITE" {
			if !bytes.Equal(s.memory, wantMemory) {
				t.Fatalf("scatter %d (%s): memory differs", i, kind)
			}
		}
	}
	if faults < n/4 || faults > n*3/4 {
		t.Errorf("%d of %d scatters failed; the draw should give about half", faults, n)
	}
}
