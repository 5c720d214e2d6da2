package softcard

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/mmio"
)

// register stores a key-table entry through the window, as the fast path of a
// driver does: the valid word last.
func (r *rig) register(index uint32, tag uint8, base, length, iova uint64) {
	e := hw.KeyEntry{Base: base, Length: length, IOVA: iova, PD: 3}
	e.SetTag(tag)
	e.SetState(hw.KeyStateValid)
	e.SetAccess(hw.AccessLocalWrite)
	w := r.keys.Window(uint64(index)*hw.KeyEntrySize, hw.KeyEntrySize)
	v := hw.ViewKeyEntry(w)
	copy(w[:60], e.AsBytes())
	mmio.ToDevice()
	mmio.Store32(&v.Valid, e.Valid)
}

// revoke clears an entry's valid word through the window.
func (r *rig) revoke(index uint32) {
	mmio.Store32(r.keys.Word32(uint64(index)*hw.KeyEntrySize+60), 0)
}

// lookup makes the card translate one byte.
func (r *rig) lookup(key uint32, addr uint64) (iova uint64, hit bool, reason hw.Reason) {
	r.inside(func() {
		iova, hit, reason = r.card.translate(key, gather.Who{PD: 3, QPN: 9}, addr, 1)
	})
	return iova, hit, reason
}

func (r *rig) wantLookup(what string, key uint32, addr, iova uint64, hit bool, reason hw.Reason) {
	r.t.Helper()
	if a, h, why := r.lookup(key, addr); a != iova || h != hit || why != reason {
		r.t.Errorf("%s: %#x, hit %v, %v; want %#x, %v, %v", what, a, h, why, iova, hit, reason)
	}
}

// Rule G11: the repeat lookup is a hit; what is in the cache outlives a change of
// the table; a fence ends that, for its key only.
func TestG11_FenceEndsCachedCopies(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.register(5, 0x11, 0x1000, 0x100, 0xa000)
	r.register(6, 0x22, 0x1000, 0x100, 0xb000)
	r.wantLookup("first", 0x511, 0x1010, 0xa010, false, 0)
	r.wantLookup("again", 0x511, 0x1011, 0xa011, true, 0)
	r.wantLookup("another key", 0x622, 0x1000, 0xb000, false, 0)
	r.revoke(5)
	r.revoke(6)
	r.wantLookup("revoked, not fenced", 0x511, 0x1010, 0xa010, true, 0)
	r.do(hw.CommandFenceKey, 5, 0, nil, 0)
	r.wantLookup("fenced", 0x511, 0x1010, 0, false, hw.ReasonKeyIndex)
	r.wantLookup("not fenced", 0x622, 0x1000, 0xb000, true, 0)
	r.do(hw.CommandFenceKey, 6, 0, nil, 0)
	r.wantLookup("fenced", 0x622, 0x1000, 0, false, hw.ReasonKeyIndex)
	for _, c := range []struct {
		name string
		reg  uint64
		want uint64
	}{
		{"LOOKUPS", hw.RegCountersLookups, 7}, {"HITS", hw.RegCountersKeyCacheHits, 3}, {"MISSES", hw.RegCountersKeyCacheMisses, 4},
		{"FENCES", hw.RegCountersKeyFences, 2}, {"EVICTIONS", hw.RegCountersKeyCacheEvictions, 0},
	} {
		if n := r.counter(c.reg); n != c.want {
			t.Errorf("%s %d, want %d", c.name, n, c.want)
		}
	}
}

// Rule G11: a fill that was read before the fence never becomes an entry. The
// debug page holds the fill between the two; the table changes and is fenced
// meanwhile.
func TestG11_FenceDiscardsFillUnderWay(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		r := newRig(t, Config{})
		r.start(4)
		r.register(5, 0x11, 0x1000, 0x100, 0xa000)
		r.store(hw.RegDebugHoldFill, 1)
		r.wantLookup("held", 0x511, 0x1010, 0, false, reasonHeld)
		r.wantLookup("still held", 0x511, 0x1010, 0, false, reasonHeld)
		r.revoke(5)
		if fenced {
			r.do(hw.CommandFenceKey, 5, 0, nil, 0)
		}
		r.store(hw.RegDebugHoldFill, 0)
		if fenced {
			r.wantLookup("let go after the fence", 0x511, 0x1010, 0, false, hw.ReasonKeyIndex)
		} else { // the fill was under way: without a fence the client has no claim
			r.wantLookup("let go without a fence", 0x511, 0x1010, 0xa010, false, 0)
		}
		want := uint64(0)
		if fenced {
			want = 1
		}
		if n := r.counter(hw.RegCountersKeyFillsDiscarded); n != want {
			t.Errorf("fenced %v: KEY_FILLS_DISCARDED %d", fenced, n)
		}
	}
}

// Rule G11: a fill that is held back does not keep other keys' lookups in the
// cache from being answered, nor is it lost.
func TestG11_HeldFillHoldsMissesOnly(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.register(5, 0x11, 0x1000, 0x100, 0xa000)
	r.register(6, 0x22, 0x1000, 0x100, 0xb000)
	r.wantLookup("into the cache", 0x622, 0x1000, 0xb000, false, 0)
	r.store(hw.RegDebugHoldFill, 1)
	r.wantLookup("miss", 0x511, 0x1000, 0, false, reasonHeld)
	r.wantLookup("hit", 0x622, 0x1000, 0xb000, true, 0)
	r.store(hw.RegDebugHoldFill, 0)
	r.wantLookup("let go", 0x511, 0x1000, 0xa000, false, 0)
	r.wantLookup("in the cache", 0x511, 0x1000, 0xa000, true, 0)
}

// Rule G11: the card's own change of an entry leaves no copy in the cache.
func TestG11_WriteKeyLeavesNoCopy(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.register(5, 0x11, 0x1000, 0x100, 0xa000)
	r.wantLookup("into the cache", 0x511, 0x1000, 0xa000, false, 0)
	e := hw.KeyEntry{Base: 0x1000, Length: 0x100, IOVA: 0xc000, PD: 3}
	e.SetTag(0x12)
	e.SetState(hw.KeyStateValid)
	r.do(hw.CommandWriteKey, 5, 0, e.AsBytes(), 0)
	r.wantLookup("old key", 0x511, 0x1000, 0, false, hw.ReasonKeyTag)
	r.wantLookup("new key", 0x512, 0x1000, 0xc000, true, 0)
	if got := hw.ViewKeyEntry(r.do(hw.CommandReadKey, 5, 0, nil, 64)); *got != e {
		t.Errorf("READ_KEY %+v, want %+v", *got, e)
	}
}

// Rule G11: the walk fault STALE_CACHE makes a copy outlive its fence, so that a
// mirror can be tested against it.
func TestG11_StaleCacheFault(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.register(5, 0x11, 0x1000, 0x100, 0xa000)
	r.wantLookup("into the cache", 0x511, 0x1000, 0xa000, false, 0)
	r.store(hw.RegDebugWalkFault, uint32(hw.WalkFaultStaleCache))
	r.revoke(5)
	r.do(hw.CommandFenceKey, 5, 0, nil, 0)
	r.wantLookup("stale", 0x511, 0x1000, 0xa000, true, 0)
	r.store(hw.RegDebugWalkFault, 0)
	r.do(hw.CommandFenceKey, 5, 0, nil, 0)
	r.wantLookup("fenced", 0x511, 0x1000, 0, false, hw.ReasonKeyIndex)
}

// The scrub reads each line of the cache, of the geometry that the card states:
// set = index mod sets, the least recently used way replaced.
func TestKeyCacheGeometry(t *testing.T) {
	r := newRig(t, Config{Limits: Limits{CacheSets: 4, CacheWays: 2}})
	r.start(4)
	if s, w := r.load(hw.RegIdentKeyCacheSets), r.load(hw.RegIdentKeyCacheWays); s != 4 || w != 2 {
		t.Fatalf("%d sets, %d ways", s, w)
	}
	for _, i := range []uint32{1, 5, 9, 2} {
		r.register(i, uint8(i), 0, 1<<20, uint64(i)<<20)
	}
	r.lookup(0x101, 0)
	r.lookup(0x505, 0)
	r.lookup(0x101, 0) // 5 is the oldest of set 1
	r.lookup(0x909, 0)
	r.lookup(0x202, 0)
	held := map[uint32]bool{}
	for line := range uint32(8) {
		l := hw.ViewKeyCacheLine(r.do(hw.CommandReadKeyCache, line, 0, nil, hw.KeyCacheLineSize))
		if l.Present == 0 {
			continue
		}
		held[l.Index] = true
		if l.Index%4 != line/2 {
			t.Errorf("index %d in line %d", l.Index, line)
		}
		want := hw.KeyEntry{Length: 1 << 20, IOVA: uint64(l.Index) << 20, PD: 3}
		want.SetTag(uint8(l.Index))
		want.SetState(hw.KeyStateValid)
		want.SetAccess(hw.AccessLocalWrite)
		if l.Entry != want {
			t.Errorf("line %d: %+v, want %+v", line, l.Entry, want)
		}
	}
	if len(held) != 3 || !held[1] || !held[9] || !held[2] {
		t.Errorf("held: %v; want 1, 9 and 2", held)
	}
	if n := r.counter(hw.RegCountersKeyCacheEvictions); n != 1 {
		t.Errorf("EVICTIONS %d", n)
	}
}

// FLIP_CACHE inverts one bit of a line, which the scrub then sees.
func TestFlipCache(t *testing.T) {
	r := newRig(t, Config{Limits: Limits{CacheSets: 4, CacheWays: 2}})
	r.start(4)
	r.register(1, 0x77, 0x4000, 0x1000, 0xa000)
	r.lookup(0x177, 0x4000)
	line := uint32(2)
	if l := hw.ViewKeyCacheLine(r.do(hw.CommandReadKeyCache, line, 0, nil, hw.KeyCacheLineSize)); l.Present != 1 || l.Index != 1 {
		t.Fatalf("line %d: %+v", line, *l)
	}
	r.store(hw.RegDebugFlipCache, line<<16|(16*8+13)) // bit 13 of the IOVA
	l := hw.ViewKeyCacheLine(r.do(hw.CommandReadKeyCache, line, 0, nil, hw.KeyCacheLineSize))
	if l.Entry.IOVA != 0x8000 {
		t.Errorf("IOVA %#x, want 0x8000", l.Entry.IOVA)
	}
	r.wantLookup("by the flipped line", 0x177, 0x4004, 0x8004, true, 0)
	for _, v := range []uint32{99 << 16, line<<16 | 512, 3 << 16, ^uint32(0)} { // no such line, no such bit, an empty line
		r.store(hw.RegDebugFlipCache, v)
	}
	r.run()
}

// The table has all of 2^20 entries, and nothing beyond.
func TestKeyTableBounds(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.register(1<<20-1, 1, 0, 16, 0xa000)
	r.wantLookup("last", (1<<20-1)<<8|1, 4, 0xa004, false, 0)
	r.wantLookup("beyond", 1<<28|1, 4, 0, false, hw.ReasonKeyIndex)
	r.wantLookup("far beyond", 0xffffff01, 4, 0, false, hw.ReasonKeyIndex)
	small := newRig(t, Config{Limits: Limits{KeyIndexBits: 4}})
	small.start(4)
	small.register(16, 1, 0, 16, 0xa000)
	small.wantLookup("beyond 2^4", 16<<8|1, 4, 0, false, hw.ReasonKeyIndex)
	small.refused(hw.CommandReadKey, 16, 0, nil, hw.CommandStatusBadObject, hw.CommandSyndromeKey)
}

// An entry that a client stores through the window may hold anything: what the
// contract does not define is not valid.
func TestHostileKeyEntries(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	put := func(f func(e *hw.KeyEntry)) {
		r.do(hw.CommandFenceKey, 5, 0, nil, 0)
		r.register(5, 0x11, 0x1000, 0x100, 0xa000)
		w := r.keys.Window(5*hw.KeyEntrySize, hw.KeyEntrySize)
		f(hw.ViewKeyEntry(w))
	}
	for _, c := range []struct {
		name string
		f    func(e *hw.KeyEntry)
	}{
		{"reserved byte", func(e *hw.KeyEntry) { e.AsBytes()[40] = 1 }},
		{"PD of 25 bits", func(e *hw.KeyEntry) { e.PD |= 1 << 24 }},
		{"reserved bits of the valid word", func(e *hw.KeyEntry) { e.Valid |= 1 << 15 }},
		{"type 2", func(e *hw.KeyEntry) { e.Valid |= 2 << 12 }},
		{"state 3", func(e *hw.KeyEntry) { e.Valid |= 3 << 8 }},
		{"access", func(e *hw.KeyEntry) { e.Valid |= 0x20 << 16 }},
		{"address space", func(e *hw.KeyEntry) { e.AddressSpace = 9 }},
	} {
		put(c.f)
		r.wantLookup(c.name, 0x511, 0x1000, 0, false, hw.ReasonKeyIndex)
	}
	put(func(e *hw.KeyEntry) {})
	r.wantLookup("a good one", 0x511, 0x1000, 0xa000, false, 0)
}

// An entry that its owner rewrites while the card reads it is never seen half:
// what a lookup gives belongs to one of the entries that were there. The tag
// changes at each use, as the contract wants it of an owner.
func TestKeyEntryIsReadWhole(t *testing.T) {
	r := newRig(t, Config{})
	var spent atomic.Int32
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		rng := rand.New(rand.NewPCG(1, 2))
		for tag := uint8(0); ; tag++ {
			select {
			case <-stop:
				return
			default:
			}
			r.revoke(5)
			mmio.ToDevice()
			n := uint64(rng.IntN(1 << 20))
			r.register(5, tag, n<<20, 0x1000, n<<20)
			for wait := rng.IntN(400); wait > 0; wait-- { // a while in which it can be read
				spent.Add(1)
			}
		}
	}()
	valid := 0
	for end := time.Now().Add(3 * time.Second); valid < 2_000_000 && time.Now().Before(end); {
		e := r.card.mem.entry(5)
		if e.State() != hw.KeyStateValid {
			continue
		}
		valid++
		if e.Base != e.IOVA {
			t.Errorf("base %#x with IOVA %#x", e.Base, e.IOVA)
			break
		}
	}
	close(stop)
	<-stopped
	if valid == 0 {
		t.Error("no valid entry was seen")
	}
}
