package softcard

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"rnic/hw"
)

// noTimer is the card time of a timer that is not running.
const noTimer = int64(1<<63 - 1)

// debugLevels are the registers of the debug page that Step only reads.
type debugLevels struct {
	ackReqInterval uint32 // ACK_REQ_INTERVAL (rule G13)
	ackCoalesce    bool
	rateIgnored    bool
	walkFault      hw.WalkFault
}

// debugCounts are the registers of the debug page that Step counts in while the
// client may read and write them.
type debugCounts struct {
	ipID           solo          // IP_ID: of the next frame, 16 bits, as Step shows it; a client's store is posted
	failRead       atomic.Uint32 // FAIL_DMA_READ
	failWrite      atomic.Uint32 // FAIL_DMA_WRITE
	flipByte       atomic.Uint32 // FLIP_BYTE
	walkFaultCount atomic.Uint32 // WALK_FAULT_COUNT
	holdInterrupts atomic.Uint32 // HOLD_INTERRUPTS
	holdFill       atomic.Uint32 // HOLD_FILL
	pending        atomic.Uint64 // bit n: vector n is held back, as the PBA shows
	dmaSequence    solo          // DMA_SEQUENCE
	dmaLogLost     atomic.Uint64 // DMA_LOG_LOST
	runStep        atomic.Uint32 // RUN_STEP: what is left to do
}

func (d *debugCounts) reset() {
	for _, p := range []*atomic.Uint32{&d.failRead, &d.failWrite, &d.flipByte, &d.walkFaultCount, &d.holdInterrupts, &d.holdFill, &d.runStep} {
		p.Store(0)
	}
	d.pending.Store(0)
	d.ipID.Store(0)
	d.dmaSequence.Store(0)
	d.dmaLogLost.Store(0)
}

// strike counts a fault register down and reports whether it is this time.
func strike(p *atomic.Uint32) bool {
	for {
		n := p.Load()
		if n == 0 {
			return false
		}
		if p.CompareAndSwap(n, n-1) {
			return n == 1
		}
	}
}

// count of the register that is an atomic, or nil.
func (r *regs) atomicAt(off int) *atomic.Uint32 {
	switch off {
	case hw.RegDebugFailDMARead:
		return &r.tests.failRead
	case hw.RegDebugFailDMAWrite:
		return &r.tests.failWrite
	case hw.RegDebugFlipByte:
		return &r.tests.flipByte
	case hw.RegDebugWalkFaultCount:
		return &r.tests.walkFaultCount
	case hw.RegDebugHoldInterrupts:
		return &r.tests.holdInterrupts
	case hw.RegDebugHoldFill:
		return &r.tests.holdFill
	case hw.RegDebugRunStep:
		return &r.tests.runStep
	}
	return nil
}

// loadDebug brings the word of a debug register up to date.
func (r *regs) loadDebug(off int) {
	at := off / 4
	switch off {
	case hw.RegDebugClockNow:
		r.put64(off, uint64(r.clockNow()))
	case hw.RegDebugClockNext:
		left := uint64(hw.NoTimer)
		if r.nextTimer != noTimer {
			left = uint64(max(r.nextTimer-r.clockNow(), 0))
		}
		r.put64(off, left)
	case hw.RegDebugDMASequence:
		r.put64(off, r.tests.dmaSequence.Load())
	case hw.RegDebugIPID:
		if r.word[at] = uint32(r.tests.ipID.Load()); r.post.ipIDSet {
			r.word[at] = r.post.ipID
		}
	case hw.RegDebugDMALogLost:
		r.put64(off, r.tests.dmaLogLost.Load())
	case hw.RegDebugQuiescent:
		r.word[at] = 0
		if r.quiet.ask() {
			r.word[at] = 1
		}
		r.card.rouse()
	case hw.RegDebugPortWaiting:
		r.word[at] = uint32(r.card.port.waitingFrames())
	default:
		if p := r.atomicAt(off); p != nil {
			r.word[at] = p.Load()
		}
	}
}

func (r *regs) clockNow() int64 {
	if r.post.clockMode == hw.ClockModeStepped {
		return r.steppedNow
	}
	return r.card.cfg.Clock()
}

// storeDebug is a store to the debug page. posts says that Step must look.
func (r *regs) storeDebug(off int, v uint32) (posts bool, err error) {
	bad := func(what string) (bool, error) {
		return false, fmt.Errorf("softcard: store of %#x to %s: %w", v, what, unix.EINVAL)
	}
	d := &r.post.debug
	switch off {
	case hw.RegDebugACKReqInterval:
		d.ackReqInterval = v
	case hw.RegDebugACKCoalesce:
		d.ackCoalesce = v&1 != 0
	case hw.RegDebugRateIgnored:
		d.rateIgnored = v&1 != 0
	case hw.RegDebugWalkFault:
		if !hw.WalkFault(v).Valid() {
			return bad("WALK_FAULT: no such defect")
		}
		d.walkFault = hw.WalkFault(v)
	case hw.RegDebugClockMode:
		if !hw.ClockMode(v).Valid() {
			return bad("CLOCK_MODE: 0 is real, 1 stepped")
		}
		if now := r.clockNow(); hw.ClockMode(v) == hw.ClockModeStepped {
			r.steppedNow = now // it stands where it was
		}
		r.post.clockMode = hw.ClockMode(v)
	case hw.RegDebugClockStep:
		r.clockStepLow = v
		return false, nil
	case hw.RegDebugClockStep + 4:
		by := uint64(v)<<32 | uint64(r.clockStepLow)
		if r.post.clockMode != hw.ClockModeStepped {
			return bad("CLOCK_STEP: the clock is not stepped")
		}
		if by > uint64(noTimer-1-r.steppedNow) {
			return bad("CLOCK_STEP: over the end of time")
		}
		r.steppedNow += int64(by)
	case hw.RegDebugRunMode:
		if !hw.RunMode(v).Valid() {
			return bad("RUN_MODE: 0 is free, 1 stepped")
		}
		r.post.runMode = hw.RunMode(v)
		r.tests.runStep.Store(0)
		r.card.port.setStepped(hw.RunMode(v) == hw.RunModeStepped)
	case hw.RegDebugRunStep:
		if r.post.runMode != hw.RunModeStepped {
			return bad("RUN_STEP: the run is not stepped")
		}
		r.tests.runStep.Or(v & (hw.DebugRunStepReceiveMask | hw.DebugRunStepTransmitMask))
		return true, nil
	case hw.RegDebugPortMode:
		r.card.port.setHold(hw.DebugPortMode(v).Hold())
	case hw.RegDebugPortTake:
		t := hw.DebugPortTake(v)
		if err := r.card.port.take(t, hw.DebugPortCorrupt(r.word[hw.RegDebugPortCorrupt/4])); err != nil {
			return false, fmt.Errorf("softcard: PORT_TAKE: %w", err)
		}
	case hw.RegDebugFlipCache:
		if len(r.post.flips) == maxPostedFlips {
			return bad("FLIP_CACHE: too many at a time")
		}
		r.post.flips = append(r.post.flips, v)
	case hw.RegDebugIPID:
		r.post.ipID, r.post.ipIDSet = v, true
	default:
		if p := r.atomicAt(off); p != nil {
			p.Store(v)
			break
		}
		r.word[off/4] = v
		return false, nil
	}
	return true, nil
}

// runStep is what RUN_STEP still asks for.
func (r *regs) runStep() hw.DebugRunStep { return hw.DebugRunStep(r.tests.runStep.Load()) }

func (r *regs) runStepDone(bits uint32) { r.tests.runStep.And(^bits) }

// pendingBits is a word of the MSI-X pending bit array.
func (r *regs) pendingBits(off int) uint32 {
	if off >= 8 {
		return 0
	}
	return uint32(r.tests.pending.Load() >> (8 * off))
}

// quiescence answers register QUIESCENT. A load of 1 means that a Step which
// began after the load before it found nothing to do: the first load asks and
// gives 0, so that what the client stored in mapped memory before it is seen.
// A store to any register asks anew.
type quiescence struct {
	asked  atomic.Uint64 // number of the open question, 0: none
	number uint64        // questions so far; under regs.mu
	answer atomic.Uint64 // number of the newest question that was answered
}

// ask is a load of the register, under regs.mu.
func (q *quiescence) ask() bool {
	n := q.asked.Load()
	if n != 0 && q.answer.Load() == n {
		q.asked.Store(0)
		return true
	}
	if n == 0 {
		q.number++
		q.asked.Store(q.number)
	}
	return false
}

// post is a store to some register, under regs.mu: an open question is asked
// anew.
func (q *quiescence) post() {
	if q.asked.Load() != 0 {
		q.number++
		q.asked.Store(q.number)
	}
}

// found is Step's answer to question n.
func (q *quiescence) found(n uint64) { q.answer.Store(n) }

// quiescentAsked is the open question, 0 if there is none.
func (r *regs) quiescentAsked() uint64 { return r.quiet.asked.Load() }
