package main

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// against is a row that is compared with the twin.
type against struct {
	name, layer, work, shape string
	n                        int // requests of a round
	floor, aim               float64
	figure                   string
}

var twinRows = []against{
	{"post-1", "verbs", "post", "1", 256, 1.2, 1.1, "post, 1 SGE, against C"},
	{"post-3", "verbs", "post", "3", 256, 1.2, 1.1, "post, 3 SGEs, against C"},
	{"post-63", "verbs", "post", "63", 128, 1.2, 1.1, "post, 63 SGEs, against C"},
	{"post-inline", "verbs", "post", "inline", 256, 1.2, 1.1, "post, 64 B inline, against C"},
	{"poll-1", "verbs", "poll1", "1", 256, 1.2, 1.1, "poll, one at a time, against C"},
	{"poll-16", "verbs", "poll16", "1", 256, 1.2, 1.1, "poll, 16 at a time, against C"},
	{"cycle-32", "verbs", "cycle", "1", 256, 1.15, 1.05, "post + poll, batches of 32, against C"},
	{"queue-post-1", "queue", "post", "1", 256, none, none, "bare queue: post, 1 SGE, against C"},
	{"queue-post-3", "queue", "post", "3", 256, none, none, "bare queue: post, 3 SGEs, against C"},
	{"queue-post-63", "queue", "post", "63", 128, none, none, "bare queue: post, 63 SGEs, against C"},
	{"queue-post-inline", "queue", "post", "inline", 256, none, none, "bare queue: post, 64 B inline, against C"},
	{"queue-poll-1", "queue", "poll1", "1", 256, none, none, "bare queue: poll, one at a time, against C"},
	{"queue-poll-16", "queue", "poll16", "1", 256, none, none, "bare queue: poll, 16 at a time, against C"},
	{"queue-cycle-32", "queue", "cycle", "1", 256, none, none, "bare queue: post + poll, batches of 32, against C"},
}

func twinParts() (all []part) {
	for _, a := range twinRows {
		all = append(all, part{[]string{a.name}, func(ctx context.Context, b *bench) error {
			return b.alone(ctx, func() error { return a.measure(ctx, b) })
		}})
	}
	return all
}

func newRig(ctx context.Context, layer, shape string, n int) (rig, error) {
	if layer == "queue" {
		return newQueueRig(shape, n)
	}
	return newVerbsRig(ctx, shape, n)
}

// measure runs the twin and the rig in turn, and compares their least rounds.
func (a *against) measure(ctx context.Context, b *bench) (err error) {
	r, err := newRig(ctx, a.layer, a.shape, a.n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	rounds := b.atScale(300, 5)
	ours, c := uint64(math.MaxUint64), uint64(math.MaxUint64)
	for range b.times() {
		t, want, err := b.twin.run(a.layer, a.work, a.shape, a.n, rounds)
		if err != nil {
			return err
		}
		c = min(c, t)
		var sum uint64
		for range rounds {
			t, err := r.round(a.work, &sum)
			if err != nil {
				return err
			}
			ours = min(ours, t)
		}
		// A bare queue's sum is of indices, which go on from run to run.
		if a.layer == "verbs" && sum != want {
			return fmt.Errorf("the completions' WR IDs sum up to %d, the twin's to %d: they do not do the same", sum, want)
		}
	}
	per := func(ns uint64) float64 { return float64(ns) / float64(a.n) }
	b.add(a.name, a.figure, "ratio", less, a.floor, a.aim, per(ours)/per(c), "", absolute{"Go", per(ours), "ns"}, absolute{"C", per(c), "ns"})
	return nil
}
