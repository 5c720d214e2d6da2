package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/hw/gather"
)

// Verification (rule G21): the card reports the walk of each sampled packet, with a
// CRC-32 of its payload (rule G22), and this driver does the walk again from the
// same inputs: the work request in the send ring, its own key table, the memory.
// What it finds, it finds before the completion of the work request is handed out:
// the card's reports are in memory before the completion is.

// ErrVerify is in the error of a queue pair whose gathers were not as the rules have
// them; errors.As gives the *VerifyError.
var ErrVerify = errors.New("the card's gather differs from the software walk")

// VerifyError says in what a packet that the card gathered differs from the software
// walk. The queue pair is frozen: it goes to ERR, and posting gives this error until
// the queue pair is reset or closed.
type VerifyError struct {
	QPN         uint32
	WRID        uint64 // of the work request, where HasWRID: a READ response has none
	HasWRID     bool
	WQEIndex    uint32
	Packet      uint32 // of the message, from 0
	Opcode      Opcode
	Response    bool // of a READ, as responder
	Differences []Difference
	Bundle      string // file by which the packet can be walked again; "" when it could not be written
}

// Error names the packet and what differs.
func (e *VerifyError) Error() string {
	var b strings.Builder
	what := "work request of unknown ID"
	switch {
	case e.Response:
		what = "READ response"
	case e.HasWRID:
		what = fmt.Sprintf("%v work request %#x", e.Opcode, e.WRID)
	}
	fmt.Fprintf(&b, "%v: QP %#x, %s, packet %d", ErrVerify, e.QPN, what, e.Packet)
	for i, d := range e.Differences {
		if i == 3 {
			fmt.Fprintf(&b, " and %d more", len(e.Differences)-i)
			break
		}
		b.WriteString([]string{": ", "; "}[min(i, 1)] + d.String())
	}
	if e.Bundle != "" {
		fmt.Fprintf(&b, " (rnicctl verify --replay %s)", e.Bundle)
	}
	return b.String()
}

// Is makes it ErrVerify.
func (e *VerifyError) Is(target error) bool { return target == ErrVerify }

// VerifyStats counts what verification did.
type VerifyStats struct {
	Packets    uint64 // walked again and compared
	Mismatches uint64
	Lost       uint64 // trace records that found no room: their packets were not compared
	Skipped    uint64 // packets not compared: their key came or went meanwhile, or a report was not whole
}

// verifier compares what the trace reports. It is used under the trace recorder's
// lock.
type verifier struct {
	d     *Device
	every int
	dir   string

	open  map[walkOf]*tracedPacket
	x     examiner
	e     exam
	raw   [hw.WQEMaxBlocks * hw.WQEBlock]byte
	list  [hw.MaxSegments]gather.Segment
	stats VerifyStats

	ackReq       uint32 // the card's ACK_REQ_INTERVAL
	ackReqMoving bool

	frozen []*QP         // that are to go to ERR
	wake   chan struct{} // there are some
}

// walkOf names one of the two walks that a queue pair may have under way: a request that
// the host gathers does not keep a READ response from being gathered meanwhile.
type walkOf struct {
	qpn      uint32
	response bool
}

// tracedPacket is a packet that the card is reporting.
type tracedPacket struct {
	begun bool
	begin TraceRecord
	steps []TraceRecord
}

// verifyEntries is the room of the trace ring for verification, in records: a
// packet takes 4 to 130.
const verifyEntries = 1 << 16

// pumpEvery is how often the trace ring is looked at while it fills. Whoever polls
// looks as well.
const pumpEvery = time.Millisecond

// startVerify begins to verify.
func (d *Device) startVerify(ctx context.Context, mode VerifyMode, dir string) error {
	if d.attr.Capabilities&hw.CapabilityTrace == 0 {
		return fmt.Errorf("verification: the card has no trace ring: %w", ErrNotSupported)
	}
	v := &verifier{d: d, every: mode.every, dir: dir, open: map[walkOf]*tracedPacket{}, wake: make(chan struct{}, 1)}
	v.x.w.s = &d.shadow
	r := &d.trace
	if err := r.ctl.lock(ctx); err != nil {
		return err
	}
	defer r.ctl.unlock()
	if err := r.restart(ctx, verifyEntries, true, 0, v.every); err != nil {
		return err
	}
	r.mu.Lock()
	r.tap, r.tapEntries, r.tapSample = v.take, verifyEntries, v.every
	r.mu.Unlock()
	d.verify = v
	d.wg.Add(1)
	go v.run()
	return nil
}

// Verification counts what WithVerify did so far; all zero without it.
func (d *Device) Verification() VerifyStats {
	if d.verify == nil {
		return VerifyStats{}
	}
	d.verify.catchUp()
	d.trace.mu.Lock()
	defer d.trace.mu.Unlock()
	return d.verify.stats
}

// setAckReq follows a change of the card's ACK_REQ_INTERVAL: between the two calls,
// packets of either may be reported.
func (v *verifier) setAckReq(n uint32, moving bool) {
	v.catchUp()
	v.d.trace.mu.Lock()
	v.ackReq, v.ackReqMoving = n, moving
	v.d.trace.mu.Unlock()
}

// catchUp compares all that the card has reported so far.
func (v *verifier) catchUp() {
	r := &v.d.trace
	r.mu.Lock()
	r.pump()
	r.mu.Unlock()
}

// run keeps the ring from filling up where nobody polls, and brings frozen queue
// pairs to ERR.
func (v *verifier) run() {
	d := v.d
	defer d.wg.Done()
	t := time.NewTimer(0)
	defer t.Stop()
	for wait := pumpEvery; ; {
		select {
		case <-d.stop:
			return
		case <-d.gone:
			return
		case <-v.wake:
			d.trace.mu.Lock()
			frozen := v.frozen
			v.frozen = nil
			d.trace.mu.Unlock()
			for _, q := range frozen {
				v.toError(q)
			}
			continue
		case <-t.C:
		}
		d.trace.mu.Lock()
		took := d.trace.pump()
		d.trace.mu.Unlock()
		if wait = min(2*wait, 8*pumpEvery); took {
			wait = pumpEvery
		}
		t.Reset(wait)
	}
}

func (v *verifier) toError(q *QP) {
	ctx, cancel := bound(context.Background())
	defer cancel()
	if q.ctl.lock(ctx) != nil {
		return
	}
	defer q.ctl.unlock()
	if q.mismatch.Load() == nil {
		return // it was reset meanwhile
	}
	if err := q.modify(ctx, &QPAttr{State: StateErr}, AttrState); err != nil && !isGone(err) {
		v.d.log.Warn("freeze QP", zap.Uint32("qpn", q.n), zap.Error(err))
	}
}

// take is the tap on the trace.
func (v *verifier) take(r *TraceRecord) {
	if r.Lost != 0 {
		v.stats.Lost += uint64(r.Lost)
		clear(v.open)
	}
	of := walkOf{r.QPN, r.Flags&hw.TraceFlagResponse != 0}
	p := v.open[of]
	if p == nil {
		p = &tracedPacket{}
		v.open[of] = p
	}
	same := p.begun && r.WQEIndex == p.begin.WQEIndex && r.Packet == p.begin.Packet
	switch r.Kind {
	case hw.TraceKindPacket:
		p.begun, p.begin, p.steps = true, *r, p.steps[:0]
	case hw.TraceKindLookup, hw.TraceKindRead:
		if !same || len(p.steps) > 2*hw.MaxSegments {
			v.stats.Skipped++
			p.begun = false
			return
		}
		p.steps = append(p.steps, *r)
	case hw.TraceKindHandover:
		if !same {
			v.stats.Skipped++
			return
		}
		p.begun = false
		v.examine(p, r, false)
	case hw.TraceKindFault:
		malformed := !same
		if p.begun = false; malformed {
			p.begin, p.steps = *r, p.steps[:0]
		}
		v.examine(p, r, malformed)
	}
}

// examine walks a packet again and freezes its queue pair if that differs.
func (v *verifier) examine(p *tracedPacket, end *TraceRecord, malformed bool) {
	d := v.d
	d.mu.Lock()
	q := d.qps[end.QPN]
	d.mu.Unlock()
	if q == nil || q.mismatch.Load() != nil || !v.inputs(q, p, malformed) {
		v.stats.Skipped++
		return
	}
	e, x := &v.e, &v.x
	d.shadow.mu.Lock()
	moving := d.shadow.moves(e.segs)
	if !moving {
		x.walk(e)
	}
	d.shadow.mu.Unlock()
	if moving || x.compare(e, &p.begin, p.steps, end) {
		v.stats.Skipped++
		return
	}
	if v.stats.Packets++; len(x.diffs) > 0 {
		v.stats.Mismatches++
		v.report(q, p, end)
	}
}

// inputs gathers what the software walk starts from, and is false where that is
// not known here.
func (v *verifier) inputs(q *QP, p *tracedPacket, malformed bool) bool {
	e := &v.e
	*e = exam{
		qpn: q.n, pd: q.pd.n, packet: p.begin.Packet, mtu: q.mtu.Load(), malformed: malformed, ackReq: v.ackReq, ackReqMoving: v.ackReqMoving,
	}
	if e.mtu == 0 {
		return false
	}
	if p.begin.Flags&hw.TraceFlagResponse != 0 {
		e.response, e.opcode = true, Read
		at := p.begin.Cursor
		va := uint64(p.begin.CRC)<<32 | uint64(p.begin.Offset)
		length := at.Left
		if at.Left != 0 {
			length += at.Offset
		}
		v.list[0] = gather.Segment{Addr: va, Length: length, Key: p.begin.Key}
		e.segs = v.list[:1]
		return !malformed
	}
	q.sqMu.Lock()
	r := q.sends[p.begin.WQEIndex&q.sendMask]
	known := r.index == p.begin.WQEIndex && r.blocks != 0
	if known {
		q.sq.Copy(r.index, uint32(r.blocks), v.raw[:])
	}
	q.sqMu.Unlock()
	if !known || !e.parse(v.raw[:uint32(r.blocks)*hw.WQEBlock], &v.list) {
		return false
	}
	switch e.opcode {
	case Send, SendImm, Write, WriteImm:
		return true
	}
	return false // a READ request or an atomic gathers nothing (G2)
}

// report freezes the queue pair of a packet that differs.
func (v *verifier) report(q *QP, p *tracedPacket, end *TraceRecord) {
	v.d.fillWRID(end)
	e := &VerifyError{
		QPN: q.n, WRID: end.WRID, HasWRID: end.HasWRID, WQEIndex: end.WQEIndex, Packet: end.Packet, Opcode: v.e.opcode, Response: v.e.response,
		Differences: append([]Difference(nil), v.x.diffs...),
	}
	file, err := v.writeBundle(p, end)
	if err != nil {
		v.d.log.Error("verification bundle", zap.Error(err))
	}
	e.Bundle = file
	if !q.mismatch.CompareAndSwap(nil, e) {
		return
	}
	v.d.log.Error("verification", zap.Error(e))
	q.bar(q.fail("post send", e), q.fail("post receive", e), false)
	v.d.events.push(Event{Type: EventVerify, Object: q.n, Reason: ReasonVerify, Info: end.Packet})
	v.frozen = append(v.frozen, q)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// VerifyError is why verification froze the queue pair, nil if it did not.
func (q *QP) VerifyError() *VerifyError { return q.mismatch.Load() }

// spoil makes the completion of a work request that verification found at fault an
// error, whatever the card says of it.
func (q *QP) spoil(wc *WC, index uint32) {
	m := q.mismatch.Load()
	if m == nil || m.Response || wc.Flags&WCRecv != 0 || m.WQEIndex != index {
		return
	}
	wc.Status, wc.Reason, wc.FaultSegment = StatusGeneralErr, ReasonVerify, -1
}

// forget drops what is known of a queue pair that was closed.
func (v *verifier) forget(qpn uint32) {
	if v == nil {
		return
	}
	v.d.trace.mu.Lock()
	delete(v.open, walkOf{qpn, false})
	delete(v.open, walkOf{qpn, true})
	v.d.trace.mu.Unlock()
}

// settle compares what the card has reported up to now: before what it refers to
// goes away.
func (d *Device) settle() {
	if v := d.verify; v != nil {
		v.catchUp()
	}
}
