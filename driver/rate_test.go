package driver_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"rnic/driver"
	"rnic/hw"
)

// TestG16_SetRate: the limit that SetRate sets, on a clock that the test moves, whoever
// gathers: no window of departures, as the capture has their times, holds more than rate × time and a burst,
// other queue pairs do not wait, and while a queue pair is held it takes no lookup and no read.
func TestG16_SetRate(t *testing.T) {
	for name, opts := range map[string][]driver.Option{"card": nil, "host": {driver.WithGather(driver.Host)}} {
		rnd := rand.New(rand.NewPCG(15, 16))
		for range max(1, scale(100, 10)/10) {
			a, b := hosted(t, smallQP, "", opts...)
			ctx := testCtx(t)
			other, far := a.second(t), b.second(t)
			connect(t, other.qp, far.qp)
			clock, err := faults(t, a.d).StopClock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			rate, burst := uint64(1_000_000)<<rnd.IntN(8), uint32(4300+rnd.IntN(10_000))
			if err := a.qp.SetRate(ctx, rate, burst); err != nil {
				t.Fatal(err)
			}
			if err := a.qp.SetRate(ctx, rate, 4000); err == nil {
				t.Errorf("%s: a burst below one packet was taken", name)
			}
			frames, err := a.d.Capture(ctx, driver.CaptureOptions{QPN: a.qp.Number()})
			if err != nil {
				t.Fatal(err)
			}
			const messages = 20
			for i := range uint64(messages) {
				sges := []driver.SGE{a.mr.SGE(rnd.IntN(1000), 1+rnd.IntN(3000)), a.mr.SGE(rnd.IntN(1000), rnd.IntN(3000)), a.mr.SGE(5000, 1+rnd.IntN(3000))}
				if err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Write, Flags: driver.Signaled, SGEs: sges, Remote: b.mr.Remote()}); err != nil {
					t.Fatal(err)
				}
			}
			done, steps := 0, 0
			for wcs := make([]driver.WC, messages); done < messages; steps++ {
				if err := clock.Advance(ctx, 0); err != nil { // until it has nothing left to do
					t.Fatal(err)
				}
				held := quick(t, a)
				if err := other.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{other.mr.SGE(0, 9000)}, Remote: far.mr.Remote()}); err != nil {
					t.Fatal(err)
				}
				good(t, other.cq, 1) // no time passes, and it is done
				if now := quick(t, a); held.Held && (now.Stats.Lookups != held.Stats.Lookups || now.Stats.PayloadReads != held.Stats.PayloadReads) {
					t.Fatalf("%s: held, it went on to gather", name)
				}
				n, err := a.cq.Poll(wcs)
				if err != nil {
					t.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					if wc.Err() != nil {
						t.Fatal(wc.Err())
					}
				}
				done += n
				next, running, err := clock.Next()
				if err != nil {
					t.Fatal(err)
				}
				if running {
					err = clock.Advance(ctx, min(next, time.Duration(1+rnd.IntN(2_000_000))))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			s := quick(t, a).Stats
			if s.HeldLookups != 0 || s.HeldReads != 0 || s.GateHolds == 0 {
				t.Errorf("%s: %+v", name, s)
			}
			if multi := counter(t, a.d, "GATHERS_MULTI"); opts != nil && multi != 0 {
				t.Errorf("%s: the card gathered %d packets from several segments", name, multi)
			}
			var at []uint64
			var bytes []float64
			for len(at) < int(s.TxPackets) {
				f, err := frames.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if f.Direction == hw.DirectionTX {
					at, bytes = append(at, f.Time), append(bytes, float64(f.Length))
				}
			}
			for i := range at {
				sum := 0.0
				for j := i; j < len(at); j++ {
					if sum += bytes[j]; sum > float64(rate)*float64(at[j]-at[i])/1e9+float64(burst)+0.01 {
						t.Fatalf("%s: %.0f bytes in %d ns at %d B/s and %d", name, sum, at[j]-at[i], rate, burst)
					}
				}
			}
		}
	}
}

// second makes another queue pair beside a side's, with its own completion queue.
func (s *side) second(t *testing.T) *side {
	t.Helper()
	o := &side{d: s.d, pd: s.pd, mr: s.mr}
	var err error
	if o.cq, err = s.d.CreateCQ(testCtx(t), 64); err != nil {
		t.Fatal(err)
	}
	init := smallQP
	init.SendCQ, init.RecvCQ = o.cq, o.cq
	if o.qp, err = s.pd.CreateQP(testCtx(t), init); err != nil {
		t.Fatal(err)
	}
	return o
}

// quick is what the card says of a side's queue pair now.
func quick(t *testing.T, s *side) driver.QPInfo {
	t.Helper()
	snap, err := s.d.Snapshot(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range snap.QPs {
		if q.QPN == s.qp.Number() {
			return q
		}
	}
	t.Fatal("the card does not have the queue pair")
	return driver.QPInfo{}
}
