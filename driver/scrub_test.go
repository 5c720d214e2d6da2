package driver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"rnic/driver"
	"rnic/driver/drivertest"
	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/softcard"
)

// scrubbed is a card of a small key cache, which holds the key of its one region.
type scrubbed struct {
	*side
	t   *testing.T
	ctx context.Context
	c   *drivertest.Card
}

func newScrubbed(t *testing.T) *scrubbed {
	t.Helper()
	h := newHarness(t, softcard.Config{Limits: softcard.Limits{CacheSets: 1, CacheWays: 2}})
	s := &scrubbed{side: newSide(t, h.addr, 256, smallQP), t: t, ctx: t.Context()}
	s.c = faults(t, s.d)
	s.must(s.qp.Connect(s.ctx, s.qp.Endpoint()))
	s.use()
	if found := s.scrub(); len(found) != 0 {
		t.Fatalf("before a bit is flipped: %+v", found)
	}
	return s
}

func (s *scrubbed) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// use has the card look its key up. Nobody is there to answer: the request ends after its retries.
func (s *scrubbed) use() {
	s.t.Helper()
	s.must(s.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, Flags: driver.Signaled, Remote: s.mr.Remote(), SGEs: []driver.SGE{s.mr.SGE(0, 10)}}))
	wait(s.t, s.cq, 1)
}

func (s *scrubbed) scrub() []driver.ScrubMismatch {
	s.t.Helper()
	r, err := s.d.Scrub(s.ctx)
	s.must(err)
	if r.Keys != 1 || r.Lines != 2 {
		s.t.Fatalf("%+v", r)
	}
	return r.Mismatches
}

// layout is KeyEntry of docs/card.md: a field's name, its lowest bit and its bits.
var layout = []struct {
	name      string
	low, bits int
}{
	{"base", 0, 64}, {"length", 64, 64}, {"iova", 128, 64}, {"pd", 192, 24}, {"reserved_0x18", 216, 8}, {"bound_qpn", 224, 24}, {"reserved_0x1c", 248, 8},
	{"parent", 256, 24}, {"reserved_0x20", 280, 8}, {"address_space", 288, 20}, {"reserved_0x24", 308, 12}, {"reserved_0x28", 320, 32},
	{"reserved_0x2c", 352, 32}, {"reserved_0x30", 384, 32}, {"reserved_0x34", 416, 32}, {"reserved_0x38", 448, 32},
	{"tag", 480, 8}, {"state", 488, 2}, {"reserved_0x3c", 490, 2}, {"type", 492, 2}, {"reserved_0x3c", 494, 2}, {"access", 496, 8}, {"reserved_0x3c", 504, 8},
}

// eachBit calls f with a field's bits: all of them with RNIC_FULL=1, else the lowest of the
// field and of each of its bytes, and where few is set only the first of these.
func eachBit(few bool, f func(field string, bit int, mask uint64)) {
	for _, l := range layout {
		low := l.low
		if l.name == "reserved_0x3c" {
			low = 490 // its value counts from the word's lowest reserved bit
		}
		for bit := l.low; bit < l.low+l.bits; bit++ {
			if full || bit == l.low || bit%8 == 0 && !few {
				f(l.name, bit, 1<<(bit-low))
			}
		}
	}
}

// TestScrub_Table: a bit of an entry flipped in the table is found there while the cache has
// the key, and is said to be the table's or the shadow's while it has not.
func TestScrub_Table(t *testing.T) {
	s := newScrubbed(t)
	key := s.mr.LKey()
	check := func(few bool, where string) {
		t.Helper()
		eachBit(few, func(field string, bit int, mask uint64) {
			s.must(s.c.FlipKey(s.ctx, key, bit))
			found := s.scrub()
			if len(found) != 1 {
				t.Fatalf("bit %d of the table, of %s: %+v", bit, field, found)
			}
			if m := found[0]; m.Index != key>>8 || m.Field != field || m.Table^m.Shadow != mask || m.Where != where ||
				(m.Line >= 0) != (where == driver.ScrubTable) || m.Line >= 0 && m.Cache != m.Shadow {
				t.Errorf("bit %d of the table, of %s: %+v", bit, field, m)
			}
			s.must(s.c.FlipKey(s.ctx, key, bit))
		})
		if found := s.scrub(); len(found) != 0 {
			t.Fatalf("flipped back: %+v", found)
		}
	}
	check(false, driver.ScrubTable)
	s.must(s.d.Fence(s.ctx, key)) // the cache forgets it
	check(true, driver.ScrubEither)
}

// TestScrub_Cache: a bit that the cache keeps of an entry is found there when it is flipped.
func TestScrub_Cache(t *testing.T) {
	s := newScrubbed(t)
	key := s.mr.LKey()
	eachBit(false, func(field string, bit int, mask uint64) {
		s.must(s.c.FlipCached(s.ctx, key, uint16(bit)))
		found := s.scrub()
		if field == "address_space" || strings.HasPrefix(field, "reserved") { // a line keeps none of them
			if len(found) != 0 {
				t.Errorf("bit %d, of %s: %+v", bit, field, found)
			}
			return
		}
		if len(found) != 1 {
			t.Fatalf("bit %d of the cache, of %s: %+v", bit, field, found)
		}
		if m := found[0]; m.Index != key>>8 || m.Field != field || m.Cache^m.Shadow != mask || m.Where != driver.ScrubCache || m.Line < 0 || m.Table != m.Shadow {
			t.Errorf("bit %d of the cache, of %s: %+v", bit, field, m)
		}
		back := key
		if field == "tag" { // the line has another key now
			back ^= uint32(mask)
		}
		s.must(s.c.FlipCached(s.ctx, back, uint16(bit)))
	})
	if found := s.scrub(); len(found) != 0 {
		t.Fatalf("flipped back: %+v", found)
	}
}

// TestScrub_Shadow: a bit of each field of the driver's shadow is found there while the cache
// has the key.
func TestScrub_Shadow(t *testing.T) {
	s := newScrubbed(t)
	for _, c := range []struct {
		field string
		flip  func(*gather.Key)
	}{
		{"base", func(k *gather.Key) { k.Base ^= 1 << 63 }},
		{"length", func(k *gather.Key) { k.Length ^= 1 }},
		{"iova", func(k *gather.Key) { k.IOVA ^= 1 << 12 }},
		{"pd", func(k *gather.Key) { k.PD ^= 1 << 23 }},
		{"reserved_0x18", func(k *gather.Key) { k.PD ^= 1 << 24 }},
		{"bound_qpn", func(k *gather.Key) { k.BoundQPN ^= 4 }},
		{"reserved_0x1c", func(k *gather.Key) { k.BoundQPN ^= 1 << 31 }},
		{"parent", func(k *gather.Key) { k.Parent ^= 1 }},
		{"reserved_0x20", func(k *gather.Key) { k.Parent ^= 1 << 30 }},
		{"tag", func(k *gather.Key) { k.Tag ^= 0x80 }},
		{"state", func(k *gather.Key) { k.State ^= 1 }},
		{"type", func(k *gather.Key) { k.Type ^= 1 }},
		{"access", func(k *gather.Key) { k.Access ^= hw.AccessRemoteAtomic }},
	} {
		s.mr.EditShadow(c.flip)
		found := s.scrub()
		if len(found) != 1 || found[0].Field != c.field || found[0].Where != driver.ScrubShadow || found[0].Line < 0 || found[0].Shadow == found[0].Table || found[0].Table != found[0].Cache {
			t.Errorf("%s of the shadow: %+v", c.field, found)
		}
		s.mr.EditShadow(c.flip)
	}
	if found := s.scrub(); len(found) != 0 {
		t.Fatalf("flipped back: %+v", found)
	}
}

// TestScrub_Unknown: where all three differ the scrub says so, and where several fields are
// wrong in several places each has its own.
func TestScrub_Unknown(t *testing.T) {
	s := newScrubbed(t)
	key := s.mr.LKey()
	s.must(s.c.FlipKey(s.ctx, key, 3))
	s.must(s.c.FlipCached(s.ctx, key, 4))
	s.must(s.c.FlipKey(s.ctx, key, 64))
	s.must(s.c.FlipCached(s.ctx, key, 128))
	s.mr.EditShadow(func(k *gather.Key) { k.PD ^= 1 })
	var got []string
	for _, m := range s.scrub() {
		got = append(got, m.Field+" "+m.Where)
	}
	if want := []string{"base unknown", "length table", "iova cache", "pd shadow"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestScrub_StrayKey: an entry that nobody registered, and a line that nothing backs.
func TestScrub_StrayKey(t *testing.T) {
	s := newScrubbed(t)
	var e hw.KeyEntry
	e.SetState(hw.KeyStateValid)
	s.must(s.d.WriteKey(s.ctx, 77, e))
	if found := s.scrub(); len(found) != 1 || found[0] != (driver.ScrubMismatch{Index: 77, Line: -1, Field: "state", Where: driver.ScrubEither, Why: found[0].Why, Table: 2}) {
		t.Errorf("an entry that nobody registered: %+v", found)
	}
	s.must(s.d.WriteKey(s.ctx, 77, hw.KeyEntry{}))
	s.must(s.c.BreakWalk(s.ctx, drivertest.StaleCache, 0)) // what is deregistered stays in the cache
	index := s.mr.LKey() >> 8
	s.must(s.mr.Dereg(s.ctx))
	r, err := s.d.Scrub(s.ctx)
	s.must(err)
	if len(r.Mismatches) == 0 || r.Cached != 1 {
		t.Fatalf("a stale line: %+v", r)
	}
	for _, m := range r.Mismatches {
		if m.Index != index || m.Where != driver.ScrubCache || m.Shadow != 0 || m.Table != 0 {
			t.Errorf("a stale line: %+v", m)
		}
	}
}

// TestScrub_Window: what the card changes in a memory window, by a bind or an invalidation, is
// no mismatch; the rest of the entry is.
func TestScrub_Window(t *testing.T) {
	s := newScrubbed(t)
	s.must(s.d.Fence(s.ctx, s.mr.LKey()))
	s.mr.EditShadow(func(k *gather.Key) { k.Type, k.State = hw.KeyTypeMW2, hw.KeyStateInvalid })
	pd := s.pd.Number()
	e := hw.KeyEntry{Base: 0x1234000, Length: 99, IOVA: 0x77000, PD: pd, BoundQPN: s.qp.Number(), Parent: 5}
	e.SetType(hw.KeyTypeMW2)
	e.SetState(hw.KeyStateValid)
	e.SetTag(0x42)
	e.SetAccess(hw.AccessRemoteRead)
	for what, edit := range map[string]func(*hw.KeyEntry){
		"bound":       func(*hw.KeyEntry) {},
		"invalidated": func(e *hw.KeyEntry) { e.SetState(hw.KeyStateInvalid) },
	} {
		e := e
		edit(&e)
		s.must(s.d.WriteKey(s.ctx, s.mr.LKey()>>8, e))
		if found := s.scrub(); len(found) != 0 {
			t.Errorf("a window that was %s: %+v", what, found)
		}
	}
	e.PD ^= 1
	s.must(s.d.WriteKey(s.ctx, s.mr.LKey()>>8, e))
	if found := s.scrub(); len(found) != 1 || found[0].Field != "pd" {
		t.Errorf("a window's domain: %+v", found)
	}
}

// TestScrub_Moving: a key on its way to the card or from it is no mismatch, whatever the card
// has; and regions that come and go during scrubs are none.
func TestScrub_Moving(t *testing.T) {
	s := newScrubbed(t)
	s.must(s.c.FlipKey(s.ctx, s.mr.LKey(), 0))
	s.mr.MoveShadow(true)
	if found := s.scrub(); len(found) != 0 {
		t.Errorf("a key that moves: %+v", found)
	}
	s.mr.MoveShadow(false)
	if found := s.scrub(); len(found) != 1 {
		t.Errorf("it has come: %+v", found)
	}
	s.must(s.c.FlipKey(s.ctx, s.mr.LKey(), 0))

	ctx, stop := context.WithCancel(s.ctx)
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() {
			for ctx.Err() == nil {
				mr, err := s.pd.AllocMR(s.ctx, 4096, allAccess)
				if err == nil {
					err = mr.Dereg(s.ctx)
				}
				if err != nil {
					ended <- fmt.Errorf("a region of its own: %w", err)
					return
				}
			}
			ended <- nil
		}()
	}
	saw := 0
	for range 60 {
		r, err := s.d.Scrub(s.ctx)
		s.must(err)
		if len(r.Mismatches) != 0 {
			t.Fatalf("while regions come and go: %+v", r.Mismatches)
		}
		if r.Keys > 1 {
			saw++
		}
	}
	stop()
	for range cap(ended) {
		s.must(<-ended)
	}
	if saw == 0 {
		t.Error("no scrub saw a region come or go")
	}
}
