package driver

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/queues"
	"rnic/vfio"
)

// The host gather: where the card's engine is off, or it has none, this driver's
// software walk gathers each packet of a SEND or WRITE that the card's gate lets
// through, into a staging slot, and answers with its bytes and cursor or with the
// fault. Keys are checked against this driver's own table.

const (
	gatherLogEntries = 6 // packets at a time
	stagingLogStride = 12
)

// hostGather is the driver's side of the card's rings.
type hostGather struct {
	d    *Device
	q    *queues.Gather
	mem  [3]vfio.Block // requests, replies, staging
	wake chan struct{}

	// Of run's goroutine.
	w       walker
	request hw.HostGatherRequest
	list    [hw.MaxSegments]hw.DataSegment
	segs    [hw.MaxSegments]gather.Segment
	lookups uint8
	cursor  gather.Cursor // as far as the bytes are read
	steps   []TraceRecord // of the walk under way, where a trace is wanted
}

// startHostGather gives the card the rings and begins to serve them.
func (d *Device) startHostGather(ctx context.Context) (err error) {
	if d.attr.Capabilities&hw.CapabilityHostGather == 0 {
		return fmt.Errorf("host gather: this card has no rings for it: %w", ErrNotSupported)
	}
	cache, err := gather.NewCache(gather.Geometry{Sets: d.attr.KeyCacheSets, Ways: d.attr.KeyCacheWays})
	if err != nil {
		return err
	}
	d.shadow.mu.Lock()
	d.shadow.cache = cache
	d.shadow.mu.Unlock()
	g := &hostGather{d: d, wake: make(chan struct{}, 1), w: walker{s: &d.shadow, cache: cache}}
	const n = 1 << gatherLogEntries
	for i, size := range []int{n * queues.GatherSlot, n * hw.HostGatherReplySize, n << stagingLogStride} {
		if g.mem[i], err = d.alloc(size, 4096); err != nil {
			return err
		}
	}
	ci, err := d.word(hw.DomainGatherCI)
	if err != nil {
		return err
	}
	pi, err := d.word(hw.DomainGatherReplyPI)
	if err != nil {
		return err
	}
	if g.q, err = queues.NewGather(g.mem[0].Bytes, g.mem[1].Bytes, ci, pi, &d.domain); err != nil {
		return err
	}
	c := hw.HostGatherContext{
		RequestIOVA: g.mem[0].IOVA, ReplyIOVA: g.mem[1].IOVA, StagingIOVA: g.mem[2].IOVA,
		StagingLogStride: stagingLogStride, LogEntries: gatherLogEntries, Vector: 0,
	}
	if err := d.command(ctx, hw.CommandSetHostGather, 0, 0, c.AsBytes(), nil); err != nil {
		return err
	}
	d.host.Store(g)
	d.wg.Add(1)
	go g.run()
	return nil
}

// Gather says who gathers: Host by WithGather(Host), or because the card has no
// engine.
func (d *Device) Gather() GatherMode {
	if d.host.Load() != nil {
		return Host
	}
	return Card
}

// notify is the interrupt of vector 0, which the requests share with the replies
// of commands.
func (g *hostGather) notify() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run answers requests: it looks at the ring for a little while after each, then
// sleeps until the interrupt.
func (g *hostGather) run() {
	d := g.d
	defer d.wg.Done()
	for {
		var start time.Time
		for looks := 0; ; looks++ {
			select {
			case <-d.stop:
				return
			case <-d.gone:
				return
			default:
			}
			if g.serve() {
				looks, start = 0, time.Time{}
				continue
			}
			if looks < spinLooks {
				continue
			}
			if now := time.Now(); start.IsZero() {
				start = now
			} else if now.Sub(start) > idleTime {
				break
			}
			runtime.Gosched()
		}
		select {
		case <-g.wake:
		case <-d.stop:
			return
		case <-d.gone:
			return
		}
	}
}

// serve answers the oldest request, if there is one.
func (g *hostGather) serve() bool {
	list, ok := g.q.Next(&g.request, &g.list)
	if !ok {
		return false
	}
	r := hw.HostGatherReply{Token: g.request.Token}
	g.walk(&r, list)
	g.q.Reply(&r)
	return true
}

// walk gathers the packet of the request. What the request says is the card's
// word: the queue pair and its protection domain are looked up here, and the
// staging slot must be one.
func (g *hostGather) walk(r *hw.HostGatherReply, list []hw.DataSegment) {
	x := &g.request
	d := g.d
	d.mu.Lock()
	q := d.qps[x.QPN]
	d.mu.Unlock()
	if q == nil || q.pd.n != x.PD || int(x.Segments) != len(list) || x.Slot >= 1<<gatherLogEntries || x.Bytes > 1<<stagingLogStride || x.Bytes > x.CursorLeft {
		r.Reason = hw.ReasonHostGather
		return
	}
	segs := g.segs[:len(list)]
	for i := range list {
		segs[i] = gather.Segment{Addr: list[i].Addr, Length: list[i].Length, Key: list[i].LKey}
	}
	var tr gather.Tracer
	if g.steps = g.steps[:0]; d.trace.wants(x.QPN) {
		tr = g
	}
	at := gather.Cursor{Segment: int(x.CursorSegment), Offset: x.CursorOffset, Left: x.CursorLeft}
	who := gather.Who{PD: q.pd.n, QPN: q.n, Access: gather.LocalRead}
	g.lookups, g.cursor = 0, at
	d.shadow.mu.Lock()
	n, fault, ok := gather.Packet(g, &g.w, tr, segs, who, &at, x.Bytes, g.mem[2].Bytes[int(x.Slot)<<stagingLogStride:][:x.Bytes])
	d.shadow.mu.Unlock()
	if tr != nil {
		d.insertSteps(x.QPN, x.WQEIndex, x.Packet, g.steps)
	}
	r.Lookups = g.lookups
	if !ok {
		r.Reason, r.FaultSegment, r.FaultKey, r.FaultOffset = fault.Reason, uint8(fault.Segment), fault.Key, fault.Offset
		return
	}
	r.Bytes = uint32(n)
	r.CursorSegment, r.CursorOffset, r.CursorLeft = uint8(at.Segment), at.Offset, at.Left
}

// Translate counts the lookups of the walker.
func (g *hostGather) Translate(key uint32, who gather.Who, addr uint64, n uint32) (iova uint64, hit bool, r hw.Reason) {
	g.lookups++
	return g.w.Translate(key, who, addr, n)
}

// Lookup and Read make g the walk's gather.Tracer: the card's trace lacks the
// steps that are taken here.
func (g *hostGather) Lookup(seg int, off, n uint32, hit bool, r hw.Reason) {
	s := TraceRecord{Kind: hw.TraceKindLookup, Lookup: hw.LookupMiss, Segment: seg, Offset: off, Bytes: n, Key: g.segs[seg].Key, Reason: r}
	if hit {
		s.Lookup = hw.LookupHit
	}
	g.step(&s)
}

// Read is of gather.Tracer.
func (g *hostGather) Read(seg int, off, n uint32, r hw.Reason) {
	if r != hw.ReasonNone {
		return // the card's FAULT record names it
	}
	at := gather.Cursor{Segment: seg, Offset: off + n, Left: g.cursor.Left - n}
	for at.Segment < int(g.request.Segments) && at.Offset == g.segs[at.Segment].Length {
		at.Segment, at.Offset = at.Segment+1, 0
	}
	g.cursor = at
	g.step(&TraceRecord{Kind: hw.TraceKindRead, Segment: seg, Offset: off, Bytes: n, Key: g.segs[seg].Key})
}

func (g *hostGather) step(s *TraceRecord) {
	s.Cursor.Segment, s.Cursor.Offset, s.Cursor.Left = g.cursor.Segment, g.cursor.Offset, g.cursor.Left
	g.steps = append(g.steps, *s)
}
