package softcard

import (
	"rnic/hw"
	"rnic/hw/gather"
)

// reasonHeld is no reason of the contract: the lookup's fill is held back by the
// debug page (HOLD_FILL). The packet is not faulty; it is to be tried again.
const reasonHeld hw.Reason = 0xff

// keyCache is the key cache in front of the key table (rule G11).
type keyCache struct {
	card  *Card
	cache *gather.Cache

	// A fill that HOLD_FILL stopped between its read and its entry.
	held      bool
	heldFill  gather.Fill
	heldIndex uint32
	heldKey   gather.Key

	evictions uint64 // of the cache, counted so far
}

func (k *keyCache) init(c *Card) (err error) {
	k.card = c
	k.cache, err = gather.NewCache(gather.Geometry{Sets: int(c.lim.CacheSets), Ways: int(c.lim.CacheWays)})
	return err
}

func (k *keyCache) reset() {
	k.cache.Flush()
	k.held = false
	k.evictions = k.cache.Stats().Evictions
}

// Translate is a lookup of the card (rules G9, G10): the cache, on a miss the
// table and a fill, then the checks. It makes keyCache a gather.Translator.
func (k *keyCache) Translate(key uint32, who gather.Who, addr uint64, n uint32) (iova uint64, hit bool, r hw.Reason) {
	c := k.card
	index := gather.IndexOf(key)
	c.count[cntLookups]++
	if p, held := k.cache.Lookup(index); held {
		c.count[cntKeyCacheHits]++
		iova, r = gather.Check(p, key, who, addr, n)
		return iova, true, r
	}
	c.count[cntKeyCacheMisses]++
	if !c.keyIndexOK(index) {
		return 0, false, hw.ReasonKeyIndex
	}
	e, fresh := k.fill(index)
	if !fresh {
		return 0, false, reasonHeld
	}
	iova, r = gather.Check(&e, key, who, addr, n)
	return iova, false, r
}

// fill reads an entry and puts it into the cache, unless an invalidation came
// between (then it is read again) or HOLD_FILL stops it there (then it is false).
func (k *keyCache) fill(index uint32) (gather.Key, bool) {
	c := k.card
	hold := c.regs.tests.holdFill.Load() != 0
	if k.held && !hold {
		k.held = false
		if k.complete(k.heldFill, k.heldKey) && k.heldIndex == index {
			return k.heldKey, true
		}
	}
	if hold {
		if !k.held {
			k.held, k.heldIndex, k.heldFill = true, index, k.cache.Begin(index)
			e := c.mem.entry(index)
			k.heldKey = decodeKey(&e)
		}
		return gather.Key{}, false
	}
	for {
		f := k.cache.Begin(index)
		e := c.mem.entry(index)
		key := decodeKey(&e)
		if k.complete(f, key) {
			return key, true
		}
	}
}

// complete puts an entry that was read into the cache, and is false where an
// invalidation came between: the entry must not be used.
func (k *keyCache) complete(f gather.Fill, key gather.Key) bool {
	if !k.cache.Complete(f, key) {
		k.card.count[cntKeyFillsDiscarded]++
		return false
	}
	n := k.cache.Stats().Evictions
	k.card.count[cntKeyCacheEvictions] += n - k.evictions
	k.evictions = n
	return true
}

// fence makes sure that no copy of an entry is in the cache and that a fill of it
// under way is discarded. WALK_FAULT STALE_CACHE leaves the copy there.
func (k *keyCache) fence(index uint32) {
	if k.card.live.debug.walkFault == hw.WalkFaultStaleCache {
		return
	}
	k.cache.Invalidate(index)
	if k.card.rtl != nil {
		k.card.rtl.fence(index)
	}
}

// flip inverts a bit of a line (FLIP_CACHE), counted through the 64 bytes of its
// entry; bits that the line does not keep have no effect.
func (k *keyCache) flip(line, bit int) {
	if line >= int(k.card.lim.CacheSets*k.card.lim.CacheWays) || bit >= 8*hw.KeyEntrySize {
		return
	}
	_, key, held := k.cache.Line(line)
	if !held {
		return
	}
	var e hw.KeyEntry
	encodeKey(&e, &key)
	e.AsBytes()[bit/8] ^= 1 << (bit % 8)
	k.cache.Corrupt(line, rawKey(&e))
}

// translate is the card's lookup; see keyCache.Translate.
func (c *Card) translate(key uint32, who gather.Who, addr uint64, n uint32) (iova uint64, hit bool, r hw.Reason) {
	return c.keys.Translate(key, who, addr, n)
}
