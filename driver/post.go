package driver

import (
	"fmt"

	"rnic/hw"
	"rnic/queues"
)

// PostSend queues a send work request and rings the doorbell: all or nothing.
// It allocates nothing and does not wait. errors.Is: ErrQueueFull, ErrState,
// ErrTooManySGEs, ErrInline, ErrNotSupported, ErrInvalid (an atomic at a
// remote address that is no multiple of 8, too), ErrClosed, ErrDeviceGone.
func (q *QP) PostSend(wr *SendWR) error {
	q.sqMu.Lock()
	_, err := q.send(wr, nil)
	if err == nil {
		handOver(&q.posted, q.sq.Producer())
		q.sq.Ring()
	}
	q.sqMu.Unlock()
	return err
}

// PostSendBatch queues send work requests in order, with one doorbell. It
// gives the number that was accepted; an error is about the next one.
func (q *QP) PostSendBatch(wrs []SendWR) (n int, err error) {
	q.sqMu.Lock()
	if len(wrs) > 0 {
		n, err = q.send(&wrs[0], wrs[1:])
	}
	if n > 0 {
		handOver(&q.posted, q.sq.Producer())
		q.sq.Ring()
	}
	q.sqMu.Unlock()
	return n, err
}

// send builds the WQEs of wr and of those behind it, and gives how many. The caller
// holds sqMu and rings.
func (q *QP) send(wr *SendWR, more []SendWR) (n int, err error) {
	if q.sendErr != nil {
		return 0, q.sendErr
	}
	if wr == nil {
		return 0, q.noRequest("post send")
	}
	sq := q.sq
	for {
		segs := 1 // control, remote, atomic
		switch wr.Opcode {
		case Send, SendImm:
		case Write, WriteImm, Read:
			segs = 2
		case CompareSwap, FetchAdd:
			if wr.Remote.Addr%atomicSize != 0 {
				return n, q.misaligned(wr.Remote.Addr)
			}
			segs = 3
		default:
			return n, q.badOpcode(wr.Opcode)
		}
		before := segs
		flags := hw.WQEFlag(wr.Flags)
		if wr.Flags&^sendFlags != 0 {
			return n, q.badFlags(wr.Flags)
		}
		inline := 0
		if len(wr.Inline) == 0 {
			if len(wr.SGEs) > q.init.MaxSendSGE {
				return n, q.tooManySGEs("post send", len(wr.SGEs), q.init.MaxSendSGE)
			}
			segs += len(wr.SGEs)
		} else {
			for _, b := range wr.Inline {
				inline += len(b)
			}
			if inline > q.init.MaxInline || len(wr.SGEs) > 0 || wr.Opcode == Read || before == 3 {
				return n, q.badInline(wr, inline)
			}
			if inline > 0 {
				segs += (inline + hw.WQESegment - 1) / hw.WQESegment
				flags |= hw.WQEFlagInline
			}
		}
		blocks := queues.Blocks(uint32(segs))
		if q.sendNext-q.sendDone >= q.sendLimit || !sq.Fits(blocks) {
			if !q.sendRoom(blocks) {
				return n, q.fullSend
			}
			continue // again from wr: what is kept over a call is stored each time
		}
		imm := uint32(0)
		if wr.Opcode == SendImm || wr.Opcode == WriteImm {
			imm = wr.Imm
		}
		at := sq.Control(hw.Opcode(wr.Opcode), flags, uint8(segs), imm, uint16(inline))
		if before > 1 {
			at = sq.Remote(at, wr.Remote.Addr, wr.Remote.RKey)
			switch wr.Opcode {
			case CompareSwap:
				at = sq.Atomic(at, wr.Swap, wr.CompareAdd)
			case FetchAdd:
				at = sq.Atomic(at, wr.CompareAdd, 0)
			}
		}
		if inline == 0 && len(wr.SGEs) <= fewSGEs {
			sq.Data(at, wr.SGEs)
		} else {
			q.long(at, wr)
		}
		index := sq.Commit(blocks)
		r := &q.sends[index&q.sendMask]
		r.wrid, r.number, r.index, r.blocks, r.op = wr.WRID, q.sendNext, index, uint8(blocks), wr.Opcode
		q.sendNext++
		if uint(n) >= uint(len(more)) {
			return n + 1, nil
		}
		wr = &more[n]
		n++
	}
}

// fewSGEs are as many as are stored one by one.
const fewSGEs = 8

// long adds the payload, or more SGEs. It is not compiled into send, which it would
// slow down for all.
//
//go:noinline
func (q *QP) long(at uint32, wr *SendWR) {
	if len(wr.Inline) > 0 {
		q.sq.Inline(at, wr.Inline)
		return
	}
	q.sq.DataList(at, wr.SGEs)
}

// sendRoom looks up how many sends are complete, and whether one more fits.
func (q *QP) sendRoom(blocks uint32) bool {
	c := q.sq.Consumer()
	if c == q.sq.Producer() {
		q.sendDone = q.sendNext
	} else {
		q.sendDone = q.sends[c&q.sendMask].number
	}
	return q.sendNext-q.sendDone < q.sendLimit && q.sq.Room(blocks)
}

func (q *QP) badOpcode(o Opcode) error {
	cause := ErrInvalid
	if o == SendInv || o == LocalInv || o == BindMW {
		cause = ErrNotSupported
	}
	return q.fail("post send", fmt.Errorf("operation %v: %w", o, cause))
}

func (q *QP) badFlags(f SendFlags) error {
	return q.fail("post send", fmt.Errorf("flags %#x: %w", f, ErrInvalid))
}

func (q *QP) noRequest(op string) error {
	return q.fail(op, fmt.Errorf("the work request is nil: %w", ErrInvalid))
}

func (q *QP) tooManySGEs(op string, n, limit int) error {
	return q.fail(op, fmt.Errorf("%d, the queue takes %d: %w", n, limit, ErrTooManySGEs))
}

// atomicSize is the bytes of an atomic's operands, address and result.
const atomicSize = 8

// misaligned is an atomic that every responder refuses, ending the connection
// (InfiniBand specification volume 1, section 9.4.5).
func (q *QP) misaligned(addr uint64) error {
	return q.fail("post send", fmt.Errorf("atomic at remote address %#x, which is no multiple of %d: %w", addr, atomicSize, ErrInvalid))
}

func (q *QP) badInline(wr *SendWR, n int) error {
	why := fmt.Sprintf("%d bytes, the queue takes %d", n, q.init.MaxInline)
	switch {
	case len(wr.SGEs) > 0:
		why = "SGEs are given as well"
	case wr.Opcode != Send && wr.Opcode != SendImm && wr.Opcode != Write && wr.Opcode != WriteImm:
		why = fmt.Sprintf("%v has no payload to send", wr.Opcode)
	}
	return q.fail("post send", fmt.Errorf("%s: %w", why, ErrInline))
}

// PostRecv queues a receive work request, under the rules of PostSend.
// errors.Is: ErrQueueFull, ErrState, ErrTooManySGEs, ErrClosed, ErrDeviceGone.
func (q *QP) PostRecv(wr *RecvWR) error {
	q.rqMu.Lock()
	err := q.recv(wr)
	if err == nil {
		handOver(&q.recvd, q.rq.Producer())
		q.rq.Ring()
	}
	q.rqMu.Unlock()
	return err
}

// PostRecvBatch queues receive work requests in order, with one doorbell. It
// gives the number that was accepted; an error is about the next one.
func (q *QP) PostRecvBatch(wrs []RecvWR) (n int, err error) {
	q.rqMu.Lock()
	for n < len(wrs) {
		if err = q.recv(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		handOver(&q.recvd, q.rq.Producer())
		q.rq.Ring()
	}
	q.rqMu.Unlock()
	return n, err
}

// recv builds a receive WQE. The caller holds rqMu and rings.
func (q *QP) recv(wr *RecvWR) error {
	if q.recvErr != nil {
		return q.recvErr
	}
	if wr == nil {
		return q.noRequest("post receive")
	}
	if len(wr.SGEs) > q.init.MaxRecvSGE {
		return q.tooManySGEs("post receive", len(wr.SGEs), q.init.MaxRecvSGE)
	}
	if !q.rq.Room(1, q.recvLimit) {
		return q.fullRecv
	}
	index := q.rq.Put(wr.SGEs)
	r := &q.recvs[index&q.recvMask]
	r.wrid, r.index, r.posted = wr.WRID, index, true
	return nil
}

// lookOn is what take gives for next where the ring may hold more, and nothing of it
// was looked at. It is no QP number.
const lookOn = 1 << 31

// take makes WCs of the CQEs of this queue pair that stand one behind the other at
// the head of c, whose lock the caller holds: n of them, the last of the WQE at index.
// e is the first of them, where it was looked at. It ends where wc or the ring does,
// behind an error, and before another's, whose QP number is next. One that fits no work
// request it drops and counts: a card is not believed where its word would be an index.
// The CQE is the card's memory still: no byte of it is loaded twice.
//
// Its loop calls nothing, so that its variables stay in registers.
func (q *QP) take(c *CQ, e *hw.CQE, wc []WC) (n int, index, next uint32) {
	ring := c.q
	sends := uint32(0) // blocks of the send ring, if its completions come here
	if c == q.init.SendCQ {
		sends = q.sendMask + 1
	}
	fits := true
	for n < len(wc) {
		if e == nil {
			if e = ring.At(n); e == nil {
				break
			}
			if next = e.QPN; next != q.n {
				ring.Take(n)
				return n, index, next
			}
		}
		index = e.WQEIndex
		status := e.Status
		flags := e.Flags
		w := &wc[n]
		*w = WC{} // then what a success has: it stores a third of the fields
		if flags&hw.CQEFlagRecv == 0 {
			takeOver(&q.posted)
			r := &q.sends[index&q.sendMask]
			if r.index != index || r.blocks == 0 || index-q.sqDone >= sends {
				fits = false
				break
			}
			w.WRID, w.Opcode = r.wrid, r.op
			q.sqDone = index + uint32(r.blocks)
		} else {
			takeOver(&q.recvd)
			r := &q.recvs[index&q.recvMask]
			if c != q.init.RecvCQ || r.index != index || !r.posted {
				fits = false
				break
			}
			r.posted = false // the next completion of it is the card's fault
			w.WRID, w.Opcode = r.wrid, Recv
			if Opcode(e.Opcode) == RecvWriteImm {
				w.Opcode = RecvWriteImm
			}
			w.SrcQPN, w.PKeyIndex = e.SrcQPN, e.PKeyIndex
			if int32(index+1-q.rqDone) > 0 { // a card that goes back gives nothing away
				q.rqDone = index + 1
			}
		}
		w.QPN = q.n
		w.Flags = WCFlags(flags)
		w.ByteLen, w.Imm = e.ByteLen, e.Imm
		w.Time = e.Time
		w.FaultSegment = -1
		n++
		if status != StatusSuccess {
			w.fault(e, status)
			ring.Take(n)
			return n, index, lookOn
		}
		e = nil
	}
	if !fits {
		c.bogus++
		ring.Take(n + 1)
		return n, index, lookOn
	}
	ring.Take(n)
	return n, index, 0
}

// fault fills in what only an error completion says.
//
//go:noinline
func (w *WC) fault(e *hw.CQE, status Status) {
	w.Status, w.Reason, w.AETH = status, e.Reason, e.AETHSyndrome
	w.FaultKey, w.FaultOffset = e.FaultKey, e.FaultOffset
	if segment := e.FaultSegment; segment != hw.NoSegment {
		w.FaultSegment = int(segment)
	}
}

// release gives the posters the room of what was completed on c, whose lock
// the caller holds. It stores only what is new: the posters read it.
func (q *QP) release(c *CQ) {
	if c == q.init.SendCQ && q.sq.Consumer() != q.sqDone {
		q.sq.Release(q.sqDone)
	}
	if c == q.init.RecvCQ && q.rq.Consumer() != q.rqDone {
		q.rq.Release(q.rqDone)
	}
}
