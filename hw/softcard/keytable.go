package softcard

import (
	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/mmio"
)

// keyReads bounds how often an entry is read that changes meanwhile.
const keyReads = 4

// entry reads an entry of the key table. The client may change it through its
// window at any moment: the valid word, which is cleared first and stored last,
// must be the same before and after the rest was read, else the entry is taken
// as not valid.
func (m *sharedPages) entry(index uint32) (e hw.KeyEntry) {
	p := &m.keys[index]
	for range keyReads {
		before := mmio.Load32(&p.Valid)
		mmio.FromDevice()
		copy(e.AsBytes(), p.AsBytes())
		mmio.FromDevice()
		if e.Valid = mmio.Load32(&p.Valid); e.Valid == before {
			return e
		}
	}
	e.Valid = 0
	return e
}

// setEntry stores an entry: not valid, the rest, the valid word.
func (m *sharedPages) setEntry(index uint32, e *hw.KeyEntry) {
	p := &m.keys[index]
	mmio.Store32(&p.Valid, 0)
	mmio.ToDevice()
	valid := e.Valid
	b := e.AsBytes()
	copy(p.AsBytes(), b[:hw.KeyEntrySize-4])
	mmio.ToDevice()
	mmio.Store32(&p.Valid, valid)
}

// decodeKey is a key-table entry as the walk wants it. Reserved bits, a state and
// a type that the contract does not have make it invalid.
func decodeKey(e *hw.KeyEntry) gather.Key {
	k := rawKey(e)
	if k.State == hw.KeyStateValid && (!e.ReservedZero() || !k.Type.Valid() || !k.Access.Valid() || e.AddressSpace != 0) {
		k.State = hw.KeyStateInvalid
	}
	return k
}

func rawKey(e *hw.KeyEntry) gather.Key {
	return gather.Key{
		State: e.State(), Type: e.Type(), Tag: e.Tag(), Access: e.Access(),
		PD: e.PD & 0xffffff, BoundQPN: e.BoundQPN & 0xffffff, Parent: e.Parent & 0xffffff,
		Base: e.Base, Length: e.Length, IOVA: e.IOVA,
	}
}

// eachKey calls f with the index of each entry from first on, below end, that is
// not free. Pages that were never touched are passed over.
func (m *sharedPages) eachKey(first, end uint32, f func(uint32)) {
	for at := int64(first) * hw.KeyEntrySize; at < int64(end)*hw.KeyEntrySize; {
		data, err := unix.Seek(m.keyFD, at, unix.SEEK_DATA)
		if err != nil {
			return // ENXIO: nothing but holes
		}
		hole, err := unix.Seek(m.keyFD, data, unix.SEEK_HOLE)
		if err != nil {
			return
		}
		last := min(hole/hw.KeyEntrySize, int64(end))
		for i := max(data/hw.KeyEntrySize, int64(first)); i < last; i++ {
			if hw.KeyEntryValid(mmio.Load32(&m.keys[i].Valid)).State() != hw.KeyStateFree {
				f(uint32(i))
			}
		}
		at = hole
	}
}

func (c *Card) keyIndexOK(index uint32) bool { return index < uint32(1)<<c.lim.KeyIndexBits }

// writeKey is WRITE_KEY. The card changes its own table, so no copy stays in the
// cache.
func (c *Card) writeKey(cmd *command) result {
	var e hw.KeyEntry
	if r := c.mailbox(cmd, e.AsBytes()); r != ok {
		return r
	}
	switch {
	case !c.keyIndexOK(cmd.Object):
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeKey)
	case !e.ReservedZero(), e.AddressSpace != 0:
		return result{status: hw.CommandStatusReservedNotZero}
	case !e.State().Valid(), !e.Type().Valid(), !e.Access().Valid(),
		e.State() == hw.KeyStateValid && (wraps(e.Base, e.Length) || wraps(e.IOVA, e.Length)):
		return param(hw.CommandSyndromeKey)
	}
	c.mem.setEntry(cmd.Object, &e)
	c.keys.fence(cmd.Object)
	return ok
}

func (c *Card) readKey(cmd *command) result {
	if !c.keyIndexOK(cmd.Object) {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeKey)
	}
	e := c.mem.entry(cmd.Object)
	return c.answer(cmd, e.AsBytes())
}

// fenceKey is FENCE_KEY (rule G11). When the reply is written, no cache holds
// the key and no fill of it is under way; and since a Step waits for each of its
// DMA accesses, none that used the key is in flight.
func (c *Card) fenceKey(cmd *command) result {
	if !c.keyIndexOK(cmd.Object) {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeKey)
	}
	c.keys.fence(cmd.Object)
	c.count[cntKeyFences]++
	if !c.cfg.FuseDebug {
		cmd.value = c.dma.sequence
	}
	return ok
}

// readKeyCache is READ_KEY_CACHE, a line as the cache holds it.
func (c *Card) readKeyCache(cmd *command) result {
	if cmd.Object >= c.lim.CacheSets*c.lim.CacheWays {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeKey)
	}
	var l hw.KeyCacheLine
	if index, k, held := c.keys.cache.Line(int(cmd.Object)); held {
		l.Index, l.Present = index, 1
		encodeKey(&l.Entry, &k)
	}
	return c.answer(cmd, l.AsBytes())
}

func encodeKey(e *hw.KeyEntry, k *gather.Key) {
	*e = hw.KeyEntry{Base: k.Base, Length: k.Length, IOVA: k.IOVA, PD: k.PD, BoundQPN: k.BoundQPN, Parent: k.Parent}
	e.SetTag(k.Tag)
	e.SetState(k.State)
	e.SetType(k.Type)
	e.SetAccess(k.Access)
}
