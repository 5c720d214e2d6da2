package softcard

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/hw/roce"
)

// maxHeld bounds the frames that a port holds back (debug page).
const maxHeld = 1 << 14

// port is the card's end of a wire.
type port struct {
	card  *Card
	wire  *Wire // under wire.mu
	links atomic.Pointer[links]
	mac   atomic.Uint64 // the port's address, for the switch
	link  atomic.Uint32 // hw.LinkState
	void  *link         // where a frame goes that no port is there for

	turn int // link that is served next, the receiver's

	// Frames that the debug page keeps from the card: in a stepped run those
	// that RUN_STEP will take in (ready), with HOLD those that PORT_TAKE will
	// name (waiting). Register accesses come here, so there is a lock.
	mu       sync.Mutex
	stepped  bool
	hold     bool
	waiting  []*frame
	ready    []*frame
	free     []*frame    // copies to use again
	queueing atomic.Bool // frames go through the queues above
}

func (p *port) init(c *Card) {
	p.card = c
	p.void = newLink(p, p, 2)
	p.void.closed.Store(true)
	p.links.Store(&links{})
	p.setLink(hw.LinkStateDown)
}

func (p *port) leave() {
	if w := p.wire; w != nil {
		w.leave(p)
	}
}

func (p *port) setLink(s hw.LinkState) { p.link.Store(uint32(s)) }

// reset forgets what the card had under way; frames on the wire stay there.
func (p *port) reset() {
	p.mu.Lock()
	p.stepped, p.hold = false, false
	p.waiting, p.ready = nil, nil
	p.queueing.Store(false)
	p.mu.Unlock()
	for _, l := range p.links.Load().out {
		l.promised = 0
	}
}

func macNumber(m [6]byte) (n uint64) {
	for _, b := range m {
		n = n<<8 | uint64(b)
	}
	return n
}

// route is the link to the port with a MAC (macNumber).
func (c *Card) route(mac uint64) *link {
	out := c.port.links.Load().out
	for _, l := range out {
		if l.to.mac.Load() == mac {
			return l
		}
	}
	if len(out) == 2 { // a cable: all that is not for this port goes to the other
		return out[1]
	}
	return c.port.void
}

// txRequest gives a slot for a request on l, or nil where the wire is full. It
// stays the same one until send.
func (c *Card) txRequest(l *link) *frame { return c.slot(l, laneRequests) }

// txAnswer gives a slot for an answer for which room on l was promised. It can
// be nil only while the debug page holds frames back.
func (c *Card) txAnswer(l *link) *frame { return c.slot(l, laneAnswers) }

func (c *Card) slot(l *link, lane int) *frame {
	if l.closed.Load() {
		l = c.port.void
	}
	return l.lanes[lane].next()
}

// answerRoom promises room for one more answer on l, and is false where there
// is none. Each promise ends in the send of an answer or in answerReturn.
func (c *Card) answerRoom(l *link) bool {
	if l.closed.Load() {
		return true
	}
	if l.lanes[laneAnswers].free() <= l.promised && !c.port.queueing.Load() {
		return false
	}
	l.promised++
	return true
}

// answerReturn gives a promise back.
func (c *Card) answerReturn(l *link) {
	if l.promised > 0 {
		l.promised--
	}
}

// send puts a frame of txRequest or txAnswer, complete with ICRC, on the wire.
func (c *Card) send(f *frame, qpn uint32) {
	n := f.end - f.start
	c.count[cntTXFrames]++
	c.count[cntTXBytes] += uint64(n)
	c.capture(f.bytes(), hw.DirectionTX, qpn, 0)
	l := f.link
	if f.lane == laneAnswers {
		c.answerReturn(l)
	}
	if l.closed.Load() { // the void: the slot is free again
		return
	}
	f.seq = l.seq
	l.seq++
	q := &l.lanes[f.lane]
	q.tail.Store(q.tail.Load() + 1)
	if l.to != &c.port {
		c.tell(l.to.card)
	}
}

// rxNext gives the next frame that has arrived, nil if there is none that may be
// taken. Of a request, room for an answer is then promised on f.answers: it is
// used by send or given back by answerReturn. rxDone ends the frame's use.
func (c *Card) rxNext() *frame {
	p := &c.port
	if p.queueing.Load() {
		return c.rxReady()
	}
	in := p.links.Load().in
	for range in {
		if p.turn >= len(in) {
			p.turn = 0
		}
		l := in[p.turn]
		p.turn++
		if f := c.rxLink(l); f != nil {
			c.count[cntRXFrames]++
			c.count[cntRXBytes] += uint64(f.end - f.start)
			return f
		}
	}
	return nil
}

// rxLink gives the next frame of a link: the oldest one, or the oldest answer
// while a request before it has to wait for room.
func (c *Card) rxLink(l *link) *frame {
	f := l.oldest()
	if f == nil || f.lane == laneAnswers {
		return f
	}
	if c.answerRoom(l.back) {
		f.answers = l.back
		return f
	}
	return l.head(laneAnswers)
}

func (l *link) head(lane int) *frame {
	q := &l.lanes[lane]
	if n := q.head.Load(); n != q.tail.Load() {
		return q.slot(n)
	}
	return nil
}

// oldest is the frame that was sent first. Once a frame is seen, so are those
// sent before it; hence the second look.
func (l *link) oldest() *frame {
	a := l.head(laneAnswers)
	r := l.head(laneRequests)
	if r != nil && a == nil {
		a = l.head(laneAnswers)
	}
	if a == nil || r != nil && r.seq < a.seq {
		return r
	}
	return a
}

// isRequest says whether a frame asks something of this card that it may have to
// answer; whatever cannot be told is taken for a request.
func isRequest(b []byte) bool {
	at := roce.EthernetLen
	if len(b) < at+2 {
		return true
	}
	t := roce.Ethernet(b).EtherType()
	if t == roce.EtherTypeVLAN && len(b) >= at+roce.VLANLen {
		t = roce.VLAN(b[at:]).EtherType()
		at += roce.VLANLen
	}
	if t == roce.EtherTypeIPv6 {
		at += roce.IPv6Len
	} else {
		at += roce.IPv4Len
	}
	if at += roce.UDPLen; at >= len(b) {
		return true
	}
	switch op := b[at]; { // RC responses (InfiniBand specification volume 1, table 38)
	case op >= 0x0d && op <= 0x12:
		return false
	}
	return true
}

// rxDone ends the use of a received frame. qpn is this card's QP, 0 where
// unknown; dropped says that the frame had no effect.
func (c *Card) rxDone(f *frame, qpn uint32, dropped bool) {
	var flags hw.CaptureFlag
	if dropped {
		flags = hw.CaptureFlagDropped
	}
	c.capture(f.bytes(), hw.DirectionRX, qpn, flags)
	f.answers = nil
	if f.held {
		c.port.recycle(f)
		return
	}
	q := &f.link.lanes[f.lane]
	q.head.Store(q.head.Load() + 1)
	if from := f.link.from; from != &c.port {
		c.tell(from.card) // it may wait for room
	}
}

// absorb moves frames from the wire to the port's queues while the debug page
// keeps them from the card, so that no sender waits for a turn that only the
// client gives.
func (c *Card) absorb() (worked bool) {
	p := &c.port
	if !p.queueing.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links.Load().in {
		for f := l.oldest(); f != nil && len(p.waiting)+len(p.ready) < maxHeld; f = l.oldest() {
			g := p.copyOf(f)
			if p.hold {
				p.waiting = append(p.waiting, g)
			} else {
				p.ready = append(p.ready, g)
			}
			q := &l.lanes[f.lane]
			q.head.Store(q.head.Load() + 1)
			if l.from != p {
				c.tell(l.from.card)
			}
			worked = true
		}
	}
	if !p.hold && !p.stepped && len(p.ready) == 0 {
		p.queueing.Store(false)
	}
	return worked
}

// copyOf is a copy of a frame, under mu.
func (p *port) copyOf(f *frame) *frame {
	var g *frame
	if n := len(p.free); n > 0 {
		g, p.free = p.free[n-1], p.free[:n-1]
	} else {
		g = &frame{buf: make([]byte, slotBytes)}
	}
	buf := g.buf
	*g = frame{buf: buf, start: f.start, end: f.end, link: f.link, lane: f.lane, held: true}
	copy(buf[f.start:f.end], f.bytes())
	return g
}

func (p *port) recycle(f *frame) {
	p.mu.Lock()
	p.free = append(p.free, f)
	p.mu.Unlock()
}

// rxReady is rxNext while frames go through the port's queues.
func (c *Card) rxReady() *frame {
	p := &c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return nil
	}
	f := p.ready[0]
	p.ready[0] = nil
	p.ready = p.ready[1:]
	if isRequest(f.bytes()) {
		f.answers = f.link.back
		c.answerRoom(f.answers) // never refused here
	}
	c.count[cntRXFrames]++
	c.count[cntRXBytes] += uint64(f.end - f.start)
	return f
}

// setStepped follows RUN_MODE.
func (p *port) setStepped(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepped = on
	if on {
		p.queueing.Store(true)
	}
}

// setHold follows PORT_MODE. Frames that wait when it ends are received.
func (p *port) setHold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = on
	if on {
		p.queueing.Store(true)
		return
	}
	p.ready = append(p.ready, p.waiting...)
	p.waiting = nil
}

// waitingFrames is register PORT_WAITING.
func (p *port) waitingFrames() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold {
		return len(p.waiting)
	}
	return len(p.ready)
}

// take does what a store to PORT_TAKE says.
func (p *port) take(t hw.DebugPortTake, corrupt hw.DebugPortCorrupt) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := int(t.Index())
	if !p.hold {
		return fmt.Errorf("PORT_MODE does not HOLD: %w", unix.EINVAL)
	}
	if i >= len(p.waiting) {
		return fmt.Errorf("index %d: %d frames wait: %w", i, len(p.waiting), unix.EINVAL)
	}
	f := p.waiting[i]
	if t.Deliver() {
		if len(p.ready)+len(p.waiting) >= 2*maxHeld {
			return fmt.Errorf("over %d frames wait: %w", 2*maxHeld, unix.ENOSPC)
		}
		g := p.copyOf(f)
		if at := int(corrupt.Offset()); t.Corrupt() && at < g.end-g.start {
			g.bytes()[at] ^= corrupt.Xor()
		}
		p.ready = append(p.ready, g)
	}
	if t.Remove() {
		p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
		p.free = append(p.free, f)
	}
	return nil
}
