package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rnic/hw"
)

// VLAN is an 802.1Q tag.
type VLAN struct {
	Valid bool   // frames carry it
	VID   uint16 // VLAN identifier, 12 bits
	PCP   uint8  // priority, 3 bits
}

// AddressVector is the way to a peer.
type AddressVector struct {
	DGID          GID
	DMAC          MAC
	VLAN          VLAN
	FlowLabel     uint32 // 20 bits; selects the UDP source port
	UDPSourcePort uint16 // 0: derived from the flow label and the QP numbers
	SGIDIndex     uint8  // of this side's GID in the port's table
	HopLimit      uint8  // 0: 64
	TrafficClass  uint8  // IPv4 TOS, IPv6 traffic class
}

func (a *AddressVector) context() hw.AddressVector {
	v := hw.AddressVector{
		DGID: a.DGID, DMAC: a.DMAC, FlowLabel: a.FlowLabel, UDPSourcePort: a.UDPSourcePort, SGIDIndex: a.SGIDIndex, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
	}
	if a.VLAN.Valid {
		v.VLAN = uint16(hw.AddressVectorVLAN(0).WithVID(a.VLAN.VID).WithPCP(a.VLAN.PCP).WithVLANValid(true))
	}
	return v
}

func addressVector(v *hw.AddressVector) AddressVector {
	t := hw.AddressVectorVLAN(v.VLAN)
	return AddressVector{
		DGID: v.DGID, DMAC: v.DMAC, VLAN: VLAN{Valid: t.VLANValid(), VID: t.VID(), PCP: t.PCP()},
		FlowLabel: v.FlowLabel, UDPSourcePort: v.UDPSourcePort, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit, TrafficClass: v.TrafficClass,
	}
}

// QPAttr are the attributes of a queue pair, as struct ibv_qp_attr has them.
// Modify sets those that its mask names; Query gives all.
type QPAttr struct {
	State           QPState
	CurState        QPState // Modify: refused unless the queue pair is in it
	PathMTU         MTU
	Access          Access // what the peer may do
	PKeyIndex       uint16
	QKey            uint32
	DestQPN         uint32 // 24 bits
	SQPSN, RQPSN    uint32 // 24 bits: next to send, next expected
	AV              AddressVector
	Timeout         uint8 // local ACK timeout, 4.096 µs × 2^n, 0 to 31; 0: none
	RetryCnt        uint8 // 0 to 7
	RNRRetry        uint8 // 0 to 7; 7: without end
	MinRNRTimer     uint8 // code of the time that this side's RNR NAKs ask for, 0 to 31
	MaxRDAtomic     uint8 // READs and atomics in flight as requester
	MaxDestRDAtomic uint8 // as responder

	// Query only.
	Rate        uint64 // bytes/s, 0: not limited
	Burst       uint32 // bytes
	ErrorReason Reason // first cause of ERR
	ErrorKey    uint32 // its key
	ErrorSGE    int    // its segment, or -1
}

// check refuses values that are wider than their fields.
func (a *QPAttr) check(m QPAttrMask) error {
	bad := func(what string, v any) error { return fmt.Errorf("%s %v: %w", what, v, ErrInvalid) }
	switch {
	case !m.Valid():
		return bad("mask", m)
	case m&AttrRateLimit != 0:
		return fmt.Errorf("rate limit: use SetRate: %w", ErrNotSupported)
	case m&AttrState != 0 && !a.State.Valid():
		return bad("state", a.State)
	case m&AttrPathMTU != 0 && !a.PathMTU.Valid():
		return bad("path MTU", a.PathMTU)
	case m&AttrDestQPN != 0 && a.DestQPN >= 1<<24:
		return bad("destination QPN", a.DestQPN)
	case m&AttrSQPSN != 0 && a.SQPSN >= 1<<24:
		return bad("SQ PSN", a.SQPSN)
	case m&AttrRQPSN != 0 && a.RQPSN >= 1<<24:
		return bad("RQ PSN", a.RQPSN)
	case m&AttrTimeout != 0 && a.Timeout > 31:
		return bad("timeout", a.Timeout)
	case m&AttrRetryCnt != 0 && a.RetryCnt > 7:
		return bad("retry count", a.RetryCnt)
	case m&AttrRNRRetry != 0 && a.RNRRetry > 7:
		return bad("RNR retry count", a.RNRRetry)
	case m&AttrMinRNRTimer != 0 && a.MinRNRTimer > 31:
		return bad("RNR timer", a.MinRNRTimer)
	case m&AttrAV != 0 && (a.AV.FlowLabel >= 1<<20 || a.AV.VLAN.VID >= 1<<12 || a.AV.VLAN.PCP > 7):
		return bad("address vector", fmt.Sprintf("%+v", a.AV))
	case m&AttrAccess != 0 && a.Access&^anyAccess != 0:
		return bad("access", a.Access)
	}
	return nil
}

// Modify changes the attributes that the mask names, and with AttrState the
// state, in the transitions and with the attributes of the InfiniBand
// specification (volume 1, 11.2.4.2). The card checks them; what it refuses
// changes nothing. Going to RESET drops all work requests and the completions
// that are in the completion queues. errors.Is: ErrState for a transition
// that does not exist, ErrInvalid, ErrLimit, ErrNotSupported.
func (q *QP) Modify(ctx context.Context, a QPAttr, m QPAttrMask) error {
	const op = "modify"
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := a.check(m); err != nil {
		return q.fail(op, err)
	}
	if err := q.ctl.lock(ctx); err != nil {
		return q.fail(op, err)
	}
	defer q.ctl.unlock()
	return q.fail(op, q.modify(ctx, &a, m))
}

// modify is Modify. The caller holds ctl.
func (q *QP) modify(ctx context.Context, a *QPAttr, m QPAttrMask) error {
	d := q.pd.d
	if q.closed {
		return ErrClosed
	}
	if err := d.alive(); err != nil {
		return err
	}
	c := hw.QPContext{
		State: a.State, CurState: a.CurState, MTU: a.PathMTU, Access: a.Access, PKeyIndex: a.PKeyIndex, QKey: a.QKey, DestQPN: a.DestQPN,
		SQPSN: a.SQPSN, RQPSN: a.RQPSN, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, MinRNRTimer: a.MinRNRTimer,
		MaxRDAtomic: a.MaxRDAtomic, MaxDestRDAtomic: a.MaxDestRDAtomic, AV: a.AV.context(), RateIndex: uint16(q.rate),
	}
	old := q.state
	toReset := m&AttrState != 0 && a.State == StateReset
	if toReset {
		q.setState(StateReset) // nobody posts while the rings are emptied
	}
	err := d.command(ctx, hw.CommandModifyQP, q.n, uint32(m), c.AsBytes(), nil)
	if err != nil {
		if _, refused := err.(*CommandError); refused && toReset {
			q.setState(old)
		}
		return err
	}
	if m&AttrPathMTU != 0 {
		q.mtu.Store(uint32(a.PathMTU.Bytes()))
	}
	if toReset {
		q.pd.d.settle()           // what was sent is compared before the ring begins anew
		q.pd.d.vectors[0].drain() // events from before: the card wrote them before its reply
		q.mismatch.Store(nil)
		q.unread.Store(false)
		q.setState(StateReset)
		q.reset()
	} else if m&AttrState != 0 {
		q.setState(a.State)
	}
	return nil
}

// reset empties the queues of a queue pair that the card has put in RESET.
func (q *QP) reset() {
	s := q.init.SendCQ
	s.mu.Lock()
	if !s.closed {
		s.q.Purge(q.n)
	}
	s.forget(q)
	q.sqDone = 0
	s.mu.Unlock()
	r := q.init.RecvCQ
	r.mu.Lock()
	if !r.closed {
		r.q.Purge(q.n)
	}
	q.rqDone = 0
	r.mu.Unlock()
	q.sqMu.Lock()
	if !isGone(q.sendErr) {
		q.sq.Reset()
	}
	q.sendNext, q.sendDone = 0, 0
	clear(q.sends)
	q.sqMu.Unlock()
	q.rqMu.Lock()
	if !isGone(q.recvErr) {
		q.rq.Reset()
	}
	clear(q.recvs)
	q.rqMu.Unlock()
}

// query asks the card about the queue pair.
func (q *QP) query(ctx context.Context) (c hw.QPContext, s hw.QPStats, err error) {
	var out [hw.QPContextSize + hw.QPStatsSize]byte
	if err := q.pd.d.alive(); err != nil {
		return c, s, err
	}
	if err := q.pd.d.command(ctx, hw.CommandQueryQP, q.n, 0, nil, out[:]); err != nil {
		return c, s, err
	}
	copy(c.AsBytes(), out[:])
	copy(s.AsBytes(), out[hw.QPContextSize:])
	return c, s, nil
}

func attrOf(c *hw.QPContext) QPAttr {
	a := QPAttr{
		State: c.State, CurState: c.State, PathMTU: c.MTU, Access: c.Access, PKeyIndex: c.PKeyIndex, QKey: c.QKey, DestQPN: c.DestQPN,
		SQPSN: c.SQPSN, RQPSN: c.RQPSN, AV: addressVector(&c.AV), Timeout: c.Timeout, RetryCnt: c.RetryCnt, RNRRetry: c.RNRRetry,
		MinRNRTimer: c.MinRNRTimer, MaxRDAtomic: c.MaxRDAtomic, MaxDestRDAtomic: c.MaxDestRDAtomic,
		ErrorReason: c.ErrorReason, ErrorKey: c.ErrorKey, ErrorSGE: int(c.ErrorSegment),
	}
	if c.ErrorSegment == hw.NoSegment || c.ErrorReason == ReasonNone {
		a.ErrorSGE = -1
	}
	return a
}

// Query asks the card for the queue pair's attributes as they stand. errors.Is:
// ErrClosed once Close has begun, ErrDeviceGone.
func (q *QP) Query(ctx context.Context) (QPAttr, error) {
	const op = "query"
	ctx, cancel := bound(ctx)
	defer cancel()
	c, _, err := q.query(ctx)
	// Looked at after the answer: a number that was free again by then may have answered for another queue pair.
	q.sqMu.Lock()
	if errors.Is(q.sendErr, ErrClosed) {
		err = ErrClosed
	}
	q.sqMu.Unlock()
	if err != nil {
		return QPAttr{}, q.fail(op, err)
	}
	a := attrOf(&c)
	if c.RateIndex != 0 {
		var r hw.RateLimit
		if err := q.pd.d.command(ctx, hw.CommandQueryRate, uint32(c.RateIndex), 0, nil, r.AsBytes()); err != nil {
			return QPAttr{}, q.fail(op, err)
		}
		a.Rate, a.Burst = r.Rate, r.Burst
	}
	return a, nil
}

// SetRate holds the queue pair to so many bytes of whole frames a second, with
// bursts of so many bytes, which must hold one full packet (rules G15, G16);
// 0 lifts the limit. ACKs and READ responses are not held.
func (q *QP) SetRate(ctx context.Context, bytesPerSec uint64, burstBytes uint32) error {
	const op = "set rate"
	d := q.pd.d
	ctx, cancel := bound(ctx)
	defer cancel()
	if d.attr.Capabilities&hw.CapabilityRateLimit == 0 {
		return q.fail(op, ErrNotSupported)
	}
	if err := q.ctl.lock(ctx); err != nil {
		return q.fail(op, err)
	}
	defer q.ctl.unlock()
	if q.closed {
		return q.fail(op, ErrClosed)
	}
	if err := d.alive(); err != nil {
		return q.fail(op, err)
	}
	old, entry := q.rate, q.rate
	if bytesPerSec == 0 {
		entry = 0
	} else {
		if entry == 0 {
			n, err := d.rates.alloc()
			if err != nil {
				return q.fail(op, fmt.Errorf("rate-limit entries: %w", err))
			}
			entry = n
		}
		r := hw.RateLimit{Rate: bytesPerSec, Burst: burstBytes}
		if err := d.command(ctx, hw.CommandSetRate, entry, 0, r.AsBytes(), nil); err != nil {
			if entry != old {
				d.rates.free(entry)
			}
			return q.fail(op, err)
		}
	}
	if entry != old {
		c := hw.QPContext{RateIndex: uint16(entry)}
		if err := d.command(ctx, hw.CommandModifyQP, q.n, uint32(hw.QPAttrRateLimit), c.AsBytes(), nil); err != nil {
			if _, refused := err.(*CommandError); refused && entry != 0 {
				d.rates.free(entry)
			}
			return q.fail(op, err)
		}
		q.rate = entry
		if old != 0 {
			d.rates.free(old)
		}
	}
	return nil
}

// Drain brings the queue pair to ERR and waits until every work request that
// was posted has its completion in the completion queue, flushed ones
// included (ib_drain_qp of the kernel): after nil, the card uses none of their
// buffers. The completions wait to be polled.
func (q *QP) Drain(ctx context.Context) error {
	const op = "drain"
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := q.ctl.lock(ctx); err != nil {
		return q.fail(op, err)
	}
	defer q.ctl.unlock()
	if q.state == StateReset && !q.closed {
		return nil
	}
	if q.state != StateErr || q.closed {
		if err := q.modify(ctx, &QPAttr{State: StateErr}, AttrState); err != nil {
			return q.fail(op, err)
		}
	}
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		c, _, err := q.query(ctx)
		if err != nil {
			return q.fail(op, err)
		}
		if c.SQUnread != 0 {
			q.ringLost(c.SQUnreadFrom, 0)
		}
		q.sqMu.Lock()
		sends := q.sq.Producer() - c.SQConsumer
		q.sqMu.Unlock()
		q.rqMu.Lock()
		recvs := q.rq.Producer() - c.RQConsumer
		q.rqMu.Unlock()
		if sends == 0 && recvs == 0 {
			return nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return q.fail(op, &DeadlineError{Cause: context.Cause(ctx),
				Waited: fmt.Sprintf("%d blocks of sends and %d receives to be flushed", sends, recvs)})
		}
	}
}
