package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// QPInit describes a queue pair to be made. What is too much is refused, never
// rounded down.
type QPInit struct {
	Type           QPType // RC
	SendCQ, RecvCQ *CQ    // may be the same
	SRQ            *SRQ   // nil

	MaxSendWR, MaxRecvWR   int // work requests outstanding
	MaxSendSGE, MaxRecvSGE int // scatter-gather entries of one
	MaxInline              int // bytes of inline payload of one

	SignalAll bool // every send has a completion, as if Signaled
}

// QPOption configures CreateQP.
type QPOption func(*qpOptions)

type qpOptions struct {
	qpn, psn       uint32
	qpnSet, psnSet bool
}

// WithQPN chooses the queue pair's number, 2 to 0xfffffe, which must be free.
// By default it is one that was not used for as long as possible.
func WithQPN(n uint32) QPOption { return func(o *qpOptions) { o.qpn, o.qpnSet = n, true } }

// WithPSN chooses the first PSN that the queue pair sends, 24 bits. By default
// it is random.
func WithPSN(n uint32) QPOption { return func(o *qpOptions) { o.psn, o.psnSet = n, true } }

// QP is a queue pair.
type QP struct {
	pd   *PD
	n    uint32
	init QPInit
	psn  uint32 // first PSN sent

	// The send queue's data path. What a poster uses is under sqMu.
	sqMu      lock
	sq        *queues.SQ
	sendErr   error // why a send cannot be posted now, nil if it can
	sends     []sendRecord
	sendMask  uint32
	sendNext  uint32 // number of the next send
	sendDone  uint32 // number of the first send not known to be complete
	sendLimit uint32
	fullSend  error
	posted    uint32 // see handOver

	// The receive queue's, under rqMu.
	rqMu      lock
	rq        *queues.RQ
	recvErr   error
	recvs     []recvRecord // by index
	recvMask  uint32
	recvLimit uint32
	fullRecv  error
	recvd     uint32 // see handOver

	// Who polls has these, under the lock of the send or receive CQ.
	sqDone, rqDone uint32 // first block, first receive not completed
	flush          lostRing

	mtu      atomic.Uint32               // path MTU in bytes, once it is set
	mismatch atomic.Pointer[VerifyError] // why verification froze it
	unread   atomic.Bool                 // the card cannot read the send ring

	ring vfio.Block // both rings
	bell doorbell

	ctl    ctlLock
	state  QPState // as this side set it, under ctl; the card may be in ERR
	rate   uint32  // rate-limit entry, 0: none, under ctl
	closed bool    // under ctl
}

// sendRecord is what the driver keeps of a send work request, at the index of
// its first block.
type sendRecord struct {
	wrid   uint64
	number uint32 // of the send, counting from the queue's start
	index  uint32 // absolute number of its first block
	blocks uint8
	op     Opcode
	_      [8]byte // 32 bytes: a shift finds it, and no two cache lines hold one
}

// recvRecord is what the driver keeps of a receive work request.
type recvRecord struct {
	wrid   uint64
	index  uint32
	posted bool
}

// CreateQP makes a queue pair and brings it to INIT, where receives can be
// posted. The peer may do what regions allow it: access rights are those of
// memory regions, and Modify can narrow them.
//
// errors.Is: ErrNotSupported for a type that this driver lacks, ErrLimit for
// too much, naming the limit, ErrInUse for a chosen number that is taken.
func (p *PD) CreateQP(ctx context.Context, i QPInit, opts ...QPOption) (*QP, error) {
	const op = "create QP"
	d := p.d
	var o qpOptions
	for _, f := range opts {
		f(&o)
	}
	if err := errors.Join(d.alive(), d.checkQP(&i)); err != nil {
		return nil, d.fail(op, "", err)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	q := &QP{pd: p, init: i, ctl: newCtlLock()}
	var err error
	if q.n = o.qpn; o.qpnSet {
		err = d.qpns.take(o.qpn)
	} else {
		q.n, err = d.qpns.alloc()
	}
	if err != nil {
		return nil, d.fail(op, "", fmt.Errorf("QP number: %w", err))
	}
	if q.psn = o.psn; !o.psnSet {
		q.psn = rand.Uint32N(1 << 24)
	} else if q.psn >= 1<<24 {
		d.qpns.free(q.n)
		return nil, d.fail(op, "", fmt.Errorf("PSN %#x has more than 24 bits: %w", q.psn, ErrInvalid))
	}
	if err := q.create(ctx); err != nil {
		return nil, d.fail(op, q.name(), err)
	}
	return q, nil
}

// checkQP refuses what the card or this driver cannot do.
func (d *Device) checkQP(i *QPInit) error {
	over := func(what string, v, limit int) error {
		switch {
		case v < 0:
			return fmt.Errorf("%s %d: %w", what, v, ErrInvalid)
		case v > limit:
			return fmt.Errorf("%s %d, at most %d: %w", what, v, limit, ErrLimit)
		}
		return nil
	}
	switch {
	case i.Type == UC || i.Type == UD:
		return fmt.Errorf("QP type %v: %w", i.Type, ErrNotSupported)
	case i.Type != RC:
		return fmt.Errorf("QP type %v: %w", i.Type, ErrInvalid)
	case i.SRQ != nil:
		return fmt.Errorf("shared receive queue: %w", ErrNotSupported)
	case i.SendCQ == nil || i.RecvCQ == nil:
		return fmt.Errorf("SendCQ or RecvCQ is nil: %w", ErrInvalid)
	case i.SendCQ.d != d || i.RecvCQ.d != d:
		return fmt.Errorf("SendCQ or RecvCQ is of another device: %w", ErrInvalid)
	}
	if err := errors.Join(
		over("MaxSendSGE", i.MaxSendSGE, d.attr.MaxSendSGE), over("MaxRecvSGE", i.MaxRecvSGE, d.attr.MaxRecvSGE),
		over("MaxInline", i.MaxInline, d.attr.MaxInline), over("MaxRecvWR", i.MaxRecvWR, d.attr.MaxRecvWR)); err != nil {
		return err
	}
	blocks := i.sendBlocks()
	return over(fmt.Sprintf("MaxSendWR (%d blocks each)", blocks), i.MaxSendWR, d.attr.MaxSendBlocks/blocks)
}

// sendBlocks is the blocks of the largest send WQE that the queue takes.
func (i *QPInit) sendBlocks() int {
	data := max(i.MaxSendSGE, (i.MaxInline+hw.WQESegment-1)/hw.WQESegment)
	const before = 3 // control, remote, atomic
	return ((before+data)*hw.WQESegment + hw.WQEBlock - 1) / hw.WQEBlock
}

// create makes the rings and the card's context. What it took is given back on
// a failure, unless the card may still use it.
func (q *QP) create(ctx context.Context) (err error) {
	d, i := q.pd.d, &q.init
	blocks := roundUp(max(i.MaxSendWR*i.sendBlocks(), hw.SQMinBlocks))
	stride := queues.RQStride(i.MaxRecvSGE)
	entries := roundUp(max(i.MaxRecvWR, 2))
	sqBytes := blocks * hw.WQEBlock
	rqOffset := (sqBytes + 4095) &^ 4095
	keep := false // the card may use what was taken
	if q.ring, err = d.alloc(rqOffset+entries<<stride, 4096); err != nil {
		d.qpns.free(q.n)
		return err
	}
	if q.bell, err = d.newDoorbell(); err != nil {
		d.arena.Free(q.ring)
		d.qpns.free(q.n)
		return err
	}
	defer func() {
		if err != nil && !keep {
			d.arena.Free(q.ring)
			d.doorbells.free(q.bell.page)
			d.qpns.free(q.n)
		}
	}()
	sqWord, err := d.word(q.bell.offset)
	if err != nil {
		return err
	}
	rqWord, err := d.word(q.bell.second)
	if err != nil {
		return err
	}
	if q.sq, err = queues.NewSQ(q.ring.Bytes[:sqBytes], sqWord, &d.domain); err != nil {
		return err
	}
	if q.rq, err = queues.NewRQ(q.ring.Bytes[rqOffset:][:entries<<stride], stride, rqWord, &d.domain); err != nil {
		return err
	}
	q.sends, q.sendMask, q.sendLimit = make([]sendRecord, blocks), uint32(blocks-1), uint32(i.MaxSendWR)
	q.recvs, q.recvMask, q.recvLimit = make([]recvRecord, entries), uint32(entries-1), uint32(i.MaxRecvWR)
	q.fullSend = q.fail("post send", fmt.Errorf("%d sends outstanding: %w", i.MaxSendWR, ErrQueueFull))
	q.fullRecv = q.fail("post receive", fmt.Errorf("%d receives outstanding: %w", i.MaxRecvWR, ErrQueueFull))
	q.setState(StateReset)

	d.mu.Lock()
	if err = errors.Join(d.aliveLocked(), q.pd.use(q, q.name()), i.SendCQ.use(q, q.name()), i.RecvCQ.use(q, q.name())); err != nil {
		q.unuse()
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	c := hw.QPContext{
		Type: i.Type, PD: q.pd.n, SendCQN: i.SendCQ.n, RecvCQN: i.RecvCQ.n,
		SQIOVA: q.ring.IOVA, RQIOVA: q.ring.IOVA + uint64(rqOffset),
		SQLogBlocks: logOf(blocks), RQLogEntries: logOf(entries), RQLogStride: stride,
		MaxSendSegments: uint8(i.MaxSendSGE), MaxRecvSegments: uint8(i.MaxRecvSGE), MaxInline: uint16(i.MaxInline),
		SQDoorbell: uint32(q.bell.offset), RQDoorbell: uint32(q.bell.second),
	}
	if i.SignalAll {
		c.SignalAll = 1
	}
	err = d.command(ctx, hw.CommandCreateQP, q.n, 0, c.AsBytes(), nil)
	if err == nil {
		i.SendCQ.attach(q)
		i.RecvCQ.attach(q)
		if err = d.add(q, func() { d.qps[q.n] = q }); err == nil {
			err = q.Modify(ctx, QPAttr{State: StateInit, Access: RemoteWrite | RemoteRead | RemoteAtomic}, AttrState|AttrAccess|AttrPKeyIndex)
			if err != nil {
				keep = true // Close gives it back
				if e := q.Close(); e != nil {
					err = errors.Join(err, e)
				}
			}
			return err
		}
		i.SendCQ.detach(q)
		i.RecvCQ.detach(q)
	}
	var refused *CommandError
	keep = !errors.As(err, &refused)
	d.mu.Lock()
	q.unuse()
	d.mu.Unlock()
	return err
}

// unuse takes the queue pair off what it uses. The caller holds d.mu.
func (q *QP) unuse() {
	delete(q.pd.users, q)
	delete(q.init.SendCQ.users, q)
	delete(q.init.RecvCQ.users, q)
}

// Number is the queue pair's number.
func (q *QP) Number() uint32 { return q.n }

// QPCaps is what a queue pair was given.
type QPCaps struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
}

// Caps is what was given: as asked for.
func (q *QP) Caps() QPCaps {
	return QPCaps{q.init.MaxSendWR, q.init.MaxRecvWR, q.init.MaxSendSGE, q.init.MaxRecvSGE, q.init.MaxInline}
}

func (q *QP) name() string { return fmt.Sprintf("QP %#x", q.n) }

func (q *QP) fail(op string, err error) error { return q.pd.d.fail(op, q.name(), err) }

// setState notes the state and what can be posted in it. The caller holds ctl,
// or nobody else has the queue pair yet.
func (q *QP) setState(s QPState) {
	q.state = s
	var send, recv error
	if s != StateRTS && s != StateSQD && s != StateErr && s != StateSQE {
		send = q.fail("post send", fmt.Errorf("it is in %v: %w", s, ErrState))
	}
	if s == StateReset {
		recv = q.fail("post receive", fmt.Errorf("it is in %v: %w", s, ErrState))
	}
	if e := q.mismatch.Load(); e != nil {
		send, recv = q.fail("post send", e), q.fail("post receive", e)
	}
	q.bar(send, recv, false)
}

// bar sets why nothing can be posted. What was barred for good stays so.
func (q *QP) bar(send, recv error, forGood bool) {
	q.sqMu.Lock()
	if send == nil && q.unread.Load() {
		send = q.unreadable()
	}
	if forGood || !isGone(q.sendErr) {
		q.sendErr = send
	}
	q.sqMu.Unlock()
	q.rqMu.Lock()
	if forGood || !isGone(q.recvErr) {
		q.recvErr = recv
	}
	q.rqMu.Unlock()
}

// kill is part of Device.die.
func (q *QP) kill(cause error) {
	q.bar(q.fail("post send", cause), q.fail("post receive", cause), true)
}

// Close destroys the queue pair: work requests that are outstanding are given
// up, and its completions leave the completion queues. On a deadline (5 s) the
// card keeps it, nothing can be posted, and the call can be repeated. It is
// idempotent.
func (q *QP) Close() error {
	d := q.pd.d
	ctx, cancel := bound(context.Background())
	defer cancel()
	if err := q.ctl.lock(ctx); err != nil {
		return q.fail("close", err)
	}
	defer q.ctl.unlock()
	if q.closed {
		return nil
	}
	err := d.alive()
	if err == nil {
		q.kill(ErrClosed)
		err = d.command(ctx, hw.CommandDestroyQP, q.n, 0, nil, nil)
		if err != nil && !isGone(err) {
			return q.fail("close", err)
		}
	}
	d.settle() // while the ring is there
	q.closed = true
	q.kill(ErrClosed)
	q.init.SendCQ.detach(q)
	q.init.RecvCQ.detach(q)
	d.remove(q, func() {
		delete(d.qps, q.n)
		q.unuse()
	})
	d.settle() // nobody is comparing what it sent any more
	d.verify.forget(q.n)
	if err == nil { // else the card may hold on to them
		d.arena.Free(q.ring)
		d.doorbells.free(q.bell.page)
		d.qpns.free(q.n)
		if q.rate != 0 {
			d.rates.free(q.rate)
		}
	}
	return q.fail("close", err)
}

// forceClose is part of Device.Close.
func (q *QP) forceClose(cause error) { q.kill(cause) }
