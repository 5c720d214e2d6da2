package driver

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"rnic/hw"
)

// ScrubReport compares the key table's three copies: the driver's shadow, the
// card's table and the card's key cache.
type ScrubReport struct {
	Keys       int // regions that are registered
	Cached     int // lines in use
	Lines      int // lines of the cache
	Mismatches []ScrubMismatch
}

// Places of a ScrubMismatch.
const (
	ScrubCache   = "cache"
	ScrubTable   = "table"
	ScrubShadow  = "shadow"          // the driver's
	ScrubEither  = "table or shadow" // no line of the cache tells which
	ScrubUnknown = "unknown"         // all three differ
)

// ScrubMismatch is a field of a key's entry (KeyEntry of docs/card.md) on which
// its copies differ.
type ScrubMismatch struct {
	Index uint32 // of the key
	Line  int    // of the key cache; -1: no line has the key
	Field string // name of docs/card.md; reserved_0xNN are the reserved bits of the word at 0xNN
	Where string // which copy is wrong: ScrubCache and so on
	Why   string // how that is known

	// What the copies have. A copy that has no such key counts as zero, as the
	// contract has it for a free entry.
	Shadow, Table uint64
	Cache         uint64 // 0 where there is no line
}

// keyField is a field of the 64 bytes of a KeyEntry: the bits of mask in the
// little-endian word of size bytes at offset.
type keyField struct {
	name         string
	offset, size int
	mask         uint64
}

func (f *keyField) of(e *hw.KeyEntry) uint64 {
	b := e.AsBytes()[f.offset:]
	if f.size == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	v := uint64(binary.LittleEndian.Uint32(b)) & f.mask
	return v / (f.mask & -f.mask) // down to the mask's lowest bit
}

// keyFields are the whole entry: each of its bits is in one of them.
var keyFields = func() []keyField {
	all := []keyField{
		{"base", 0, 8, ^uint64(0)}, {"length", 8, 8, ^uint64(0)}, {"iova", 16, 8, ^uint64(0)},
		{"pd", 24, 4, 0xffffff}, {"bound_qpn", 28, 4, 0xffffff}, {"parent", 32, 4, 0xffffff}, {"address_space", 36, 4, 0xfffff},
		{"tag", 60, 4, hw.KeyEntryValidTagMask}, {"state", 60, 4, hw.KeyEntryValidStateMask},
		{"type", 60, 4, hw.KeyEntryValidTypeMask}, {"access", 60, 4, hw.KeyEntryValidAccessMask},
	}
	for at := 24; at < hw.KeyEntrySize; at += 4 {
		mask := uint64(1<<32 - 1)
		for _, f := range all {
			if f.offset == at {
				mask &^= f.mask
			}
		}
		all = append(all, keyField{fmt.Sprintf("reserved_%#x", at), at, 4, mask})
	}
	return all
}()

// cardOwns are the fields of a memory window that the card itself changes: by
// BIND_MW, local invalidate, and SEND with invalidate.
var cardOwns = map[string]bool{"base": true, "length": true, "iova": true, "bound_qpn": true, "parent": true, "tag": true, "state": true, "access": true}

// compareKey compares an entry's copies, field by field. line is nil where no line
// of the cache has the key, which is line n otherwise.
func compareKey(index uint32, shadow, table *hw.KeyEntry, n int, line *hw.KeyEntry) (found []ScrubMismatch) {
	window := shadow.Type() == hw.KeyTypeMW2 && table.Type() == hw.KeyTypeMW2
	for i := range keyFields {
		f := &keyFields[i]
		m := ScrubMismatch{Index: index, Line: n, Field: f.name, Shadow: f.of(shadow), Table: f.of(table)}
		if window && cardOwns[f.name] {
			m.Shadow = m.Table // the card's word counts
		}
		m.Cache = m.Table
		if line != nil {
			m.Cache = f.of(line)
		}
		switch {
		case m.Shadow == m.Table && m.Table == m.Cache:
			continue
		case m.Shadow == m.Table:
			m.Where, m.Why = ScrubCache, "table and shadow agree"
		case line == nil:
			m.Where, m.Why = ScrubEither, "the two differ, and no line of the cache tells which is right"
			m.Cache = 0
		case m.Shadow == m.Cache:
			m.Where, m.Why = ScrubTable, "cache and shadow agree"
		case m.Table == m.Cache:
			m.Where, m.Why = ScrubShadow, "table and cache agree"
		default:
			m.Where, m.Why = ScrubUnknown, "all three differ: none tells which is right"
		}
		found = append(found, m)
	}
	return found
}

// scrubTries bounds how often a key is read again whose copies differ.
const scrubTries = 8

// Scrub reads the card's key table and key cache and compares each entry, all of
// its 64 bytes, with the driver's shadow: what this driver wrote, and what
// verification and the host gather work on. A copy that two others outvote is
// named. What differs is read again, and is a mismatch only if nothing has changed:
// regions that come and go meanwhile are none, nor is what the card changes in
// a memory window.
//
// Three bounds: a line counts where the card would look it up, in the set of its
// key; the card fills its cache from its table, so a flip of the table
// that a later fill took over is two votes against the shadow; and an entry
// that the card lists as free, and that nobody has registered, is not read.
func (d *Device) Scrub(ctx context.Context) (ScrubReport, error) {
	const op = "scrub keys"
	ctx, cancel := bound(ctx)
	defer cancel()
	r := ScrubReport{Lines: d.attr.KeyCacheSets * d.attr.KeyCacheWays}
	d.mu.Lock()
	r.Keys = len(d.mrs)
	d.mu.Unlock()
	listed, err := d.list(ctx, hw.ListKindKey)
	if err != nil {
		return r, d.fail(op, "", err)
	}
	lines, err := d.readKeyCache(ctx, 0, r.Lines)
	if err != nil {
		return r, d.fail(op, "", err)
	}
	indices := map[uint32]bool{}
	for _, i := range listed {
		indices[i] = true
	}
	for i, held := range lines {
		indices[i] = true
		r.Cached += len(held)
	}
	d.shadow.mu.Lock()
	for i := range d.shadow.keys {
		indices[i] = true
	}
	d.shadow.mu.Unlock()
	for _, i := range slices.Sorted(maps.Keys(indices)) {
		found, err := d.scrubKey(ctx, i, lines)
		if err != nil {
			return r, d.fail(op, fmt.Sprintf("key index %#x", i), err)
		}
		r.Mismatches = append(r.Mismatches, found...)
	}
	return r, nil
}

// scrubKey compares the copies of one key until they agree, or until they differ
// in the same way twice. A key that moves all the time is no mismatch. lines are
// from before: who differs from them is asked again.
func (d *Device) scrubKey(ctx context.Context, index uint32, lines map[uint32][]cacheLine) ([]ScrubMismatch, error) {
	var before []ScrubMismatch
	for try := range scrubTries {
		shadow, moving := d.shadowEntry(index)
		var table hw.KeyEntry
		var err error
		if index < d.shadow.limit { // a card may say anything of its cache
			table, err = d.readKey(ctx, index)
		}
		if err == nil && try > 0 && d.attr.KeyCacheSets > 0 {
			set := int(index) % d.attr.KeyCacheSets * d.attr.KeyCacheWays // KEY_CACHE_SETS of docs/card.md
			lines, err = d.readKeyCache(ctx, set, set+d.attr.KeyCacheWays)
		}
		if err != nil {
			return nil, err
		}
		var found []ScrubMismatch
		for i := range lines[index] {
			l := &lines[index][i]
			found = append(found, compareKey(index, &shadow, &table, l.n, &l.entry)...)
		}
		if len(lines[index]) == 0 {
			found = compareKey(index, &shadow, &table, -1, nil)
		}
		if len(found) == 0 {
			return nil, nil
		}
		if after, m := d.shadowEntry(index); moving || m || after != shadow || try == 0 {
			continue // not one moment's
		}
		if slices.Equal(found, before) {
			return found, nil
		}
		before = found
	}
	return nil, nil
}

// shadowEntry is the shadow's copy of a key, zero where it has none. moving: the
// key is on its way to the card or from it.
func (d *Device) shadowEntry(index uint32) (e hw.KeyEntry, moving bool) {
	d.shadow.mu.Lock()
	k := d.shadow.keys[index]
	if k != nil {
		e, moving = k.entry(), k.moving
	}
	d.shadow.mu.Unlock()
	if k == nil {
		d.mu.Lock()
		_, moving = d.mrs[index] // a region has an index before its shadow has it, and after
		d.mu.Unlock()
	}
	return e, moving
}

// cacheLine is a line of the card's key cache that is in use.
type cacheLine struct {
	n     int
	entry hw.KeyEntry
}

// readKeyCache reads the card's key cache from line first to before end: the lines that
// are in use, by the index of their key.
func (d *Device) readKeyCache(ctx context.Context, first, end int) (map[uint32][]cacheLine, error) {
	lines := map[uint32][]cacheLine{}
	for n := first; n < end; n++ {
		var l hw.KeyCacheLine
		if err := d.command(ctx, hw.CommandReadKeyCache, uint32(n), 0, nil, l.AsBytes()); err != nil {
			return nil, fmt.Errorf("cache line %d: %w", n, err)
		}
		if l.Present != 0 {
			lines[l.Index] = append(lines[l.Index], cacheLine{n, l.Entry})
		}
	}
	return lines, nil
}
