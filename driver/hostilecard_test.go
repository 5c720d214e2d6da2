package driver

import (
	"testing"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// FuzzEvents has a card that writes what it likes into its event queue: each EQE is taken once,
// those of completions wake at most their queue, and the program gets no more events than came.
func FuzzEvents(f *testing.F) {
	seed := func(es ...hw.EQE) (b []byte) {
		for i := range es {
			b = append(b, es[i].AsBytes()...)
		}
		return b
	}
	f.Add(seed(hw.EQE{Type: hw.EventTypeCompletion, Object: 3}, hw.EQE{Type: hw.EventTypeCommEst, Object: 2}))
	f.Add(seed(hw.EQE{Type: hw.EventTypeCQError, Object: 3}, hw.EQE{Type: hw.EventTypeEQOverflow, Info: 1 << 31}, hw.EQE{Type: 0xff, Object: 1 << 31, Subtype: 255}))
	f.Add(seed(hw.EQE{Type: hw.EventTypeCompletion, Object: 1 << 30}, hw.EQE{Type: hw.EventTypePortErr, Object: 1}, hw.EQE{Type: hw.EventTypeDeviceFatal}))
	f.Fuzz(func(t *testing.T, in []byte) {
		d, _ := fuzzDevice(t)
		word := make([]uint32, 3)
		ring := make([]byte, 64<<10)[:16*hw.EQESize]
		eq, err := queues.NewEQ(ring, &word[0], &d.domain)
		if err != nil {
			t.Fatal(err)
		}
		cq := &CQ{d: d, n: 3, wake: make(chan struct{}, 1), ended: make(chan struct{})}
		cq.eventFD.Store(-1)
		if cq.q, err = queues.NewCQ(make([]byte, 64<<10)[:2*hw.CQESize], &word[1], &word[2], &d.domain); err != nil {
			t.Fatal(err)
		}
		v := &vector{d: d, eq: eq}
		d.cqs = map[uint32]*CQ{3: cq}
		d.vectors = []*vector{v}
		d.cqByN = newCQTable(4)
		d.cqByN.set(3, cq)
		cq.vector = v
		wrote, async := uint32(0), 0
		for ; len(in) >= hw.EQESize && wrote < 64; in = in[hw.EQESize:] {
			e := ring[wrote%16*hw.EQESize:][:hw.EQESize]
			copy(e, in)
			x := hw.ViewEQE(e)
			x.SetPhase(wrote>>4&1 == 0)
			if x.Type != hw.EventTypeCompletion {
				async++
			}
			wrote++
			if v.drain(); eq.Consumer() != wrote || word[0] != wrote {
				t.Fatalf("%d of %d events are taken, the card is told of %d", eq.Consumer(), wrote, word[0])
			}
		}
		got := 0
		for {
			_, ok, _ := d.events.pop()
			if !ok {
				break
			}
			got++
		}
		if got != async {
			t.Errorf("%d events for %d that came", got, async)
		}
	})
}

// FuzzReplies has a card that writes what it likes into the reply ring: a call gets the reply
// that has its token, once, and no more of the output mailbox than there is. A turn of the
// input is a slot's number and its abandonment, then a reply.
func FuzzReplies(f *testing.F) {
	turn := func(how byte, r hw.CommandReply) []byte { return append([]byte{how}, r.AsBytes()...) }
	f.Add(turn(0, hw.CommandReply{Token: 0x20}))
	f.Add(append(turn(0x81, hw.CommandReply{Token: 0x21, OutLength: 1 << 31}), turn(2, hw.CommandReply{Token: 0x21})...))
	f.Add(append(turn(0x40, hw.CommandReply{Token: 0x20}), turn(0x40, hw.CommandReply{Token: 0x20})...)) // twice, before the call has looked
	f.Add(turn(0x40, hw.CommandReply{Token: 0xffffffff, Status: 255}))
	f.Fuzz(func(t *testing.T, in []byte) {
		d := &Device{addr: "fuzz", log: zap.NewNop()}
		const slots = 8
		ring := make([]byte, 64<<10)[:slots*hw.CommandReplySize]
		q, err := queues.NewCommand(make([]byte, 64<<10)[:slots*hw.CommandEntrySize], ring)
		if err != nil {
			t.Fatal(err)
		}
		c := &commands{d: d, q: q, slots: make([]commandSlot, slots), free: make(chan int, slots), dead: make(chan struct{})}
		for i := range c.slots {
			c.slots[i] = commandSlot{token: 1<<commandLogEntries | uint32(i), busy: true, reply: make(chan hw.CommandReply, 1), out: vfio.Block{Bytes: make([]byte, mailboxOut)}}
		}
		for n := uint32(0); len(in) > hw.CommandReplySize && n < 64; n++ {
			how := in[0]
			s := &c.slots[how%slots]
			e := ring[n%slots*hw.CommandReplySize:][:hw.CommandReplySize]
			copy(e, in[1:])
			in = in[1+hw.CommandReplySize:]
			r := hw.ViewCommandReply(e)
			r.SetPhase(n/slots&1 == 0)
			if how&0x40 == 0 {
				r.Token = s.token
			}
			if how&0x80 != 0 && s.busy {
				s.abandoned = true
			}
			bogus, waited := c.bogus, s.busy && !s.abandoned && !s.answered
			c.poll()
			if how&0x40 == 0 && waited {
				if len(s.reply) != 1 {
					t.Fatal("the reply with the right token was not handed out")
				}
				x := <-s.reply
				out := make([]byte, 64)
				if err := c.finish(int(how%slots), &x, out); (err == nil) != (x.Status == hw.CommandStatusOK) {
					t.Fatalf("status %v: %v", x.Status, err)
				}
				<-c.free
				s.token += 1 << commandLogEntries // as the next call has it
				s.busy, s.answered = true, false
			} else if how&0x40 == 0 && c.bogus == bogus && !s.abandoned && s.busy {
				t.Fatal("a second reply was taken")
			}
			if s.abandoned = false; !s.busy {
				<-c.free
				s.token, s.busy, s.answered = s.token+1<<commandLogEntries, true, false
			}
		}
	})
}

// FuzzCapture: a captured frame has the bytes that its slot can hold at most, whatever the card
// says of it.
func FuzzCapture(f *testing.F) {
	head := hw.CaptureRecord{Captured: 60, Length: 60, QPN: 2}
	f.Add(append(append([]byte{}, head.AsBytes()...), make([]byte, 64)...))
	head.Captured = 1 << 31
	f.Add(append([]byte{}, head.AsBytes()...))
	f.Fuzz(func(t *testing.T, in []byte) {
		const stride = 8
		ring := make([]byte, 64<<10)[:4<<stride]
		q, err := queues.NewCapture(ring, stride, new(uint32))
		if err != nil {
			t.Fatal(err)
		}
		c := &captureRing{q: q}
		for n := uint32(0); len(in) > 0 && n < 64; n++ {
			slot := ring[n%4<<stride:][:1<<stride]
			in = in[copy(slot, in):]
			h := hw.ViewCaptureRecord(slot)
			h.SetPhase(n>>2&1 == 0)
			x, ok := c.next()
			if !ok || len(x.Data) > 1<<stride-hw.CaptureHeader || uint32(len(x.Data)) > h.Captured {
				t.Fatalf("%v, %d bytes of %d", ok, len(x.Data), h.Captured)
			}
		}
	})
}
