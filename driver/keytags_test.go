package driver

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestKeysOfIndices: the allocator of key indices and that of their tags, by a plain
// model, in random schedules with chosen keys in between. A fresh index comes first, then
// the one that was freed longest ago; a key that was not chosen is none that its index had
// in its last 255 uses.
func TestKeysOfIndices(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + uint32(rng.IntN(20)) // indices 1 to limit
		chosen := rng.IntN(3) * 10        // per cent
		indices, tags := newNumbers(1, limit+1, 1), newKeyTags()
		history := map[uint32][]uint8{}
		var live, freed []uint32
		fresh := uint32(1)
		taken := map[uint32]bool{}
		for step := range 20_000 {
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			switch {
			case len(live) > 0 && (rng.IntN(2) == 0 || len(live) == int(limit)):
				i := rng.IntN(len(live))
				indices.free(live[i])
				freed = append(freed, live[i])
				live = slices.Delete(live, i, i+1)
				continue
			case rng.IntN(100) < chosen:
				index, tag := 1+rng.Uint32N(limit), uint8(rng.Uint32())
				busy := slices.Contains(live, index)
				if err := indices.take(index); (err != nil) != busy {
					t.Fatalf("%s: index %d, in use %v: %v", where, index, busy, err)
				}
				if busy {
					continue
				}
				tags.choose(index, tag)
				if i := slices.Index(freed, index); i >= 0 {
					freed = slices.Delete(freed, i, i+1)
				}
				taken[index] = true
				live = append(live, index)
				history[index] = append(history[index], tag)
				continue
			}
			for fresh <= limit && taken[fresh] {
				fresh++
			}
			want := fresh
			if fresh > limit {
				want, freed = freed[0], freed[1:]
			} else {
				fresh++
			}
			index, err := indices.alloc()
			if err != nil || index != want {
				t.Fatalf("%s: index %d, %v; want %d", where, index, err, want)
			}
			tag := tags.next(index)
			h := history[index]
			if slices.Contains(h[max(0, len(h)-255):], tag) {
				t.Fatalf("%s: key %#x again, within 255 uses of its index", where, index<<8|uint32(tag))
			}
			history[index] = append(h, tag)
			taken[index] = true
			live = append(live, index)
		}
	}
}

// TestFirstTagIsRandom: the first tag of an index cannot be told.
func TestFirstTagIsRandom(t *testing.T) {
	seen := map[uint8]bool{}
	for range 1000 {
		seen[newKeyTags().next(1)] = true
	}
	if len(seen) < 200 { // of 256; 251 are expected
		t.Errorf("only %d first tags in 1,000", len(seen))
	}
}
