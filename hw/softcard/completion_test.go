package softcard

import (
	"testing"

	"rnic/hw"
)

// CQEs come in order with the phase of their turn, as the client takes them.
func TestCQWraps(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.createEQ(0, 4, 0, false)
	q := r.createCQ(1, 2, 0)
	for n := range uint32(41) {
		r.time.Add(7)
		r.step()
		q.complete(hw.CQE{QPN: n, WQEIndex: 3 * n, ByteLen: 5, Imm: 0x01020304, Opcode: hw.CQEOpcodeRecv}, false)
		if n%3 != 0 {
			continue // so that 1 to 3 wait
		}
		for {
			e, is := q.next()
			if !is {
				break
			}
			if i := q.consumer - 1; e.QPN != i || e.WQEIndex != 3*i || e.ByteLen != 5 || e.Imm != 0x01020304 || e.Opcode != hw.CQEOpcodeRecv {
				t.Fatalf("CQE %d: %+v", i, e)
			}
		}
		q.told()
	}
	if q.consumer != 40 { // the last is number 40, n = 39 gave 40 of them
		t.Fatalf("%d CQEs", q.consumer)
	}
}

// A CQE carries the card's time.
func TestCQETime(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.createEQ(0, 4, 0, false)
	q := r.createCQ(1, 2, 0)
	r.time.Store(123_456_789)
	r.step()
	q.complete(hw.CQE{}, false)
	if e, is := q.next(); !is || e.Time != 123_456_789 {
		t.Errorf("%+v", e)
	}
}

// A full CQ is never overwritten: full-minus-one goes in, one too many is the CQ's
// end, by an event and only once.
func TestCQIsNeverOverwritten(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	async := r.createEQ(0, 4, 0, true)
	q := r.createCQ(1, 3, 0)
	for n := range uint32(8) {
		q.complete(hw.CQE{QPN: n}, false)
	}
	if _, is := async.next(); is {
		t.Fatal("an event before the overflow")
	}
	q.next() // one is taken and told: there is room for one
	q.told()
	q.complete(hw.CQE{QPN: 8}, false)
	if x := r.card.cqs[1]; x.ctx.Overflowed != 0 {
		t.Fatal("overflow although there was room")
	}
	q.complete(hw.CQE{QPN: 9}, false)
	q.complete(hw.CQE{QPN: 10}, false)
	e, is := async.next()
	if !is || e.Type != hw.EventTypeCQError || e.Object != 1 || e.Subtype != hw.ReasonCQOverflow {
		t.Fatalf("event %+v", e)
	}
	if e, is := async.next(); is {
		t.Fatalf("a second event: %+v", e)
	}
	for n := uint32(1); n <= 8; n++ {
		if e, is := q.next(); !is || e.QPN != n {
			t.Fatalf("CQE %d is %+v", n, e)
		}
	}
	q.told()
	q.complete(hw.CQE{QPN: 11}, false) // room again, but it is over
	if e, is := q.next(); is {
		t.Fatalf("a CQE after the overflow: %+v", e)
	}
	x := hw.ViewCQContext(r.do(hw.CommandQueryCQ, 1, 0, nil, 64))
	if x.Overflowed != 1 || x.Producer != 9 || x.Consumer != 9 {
		t.Errorf("%+v", *x)
	}
	if n := r.counter(hw.RegCountersCQOverflows); n != 1 {
		t.Errorf("CQ_OVERFLOWS %d", n)
	}
}

// A consumer index that cannot be true is not believed: neither one ahead of the
// producer nor one behind what was told before.
func TestCQHostileConsumer(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.createEQ(0, 4, 0, true)
	q := r.createCQ(1, 2, 0)
	for range 4 {
		q.complete(hw.CQE{}, false)
	}
	for _, ci := range []uint32{5, 100, 1 << 31, ^uint32(0)} {
		r.doorbell(q.bell, ci)
		r.inside(func() {
			if r.card.cqRoom(r.card.cqs[1]) {
				t.Errorf("consumer index %d made room", ci)
			}
		})
	}
	r.doorbell(q.bell, 2)
	r.inside(func() {
		if !r.card.cqRoom(r.card.cqs[1]) || r.card.cqFree(r.card.cqs[1], 3) {
			t.Error("2 of 4 taken: there is room for 2")
		}
	})
	r.doorbell(q.bell, 1)
	r.inside(func() {
		if r.card.cqFree(r.card.cqs[1], 3) || r.card.cqs[1].consumer != 2 {
			t.Error("the index ran back")
		}
	})
}

// A CQ's memory that is gone is its end, and not the card's.
func TestCQMemoryGone(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	async := r.createEQ(0, 4, 0, true)
	x := hw.CQContext{IOVA: 0x6666_0000, Doorbell: r.page(50), LogEntries: 4}
	r.do(hw.CommandCreateCQ, 2, 0, x.AsBytes(), 0)
	r.inside(func() { r.card.cqe(r.card.cqs[2], &hw.CQE{}, false) })
	if e, is := async.next(); !is || e.Type != hw.EventTypeCQError || e.Object != 2 {
		t.Fatalf("event %+v", e)
	}
	r.do(hw.CommandNop, 0, 0, nil, 0)
}

// Arm = {consumer index, sequence, next or solicited}: the card fires once for
// each sequence number, when a CQE at or after the index is there, whichever of
// the two came first.
func TestCQArm(t *testing.T) {
	type action func(q *testCQ)
	arm := func(ci uint32, seq uint8) action { return func(q *testCQ) { q.armWord(ci, seq, false); q.r.run() } }
	armSolicited := func(ci uint32, seq uint8) action {
		return func(q *testCQ) { q.armWord(ci, seq, true); q.r.run() }
	}
	cqe := func(q *testCQ) { q.complete(hw.CQE{}, false) }
	solicited := func(q *testCQ) { q.complete(hw.CQE{}, true) }
	failed := func(q *testCQ) { q.complete(hw.CQE{Status: hw.StatusLocProtErr}, false) }
	for _, c := range []struct {
		name    string
		actions []action
		want    int
	}{
		{"not armed", []action{cqe}, 0},
		{"armed, then a CQE", []action{arm(0, 1), cqe}, 1},
		{"a CQE, then armed", []action{cqe, arm(0, 1)}, 1},
		{"armed behind the CQE", []action{cqe, arm(1, 1)}, 0},
		{"armed behind it, the next one fires", []action{cqe, arm(1, 1), cqe}, 1},
		{"fires once", []action{arm(0, 1), cqe, cqe, cqe}, 1},
		{"the same word again", []action{arm(0, 1), cqe, arm(0, 1), cqe}, 1},
		{"the same sequence with another index", []action{arm(0, 1), cqe, arm(1, 1), cqe}, 1},
		{"armed again", []action{arm(0, 1), cqe, arm(1, 2), cqe}, 2},
		{"armed again for a CQE that is there", []action{arm(0, 1), cqe, cqe, arm(1, 2)}, 2},
		{"armed again before it fired", []action{arm(0, 1), arm(0, 2), cqe}, 1},
		{"sequence wraps", []action{arm(0, 15), cqe, arm(1, 0), cqe}, 2},
		{"sequence 0 first", []action{arm(0, 0), cqe}, 1},
		{"solicited only: another", []action{armSolicited(0, 1), cqe}, 0},
		{"solicited only", []action{armSolicited(0, 1), cqe, solicited}, 1},
		{"solicited only: an error", []action{armSolicited(0, 1), failed}, 1},
		{"solicited before the index", []action{solicited, cqe, armSolicited(1, 1)}, 0},
		{"solicited at the index", []action{cqe, solicited, armSolicited(1, 1)}, 1},
		{"solicited, then a plain one, armed before both", []action{solicited, cqe, armSolicited(0, 1)}, 1},
		{"solicited, then any", []action{armSolicited(0, 1), cqe, arm(0, 2)}, 1},
		{"disarmed", []action{arm(0, 1), func(q *testCQ) { q.r.doorbell(q.bell+4, 0); q.r.run() }, cqe}, 0},
		{"an index ahead of the producer", []action{arm(5, 1), cqe}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{})
			r.start(4)
			r.vector(2)
			eq := r.createEQ(0, 4, 2, false)
			q := r.createCQ(1, 4, 0)
			for _, a := range c.actions {
				a(q)
			}
			n := 0
			for {
				e, is := eq.next()
				if !is {
					break
				}
				if n++; e.Type != hw.EventTypeCompletion || e.Object != 1 {
					t.Errorf("event %+v", e)
				}
			}
			if n != c.want {
				t.Errorf("%d events, want %d", n, c.want)
			}
			if got := r.fired(2); got != uint64(c.want) {
				t.Errorf("the vector fired %d times, want %d", got, c.want)
			}
		})
	}
}

// The arm word's index has 24 bits, the count of CQEs 32.
func TestCQArmIndexWraps(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	eq := r.createEQ(0, 4, 2, false)
	q := r.createCQ(1, 4, 0)
	for _, at := range []uint32{1<<24 - 1, 1<<32 - 1} {
		k := r.card.cqs[1]
		k.producer, k.consumer, q.consumer = at, at, at
		q.arm(false)
		r.run()
		if e, is := eq.next(); is {
			t.Fatalf("fired at %#x without a CQE: %+v", at, e)
		}
		q.complete(hw.CQE{}, false)
		if _, is := eq.next(); !is {
			t.Fatalf("not fired at %#x", at)
		}
	}
}

// A CQ that takes a destroyed one's page does not inherit its arm.
func TestCQPageIsCleared(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	eq := r.createEQ(0, 4, 2, false)
	q := r.createCQ(1, 4, 0)
	q.consumer = 3
	q.told()
	q.arm(false)
	r.run()
	r.do(hw.CommandDestroyCQ, 1, 0, nil, 0)
	q = r.createCQ(1, 4, 0)
	q.complete(hw.CQE{}, false)
	r.run()
	if e, is := eq.next(); is {
		t.Fatalf("fired: %+v", e)
	}
	if x := hw.ViewCQContext(r.do(hw.CommandQueryCQ, 1, 0, nil, 64)); x.Consumer != 0 {
		t.Errorf("consumer %d", x.Consumer)
	}
}

// Events that find an EQ full are counted, and told by EQ_OVERFLOW when there is
// room again, without an event of its own to bring it out.
func TestEQOverflow(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.vector(5)
	q := r.createEQ(0, 2, 5, true)
	lost := r.counter(hw.RegCountersEventsLost)
	for n := range uint32(7) {
		r.inside(func() { r.card.event(hw.EventTypeCommEst, 0, n, 0) })
	}
	if n := r.fired(5); n != 4 {
		t.Errorf("the vector fired %d times", n)
	}
	if x := hw.ViewEQContext(r.do(hw.CommandQueryEQ, 0, 0, nil, 64)); x.Lost != 3 || x.Producer != 4 {
		t.Errorf("EQ %+v", *x)
	}
	for n := range uint32(4) {
		if e, is := q.next(); !is || e.Object != n || e.Type != hw.EventTypeCommEst {
			t.Fatalf("event %d: %+v", n, e)
		}
	}
	if e, is := q.next(); is {
		t.Fatalf("overwritten: %+v", e)
	}
	q.told()
	r.run()
	e, is := q.next()
	if !is || e.Type != hw.EventTypeEQOverflow || e.Object != 0 || e.Info != 3 {
		t.Fatalf("overflow: %+v", e)
	}
	if n := r.fired(5); n != 1 {
		t.Errorf("the vector fired %d times", n)
	}
	r.inside(func() { r.card.event(hw.EventTypeCommEst, 0, 99, 0) })
	if e, is := q.next(); !is || e.Object != 99 {
		t.Fatalf("after the overflow: %+v", e)
	}
	if n := r.counter(hw.RegCountersEventsLost) - lost; n != 3 {
		t.Errorf("EVENTS_LOST %d", n)
	}
}

// HOLD_INTERRUPTS keeps a vector back, the PBA shows it, and it fires when it is
// let go: once, however often it was raised.
func TestHoldInterrupts(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.vector(1)
	r.vector(2)
	r.store(hw.RegDebugHoldInterrupts, 1<<1)
	for range 3 {
		r.store(hw.RegControlInterruptTest, 1)
		r.store(hw.RegControlInterruptTest, 2)
		r.run()
	}
	if n := r.fired(1); n != 0 {
		t.Errorf("the held vector fired %d times", n)
	}
	if n := r.fired(2); n != 3 {
		t.Errorf("the other fired %d times", n)
	}
	if v := r.load(hw.MSIXPBAOffset); v != 1<<1 {
		t.Errorf("PBA %#x", v)
	}
	r.store(hw.RegDebugHoldInterrupts, 0)
	r.run()
	if n := r.fired(1); n != 1 {
		t.Errorf("let go, it fired %d times", n)
	}
	if v := r.load(hw.MSIXPBAOffset); v != 0 {
		t.Errorf("PBA %#x", v)
	}
}

// Each vector of the card fires by INTERRUPT_TEST, and none with bus mastering off.
func TestEachVector(t *testing.T) {
	r := newRig(t, Config{})
	r.master(true)
	n := r.load(hw.RegIdentMSIXVectors)
	for v := range n {
		r.vector(int(v))
	}
	for v := range n {
		r.store(hw.RegControlInterruptTest, v)
		r.run()
		for w := range n {
			if got := r.fired(int(w)); got != 0 != (v == w) {
				t.Fatalf("test of vector %d: vector %d fired %d times", v, w, got)
			}
		}
	}
	if err := r.ctrl.Write32(hw.RegControlInterruptTest, n); err == nil {
		t.Error("a vector that is not there")
	}
	r.master(false)
	r.store(hw.RegControlInterruptTest, 0)
	r.run()
	if got := r.fired(0); got != 0 {
		t.Error("fired with bus mastering off")
	}
}

// The data path's calls allocate nothing.
func TestCompletionAllocatesNothing(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.createEQ(0, 8, 0, true)
	q := r.createCQ(1, 8, 0)
	k := r.card.cqs[1]
	h := r.card.host
	h.Enter()
	defer h.Exit()
	if n := testing.AllocsPerRun(100, func() {
		r.card.cqe(k, &hw.CQE{QPN: 1}, true)
		r.card.event(hw.EventTypeCommEst, 0, 1, 0)
	}); n != 0 {
		t.Errorf("%.1f allocations", n)
	}
	_ = q
}
