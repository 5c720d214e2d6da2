package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// queueRig is queues.SQ and queues.CQ alone: no lock, no checks, no records.
type queueRig struct {
	n      int
	memory []*vfio.Memory
	sq     *queues.SQ
	cq     *queues.CQ
	sges   []queues.SGE
	inline [][]byte
	fake   completer
}

func newQueueRig(shape string, n int) (r *queueRig, err error) {
	wr := request(shape)
	r = &queueRig{n: n, sges: wr.SGEs, inline: wr.Inline}
	data := max(len(wr.SGEs), len(wr.Inline)*inlineBytes/hw.WQESegment)
	blocks := 1 << log2(max(n*((3+data+3)/4), hw.SQMinBlocks))
	entries := 1 << log2(n)
	alloc := func(n int) []byte {
		if err != nil {
			return nil
		}
		var m *vfio.Memory
		if m, err = vfio.AllocMemory(n, vfio.MemoryOptions{}); err != nil {
			return nil
		}
		r.memory = append(r.memory, m)
		return m.Bytes()[:n]
	}
	ring, cqes, page := alloc(blocks*hw.WQEBlock), alloc(entries*hw.CQESize), alloc(3*4096)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	words := hw.SliceCQArm(page) // a page each: the domain, the SQ, the CQ
	d := &queues.Domain{Sleep: &words[0].Word, Kick: func() { panic("the card does not sleep") }}
	if r.sq, err = queues.NewSQ(ring, &words[1024+64].Word, d); err == nil {
		r.cq, err = queues.NewCQ(cqes, &words[2048+96].Word, &words[2048+97].Word, d)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.fake = completer{ring: hw.SliceCQE(cqes), log: log2(entries), qpn: 2, blocks: wqeBlocks(shape)}
	return r, nil
}

func (r *queueRig) close() error {
	var errs []error
	for _, m := range r.memory {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

func barePost(q *queues.SQ, sges []queues.SGE, inline [][]byte) bool {
	segs, flags, n := 1+len(sges), hw.WQEFlagSignaled, 0
	if inline != nil {
		n = len(inline[0])
		segs += (n + hw.WQESegment - 1) / hw.WQESegment
		flags |= hw.WQEFlagInline
	}
	blocks := queues.Blocks(uint32(segs))
	if !q.Room(blocks) {
		return false
	}
	at := q.Control(hw.OpcodeSend, flags, uint8(segs), 0, uint16(n))
	switch {
	case inline != nil:
		q.Inline(at, inline)
	case len(sges) > 8:
		q.DataList(at, sges)
	default:
		q.Data(at, sges)
	}
	q.Commit(blocks)
	return true
}

func barePoll(q *queues.CQ, most int, sum *uint64) (n int) {
	for ; n < most; n++ {
		e := q.At(n)
		if e == nil {
			break
		}
		*sum += uint64(e.WQEIndex)
	}
	q.Take(n)
	if n > 0 {
		q.Publish()
	}
	return n
}

var errRoom = errors.New("a ring that has room refuses a request")

func (r *queueRig) round(work string, sum *uint64) (uint64, error) {
	sq, cq := r.sq, r.cq
	if work == "cycle" {
		r.fake.complete(r.n)
		start := time.Now()
		for i := 0; i < r.n; i += batchOf {
			for range batchOf {
				if !barePost(sq, r.sges, r.inline) {
					return 0, errRoom
				}
			}
			sq.Ring()
			if barePoll(cq, batchOf, sum) != batchOf {
				return 0, errPoll
			}
			sq.Release(sq.Consumer() + batchOf*r.fake.blocks)
		}
		return uint64(time.Since(start)), nil
	}
	start := time.Now()
	for range r.n {
		if !barePost(sq, r.sges, r.inline) {
			return 0, errRoom
		}
		sq.Ring()
	}
	posted := time.Since(start)
	r.fake.complete(r.n)
	at := r.n
	if work != "post" {
		var err error
		if at, err = strconv.Atoi(work[len("poll"):]); err != nil {
			return 0, fmt.Errorf("work %q: %w", work, err)
		}
	}
	start = time.Now()
	for i := 0; i < r.n; i += at {
		if barePoll(cq, at, sum) != at {
			return 0, errPoll
		}
	}
	polled := time.Since(start)
	sq.Release(sq.Producer())
	if work == "post" {
		return uint64(posted), nil
	}
	return uint64(polled), nil
}
