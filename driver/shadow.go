package driver

import (
	"errors"
	"sync"

	"rnic/hw"
	"rnic/hw/gather"
)

// shadow is the key table as this driver has written it, with the memory behind
// each key: what the software walk works on (rule G21).
type shadow struct {
	mu    sync.Mutex // held for the walk of a packet: a key that was cleared is used by nobody
	limit uint32     // key indices of the card
	keys  map[uint32]*shadowKey
	cache *gather.Cache // of the card's geometry, for the host gather; nil: none
}

// shadowKey is a key and its memory.
type shadowKey struct {
	key    gather.Key
	memory []byte // from key.IOVA on

	// While the card is told of a key that comes or goes, both answers to a lookup
	// are right.
	moving bool

	pieces []bundlePiece // in a replay: what is known of the memory
}

// entry is the key as the card's table has it.
func (k *shadowKey) entry() hw.KeyEntry {
	g := &k.key
	return hw.KeyEntry{
		Base: g.Base, Length: g.Length, IOVA: g.IOVA, PD: g.PD, BoundQPN: g.BoundQPN, Parent: g.Parent,
		Valid: uint32(hw.KeyEntryValid(0).WithTag(g.Tag).WithState(g.State).WithType(g.Type).WithAccess(g.Access)),
	}
}

// Entry makes the shadow a gather.KeyTable. The caller holds mu.
func (s *shadow) Entry(index uint32) (gather.Key, bool) {
	if k := s.keys[index]; k != nil {
		return k.key, true
	}
	return gather.Key{}, index < s.limit
}

// moves reports whether one of the keys comes or goes. The caller holds mu.
func (s *shadow) moves(segs []gather.Segment) bool {
	for i := range segs {
		if k := s.keys[gather.IndexOf(segs[i].Key)]; k != nil && k.moving {
			return true
		}
	}
	return false
}

// move says that a region's key is coming or going, or that it has come.
func (s *shadow) move(m *MR, moving bool) {
	s.mu.Lock()
	if k := s.keys[m.key>>8]; k != nil && k.key.Tag == uint8(m.key) {
		k.moving = moving
	}
	s.mu.Unlock()
}

// set puts a region in, which has its memory. Its key is coming.
func (s *shadow) set(m *MR) {
	e := m.entry()
	v := hw.KeyEntryValid(e.Valid)
	k := &shadowKey{moving: true, memory: m.Bytes(), key: gather.Key{
		State: v.State(), Type: v.Type(), Tag: v.Tag(), Access: v.Access(), PD: e.PD, Base: e.Base, Length: e.Length, IOVA: e.IOVA,
	}}
	s.mu.Lock()
	s.keys[m.key>>8] = k
	s.invalidate(m.key >> 8)
	s.mu.Unlock()
}

// clear takes a region out. After it, no walk uses its key or its memory.
func (s *shadow) clear(m *MR) {
	s.mu.Lock()
	if k := s.keys[m.key>>8]; k != nil && k.key.Tag == uint8(m.key) {
		delete(s.keys, m.key>>8)
		s.invalidate(m.key >> 8)
	}
	s.mu.Unlock()
}

func (s *shadow) invalidate(index uint32) {
	if s.cache != nil {
		s.cache.Invalidate(index)
	}
}

// walker is the software walk over a shadow: the memory and the keys that
// package gather asks for. Its calls are under the shadow's mu.
type walker struct {
	s     *shadow
	cache *gather.Cache
	at    *shadowKey // of the last lookup
}

var errNoMemory = errors.New("rnic: no memory at that IOVA")

// Translate is one lookup (rules G9, G10).
func (w *walker) Translate(key uint32, who gather.Who, addr uint64, n uint32) (iova uint64, hit bool, r hw.Reason) {
	keys := gather.Keys{Table: w.s, Cache: w.cache}
	w.at = w.s.keys[gather.IndexOf(key)]
	return keys.Translate(key, who, addr, n)
}

// Read copies the piece that was just translated.
func (w *walker) Read(iova uint64, dst []byte) error {
	k := w.at
	for _, p := range k.pieces {
		if uint64(p.IOVA) == iova && len(p.Data) == len(dst) {
			copy(dst, p.Data)
			return nil
		}
	}
	off := iova - k.key.IOVA
	if off > uint64(len(k.memory)) || uint64(len(dst)) > uint64(len(k.memory))-off {
		return errNoMemory
	}
	copy(dst, k.memory[off:])
	return nil
}
