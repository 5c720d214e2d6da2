package gather

import "rnic/hw"

// KeyTable reads an entry of the key table. ok is false for an index beyond
// the table.
type KeyTable interface {
	Entry(index uint32) (k Key, ok bool)
}

// Keys is a key table behind a key cache, the Translator that a card and its
// mirror use. Cache may be nil: then every lookup is a miss.
type Keys struct {
	Table KeyTable
	Cache *Cache
}

// fetchTries bounds how often one lookup reads the key table.
const fetchTries = 8

// Translate is one lookup (G9): the cache, on a miss the table and a fill,
// then the checks of G10 on what was found. An entry that was invalidated
// while it was fetched (G11) is fetched again; one for which that happens
// fetchTries times is taken as gone.
func (t *Keys) Translate(key uint32, who Who, addr uint64, n uint32) (iova uint64, hit bool, r hw.Reason) {
	if t.Cache != nil {
		if k, ok := t.Cache.Lookup(IndexOf(key)); ok {
			iova, r = Check(k, key, who, addr, n)
			return iova, true, r
		}
	}
	iova, r = t.fetch(key, who, addr, n)
	return iova, false, r
}

// fetch is Translate where no cache has the entry.
func (t *Keys) fetch(key uint32, who Who, addr uint64, n uint32) (iova uint64, r hw.Reason) {
	index := IndexOf(key)
	if t.Cache == nil {
		k, ok := t.Table.Entry(index)
		if !ok {
			return 0, hw.ReasonKeyIndex
		}
		return Check(&k, key, who, addr, n)
	}
	for range fetchTries {
		fill := t.Cache.Begin(index)
		k, ok := t.Table.Entry(index)
		if !ok {
			return 0, hw.ReasonKeyIndex
		}
		if t.Cache.Complete(fill, k) {
			return Check(&k, key, who, addr, n)
		}
	}
	return 0, hw.ReasonKeyIndex
}
