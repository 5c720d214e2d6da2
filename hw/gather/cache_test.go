package gather_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
)

func newCache(t testing.TB, sets, ways int) *gather.Cache {
	t.Helper()
	c, err := gather.NewCache(gather.Geometry{Sets: sets, Ways: ways})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestG11_HitsMissesEvictions(t *testing.T) {
	// Two sets of two ways: even indices share set 0.
	c := newCache(t, 2, 2)
	keys := &gather.Keys{Cache: c, Table: table{}}
	for i := range uint32(8) {
		keys.Table.(table)[i] = region(0, 0x1000, 64, 0x1000)
	}
	for i, step := range []struct {
		index uint32
		hit   bool
		stats gather.CacheStats
	}{
		{0, false, gather.CacheStats{Misses: 1}},
		{2, false, gather.CacheStats{Misses: 2}},
		{0, true, gather.CacheStats{Hits: 1, Misses: 2}},
		{4, false, gather.CacheStats{Hits: 1, Misses: 3, Evictions: 1}}, // 2 was used least recently
		{0, true, gather.CacheStats{Hits: 2, Misses: 3, Evictions: 1}},
		{2, false, gather.CacheStats{Hits: 2, Misses: 4, Evictions: 2}}, // 4 goes
		{1, false, gather.CacheStats{Hits: 2, Misses: 5, Evictions: 2}}, // the other set
		{0, true, gather.CacheStats{Hits: 3, Misses: 5, Evictions: 2}},
		{9, false, gather.CacheStats{Hits: 3, Misses: 6, Evictions: 2}}, // no such key: nothing is held
		{9, false, gather.CacheStats{Hits: 3, Misses: 7, Evictions: 2}},
		{1, true, gather.CacheStats{Hits: 4, Misses: 7, Evictions: 2}},
	} {
		_, hit, _ := keys.Translate(step.index<<8, local, 0x1000, 1)
		if hit != step.hit || c.Stats() != step.stats {
			t.Fatalf("step %d, index %d: hit %v, %+v; want %v, %+v", i, step.index, hit, c.Stats(), step.hit, step.stats)
		}
	}
	// A failed check is still a hit: the entry was there.
	if _, hit, r := keys.Translate(1<<8|7, local, 0x1000, 1); !hit || r != hw.ReasonKeyTag {
		t.Errorf("wrong tag of a held key: hit %v, %v", hit, r)
	}
	// Looking does not count and does not keep.
	before := c.Stats()
	if k, held := c.Peek(0); !held || k != region(0, 0x1000, 64, 0x1000) {
		t.Errorf("peek: %v %v", k, held)
	}
	if _, held := c.Peek(4); held {
		t.Error("an evicted entry is held")
	}
	if c.Stats() != before {
		t.Error("peek counted")
	}
}

func TestG11_NothingOutlivesInvalidate(t *testing.T) {
	c := newCache(t, 4, 2)
	keys := &gather.Keys{Cache: c, Table: table{3: region(0, 0x1000, 64, 0x1000)}}
	if _, _, r := keys.Translate(0x300, local, 0x1000, 1); r != hw.ReasonNone {
		t.Fatal(r)
	}
	// Clear valid, invalidate: the cache holds nothing of it.
	keys.Table.(table)[3] = gather.Key{State: hw.KeyStateInvalid}
	c.Invalidate(3)
	if _, held := c.Peek(3); held {
		t.Error("held after Invalidate")
	}
	if _, hit, r := keys.Translate(0x300, local, 0x1000, 1); hit || r != hw.ReasonKeyIndex {
		t.Errorf("after Invalidate: hit %v, %v", hit, r)
	}
	if e := c.Stats().Evictions; e != 0 {
		t.Errorf("an invalidation counted as %d evictions", e)
	}

	// A fill that was under way when the key was invalidated is discarded.
	f := c.Begin(3)
	c.Invalidate(3)
	if c.Complete(f, region(0, 0x1000, 64, 0x1000)) {
		t.Error("a fill that raced the invalidation was taken")
	}
	if _, held := c.Peek(3); held {
		t.Error("a fill that raced the invalidation is held")
	}
	// So is one that a flush overtook; a later one is taken.
	f = c.Begin(3)
	c.Flush()
	if c.Complete(f, region(0, 0x1000, 64, 0x1000)) {
		t.Error("a fill that raced the flush was taken")
	}
	if f = c.Begin(3); !c.Complete(f, region(9, 0x1000, 64, 0x1000)) {
		t.Error("a fill after the flush was discarded")
	}
	if k, held := c.Peek(3); !held || k.Tag != 9 {
		t.Errorf("held %v %v, want the entry filled last", k, held)
	}
}

// racing is a key table in which the entry is revoked while it is read.
type racing struct {
	table
	cache *gather.Cache
	races int
}

func (r *racing) Entry(index uint32) (gather.Key, bool) {
	k, ok := r.table[index]
	if r.races > 0 {
		r.races--
		r.table[index] = region(k.Tag+1, k.Base, k.Length, k.IOVA)
		r.cache.Invalidate(index)
	}
	return k, ok
}

func TestG11_LookupDoesNotUseAStaleFetch(t *testing.T) {
	c := newCache(t, 4, 2)
	keys := &gather.Keys{Cache: c, Table: &racing{table: table{3: region(0, 0x1000, 64, 0x1000)}, cache: c, races: 1}}
	// The first read brings tag 0, but the key has moved on to tag 1 by then.
	if _, _, r := keys.Translate(0x300, local, 0x1000, 1); r != hw.ReasonKeyTag {
		t.Errorf("the old key still translates: %v", r)
	}
	// A key revoked again and again ends as gone, not in a loop.
	keys.Table.(*racing).races = 1000
	c.Flush()
	if _, _, r := keys.Translate(0x301, local, 0x1000, 1); r != hw.ReasonKeyIndex {
		t.Errorf("endless revocation: %v", r)
	}
}

// TestG11_Model drives the cache and a plain list per set, most recent first.
func TestG11_Model(t *testing.T) {
	for _, g := range []gather.Geometry{{Sets: 1, Ways: 1}, {Sets: 1, Ways: 4}, {Sets: 4, Ways: 1}, {Sets: 8, Ways: 4}} {
		rng := rand.New(rand.NewPCG(uint64(g.Sets), uint64(g.Ways)))
		c := newCache(t, g.Sets, g.Ways)
		sets := make([][]uint32, g.Sets)
		var want gather.CacheStats
		for range 20000 {
			index := rng.Uint32N(uint32(3 * g.Sets * g.Ways))
			set := &sets[index%uint32(g.Sets)]
			at := slices.Index(*set, index)
			if rng.IntN(8) == 0 {
				c.Invalidate(index)
				if at >= 0 {
					*set = slices.Delete(*set, at, at+1)
				}
				continue
			}
			k, hit := c.Lookup(index)
			if hit != (at >= 0) || hit && k.IOVA != uint64(index) {
				t.Fatalf("%+v: lookup of %d: %v, want hit %v", g, index, hit, at >= 0)
			}
			if hit {
				want.Hits++
				*set = slices.Delete(*set, at, at+1)
			} else {
				want.Misses++
				if !c.Complete(c.Begin(index), gather.Key{State: hw.KeyStateValid, IOVA: uint64(index)}) {
					t.Fatal("fill refused")
				}
			}
			if *set = slices.Insert(*set, 0, index); len(*set) > g.Ways {
				want.Evictions++
				*set = (*set)[:g.Ways]
			}
			if c.Stats() != want {
				t.Fatalf("%+v: counted %+v, want %+v", g, c.Stats(), want)
			}
		}
	}
}

func TestG11_Lines(t *testing.T) {
	c := newCache(t, 2, 2)
	for _, i := range []uint32{5, 2, 3} {
		c.Complete(c.Begin(i), gather.Key{State: hw.KeyStateValid, IOVA: uint64(i)})
	}
	want := []struct {
		index   uint32
		present bool
	}{{2, true}, {0, false}, {5, true}, {3, true}}
	if c.Lines() != len(want) {
		t.Fatalf("%d lines, want %d", c.Lines(), len(want))
	}
	for i, w := range want {
		c.Corrupt(i, gather.Key{State: hw.KeyStateValid, IOVA: uint64(w.index) ^ 8})
		index, k, present := c.Line(i)
		if index != w.index || present != w.present || present && k.IOVA != uint64(w.index)^8 {
			t.Errorf("line %d: index %d, %+v, %v; want %+v with a flipped bit", i, index, k, present, w)
		}
	}
	if k, hit := c.Lookup(5); !hit || k.IOVA != 13 {
		t.Errorf("lookup of a corrupted line: %v %v", k, hit)
	}
}

func TestCacheGeometryRefused(t *testing.T) {
	for _, g := range []gather.Geometry{{}, {Sets: 3, Ways: 1}, {Sets: 4}, {Sets: -4, Ways: 1}, {Sets: 1, Ways: -1}, {Sets: 1 << 25, Ways: 1}, {Sets: 1, Ways: 1 << 11}} {
		if _, err := gather.NewCache(g); err == nil {
			t.Errorf("%+v was accepted", g)
		}
	}
}
