package driver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/roce"
	"rnic/hw/softcard"
)

// poison is what is written over memory that was deregistered. No byte of payload that
// is right has it: those are below 0x80.
const poison = 0xdb

// What a region of a round has before and after; it is at most as long. (Whole copies and
// comparisons: the race detector looks at each byte of a loop.)
var (
	racePayload = pattern(16<<10, func(i int) byte { return byte(i) & 0x7f })
	racePoison  = pattern(16<<10, func(int) byte { return poison })
)

func pattern(n int, at func(i int) byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = at(i)
	}
	return b
}

// raceSeed is the seed of the schedules: RNIC_SEED, else one of its own. It is printed,
// and replays sizes, places, requests and pauses; how goroutines interleave is the
// machine's.
func raceSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("RNIC_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("RNIC_SEED=%d replays this", seed)
	return seed
}

// raced is a region of a round, and what became of it.
type raced struct {
	m      *driver.MR
	memory []byte // also after Dereg: the test's own, or of an arena
	after  int    // completions before Dereg
	now    chan struct{}
	going  atomic.Bool
	gone   atomic.Bool // Dereg has returned nil
	fenced uint64
}

// raceWR is a work request of a round.
type raceWR struct {
	from *raceEnd
	wr   driver.SendWR
	uses []*raced // by segment; nil: memory that stays. Of a READ or WRITE by the peer: the region that the wire names
	late bool     // one of them was gone when it was posted
}

// raceEnd is one end of a connection.
type raceEnd struct {
	s    *side
	qp   *driver.QP
	dead bool
}

// race is a pair of cards on which regions of a are deregistered while a gathers from
// them, and b reads and writes them.
type race struct {
	t            *testing.T
	a, b         *side
	gathers      [2][2]*raceEnd // a posts: its end, and the peer's
	reads        [2][2]*raceEnd // b posts
	g            *driver.Debug
	log          func() []driver.DMARecord
	frames       driver.Stream[driver.CaptureFrame]
	sequence     uint64
	dead         []*raced // whose addresses nobody has taken over
	own          [][]byte // memory for RegMR
	rounds, torn int      // all, and those in which some requests were served and others refused
	refused      map[string]int
}

func newRace(t *testing.T, opts ...driver.Option) *race {
	t.Helper()
	init := driver.QPInit{Type: driver.RC, MaxSendWR: 32, MaxRecvWR: 64, MaxSendSGE: 16, MaxRecvSGE: 1}
	r := &race{t: t, refused: map[string]int{}}
	addrs := limited(t, softcard.Limits{CompletionTimeout: 60_000_000})
	r.a, r.b = newSide(t, addrs[0], 256, init, opts...), newSide(t, addrs[1], 256, init)
	connect(t, r.a.qp, r.b.qp)
	ctx := testCtx(t)
	end := func(s *side) *raceEnd {
		i := init
		i.SendCQ, i.RecvCQ = s.cq, s.cq
		q, err := s.pd.CreateQP(ctx, i)
		if err != nil {
			t.Fatal(err)
		}
		return &raceEnd{s: s, qp: q, dead: true}
	}
	for i := range 2 {
		r.gathers[i] = [2]*raceEnd{end(r.a), end(r.b)}
		r.reads[i] = [2]*raceEnd{end(r.b), end(r.a)}
	}
	for range 2 {
		r.own = append(r.own, ownPages(t, 16<<10))
	}
	for _, s := range []*side{r.a, r.b} {
		for i := range s.mr.Bytes() {
			s.mr.Bytes()[i] = byte(i) & 0x7f
		}
	}
	r.g, r.log = dmaLog(t, r.a.d, 1<<15)
	var err error
	if r.frames, err = r.b.d.Capture(ctx, driver.CaptureOptions{Entries: 1 << 11}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.frames.Close() })
	return r
}

// round registers regions, posts, deregisters, and looks at what came of it.
func (r *race) round(seed, n uint64) {
	t := r.t
	rng := rand.New(rand.NewPCG(seed, n))
	ctx, cancel := context.WithTimeout(context.Background(), 30e9)
	defer cancel()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d, round %d: %s", seed, n, fmt.Sprintf(format, args...))
	}
	var linking sync.WaitGroup
	for _, links := range [][2][2]*raceEnd{r.gathers, r.reads} {
		for _, l := range links {
			if l[0].dead {
				l[0].dead = false
				psn := [2]uint32{rng.Uint32() & 0xffffff, rng.Uint32() & 0xffffff}
				linking.Add(1)
				go func() {
					defer linking.Done()
					if err := relink(ctx, l[0].qp, l[1].qp, psn); err != nil {
						t.Errorf("seed %d, round %d: %v", seed, n, err)
					}
				}()
			}
		}
	}
	linking.Wait()

	regions := make([]*raced, 1+rng.IntN(3))
	for i := range regions {
		x := &raced{}
		var err error
		if i < len(r.own) && rng.IntN(4) == 0 {
			x.m, err = r.a.pd.RegMR(ctx, r.own[i], allAccess)
		} else {
			x.m, err = r.a.pd.AllocMR(ctx, 4096+rng.IntN(12<<10), allAccess)
		}
		if err != nil {
			fail("register: %v", err)
		}
		x.memory = x.m.Bytes()
		copy(x.memory, racePayload)
		regions[i] = x
		for k := 0; k < len(r.dead); { // one that was taken over is nobody's grave any more
			if d := r.dead[k]; d.m.IOVA() < x.m.IOVA()+uint64(x.m.Len()) && x.m.IOVA() < d.m.IOVA()+uint64(d.m.Len()) {
				r.dead[k] = r.dead[len(r.dead)-1]
				r.dead = r.dead[:len(r.dead)-1]
			} else {
				k++
			}
		}
	}

	var wrs []*raceWR
	for _, l := range r.gathers {
		for range 1 + rng.IntN(4) {
			w := &raceWR{from: l[0]}
			w.wr = driver.SendWR{WRID: uint64(len(wrs)), Opcode: driver.Write, Flags: driver.Signaled, Remote: r.b.mr.Remote()}
			if rng.IntN(2) == 0 {
				w.wr.Opcode = driver.Send
			}
			for range 2 + rng.IntN(6) {
				x := regions[rng.IntN(len(regions))]
				size, off := 1+rng.IntN(2000), rng.IntN(2000)
				if rng.IntN(4) == 0 {
					w.uses, w.wr.SGEs = append(w.uses, nil), append(w.wr.SGEs, r.a.mr.SGE(off, size))
				} else {
					w.uses, w.wr.SGEs = append(w.uses, x), append(w.wr.SGEs, x.m.SGE(off, size))
				}
			}
			if w.wr.Opcode == driver.Send {
				if err := l[1].qp.PostRecv(&driver.RecvWR{WRID: recvID, SGEs: []driver.SGE{r.b.mr.SGE(0, 64<<10)}}); err != nil {
					fail("%v", err)
				}
			}
			wrs = append(wrs, w)
		}
	}
	for _, l := range r.reads {
		for range 1 + rng.IntN(4) {
			x := regions[rng.IntN(len(regions))]
			size := 1 + rng.IntN(4096)
			off := rng.IntN(x.m.Len() - size + 1)
			w := &raceWR{from: l[0], uses: []*raced{x}}
			w.wr = driver.SendWR{WRID: uint64(len(wrs)), Opcode: driver.Read, Flags: driver.Signaled, SGEs: []driver.SGE{r.b.mr.SGE(128<<10, size)}, Remote: x.m.Remote().At(uint64(off))}
			if rng.IntN(2) == 0 {
				w.wr.Opcode = driver.Write
			}
			wrs = append(wrs, w)
		}
	}

	var all sync.WaitGroup
	pause := func(n int) {
		for range n {
			runtime.Gosched()
		}
	}
	for _, links := range [][2][2]*raceEnd{r.gathers, r.reads} {
		for _, l := range links {
			var mine []*raceWR
			for _, w := range wrs {
				if w.from == l[0] {
					mine = append(mine, w)
				}
			}
			gap := rng.IntN(20)
			all.Add(1)
			go func() {
				defer all.Done()
				for _, w := range mine {
					for _, x := range w.uses {
						w.late = w.late || x != nil && x.gone.Load()
					}
					if err := w.from.qp.PostSend(&w.wr); err != nil {
						t.Errorf("seed %d, round %d: post: %v", seed, n, err)
					}
					pause(gap)
				}
			}()
		}
	}
	for _, x := range regions {
		callers, wait := 1+rng.IntN(2), rng.IntN(50)
		x.after, x.now = rng.IntN(len(wrs)/3+1), make(chan struct{})
		var first sync.Once
		for range callers {
			all.Add(1)
			go func() {
				defer all.Done()
				<-x.now
				pause(wait)
				x.going.Store(true)
				if err := x.m.Dereg(ctx); err != nil {
					t.Errorf("seed %d, round %d: Dereg: %v", seed, n, err)
					return
				}
				first.Do(func() {
					copy(x.memory, racePoison)
					x.gone.Store(true)
					x.fenced = r.g.FencedAt(x.m)
					if !x.m.Quarantined() || x.fenced == 0 {
						t.Errorf("seed %d, round %d: after Dereg: quarantined %v, fenced at %d", seed, n, x.m.Quarantined(), x.fenced)
					}
				})
			}()
		}
	}
	r.complete(ctx, wrs, regions, fail)
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	r.dead = append(r.dead, regions...)
	if len(r.dead) > 64 {
		r.dead = r.dead[len(r.dead)-64:]
	}
	r.look(fail)
	for _, x := range regions {
		if !bytes.Equal(x.memory, racePoison[:len(x.memory)]) {
			fail("the memory of %#x was written after its Dereg", x.m.IOVA())
		}
	}
	r.rounds++
}

// recvID is the ID of every receive.
const recvID = 1 << 40

// complete takes the completions of a round's requests: each is a success, or the first
// of its queue pair that failed has the reason that Dereg gives, and all after it are
// flushed.
// On the way it tells the regions when it is their turn to go.
func (r *race) complete(ctx context.Context, wrs []*raceWR, regions []*raced, fail func(string, ...any)) {
	var wc [32]driver.WC
	served, refused := 0, 0
	left := map[*side]int{}
	for _, w := range wrs {
		left[w.from.s]++
	}
	due := slices.SortedFunc(slices.Values(regions), func(x, y *raced) int { return x.after - y.after })
	for s := r.a; left[r.a]+left[r.b] > 0; {
		for len(due) > 0 && due[0].after <= served+refused {
			close(due[0].now)
			due = due[1:]
		}
		if s = other(r.a, r.b, s); left[s] == 0 {
			s = other(r.a, r.b, s)
		}
		n, err := s.cq.Poll(wc[:])
		if err == nil && n == 0 {
			runtime.Gosched()
			err = ctx.Err()
		}
		if err != nil {
			fail("%d and %d completions are missing: %v", left[r.a], left[r.b], err)
		}
		for i := range wc[:n] {
			if wc[i].WRID == recvID {
				continue // of a receive, flushed or not
			}
			left[s]--
			w := wrs[wc[i].WRID]
			var e *driver.CompletionError
			switch err := wc[i].Err(); {
			case w.from.s != s || wc[i].QPN != w.from.qp.Number():
				fail("completion of %d on QP %#x", wc[i].WRID, wc[i].QPN)
			case err == nil && w.from.dead:
				fail("%d is served after one that was refused", wc[i].WRID)
			case err == nil && w.late:
				fail("%d names a region that was gone, and is served: %+v", wc[i].WRID, w.wr)
			case err == nil:
				served++
			case !errors.As(err, &e):
				fail("%v", err)
			case w.from.dead:
				if refused++; e.Status != driver.StatusWRFlushErr || e.Reason != driver.ReasonFlushed {
					fail("after one that was refused: %v", e)
				}
			case s == r.a:
				refused++
				w.from.dead = true
				if e.Status != driver.StatusLocProtErr || e.Reason != driver.ReasonKeyIndex || e.Segment < 0 || e.Segment >= len(w.uses) || w.uses[e.Segment] == nil ||
					!w.uses[e.Segment].going.Load() || e.Key != w.wr.SGEs[e.Segment].LKey || e.Offset >= uint64(w.wr.SGEs[e.Segment].Length) {
					fail("%v, of %+v", e, w.wr)
				}
				r.refused[fmt.Sprint(w.wr.Opcode)]++
			default:
				refused++
				w.from.dead = true
				if e.Status != driver.StatusRemAccessErr || e.Reason != driver.ReasonRemoteNAK || e.AETH != 0x62 || !w.uses[0].going.Load() { // NAK, remote access error
					fail("%v, of %+v", e, w.wr)
				}
				r.refused["peer's "+fmt.Sprint(w.wr.Opcode)]++
			}
		}
	}
	for _, x := range due {
		close(x.now)
	}
	if served > 0 && refused > 0 {
		r.torn++
	}
	for { // receives
		n, err := r.b.cq.Poll(wc[:])
		if err != nil {
			fail("%v", err)
		}
		if n == 0 {
			return
		}
	}
}

func other(a, b, s *side) *side {
	if s == a {
		return b
	}
	return a
}

// look reads the card's DMA log and the frames on the wire.
func (r *race) look(fail func(string, ...any)) {
	last, err := r.g.DMASequence()
	if err != nil {
		fail("%v", err)
	}
	records := r.log()
	for end := time.Now().Add(10 * time.Second); (len(records) == 0 || records[len(records)-1].Sequence < last) && r.sequence < last && time.Now().Before(end); {
		records = append(records, r.log()...) // a record comes behind the number that it has
	}
	for _, x := range records {
		if r.sequence != 0 && x.Sequence != r.sequence+1 {
			fail("the DMA log has access %d behind %d: %d lost", x.Sequence, r.sequence, x.Lost)
		}
		r.sequence = x.Sequence
		if x.Reason != driver.ReasonNone {
			fail("a DMA access failed: %+v", x)
		}
		for _, d := range r.dead {
			if x.Sequence > d.fenced && x.IOVA < d.m.IOVA()+uint64(d.m.Len()) && d.m.IOVA() < x.IOVA+uint64(x.Length) {
				fail("a region at %#x of %d bytes was fenced at access %d, and there is %+v", d.m.IOVA(), d.m.Len(), d.fenced, x)
			}
		}
	}
	if r.sequence < last {
		fail("the DMA log ends with access %d of %d", r.sequence, last)
	}
	past, cancel := context.WithCancel(context.Background())
	cancel() // a frame that is there is given out all the same
	for {
		f, err := r.frames.Next(past)
		if err != nil {
			return
		}
		var p roce.Packet
		if err := roce.Parse(f.Data, &p); f.Lost != 0 || f.Flags&hw.CaptureFlagTruncated != 0 || err != nil {
			fail("frame of %d bytes, %d lost: %v", f.Length, f.Lost, err)
		}
		if i := bytes.IndexByte(p.Payload(), poison); i >= 0 {
			fail("payload byte %d of a %v on the wire is poison", i, p.Opcode())
		}
	}
}

// TestG11_DeregRace: rounds in which regions are deregistered, by one goroutine or by two,
// while two connections gather from them by SEND and WRITE, and a peer READs and WRITEs
// them on two more. Once Dereg has returned nil the memory is poison and its DMA
// addresses are in quarantine: the card's log has no access to them after the fence's
// answer, no frame has a poison byte, and no byte of the memory changes. Work requests
// end in success, or as Dereg ends them.
func TestG11_DeregRace(t *testing.T) {
	for name, o := range map[string][]driver.Option{"card": nil, "host": {driver.WithGather(driver.Host)}} {
		t.Run(name, func(t *testing.T) {
			rounds := 1000
			if full {
				rounds = 50_000
			}
			r := newRace(t, o...)
			seed := raceSeed(t)
			for n := range uint64(rounds) {
				r.round(seed, n)
			}
			t.Logf("%d rounds, %d torn; refused: %v", r.rounds, r.torn, r.refused)
			if r.torn < rounds/100 || len(r.refused) < 4 {
				t.Errorf("of %d rounds only %d were torn by Dereg; refused: %v", rounds, r.torn, r.refused)
			}
		})
	}
}
