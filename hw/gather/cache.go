package gather

import (
	"fmt"
	"math/bits"

	"rnic/hw"
)

// Geometry of a key cache, as the card states it. An entry of key index i
// lies in set i mod Sets, in any of its Ways.
type Geometry struct {
	Sets int // a power of two
	Ways int
}

// CacheStats counts what a key cache did since it was made (G11).
type CacheStats struct{ Hits, Misses, Evictions uint64 }

// Cache is a key cache: it makes the repeat lookup of a key cheap (G11). It
// holds valid entries only, replaces the least recently used of a set, and a
// fill that raced an invalidation of its set is discarded, so that once
// Invalidate has returned no copy of the entry is in it or can still get in.
//
// It is not safe for concurrent use. Nothing is allocated after NewCache.
type Cache struct {
	geometry Geometry
	lines    []line   // Sets × Ways, a set's ways side by side
	gen      []uint64 // per set: invalidations so far
	clock    uint64   // of uses
	stats    CacheStats
}

type line struct {
	key   Key
	index uint32
	used  uint64  // clock at the last use; 0: empty
	_     [8]byte // to the size of the processor's
}

// Fill is the ticket of a key-table read that is under way on behalf of a
// cache miss. Begin gives it, Complete takes it back.
type Fill struct {
	index uint32
	gen   uint64
}

// NewCache makes an empty cache. The geometry must have a power of two of
// sets and at least one way.
func NewCache(g Geometry) (*Cache, error) {
	if g.Sets < 1 || g.Ways < 1 || bits.OnesCount(uint(g.Sets)) != 1 || g.Sets > 1<<24 || g.Ways > 1<<10 {
		return nil, fmt.Errorf("gather: key cache of %d sets × %d ways: sets must be a power of two up to 2^24, ways 1 to 1024", g.Sets, g.Ways)
	}
	return &Cache{geometry: g, lines: make([]line, g.Sets*g.Ways), gen: make([]uint64, g.Sets)}, nil
}

// Geometry returns the geometry the cache was made with.
func (c *Cache) Geometry() Geometry { return c.geometry }

// Stats returns the counts so far.
func (c *Cache) Stats() CacheStats { return c.stats }

func (c *Cache) setOf(index uint32) int { return int(index) & (c.geometry.Sets - 1) }

func (c *Cache) set(index uint32) []line {
	at := c.setOf(index) * c.geometry.Ways
	return c.lines[at : at+c.geometry.Ways]
}

// Lookup returns the entry of a key index and counts a hit or a miss. The
// entry belongs to the cache: it is good until the next call.
func (c *Cache) Lookup(index uint32) (k *Key, hit bool) {
	first := c.setOf(index) * c.geometry.Ways
	for i := first; i < first+c.geometry.Ways; i++ {
		if l := &c.lines[i]; l.index == index && l.used != 0 {
			c.clock++
			l.used = c.clock
			c.stats.Hits++
			return &l.key, true
		}
	}
	c.stats.Misses++
	return nil, false
}

// Peek is Lookup without a trace: it counts nothing and makes nothing
// recently used. It is for scrubbing and for showing what the cache holds.
func (c *Cache) Peek(index uint32) (k Key, held bool) {
	for _, l := range c.set(index) {
		if l.used != 0 && l.index == index {
			return l.key, true
		}
	}
	return Key{}, false
}

// Lines is how many lines there are: Sets × Ways.
func (c *Cache) Lines() int { return len(c.lines) }

// Line returns a line as the scrub reads it: line i is way i mod Ways of set
// i / Ways. present is false for an empty one. i must be below Lines.
func (c *Cache) Line(i int) (index uint32, k Key, present bool) {
	l := &c.lines[i]
	return l.index, l.key, l.used != 0
}

// Corrupt replaces the entry that a line holds: a flipped bit, for testing
// that it is found. It does nothing to an empty line.
func (c *Cache) Corrupt(i int, k Key) {
	if c.lines[i].used != 0 {
		c.lines[i].key = k
	}
}

// Begin opens the fill that a miss asks for. It is called before the key
// table is read.
func (c *Cache) Begin(index uint32) Fill { return Fill{index: index, gen: c.gen[c.setOf(index)]} }

// Complete stores what the key table said. It reports false, and stores
// nothing, when an invalidation came in between: then k may be stale, and
// must not be used for DMA either. An entry that is not valid is not stored.
func (c *Cache) Complete(f Fill, k Key) bool {
	if f.gen != c.gen[c.setOf(f.index)] {
		return false
	}
	if k.State != hw.KeyStateValid {
		return true
	}
	set := c.set(f.index)
	victim := &set[0]
	for i := range set {
		if set[i].used != 0 && set[i].index == f.index {
			victim = &set[i]
			break
		}
		if set[i].used < victim.used {
			victim = &set[i]
		}
	}
	if victim.used != 0 && victim.index != f.index {
		c.stats.Evictions++
	}
	c.clock++
	*victim = line{key: k, index: f.index, used: c.clock}
	return true
}

// Invalidate drops the entry of a key index and discards every fill of its
// set that is under way (G11). It is no eviction.
func (c *Cache) Invalidate(index uint32) {
	c.gen[c.setOf(index)]++
	set := c.set(index)
	for i := range set {
		if set[i].used != 0 && set[i].index == index {
			set[i] = line{}
		}
	}
}

// Flush drops every entry and discards every fill under way.
func (c *Cache) Flush() {
	for i := range c.gen {
		c.gen[i]++
	}
	clear(c.lines)
}
