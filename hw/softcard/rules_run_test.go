package softcard

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// TestTwoSlotsNeverStop: two cards that send to each other, with READs and atomics
// in both directions, over a wire with room for two frames in each direction.
func TestTwoSlotsNeverStop(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.pair = newPair(t, 2)
	p.a, p.b = p.connected(17, defaultLink())
	c, d := p.connected(18, defaultLink())
	p.src = p.pair.a.newMR(0x1000_0000, 256<<10, srcKey, allAccess)
	p.dst = p.pair.b.newMR(0x2000_0000, 256<<10, dstKey, allAccess)
	const n = 60
	post := func(q *tQP, mine, far *tMR) {
		for i := range uint32(n) {
			w := tWR{flags: hw.WQEFlagSignaled, remote: far.base, rkey: far.key, sges: []hw.DataSegment{mine.sge(0, 9000*(i%3))}}
			switch i % 4 {
			case 0:
				w.op = hw.OpcodeSend
			case 1:
				w.op = hw.OpcodeRDMAWrite
			case 2:
				w.op = hw.OpcodeRDMARead
				w.sges[0].Addr += 128 << 10
			case 3:
				w.op, w.sges = hw.OpcodeAtomicFetchAndAdd, []hw.DataSegment{mine.sge(250<<10, 8)}
				w.remote += 240 << 10
			}
			q.post(w)
		}
	}
	for _, q := range []*tQP{p.a, p.b, c, d} {
		for range n {
			m := p.src
			if q.n == p.pair.b {
				m = p.dst
			}
			q.recv(m.sge(64<<10, 32<<10))
		}
	}
	post(p.a, p.src, p.dst)
	post(p.b, p.dst, p.src)
	post(c, p.src, p.dst)
	post(d, p.dst, p.src)
	p.run()
	for i, q := range []*tQP{p.a, p.b, c, d} {
		if got := len(q.sendCQ.all()); got != n {
			t.Errorf("QP %d: %d of %d completed without a timer", i, got, n)
		}
		if _, s := q.query(); s.Retransmits != 0 {
			t.Errorf("QP %d: %d packets were sent again", i, s.Retransmits)
		}
	}
	if x := p.pair.a.card.count[cntWireFull]; x == 0 {
		t.Error("the wire was never full: the test shows nothing")
	}
}

// TestRingWraps: WQEs of all sizes go round a small ring many times, so that they
// wrap inside; the ring is full, and full but for one block.
func TestRingWraps(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.onWire = nil
	a, b := p.pair.a.newQP(qpConfig{number: 40, sqLog: 5}), p.pair.b.newQP(qpConfig{number: 40, rqLog: 1})
	connect(a, b, defaultLink(), 1, 2)
	wrapped := 0
	for round := range uint32(300) {
		w := tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key}
		n := round * 7 % 63
		var want []byte
		for i := range n + 1 {
			at, size := (round*31+i*977)%(200<<10), (i*13+round)%200
			w.sges = append(w.sges, p.src.sge(at, size))
			want = append(want, p.src.mem[at:at+size]...)
		}
		bytesOf := w.wqe(a.sqPI)
		if first := a.sqPI % 32; first+uint32(len(bytesOf)/64) > 32 {
			wrapped++
		}
		index := a.post(w)
		p.run()
		wantWCs(t, fmt.Sprintf("round %d", round), a.sendCQ, good(index))
		if !bytes.Equal(p.dst.mem[:len(want)], want) {
			t.Fatalf("round %d: other bytes", round)
		}
	}
	if wrapped < 10 {
		t.Fatalf("only %d WQEs wrapped", wrapped)
	}
	for _, blocks := range []int{32, 31} { // full, full minus one
		var want []wc
		for range blocks {
			want = append(want, good(a.put((&tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key}).wqe(a.sqPI))))
		}
		a.ringSQ()
		p.run()
		wantWCs(t, fmt.Sprintf("%d blocks at once", blocks), a.sendCQ, want...)
	}
	for range 5 { // the receive ring of two, full
		b.recv(p.dst.sge(0, 10))
		b.recv(p.dst.sge(0, 10))
		for range 2 {
			a.post(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{p.src.sge(0, 10)}})
		}
		p.run()
		if n := len(b.recvCQ.all()); n != 2 {
			t.Fatalf("%d receives", n)
		}
	}
	wantState(t, a, hw.QPStateRTS)
}

// TestDoorbellNonsense: a producer index past the ring or running back is a fatal
// error of that QP, and of no other.
func TestDoorbellNonsense(t *testing.T) {
	for name, pi := range map[string]uint32{"past the ring": 257, "far ahead": 1 << 31, "back": ^uint32(0)} {
		p := newTwo(t, defaultLink())
		c, _ := p.connected(18, defaultLink())
		p.pair.a.ring(p.a.ctx.SQDoorbell, pi)
		c.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key})
		p.run()
		wantState(t, p.a, hw.QPStateErr)
		p.pair.a.wantEvent(t, hw.EventTypeQPFatal, hw.ReasonMalformed, p.a.number)
		wantWCs(t, name+": other QP", c.sendCQ, good(0))
		wantWCs(t, name, p.a.sendCQ)
	}
	p := newTwo(t, defaultLink())
	p.pair.b.ring(p.b.ctx.RQDoorbell, 257)
	p.a.post(tWR{op: hw.OpcodeSend})
	p.run()
	wantState(t, p.b, hw.QPStateErr)
	p.pair.b.wantEvent(t, hw.EventTypeQPFatal, hw.ReasonMalformed, p.b.number)
}

// TestFence: a fenced request waits for the READs and atomics before it.
func TestFence(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.a.post(tWR{op: hw.OpcodeRDMARead, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 9000)}})
	p.a.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(100<<10, 10)}})
	p.a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagFence | hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 10)}})
	responded := 0
	var order []string
	p.onWire = func(dir string, f *frame) {
		op := parsed(t, f.bytes()).Opcode()
		if op.Operation() == roce.OpReadResponse {
			responded++
		}
		if dir == "A>B" {
			order = append(order, fmt.Sprintf("%v after %d", op, responded))
		}
	}
	p.run()
	want := []string{"RC_READ_REQUEST after 0", "RC_WRITE_ONLY after 0", "RC_WRITE_ONLY after 3"}
	if fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("order %v, expected %v", order, want)
	}
	wantWCs(t, "send queue", p.a.sendCQ, good(2))
}

// TestReadLimit: no more READs and atomics are in flight than max_rd_atomic.
func TestReadLimit(t *testing.T) {
	for _, limit := range []uint8{1, 3, 16} {
		k := defaultLink()
		k.rdAtomic = limit
		p := newTwo(t, k)
		for i := range uint32(40) {
			w := tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(i*100, 100)}}
			if i%3 == 0 {
				w.op = hw.OpcodeAtomicFetchAndAdd
			}
			p.a.post(w)
		}
		inFlight, most := 0, 0
		p.onWire = func(dir string, f *frame) {
			if dir == "A>B" {
				inFlight++
				most = max(most, inFlight)
			} else {
				inFlight--
			}
		}
		p.run()
		if most != int(limit) || len(p.a.sendCQ.all()) != 40 {
			t.Errorf("max_rd_atomic %d: %d were in flight", limit, most)
		}
	}
	k := defaultLink()
	k.rdAtomic = 0
	p := newTwo(t, k)
	p.a.post(tWR{op: hw.OpcodeRDMARead, sges: []hw.DataSegment{p.src.sge(0, 1)}})
	p.run()
	wantWCs(t, "max_rd_atomic 0", p.a.sendCQ, wc{0, hw.StatusLocQPOpErr, hw.ReasonUnsupported, hw.NoSegment, 0, 0})
}

// TestSolicitedAndUnsignaled: solicited events and what completes without a signal.
func TestSolicitedAndUnsignaled(t *testing.T) {
	p := newTwo(t, defaultLink())
	for range 4 {
		p.b.recv(p.dst.sge(0, 100))
	}
	p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSolicited})
	p.a.post(tWR{op: hw.OpcodeSend})
	p.a.post(tWR{op: hw.OpcodeRDMAWriteWithImm, flags: hw.WQEFlagSolicited, imm: 0x01020304})
	p.a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSolicited})
	p.a.post(tWR{op: hw.OpcodeSendWithImm, imm: 7, flags: hw.WQEFlagSignaled})
	p.run()
	var got []string
	for _, e := range p.b.recvCQ.all() {
		got = append(got, fmt.Sprintf("%v %v %#x", e.Opcode, e.Flags, e.Imm))
	}
	want := []string{"RECV RECV|SOLICITED 0x0", "RECV RECV 0x0", "RECV_RDMA_WITH_IMM RECV|IMM|SOLICITED 0x1020304", "RECV RECV|IMM 0x7"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("receives %v, expected %v", got, want)
	}
	wantWCs(t, "send queue", p.a.sendCQ, good(4))
	if se := parsed(t, p.sent["A>B"][3]).BTH().SE(); se {
		t.Error("an RDMA WRITE without immediate asks for a solicited event")
	}
}

// TestRNR: the card looks at the receive queue again before it refuses; the
// requester waits as long as it is told, and sends again from there.
func TestRNR(t *testing.T) {
	k := defaultLink()
	k.rnr, k.minRNR = 2, 20 // 10.24 ms
	p := newTwo(t, k)
	p.a.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key})
	p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{p.src.sge(0, 9000)}})
	began := p.now
	p.run()
	if x := parsed(t, p.sent["B>A"][1]); x.AETH().Syndrome() != roce.SyndromeRNR(20) || x.BTH().PSN() != 1001 {
		t.Fatalf("answered %v", answers([]*roce.Packet{x}))
	}
	p.now = began + 10_239_999
	p.run()
	if n := len(p.sent["A>B"]); n != 4 {
		t.Fatalf("%d frames before the timer has run", n)
	}
	p.b.recv(p.dst.sge(0, 9000))
	p.now = began + 10_240_000
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(1))
	if !bytes.Equal(p.dst.mem[:9000], p.src.mem[:9000]) {
		t.Error("wrong bytes")
	}
	// Now no receive ever: two retries, then the end.
	failing := p.a.post(tWR{op: hw.OpcodeSend})
	next := p.a.post(tWR{op: hw.OpcodeSend})
	p.run()
	for p.tick() {
	}
	es := p.a.sendCQ.all()
	if len(es) != 2 || es[0].WQEIndex != failing || es[0].Status != hw.StatusRNRRetryExcErr || es[0].Reason != hw.ReasonRNR || es[0].AETHSyndrome != 0x20|20 ||
		es[1].WQEIndex != next || es[1].Status != hw.StatusWRFlushErr {
		t.Errorf("completions %+v", es)
	}
	if n := p.pair.b.card.count[cntRNRNAKsSent]; n != 1+3 {
		t.Errorf("%d RNR NAKs, expected 1 and 3", n)
	}
	// The second look: the doorbell is rung while the frame is on the wire.
	p = newTwo(t, k)
	p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled})
	record := p.onWire
	p.onWire = func(dir string, f *frame) {
		if record(dir, f); dir == "A>B" {
			p.b.recv(p.dst.sge(0, 10))
		}
	}
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(0))
	// WRITE with immediate: refused at the packet that needs the receive.
	p = newTwo(t, k)
	p.a.post(tWR{op: hw.OpcodeRDMAWriteWithImm, flags: hw.WQEFlagSignaled, imm: 5, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 9000)}})
	p.run()
	if x := parsed(t, p.sent["B>A"][0]); x.AETH().Syndrome().Kind() != roce.RNRNAK || x.BTH().PSN() != 1002 {
		t.Errorf("answered %v", answers([]*roce.Packet{x}))
	}
	p.b.recv()
	p.tick()
	wantWCs(t, "send queue", p.a.sendCQ, good(0))
	if es := p.b.recvCQ.all(); len(es) != 1 || es[0].ByteLen != 9000 || es[0].Imm != 5 {
		t.Errorf("receives %+v", es)
	}
}

// TestRetryExceeded: an answer that stays out ends the request after the timeout and
// the retries, whatever it was.
func TestRetryExceeded(t *testing.T) {
	for _, op := range []hw.Opcode{hw.OpcodeSend, hw.OpcodeRDMAWrite, hw.OpcodeRDMARead, hw.OpcodeAtomicFetchAndAdd} {
		k := defaultLink()
		k.timeout, k.retry = 10, 3
		p := newTwo(t, k)
		frames := 0
		p.onWire = func(dir string, f *frame) {
			if dir == "A>B" {
				frames++
			}
			spoil(f)
		}
		began := p.now
		first := p.a.post(tWR{op: op, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 100)}})
		rest := p.a.post(tWR{op: op, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 100)}})
		p.run()
		for p.tick() {
		}
		wantWCs(t, op.String(), p.a.sendCQ, wc{first, hw.StatusRetryExcErr, hw.ReasonTimeout, hw.NoSegment, 0, 0}, flushed(rest))
		const timeout = 4096 << 10
		if took := p.now - began; took < 4*timeout || took > 4*4*timeout {
			t.Errorf("%v: ended after %d ns, expected at least %d", op, took, 4*timeout)
		}
		if frames != 2*4 {
			t.Errorf("%v: %d frames, expected 2 requests sent 4 times", op, frames)
		}
	}
	k := defaultLink()
	k.timeout = 0 // none
	p := newTwo(t, k)
	p.onWire = func(_ string, f *frame) { spoil(f) }
	p.write(p.src.sge(0, 10))
	p.run()
	if p.tick() {
		t.Error("a timer runs that was not asked for")
	}
}

// TestBadResponses: responses that fit no request, or not the one they are for.
func TestBadResponses(t *testing.T) {
	for _, k := range []struct {
		name string
		bend func(h *roce.Header, payload []byte) []byte
		want hw.Status
	}{
		{"READ response too short", func(_ *roce.Header, b []byte) []byte { return b[:len(b)-1] }, hw.StatusBadRespErr},
		{"READ response too long", func(_ *roce.Header, b []byte) []byte { return append(b[:len(b):len(b)], 1) }, hw.StatusBadRespErr},
		{"MIDDLE for ONLY", func(h *roce.Header, b []byte) []byte { h.Opcode = roce.RCReadResponseMiddle; return b }, hw.StatusBadRespErr},
		{"atomic response to a READ", func(h *roce.Header, b []byte) []byte { h.Opcode = roce.RCAtomicAcknowledge; return nil }, hw.StatusBadRespErr},
	} {
		p := newTwo(t, defaultLink())
		p.onWire = func(dir string, f *frame) {
			if dir != "B>A" {
				return
			}
			x, h := parsed(t, f.bytes()), roce.Header{}
			x.Header(&h)
			b := h.Append(nil, k.bend(&h, x.Payload()))
			f.start, f.end = 0, copy(f.buf, b)
		}
		p.a.post(tWR{op: hw.OpcodeRDMARead, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 100)}})
		p.run()
		wantWCs(t, k.name, p.a.sendCQ, wc{0, k.want, hw.ReasonBadResponse, hw.NoSegment, 0, 0})
	}
}

// TestSecondRead: memory that gives other bytes when it is read again. The WQE that
// was fetched first is the one that is sent; one fetched again for a retransmission or
// a response that is not what it was ends the QP.
func TestSecondRead(t *testing.T) {
	for _, op := range []hw.Opcode{hw.OpcodeSend, hw.OpcodeRDMARead} {
		p := newTwo(t, defaultLink())
		p.b.recv(p.dst.sge(0, 32<<10))
		reads := 0
		p.pair.a.host.onRead = func(iova uint64, b []byte) {
			if iova < p.a.ctx.SQIOVA || iova >= p.a.ctx.SQIOVA+uint64(len(p.a.sq)) {
				return
			}
			reads++
			copy(p.a.sq[iova-p.a.ctx.SQIOVA:], make([]byte, len(b))) // gone once it was read
		}
		dropped := false
		record := p.onWire
		p.onWire = func(dir string, f *frame) {
			if record(dir, f); dir == "A>B" && !dropped && op == hw.OpcodeSend && len(p.sent["A>B"]) == 2 {
				dropped = true
				spoil(f)
			}
		}
		w := tWR{op: op, remote: p.dst.base, rkey: p.dst.key}
		for i := range uint32(9) { // three blocks
			w.sges = append(w.sges, p.src.sge(i*1000, 1000))
		}
		index := p.a.post(w)
		p.run()
		if op == hw.OpcodeSend {
			for i, f := range p.sent["A>B"][:3] {
				if x := parsed(t, f); !bytes.Equal(x.Payload(), p.src.mem[i*4096:min(9000, (i+1)*4096)]) {
					t.Errorf("packet %d has other bytes than the WQE that was fetched first names", i)
				}
			}
		}
		wantWCs(t, op.String(), p.a.sendCQ, wc{index, hw.StatusLocQPOpErr, hw.ReasonChanged, hw.NoSegment, 0, 0})
		if reads < 3 {
			t.Errorf("%v: %d reads of the ring: the WQE was not fetched again", op, reads)
		}
	}
}

// TestCQOverflow: a CQ without room brings its QPs to ERR, with an event, and never
// overwrites a CQE that was not taken.
func TestCQOverflow(t *testing.T) {
	p := newTwo(t, defaultLink())
	cq := p.pair.a.newCQ(2)
	a, b := p.pair.a.newQP(qpConfig{number: 50, sendCQ: cq, recvCQ: cq}), p.pair.b.newQP(qpConfig{number: 50})
	connect(a, b, defaultLink(), 1, 2)
	for range 6 {
		a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key})
	}
	p.run()
	wantState(t, a, hw.QPStateErr)
	p.pair.a.wantEvent(t, hw.EventTypeCQError, hw.ReasonCQOverflow, cq.number)
	wantWCs(t, "the full CQ", cq, good(0), good(1), good(2), good(3))
	wantState(t, p.a, hw.QPStateRTS)
}

// TestSQD: a draining send queue ends what was started and starts nothing, and says
// when it is done.
func TestSQD(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.write(p.src.sge(0, 9000))
	c := p.pair.a.card
	c.Step(p.now, 1) // the first packet is out
	p.a.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateSQD})
	second := p.write(p.src.sge(0, 10))
	p.run()
	wantWCs(t, "in SQD", p.a.sendCQ, good(0))
	p.pair.a.wantEvent(t, hw.EventTypeSQDrained, hw.ReasonNone, p.a.number)
	p.a.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateRTS})
	p.run()
	wantWCs(t, "in RTS again", p.a.sendCQ, good(second))
}
