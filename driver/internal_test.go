package driver

import (
	"errors"
	"slices"
	"testing"

	"rnic/hw"
	"rnic/queues"
)

// Events are kept for a program that is slow; what does not fit is told in its
// place; the last event always fits.
func TestEventQueueOverflow(t *testing.T) {
	q := newEventQueue()
	pop := func() Event {
		t.Helper()
		e, ok, _ := q.pop()
		if !ok {
			t.Fatal("no event")
		}
		return e
	}
	for round := range 3 {
		for i := range uint32(1024 + 76) {
			q.push(Event{Type: EventCommEst, Object: i})
		}
		for i := range uint32(1024) {
			if e := pop(); e.Type != EventCommEst || e.Object != i {
				t.Fatalf("round %d: event %d: %v", round, i, e)
			}
			if i == 500 { // room again: the loss is told in its place
				q.push(Event{Type: EventCommEst, Object: 5000})
			}
		}
		if e := pop(); e.Type != EventOverflow || e.Info != 76 {
			t.Fatalf("round %d: %v %d, want an overflow of 76", round, e, e.Info)
		}
		if e := pop(); e.Object != 5000 {
			t.Fatalf("round %d: %v", round, e)
		}
		if _, ok, more := q.pop(); ok || more {
			t.Fatalf("round %d: more events", round)
		}
	}
	for range 1100 {
		q.push(Event{Type: EventCommEst})
	}
	q.push(Event{Type: EventDeviceGone})
	var last []Event
	for {
		e, ok, _ := q.pop()
		if !ok {
			break
		}
		last = append(last, e)
	}
	if n := len(last); n != 1026 || last[1024].Type != EventOverflow || last[1024].Info != 76 || last[1025].Type != EventDeviceGone {
		t.Errorf("%d events, the last %v", n, last[n-1])
	}
	if r := q.recent(); len(r) != eventsRecent || r[eventsRecent-1].Type != EventDeviceGone {
		t.Errorf("%d recent events", len(r))
	}
}

// Numbers: fresh ones round from the start, chosen ones left out, then those
// freed longest ago.
func TestNumbers(t *testing.T) {
	n := newNumbers(2, 8, 6) // 6 7 2 3 4 5
	take := func(v uint32, want error) {
		t.Helper()
		if err := n.take(v); !errors.Is(err, want) {
			t.Errorf("take %d: %v, want %v", v, err, want)
		}
	}
	var got []uint32
	alloc := func() {
		t.Helper()
		v, err := n.alloc()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	take(1, ErrInvalid)
	take(8, ErrInvalid)
	take(3, nil)
	take(3, ErrInUse)
	alloc() // 6
	take(6, ErrInUse)
	n.free(3)
	take(3, nil) // it waited among the freed
	n.free(3)
	alloc() // 7
	alloc() // 2
	alloc() // 4: 3 waits its turn
	n.free(6)
	alloc() // 5
	alloc() // 3, freed before 6
	alloc() // 6
	if want := []uint32{6, 7, 2, 4, 5, 3, 6}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := n.alloc(); !errors.Is(err, ErrLimit) {
		t.Errorf("alloc of none: %v", err)
	}
	n.free(2)
	take(2, nil)
	if _, err := n.alloc(); !errors.Is(err, ErrLimit) {
		t.Errorf("alloc of none: %v", err)
	}
}

// FuzzCompletions has a card that writes what it likes into its completion
// queue: Poll gives only work requests that were posted, each once, and in
// order. A byte triple of the input is a CQE: which QP and queue, index.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0})
	f.Add([]byte{0, 5, 0, 0, 5, 0, 0, 4, 0, 2, 0, 0, 3, 0, 0})
	f.Add([]byte{1, 255, 255, 0, 255, 255, 0, 17, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		d := &Device{addr: "fuzz"}
		ring := make([]byte, 64*hw.CQESize)
		var words [4096]uint32
		cq := &CQ{d: d, qps: map[uint32]*QP{}}
		var err error
		if cq.q, err = queues.NewCQ(ring, &words[0], &words[1], &d.domain); err != nil {
			t.Fatal(err)
		}
		q := &QP{pd: &PD{d: d}, n: 5, init: QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 7, MaxRecvSGE: 1}, ctl: newCtlLock()}
		if q.sq, err = queues.NewSQ(make([]byte, 32*64), &words[2], &d.domain); err != nil {
			t.Fatal(err)
		}
		if q.rq, err = queues.NewRQ(make([]byte, 8*32), 5, &words[3], &d.domain); err != nil {
			t.Fatal(err)
		}
		q.sends, q.sendMask, q.sendLimit = make([]sendRecord, 32), 31, 8
		q.recvs, q.recvMask, q.recvLimit = make([]recvRecord, 8), 7, 8
		q.fullSend, q.fullRecv = ErrQueueFull, ErrQueueFull
		cq.qps[5] = q
		next := map[bool]uint64{false: 1, true: 1001}
		post := func() {
			for q.PostSend(&SendWR{WRID: next[false], Opcode: Send, SGEs: make([]SGE, next[false]%8)}) == nil {
				next[false]++
			}
			for q.PostRecv(&RecvWR{WRID: next[true]}) == nil {
				next[true]++
			}
		}
		post()
		seen := map[uint64]bool{}
		last := map[bool]uint64{}
		wc := make([]WC, 4)
		for n := uint32(0); len(in) >= 3; n++ {
			e := &hw.SliceCQE(ring)[n%64]
			*e = hw.CQE{QPN: 5 + uint32(in[0]>>2&1), WQEIndex: uint32(in[1]) | uint32(int8(in[2]))<<8, FaultSegment: in[2]}
			if in[0]&1 != 0 {
				e.Flags = hw.CQEFlagRecv
			}
			e.Owner = ^(n >> 6) & 1
			k, err := cq.Poll(wc)
			if err != nil || k > 1 {
				t.Fatalf("%d completions of one CQE, %v", k, err)
			}
			for _, w := range wc[:k] {
				recv := w.Flags&WCRecv != 0
				if w.WRID == 0 || w.WRID >= next[recv] || recv != (w.WRID > 1000) || seen[w.WRID] {
					t.Fatalf("completion %+v of a request that was not posted, or twice", w)
				}
				if !recv && w.WRID < last[recv] {
					t.Fatalf("completion of %d after %d", w.WRID, last[recv])
				}
				seen[w.WRID], last[recv] = true, w.WRID
			}
			if in[0]&2 != 0 {
				post()
			}
			in = in[3:]
		}
	})
}
