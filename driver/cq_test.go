package driver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/driver"
)

// TestSmallestCQ: a completion queue for one completion can be had.
func TestSmallestCQ(t *testing.T) {
	d := open(t, "soft:?wire=smallest")
	cq, err := d.CreateCQ(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if cq.Entries() < 1 {
		t.Errorf("%d entries", cq.Entries())
	}
	_, err = d.CreateCQ(testCtx(t), 0)
	wantErr(t, "0 entries", err, driver.ErrInvalid)
	_, err = d.CreateCQ(testCtx(t), d.Attr().MaxCQE+1)
	wantErr(t, "too many entries", err, driver.ErrLimit)
}

// More completions than the queue has room for: what is there can be polled,
// then it is ErrOverrun; the QP is in ERR; and an event says so.
func TestOverrun(t *testing.T) {
	a := newSide(t, "soft:oa?wire=over", 4, smallQP)
	b := newSide(t, "soft:ob?wire=over", 256, smallQP)
	connect(t, a.qp, b.qp)
	ctx := testCtx(t)
	for i := range uint64(16) {
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
	}
	n, err := a.qp.PostSendBatch(func() (wrs []driver.SendWR) {
		for i := range uint64(16) {
			wrs = append(wrs, driver.SendWR{WRID: i, Opcode: driver.Send, Flags: driver.Signaled})
		}
		return wrs
	}())
	if n != 16 || err != nil {
		t.Fatal(n, err)
	}
	for {
		e, err := a.d.NextEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == driver.EventCQError {
			if e.Object != a.cq.Number() {
				t.Errorf("event %v, want of CQ %d", e, a.cq.Number())
			}
			break
		}
	}
	wc := make([]driver.WC, 16)
	n, err = a.cq.Wait(ctx, wc)
	if n != 4 || err != nil {
		t.Errorf("%d completions, %v; want the 4 that fitted", n, err)
	}
	_, err = a.cq.Poll(wc)
	wantErr(t, "Poll after an overflow", err, driver.ErrOverrun)
	_, err = a.cq.Wait(ctx, wc)
	wantErr(t, "Wait after an overflow", err, driver.ErrOverrun)
	q, err := a.qp.Query(ctx)
	if err != nil || q.State != driver.StateErr || q.ErrorReason != driver.ReasonCQOverflow {
		t.Errorf("QP: %v %v, %v", q.State, q.ErrorReason, err)
	}
}

// Wait ends by its context, also when the card's interrupt does not come; a
// completion that came meanwhile is there.
func TestWaitBounds(t *testing.T) {
	a, b := newPair(t, smallQP)
	wc := make([]driver.WC, 4)
	_, err := a.cq.Wait(short(t), wc)
	wantErr(t, "Wait without a completion", err, driver.ErrTimeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not the context's error", err)
	}
	_, err = a.cq.Wait(testCtx(t), nil)
	wantErr(t, "Wait for none", err, driver.ErrInvalid)

	g, err := a.d.Debug()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.HoldInterrupts(^uint32(0) &^ 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan int)
	go func() {
		n, _ := a.cq.Wait(ctx, wc)
		got <- n
	}()
	// The waiter is asleep once the queue is armed.
	for {
		s, err := a.d.Snapshot(testCtx(t))
		if err != nil {
			t.Fatal(err)
		}
		if s.CQs[0].Armed > 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := b.qp.PostRecv(&driver.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 3, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
		t.Fatal(err)
	}
	good(t, b.cq, 0)
	if err := g.AwaitQuiescent(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if n := <-got; n != 1 || wc[0].WRID != 3 {
		t.Errorf("Wait gave %d completions as its context ended", n)
	}
	if err := g.HoldInterrupts(0); err != nil {
		t.Fatal(err)
	}
}

// Many wait on one queue; each completion wakes one, and none is lost.
func TestManyWaiters(t *testing.T) {
	a, b := newPair(t, driver.QPInit{Type: driver.RC, MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1})
	const waiters, each = 4, 200
	ctx := testCtx(t)
	ids := make(chan uint64, waiters*each)
	posted := make(chan struct{}, 64) // receives whose completion nobody has taken, fewer than the queue holds
	done := make(chan error, waiters)
	stop, cancel := context.WithCancel(ctx)
	for range waiters {
		go func() {
			wc := make([]driver.WC, 3)
			for {
				n, err := b.cq.Wait(stop, wc)
				for _, w := range wc[:n] {
					if e := w.Err(); e != nil {
						err = e
					}
					<-posted
					ids <- w.WRID
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for i := range uint64(waiters * each) {
		select {
		case posted <- struct{}{}:
		case <-ctx.Done():
			t.Fatalf("no waiter takes the completions of %d receives", cap(posted))
		}
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
			t.Fatal(err)
		}
		good(t, a.cq, i)
		if i%7 == 0 {
			time.Sleep(200 * time.Microsecond) // let them fall asleep
		}
	}
	seen := map[uint64]bool{}
	for range waiters * each {
		select {
		case id := <-ids:
			if seen[id] {
				t.Errorf("completion %d twice", id)
			}
			seen[id] = true
		case <-ctx.Done():
			t.Fatalf("%d of %d completions", len(seen), waiters*each)
		}
	}
	cancel()
	for range waiters {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// poll(2) on the queue's eventfd.
func readable(t *testing.T, fd int, ms int) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, ms)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

// Arm and FD, for a caller's own loop; solicited only skips what is not.
func TestArmAndFD(t *testing.T) {
	a, b := newPair(t, smallQP)
	fd := b.cq.FD()
	if fd < 0 || b.cq.FD() != fd {
		t.Fatalf("eventfd %d, then %d", fd, b.cq.FD())
	}
	send := func(flags driver.SendFlags) {
		t.Helper()
		if err := b.qp.PostRecv(&driver.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&driver.SendWR{Opcode: driver.Send, Flags: driver.Signaled | flags}); err != nil {
			t.Fatal(err)
		}
		good(t, a.cq, 0)
	}
	clear := func() {
		t.Helper()
		var buf [8]byte
		if _, err := unix.Read(fd, buf[:]); err != nil {
			t.Fatal(err)
		}
	}
	send(0)
	if readable(t, fd, 0) {
		t.Fatal("an event of a queue that was not armed")
	}
	// Armed with a completion there already: the event comes at once.
	if err := b.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if !readable(t, fd, 10_000) {
		t.Fatal("no event of a completion that was there")
	}
	clear()
	wait(t, b.cq, 1)
	if err := b.cq.Arm(true); err != nil {
		t.Fatal(err)
	}
	send(0)
	wait(t, b.cq, 1)
	if readable(t, fd, 0) {
		t.Fatal("an event of a completion that is not solicited")
	}
	send(driver.Solicited)
	if !readable(t, fd, 10_000) {
		t.Fatal("no event of a solicited completion")
	}
	clear()
	wait(t, b.cq, 1)
	if err := b.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.cq.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Arm of a closed queue", b.cq.Arm(false), driver.ErrClosed)
	if b.cq.FD() != -1 {
		t.Error("an eventfd of a closed queue")
	}
}

// The completions of a QP that is closed leave its queue; another's stay.
func TestCloseTakesCompletions(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	init := smallQP
	init.SendCQ, init.RecvCQ = a.cq, a.cq
	other, err := a.pd.CreateQP(ctx, init)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) { // flushed at once
		if err := other.Modify(ctx, driver.QPAttr{State: driver.StateErr}, driver.AttrState); err != nil {
			t.Fatal(err)
		}
		if err := other.PostSend(&driver.SendWR{WRID: 90 + i, Opcode: driver.Send}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.qp.PostRecv(&driver.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 2, Opcode: driver.Write, Flags: driver.Signaled, Remote: b.mr.Remote()}); err != nil {
		t.Fatal(err)
	}
	good(t, b.cq, 0)
	if err := other.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	n := other.Number()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	// A new QP of the same number on the same queue sees nothing of the old.
	again, err := a.pd.CreateQP(ctx, init, driver.WithQPN(n))
	if err != nil {
		t.Fatal(err)
	}
	good(t, a.cq, 1)
	good(t, a.cq, 2)
	if k, err := a.cq.Poll(make([]driver.WC, 4)); k != 0 || err != nil {
		t.Errorf("%d completions of a QP that is closed, %v", k, err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
