package driver

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// TraceOptions say what a trace stream gives.
type TraceOptions struct {
	QPN   uint32 // of this QP only; 0: of all
	Count int    // the stream ends after so many; 0: it does not end by itself
	// Entries is for how many records the card's ring and the stream shall have room, rounded up to a power of
	// two of at most 2^20. 0: 2^13. A ring that runs for others stays as it is.
	Entries int
}

// CaptureOptions say what a capture stream gives.
type CaptureOptions struct {
	QPN   uint32 // of this QP only; 0: of all, and frames of no QP
	Count int
	// Entries is for how many frames the card's ring shall have room, rounded up to a power of two of at most
	// 2^14; each takes 8 KiB. 0: 2^10. A ring that runs for others stays as it is.
	Entries int
}

// TraceRecord is a step of a walk on the card (rule G22).
type TraceRecord struct {
	Time     uint64 // card time, ns
	QPN      uint32
	WQEIndex uint32 // of the work request; for a response, the responder's READ count
	WRID     uint64 // of the work request, where HasWRID
	HasWRID  bool
	Kind     hw.TraceKind
	Opcode   Opcode
	Flags    hw.TraceFlag
	Packet   uint32 // of the message, from 0
	PSN      uint32
	Segment  int
	Offset   uint32 // in the segment
	Bytes    uint32 // by kind
	Key      uint32
	Lookup   hw.Lookup
	Reason   Reason
	Cursor   struct { // after the step
		Segment      int
		Offset, Left uint32
	}
	CRC  uint32 // HANDOVER: CRC-32 (IEEE) of the payload
	Lost uint32 // records that did not fit since the one before
}

// CaptureFrame is a frame that the card sent or received.
type CaptureFrame struct {
	Time      uint64 // card time, ns
	Direction hw.Direction
	Flags     hw.CaptureFlag
	QPN       uint32 // this card's QP, 0 where unknown
	Length    uint32 // on the wire, without FCS
	Data      []byte // the first bytes, all unless Flags says TRUNCATED
	Lost      uint32 // frames that did not fit since the one before
}

// Sizes of the rings, and of what a stream keeps for a slow reader.
const (
	traceEntries   = 1 << 13
	captureEntries = 1 << 10
	captureStride  = 13 // 8 KiB a slot
	streamRecords  = 1 << 14
	maxRecords     = 1 << 20
	maxFrames      = 1 << 14
)

// ring is a ring of records of the card.
type recordRing[T any] interface {
	next() (T, bool)
	publish()
}

// recorder shares a ring of the card among streams.
type recorder[T any] struct {
	d     *Device
	start func(ctx context.Context, entries int, all bool, qpn uint32, sample int) (recordRing[T], error) // starts the ring anew
	stop  func(ctx context.Context) error
	fill  func(r *T)                            // what only readers want; may be nil
	of    func(r *T) (qpn uint32, lost *uint32) // the record's QP and count of lost ones

	ctl ctlLock // for start and stop

	mu      sync.Mutex
	ring    recordRing[T] // nil while nobody wants it
	all     bool          // what the ring is started for
	qpn     uint32
	sample  int // one gathered packet in so many; 0 and 1: all, and everything else
	streams []*stream[T]

	// The driver's own reader, which has the ring run also without streams.
	tap                   func(*T)
	tapEntries, tapSample int
}

// stream is one reader of a recorder.
type stream[T any] struct {
	r    *recorder[T]
	qpn  uint32
	left int // records until the end, -1: no end
	room int // records that are kept for a slow reader

	// Under r.mu.
	buf    []T
	lost   uint32 // that this reader was too slow for
	closed bool
}

// open makes a stream and has the ring record what it wants. entries is the room of a ring that is started for it.
func (r *recorder[T]) open(ctx context.Context, qpn uint32, count, entries int) (*stream[T], error) {
	if count < 0 || qpn >= 1<<24 || entries < 1 || entries > maxRecords {
		return nil, fmt.Errorf("count %d, QP %#x, %d entries: %w", count, qpn, entries, ErrInvalid)
	}
	if err := r.ctl.lock(ctx); err != nil {
		return nil, err
	}
	defer r.ctl.unlock()
	if err := r.d.alive(); err != nil {
		return nil, err
	}
	s := &stream[T]{r: r, qpn: qpn, left: count, room: max(streamRecords, entries)}
	if count == 0 {
		s.left = -1
	}
	r.mu.Lock()
	running, enough := r.ring != nil, r.ring != nil && r.sample <= 1 && (r.all || qpn != 0 && qpn == r.qpn)
	all := qpn == 0 || running
	entries = max(entries, r.tapEntries)
	r.mu.Unlock()
	if !enough {
		if err := r.restart(ctx, entries, all, qpn, 1); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	r.pump()
	r.streams = append(r.streams, s)
	r.mu.Unlock()
	return s, nil
}

// restart has the ring record something else. What it has so far goes to those who
// are there. The caller holds ctl.
func (r *recorder[T]) restart(ctx context.Context, entries int, all bool, qpn uint32, sample int) error {
	r.mu.Lock()
	running := r.ring != nil
	r.mu.Unlock()
	if running {
		if err := r.stop(ctx); err != nil {
			return err
		}
		r.mu.Lock()
		r.pump()
		r.ring = nil
		r.mu.Unlock()
	}
	ring, err := r.start(ctx, entries, all, qpn, sample)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.ring, r.all, r.qpn, r.sample = ring, all, qpn, sample
	r.mu.Unlock()
	return nil
}

// pump hands the ring's records to the streams, and reports whether there were any.
// The caller holds mu.
func (r *recorder[T]) pump() (took bool) {
	if r.ring == nil {
		return false
	}
	for n := 0; n < 1<<16; n++ { // a card that writes for ever keeps nobody here
		v, ok := r.ring.next()
		if !ok {
			break
		}
		took = true
		r.hand(v)
	}
	if took {
		r.ring.publish()
	}
	return took
}

// hand gives a record to the streams that want it. The caller holds mu.
func (r *recorder[T]) hand(v T) {
	if r.tap != nil {
		r.tap(&v)
	}
	if r.fill != nil && len(r.streams) > 0 {
		r.fill(&v)
	}
	qpn, lost := r.of(&v)
	before := *lost
	for _, s := range r.streams {
		if s.qpn != 0 && s.qpn != qpn {
			continue
		}
		if len(s.buf) < s.room {
			*lost = before + s.lost
			s.buf, s.lost = append(s.buf, v), 0
		} else {
			s.lost += 1 + before
		}
	}
}

// wants reports whether the ring records what a queue pair does.
func (r *recorder[T]) wants(qpn uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring != nil && (r.all || r.qpn == qpn)
}

// close forgets the ring; the device is closed.
func (r *recorder[T]) close() {
	r.mu.Lock()
	r.ring, r.streams, r.tap = nil, nil, nil
	r.mu.Unlock()
}

// Next is of Stream.
func (s *stream[T]) Next(ctx context.Context) (v T, err error) {
	const op = "read records"
	r := s.r
	for wait := 20 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		r.mu.Lock()
		if s.left == 0 {
			r.mu.Unlock()
			return v, io.EOF
		}
		r.pump()
		if len(s.buf) > 0 {
			v = s.buf[0]
			if s.buf = s.buf[1:]; len(s.buf) == 0 {
				s.buf = nil
			}
			if s.left > 0 {
				s.left--
			}
			r.mu.Unlock()
			return v, nil
		}
		closed := s.closed
		r.mu.Unlock()
		if closed {
			return v, r.d.fail(op, "", ErrClosed)
		}
		if err := r.d.alive(); err != nil {
			return v, r.d.fail(op, "", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return v, r.d.fail(op, "", &DeadlineError{Waited: "a record", Cause: context.Cause(ctx)})
		case <-r.d.gone:
			t.Stop()
		}
	}
}

// Close is of Stream. With the last stream the card stops recording.
func (s *stream[T]) Close() error {
	const op = "close stream"
	r := s.r
	ctx, cancel := bound(context.Background())
	defer cancel()
	if err := r.ctl.lock(ctx); err != nil {
		return r.d.fail(op, "", err)
	}
	defer r.ctl.unlock()
	r.mu.Lock()
	s.closed = true
	s.buf = nil
	if i := slices.Index(r.streams, s); i >= 0 {
		r.streams = slices.Delete(r.streams, i, i+1)
	}
	last := len(r.streams) == 0 && r.ring != nil
	tapped := r.tap != nil
	if last && !tapped {
		r.ring = nil
	}
	r.mu.Unlock()
	if !last || r.d.alive() != nil {
		return nil
	}
	if tapped {
		if r.tapSample <= 1 {
			return nil
		}
		return r.d.fail(op, "", r.restart(ctx, r.tapEntries, true, 0, r.tapSample))
	}
	return r.d.fail(op, "", r.stop(ctx))
}

// startRing gives the card a ring for a SET command, from memory that is kept
// for the next time.
func (d *Device) startRing(ctx context.Context, op hw.Command, mem *vfio.Block, size int, entries int, stride uint8, all bool, qpn uint32, sample int) error {
	if len(mem.Bytes) < size {
		if mem.Bytes != nil {
			d.arena.Free(*mem)
			*mem = vfio.Block{}
		}
		b, err := d.alloc(size, 4096)
		if err != nil {
			return err
		}
		*mem = b
	}
	clear(mem.Bytes)
	c := hw.RingContext{IOVA: mem.IOVA, LogEntries: logOf(entries), LogStride: stride, QPN: qpn, Sample: uint32(sample)}
	if all {
		c.All, c.QPN = 1, 0
	}
	return d.command(ctx, op, 0, 0, c.AsBytes(), nil)
}

func (d *Device) stopRing(op hw.Command) func(context.Context) error {
	return func(ctx context.Context) error {
		var c hw.RingContext
		return d.command(ctx, op, 0, 0, c.AsBytes(), nil)
	}
}

// initRecorders prepares the trace and capture rings.
func (d *Device) initRecorders() {
	var traceMem, captureMem vfio.Block
	d.trace = recorder[TraceRecord]{
		d: d, ctl: newCtlLock(), fill: d.fillWRID, of: func(r *TraceRecord) (uint32, *uint32) { return r.QPN, &r.Lost }, stop: d.stopRing(hw.CommandSetTrace),
		start: func(ctx context.Context, entries int, all bool, qpn uint32, sample int) (recordRing[TraceRecord], error) {
			word, err := d.word(hw.DomainTraceCI)
			if err != nil {
				return nil, err
			}
			if err := d.startRing(ctx, hw.CommandSetTrace, &traceMem, entries*hw.TraceRecordSize, entries, 6, all, qpn, sample); err != nil {
				return nil, err
			}
			q, err := queues.NewTrace(traceMem.Bytes[:entries*hw.TraceRecordSize], word)
			return &traceRing{d: d, q: q, packets: map[uint32]hostedPacket{}}, err
		},
	}
	d.capture = recorder[CaptureFrame]{
		d: d, ctl: newCtlLock(), of: func(r *CaptureFrame) (uint32, *uint32) { return r.QPN, &r.Lost }, stop: d.stopRing(hw.CommandSetCapture),
		start: func(ctx context.Context, entries int, all bool, qpn uint32, sample int) (recordRing[CaptureFrame], error) {
			word, err := d.word(hw.DomainCaptureCI)
			if err != nil {
				return nil, err
			}
			if err := d.startRing(ctx, hw.CommandSetCapture, &captureMem, entries<<captureStride, entries, captureStride, all, qpn, 0); err != nil {
				return nil, err
			}
			q, err := queues.NewCapture(captureMem.Bytes[:entries<<captureStride], captureStride, word)
			return &captureRing{q}, err
		},
	}
	d.initDMALog()
}

type traceRing struct {
	d *Device
	q *queues.Records[hw.TraceRecord]

	packets map[uint32]hostedPacket // the last PACKET of each queue pair, where the host gathers
}

// hostedPacket is a PACKET record, and whether steps of this driver follow it.
type hostedPacket struct {
	TraceRecord
	stepped bool
}

// insertSteps puts steps of a walk that this driver took into the trace, behind
// the card's PACKET record, which the card wrote before it asked for the packet.
func (d *Device) insertSteps(qpn, index, packet uint32, steps []TraceRecord) {
	r := &d.trace
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.ring.(*traceRing)
	if !ok {
		return
	}
	r.pump()
	p, ok := t.packets[qpn]
	if !ok || p.WQEIndex != index || p.Packet != packet {
		return // it did not fit, or the ring was started in between
	}
	if p.stepped {
		// The card gave an earlier asking for the packet up and has asked again: those
		// steps were of that one, and the walk begins anew.
		r.hand(p.TraceRecord)
	}
	p.stepped = true
	t.packets[qpn] = p
	for _, s := range steps {
		s.Time, s.QPN, s.WQEIndex = p.Time, qpn, index
		s.Opcode, s.Flags, s.Packet, s.PSN = p.Opcode, p.Flags, packet, p.PSN
		r.hand(s)
	}
}

func (t *traceRing) publish() { t.q.Publish() }

func (t *traceRing) next() (r TraceRecord, ok bool) {
	var h hw.TraceRecord
	if !t.q.Next(&h) {
		return r, false
	}
	r = TraceRecord{
		Time: h.Time, QPN: h.QPN, WQEIndex: h.WQEIndex, Kind: h.Kind, Opcode: Opcode(h.Opcode), Flags: h.Flags, Packet: h.Packet, PSN: h.PSN,
		Segment: int(h.Segment), Offset: h.Offset, Bytes: h.Bytes, Key: h.Key, Lookup: h.Lookup, Reason: h.Reason, CRC: h.CRC, Lost: h.Lost,
	}
	r.Cursor.Segment, r.Cursor.Offset, r.Cursor.Left = int(h.CursorSegment), h.CursorOffset, h.CursorLeft
	if r.Kind == hw.TraceKindPacket && r.Flags&hw.TraceFlagResponse == 0 && t.d.host.Load() != nil {
		t.packets[r.QPN] = hostedPacket{TraceRecord: r}
	}
	return r, true
}

// fillWRID adds the ID of the work request to a record of a requester.
func (d *Device) fillWRID(r *TraceRecord) {
	if r.Flags&hw.TraceFlagResponse == 0 {
		r.WRID, r.HasWRID = d.wrid(r.QPN, r.WQEIndex)
	}
}

// wrid is the ID of the send work request at that index of a queue pair, while
// its place was not used again.
func (d *Device) wrid(qpn, index uint32) (uint64, bool) {
	d.mu.Lock()
	q := d.qps[qpn]
	d.mu.Unlock()
	if q == nil {
		return 0, false
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	r := q.sends[index&q.sendMask]
	return r.wrid, r.index == index && r.blocks != 0
}

type captureRing struct{ q *queues.Capture }

func (c *captureRing) publish() { c.q.Publish() }

func (c *captureRing) next() (f CaptureFrame, ok bool) {
	var h hw.CaptureRecord
	b, ok := c.q.Peek(&h)
	if !ok {
		return f, false
	}
	f = CaptureFrame{Time: h.Time, Direction: h.Direction, Flags: h.Flags, QPN: h.QPN, Length: h.Length, Data: append([]byte(nil), b...), Lost: h.Lost}
	c.q.Pop()
	return f, true
}

// Trace has the card report the steps of its walks (rule G22) from now on.
// Records that a reader does not take in time are dropped and counted. Close
// the stream.
func (d *Device) Trace(ctx context.Context, o TraceOptions) (Stream[TraceRecord], error) {
	const op = "start trace"
	ctx, cancel := bound(ctx)
	defer cancel()
	if d.attr.Capabilities&hw.CapabilityTrace == 0 {
		return nil, d.fail(op, "", ErrNotSupported)
	}
	entries := traceEntries
	for entries < o.Entries && entries <= maxRecords {
		entries *= 2
	}
	s, err := d.trace.open(ctx, o.QPN, o.Count, entries)
	if err != nil {
		return nil, d.fail(op, "", err)
	}
	return s, nil
}

// Capture has the card report every frame that it sends or receives from now
// on, under the rules of Trace.
func (d *Device) Capture(ctx context.Context, o CaptureOptions) (Stream[CaptureFrame], error) {
	const op = "start capture"
	ctx, cancel := bound(ctx)
	defer cancel()
	if d.attr.Capabilities&hw.CapabilityCapture == 0 {
		return nil, d.fail(op, "", ErrNotSupported)
	}
	entries := captureEntries
	switch {
	case o.Entries < 0 || o.Entries > maxFrames:
		return nil, d.fail(op, "", fmt.Errorf("a ring of %d frames, at most %d: %w", o.Entries, maxFrames, ErrInvalid))
	case o.Entries != 0:
		entries = roundUp(max(o.Entries, 2))
	}
	s, err := d.capture.open(ctx, o.QPN, o.Count, entries)
	if err != nil {
		return nil, d.fail(op, "", err)
	}
	return s, nil
}
