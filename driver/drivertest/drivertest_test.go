package drivertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
)

// rig is a pair with the faults of both cards.
type rig struct {
	t      *testing.T
	ctx    context.Context
	a, b   *end
	ca, cb *drivertest.Card
}

var rigs atomic.Int32

func newRig(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx}
	var err error
	if r.a, r.b, err = newPair(ctx, fmt.Sprintf("rig%d", rigs.Add(1))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.a.dev.Close(); r.b.dev.Close() })
	r.ca, err = drivertest.On(r.a.dev)
	r.must(err)
	r.cb, err = drivertest.On(r.b.dev)
	r.must(err)
	for i, b := 0, r.a.mr.Bytes(); i < len(b); i++ {
		b[i] = byte(i * 7)
	}
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// counter is a counter of a card.
func (r *rig) counter(e *end, name string) uint64 {
	r.t.Helper()
	v, err := e.dev.ReadRegister("COUNTERS." + name)
	r.must(err)
	return v.Value
}

// arrives wants a WRITE of n bytes to arrive whole, while do is done to its frames.
func (r *rig) arrives(n int, do func()) {
	r.t.Helper()
	clear(r.b.mr.Bytes())
	sent := make(chan error, 1)
	go func() { sent <- r.a.write(r.ctx, r.b, n) }()
	do()
	r.must(<-sent)
	if !bytes.Equal(r.b.mr.Bytes()[:n], r.a.mr.Bytes()[:n]) {
		r.t.Error("other bytes arrived")
	}
}

// TestPort: what the port does to frames is what the card's counters see, and the
// message arrives all the same.
func TestPort(t *testing.T) {
	for _, c := range []struct {
		name, counter string // of the receiving card
		do            func(p *drivertest.Port) error
	}{
		{"drop", "NAKS_SENT", func(p *drivertest.Port) error { return p.Drop(1) }},
		{"corrupt", "RX_DROP_ICRC", func(p *drivertest.Port) error { return p.Corrupt(1, 100, 0x10) }},
		{"duplicate", "ACKS_SENT", func(p *drivertest.Port) error { return p.Duplicate(0) }},
		{"reorder", "NAKS_SENT", func(p *drivertest.Port) error { return p.Deliver(1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			p, err := r.cb.HoldPort(r.ctx)
			r.must(err)
			before := r.counter(r.b, c.counter)
			r.arrives(3*4096, func() {
				r.must(p.Wait(r.ctx, 3))
				if n, err := p.Len(); n != 3 || err != nil {
					t.Errorf("%d frames, %v", n, err)
				}
				if n, err := r.a.cq.Poll(make([]driver.WC, 1)); n != 0 || err != nil {
					t.Errorf("completed while its frames are delayed: %v", err)
				}
				r.must(c.do(p))
				r.must(p.Release())
			})
			if r.counter(r.b, c.counter) == before {
				t.Errorf("%s did not move", c.counter)
			}
			if err := p.Drop(0); err == nil {
				t.Error("a frame of a port that does not hold was dropped")
			}
		})
	}
	r := newRig(t)
	p, err := r.cb.HoldPort(r.ctx)
	r.must(err)
	short, cancel := context.WithTimeout(r.ctx, 10*time.Millisecond)
	defer cancel()
	if err := p.Wait(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait for a frame that nobody sends: %v", err)
	}
}

// TestMemory: reads and writes that memory refuses, by their number.
func TestMemory(t *testing.T) {
	r := newRig(t)
	r.must(r.ca.FailRead(r.ctx, 3))
	r.must(r.a.write(r.ctx, r.b, 2*4096))
	r.must(r.ca.FailRead(r.ctx, 0)) // taken back
	r.must(r.a.write(r.ctx, r.b, 2*4096))
	r.must(r.ca.FailRead(r.ctx, 2))
	var e *driver.CompletionError
	if err := r.a.write(r.ctx, r.b, 2*4096); !errors.As(err, &e) || e.Reason != driver.ReasonDMARead || e.Offset != 4096 {
		t.Errorf("the second read was to fail: %v", err)
	}
	r = newRig(t)
	r.must(r.cb.FailWrite(r.ctx, 1))
	if err := r.a.write(r.ctx, r.b, 100); !errors.As(err, &e) || e.Status != driver.StatusRemOpErr {
		t.Errorf("the far end's write was to fail: %v", err)
	}
}

// TestWalk: a byte that was inverted on the way, and a defect of the walk.
func TestWalk(t *testing.T) {
	r := newRig(t)
	r.must(r.ca.FlipByte(r.ctx, 2))
	r.must(r.a.write(r.ctx, r.b, 2*4096))
	if got, want := r.b.mr.Bytes()[4096], r.a.mr.Bytes()[4096]; got != ^want {
		t.Errorf("the second packet begins with %#x, sent was %#x", got, want)
	}
	r.must(r.ca.BreakWalk(r.ctx, drivertest.OneByteOfPayload, 1))
	r.must(r.a.write(r.ctx, r.b, 100))
	if bytes.Equal(r.b.mr.Bytes()[:100], r.a.mr.Bytes()[:100]) {
		t.Error("nothing was inverted")
	}
	r.arrives(100, func() {})
}

// TestHold: an interrupt that does not come.
func TestHold(t *testing.T) {
	r := newRig(t)
	release, err := r.ca.HoldInterrupts()
	r.must(err)
	done := make(chan error, 1)
	go func() { _, err := r.a.dev.AllocPD(r.ctx); done <- err }()
	go func() { _, err := r.a.dev.Counters(r.ctx); done <- err }() // no command: it is not held
	r.must(<-done)
	r.must(release())
	r.must(<-done)
	if _, err := r.ca.HoldInterrupts(32); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("vector 32: %v", err)
	}
	// Of completions alone: Wait sleeps although its completion is there.
	if release, err = r.ca.HoldInterrupts(1, 2, 3, 4, 5, 6, 7, 8); err != nil {
		t.Fatal(err)
	}
	wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, Remote: r.b.mr.Remote()}
	waits := make(chan error, 1)
	go func() { _, err := r.a.cq.Wait(r.ctx, make([]driver.WC, 1)); waits <- err }()
	time.Sleep(20 * time.Millisecond) // most likely it sleeps by now
	r.must(r.a.qp.PostSend(&wr))
	time.Sleep(20 * time.Millisecond)
	r.must(release())
	r.must(<-waits)
}

// TestFill: a deregistration that falls between a cache fill's read and its entry has the
// fill discarded.
func TestFill(t *testing.T) {
	r := newRig(t)
	pd, err := r.a.dev.AllocPD(r.ctx)
	r.must(err)
	m, err := pd.AllocMR(r.ctx, 4096, 0)
	r.must(err)
	sge := m.SGE(0, 100)
	release, err := r.ca.HoldFill()
	r.must(err)
	r.must(r.a.qp.PostSend(&driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{sge}, Remote: r.b.mr.Remote()}))
	for r.counter(r.a, "KEY_CACHE_MISSES") == 0 {
	}
	gone := make(chan error, 1)
	go func() { gone <- m.Dereg(r.ctx) }()
	for r.counter(r.a, "KEY_FENCES") == 0 {
	}
	r.must(release())
	r.must(<-gone)
	var wc [1]driver.WC
	if _, err := r.a.cq.Wait(r.ctx, wc[:]); err != nil || wc[0].Err() == nil {
		t.Errorf("the key was gone: %v, %v", wc[0].Err(), err)
	}
	for r.counter(r.a, "KEY_FILLS_DISCARDED") == 0 { // it is shown behind the completion
		if r.ctx.Err() != nil {
			t.Fatal("no fill was discarded")
		}
	}
}

// TestFlip: bits flipped in the key table and in the cache are what Scrub finds, each
// by its place.
func TestFlip(t *testing.T) {
	scrub := func(r *rig) (where []string) {
		s, err := r.a.dev.Scrub(r.ctx)
		r.must(err)
		for _, m := range s.Mismatches {
			where = append(where, m.Where)
		}
		return where
	}
	r := newRig(t)
	r.must(r.a.write(r.ctx, r.b, 10)) // the cache has the key
	if w := scrub(r); len(w) != 0 {
		t.Fatal(w)
	}
	r.must(r.ca.FlipCached(r.ctx, r.a.mr.LKey(), 3))
	if w := scrub(r); len(w) != 1 || w[0] != "cache" {
		t.Errorf("a bit of the cache: %v", w)
	}
	r.must(r.ca.FlipCached(r.ctx, r.a.mr.LKey(), 3))
	r.must(r.ca.FlipKey(r.ctx, r.a.mr.LKey(), 64))
	if w := scrub(r); len(w) != 1 || w[0] != "table" {
		t.Errorf("a bit of the table: %v", w)
	}
	r.must(r.ca.FlipKey(r.ctx, r.a.mr.LKey(), 64))
	if w := scrub(r); len(w) != 0 {
		t.Errorf("flipped back: %v", w)
	}
	if err := r.ca.FlipKey(r.ctx, r.a.mr.LKey(), 512); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("bit 512: %v", err)
	}
}

// TestClock: with a clock that stands, a lost frame is sent again when the test lets the
// time pass, and a rate limit holds for as long as it says.
func TestClock(t *testing.T) {
	r := newRig(t)
	clock, err := r.ca.StopClock(r.ctx)
	r.must(err)
	p, err := r.cb.HoldPort(r.ctx)
	r.must(err)
	t0, err := clock.Now()
	r.must(err)
	r.arrives(100, func() {
		r.must(p.Wait(r.ctx, 1))
		r.must(p.Drop(0))
		r.must(p.Release())
		d, running, err := clock.Next()
		if err != nil || !running || d <= 0 {
			t.Fatalf("next timer in %v, %v, %v", d, running, err)
		}
		r.must(clock.Advance(r.ctx, d-1))
		if n := r.counter(r.a, "RETRANSMITS"); n != 0 {
			t.Errorf("sent again before its time")
		}
		r.must(clock.Advance(r.ctx, 1))
	})
	if n := r.counter(r.a, "RETRANSMITS"); n != 1 {
		t.Errorf("%d packets sent again", n)
	}
	t1, err := clock.Now()
	r.must(err)
	time.Sleep(time.Millisecond)
	if t2, err := clock.Now(); err != nil || t2 != t1 || t1 == t0 {
		t.Errorf("the clock moves: %v, %v, %v", t0, t1, t2)
	}
	r.must(clock.Run(r.ctx))
	for t3 := t1; t3 == t1; {
		t3, err = clock.Now()
		r.must(err)
	}
}

// TestClear: faults that wait are taken back.
func TestClear(t *testing.T) {
	r := newRig(t)
	r.must(errors.Join(r.ca.FailRead(r.ctx, 1), r.ca.FlipByte(r.ctx, 1), r.ca.BreakWalk(r.ctx, drivertest.ShortLast, 0)))
	_, err := r.cb.HoldPort(r.ctx)
	r.must(err)
	r.must(errors.Join(r.ca.Clear(r.ctx), r.cb.Clear(r.ctx)))
	r.arrives(9000, func() {})
}

// TestRemove: whoever waits is told, and whoever calls later.
func TestRemove(t *testing.T) {
	r := newRig(t)
	waits := make(chan error, 2)
	go func() { _, err := r.a.cq.Wait(r.ctx, make([]driver.WC, 1)); waits <- err }()
	go func() {
		for {
			if _, err := r.a.dev.NextEvent(r.ctx); err != nil {
				waits <- err
				return
			}
		}
	}()
	r.must(r.ca.Remove())
	for range 2 {
		if err := <-waits; !errors.Is(err, driver.ErrDeviceGone) {
			t.Error(err)
		}
	}
	if err := r.a.write(r.ctx, r.b, 1); !errors.Is(err, driver.ErrDeviceGone) {
		t.Error(err)
	}
	if err := r.ca.FailRead(r.ctx, 1); !errors.Is(err, driver.ErrDeviceGone) {
		t.Error(err)
	}
	if _, err := drivertest.On(r.a.dev); !errors.Is(err, driver.ErrDeviceGone) {
		t.Error(err)
	}
	<-r.a.dev.Done()
}
