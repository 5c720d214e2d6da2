package driver_test

import (
	"errors"
	"fmt"
	"testing"

	"rnic/driver"
	"rnic/hw/softcard"
)

// ownRing is a pair whose side a has a queue pair more, with rings that can be unmapped.
func ownRing(t *testing.T) (a, b *side, q *driver.QP) {
	w := wires.Add(1)
	a = newSide(t, fmt.Sprintf("soft:fa%d?wire=f%d", w, w), 256, smallQP)
	b = newSide(t, fmt.Sprintf("soft:fb%d?wire=f%d", w, w), 256, smallQP)
	defer a.d.OwnRings()()
	q, err := a.pd.CreateQP(testCtx(t), driver.QPInit{Type: driver.RC, SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 16, MaxRecvWR: 8, MaxSendSGE: 16, MaxRecvSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	return a, b, q
}

// TestFlush_RingFaults: the DMA address of a queue pair's rings faults under posted work. The
// first send fails, and every other work request, of 1 to 5 blocks, completes as flushed, in order; then
// nothing is posted there until the queue pair was reset, after which it is the same again.
func TestFlush_RingFaults(t *testing.T) {
	a, b, q := ownRing(t)
	ctx := testCtx(t)
	for round := range 2 {
		if round == 1 {
			for _, q := range []*driver.QP{q, b.qp} {
				if err := q.Modify(ctx, driver.QPAttr{State: driver.StateReset}, driver.AttrState); err != nil {
					t.Fatal(err)
				}
				init := driver.QPAttr{State: driver.StateInit, Access: driver.RemoteWrite}
				if err := q.Modify(ctx, init, driver.AttrState|driver.AttrAccess|driver.AttrPKeyIndex); err != nil {
					t.Fatal(err)
				}
			}
		}
		connect(t, q, b.qp)
		if round == 0 { // without a completion: it succeeded and is never heard of
			if err := q.PostSend(&driver.SendWR{WRID: 7, Opcode: driver.Write}); err != nil {
				t.Fatal(err)
			}
			if err := q.PostSend(&driver.SendWR{WRID: 8, Opcode: driver.Write, Flags: driver.Signaled}); err != nil {
				t.Fatal(err)
			}
			good(t, a.cq, 8)
			if err := q.UnmapRings(); err != nil {
				t.Fatal(err)
			}
		}
		const recvs = 3
		for i := range uint64(recvs) {
			if err := q.PostRecv(&driver.RecvWR{WRID: 100 + i}); err != nil {
				t.Fatal(err)
			}
		}
		var wrs []driver.SendWR
		for i := range 6 {
			wr := driver.SendWR{WRID: uint64(i), Opcode: driver.Send}
			for range (16 - 3*i) % 17 {
				wr.SGEs = append(wr.SGEs, a.mr.SGE(0, 8))
			}
			wrs = append(wrs, wr)
		}
		if n, err := q.PostSendBatch(wrs); err != nil {
			t.Fatalf("%d were posted: %v", n, err)
		}
		var sends, received uint64
		for _, wc := range wait(t, a.cq, len(wrs)+recvs) {
			status, reason := driver.StatusWRFlushErr, driver.ReasonFlushed
			switch {
			case wc.WRID >= 100:
				if wc.WRID != 100+received || wc.Opcode != driver.Recv {
					t.Errorf("round %d, receive %d: %+v", round, received, wc)
				}
				received++
			default:
				if sends == 0 {
					reason, status = driver.ReasonDMARead, driver.StatusLocQPOpErr
				}
				if wc.WRID != sends || wc.Opcode != driver.Send {
					t.Errorf("round %d, send %d: %+v", round, sends, wc)
				}
				sends++
			}
			if wc.Status != status || wc.Reason != reason || wc.QPN != q.Number() || wc.FaultSegment != -1 {
				t.Errorf("round %d: %+v; want %v (%v)", round, wc, status, reason)
			}
		}
		if n, err := a.cq.Poll(make([]driver.WC, 1)); n != 0 || err != nil {
			t.Errorf("round %d: one completion too many (%v)", round, err)
		}
		for {
			e, err := a.d.NextEvent(ctx)
			if err != nil {
				t.Fatalf("round %d: no QP_FATAL: %v", round, err)
			}
			if e.Type == driver.EventQPFatal {
				if e.Object != q.Number() || e.Reason != driver.ReasonRingRead {
					t.Errorf("round %d: %v", round, e)
				}
				break
			}
		}
		wantErr(t, "a send after it", q.PostSend(&wrs[0]), driver.ErrState)
		if err := q.Modify(ctx, driver.QPAttr{State: driver.StateErr}, driver.AttrState); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "a send in ERR", q.PostSend(&wrs[0]), driver.ErrState)
		if err := q.PostRecv(&driver.RecvWR{WRID: 200}); err != nil {
			t.Fatal(err)
		}
		if wc := wait(t, a.cq, 1)[0]; wc.WRID != 200 || wc.Status != driver.StatusWRFlushErr {
			t.Errorf("round %d: a receive after it: %+v", round, wc)
		}
	}
}

// TestFlush_FromWhereTheCardSays: sends that succeeded without a completion are not flushed with those that
// were never started.
func TestFlush_FromWhereTheCardSays(t *testing.T) {
	a, b, q := ownRing(t)
	ctx := testCtx(t)
	connect(t, q, b.qp)
	for range 2 {
		if err := b.qp.PostRecv(&driver.RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	quiet := driver.SendWR{WRID: 1, Opcode: driver.Send}
	if n, err := q.PostSendBatch([]driver.SendWR{quiet, quiet}); err != nil {
		t.Fatalf("%d posted: %v", n, err)
	}
	wait(t, b.cq, 2) // else SQD would hold them
	if err := q.Modify(ctx, driver.QPAttr{State: driver.StateSQD}, driver.AttrState); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := a.d.NextEvent(ctx)
		if err != nil {
			t.Fatalf("not drained: %v", err)
		}
		if e.Type == driver.EventSQDrained {
			break
		}
	}
	later := driver.SendWR{WRID: 2, Opcode: driver.Write}
	if err := q.PostSend(&later); err != nil {
		t.Fatal(err)
	}
	if err := q.UnmapRings(); err != nil {
		t.Fatal(err)
	}
	if err := q.Modify(ctx, driver.QPAttr{State: driver.StateErr}, driver.AttrState); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, a.cq, 1)[0]; wc.WRID != 2 || wc.Status != driver.StatusWRFlushErr {
		t.Errorf("%+v; want the send that was not started", wc)
	}
	if n, err := a.cq.Poll(make([]driver.WC, 1)); n != 0 || err != nil {
		t.Errorf("one completion too many (%v)", err)
	}
}

// TestFlush_EventsLost: queue pairs whose rings fault all at once, more than the card's event queue has room for. The events
// of some are lost, and all their work requests complete as flushed all the same; so ends a completion queue that
// overflowed meanwhile.
func TestFlush_EventsLost(t *testing.T) {
	addrs := limited(t, softcard.Limits{EQLogEntries: 2})
	a, b := newSide(t, addrs[0], 256, smallQP), newSide(t, addrs[1], 256, smallQP)
	ctx := testCtx(t)
	small, err := a.d.CreateCQ(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer a.d.OwnRings()()
	const many = 12
	var qps []*driver.QP
	for i := range many {
		init := smallQP
		init.MaxSendWR, init.MaxRecvWR, init.SendCQ, init.RecvCQ = 4, 4, a.cq, a.cq
		if i == many-1 {
			init.RecvCQ = small // it has room for one of the receives
		}
		q, err := a.pd.CreateQP(ctx, init)
		if err != nil {
			t.Fatal(err)
		}
		init.SendCQ, init.RecvCQ = b.cq, b.cq
		peer, err := b.pd.CreateQP(ctx, init)
		if err != nil {
			t.Fatal(err)
		}
		connect(t, q, peer)
		qps = append(qps, q)
	}
	for i := range uint64(small.Entries() + 1) {
		if err := qps[many-1].PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
	}
	g, err := a.d.Debug()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(qps[0].UnmapRings(), g.HoldInterrupts(1)); err != nil { // the mapping holds them all
		t.Fatal(err)
	}
	const each = 3
	for i, q := range qps {
		for n := range each {
			if err := q.PostSend(&driver.SendWR{WRID: uint64(i*each + n), Opcode: driver.Write}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var wcs []driver.WC
	for range many { // the first of each, which the card completes itself
		wcs = append(wcs, wait(t, a.cq, 1)...)
	}
	awaitCounter(t, a.d, "EVENTS_LOST", 1)
	if err := g.HoldInterrupts(0); err != nil {
		t.Fatal(err)
	}
	wcs = append(wcs, wait(t, a.cq, many*(each-1))...)
	next := make([]uint64, many)
	for _, wc := range wcs {
		status := driver.StatusWRFlushErr
		i := int(wc.WRID) / each
		if next[i] == 0 {
			status = driver.StatusLocQPOpErr
		}
		if wc.QPN != qps[i].Number() || wc.Status != status || wc.WRID != uint64(i*each)+next[i] {
			t.Errorf("%+v; want send %d of QP %#x, %v", wc, next[i], qps[i].Number(), status)
		}
		next[i]++
	}
	var wc [8]driver.WC
	for {
		n, err := small.Wait(ctx, wc[:])
		if errors.Is(err, driver.ErrOverrun) {
			break
		}
		if err != nil {
			t.Fatalf("the completion queue that overflowed: %d, %v", n, err)
		}
	}
}
