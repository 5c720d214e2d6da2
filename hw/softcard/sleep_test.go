package softcard

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"rnic/hw"
	"rnic/hw/mmio"
)

// ringAndKick is a driver's doorbell: the store, a full barrier, the flag, and a
// kick if it is set.
func (r *rig) ringAndKick(off, v uint32) (kicked bool) {
	mmio.ToDevice()
	mmio.Store32(r.bell.Word32(uint64(off)), v)
	mmio.StoreLoad()
	if mmio.Load32(r.bell.Word32(hw.DomainSleep)) == 0 {
		return false
	}
	if err := r.ctrl.Write32(hw.RegKickKick, 1); err != nil {
		r.t.Error(err)
	}
	return true
}

// armedCQ is a CQ with a CQE, so that each new arm brings an event: a doorbell
// whose effect can be seen.
func (r *rig) armedCQ() (*testCQ, *testEQ) {
	eq := r.createEQ(0, 8, 0, false)
	cq := r.createCQ(1, 4, 0)
	cq.complete(hw.CQE{}, false)
	return cq, eq
}

func (q *testCQ) nextArm() (off uint32, word uint32) {
	q.sequence++
	return q.bell + hw.CQDoorbellArm, uint32(hw.CQArmWord(0).WithSequence(q.sequence & 15).WithArmed(true))
}

// Sleep and kick, every order of the two sides' steps: the card stores its flag
// and then looks; the driver stores its doorbell and then loads the flag. In none
// of the six does the card sleep without a kick.
func TestSleep_EachOrder(t *testing.T) {
	const (
		flag = iota // card
		look
		ring // driver
		load
	)
	for _, order := range [][4]int{
		{flag, look, ring, load}, {flag, ring, look, load}, {flag, ring, load, look},
		{ring, load, flag, look}, {ring, flag, load, look}, {ring, flag, look, load},
	} {
		r := newRig(t, Config{})
		r.start(4)
		cq, _ := r.armedCQ()
		r.run()
		off, word := cq.nextArm()
		var saw, kick bool
		for _, s := range order {
			switch s {
			case flag:
				r.card.setSleep(1)
			case look:
				saw = r.card.lastLook()
			case ring:
				r.doorbell(off, word)
			case load:
				kick = mmio.Load32(r.bell.Word32(hw.DomainSleep)) != 0
			}
		}
		if !saw && !kick {
			t.Errorf("order %v: the card sleeps and is not kicked", order)
		}
	}
}

// The order in the card itself: a doorbell that is stored at the last moment, when
// the flag is set and the look has not begun, is seen or its driver kicks; and the
// flag does not stay when the card stays awake.
func TestSleep_SetsItsFlagFirst(t *testing.T) {
	for _, rings := range []bool{true, false} {
		r := newRig(t, Config{})
		r.start(4)
		cq, _ := r.armedCQ()
		r.run()
		flag := r.bell.Word32(hw.DomainSleep)
		asleep := r.card.FallAsleep(func() {
			if mmio.Load32(flag) != 1 {
				t.Error("the card looks before its flag is set")
			}
			if rings {
				r.doorbell(cq.nextArm())
			}
		})
		if asleep == rings {
			t.Errorf("a doorbell %v: asleep %v", rings, asleep)
		}
		if set := mmio.Load32(flag) == 1; set != asleep {
			t.Errorf("asleep %v, and the flag %v", asleep, set)
		}
		r.card.Awaken()
		if mmio.Load32(flag) != 0 {
			t.Error("awake, and the flag is set")
		}
	}
}

// The same with both sides running: the barriers hold, in FallAsleep itself.
func TestSleep_LosesNoDoorbell(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		if os.Getenv("CI") != "" {
			t.Fatal("GOMAXPROCS is 1: this test needs two processors")
		}
		t.Skip("GOMAXPROCS is 1: this test needs two processors")
	}
	r := newRig(t, Config{})
	r.start(4)
	cq, _ := r.armedCQ()
	r.run()
	const rounds = 20_000
	bell := r.bell.Word32(uint64(cq.bell + hw.CQDoorbellArm))
	sleeping := r.bell.Word32(hw.DomainSleep)
	var word uint32
	var kick bool
	var turn, done atomic.Int64
	go func() {
		for i := int64(1); ; i++ {
			for spin := 0; turn.Load() != i; spin++ {
				if turn.Load() < 0 {
					return
				}
				if spin > 1000 {
					runtime.Gosched()
				}
			}
			mmio.Store32(bell, word)
			mmio.StoreLoad()
			kick = mmio.Load32(sleeping) != 0
			done.Store(i)
		}
	}()
	defer turn.Store(-1)
	slept, saw := 0, 0
	var spent atomic.Int32
	end := time.Now().Add(2 * time.Second) // enough, where it is slow
	for i := int64(1); i <= rounds; i++ {
		if time.Now().After(end) {
			break
		}
		_, word = cq.nextArm()
		turn.Store(i)
		for wait := rand.IntN(300); wait > 0; wait-- { // so that the two meet in each order
			spent.Add(1)
		}
		asleep := r.card.FallAsleep(nil)
		for spin := 0; done.Load() != i; spin++ {
			if spin > 1000 {
				runtime.Gosched()
			}
		}
		switch {
		case !asleep:
			saw++
		case kick:
			slept++
		default:
			t.Fatalf("round %d: asleep, and the driver saw no flag", i)
		}
		r.card.Awaken()
		r.step()
	}
	t.Logf("%d times asleep and kicked, %d times awake", slept, saw)
}

// onRunner gives the rig's card to a worker of its own.
func (r *rig) onRunner() {
	n := NewRunner()
	n.Add(r.card)
	r.unstepped = true
	r.t.Cleanup(func() {
		r.unstepped = false
		n.Remove(r.card)
		n.Close()
	})
}

// A card on a Runner sleeps when nothing happens: its clock is not even read.
// Each thing that happens wakes it.
func TestRunnerSleepsAndWakes(t *testing.T) {
	var reads atomic.Int64
	start := time.Now()
	r := newRig(t, Config{Clock: func() int64 { reads.Add(1); return int64(time.Since(start)) }})
	r.start(4)
	cq, eq := r.armedCQ()
	r.onRunner()
	asleep := func() {
		t.Helper()
		r.until("sleep", func() bool {
			return mmio.Load32(r.bell.Word32(hw.DomainSleep)) == 1 && r.card.runner.Load().asleep.Load()
		})
		// It may be between its look and its wait: what follows must hold all the same.
	}
	asleep()
	time.Sleep(10 * time.Millisecond)
	before := reads.Load()
	time.Sleep(100 * time.Millisecond)
	if n := reads.Load() - before; n > 3 {
		t.Errorf("asleep, the card is stepped: its clock was read %d times", n)
	}
	for i := range 200 {
		if i%2 == 0 {
			asleep()
		}
		off, word := cq.nextArm()
		r.ringAndKick(off, word)
		r.until("the event of an arm", func() bool { _, is := eq.next(); return is })
		eq.told()
	}
	for range 50 {
		asleep()
		r.do(hw.CommandNop, 0, 0, nil, 0)
	}
	asleep()
	r.must(r.dev.Reset(context.Background()))
	r.waitReady()
	asleep()
	r.detach()
	r.attach()
	asleep()
	r.free = 0
	r.start(4)
	r.do(hw.CommandNop, 0, 0, nil, 0)
	if n := r.counter(hw.RegCountersSleeps); n == 0 {
		t.Error("SLEEPS is 0")
	}
}

// A frame wakes the card that it is for, on another worker; room on the wire
// wakes the one that waits for it.
func TestFramesWake(t *testing.T) {
	w, err := NewWire(2)
	if err != nil {
		t.Fatal(err)
	}
	var cards [2]*Card
	for i := range cards {
		if cards[i], err = New(Config{Name: string(rune('a' + i))}); err != nil {
			t.Fatal(err)
		}
		defer cards[i].Close()
		if err := w.Join(cards[i]); err != nil {
			t.Fatal(err)
		}
	}
	n := NewRunner()
	defer n.Close()
	n.Add(cards[1])
	defer n.Remove(cards[1])
	for i := range 300 {
		for end := time.Now().Add(10 * time.Second); i%3 == 0 && !n.asleep.Load(); runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatal("the other card does not sleep")
			}
		}
		send(t, cards[0], frameTo(cards[1], byte(i)), laneRequests)
		l := cards[0].route(macNumber(cards[1].cfg.MAC))
		for end := time.Now().Add(10 * time.Second); l.lanes[laneRequests].free() == 0; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("frame %d is not taken", i)
			}
		}
	}
}

// A card that its worker gives back is awake, and whoever has it steps it.
func TestRunnerClosesAsleep(t *testing.T) {
	r := newRig(t, Config{})
	n := NewRunner()
	n.Add(r.card)
	r.unstepped = true
	r.start(4)
	r.do(hw.CommandNop, 0, 0, nil, 0)
	n.Remove(r.card)
	if mmio.Load32(r.bell.Word32(hw.DomainSleep)) != 0 {
		t.Error("the card was given back asleep")
	}
	r.unstepped = false
	n.Close()
	r.do(hw.CommandNop, 0, 0, nil, 0) // the test steps it again
}

// A packet that waits for room on a wire whose other end another worker steps:
// while there is none its card may sleep, and room that was made just before it
// fell asleep, when nobody saw a sleeper to wake, keeps it awake.
func TestRoomBeforeSleep(t *testing.T) {
	p := newPair(t, 2)
	a, _ := p.connected(17, defaultLink())
	src := p.a.newMR(0x1000_0000, 64<<10, srcKey, allAccess)
	dst := p.b.newMR(0x2000_0000, 64<<10, dstKey, allAccess)
	a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: dst.base, rkey: dst.key, sges: []hw.DataSegment{src.sge(0, 60_000)}})
	rest := func(n *node) {
		for n.card.Step(p.now, 64) {
		}
	}
	n := &Runner{bell: make(chan struct{}, 1), cards: []*Card{p.a.card}}
	p.a.card.runner.Store(n)
	rest(p.a)
	if !p.a.card.transmitPending() {
		t.Fatal("nothing waits for room: the test shows nothing")
	}
	fallAsleep := func() bool {
		n.asleep.Store(true)
		_, may := n.fallAsleep()
		n.asleep.Store(false)
		p.a.card.Awaken()
		return may
	}
	if !fallAsleep() {
		t.Error("the card stays awake although the wire is full")
	}
	rest(p.b)
	if fallAsleep() {
		t.Error("the card sleeps although there is room for its packet")
	}
}
