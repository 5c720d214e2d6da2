package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// EventType says what an asynchronous event is about. The card's own have the
// contract's numbers, the driver's own begin at 0x100.
type EventType uint16

// Types of events.
const (
	EventCQError                    = EventType(hw.EventTypeCQError)          // Object: CQ; it overflowed
	EventQPFatal                    = EventType(hw.EventTypeQPFatal)          // Object: QP; Reason
	EventQPReqErr                   = EventType(hw.EventTypeQPReqErr)         // Object: QP; the peer's request was invalid
	EventQPAccessErr                = EventType(hw.EventTypeQPAccessErr)      // Object: QP; the peer's access was refused; Reason
	EventCommEst                    = EventType(hw.EventTypeCommEst)          // Object: QP; first packet in RTR
	EventSQDrained                  = EventType(hw.EventTypeSQDrained)        // Object: QP
	EventQPLastWQEReached           = EventType(hw.EventTypeQPLastWQEReached) // Object: QP
	EventSRQErr                     = EventType(hw.EventTypeSRQErr)           // Object: SRQ
	EventSRQLimitReached            = EventType(hw.EventTypeSRQLimitReached)  // Object: SRQ
	EventPortActive                 = EventType(hw.EventTypePortActive)       // Object: port
	EventPortErr                    = EventType(hw.EventTypePortErr)          // Object: port
	EventGIDChange                  = EventType(hw.EventTypeGIDChange)        // Object: port
	EventDeviceFatal                = EventType(hw.EventTypeDeviceFatal)      // the card stopped
	EventEQOverflow                 = EventType(hw.EventTypeEQOverflow)       // Object: EQ; the card lost Info events
	EventOverflow         EventType = 0x100                                   // this program did not call NextEvent; Info events were dropped
	EventDeviceGone       EventType = 0x101                                   // the last event
	EventVerify           EventType = 0x102                                   // Object: QP, frozen by verification; Info: packet of the message
)

// String names the type.
func (t EventType) String() string {
	switch t {
	case EventOverflow:
		return "OVERFLOW"
	case EventDeviceGone:
		return "DEVICE_GONE"
	case EventVerify:
		return "VERIFY"
	}
	return hw.EventType(t).String()
}

// Event is something that befell an object outside the order of calls.
type Event struct {
	Type   EventType
	Object uint32 // number of the QP, CQ, EQ, SRQ or port
	Reason Reason
	Info   uint32
	Time   uint64 // card time, ns; 0 for the driver's own
}

// String gives type, object and reason.
func (e Event) String() string {
	s := fmt.Sprintf("%v of %#x", e.Type, e.Object)
	if e.Reason != ReasonNone {
		s += fmt.Sprintf(" (%v)", e.Reason)
	}
	return s
}

// eventQueue holds asynchronous events until NextEvent takes them. When it is
// full further ones are counted, and the count comes as an event in their
// place.
type eventQueue struct {
	mu   sync.Mutex
	ring []Event
	head int
	lost uint32
	wake chan struct{} // one token when there may be something
	last []Event       // the newest, for the status socket
}

const (
	eventQueueSize = 1024
	eventsRecent   = 64
)

func newEventQueue() *eventQueue { return &eventQueue{wake: make(chan struct{}, 1)} }

func (q *eventQueue) push(e Event) {
	q.mu.Lock()
	if len(q.last) == eventsRecent {
		q.last = append(q.last[:0], q.last[1:]...)
	}
	q.last = append(q.last, e)
	switch {
	case len(q.ring)-q.head >= eventQueueSize && e.Type != EventDeviceGone: // the last event always fits
		q.lost++
	case q.lost > 0:
		q.ring = append(q.ring, Event{Type: EventOverflow, Info: q.lost}, e)
		q.lost = 0
	default:
		q.ring = append(q.ring, e)
	}
	q.mu.Unlock()
	q.signal()
}

// recent are the newest events, taken or not.
func (q *eventQueue) recent() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Event(nil), q.last...)
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop takes the oldest event; more says that another caller should be woken.
func (q *eventQueue) pop() (e Event, ok, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.ring) {
		e, ok = q.ring[q.head], true
		if q.head++; q.head == len(q.ring) {
			q.ring, q.head = q.ring[:0], 0
		} else if q.head >= eventQueueSize {
			q.ring = append(q.ring[:0], q.ring[q.head:]...)
			q.head = 0
		}
	} else if q.lost > 0 {
		e, ok = Event{Type: EventOverflow, Info: q.lost}, true
		q.lost = 0
	}
	return e, ok, q.head < len(q.ring) || q.lost > 0
}

// NextEvent gives the oldest asynchronous event, waiting for one until the
// context or the device ends. Events wait in a queue of 1,024; when the
// program does not take them, what does not fit is counted and reported as
// EventOverflow. After EventDeviceGone it is ErrDeviceGone.
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	for {
		e, ok, more := d.events.pop()
		if more {
			d.events.signal()
		}
		if ok {
			return e, nil
		}
		if err := d.alive(); err != nil {
			return Event{}, d.fail("wait for an event", "", err)
		}
		select {
		case <-d.events.wake:
		case <-d.gone:
		case <-d.stop:
		case <-ctx.Done():
			return Event{}, d.fail("wait for an event", "", &DeadlineError{Waited: "an event", Cause: context.Cause(ctx)})
		}
	}
}

// vector is an MSI-X vector: its eventfd, the goroutine that reads it, and the
// event queue behind it.
type vector struct {
	d *Device
	n int
	f *vfio.EventFD

	mu    sync.Mutex
	eq    *queues.EQ // nil until a CQ needs it
	ring  vfio.Block
	bell  doorbell
	users int // CQs that report here
	lost  uint64
}

// startVectors gives the function an eventfd for each vector that is used:
// vector 0 for commands and asynchronous events, the others for completions. One
// is enough where the machine has no more.
func (d *Device) startVectors(want int) error {
	info, err := d.dev.IRQ(vfio.IRQMSIX)
	if err != nil {
		return err
	}
	n := min(want, info.Count, d.attr.Vectors)
	if n < 1 {
		return fmt.Errorf("MSI-X with %d vectors: %w", info.Count, ErrNotSupported)
	}
	fds := make([]int, n)
	for i := range n {
		f, err := vfio.NewEventFD(fmt.Sprintf("rnic vector %d", i))
		if err != nil {
			return err
		}
		d.vectors = append(d.vectors, &vector{d: d, n: i, f: f})
		fds[i] = f.FD()
	}
	err = d.dev.SetIRQs(vfio.IRQMSIX, 0, fds)
	if few := (*vfio.VectorsError)(nil); errors.As(err, &few) && few.Available > 0 && few.Available < n {
		d.log.Warn("the machine has few interrupt vectors left", zap.Int("asked", n), zap.Int("used", few.Available))
		for _, v := range d.vectors[few.Available:] {
			_ = v.f.Close()
		}
		d.vectors = d.vectors[:few.Available]
		err = d.dev.SetIRQs(vfio.IRQMSIX, 0, fds[:few.Available])
	}
	if err != nil {
		return err
	}
	for _, v := range d.vectors {
		d.wg.Add(1)
		go v.run()
	}
	return nil
}

// run serves the vector's interrupts until its eventfd is closed.
func (v *vector) run() {
	defer v.d.wg.Done()
	for {
		if err := v.f.Wait(); err != nil {
			return
		}
		if v.n == 0 {
			v.d.cmd.poll()
			if g := v.d.host.Load(); g != nil {
				g.notify()
			}
		}
		v.drain()
	}
}

// drain takes the event queue's events.
func (v *vector) drain() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.eq == nil {
		return
	}
	var e hw.EQE
	took := false
	for v.eq.Next(&e) {
		took = true
		switch e.Type {
		case hw.EventTypeCompletion:
			if c := v.d.cqByN.get(e.Object); c != nil {
				c.notify()
			}
			continue
		case hw.EventTypeEQOverflow:
			// Completion events may be among those lost: everyone looks.
			v.lost += uint64(e.Info)
			cqs := v.d.cqByN.on(v.n)
			for _, c := range cqs {
				c.notify()
			}
			if v.n == 0 { // asynchronous ones too
				signal(v.d.lostAsk)
			}
		case hw.EventTypeCQError:
			if c := v.d.cqByN.get(e.Object); c != nil {
				c.overrun()
			}
		case hw.EventTypeQPFatal:
			if e.Subtype == hw.ReasonRingRead {
				v.d.mu.Lock()
				q := v.d.qps[e.Object]
				v.d.mu.Unlock()
				if q != nil {
					q.ringLost(e.Info, e.Time)
				}
			}
		case hw.EventTypePortActive, hw.EventTypePortErr, hw.EventTypeGIDChange:
			signal(v.d.portAsk)
		}
		v.d.log.Info("event", zap.Stringer("type", e.Type), zap.Uint32("object", e.Object), zap.Stringer("reason", e.Subtype), zap.Uint32("info", e.Info))
		v.d.events.push(Event{Type: EventType(e.Type), Object: e.Object, Reason: e.Subtype, Info: e.Info, Time: e.Time})
	}
	if took {
		v.eq.Publish()
	}
}

// eqEntries is the size of an event queue. A CQ has one event outstanding for
// each arming, so a program would have to arm this often without being woken.
const eqEntries = 2048

// useEQ makes the vector's event queue if it has none yet, and counts a user.
// The async queue takes the asynchronous events too.
func (v *vector) useEQ(ctx context.Context, async bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.eq != nil {
		v.users++
		return nil
	}
	d := v.d
	log, err := d.ctrl.Read32(hw.RegIdentMaxEQLogEntries)
	if err != nil {
		return err
	}
	n := min(eqEntries, 1<<min(log, 16))
	ring, err := d.alloc(n*hw.EQESize, 4096)
	if err != nil {
		return err
	}
	bell, err := d.newDoorbell()
	if err != nil {
		d.arena.Free(ring)
		return err
	}
	word, err := d.word(bell.offset)
	if err != nil {
		return err
	}
	eq, err := queues.NewEQ(ring.Bytes, word, &d.domain)
	if err != nil {
		return err
	}
	c := hw.EQContext{IOVA: ring.IOVA, Doorbell: uint32(bell.offset), Vector: uint16(v.n), LogEntries: logOf(n)}
	if async {
		c.Async = 1
	}
	// The vector's goroutine may look before the reply is here: the queue is
	// empty then, and this lock keeps it out.
	if err := d.command(ctx, hw.CommandCreateEQ, uint32(v.n), 0, c.AsBytes(), nil); err != nil {
		d.abandon(err, ring, bell.page)
		return err
	}
	v.eq, v.ring, v.bell = eq, ring, bell
	v.users++
	return nil
}
