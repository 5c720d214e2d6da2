package driver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// CQ is a completion queue.
type CQ struct {
	d      *Device
	n      uint32
	vector *vector
	ring   vfio.Block
	bell   doorbell

	// The data path, under mu.
	mu     lock
	q      *queues.CQ
	qps    map[uint32]*QP // whose completions come here
	last   *QP            // of the last completion
	lost   []*QP          // whose sends the card cannot flush, see lostRing
	err    error          // once the ring is empty: ErrOverrun, ErrClosed, ErrDeviceGone
	closed bool           // nothing of it may be touched
	bogus  uint64         // CQEs that fit no work request
	armed  uint64         // how often

	waiters atomic.Int32
	wake    chan struct{} // a token for one waiter
	ended   chan struct{} // closed once err is set
	endOnce sync.Once
	eventFD atomic.Int32 // of FD, -1 where there is none
	fdMu    sync.Mutex

	ctl       ctlLock
	destroyed bool             // under ctl
	users     map[child]string // under d.mu
	closing   bool             // under d.mu: takes no more users
}

// CreateCQ makes a completion queue of at least so many entries: the ring is
// rounded up to a power of two, and Entries says to what. When more
// completions come than it has room for, it is in error (ErrOverrun), and so
// are its queue pairs: give it the sum of the work requests that can be
// outstanding.
func (d *Device) CreateCQ(ctx context.Context, entries int) (*CQ, error) {
	const op = "create CQ"
	obj := fmt.Sprintf("of %d entries", entries)
	if err := d.alive(); err != nil {
		return nil, d.fail(op, obj, err)
	}
	if entries < 1 {
		return nil, d.fail(op, obj, ErrInvalid)
	}
	if entries > d.attr.MaxCQE {
		return nil, d.fail(op, obj, fmt.Errorf("the card takes at most %d: %w", d.attr.MaxCQE, ErrLimit))
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	n, err := d.cqns.alloc()
	if err != nil {
		return nil, d.fail(op, obj, fmt.Errorf("CQ numbers: %w", err))
	}
	c, err := d.createCQ(ctx, n, roundUp(max(entries, 2))) // a card takes no ring of one
	if err != nil {
		var refused *CommandError
		if errors.As(err, &refused) || c == nil {
			d.cqns.free(n)
		}
		return nil, d.fail(op, obj, err)
	}
	return c, nil
}

func (d *Device) createCQ(ctx context.Context, n uint32, entries int) (*CQ, error) {
	v := d.vectors[0]
	if others := uint32(len(d.vectors) - 1); others > 0 {
		v = d.vectors[1+n%others]
	}
	if err := v.useEQ(ctx, false); err != nil {
		return nil, err
	}
	ring, err := d.alloc(entries*hw.CQESize, 4096)
	if err != nil {
		return nil, err
	}
	bell, err := d.newDoorbell()
	if err != nil {
		d.arena.Free(ring)
		return nil, err
	}
	ci, err := d.word(bell.offset + hw.CQDoorbellCI)
	if err != nil {
		return nil, err
	}
	arm, err := d.word(bell.offset + hw.CQDoorbellArm)
	if err != nil {
		return nil, err
	}
	q, err := queues.NewCQ(ring.Bytes, ci, arm, &d.domain)
	if err != nil {
		return nil, err
	}
	c := &CQ{
		d: d, n: n, vector: v, ring: ring, bell: bell, q: q, qps: map[uint32]*QP{},
		wake: make(chan struct{}, 1), ended: make(chan struct{}), ctl: newCtlLock(), users: map[child]string{},
	}
	c.eventFD.Store(-1)
	cc := hw.CQContext{IOVA: ring.IOVA, Doorbell: uint32(bell.offset), EQN: uint32(v.n), LogEntries: logOf(entries)}
	if err := d.command(ctx, hw.CommandCreateCQ, n, 0, cc.AsBytes(), nil); err != nil {
		d.abandon(err, ring, bell.page)
		return c, err
	}
	if err := d.add(c, func() {
		d.cqs[n] = c
		d.cqByN.set(n, c)
	}); err != nil {
		return c, err
	}
	return c, nil
}

// Number is the completion queue's number on the card.
func (c *CQ) Number() uint32 { return c.n }

// Entries is the number of completions that it has room for.
func (c *CQ) Entries() int { return int(c.q.Entries()) }

func (c *CQ) name() string { return fmt.Sprintf("CQ %d", c.n) }

// use counts a user. The caller holds d.mu.
func (c *CQ) use(u child, name string) error {
	if c.closing {
		return fmt.Errorf("%s: %w", c.name(), ErrClosed)
	}
	c.users[u] = name
	return nil
}

// attach has the completions of a queue pair accepted, detach has them
// dropped, those in the ring included.
func (c *CQ) attach(q *QP) {
	c.mu.Lock()
	c.qps[q.n] = q
	c.mu.Unlock()
}

func (c *CQ) detach(q *QP) {
	c.mu.Lock()
	if c.qps[q.n] == q {
		delete(c.qps, q.n)
		c.q.Purge(q.n)
	}
	c.forget(q)
	if c.last == q {
		c.last = nil
	}
	c.mu.Unlock()
}

// Poll takes completions that are there, at most len(wc), and says how many.
// It does not wait, allocates nothing and makes no system call. Completions
// that came before an error are given first. errors.Is: ErrOverrun,
// ErrDeviceGone, ErrClosed.
func (c *CQ) Poll(wc []WC) (n int, err error) {
	c.mu.Lock()
	if qp := c.last; qp != nil {
		var next uint32
		if n, _, next = qp.take(c, nil, wc); n > 0 && next == 0 {
			qp.release(c)
			c.q.Publish()
		} else {
			n, err = c.poll(wc, n, next)
		}
	} else {
		n, err = c.poll(wc, 0, 0)
	}
	c.mu.Unlock()
	return n, err
}

// poll is Poll behind the first n, which are of the last queue pair and not
// released yet: for completions of several, for verification, which compares
// packets first and has no last queue pair, for errors. qpn is the QP number of
// the oldest CQE where it was looked at, else 0, or lookOn. The caller holds c.mu.
func (c *CQ) poll(wc []WC, n int, qpn uint32) (int, error) {
	q, qp, verify := c.q, c.last, c.d.verify
	if c.closed { // the ring is gone
		wc = nil
	}
	took := n > 0 || qpn != 0
	if qpn == lookOn {
		qpn = 0
	}
	compared := 0 // completions, from here on, whose packets were compared
	for n < len(wc) {
		// A CQE stays in the ring, where the card may change it: each byte is loaded once.
		e := q.At(0)
		if e == nil {
			break
		}
		if qpn == 0 {
			qpn = e.QPN
		}
		took = true
		room := wc[n:]
		if verify != nil {
			if compared <= 0 { // a card may take back what it wrote
				compared = q.Ready(len(wc))
				verify.catchUp() // with all that the card reported before it wrote these
			}
			compared--
			room = room[:1]
		}
		if qp == nil || qp.n != qpn {
			if qp != nil {
				qp.release(c)
			}
			if qp = c.qps[qpn]; qp == nil {
				q.Take(1) // of a queue pair that was closed
				qpn = 0
				continue
			}
		}
		k, index, next := qp.take(c, e, room)
		if k > 0 && verify != nil {
			qp.spoil(&wc[n], index)
		}
		if n, qpn = n+k, next; qpn == lookOn {
			qpn = 0
		}
	}
	if took {
		if qp != nil {
			qp.release(c)
		}
		if c.last != qp && verify == nil {
			c.last = qp
		}
		q.Publish()
	}
	if n == 0 {
		if c.lost != nil {
			n = c.flushLost(wc)
		}
		if n == 0 {
			return 0, c.err
		}
	}
	return n, nil
}

// Times of Wait: looking at the ring spinLooks times in a row, then yielding
// between looks until idleTime has passed, then sleeping.
const (
	spinLooks = 64
	idleTime  = 50 * time.Microsecond
)

// Wait takes at least one completion, waiting for it until the context, the
// queue or the device ends: it looks at the ring for a little while, then arms
// the queue's interrupt, looks again, and sleeps.
func (c *CQ) Wait(ctx context.Context, wc []WC) (int, error) {
	if len(wc) == 0 {
		return 0, c.fail("wait", ErrInvalid)
	}
	c.waiters.Add(1)
	defer c.waiters.Add(-1)
	var start time.Time
	for looks := 0; ; looks++ {
		n, err := c.Poll(wc)
		if n > 0 || err != nil {
			return c.woken(n, err)
		}
		if looks < spinLooks {
			continue
		}
		now := time.Now()
		if start.IsZero() {
			start = now
		}
		if now.Sub(start) < idleTime {
			runtime.Gosched()
			continue
		}
		c.mu.Lock()
		if c.err == nil {
			c.q.Arm(false)
			c.armed++
		}
		c.mu.Unlock()
		if n, err := c.Poll(wc); n > 0 || err != nil {
			return c.woken(n, err)
		}
		select {
		case <-c.wake:
		case <-c.ended:
		case <-ctx.Done():
			if n, err := c.Poll(wc); n > 0 || err != nil {
				return c.woken(n, err)
			}
			c.pass() // the token may have been meant for another
			return 0, c.fail("wait", &DeadlineError{Waited: "a completion", Cause: context.Cause(ctx)})
		}
		looks, start = 0, time.Time{}
	}
}

// woken wakes the next waiter, if there is one: an event wakes one, and there
// may be completions for more.
func (c *CQ) woken(n int, err error) (int, error) {
	c.pass()
	if err != nil {
		err = c.fail("wait", err)
	}
	return n, err
}

func (c *CQ) pass() {
	if c.waiters.Load() > 1 {
		c.signal()
	}
}

func (c *CQ) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// notify is the completion event.
func (c *CQ) notify() {
	c.signal()
	if fd := c.eventFD.Load(); fd >= 0 {
		c.fdMu.Lock()
		if fd := c.eventFD.Load(); fd >= 0 {
			_, _ = unix.Write(int(fd), []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full counter: it is readable anyhow
		}
		c.fdMu.Unlock()
	}
}

// Arm asks for one event, on FD, when a completion is there after those that
// were taken; with solicitedOnly, a solicited one or an error. Poll once more
// before sleeping: what came between the last Poll and Arm may have its event
// or not.
func (c *CQ) Arm(solicitedOnly bool) error {
	c.mu.Lock()
	err := c.err
	if err == nil {
		c.q.Arm(solicitedOnly)
		c.armed++
	}
	c.mu.Unlock()
	return c.fail("arm", err)
}

// FD is an eventfd for a caller's own loop, readable after the event that Arm
// asked for, also one from before the first call, and when the queue ends. Read its 8 bytes to clear it. It is the
// queue's; -1 when none can be had or the queue is closed. While Wait is in
// use on the same queue, an event may be for either.
func (c *CQ) FD() int {
	c.fdMu.Lock()
	defer c.fdMu.Unlock()
	if fd := c.eventFD.Load(); fd >= 0 {
		return int(fd)
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return -1
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		c.d.log.Warn("eventfd", zap.Error(err))
		return -1
	}
	c.eventFD.Store(int32(fd))
	if len(c.wake) > 0 { // notify leaves its token before it looks for the descriptor
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return fd
}

func (c *CQ) closeFD() {
	c.fdMu.Lock()
	defer c.fdMu.Unlock()
	if fd := c.eventFD.Swap(-1); fd >= 0 {
		_ = unix.Close(int(fd))
	}
}

func (c *CQ) fail(op string, err error) error { return c.d.fail(op, c.name(), err) }

// end sets the error that the queue has from now on and wakes everyone. The
// first cause stays, but that the queue is closed comes before it.
func (c *CQ) end(err error, closed bool) {
	c.mu.Lock()
	if c.err == nil || closed && !c.closed {
		c.err = err
	}
	if closed {
		c.closed, c.last = true, nil
	}
	c.mu.Unlock()
	c.endOnce.Do(func() { close(c.ended) })
	c.notify()
}

// overrun is the event that the card found the ring full.
func (c *CQ) overrun() { c.end(c.fail("poll", ErrOverrun), false) }

// kill is part of Device.die.
func (c *CQ) kill(cause error) { c.end(c.fail("poll", cause), false) }

// Close destroys the completion queue. While queue pairs complete there, it is
// ErrInUse and names them. On a deadline (5 s) the card keeps it, and the call
// can be repeated. It is idempotent.
func (c *CQ) Close() error {
	d := c.d
	ctx, cancel := bound(context.Background())
	defer cancel()
	if err := c.ctl.lock(ctx); err != nil {
		return c.fail("close", err)
	}
	defer c.ctl.unlock()
	if c.destroyed {
		return nil
	}
	d.mu.Lock()
	if len(c.users) > 0 {
		err := inUse(c.users)
		d.mu.Unlock()
		return c.fail("close", err)
	}
	c.closing = true
	err := d.aliveLocked()
	d.mu.Unlock()
	if err == nil {
		err = d.command(ctx, hw.CommandDestroyCQ, c.n, 0, nil, nil)
		if err != nil && !isGone(err) {
			return c.fail("close", err)
		}
	}
	c.destroyed = true
	c.end(c.fail("poll", ErrClosed), true)
	c.closeFD()
	d.remove(c, func() {
		delete(d.cqs, c.n)
		d.cqByN.set(c.n, nil)
	})
	if err == nil { // else the card may hold on to them
		d.arena.Free(c.ring)
		d.doorbells.free(c.bell.page)
		d.cqns.free(c.n)
	}
	return c.fail("close", err)
}

// forceClose is part of Device.Close.
func (c *CQ) forceClose(error) {
	c.end(c.fail("poll", ErrClosed), true)
	c.closeFD()
}
