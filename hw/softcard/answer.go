package softcard

import (
	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// answerKind is what an answer of the responder is.
type answerKind uint8

const (
	answerACK    answerKind = iota // ACK or NAK, by its syndrome
	answerAtomic                   // the result of an atomic
	answerRead                     // an RDMA READ response, of one packet or many
)

// answer is something the responder owes its peer.
type answer struct {
	kind     answerKind
	syndrome roce.Syndrome
	reason   hw.Reason    // with event: why the QP goes to ERR
	event    hw.EventType // of a NAK after which the QP goes to ERR, else 0
	psn, msn uint32
	value    uint64 // the atomic's; of a READ: its virtual address
	key      uint32 // READ
	length   uint32 // READ
	cursor   gather.Cursor
	packet   uint32 // READ: packets sent
	count    uint32 // READ: the responder's number of it
	again    bool   // READ: the request is a duplicate
}

// isACK reports whether it is an ACK, and so covered by a later one.
func (a *answer) isACK() bool {
	return a.kind == answerACK && a.event == 0 && a.syndrome.Kind() == roce.ACK
}

// answerQueue holds the answers that could not leave at once, in order: READ
// responses, and what came after one of them.
type answerQueue struct {
	n    uint32
	head uint32
	read uint32   // READs among them
	list []answer // a ring of a power of two
}

const maxAnswers = 1024

func (a *answerQueue) empty() bool { return a.n == 0 }

func (a *answerQueue) clear() { a.head, a.n, a.read = 0, 0, 0 }

func (a *answerQueue) first() *answer { return &a.list[a.head&uint32(len(a.list)-1)] }

func (a *answerQueue) last() *answer { return &a.list[(a.head+a.n-1)&uint32(len(a.list)-1)] }

func (a *answerQueue) pop() {
	if a.first().kind == answerRead {
		a.read--
	}
	a.head++
	a.n--
}

// push appends an answer. Where the queue is as long as it may be, an ACK takes
// the place of the ACK before it, which it covers (an ACK answers for all PSNs up
// to its own: InfiniBand specification, volume 1, section 9.7.5.1.1); other
// answers are refused: to the peer they are lost.
func (a *answerQueue) push(x *answer) bool {
	if a.n == maxAnswers {
		if !x.isACK() || !a.last().isACK() {
			return false
		}
		*a.last() = *x
		return true
	}
	if int(a.n) == len(a.list) {
		grown := make([]answer, max(16, 2*len(a.list)))
		for i := range a.n {
			grown[i] = a.list[(a.head+i)&uint32(len(a.list)-1)]
		}
		a.list, a.head = grown, 0
	}
	a.n++
	*a.last() = *x
	if x.kind == answerRead {
		a.read++
	}
	return true
}

// owe sends an answer in the room that was promised when its request was
// taken in, or queues it behind those that wait.
func (c *Card) owe(q *qp, a *answer) bool {
	if c.live.debug.ackCoalesce && a.isACK() {
		// It waits for the end of what is being taken in, and a later one may take
		// its place.
		if !q.answers.empty() && q.answers.last().isACK() {
			*q.answers.last() = *a
			return true
		}
		c.wake(q)
		return q.answers.push(a)
	}
	if a.kind != answerRead && q.answers.empty() {
		if f := c.answerSlot(q); f != nil {
			c.sendAnswer(q, a, f)
			return true
		}
	}
	ok := q.answers.push(a)
	c.wake(q)
	return ok
}

// answerSlot is a slot for an answer to the QP's peer, nil if there is no room.
// The promise that came with the frame being received is used up first.
func (c *Card) answerSlot(q *qp) *frame {
	l := c.route(q.peer)
	if c.qps.promise == l {
		c.qps.promise = nil
	} else if !c.answerRoom(l) {
		return nil
	}
	f := c.txAnswer(l)
	if f == nil {
		c.answerReturn(l)
	}
	return f
}

// ack answers with an ACK of the PSN.
func (c *Card) ack(q *qp, psn uint32) {
	c.owe(q, &answer{kind: answerACK, syndrome: roce.SyndromeACK(roce.CreditInvalid), psn: psn, msn: q.recv.msn})
}

// nak answers with a NAK of the expected PSN. One that has an event ends the
// connection: the QP takes nothing more, and goes to ERR when the NAK has left.
func (c *Card) nak(q *qp, s roce.Syndrome, event hw.EventType, r hw.Reason) {
	if event != 0 {
		q.recv.dead = true
	}
	c.owe(q, &answer{kind: answerACK, syndrome: s, event: event, reason: r, psn: q.recv.psn, msn: q.recv.msn})
}

// sendAnswer builds and sends an answer of one packet without payload.
func (c *Card) sendAnswer(q *qp, a *answer, f *frame) {
	h := &c.qps.hdr
	h.Opcode, h.SE, h.AckReq, h.PSN = roce.RCAcknowledge, false, false, a.psn
	h.AETH = roce.AETHFields{Syndrome: a.syndrome, MSN: a.msn}
	if a.kind == answerAtomic {
		h.Opcode, h.AtomicAck = roce.RCAtomicAcknowledge, a.value
	}
	c.build(q, f, 0)
	c.send(f, q.number)
	switch a.syndrome.Kind() {
	case roce.ACK:
		c.count[cntACKsSent]++
	case roce.RNRNAK:
		c.count[cntRNRNAKsSent]++
	case roce.NAK:
		c.count[cntNAKsSent]++
	}
	if a.event != 0 {
		c.enterError(q, a.reason, hw.NoSegment, 0)
		c.event(a.event, a.reason, q.number, 0)
	}
}

// respond sends the next packet of the answers that wait.
func (c *Card) respond(q *qp) turn {
	f := c.answerSlot(q)
	if f == nil {
		return turnBlocked
	}
	a := q.answers.first()
	if a.kind != answerRead {
		x := *a
		q.answers.pop()
		c.sendAnswer(q, &x, f)
		return turnWorked
	}
	n := gather.Packets(a.length, q.mtu)
	o := outgoing{
		op: gather.ReadResponse, segs: gather.WireSegments(&c.qps.wire, a.value, a.key, a.length),
		index: a.count, packet: a.packet, psn: a.psn, opcode: hw.OpcodeRDMARead, flags: hw.TraceFlagResponse,
	}
	if a.packet+1 == n {
		o.flags |= hw.TraceFlagLast
	}
	h := &c.qps.hdr
	h.Opcode, h.SE, h.AckReq, h.PSN = responseOpcode(a.packet, n), false, false, a.psn
	h.AETH = roce.AETHFields{Syndrome: roce.SyndromeACK(roce.CreditInvalid), MSN: a.msn}
	size, fault, ok := c.gatherPacket(q, &o, &a.cursor, f)
	if !ok && fault.Reason == reasonHeld {
		c.answerReturn(f.link)
		return turnBlocked
	}
	if !ok && a.again {
		c.answerReturn(f.link)
		q.answers.pop() // as at its look at the key: the rest is dropped
		return turnWorked
	}
	if !ok {
		// Nothing further of it, and the reason as at acceptance (G19).
		s, event := responderFault(fault.Reason)
		x := answer{kind: answerACK, syndrome: s, event: event, reason: fault.Reason, psn: a.psn, msn: a.msn}
		q.answers.pop()
		c.sendAnswer(q, &x, f)
		return turnWorked
	}
	c.build(q, f, size)
	length := f.end - f.start
	c.send(f, q.number)
	c.traceSent(q, &o, length)
	a.packet++
	a.psn = roce.PSNAdd(a.psn, 1)
	if a.packet == n {
		q.answers.pop()
	}
	return turnWorked
}

// responderFault is the NAK and the event for a failure of this side's memory.
func responderFault(r hw.Reason) (roce.Syndrome, hw.EventType) {
	switch r {
	case hw.ReasonKeyIndex, hw.ReasonKeyTag, hw.ReasonPD, hw.ReasonAccess, hw.ReasonBounds:
		return roce.NAKRemoteAccessError, hw.EventTypeQPAccessErr
	}
	return roce.NAKRemoteOperationalError, hw.EventTypeQPFatal
}
