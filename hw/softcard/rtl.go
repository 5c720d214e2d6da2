package softcard

import (
	"fmt"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
	"rnic/hw/rtl"
)

// rtlEngine puts the simulated transmit side of bitstream/rtl in the place of the
// walk and of TX Packet Build: lookups of payload with their own key cache, reads,
// headers, pad and ICRC. PSNs, QP contexts, the gate and everything received stay
// with the card; so do lookups that scatter, in the card's own cache. Each packet is
// a job of its own, and the card waits for it.
//
// A packet that WALK_FAULT spoils is walked in Go. READ_KEY_CACHE and FLIP_CACHE
// reach the card's own cache only.
type rtlEngine struct {
	c   *Card
	sim rtl.Simulator

	slots  [rtl.Contexts]rtlSlot
	cur    *rtlSlot      // the job that is waited for
	tracer gather.Tracer // of it, or nil
	fenced bool
	buf    [roce.MaxMTU]byte
	seen   [2]uint64 // counters of the simulation that are added to the card's
}

// rtlSlot is a context of the engine and the job that it has.
type rtlSlot struct {
	busy   bool
	q      *qp // nil: nobody waits for it any more
	psn    uint32
	cursor gather.Cursor
	done   bool
	result rtl.Result
	frame  []byte

	// A fill that HOLD_FILL holds back.
	held  bool
	index uint32
}

// plainContext sends what has no payload, and so never waits for a fill.
const plainContext = rtl.Contexts - 1

// rtlCycles bounds one packet. A read or fill is answered at once here.
const rtlCycles = 1 << 20

// What the simulated engine is: card.go states it in the limits.
const (
	rtlReadTags    = 256
	rtlReadRequest = 512
	rtlCacheSets   = 64
	rtlCacheWays   = 4
)

func newRTLEngine(c *Card) (*rtlEngine, error) {
	widths := rtl.Widths()
	if len(widths) == 0 {
		return nil, rtl.ErrNotBuilt
	}
	sim, err := rtl.Open(widths[len(widths)-1], c.cfg.Seed)
	if err != nil {
		return nil, err
	}
	return &rtlEngine{c: c, sim: sim}, nil
}

func (e *rtlEngine) reset() {
	e.sim.Reset()
	e.slots = [rtl.Contexts]rtlSlot{}
	e.seen = [2]uint64{}
}

// gather assembles the packet at the cursor and builds its frame: the whole of it,
// or nothing. Where a fill is held back the reason is reasonHeld, and the job goes on when
// the same packet is tried again.
func (e *rtlEngine) gather(q *qp, o *outgoing, at *gather.Cursor, f *frame, tr gather.Tracer) (n int, fault gather.Fault, ok bool) {
	s := e.slot(q, o.psn, *at)
	if s == nil {
		return 0, gather.Fault{Reason: reasonHeld}, false
	}
	if !s.busy {
		j := &rtl.Job{
			Trace: true, Kind: rtl.Send, Header: e.header(q), Transport: roce.RC, Solicited: e.c.qps.hdr.SE,
			Imm: o.opcode == hw.OpcodeSendWithImm || o.opcode == hw.OpcodeRDMAWriteWithImm,
			MTU: q.mtu, Packet: o.packet, Packets: 1, Cursor: *at,
			Who: gather.Who{PD: q.ctx.PD, QPN: q.number, Access: o.op.Access()},
		}
		switch o.op {
		case gather.Write:
			j.Kind = rtl.Write
		case gather.ReadResponse:
			j.Kind = rtl.ReadResponse
		}
		if o.flags&hw.TraceFlagInline != 0 {
			j.Inline, j.IsInline = o.inline, true
		} else {
			j.Segments = o.segs
		}
		if every := e.c.live.debug.ackReqInterval; every <= rtl.MaxAckEvery {
			j.AckEvery = every
		}
		j.Header.PSN = o.psn
		e.submit(s, q, j)
	}
	e.tracer, e.c.qps.walk.segs = tr, o.segs
	e.run(s, func() bool { return s.done || s.held })
	if !s.done {
		return 0, gather.Fault{Reason: reasonHeld}, false
	}
	s.busy = false
	if r := &s.result; r.Fault.Reason != hw.ReasonNone {
		return 0, r.Fault, false
	}
	n = int(min(q.mtu, at.Left))
	*at = s.result.Cursor
	e.place(q, s, f, n)
	return n, gather.Fault{}, true
}

// plain builds a frame without payload.
func (e *rtlEngine) plain(q *qp, f *frame) {
	s := &e.slots[plainContext]
	e.submit(s, q, &rtl.Job{Kind: rtl.Plain, Header: e.header(q), MTU: q.mtu})
	e.run(s, func() bool { return s.done })
	s.busy = false
	e.place(q, s, f, 0)
}

// header is all of the header that a frame of the QP is to have.
func (e *rtlEngine) header(q *qp) roce.Header {
	h, own := q.path, &e.c.qps.hdr
	h.Opcode, h.SE, h.AckReq, h.PSN, h.IPID = own.Opcode, own.SE, own.AckReq, own.PSN, own.IPID
	h.RETH, h.Atomic, h.AETH, h.AtomicAck, h.Imm = own.RETH, own.Atomic, own.AETH, own.AtomicAck, own.Imm
	return h
}

// slot is the one that has the packet already, or a free one, or nil.
func (e *rtlEngine) slot(q *qp, psn uint32, at gather.Cursor) (free *rtlSlot) {
	for i := range e.slots[:plainContext] {
		s := &e.slots[i]
		switch {
		case s.busy && s.q == q && s.psn == psn && s.cursor == at:
			return s
		case s.busy && s.q == q:
			s.q = nil // the QP has gone elsewhere
		}
		if s.busy && s.q == nil && s.done {
			s.busy = false
		}
		if !s.busy {
			free = s
		}
	}
	return free
}

func (e *rtlEngine) submit(s *rtlSlot, q *qp, j *rtl.Job) {
	j.Header.IPID = uint16(e.c.ipID)
	*s = rtlSlot{busy: true, q: q, psn: j.Header.PSN, cursor: j.Cursor, frame: s.frame[:0]}
	for i := range e.slots {
		if s == &e.slots[i] {
			e.sim.Submit(i, j)
		}
	}
}

// run runs the engine for the job of s.
func (e *rtlEngine) run(s *rtlSlot, done func() bool) {
	for i := range e.slots {
		if h := &e.slots[i]; h.held && e.c.regs.tests.holdFill.Load() == 0 {
			h.held = false
			e.fill(i, h.index)
		}
	}
	e.cur = s
	if !e.sim.Run(rtlCycles, e, done) {
		panic(fmt.Sprintf("softcard: the RTL engine has not ended a packet in %d cycles", rtlCycles))
	}
	for i, c := range []rtl.Counter{rtl.Evictions, rtl.FillsDiscarded} {
		n := e.sim.Count(c)
		e.c.count[[...]counter{cntKeyCacheEvictions, cntKeyFillsDiscarded}[i]] += n - e.seen[i]
		e.seen[i] = n
	}
}

// place puts the frame of a job into its slot of the wire, the payload where build has it.
func (e *rtlEngine) place(q *qp, s *rtlSlot, f *frame, n int) {
	h := e.header(q)
	want := h.FrameLen(n)
	if len(s.frame) != want {
		panic(fmt.Sprintf("softcard: the RTL engine has made a frame of %d bytes, want %d", len(s.frame), want))
	}
	f.start = headroom - h.Len()
	f.end = f.start + copy(f.buf[f.start:], s.frame)
	f.built = true
}

// fence invalidates a key index in the engine's cache, and waits for what used it (G11).
func (e *rtlEngine) fence(index uint32) {
	e.fenced = false
	e.sim.Fence(index)
	e.run(nil, func() bool { return e.fenced })
}

// What follows makes rtlEngine an rtl.Handler.

func (e *rtlEngine) Read(tag uint32, iova uint64, n uint32) {
	b := e.buf[:n]
	if e.c.payloadRead(iova, b, use{}) != hw.ReasonNone {
		e.sim.Fail(tag, iova, n)
		return
	}
	e.sim.Complete(tag, iova, b)
}

func (e *rtlEngine) Fill(context int, index uint32) {
	if e.c.regs.tests.holdFill.Load() != 0 {
		e.slots[context].held, e.slots[context].index = true, index
		return
	}
	e.fill(context, index)
}

func (e *rtlEngine) fill(context int, index uint32) {
	var entry hw.KeyEntry
	ok := e.c.keyIndexOK(index)
	if ok {
		entry = e.c.mem.entry(index)
	}
	e.sim.Entry(context, &entry, ok)
}

func (e *rtlEngine) Frame(context int, frame []byte) {
	s := &e.slots[context]
	s.frame = append(s.frame[:0], frame...)
}

func (e *rtlEngine) Result(context int, r rtl.Result) {
	s := &e.slots[context]
	s.result, s.done = r, true
}

// Trace counts the steps of the walk, and reports them where they are wanted (G22).
func (e *rtlEngine) Trace(context int, t rtl.Trace) {
	s := &e.slots[context]
	if s != e.cur || s.q == nil {
		return
	}
	w, q := &e.c.qps.walk, s.q
	switch t.Kind {
	case hw.TraceKindLookup:
		e.c.count[cntLookups]++
		q.stats.Lookups++
		if w.held {
			q.stats.HeldLookups++
		}
		if t.Hit {
			e.c.count[cntKeyCacheHits]++
		} else {
			e.c.count[cntKeyCacheMisses]++
		}
		if e.tracer != nil {
			e.tracer.Lookup(int(t.Segment), t.Offset, t.Bytes, t.Hit, t.Reason)
		}
	case hw.TraceKindFault:
		if t.Reason == hw.ReasonDMARead {
			e.read(q, w)
		}
	case hw.TraceKindRead:
		e.read(q, w)
		if e.c.live.debug.walkFault == hw.WalkFaultLookupSkipped { // the spoiled packet begins with this translation
			s := &w.segs[t.Segment]
			k := e.c.mem.entry(gather.IndexOf(s.Key))
			w.lastAddr = s.Addr + uint64(t.Offset)
			w.lastIOVA = k.IOVA + (w.lastAddr - k.Base)
		}
		if e.tracer != nil {
			e.tracer.Read(int(t.Segment), t.Offset, t.Bytes, hw.ReasonNone)
		}
	}
}

// read counts a piece that was read.
func (e *rtlEngine) read(q *qp, w *walk) {
	w.pieces++
	q.stats.PayloadReads++
	if w.held {
		q.stats.HeldReads++
	}
}

func (e *rtlEngine) Fenced(uint32) { e.fenced = true }
