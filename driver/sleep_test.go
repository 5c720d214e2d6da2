package driver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/hw/softcard"
	"rnic/vfio"
	"rnic/vfio/memtest"
	"rnic/vfio/vfiouser"
)

// sleeper is a card that the test puts to sleep, and which tells it of kicks.
type sleeper struct {
	*softcard.Card
	stepping sync.Mutex
	kicks    chan struct{}
	start    time.Time
}

// WriteRegion is of vfiouser.Function.
func (s *sleeper) WriteRegion(i int, off uint64, p []byte) error {
	if i == hw.BARCtrl && off == hw.RegKickKick {
		select {
		case s.kicks <- struct{}{}:
		default:
		}
	}
	return s.Card.WriteRegion(i, off, p)
}

func (s *sleeper) step() bool { return s.Step(int64(time.Since(s.start)), 1000) }

// take stops the steps, at a card that has nothing to do and no kick under way.
func (s *sleeper) take() {
	s.stepping.Lock()
	for s.step() {
	}
	select {
	case <-s.kicks:
	default:
	}
}

var sleepers sync.Map

func init() {
	vfio.Register("sleeper", func(ctx context.Context, rest string) (vfio.Device, error) {
		s, ok := sleepers.Load(rest)
		if !ok {
			return nil, &vfio.Error{Addr: "sleeper:" + rest, Op: "open", Err: vfio.ErrNotFound}
		}
		client, server, err := vfiouser.Pair()
		if err != nil {
			return nil, err
		}
		go func() { _ = vfiouser.Serve(context.Background(), server, s.(*sleeper)) }()
		return vfiouser.Client(ctx, client, "sleeper:"+rest)
	})
}

func newSleeper(t *testing.T) (*sleeper, *side) {
	t.Helper()
	c, err := softcard.New(softcard.Config{Name: "sleeper", Engine: hw.EngineGo})
	if err != nil {
		t.Fatal(err)
	}
	s := &sleeper{Card: c, kicks: make(chan struct{}, 1), start: time.Now()}
	sleepers.Store(t.Name(), s)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			s.stepping.Lock()
			worked := s.step()
			s.stepping.Unlock()
			if !worked {
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done; sleepers.Delete(t.Name()) })
	return s, newSide(t, "sleeper:"+t.Name(), 1024, smallQP)
}

// lost reports a wake-up that is lost: the card sleeps, and nobody kicks it.
func (s *sleeper) lost(asleep bool) bool {
	if !asleep {
		return false
	}
	select {
	case <-s.kicks:
		return false
	case <-time.After(5 * time.Second):
		return true
	}
}

// doorbells are the driver's doorbells that wake a card, each by its verb.
func doorbells(t *testing.T, a *side) map[string]func() error {
	ctx := testCtx(t)
	live := a.qp // RTS: it speaks to itself, by a port that is on no wire
	if err := live.Connect(ctx, live.Endpoint()); err != nil {
		t.Fatal(err)
	}
	dead, err := a.pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Modify(ctx, driver.QPAttr{State: driver.StateErr}, driver.AttrState); err != nil {
		t.Fatal(err)
	}
	wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled}
	return map[string]func() error{
		"send queue":            func() error { return live.PostSend(&wr) },
		"send queue, batch":     func() error { _, err := live.PostSendBatch([]driver.SendWR{wr, wr}); return err },
		"send queue, in ERR":    func() error { return dead.PostSend(&wr) },
		"receive queue, in ERR": func() error { return dead.PostRecv(&driver.RecvWR{}) },
		"receives, batch":       func() error { _, err := dead.PostRecvBatch(make([]driver.RecvWR, 2)); return err },
		"arm":                   func() error { return a.cq.Arm(false) },
		"arm, solicited":        func() error { return a.cq.Arm(true) },
	}
}

// awake wants the card to find what the doorbell brought, once it is awake.
func (s *sleeper) awake(t *testing.T, a *side, name string) {
	t.Helper()
	s.Awaken()
	if !s.step() {
		t.Errorf("%s: awake, the card finds nothing", name)
	}
	s.stepping.Unlock()
	if _, err := a.cq.Poll(make([]driver.WC, 100)); err != nil {
		t.Fatal(err)
	}
}

// shown wakes the card after a try of an interleaving, in which it slept or not, and says whether that was the one
// that is to be seen. It ends the test with what is wrong: each other try would wait as long.
func (s *sleeper) shown(t *testing.T, a *side, name string, try int, asleep, sleeps bool) bool {
	t.Helper()
	if asleep && !sleeps {
		t.Errorf("%s: the card sleeps", name)
	}
	if s.lost(asleep) {
		t.Errorf("%s: the card sleeps and is not kicked", name)
	}
	s.awake(t, a, name)
	if t.Failed() {
		t.FailNow()
	}
	if asleep != sleeps && try == 100 { // something else may have kept it awake, but not each time
		t.Fatalf("%s: the card does not sleep", name)
	}
	return asleep == sleeps
}

// TestSleep_EachInterleaving: a doorbell of the driver's own, its store and its look at the flag together,
// falls before the card's flag, between its flag and its last look, and behind that look; in none does the
// card sleep and nobody kicks it.
func TestSleep_EachInterleaving(t *testing.T) {
	s, a := newSleeper(t)
	orders := map[string]func(ring func()) bool{
		"before the flag":       func(ring func()) bool { ring(); return s.FallAsleep(nil) },
		"between flag and look": s.FallAsleep,
		"behind the look":       func(ring func()) bool { asleep := s.FallAsleep(nil); ring(); return asleep },
		"behind the look and a first sleep": func(ring func()) bool {
			s.FallAsleep(nil)
			s.Awaken()
			asleep := s.FallAsleep(nil)
			ring()
			return asleep
		},
	}
	for bell, ring := range doorbells(t, a) {
		for order, fall := range orders {
			name := bell + " " + order
			sleeps := strings.HasPrefix(order, "behind")
			for try := 1; ; try++ {
				s.take()
				asleep := fall(func() {
					if err := ring(); err != nil {
						t.Fatal(err)
					}
				})
				if s.shown(t, a, name, try, asleep, sleeps) {
					break
				}
			}
		}
	}
	s.take()
	if !s.FallAsleep(nil) {
		t.Error("without a doorbell the card stays awake: the test shows nothing")
	}
	s.Awaken()
	s.stepping.Unlock()
}

// TestSleep_SplitDoorbell: the other interleavings, where steps of the card fall between the driver's store and
// its look at the flag. The driver is stopped in the load itself, by a page fault; what it then finds
// is what stands in the card's flag.
func TestSleep_SplitDoorbell(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 { // who is stopped holds one
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would wait for who is stopped
	stop := memtest.NewStop(t)
	s, a := newSleeper(t)
	bells := doorbells(t, a)
	faults, err := drivertest.On(a.d)
	if err != nil {
		t.Fatal(err)
	}
	release, err := faults.HoldInterrupts() // who takes events looks at the flag as well
	if err != nil {
		t.Fatal(err)
	}
	flag := a.d.LookAt(stop.Word())
	defer func() {
		a.d.LookAt(flag)
		if err := release(); err != nil {
			t.Error(err)
		}
	}()
	// Steps of the driver: begin stores the doorbell and stands before the load; end loads.
	type steps struct{ begin, end func() }
	orders := map[string]func(drv steps) bool{
		"store, flag, load, look": func(drv steps) bool { drv.begin(); return s.FallAsleep(drv.end) },
		"store, flag, look, load": func(drv steps) bool { drv.begin(); asleep := s.FallAsleep(nil); drv.end(); return asleep },
		"flag, store, look, load": func(drv steps) bool { asleep := s.FallAsleep(drv.begin); drv.end(); return asleep },
		"flag, store, load, look": func(drv steps) bool { return s.FallAsleep(func() { drv.begin(); drv.end() }) },
		"flag, look, store, load": func(drv steps) bool { asleep := s.FallAsleep(nil); drv.begin(); drv.end(); return asleep },
		"store, load, flag, look": func(drv steps) bool { drv.begin(); drv.end(); return s.FallAsleep(nil) },
	}
	for bell, ring := range bells {
		for order, fall := range orders {
			name := bell + ": " + order
			sleeps := order == "flag, look, store, load" // else the doorbell is there before the look
			for try := 1; ; try++ {
				s.take()
				stop.Shut()
				done := make(chan error, 1)
				asleep := fall(steps{
					begin: func() {
						go func() { done <- ring() }()
						if !stop.Wait(5 * time.Second) {
							t.Fatalf("%s: the driver does not look at the flag", name)
						}
					},
					end: func() {
						stop.Go(mmio.Load32(flag))
						if err := <-done; err != nil {
							t.Fatal(err)
						}
					},
				})
				if s.shown(t, a, name, try, asleep, sleeps) {
					break
				}
			}
		}
	}
}

// TestSleep_Messages: single messages with pauses between them, short enough that card and
// program are caught in the midst of falling asleep, each completed before its deadline of
// 5 s. A million with RNIC_FULL=1.
func TestSleep_Messages(t *testing.T) {
	const lanes = 2
	messages := scale(1_000_000, 20_000) / lanes
	var all sync.WaitGroup
	var asleep [lanes]uint64
	for l := range lanes {
		w := wires.Add(1)
		a := newSide(t, fmt.Sprintf("soft:sa%d?wire=s%d", w, w), 256, smallQP)
		b := newSide(t, fmt.Sprintf("soft:sb%d?wire=s%d", w, w), 256, smallQP)
		connect(t, a.qp, b.qp)
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(l), 5))
			one := make([]driver.WC, 1)
			for i := range messages {
				if err := message(a, b, i, one); err != nil {
					t.Errorf("lane %d, message %d: %v", l, i, err)
					return
				}
				pause(rnd)
			}
			asleep[l] = counter(t, a.d, "SLEEPS") + counter(t, b.d, "SLEEPS")
			if asleep[l] == 0 && !t.Failed() {
				t.Error("no card slept: the test shows nothing")
			}
		})
	}
	all.Wait()
	t.Logf("%d messages on each of %d wires, whose cards slept %d times", messages, lanes, asleep)
}

// message is a SEND or a WRITE, completed at both ends.
func message(a, b *side, i int, wc []driver.WC) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	wr := driver.SendWR{WRID: uint64(i), Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 8)}, Remote: b.mr.Remote()}
	if i%2 == 0 {
		wr.Opcode = driver.Send
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: uint64(i), SGEs: []driver.SGE{b.mr.SGE(0, 8)}}); err != nil {
			return err
		}
	}
	if err := a.qp.PostSend(&wr); err != nil {
		return err
	}
	for _, s := range []*side{b, a} {
		if s == b && wr.Opcode == driver.Write {
			continue
		}
		if _, err := s.cq.Wait(ctx, wc); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil || wc[0].WRID != uint64(i) {
			return fmt.Errorf("completion of %d: %w", wc[0].WRID, err)
		}
	}
	return nil
}

// pause is mostly none or a few µs, now and then about as long as it takes the card and the
// waiting program to fall asleep.
func pause(rnd *rand.Rand) {
	var d time.Duration
	switch n := rnd.IntN(1000); {
	case n < 800:
		d = time.Duration(rnd.IntN(3000))
	case n < 970:
		d = time.Duration(40_000 + rnd.IntN(40_000))
	case n < 999:
		time.Sleep(time.Duration(rnd.IntN(200_000)))
		return
	default:
		time.Sleep(2 * time.Millisecond)
		return
	}
	for end := time.Now().Add(d); time.Now().Before(end); { // a sleep of so little is longer
	}
}
