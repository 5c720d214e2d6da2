package driver_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/driver"
)

// TestInterrupts_Completions: bursts of WRITEs and SENDs on several wires at once, whose programs never look at a ring but when
// an event came, or between arming and sleeping, as the order of Arm asks for. Each completion is there once, in its order, and none later
// than its deadline of 5 s after its post. A million with RNIC_FULL=1.
func TestInterrupts_Completions(t *testing.T) {
	const lanes = 2
	completions := scale(1_000_000, 40_000) / lanes
	var all sync.WaitGroup
	for l := range lanes {
		w := wires.Add(1)
		init := smallQP
		init.MaxSendWR, init.MaxRecvWR = burstMost, burstMost
		a := newSide(t, fmt.Sprintf("soft:ia%d?wire=i%d", w, w), 2*burstMost, init)
		b := newSide(t, fmt.Sprintf("soft:ib%d?wire=i%d", w, w), 2*burstMost, init)
		connect(t, a.qp, b.qp)
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(l), 11))
			taken, events := 0, 0
			for first := 0; taken < completions; first += burstMost {
				n, e, err := interrupted(a, b, first, rnd)
				if err != nil {
					t.Errorf("lane %d, after %d completions and %d events: %v", l, taken, events, err)
					return
				}
				taken, events = taken+n, events+e
				pause(rnd)
			}
			// Each burst was begun asleep.
			if events < taken/(2*burstMost) {
				t.Errorf("lane %d: %d events for %d completions: the test shows nothing", l, events, taken)
			}
			t.Logf("lane %d: %d completions by %d events", l, taken, events)
		})
	}
	all.Wait()
}

// TestInterrupts_Early: the event that Arm asked for is on a descriptor that is made after it.
func TestInterrupts_Early(t *testing.T) {
	a, b := newPair(t, smallQP)
	if err := a.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 7, Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 8)}, Remote: b.mr.Remote()}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // most likely the event came
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := a.byEvents(ctx, 7, 1); err != nil {
		t.Fatal(err)
	}
}

const burstMost = 32

// interrupted posts a burst from a, of WRITEs or SENDs, and takes its completions at both ends by their events. Work requests are
// numbered from first on.
func interrupted(a, b *side, first int, rnd *rand.Rand) (taken, events int, err error) {
	burst := 1
	if rnd.IntN(2) == 0 {
		burst += rnd.IntN(burstMost)
	}
	sends := rnd.IntN(2) == 0
	ends := []*side{a}
	if sends {
		ends = []*side{b, a}
		for i := range burst {
			if err := b.qp.PostRecv(&driver.RecvWR{WRID: uint64(first + i), SGEs: []driver.SGE{b.mr.SGE(0, 64)}}); err != nil {
				return 0, 0, err
			}
		}
	}
	for _, s := range ends {
		if err := s.cq.Arm(false); err != nil {
			return 0, 0, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for i := range burst {
		wr := driver.SendWR{WRID: uint64(first + i), Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 64)}, Remote: b.mr.Remote()}
		if sends {
			wr.Opcode = driver.Send
		}
		if err := a.qp.PostSend(&wr); err != nil {
			return 0, 0, err
		}
	}
	for _, s := range ends {
		e, err := s.byEvents(ctx, first, burst)
		events += e
		if err != nil {
			return taken, events, err
		}
		taken += burst
	}
	return taken, events, nil
}

// byEvents takes the completions of a burst from a queue that is armed, and gives how many events it slept for.
func (s *side) byEvents(ctx context.Context, first, burst int) (events int, err error) {
	var wc [burstMost]driver.WC
	for done := 0; done < burst; {
		if err := slept(ctx, s.cq.FD()); err != nil {
			n, _ := s.cq.Poll(wc[:])
			return events, fmt.Errorf("%w: %d of %d completions were taken, and %d more lie in the ring", err, done, burst, n)
		}
		events++
		for armed := false; done < burst; {
			n, err := s.cq.Poll(wc[:])
			if err != nil {
				return events, err
			}
			for i, c := range wc[:n] {
				if err := c.Err(); err != nil || c.WRID != uint64(first+done+i) {
					return events, fmt.Errorf("completion of %d where that of %d is next: %w", c.WRID, first+done+i, err)
				}
			}
			done += n
			if n == 0 && armed {
				break
			}
			armed = n == 0
			if armed {
				if err := s.cq.Arm(false); err != nil {
					return events, err
				}
			}
		}
	}
	return events, nil
}

var errNoEvent = errors.New("no event came")

// slept sleeps until the eventfd has an event, and takes it.
func slept(ctx context.Context, fd int) error {
	deadline, _ := ctx.Deadline()
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(left.Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return errNoEvent
		}
		var b [8]byte
		if _, err = unix.Read(fd, b[:]); !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}
