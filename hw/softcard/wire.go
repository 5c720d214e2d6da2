package softcard

import (
	"fmt"
	"sync"
	"sync/atomic"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/hw/roce"
)

// A frame's place in its slot: headers end and payload begins at headroom, a
// multiple of 64; behind the payload are pad and ICRC.
const (
	headroom  = roce.Headroom
	slotBytes = headroom + roce.MaxMTU + 64
)

// frame is a slot of a lane, or a copy of one that the port holds.
type frame struct {
	buf        []byte // slotBytes, 64-byte-aligned
	start, end int    // the frame is buf[start:end], from Ethernet header to ICRC
	seq        uint64 // its number among the frames of its link
	link       *link  // by which it came or goes
	answers    *link  // received request: the way back, on which room for an answer is promised
	lane       int
	held       bool // a copy: not in a lane
	built      bool // the RTL engine has made the whole frame
}

// bytes is the frame, from the Ethernet header to the ICRC.
func (f *frame) bytes() []byte { return f.buf[f.start:f.end] }

// payload is the place of n bytes of payload, pad and ICRC.
func (f *frame) payload(n int) []byte { return f.buf[headroom : headroom+n] }

// The lanes of a link. Requests never take the room of answers: two cards that
// send to each other would wait for each other for ever.
const (
	laneRequests = iota
	laneAnswers
	numLanes
)

// lane is a bounded queue of one writer and one reader. Its slots hold the
// frames themselves: they are built and parsed in place.
type lane struct {
	slots []frame
	mask  uint64 // len(slots) - 1 where that is a power of two, else 0
	head  solo   // frames taken, stored by the reader
	_     [56]byte
	tail  solo // frames put, stored by the writer
	_     [56]byte
}

// solo is a number that one goroutine stores and others load. A store hands on what was
// stored before, and is no full fence: where a load must come after it, as in tell, there
// is one besides.
type solo struct{ v uint64 }

func (s *solo) Load() uint64 { return atomic.LoadUint64(&s.v) }

func (s *solo) Store(n uint64) { mmio.Release64(&s.v, n) }

func (l *lane) slot(n uint64) *frame {
	if l.mask != 0 {
		return &l.slots[n&l.mask]
	}
	return &l.slots[n%uint64(len(l.slots))]
}

// next is the writer's next slot, nil if there is none. Memory is taken when the
// lane is first used.
func (l *lane) next() *frame {
	if l.free() == 0 {
		return nil
	}
	f := l.slot(l.tail.Load())
	if f.buf == nil {
		slab := make([]byte, max(len(l.slots)*slotBytes, 64<<10)) // large blocks start on a page
		for i := range l.slots {
			l.slots[i].buf = slab[i*slotBytes : (i+1)*slotBytes : (i+1)*slotBytes]
		}
	}
	return f
}

// free is how many slots are free, by the writer.
func (l *lane) free() int { return len(l.slots) - int(l.tail.Load()-l.head.Load()) }

// link carries frames in one direction from one port to another, or back to the
// same one.
type link struct {
	from, to *port
	lanes    [numLanes]lane
	closed   atomic.Bool // a port has left: what is sent vanishes

	// The sender's.
	seq      uint64
	promised int // answers for which room is promised and not yet taken
	// The receiver's.
	back *link // the way back, nil if there is none
}

func newLink(from, to *port, slots int) *link {
	l := &link{from: from, to: to}
	reserve := max(slots/2, 1)
	for i, n := range []int{max(slots-reserve, 1), reserve} {
		l.lanes[i].slots = make([]frame, n)
		if n&(n-1) == 0 {
			l.lanes[i].mask = uint64(n - 1)
		}
		for j := range l.lanes[i].slots {
			l.lanes[i].slots[j] = frame{link: l, lane: i}
		}
	}
	return l
}

// DefaultSlots is the room of a wire's direction, in frames.
const DefaultSlots = 64

// Wire joins the ports of cards as a switch does: a frame goes to the port that
// has its destination address, on a wire of two in any case to the other one.
// Each direction between two ports has room for a bounded number of frames,
// half of which only answers may take. Nothing is lost.
type Wire struct {
	slots int
	mu    sync.Mutex
	ports []*port
}

// NewWire makes a wire with room for so many frames in each direction; 0 is
// DefaultSlots, the least is 2.
func NewWire(slots int) (*Wire, error) {
	if slots == 0 {
		slots = DefaultSlots
	}
	if slots < 2 || slots > 1<<16 {
		return nil, fmt.Errorf("softcard: wire of %d slots: 2 to 65536", slots)
	}
	return &Wire{slots: slots}, nil
}

// Join connects a card's port, which must not be joined yet. The link comes up.
func (w *Wire) Join(c *Card) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.port.wire != nil {
		return fmt.Errorf("softcard: card %q is joined to a wire already", c.cfg.Name)
	}
	p := &c.port
	p.wire = w
	loop := newLink(p, p, w.slots)
	loop.back = loop
	in, out := []*link{loop}, []*link{loop}
	for _, q := range w.ports {
		there, back := newLink(p, q, w.slots), newLink(q, p, w.slots)
		there.back, back.back = back, there
		out, in = append(out, there), append(in, back)
		q.links.Store(q.links.Load().with(there, back))
	}
	p.links.Store(&links{in: in, out: out})
	w.ports = append(w.ports, p)
	p.setLink(hw.LinkStateActive)
	c.rouse()
	return nil
}

// leave takes a port off its wire. Frames under way to it and from it vanish.
func (w *Wire) leave(p *port) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.ports[:0:0]
	for _, q := range w.ports {
		if q != p {
			kept = append(kept, q)
			q.links.Store(q.links.Load().without(p))
		}
	}
	w.ports = kept
	for _, l := range append(p.links.Load().in, p.links.Load().out...) {
		l.closed.Store(true)
	}
	p.links.Store(&links{})
	p.wire = nil
	p.setLink(hw.LinkStateDown)
	for _, q := range kept { // one may wait for room on the way to this port
		q.card.rouse()
	}
}

// links are a port's, changed as a whole.
type links struct{ in, out []*link }

func (l *links) with(in, out *link) *links {
	return &links{in: append(l.in[:len(l.in):len(l.in)], in), out: append(l.out[:len(l.out):len(l.out)], out)}
}

func (l *links) without(p *port) *links {
	n := &links{}
	for _, k := range l.in {
		if k.from != p {
			n.in = append(n.in, k)
		}
	}
	for _, k := range l.out {
		if k.to != p {
			n.out = append(n.out, k)
		}
	}
	return n
}
