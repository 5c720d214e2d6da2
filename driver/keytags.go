package driver

import (
	"bytes"
	"math/rand/v2"
	"sync"
)

// keyTags chooses the tags of keys: the first of an index is random, and each use
// has the one that was used longest ago, so that a key comes again after 256 uses of
// its index at the earliest. Chosen keys (WithKey) count among the uses.
type keyTags struct {
	mu    sync.Mutex
	last  map[uint32]uint8      // by index: the tag of its last use; the next is one more,
	order map[uint32]*[256]byte // unless another one was chosen before: then all tags, that used longest ago first
}

func newKeyTags() *keyTags {
	return &keyTags{last: map[uint32]uint8{}, order: map[uint32]*[256]byte{}}
}

// next is the tag of an index's next use.
func (k *keyTags) next(index uint32) uint8 {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, used := k.last[index]
	if o := k.order[index]; o != nil {
		t = o[0]
	} else if used {
		t++
	} else {
		t = uint8(rand.Uint32())
	}
	k.use(index, t)
	return t
}

// choose says that an index's next use has that tag.
func (k *keyTags) choose(index uint32, tag uint8) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t, used := k.last[index]; used && tag != t+1 && k.order[index] == nil {
		o := new([256]byte)
		for i := range o {
			o[i] = t + 1 + uint8(i)
		}
		k.order[index] = o
	}
	k.use(index, tag)
}

// use notes a use. The caller holds mu.
func (k *keyTags) use(index uint32, tag uint8) {
	k.last[index] = tag
	if o := k.order[index]; o != nil {
		i := bytes.IndexByte(o[:], tag)
		copy(o[i:], o[i+1:])
		o[255] = tag
	}
}
