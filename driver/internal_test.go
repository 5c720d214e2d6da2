package driver

import (
	"errors"
	"slices"
	"testing"
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
