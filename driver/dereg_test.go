package driver_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/softcard"
)

// relink brings a pair that has failed back to RTS, with PSNs of its own: what is left
// of its last life on the wire fits in nowhere.
func relink(ctx context.Context, a, b *driver.QP, psn [2]uint32) error {
	for i, q := range []*driver.QP{a, b} {
		peer := []*driver.QP{b, a}[i].Endpoint()
		for _, m := range []struct {
			a    driver.QPAttr
			mask driver.QPAttrMask
		}{
			{driver.QPAttr{State: driver.StateReset}, driver.AttrState},
			{driver.QPAttr{State: driver.StateInit, Access: allAccess}, driver.AttrState | driver.AttrAccess | driver.AttrPKeyIndex},
			{driver.QPAttr{State: driver.StateRTR, PathMTU: hw.MTU1024, DestQPN: peer.QPN, RQPSN: psn[1-i], MinRNRTimer: 1, MaxDestRDAtomic: 16, AV: driver.AddressVector{DGID: peer.GID, DMAC: peer.MAC}},
				driver.AttrState | driver.AttrAV | driver.AttrPathMTU | driver.AttrDestQPN | driver.AttrRQPSN | driver.AttrMaxDestRDAtomic | driver.AttrMinRNRTimer},
			{driver.QPAttr{State: driver.StateRTS, SQPSN: psn[i], Timeout: 18, RetryCnt: 7, RNRRetry: 6, MaxRDAtomic: 16},
				driver.AttrState | driver.AttrSQPSN | driver.AttrTimeout | driver.AttrRetryCnt | driver.AttrRNRRetry | driver.AttrMaxRDAtomic},
		} {
			if err := q.Modify(ctx, m.a, m.mask); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownPages is memory of the test's own, for RegMR: it stays when the region goes.
func ownPages(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// awaitCounter polls a counter until it is at least n.
func awaitCounter(t *testing.T, d *driver.Device, name string, n uint64) {
	t.Helper()
	for ctx := testCtx(t); counter(t, d, name) < n; {
		if ctx.Err() != nil {
			t.Fatalf("%s is %d, waited for %d", name, counter(t, d, name), n)
		}
	}
}

// cached lists the key indices in the card's cache.
func cached(t *testing.T, d *driver.Device) (indices []uint32) {
	t.Helper()
	r, err := d.Scrub(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Mismatches { // lines that the table does not back are among them
		if !slices.Contains(indices, m.Index) {
			indices = append(indices, m.Index)
		}
	}
	if r.Cached != len(indices) {
		indices = append(indices, make([]uint32, r.Cached-len(indices))...)
	}
	return indices
}

// TestG11_DeregDiscardsHeldFill: a fill of the key cache is held back between its read
// of the entry, which was valid, and its place in the cache. Dereg's fence comes
// between. The fill must come to nothing: when it is let go, the packet that asked for
// it is refused, also where the index has a new region meanwhile, and the cache has no
// entry of it.
func TestG11_DeregDiscardsHeldFill(t *testing.T) {
	for _, c := range []struct {
		name   string
		local  bool // the key is in a SEND's list; else a peer READs by it
		reused bool // the index is another region's before the fill is let go
		reason driver.Reason
	}{
		{"READ by a peer", false, false, driver.ReasonKeyIndex},
		{"READ by a peer, index reused", false, true, driver.ReasonKeyTag},
		{"gather", true, false, driver.ReasonKeyIndex},
		{"gather, index reused", true, true, driver.ReasonKeyTag},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newPair(t, smallQP)
			ctx := testCtx(t)
			g, take := dmaLog(t, a.d, 0)
			memory := ownPages(t, 8192)
			fill(memory, 1)
			m, err := a.pd.RegMR(ctx, memory, allAccess)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.HoldFill(true); err != nil {
				t.Fatal(err)
			}
			misses := counter(t, a.d, "KEY_CACHE_MISSES")
			poster := b
			if c.local {
				poster = a
				err = a.qp.PostSend(&driver.SendWR{WRID: 5, Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{m.SGE(100, 5000)}, Remote: b.mr.Remote()})
			} else {
				err = b.qp.PostSend(&driver.SendWR{WRID: 5, Opcode: driver.Read, Flags: driver.Signaled, SGEs: []driver.SGE{b.mr.SGE(0, 5000)}, Remote: m.Remote()})
			}
			if err != nil {
				t.Fatal(err)
			}
			awaitCounter(t, a.d, "KEY_CACHE_MISSES", misses+1) // its fill is held
			discarded := counter(t, a.d, "KEY_FILLS_DISCARDED")
			if err := m.Dereg(ctx); err != nil {
				t.Fatal(err)
			}
			fenced := g.FencedAt(m)
			if fenced == 0 || !m.Quarantined() {
				t.Errorf("after Dereg: fenced at %d, in quarantine %v", fenced, m.Quarantined())
			}
			for i := range memory {
				memory[i] = 0xdb
			}
			var next *driver.MR
			if c.reused {
				if next, err = a.pd.AllocMR(ctx, 8192, allAccess, driver.WithKey(m.LKey()&^0xff|(m.LKey()+1)&0xff), driver.WithIOVA(m.Addr())); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.HoldFill(false); err != nil {
				t.Fatal(err)
			}
			wc := wait(t, poster.cq, 1)[0]
			var e *driver.CompletionError
			if !errors.As(wc.Err(), &e) {
				t.Fatalf("the old entry was used: %+v", wc)
			}
			if c.local {
				if e.Status != driver.StatusLocProtErr || e.Reason != c.reason || e.Segment != 0 || e.Key != m.LKey() {
					t.Errorf("%v", e)
				}
			} else {
				if e.Status != driver.StatusRemAccessErr || e.AETH != 0x62 {
					t.Errorf("%v", e)
				}
				if why := refusal(t, a); why != c.reason {
					t.Errorf("refused for %v, want %v", why, c.reason)
				}
			}
			awaitCounter(t, a.d, "KEY_FILLS_DISCARDED", discarded+1)
			if n := counter(t, a.d, "KEY_FILLS_DISCARDED"); n != discarded+1 {
				t.Errorf("%d fills discarded, want 1", n-discarded)
			}
			if in := cached(t, a.d); c.reused && len(in) > 1 || !c.reused && len(in) > 0 {
				t.Errorf("in the cache: %#x", in)
			}
			for _, r := range take() {
				if r.Sequence > fenced && r.IOVA < m.IOVA()+8192 && m.IOVA() < r.IOVA+uint64(r.Length) {
					t.Errorf("fenced at access %d: %+v", fenced, r)
				}
			}
			if bytes.Contains(b.mr.Bytes(), []byte{0xdb}) {
				t.Error("poison arrived at the peer")
			}
			if next != nil {
				if err := next.Dereg(ctx); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// refusal waits for the event that a peer's access was refused, and gives its reason.
func refusal(t testing.TB, s *side) driver.Reason {
	t.Helper()
	ctx := testCtx(t)
	for {
		e, err := s.d.NextEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == driver.EventQPAccessErr && e.Object == s.qp.Number() {
			return e.Reason
		}
	}
}

// TestG11_DeregOfMany: many regions that are being gathered and read are deregistered by
// many goroutines at once, each region by two of them. Each call returns nil, and after
// the first that does for a region, nobody gets at it.
func TestG11_DeregOfMany(t *testing.T) {
	for name, o := range map[string][]driver.Option{"card": nil, "host": {driver.WithGather(driver.Host)}} {
		t.Run(name, func(t *testing.T) {
			const regions, callers = 48, 4
			a, b := hosted(t, smallQP, "", o...)
			ctx := testCtx(t)
			g, take := dmaLog(t, a.d, 1<<16)
			mrs := make([]*driver.MR, regions)
			memory := make([][]byte, regions)
			for i := range mrs {
				var err error
				if i%4 == 0 {
					mrs[i], err = a.pd.RegMR(ctx, ownPages(t, 8192), allAccess)
				} else {
					mrs[i], err = a.pd.AllocMR(ctx, 8192, allAccess)
				}
				if err != nil {
					t.Fatal(err)
				}
				memory[i] = mrs[i].Bytes()
			}
			var posting, dereg sync.WaitGroup
			for i := range 30 { // 63 segments each, of all regions in turn
				posting.Add(1)
				sges := make([]driver.SGE, 63)
				for k := range sges {
					sges[k] = mrs[(i+k)%regions].SGE(k, 700)
				}
				post := func() {
					defer posting.Done()
					if err := a.qp.PostSend(&driver.SendWR{WRID: uint64(i), Opcode: driver.Write, Flags: driver.Signaled, SGEs: sges, Remote: b.mr.Remote()}); err != nil {
						t.Error(err)
					}
				}
				go post()
			}
			wait(t, a.cq, 1) // it has begun
			fenced := make([]uint64, regions)
			var mu sync.Mutex
			for c := range callers {
				dereg.Add(1)
				go func() {
					defer dereg.Done()
					for i := range mrs {
						if (i+c)%callers > 1 {
							continue // two of them have it
						}
						if err := mrs[i].Dereg(ctx); err != nil {
							t.Error(err)
							continue
						}
						mu.Lock()
						if fenced[i] == 0 {
							fenced[i] = g.FencedAt(mrs[i])
							if !mrs[i].Quarantined() || mrs[i].Bytes() != nil {
								t.Errorf("region %d: in quarantine %v", i, mrs[i].Quarantined())
							}
							for k := range memory[i] {
								memory[i][k] = 0xdb
							}
						}
						mu.Unlock()
					}
				}()
			}
			dereg.Wait()
			posting.Wait()
			failed := false
			for _, wc := range wait(t, a.cq, 29) {
				switch err := wc.Err(); {
				case err == nil && failed:
					t.Errorf("%d succeeds after one that failed", wc.WRID)
				case err == nil:
				case !failed && wc.Status == driver.StatusLocProtErr && wc.Reason == driver.ReasonKeyIndex:
					failed = true
				case failed && wc.Status == driver.StatusWRFlushErr && wc.Reason == driver.ReasonFlushed:
				default:
					t.Errorf("%v", err)
				}
			}
			records := take()
			for i, m := range mrs {
				if fenced[i] == 0 {
					t.Errorf("region %d: no fence", i)
				}
				for _, r := range records {
					if r.Sequence > fenced[i] && r.IOVA < m.IOVA()+8192 && m.IOVA() < r.IOVA+uint64(r.Length) {
						t.Errorf("region %d fenced at access %d: %+v", i, fenced[i], r)
					}
				}
				if err := m.Dereg(ctx); err != nil {
					t.Errorf("one more Dereg: %v", err)
				}
			}
			if bytes.Contains(b.mr.Bytes(), []byte{0xdb}) {
				t.Error("poison arrived at the peer")
			}
			awaitCounter(t, a.d, "KEY_FENCES", regions)
			if n := counter(t, a.d, "KEY_FENCES"); n != regions {
				t.Errorf("%d fences for %d regions", n, regions)
			}
		})
	}
}

var full = os.Getenv("RNIC_FULL") == "1"

// TestG11_KeysDoNotRepeat: on a card of 3 key indices (at full scale of 15), 3 × 256
// registrations have as many keys, AllocMR's and RegMR's in turn; then they begin again, with the first. One
// whose tag was chosen in between is not given out for the next 255 uses of its index.
func TestG11_KeysDoNotRepeat(t *testing.T) {
	bits := uint32(2)
	if full {
		bits = 4
	}
	h := newHarness(t, softcard.Config{Limits: softcard.Limits{KeyIndexBits: bits}})
	d := open(t, h.addr)
	ctx := testCtx(t)
	pd, err := d.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	memory := ownPages(t, 4096)
	indices := 1<<bits - 1 // index 0 is not used
	register := func(i int, o ...driver.MROption) uint32 {
		t.Helper()
		var m *driver.MR
		var err error
		if i%2 == 0 {
			m, err = pd.AllocMR(ctx, 64, driver.LocalWrite, o...)
		} else {
			m, err = pd.RegMR(ctx, memory, driver.LocalWrite, o...)
		}
		if err == nil {
			err = m.Dereg(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m.LKey()
	}
	var keys []uint32
	seen := map[uint32]bool{}
	for i := range indices * 256 {
		k := register(i)
		if seen[k] {
			t.Fatalf("registration %d has key %#x again", i, k)
		}
		seen[k] = true
		keys = append(keys, k)
	}
	for i := range 2 * indices {
		if k := register(i); k != keys[i] {
			t.Errorf("registration %d has key %#x, want %#x, that was used longest ago", indices*256+i, k, keys[i])
		}
	}
	// Of the index that comes last: chosen, far from its turn.
	index := keys[2*indices-1] >> 8
	chosen := index<<8 | (keys[2*indices-1]+100)&0xff
	if k := register(0, driver.WithKey(chosen)); k != chosen {
		t.Fatalf("key %#x, want %#x", k, chosen)
	}
	uses := 0
	for i := 0; uses < 255; i++ {
		k := register(i)
		if k == chosen {
			t.Fatalf("key %#x again after %d uses of its index", k, uses)
		}
		if k>>8 == index {
			uses++
		}
	}
}
