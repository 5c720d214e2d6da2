package driver

import (
	"fmt"
	"slices"
	"sync"
)

// numbers hands out the numbers of a range: fresh ones first, round from a
// start, then those freed longest ago, so that a number that was used rests as
// long as it can.
type numbers struct {
	first, span, start uint32

	mu    sync.Mutex
	next  uint32 // how many of the range have been passed, from start on
	freed []uint32
	early map[uint32]bool // taken by name before next had passed them
	used  int
}

// newNumbers gives out [first, limit), start first.
func newNumbers(first, limit, start uint32) *numbers {
	return &numbers{first: first, span: limit - first, start: start - first, early: map[uint32]bool{}}
}

// alloc takes a number.
func (n *numbers) alloc() (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.next < n.span {
		v := n.first + uint32((uint64(n.start)+uint64(n.next))%uint64(n.span))
		n.next++
		if n.early[v] {
			delete(n.early, v)
			continue
		}
		n.used++
		return v, nil
	}
	if len(n.freed) == 0 {
		return 0, fmt.Errorf("all %d are in use: %w", n.used, ErrLimit)
	}
	v := n.freed[0]
	n.freed = n.freed[1:]
	n.used++
	return v, nil
}

// take takes the number v.
func (n *numbers) take(v uint32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v-n.first >= n.span {
		return fmt.Errorf("%#x is not in %#x to %#x: %w", v, n.first, n.first+n.span-1, ErrInvalid)
	}
	if i := slices.Index(n.freed, v); i >= 0 {
		n.freed = slices.Delete(n.freed, i, i+1)
		n.used++
		return nil
	}
	rank := uint32((uint64(v-n.first) + uint64(n.span) - uint64(n.start)) % uint64(n.span))
	if rank < n.next || n.early[v] {
		return fmt.Errorf("%#x is taken: %w", v, ErrInUse)
	}
	n.early[v] = true
	n.used++
	return nil
}

// free gives a number back; it goes to the back of the queue. (One that was
// taken early stays marked, so that it does not come up as a fresh one too.)
func (n *numbers) free(v uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.freed = append(n.freed, v)
	n.used--
}
