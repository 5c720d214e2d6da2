package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/softcard"
)

// batchOf is how many requests go with one doorbell in the work "cycle".
const batchOf = 32

// A rig does the work of the twin with this module: n requests a round, of which it gives the ns of
// what is timed, and adds the WR IDs that it completed to sum as the twin does.
type rig interface {
	round(work string, sum *uint64) (uint64, error)
	close() error
}

// verbsRig is driver.QP.PostSend and driver.CQ.Poll.
type verbsRig struct {
	n    int
	card *idleCard
	d    *driver.Device
	cq   *driver.CQ
	qp   *driver.QP
	wr   driver.SendWR
	all  [batchOf]driver.SendWR
	wc   []driver.WC

	fake completer
	wqes []byte // the send ring, as the card sees it
}

// completer does the card's part: it writes completions.
type completer struct {
	ring   []hw.CQE
	log    int
	qpn    uint32
	next   uint32 // number of the next completion
	index  uint32 // block of its WQE
	blocks uint32 // of each WQE
}

func (f *completer) complete(n int) {
	for range n {
		e := &f.ring[f.next&uint32(len(f.ring)-1)]
		*e = hw.CQE{QPN: f.qpn, WQEIndex: f.index, FaultSegment: hw.NoSegment, Time: uint64(f.next), Owner: ^(f.next >> f.log) & 1}
		f.next++
		f.index += f.blocks
	}
}

// shapes of requests: so many SGEs, or 64 bytes inline.
const inlineBytes = 64

func shapeOf(shape string) (sges int, inline bool) {
	if shape == "inline" {
		return 0, true
	}
	sges, err := strconv.Atoi(shape)
	if err != nil {
		panic("shape " + shape)
	}
	return sges, false
}

// request is the twin's, field by field.
func request(shape string) (wr driver.SendWR) {
	n, inline := shapeOf(shape)
	wr = driver.SendWR{Opcode: driver.Send, Flags: driver.Signaled}
	if inline {
		b := make([]byte, inlineBytes)
		for i := range b {
			b[i] = byte(i * 7)
		}
		wr.Inline = [][]byte{b}
		return wr
	}
	for i := range n {
		wr.SGEs = append(wr.SGEs, driver.SGE{Addr: 0x1_0000_0000 + 4096*uint64(i), Length: uint32(64 + i), LKey: uint32(0x12345_00 + i)})
	}
	return wr
}

// wqeBlocks is how many 64-byte blocks a request of that shape takes.
func wqeBlocks(shape string) uint32 {
	n, inline := shapeOf(shape)
	if inline {
		n = inlineBytes / hw.WQESegment
	}
	return uint32(1+n+3) / 4
}

func newVerbsRig(ctx context.Context, shape string, n int) (*verbsRig, error) {
	sges, inline := shapeOf(shape)
	init := driver.QPInit{Type: driver.RC, MaxSendWR: n, MaxSendSGE: sges, MaxRecvWR: n, MaxRecvSGE: 1}
	if inline {
		init.MaxSendSGE, init.MaxInline = 1, inlineBytes
	}
	r := &verbsRig{n: n, wr: request(shape), wc: make([]driver.WC, n)}
	for i := range r.all {
		r.all[i] = request(shape)
	}
	wire, err := softcard.NewWire(0)
	if err != nil {
		return nil, err
	}
	var addr string
	if r.card, addr, err = newIdleCard(wire); err != nil {
		return nil, err
	}
	if r.d, err = driver.Open(ctx, addr, driver.WithStatusSocket("")); err != nil {
		return nil, errors.Join(err, r.card.close())
	}
	if err := r.prepare(ctx, init, shape); err != nil {
		return nil, errors.Join(err, r.d.Close(), r.card.close())
	}
	return r, nil
}

func (r *verbsRig) prepare(ctx context.Context, init driver.QPInit, shape string) error {
	pd, err := r.d.AllocPD(ctx)
	if err != nil {
		return err
	}
	if r.cq, err = r.d.CreateCQ(ctx, r.n); err != nil {
		return err
	}
	init.SendCQ, init.RecvCQ = r.cq, r.cq
	if r.qp, err = pd.CreateQP(ctx, init); err != nil {
		return err
	}
	if err := r.qp.Connect(ctx, r.qp.Endpoint()); err != nil {
		return err
	}
	// One message to itself shows where the rings are.
	r.card.learn.Store(true)
	if err := r.qp.PostSend(&driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled}); err != nil {
		return err
	}
	if _, err := r.cq.Wait(ctx, r.wc[:1]); err != nil {
		return err
	}
	if err := r.wc[0].Err(); err != nil {
		return err
	}
	r.card.learn.Store(false)
	// A fresh queue, as the twin's.
	if err := r.qp.Modify(ctx, driver.QPAttr{State: driver.StateReset}, driver.AttrState); err != nil {
		return err
	}
	if err := r.qp.Modify(ctx, driver.QPAttr{State: driver.StateInit}, driver.AttrState|driver.AttrAccess|driver.AttrPKeyIndex); err != nil {
		return err
	}
	if err := r.qp.Connect(ctx, r.qp.Endpoint()); err != nil {
		return err
	}
	r.card.halt()
	entries := uint64(r.cq.Entries())
	ring, err := r.card.memory(r.card.cqe.Load(), entries*hw.CQESize)
	if err == nil {
		r.wqes, err = r.card.memory(r.card.wqe.Load(), uint64(wqeBlocks(shape))*hw.WQEBlock)
	}
	if err != nil {
		r.card.resume()
		return err
	}
	r.fake = completer{ring: hw.SliceCQE(ring), log: log2(int(entries)), qpn: r.qp.Number(), next: 1, blocks: wqeBlocks(shape)}
	return nil
}

func log2(n int) (l int) {
	for 1<<l < n {
		l++
	}
	return l
}

func (r *verbsRig) close() error {
	r.card.resume()
	return errors.Join(r.d.Close(), r.card.close())
}

var errPoll = errors.New("a poll gave another number of completions than the card wrote")

func (r *verbsRig) round(work string, sum *uint64) (uint64, error) {
	if work == "cycle" {
		return r.cycle(sum)
	}
	q, wr := r.qp, &r.wr
	start := time.Now()
	for i := range r.n {
		wr.WRID = uint64(i)
		if err := q.PostSend(wr); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	r.fake.complete(r.n)
	if work == "post" {
		if n, err := r.cq.Poll(r.wc); n != r.n {
			return 0, errors.Join(errPoll, err)
		}
		*sum += r.wc[r.n-1].WRID
		return uint64(took), nil
	}
	at, err := strconv.Atoi(work[len("poll"):])
	if err != nil {
		return 0, fmt.Errorf("work %q: %w", work, err)
	}
	cq, wc := r.cq, r.wc[:at]
	start = time.Now()
	for i := 0; i < r.n; i += at {
		if n, err := cq.Poll(wc); n != at {
			return 0, errors.Join(errPoll, err)
		}
		*sum += wc[at-1].WRID
	}
	return uint64(time.Since(start)), nil
}

// cycle posts 32 and polls 32: the completions stand ready, and a poll takes those of what was just posted.
func (r *verbsRig) cycle(sum *uint64) (uint64, error) {
	r.fake.complete(r.n)
	q, cq, all, wc := r.qp, r.cq, r.all[:], r.wc[:batchOf]
	start := time.Now()
	for i := 0; i < r.n; i += batchOf {
		for k := range all {
			all[k].WRID = uint64(i + k)
		}
		if n, err := q.PostSendBatch(all); n != batchOf {
			return 0, err
		}
		if n, err := cq.Poll(wc); n != batchOf {
			return 0, errors.Join(errPoll, err)
		}
		*sum += wc[0].WRID + wc[batchOf-1].WRID
	}
	return uint64(time.Since(start)), nil
}
