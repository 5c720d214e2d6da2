package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"rnic/hw"
)

// Snapshot is the state of a device and its objects at a time, each object
// asked for one after the other.
type Snapshot struct {
	Time     time.Time
	PID      int // of the process that holds the card
	Attr     DeviceAttr
	Port     PortAttr
	QPs      []QPInfo
	CQs      []CQInfo
	EQs      []EQInfo
	Keys     []KeyInfo // as registered
	Counters []Counter

	Verification *VerifyStats // nil without WithVerify
}

// Counter is a counter of the card (block COUNTERS).
type Counter struct {
	Name  string
	Value uint64
}

// QPInfo is a queue pair.
type QPInfo struct {
	QPN            uint32
	Type           QPType
	PD             uint32
	SendCQ, RecvCQ uint32
	Attr           QPAttr
	Held           bool // by the rate limiter's gate
	Caps           QPCaps
	Posted         uint32 // sends posted so far, by this side's count
	SendBlocks     uint32 // ring, in blocks
	SQProducer     uint32 // in blocks, as the card saw it
	SQConsumer     uint32
	RQProducer     uint32
	RQConsumer     uint32
	LastAckedPSN   uint32
	MSN            uint32
	Stats          QPStats
}

// QPStats are the card's counters of a queue pair.
type QPStats struct {
	TxPackets, TxBytes, RxPackets, RxBytes uint64
	Messages                               uint64 // send work requests completed
	Lookups                                uint64 // key lookups of gathers
	PayloadReads                           uint64 // DMA reads of payload
	Gathers, GathersMulti                  uint64 // packets gathered; from more than one segment
	GateHolds, HeldLookups, HeldReads      uint64 // rule G15
	Retransmits, RNRNAKs                   uint64
	Duplicates, SequenceErrors             uint64
}

// CQInfo is a completion queue.
type CQInfo struct {
	CQN                uint32
	Entries            int
	Vector             int
	Producer, Consumer uint32 // as the card sees them
	Users              int    // queues that complete there
	Overflowed         bool
	Armed              uint64 // how often
	Bogus              uint64 // entries that fitted no work request
}

// EQInfo is an event queue.
type EQInfo struct {
	EQN, Vector        int
	Entries            int
	Producer, Consumer uint32
	Lost               uint64 // events that found it full
	CQs                int
}

// Inspector is what shows a card: a *Device, or a client of a holder's status
// socket (package driver/status).
type Inspector interface {
	Snapshot(ctx context.Context) (*Snapshot, error)
	Registers(ctx context.Context) ([]RegisterValue, error)
	Scrub(ctx context.Context) (ScrubReport, error)
	Trace(ctx context.Context, o TraceOptions) (Stream[TraceRecord], error)
	Capture(ctx context.Context, o CaptureOptions) (Stream[CaptureFrame], error)
}

var _ Inspector = (*Device)(nil)

// Stream gives records as they come.
type Stream[T any] interface {
	// Next waits for a record until the context or the device ends. After
	// the count that was asked for it is io.EOF.
	Next(ctx context.Context) (T, error)
	// Close ends the stream.
	Close() error
}

// Counters reads the card's counters.
func (d *Device) Counters(ctx context.Context) ([]Counter, error) {
	var all []Counter
	for i := range hw.Registers {
		g := &hw.Registers[i]
		if g.Block != "COUNTERS" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, d.fail("read counters", g.Name, &DeadlineError{Waited: "the counters", Cause: err})
		}
		v, err := d.loadRegister(g, 0)
		if err != nil {
			return nil, d.fail("read counters", g.Name, err)
		}
		all = append(all, Counter{g.Name, v})
	}
	return all, nil
}

// Registers reads every register of the contract that can be read; those that
// are write-only have the value 0. Reading changes nothing on the card.
func (d *Device) Registers(ctx context.Context) ([]RegisterValue, error) {
	var all []RegisterValue
	for i := range hw.Registers {
		g := &hw.Registers[i]
		if g.BAR != hw.BARCtrl || g.Block == "DEBUG" && d.attr.Capabilities&hw.CapabilityDebug == 0 {
			continue
		}
		for n := range max(g.Count, 1) {
			if err := ctx.Err(); err != nil {
				return nil, d.fail("read registers", g.FullName(), &DeadlineError{Waited: "the registers", Cause: err})
			}
			v, err := d.loadRegister(g, n)
			if err != nil {
				return nil, d.fail("read registers", g.FullName(), err)
			}
			all = append(all, decodeRegister(g, n, v))
		}
	}
	return all, nil
}

// Snapshot asks the card about everything. An object that goes away meanwhile
// is left out.
func (d *Device) Snapshot(ctx context.Context) (*Snapshot, error) {
	const op = "take snapshot"
	if err := d.alive(); err != nil {
		return nil, d.fail(op, "", err)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	s := &Snapshot{Time: time.Now(), PID: pid, Attr: d.attr, Port: d.Port()}
	d.mu.Lock()
	cqs, qps := d.children()
	for i, m := range d.mrs {
		e := m.entry()
		s.Keys = append(s.Keys, keyInfo(i, &e))
	}
	d.mu.Unlock()
	slices.SortFunc(cqs, func(a, b *CQ) int { return cmp.Compare(a.n, b.n) })
	slices.SortFunc(qps, func(a, b *QP) int { return cmp.Compare(a.n, b.n) })
	slices.SortFunc(s.Keys, func(a, b KeyInfo) int { return cmp.Compare(a.Key, b.Key) })
	for _, q := range qps {
		c, st, err := q.query(ctx)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, d.fail(op, q.name(), err)
		}
		s.QPs = append(s.QPs, q.info(&c, &st))
	}
	for _, c := range cqs {
		i, err := c.info(ctx)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, d.fail(op, c.name(), err)
		}
		s.CQs = append(s.CQs, i)
	}
	for _, v := range d.vectors {
		i, ok, err := v.info(ctx)
		if err != nil {
			return nil, d.fail(op, fmt.Sprintf("EQ %d", v.n), err)
		}
		if ok {
			s.EQs = append(s.EQs, i)
		}
	}
	var err error
	if s.Counters, err = d.Counters(ctx); err != nil {
		return nil, err
	}
	if d.verify != nil {
		v := d.Verification()
		s.Verification = &v
	}
	return s, nil
}

func (q *QP) info(c *hw.QPContext, s *hw.QPStats) QPInfo {
	q.sqMu.Lock()
	posted := q.sendNext
	q.sqMu.Unlock()
	return QPInfo{
		QPN: q.n, Type: c.Type, PD: c.PD, SendCQ: c.SendCQN, RecvCQ: c.RecvCQN, Attr: attrOf(c), Held: c.Held != 0, Caps: q.Caps(),
		Posted: posted, SendBlocks: q.sq.Blocks(), SQProducer: c.SQProducer, SQConsumer: c.SQConsumer, RQProducer: c.RQProducer, RQConsumer: c.RQConsumer,
		LastAckedPSN: c.LastAckedPSN, MSN: c.MSN,
		Stats: QPStats{
			TxPackets: s.TXPackets, TxBytes: s.TXBytes, RxPackets: s.RXPackets, RxBytes: s.RXBytes, Messages: s.Messages, Lookups: s.Lookups,
			PayloadReads: s.PayloadReads, Gathers: s.Gathers, GathersMulti: s.GathersMulti, GateHolds: s.GateHolds, HeldLookups: s.HeldLookups,
			HeldReads: s.HeldReads, Retransmits: s.Retransmits, RNRNAKs: s.RNRNAKs, Duplicates: s.Duplicates, SequenceErrors: s.SequenceErrors,
		},
	}
}

func (c *CQ) info(ctx context.Context) (CQInfo, error) {
	var h hw.CQContext
	if err := c.d.command(ctx, hw.CommandQueryCQ, c.n, 0, nil, h.AsBytes()); err != nil {
		return CQInfo{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return CQInfo{
		CQN: c.n, Entries: c.Entries(), Vector: c.vector.n, Producer: h.Producer, Consumer: h.Consumer, Users: int(h.Users),
		Overflowed: h.Overflowed != 0, Armed: c.armed, Bogus: c.bogus,
	}, nil
}

func (v *vector) info(ctx context.Context) (EQInfo, bool, error) {
	v.mu.Lock()
	eq := v.eq
	v.mu.Unlock()
	if eq == nil {
		return EQInfo{}, false, nil
	}
	var h hw.EQContext
	if err := v.d.command(ctx, hw.CommandQueryEQ, uint32(v.n), 0, nil, h.AsBytes()); err != nil {
		return EQInfo{}, false, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return EQInfo{
		EQN: v.n, Vector: v.n, Entries: int(eq.Entries()), Producer: h.Producer, Consumer: eq.Consumer(), Lost: v.lost + uint64(h.Lost), CQs: v.users,
	}, true, nil
}
