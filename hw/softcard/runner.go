package softcard

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rnic/hw"
	"rnic/hw/mmio"
)

// How a Runner waits (measured: performance notes in docs): it polls, then
// yields, then sleeps.
const (
	idlePolls  = 64
	idleTime   = 50 * time.Microsecond
	stepBudget = 64 // packets a Step
)

// Runner steps cards on one goroutine, its worker. It runs while there is
// something to do and for a short while after, then sleeps until a register
// store, a frame or a timer wakes it. Cards of one wire are best on one Runner:
// a frame then never waits for another goroutine to be woken.
type Runner struct {
	asleep atomic.Bool
	bell   chan struct{} // wakes the worker
	done   chan struct{}

	mu    sync.Mutex // held while cards are stepped
	cards []*Card
	ended bool
}

// NewRunner starts a worker without cards. Close ends it.
func NewRunner() *Runner {
	r := &Runner{bell: make(chan struct{}, 1), done: make(chan struct{})}
	go r.work()
	return r
}

// Add gives a card to the worker, which alone steps it from now on.
func (r *Runner) Add(c *Card) {
	r.mu.Lock()
	r.cards = append(r.cards, c)
	c.runner.Store(r)
	r.mu.Unlock()
	r.wake()
}

// Remove takes a card back. When it returns, the card is not being stepped.
func (r *Runner) Remove(c *Card) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.runner.Store(nil)
	r.cards = slices.DeleteFunc(r.cards, func(k *Card) bool { return k == c })
	c.Awaken()
}

// Close ends the worker and waits for it. Its cards stay as they are.
func (r *Runner) Close() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.wake()
	<-r.done
}

// wake wakes the worker if it sleeps. What it is to find has been stored before.
func (r *Runner) wake() {
	if r.asleep.Load() {
		select {
		case r.bell <- struct{}{}:
		default:
		}
	}
}

// rouse wakes the card's worker, if the card has one that sleeps.
func (c *Card) rouse() {
	if r := c.runner.Load(); r != nil {
		r.wake()
	}
}

// tell rouses another card's worker after a store to a lane that it is to find. Its own is
// awake: it is stepping this card.
func (c *Card) tell(other *Card) {
	r := other.runner.Load()
	if r == nil || r == c.runner.Load() {
		return
	}
	mmio.StoreLoad() // the store before the look at whether it sleeps
	r.wake()
}

func (r *Runner) work() {
	defer close(r.done)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	idle, since := 0, time.Time{}
	for {
		worked, ended := r.step()
		switch {
		case ended:
			return
		case worked:
			idle = 0
			continue
		}
		if idle++; idle < idlePolls {
			continue
		}
		if idle == idlePolls {
			since = time.Now()
		}
		runtime.Gosched()
		if time.Since(since) < idleTime {
			continue
		}
		idle = 0
		r.sleep(timer)
	}
}

// step steps each card once.
func (r *Runner) step() (worked, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false, true
	}
	for _, c := range r.cards {
		worked = c.Step(c.cfg.Clock(), stepBudget) || worked
	}
	return worked, false
}

// sleep waits for the bell or the next timer, unless a card has something to do.
func (r *Runner) sleep(timer *time.Timer) {
	r.asleep.Store(true)
	next, may := r.fallAsleep()
	if may {
		if next != noTimer {
			timer.Reset(time.Duration(next))
		}
		select {
		case <-r.bell:
		case <-timer.C:
		}
		timer.Stop()
	}
	r.asleep.Store(false)
	r.mu.Lock()
	for _, c := range r.cards {
		c.Awaken()
	}
	r.mu.Unlock()
}

// fallAsleep puts all cards to sleep, or is false. next is the time in ns until
// the first of their timers, noTimer if there is none.
func (r *Runner) fallAsleep() (next int64, may bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = noTimer
	if r.ended {
		return next, false
	}
	for _, c := range r.cards {
		if !c.FallAsleep(nil) {
			return next, false
		}
		// A packet may wait for room on the wire, which another worker may have
		// made before it could see this one asleep: the last look at that is
		// another try.
		if c.transmitPending() && c.Step(c.cfg.Clock(), stepBudget) {
			return next, false
		}
		if at := c.nextTimer(); at != noTimer && c.live.clockMode == hw.ClockModeReal {
			next = min(next, max(at-c.cfg.Clock(), 0))
		}
	}
	return next, true
}
