package main

import (
	"context"
	"errors"
	"math"
	"runtime"

	"rnic/hw/softcard"
)

// measureAllocations counts the heap's allocations while all of the rounds above run once more.
func measureAllocations(ctx context.Context, b *bench) error {
	total, ops := uint64(0), 0
	err := b.alone(ctx, func() error {
		for _, a := range twinRows {
			r, err := newRig(ctx, a.layer, a.shape, a.n)
			if err != nil {
				return err
			}
			var sum uint64
			n, err := allocations(func() error {
				_, err := r.round(a.work, &sum)
				return err
			})
			if err = errors.Join(err, r.close()); err != nil {
				return err
			}
			total += n
			ops += a.n
		}
		return nil
	})
	if err != nil {
		return err
	}
	messages := b.atScale(1<<14, 1<<10)
	n, err := sendAllocations(ctx, messages)
	if err != nil {
		return err
	}
	b.add("alloc", "allocations on the data path", "count", less, 0, 0, float64(total+n), "posts and polls of all rows above, and 64-byte SENDs between two soft cards",
		absolute{"posts and polls", float64(ops), "count"}, absolute{"SENDs", float64(messages), "count"})
	return nil
}

// sendAllocations counts those of drivers and cards while so many messages are sent. (A card that fell
// asleep is woken by a vfio-user message, which allocates; these do not sleep.)
func sendAllocations(ctx context.Context, messages int) (n uint64, err error) {
	wire, err := softcard.NewWire(0)
	if err != nil {
		return 0, err
	}
	var cards [2]*idleCard
	var e [2]*end
	for i := range cards {
		var addr string
		if cards[i], addr, err = newIdleCard(wire); err == nil {
			e[i], err = newEnd(ctx, addr, sendEnds(1, 256))
		}
		if err != nil {
			return 0, err
		}
	}
	if err := connect(ctx, e[0], e[1]); err != nil {
		return 0, err
	}
	s, err := newStream(e[0], e[1], 256, 32)
	if err == nil {
		n, err = allocations(func() error {
			_, err := s.run(messages)
			return err
		})
	}
	return n, errors.Join(err, closePair(e[0], e[1]), cards[0].close(), cards[1].close())
}

// allocations is how many f makes in the steady state: the least of some runs, until there is none, since
// the process's other goroutines are counted as well.
func allocations(f func() error) (least uint64, err error) {
	least = math.MaxUint64
	var before, after runtime.MemStats
	for n := 0; n < 50 && least > 0; n++ {
		runtime.ReadMemStats(&before)
		if err := f(); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least, nil
}
