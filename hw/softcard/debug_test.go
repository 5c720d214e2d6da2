package softcard

import (
	"bytes"
	"slices"
	"testing"

	"rnic/hw"
)

// wired is a rig whose card is joined to another one, that has no client: frames
// to the rig's card are sent from there by hand.
func wired(t *testing.T) (r *rig, far *Card) {
	t.Helper()
	r = newRig(t, Config{Name: "near"})
	far, err := New(Config{Name: "far"})
	r.must(err)
	t.Cleanup(func() { far.Close() })
	w, err := NewWire(8)
	r.must(err)
	r.must(w.Join(r.card))
	r.must(w.Join(far))
	r.run()
	return r, far
}

// quiet polls QUIESCENT until it is 1, as a client does, at most n times.
func (r *rig) quiet(n int) bool {
	r.t.Helper()
	for range n {
		if r.load(hw.RegDebugQuiescent) == 1 {
			return true
		}
		r.step()
	}
	return false
}

// The stepped clock stands until CLOCK_STEP moves it; the switch to it keeps the
// time, and completions carry it.
func TestSteppedClock(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.createEQ(0, 4, 0, false)
	q := r.createCQ(1, 4, 0)
	r.time.Store(5_000_000_000)
	r.step()
	if v := r.load64(hw.RegDebugClockNow); v != 5_000_000_000 {
		t.Errorf("real: %d", v)
	}
	r.store(hw.RegDebugClockMode, uint32(hw.ClockModeStepped))
	r.time.Store(9_000_000_000)
	r.run()
	if v := r.load64(hw.RegDebugClockNow); v != 5_000_000_000 {
		t.Errorf("stepped: %d", v)
	}
	r.must(r.ctrl.Write64(hw.RegDebugClockStep, 1<<32+7))
	if v := r.load64(hw.RegDebugClockNow); v != 5_000_000_000+1<<32+7 {
		t.Errorf("after a step: %d", v)
	}
	r.run()
	q.complete(hw.CQE{}, false)
	if e, _ := q.next(); e.Time != 5_000_000_000+1<<32+7 {
		t.Errorf("CQE at %d", e.Time)
	}
	r.store(hw.RegDebugClockStep, 5) // the low half alone moves nothing
	if v := r.load64(hw.RegDebugClockNow); v != 5_000_000_000+1<<32+7 {
		t.Errorf("after half a step: %d", v)
	}
	if v := r.load64(hw.RegDebugClockNext); v != hw.NoTimer {
		t.Errorf("CLOCK_NEXT %d without a timer", v)
	}
	r.store(hw.RegDebugClockMode, uint32(hw.ClockModeReal))
	r.run()
	if v := r.load64(hw.RegDebugClockNow); v != 9_000_000_000 {
		t.Errorf("real again: %d", v)
	}
}

// QUIESCENT is 1 only of a Step that began after the load before, and a store or a
// doorbell in between counts.
func TestQuiescent(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	cq, eq := r.armedCQ()
	r.run()
	if r.load(hw.RegDebugQuiescent) != 0 {
		t.Fatal("the first load gives what was before it")
	}
	if r.load(hw.RegDebugQuiescent) != 0 {
		t.Fatal("1 without a Step")
	}
	if !r.quiet(10) {
		t.Fatal("never quiescent")
	}
	r.doorbell(cq.nextArm())
	if r.load(hw.RegDebugQuiescent) != 0 {
		t.Fatal("a doorbell is slept through")
	}
	r.step() // serves the doorbell: it worked
	if r.load(hw.RegDebugQuiescent) != 0 {
		t.Fatal("quiescent by a Step that had something to do")
	}
	if _, is := eq.next(); !is {
		t.Fatal("the doorbell was not served")
	}
	r.step()
	r.store(hw.RegControlScratch, 1) // asks anew
	if r.load(hw.RegDebugQuiescent) != 0 {
		t.Fatal("a store in between does not count")
	}
	if !r.quiet(10) {
		t.Fatal("never quiescent again")
	}
}

// In a stepped run frames wait at the port until RUN_STEP takes them in, commands
// are served always, and no sender waits for the client's next turn.
func TestSteppedRun(t *testing.T) {
	r, far := wired(t)
	r.start(4)
	r.store(hw.RegDebugRunMode, uint32(hw.RunModeStepped))
	const n = 30 // the wire has room for 4 requests
	for i := range n {
		for !trySend(far, frameTo(r.card, byte(i)), laneRequests) {
			r.step()
		}
	}
	r.run()
	if v := r.load(hw.RegDebugPortWaiting); v != n {
		t.Fatalf("PORT_WAITING %d, want %d", v, n)
	}
	if v := r.counter(hw.RegCountersRXFrames); v != 0 {
		t.Fatalf("%d frames were taken in", v)
	}
	if !r.quiet(10) {
		t.Error("frames that wait at the port keep it from being quiescent")
	}
	r.do(hw.CommandNop, 0, 0, nil, 0)
	r.store(hw.RegDebugRunStep, hw.DebugRunStepTransmitMask)
	r.run()
	if v := r.counter(hw.RegCountersRXFrames); v != 0 {
		t.Fatalf("TRANSMIT took %d frames in", v)
	}
	if v := r.load(hw.RegDebugRunStep); v != 0 {
		t.Fatalf("RUN_STEP %#x when it is done", v)
	}
	r.store(hw.RegDebugRunStep, hw.DebugRunStepReceiveMask)
	if v := r.load(hw.RegDebugRunStep); v != hw.DebugRunStepReceiveMask {
		t.Fatalf("RUN_STEP %#x before it is done", v)
	}
	r.run()
	if v := r.load(hw.RegDebugRunStep); v != 0 {
		t.Fatalf("RUN_STEP %#x when it is done", v)
	}
	if v := r.counter(hw.RegCountersRXFrames); v != n {
		t.Fatalf("%d frames were taken in, want %d", v, n)
	}
	// Free again: what comes is taken in.
	send(t, far, frameTo(r.card, 1), laneRequests)
	r.run()
	r.store(hw.RegDebugRunMode, uint32(hw.RunModeFree))
	r.run()
	if v := r.counter(hw.RegCountersRXFrames); v != n+1 {
		t.Fatalf("%d frames in a free run, want %d", v, n+1)
	}
	send(t, far, frameTo(r.card, 1), laneRequests)
	r.run()
	if v := r.counter(hw.RegCountersRXFrames); v != n+2 || r.card.port.queueing.Load() {
		t.Fatalf("%d frames, want %d; queueing %v", v, n+2, r.card.port.queueing.Load())
	}
}

// received watches the frames that a card takes in, by its capture ring.
func (r *rig) received(ring uint64, log uint8) (marks []int) {
	for i := range 1 << log {
		slot := r.bytes(ring+uint64(i)<<8, 256)
		v := hw.ViewCaptureRecord(slot)
		if v.Phase() && v.Direction == hw.DirectionRX {
			marks = append(marks, int(slot[hw.CaptureHeader+54])) // first payload byte, behind 14 + 20 + 8 + 12
		}
	}
	return marks
}

// With HOLD, frames wait until PORT_TAKE names them: deliver, drop, duplicate,
// reorder, corrupt.
func TestHoldAndTake(t *testing.T) {
	r, far := wired(t)
	r.start(4)
	ring := r.alloc(1 << 12)
	x := hw.RingContext{IOVA: ring, LogEntries: 4, LogStride: 8, All: 1}
	r.do(hw.CommandSetCapture, 0, 0, x.AsBytes(), 0)
	r.store(hw.RegDebugPortMode, uint32(hw.DebugPortMode(0).WithHold(true)))
	r.run()
	for i := range 5 {
		for !trySend(far, frameTo(r.card, byte(i+1)), laneRequests) {
			r.step()
		}
	}
	r.run()
	take := func(index uint16, deliver, remove, corrupt bool) {
		t.Helper()
		r.store(hw.RegDebugPortTake, uint32(hw.DebugPortTake(0).WithIndex(index).WithDeliver(deliver).WithRemove(remove).WithCorrupt(corrupt)))
		r.run()
	}
	waiting := func(want uint32) {
		t.Helper()
		if v := r.load(hw.RegDebugPortWaiting); v != want {
			t.Fatalf("PORT_WAITING %d, want %d", v, want)
		}
	}
	waiting(5)
	if got := r.received(ring, 4); len(got) != 0 {
		t.Fatalf("frames %v were taken in", got)
	}
	take(3, true, true, false)  // the fourth first
	take(0, true, false, false) // the first twice
	take(0, true, true, false)
	take(0, false, true, false) // the second is lost
	waiting(2)
	r.store(hw.RegDebugPortCorrupt, uint32(hw.DebugPortCorrupt(0).WithOffset(54).WithXor(0x80)))
	take(1, true, false, true) // the fifth, damaged; itself it stays as it was
	take(1, true, true, false)
	waiting(1)
	if got, want := r.received(ring, 4), []int{4, 1, 1, 0x85, 5}; !slices.Equal(got, want) {
		t.Fatalf("frames %v, want %v", got, want)
	}
	if v := r.counter(hw.RegCountersRXDropICRC); v != 1 {
		t.Errorf("RX_DROP_ICRC %d", v)
	}
	if err := r.ctrl.Write32(hw.RegDebugPortTake, uint32(hw.DebugPortTake(0).WithIndex(1).WithDeliver(true))); err == nil {
		t.Error("a frame that is not there was taken")
	}
	r.store(hw.RegDebugPortMode, 0) // the rest comes in
	r.run()
	waiting(0)
	if got, want := r.received(ring, 4), []int{4, 1, 1, 0x85, 5, 3}; !slices.Equal(got, want) {
		t.Fatalf("frames %v, want %v", got, want)
	}
}

// The capture ring has each frame, sent or received, whole or cut, with its
// direction and time; what does not fit is counted.
func TestCaptureRing(t *testing.T) {
	r, far := wired(t)
	r.start(4)
	ring := r.alloc(1 << 12)
	x := hw.RingContext{IOVA: ring, LogEntries: 2, LogStride: 7, All: 1} // 64 bytes of each frame
	r.do(hw.CommandSetCapture, 0, 0, x.AsBytes(), 0)
	b := frameTo(r.card, 9)
	r.time.Store(777)
	send(t, far, b, laneRequests)
	r.run()
	out := frameTo(far, 3)[:60]
	r.inside(func() { send(t, r.card, out, laneRequests) })
	slot := func(i int) (*hw.CaptureRecord, []byte) {
		s := r.bytes(ring+uint64(i)*128, 128)
		v := hw.ViewCaptureRecord(s)
		return v, s[hw.CaptureHeader : hw.CaptureHeader+v.Captured]
	}
	v, got := slot(0)
	if v.Direction != hw.DirectionRX || v.Length != uint32(len(b)) || v.Captured != 64 || v.Time != 777 ||
		v.Flags != hw.CaptureFlagDropped|hw.CaptureFlagTruncated || !v.Phase() || !bytes.Equal(got, b[:64]) {
		t.Errorf("received: %+v % x", *v, got)
	}
	v, got = slot(1)
	if v.Direction != hw.DirectionTX || v.Length != 60 || v.Flags != 0 || !bytes.Equal(got, out) {
		t.Errorf("sent: %+v % x", *v, got)
	}
	for range 5 { // 2 fit, 3 do not
		far.Step(0, 10)
		r.inside(func() { send(t, r.card, out, laneRequests) })
	}
	if n := r.counter(hw.RegCountersCaptureLost); n != 3 {
		t.Errorf("CAPTURE_LOST %d", n)
	}
	r.doorbell(hw.DomainCaptureCI, 4)
	far.Step(0, 10)
	r.inside(func() { send(t, r.card, out, laneRequests) })
	if v, _ := slot(0); v.Lost != 3 || v.Phase() || v.Direction != hw.DirectionTX {
		t.Errorf("after the loss: %+v", *v)
	}
	x.IOVA = 0
	r.do(hw.CommandSetCapture, 0, 0, x.AsBytes(), 0)
	n := r.counter(hw.RegCountersCaptureFrames)
	send(t, far, b, laneRequests)
	r.run()
	if m := r.counter(hw.RegCountersCaptureFrames); m != n {
		t.Errorf("captured after the end: %d, %d", n, m)
	}
}

// Rule G22: the trace ring has each record whole, in order, for the QP that was
// asked for; what does not fit is counted and never waited for.
func TestG22_TraceRing(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	ring := r.alloc(1 << 12)
	x := hw.RingContext{IOVA: ring, LogEntries: 2, LogStride: 6, QPN: 7}
	r.do(hw.CommandSetTrace, 0, 0, x.AsBytes(), 0)
	if !r.card.traceWanted(7) || r.card.traceWanted(8) {
		t.Error("the wrong QP is traced")
	}
	put := func(n uint32) {
		r.inside(func() { r.card.trace(&hw.TraceRecord{QPN: 7, WQEIndex: n, Kind: hw.TraceKindRead, Bytes: 100 + n}) })
	}
	consumer := uint32(0)
	next := func() (hw.TraceRecord, bool) {
		v := hw.ViewTraceRecord(r.bytes(ring+uint64(consumer&3)*64, 64))
		if v.Phase() != (consumer>>2&1 == 0) {
			return hw.TraceRecord{}, false
		}
		consumer++
		return *v, true
	}
	n := uint32(0)
	for range 50 {
		for range 3 {
			put(n)
			n++
		}
		for k := n - 3; k < n; k++ {
			if e, is := next(); !is || e.WQEIndex != k || e.Bytes != 100+k || e.Lost != 0 {
				t.Fatalf("record %d: %+v", k, e)
			}
		}
		r.doorbell(hw.DomainTraceCI, consumer)
	}
	for range 9 {
		put(n)
		n++
	}
	if v := r.counter(hw.RegCountersTraceLost); v != 5 {
		t.Errorf("TRACE_LOST %d", v)
	}
	for range 4 {
		next()
	}
	if e, is := next(); is {
		t.Fatalf("overwritten: %+v", e)
	}
	r.doorbell(hw.DomainTraceCI, consumer)
	put(n)
	if e, is := next(); !is || e.WQEIndex != n || e.Lost != 5 {
		t.Errorf("after the loss: %+v", e)
	}
	// A ring whose memory goes away ends, and nothing else does.
	x.IOVA = 0x7700_0000
	r.do(hw.CommandSetTrace, 0, 0, x.AsBytes(), 0)
	put(1)
	if r.card.traceWanted(7) {
		t.Error("the ring goes on without memory")
	}
}
