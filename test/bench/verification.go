package main

import (
	"context"
	"errors"
	"os"
	"time"

	"rnic/driver"
)

// measureVerification sends WRITEs of three segments without verification and with Sample(16), in turn.
func measureVerification(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp("", "rnic-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	type side struct {
		mode driver.VerifyMode
		a, b *end
		best time.Duration
	}
	sides := []*side{{mode: driver.Off}, {mode: driver.Sample(16)}}
	for _, s := range sides {
		if s.a, s.b, err = newPair(ctx, ends{memory: 64 << 10, entries: 128, qps: 1, init: driver.QPInit{MaxSendWR: 64, MaxSendSGE: 3},
			options: []driver.Option{driver.WithVerify(s.mode), driver.WithVerifyDir(dir)}}); err != nil {
			break
		}
	}
	total := b.atScale(8192, 256)
	for range b.times() {
		for _, s := range sides {
			var t time.Duration
			if err == nil {
				t, err = s.a.gathers(s.b, total)
			}
			if s.best == 0 || t < s.best {
				s.best = t
			}
		}
	}
	var off, records uint64
	if err == nil {
		off = sides[0].a.d.Verification().Packets
		if v := sides[1].a.d.Verification(); v.Packets == 0 || v.Mismatches != 0 {
			err = errors.New("Sample(16) compared nothing, or found a mismatch")
		}
	}
	if err == nil {
		records, err = counter(ctx, sides[0].a.d, "TRACE_RECORDS")
	}
	for _, s := range sides {
		if s.b != nil {
			err = errors.Join(err, closePair(s.a, s.b))
		}
	}
	if err != nil {
		return err
	}
	rate := func(s *side) float64 { return float64(total) * 1e3 / float64(s.best) }
	b.add("verify-off", "verification off: records that the card wrote and packets that the driver walked", "count", less, 0, 0, float64(off+records),
		"and a nil check a completion, which is in poll-1 and poll-16")
	b.add("verify-sample16", "Sample(16), time against off: WRITEs of 7,680 B in 3 SGEs", "ratio", less, 1.1, 1.05, float64(sides[1].best)/float64(sides[0].best), "",
		absolute{"off", rate(sides[0]), "M/s"}, absolute{"Sample(16)", rate(sides[1]), "M/s"})
	return nil
}

func counter(ctx context.Context, d *driver.Device, name string) (uint64, error) {
	all, err := d.Counters(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range all {
		if c.Name == name {
			return c.Value, nil
		}
	}
	return 0, errors.New("the card has no counter " + name)
}

// gathers sends total WRITEs of three segments, 48 in flight.
func (a *end) gathers(b *end, total int) (time.Duration, error) {
	var p poller
	wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, Remote: b.mr.Remote(),
		SGEs: []driver.SGE{a.mr.SGE(0, 1024), a.mr.SGE(8192, 6144), a.mr.SGE(2048, 512)}}
	start := time.Now()
	for posted, done := 0, 0; done < total; {
		for ; posted < total && posted-done < 48; posted++ {
			if err := a.qps[0].PostSend(&wr); err != nil {
				return 0, err
			}
		}
		n, err := p.poll(a.cq)
		if err != nil {
			return 0, err
		}
		if done += n; n == 0 {
			p.rest()
		} else {
			p.idle = 0
		}
	}
	return time.Since(start), nil
}
