package softcard

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// frameTo is a frame for a card: a whole one, of a SEND to a QP that is not there.
func frameTo(c *Card, mark byte) []byte {
	h := roce.Header{
		DstMAC: c.cfg.MAC, SrcMAC: [6]byte{2, 0, 0, 0, 0, 0x99}, Src: roce.V4Mapped([4]byte{10, 9, 9, 9}), Dst: c.cfg.IPs[0].Addr().As16(),
		HopLimit: 64, UDPSrcPort: 0xc000, PKey: 0xffff, Opcode: roce.RCSendOnly, AckReq: true, DestQP: 0x123, PSN: uint32(mark),
	}
	b := make([]byte, roce.Headroom+16)
	for i := range 8 {
		b[roce.Headroom+i] = mark
	}
	start := h.PutBefore(b, roce.Headroom, 8)
	f, err := roce.Finish(b[start:])
	if err != nil {
		panic(err)
	}
	return f
}

// send puts a frame on the wire from a card, by hand.
func send(t testing.TB, c *Card, b []byte, lane int) {
	t.Helper()
	if !trySend(c, b, lane) {
		t.Fatal("no room on the wire")
	}
}

func trySend(c *Card, b []byte, lane int) bool {
	l := c.route(macNumber([6]byte(b[:6])))
	f := c.slot(l, lane)
	if f == nil {
		return false
	}
	f.start, f.end = headroom, headroom+len(b)
	copy(f.bytes(), b)
	c.send(f, 0)
	return true
}

// joined makes cards on one wire.
func joined(t testing.TB, slots, n int) []*Card {
	t.Helper()
	w, err := NewWire(slots)
	if err != nil {
		t.Fatal(err)
	}
	var cards []*Card
	for i := range n {
		c, err := New(Config{Name: fmt.Sprint("card", i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := w.Join(c); err != nil {
			t.Fatal(err)
		}
		cards = append(cards, c)
	}
	return cards
}

// A wire keeps the order of a direction, over both lanes, and loses nothing.
func TestWireKeepsOrder(t *testing.T) {
	c := joined(t, 8, 2)
	a, b := c[0], c[1]
	next := byte(0)
	taken := byte(0)
	for range 100 {
		for i := range 4 {
			lane := laneRequests
			if i%2 == 1 {
				lane = laneAnswers
			}
			send(t, a, frameTo(b, next), lane)
			next++
		}
		for range 4 {
			f := b.rxNext()
			if f == nil {
				t.Fatal("no frame")
			}
			if !bytes.Equal(f.bytes(), frameTo(b, taken)) {
				t.Fatalf("frame %d is not what was sent", taken)
			}
			taken++
			if f.answers != nil {
				b.answerReturn(f.answers)
			}
			b.rxDone(f, 0, true)
		}
	}
	if f := b.rxNext(); f != nil {
		t.Error("a frame too many")
	}
}

// Requests never take the room of answers; a request is taken only when room for
// its answer is promised; and an answer passes a request that has to wait.
func TestWireReserve(t *testing.T) {
	for _, slots := range []int{2, 3, 8} {
		c := joined(t, slots, 2)
		a, b := c[0], c[1]
		requests, answers := 0, 0
		for trySend(a, frameTo(b, 1), laneRequests) {
			requests++
		}
		if requests != slots-slots/2 {
			t.Errorf("%d slots: %d requests", slots, requests)
		}
		// b takes requests until the room for their answers is promised away.
		for {
			for trySend(a, frameTo(b, 1), laneRequests) {
			}
			f := b.rxNext()
			if f == nil {
				break
			}
			if f.answers == nil {
				t.Fatal("a request without room for its answer")
			}
			b.rxDone(f, 0, false)
			answers++
		}
		if want := max(slots/2, 1); answers != want {
			t.Errorf("%d slots: %d requests were taken, want %d", slots, answers, want)
		}
		// An answer from a still comes through.
		send(t, a, frameTo(b, 77), laneAnswers)
		f := b.rxNext()
		if f == nil || f.lane != laneAnswers || f.answers != nil {
			t.Fatalf("%d slots: the answer waits behind requests", slots)
		}
		b.rxDone(f, 0, false)
		// The promised answers leave though b's own requests fill the wire.
		for trySend(b, frameTo(a, 2), laneRequests) {
		}
		l := b.route(macNumber(a.cfg.MAC))
		for range answers {
			g := b.txAnswer(l)
			if g == nil {
				t.Fatalf("%d slots: no room for a promised answer", slots)
			}
			g.start, g.end = headroom, headroom+64
			b.send(g, 0)
		}
		if b.txAnswer(l) != nil {
			t.Errorf("%d slots: an answer that was not promised", slots)
		}
	}
}

// Two directions that are full of requests and answers never wait for each other:
// cards that send whenever they can, and answer each request, go on for ever.
func TestWireNeverStops(t *testing.T) {
	for _, slots := range []int{2, 3, 5} {
		c := joined(t, slots, 2)
		type side struct {
			self, peer *Card
			owed       int // answers
			got        int
		}
		sides := []*side{{self: c[0], peer: c[1]}, {self: c[1], peer: c[0]}}
		turn := func(s *side, eager bool) {
			for eager && trySend(s.self, frameTo(s.peer, 1), laneRequests) {
			}
			for {
				f := s.self.rxNext()
				if f == nil {
					break
				}
				if f.answers != nil {
					s.owed++
				} else {
					s.got++
				}
				s.self.rxDone(f, 0, false)
			}
			for eager && trySend(s.self, frameTo(s.peer, 1), laneRequests) {
			}
			l := s.self.route(macNumber(s.peer.cfg.MAC))
			for ; s.owed > 0; s.owed-- {
				f := s.self.txAnswer(l)
				if f == nil {
					t.Fatalf("%d slots: no room for a promised answer", slots)
				}
				f.start, f.end = headroom, headroom+64
				s.self.send(f, 0)
			}
		}
		for range 1000 {
			before := [2]int{sides[0].got, sides[1].got}
			for range 4 {
				turn(sides[0], true)
				turn(sides[1], true)
			}
			if sides[0].got == before[0] || sides[1].got == before[1] {
				t.Fatalf("%d slots: stopped after %d and %d answers", slots, sides[0].got, sides[1].got)
			}
		}
	}
}

// On a wire of three a frame goes to the port that has its address, to the own
// port as well; one that nobody has goes nowhere.
func TestWireSwitches(t *testing.T) {
	c := joined(t, 8, 3)
	for i, from := range c {
		for j, to := range c {
			send(t, from, frameTo(to, byte(10*i+j)), laneRequests)
			for k, other := range c {
				f := other.rxNext()
				if k != j {
					if f != nil {
						t.Fatalf("card %d got what %d sent to %d", k, i, j)
					}
					continue
				}
				if f == nil || !bytes.Equal(f.bytes(), frameTo(to, byte(10*i+j))) {
					t.Fatalf("card %d did not get what %d sent", j, i)
				}
				if f.answers.to != &from.port {
					t.Errorf("the way back from %d does not lead to %d", j, i)
				}
				to.answerReturn(f.answers)
				to.rxDone(f, 0, true)
			}
		}
	}
	b := frameTo(c[0], 1)
	copy(b, []byte{2, 0xee, 0xee, 0xee, 0xee, 0xee})
	for range 100 {
		send(t, c[0], b, laneRequests) // and takes no room
	}
	for k := range c {
		if c[k].rxNext() != nil {
			t.Errorf("card %d got a stranger's frame", k)
		}
	}
}

// On a wire of two, as on a cable, the other end gets what is not for this one.
func TestCableCarriesAll(t *testing.T) {
	c := joined(t, 8, 2)
	b := frameTo(c[1], 1)
	copy(b, []byte{2, 0xee, 0xee, 0xee, 0xee, 0xee})
	send(t, c[0], b, laneRequests)
	for range 3 {
		c[1].Step(0, 10)
	}
	if n := c[1].count[cntRXDropAddress]; n != 1 {
		t.Errorf("RX_DROP_ADDRESS %d", n)
	}
	if n := c[1].count[cntRXFrames]; n != 1 {
		t.Errorf("RX_FRAMES %d", n)
	}
}

// A port that leaves takes its links with it: what others send to it vanishes, and
// takes no room for ever.
func TestPortLeaves(t *testing.T) {
	c := joined(t, 2, 2)
	l := c[0].route(macNumber(c[1].cfg.MAC))
	f := c[0].slot(l, laneRequests)
	c[1].Close()
	f.start, f.end = headroom, headroom+64
	c[0].send(f, 0)
	for range 10 {
		send(t, c[0], frameTo(c[1], 1), laneRequests)
		if !c[0].answerRoom(l) {
			t.Fatal("no room for an answer on a dead link")
		}
		g := c[0].txAnswer(l)
		if g == nil {
			t.Fatal("no slot on a dead link")
		}
		g.start, g.end = headroom, headroom+64
		c[0].send(g, 0)
	}
	c[0].Step(0, 10)
}

// The link comes up when a card is joined and goes down when it leaves, and an
// event tells it.
func TestLinkEvents(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	q := r.createEQ(0, 4, 0, true)
	if v := r.load(hw.RegPortLink); v != uint32(hw.LinkStateDown) {
		t.Errorf("LINK %d", v)
	}
	w, err := NewWire(0)
	r.must(err)
	r.must(w.Join(r.card))
	r.run()
	if e, is := q.next(); !is || e.Type != hw.EventTypePortActive || e.Object != 1 {
		t.Errorf("event %+v", e)
	}
	if v := r.load(hw.RegPortLink); v != uint32(hw.LinkStateActive) {
		t.Errorf("LINK %d", v)
	}
	if x := hw.ViewPortContext(r.do(hw.CommandQueryPort, 1, 0, nil, hw.PortContextSize)); x.Link != hw.LinkStateActive || x.Speed == 0 {
		t.Errorf("port %+v", *x)
	}
	if err := w.Join(r.card); err == nil {
		t.Error("joined twice")
	}
	r.card.port.leave()
	r.run()
	if e, is := q.next(); !is || e.Type != hw.EventTypePortErr || e.Object != 1 {
		t.Errorf("event %+v", e)
	}
}

// Payload lies at a 64-byte-aligned place in each slot.
func TestSlotsAreAligned(t *testing.T) {
	c := joined(t, 7, 2)
	l := c[0].route(macNumber(c[1].cfg.MAC))
	for lane := range numLanes {
		for range 7 {
			f := c[0].slot(l, lane)
			if f == nil {
				break
			}
			if hw.ViewCQE(f.buf[headroom:]) == nil { // an overlay that wants 64
				t.Fatal("payload is not aligned to 64 bytes")
			}
			if len(f.buf) < headroom+roce.MaxMTU+3+roce.ICRCLen {
				t.Fatal("no room for a full payload")
			}
			f.start, f.end = headroom, headroom+64
			c[0].send(f, 0)
		}
	}
}

// Frames cost no allocation once the wire has been used.
func TestWireAllocatesNothing(t *testing.T) {
	c := joined(t, 8, 2)
	b := frameTo(c[1], 1)
	send(t, c[0], b, laneRequests)
	c[1].Step(0, 10)
	if n := testing.AllocsPerRun(200, func() {
		trySend(c[0], b, laneRequests)
		c[1].Step(0, 10)
		c[0].Step(0, 10)
	}); n != 0 {
		t.Errorf("%.1f allocations a frame", n)
	}
}
