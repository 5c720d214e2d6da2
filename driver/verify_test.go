package driver_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
	"rnic/hw"
)

// verified makes a connected pair of which a's gathers are verified, with bundles
// in a folder of the test.
func verified(t *testing.T, mode driver.VerifyMode, opts ...driver.Option) (a, b *side) {
	t.Helper()
	init := smallQP
	init.MaxSendWR, init.MaxRecvWR = 256, 256
	a, b = hosted(t, init, "", append(opts, driver.WithVerify(mode), driver.WithVerifyDir(filepath.Join(t.TempDir(), "bundles")))...)
	rnd := rand.New(rand.NewPCG(3, 4))
	for m := a.mr.Bytes(); len(m) > 0; m = m[8:] {
		v := rnd.Uint64()
		for i := range 8 {
			m[i] = byte(v >> (8 * i))
		}
	}
	return a, b
}

// write posts a signaled WRITE of three segments, 9,000 bytes and 3 packets.
func (s *side) write(t *testing.T, to *side, wrid uint64) driver.WC {
	t.Helper()
	off := int(wrid % 1000)
	err := s.qp.PostSend(&driver.SendWR{WRID: wrid, Opcode: driver.Write, Flags: driver.Signaled, Remote: to.mr.Remote(),
		SGEs: []driver.SGE{s.mr.SGE(off, 1000), s.mr.SGE(5000+off, 5000), s.mr.SGE(20000+off, 3000)}})
	if err != nil {
		t.Fatal(err)
	}
	return wait(t, s.cq, 1)[0]
}

var walkFaults = []hw.WalkFault{
	hw.WalkFaultCursorOffByOne, hw.WalkFaultLookupSkipped, hw.WalkFaultSegmentsSwapped, hw.WalkFaultShortLast, hw.WalkFaultACKReqMissing, hw.WalkFaultPayloadFlipped,
}

// wantFrozen wants a to be frozen with an error that has all its parts, and the
// bundle to show the same to who has no card.
func wantFrozen(t *testing.T, a *side, name string) *driver.VerifyError {
	t.Helper()
	e := a.qp.VerifyError()
	if e == nil || len(e.Differences) == 0 || e.QPN != a.qp.Number() {
		t.Fatalf("%s: not found: %+v", name, e)
	}
	f, err := os.Open(e.Bundle)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: bundle of mode %v, %v", name, info.Mode(), err)
	}
	b, err := driver.ReadBundle(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if again := b.Replay(); fmt.Sprint(again) != fmt.Sprint(e.Differences) {
		t.Errorf("%s: the replay finds\n%v\nwhat was found was\n%v", name, again, e.Differences)
	}
	err = a.qp.PostSend(&driver.SendWR{Opcode: driver.Send})
	var got *driver.VerifyError
	if !errors.Is(err, driver.ErrVerify) || !errors.As(err, &got) || got != e || !strings.Contains(err.Error(), e.Bundle) {
		t.Errorf("%s: a post to the frozen queue pair: %v", name, err)
	}
	ctx := testCtx(t)
	for {
		ev, err := a.d.NextEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == driver.EventVerify && ev.Object == a.qp.Number() {
			break
		}
	}
	for {
		q, err := a.qp.Query(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if q.State == driver.StateErr {
			return e
		}
	}
}

// TestG21_VerifyAlways: each defect of the card's walk is found in the first packet that
// has it, and the completion of its work request says so.
func TestG21_VerifyAlways(t *testing.T) {
	for _, f := range walkFaults {
		a, b := verified(t, driver.Always)
		for i := range uint64(3) {
			if err := a.write(t, b, i); err.Err() != nil {
				t.Fatal(err.Err())
			}
		}
		a.spoil(t, f)
		before := a.d.Verification()
		if before.Packets != 9 || before.Mismatches != 0 || before.Lost != 0 || before.Skipped != 0 {
			t.Fatalf("%v: before it, %+v", f, before)
		}
		off := 77
		err := a.qp.PostSend(&driver.SendWR{WRID: 7, Opcode: driver.Write, Flags: driver.Signaled, Remote: b.mr.Remote(),
			SGEs: []driver.SGE{a.mr.SGE(off, 1000), a.mr.SGE(5000, 5000), a.mr.SGE(20000, 3000)}})
		if err != nil {
			t.Fatal(err)
		}
		wc := wait(t, a.cq, 1)[0]
		if !errors.Is(wc.Err(), driver.ErrVerify) || wc.WRID != 7 || wc.Reason != driver.ReasonVerify {
			t.Errorf("%v: completion: %v", f, wc.Err())
		}
		e := wantFrozen(t, a, f.String())
		first := uint32(0)
		if f == hw.WalkFaultShortLast || f == hw.WalkFaultACKReqMissing {
			first = 2 // the last packet
		}
		if e.Packet != first || e.WRID != 7 || !e.HasWRID || e.Opcode != driver.Write || e.Response {
			t.Errorf("%v: found in packet %d of %v %d, the first that has it is %d: %v", f, e.Packet, e.Opcode, e.WRID, first, e)
		}
		if s := a.d.Verification(); s.Mismatches != 1 {
			t.Errorf("%v: %+v", f, s)
		}
	}
}

// TestG21_VerifyAckReq: an AckReq in mid-message is as the register has it, also while that
// is changed, and one that is not is found.
func TestG21_VerifyAckReq(t *testing.T) {
	a, b := verified(t, driver.Always)
	g, err := a.d.Debug()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := g.SetAckReqInterval(i % 4); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range uint64(300) {
		if err := a.write(t, b, i); err.Err() != nil {
			t.Fatal(err.Err(), a.qp.VerifyError())
		}
	}
	close(stop)
	wg.Wait()
	if err := g.SetAckReqInterval(0); err != nil {
		t.Fatal(err)
	}
	if wc := a.write(t, b, 1); wc.Err() != nil {
		t.Fatal(wc.Err())
	}
	// Behind the driver's back: the card now asks with every packet.
	if err := errors.Join(a.d.WriteRegister("DEBUG.ACK_REQ_INTERVAL", 1), g.Sync(testCtx(t))); err != nil {
		t.Fatal(err)
	}
	if wc := a.write(t, b, 2); !errors.Is(wc.Err(), driver.ErrVerify) {
		t.Errorf("completion: %v", wc.Err())
	}
	if e := wantFrozen(t, a, "AckReq"); e.Packet != 0 || e.Differences[0].What != "handover.flags" {
		t.Errorf("%v", e)
	}
}

// TestG21_VerifySample: one packet in 16 is enough to find each defect within 200 packets
// that have it.
func TestG21_VerifySample(t *testing.T) {
	for _, f := range append([]hw.WalkFault{hw.WalkFaultStaleCache}, walkFaults...) {
		a, b := verified(t, driver.Sample(16))
		m, err := a.pd.AllocMR(testCtx(t), 4096, 0)
		if err != nil {
			t.Fatal(err)
		}
		last := m.SGE(0, 300)
		if err := a.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, Flags: driver.Signaled, Remote: b.mr.Remote(), SGEs: []driver.SGE{last}}); err != nil {
			t.Fatal(err)
		}
		good(t, a.cq, 1) // its key is in the cache
		a.spoil(t, f)
		if f != hw.WalkFaultStaleCache {
			last = a.mr.SGE(30000, 300)
		} else if err := m.Dereg(testCtx(t)); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(200) { // two packets each, of which the last has every defect but one of the cursor
			if err := b.qp.PostRecv(&driver.RecvWR{SGEs: []driver.SGE{b.mr.SGE(0, 10000)}}); err != nil {
				t.Fatal(err)
			}
			err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Send, Flags: driver.Signaled,
				SGEs: []driver.SGE{a.mr.SGE(0, 1000), a.mr.SGE(5000, 3500), a.mr.SGE(20000, 200), last}})
			if errors.Is(err, driver.ErrVerify) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if f != hw.WalkFaultACKReqMissing { // nobody acknowledges
				wait(t, a.cq, 1)
			}
		}
		// The posts run ahead of the card where nothing is waited for.
		for end := time.Now().Add(5 * time.Second); a.qp.VerifyError() == nil && time.Now().Before(end); {
			a.d.Verification() // compares what is there
		}
		if e := a.qp.VerifyError(); e == nil {
			t.Errorf("%v: not found; %+v", f, a.d.Verification())
			continue
		}
		wantFrozen(t, a, f.String())
	}
}

// spoil puts a defect into all walks of a's card, from the next packet on.
func (s *side) spoil(t *testing.T, f hw.WalkFault) {
	t.Helper()
	if err := faults(t, s.d).BreakWalk(testCtx(t), f, 0); err != nil {
		t.Fatal(err)
	}
}

// faults are the faults of a card.
func faults(t testing.TB, d *driver.Device) *drivertest.Card {
	t.Helper()
	c, err := drivertest.On(d)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestG21_VerifyStaleCache: a key that the card's cache still has after it was
// deregistered.
func TestG21_VerifyStaleCache(t *testing.T) {
	a, b := verified(t, driver.Always)
	ctx := testCtx(t)
	m, err := a.pd.AllocMR(ctx, 8192, 0)
	if err != nil {
		t.Fatal(err)
	}
	sge := m.SGE(0, 100)
	post := func(wrid uint64) error {
		err := a.qp.PostSend(&driver.SendWR{WRID: wrid, Opcode: driver.Write, Flags: driver.Signaled, Remote: b.mr.Remote(), SGEs: []driver.SGE{sge}})
		if err != nil {
			t.Fatal(err)
		}
		wc := wait(t, a.cq, 1)[0]
		return wc.Err()
	}
	if err := post(1); err != nil {
		t.Fatal(err)
	}
	a.spoil(t, hw.WalkFaultStaleCache)
	if err := m.Dereg(ctx); err != nil {
		t.Fatal(err)
	}
	if err := post(2); !errors.Is(err, driver.ErrVerify) {
		t.Errorf("completion: %v", err)
	}
	if e := wantFrozen(t, a, "STALE_CACHE"); !strings.Contains(e.Error(), "KEY_INDEX") {
		t.Errorf("%v", e)
	}
}

// TestG21_VerifyReadResponse: the responder's packets are verified, too.
func TestG21_VerifyReadResponse(t *testing.T) {
	for _, f := range []hw.WalkFault{hw.WalkFaultNone, hw.WalkFaultPayloadFlipped, hw.WalkFaultCursorOffByOne} {
		a, b := verified(t, driver.Always)
		a.spoil(t, f)
		err := b.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Read, Flags: driver.Signaled, SGEs: []driver.SGE{b.mr.SGE(0, 9000)}, Remote: a.mr.Remote().At(123)})
		if err != nil {
			t.Fatal(err)
		}
		if f != hw.WalkFaultCursorOffByOne {
			wait(t, b.cq, 1)
		}
		if f == hw.WalkFaultNone {
			if s := a.d.Verification(); s.Packets != 3 || s.Mismatches != 0 {
				t.Errorf("%+v", s)
			}
			continue
		}
		for a.qp.VerifyError() == nil {
			a.d.Verification()
		}
		if e := wantFrozen(t, a, f.String()); !e.Response || e.Packet != 0 {
			t.Errorf("%v: %v", f, e)
		}
	}
}

// TestG21_VerifyNoFalseAlarm: correct packets of all operations, inline ones, faulty
// requests, and keys that come and go meanwhile.
func TestG21_VerifyNoFalseAlarm(t *testing.T) {
	for name, opts := range map[string][]driver.Option{"card": nil, "host": {driver.WithGather(driver.Host)}} {
		a, b := verified(t, driver.Always, opts...)
		ctx := testCtx(t)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				m, err := a.pd.AllocMR(ctx, 4096, 0)
				if err == nil {
					err = m.Dereg(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
		rnd := rand.New(rand.NewPCG(5, 6))
		const half = 1 << 19
		for i := range uint64(1500) {
			wr := driver.SendWR{WRID: i, Flags: driver.Signaled, Remote: b.mr.Remote(), Opcode: []driver.Opcode{
				driver.Send, driver.SendImm, driver.Write, driver.WriteImm, driver.Read, driver.FetchAdd, driver.CompareSwap,
			}[rnd.IntN(7)]}
			poster := a
			switch {
			case wr.Opcode == driver.Read && i%2 == 0:
				wr.SGEs = []driver.SGE{a.mr.SGE(half, rnd.IntN(20000))} // into the upper half: nothing is gathered there
			case wr.Opcode == driver.Read:
				poster, wr.Remote = b, a.mr.Remote().At(uint64(rnd.IntN(1000)))
				wr.SGEs = []driver.SGE{b.mr.SGE(half, rnd.IntN(20000))}
			case wr.Opcode == driver.FetchAdd || wr.Opcode == driver.CompareSwap:
				wr.SGEs = []driver.SGE{a.mr.SGE(half, 8)}
			case rnd.IntN(5) == 0:
				wr.Inline = [][]byte{make([]byte, rnd.IntN(200)), make([]byte, rnd.IntN(200))}
			default:
				for range rnd.IntN(20) {
					n := rnd.IntN(1500)
					wr.SGEs = append(wr.SGEs, a.mr.SGE(rnd.IntN(half-1500), n))
				}
			}
			if wr.Opcode == driver.Send || wr.Opcode == driver.SendImm || wr.Opcode == driver.WriteImm {
				if err := b.qp.PostRecv(&driver.RecvWR{SGEs: []driver.SGE{b.mr.SGE(0, half)}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := poster.qp.PostSend(&wr); err != nil {
				t.Fatalf("%s: %v: %v", name, wr.Opcode, err)
			}
			good(t, poster.cq, i)
			if wr.Opcode == driver.Send || wr.Opcode == driver.SendImm || wr.Opcode == driver.WriteImm {
				wait(t, b.cq, 1)
			}
		}
		if err := a.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, Remote: b.mr.Remote(), SGEs: []driver.SGE{a.mr.SGE(0, 6000), {Addr: 1, Length: 1, LKey: 0xffff00}}}); err != nil {
			t.Fatal(err)
		}
		if wc := wait(t, a.cq, 1)[0]; wc.Reason != driver.ReasonKeyIndex {
			t.Errorf("%s: %v", name, wc.Err())
		}
		close(stop)
		wg.Wait()
		s := a.d.Verification()
		if s.Mismatches != 0 || a.qp.VerifyError() != nil || s.Packets < 1500 || s.Lost != 0 {
			t.Errorf("%s: %+v, %v", name, s, a.qp.VerifyError())
		}
		if s.Skipped > 3 {
			t.Errorf("%s: %+v: packets were not compared", name, s)
		}
	}
}

// FuzzBundle: a bundle from anywhere is refused or replayed, and read back is the same.
func FuzzBundle(f *testing.F) {
	f.Add([]byte(`{"schema":"rnic.bundle.v1","mtu_bytes":4096,"opcode":2,"segments":[{"addr":"0x10","length_bytes":5,"key":"0x100"}],` +
		`"keys":[{"index":1,"exists":true,"state":2,"base":"0x10","length_bytes":"0x100","iova":"0x5000"}],"memory":[{"iova":"0x5000","data":"AAECAwQ="}],` +
		`"begin":{"kind":1,"opcode":2,"bytes":5,"cursor_left_bytes":5},"steps":[{"kind":2}],"end":{"kind":4}}`))
	f.Add([]byte(`{"schema":"rnic.bundle.v1","mtu_bytes":1,"packet":4294967295,"is_inline":true,"inline":"AAEC"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := driver.ReadBundle(strings.NewReader(string(text)))
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		b.Replay()
	})
}

// TestG21_VerifyDeregRace: a region goes while packets of it are gathered. Whether the
// card still had its key or not, both are right.
func TestG21_VerifyDeregRace(t *testing.T) {
	a, b := verified(t, driver.Always)
	ctx := testCtx(t)
	refused := 0
	for i := range uint64(150) {
		m, err := a.pd.AllocMR(ctx, 16384, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Write, Flags: driver.Signaled, Remote: b.mr.Remote(), SGEs: []driver.SGE{m.SGE(0, 8000), m.SGE(8000, 8000)}}); err != nil {
			t.Fatal(err)
		}
		if err := m.Dereg(ctx); err != nil {
			t.Fatal(err)
		}
		wc := wait(t, a.cq, 1)[0]
		switch {
		case wc.Err() == nil:
		case wc.Reason == driver.ReasonKeyIndex:
			refused++
			for _, s := range []*side{a, b} { // in ERR: from the beginning
				if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateReset}, driver.AttrState); err != nil {
					t.Fatal(err)
				}
				if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateInit, Access: driver.RemoteWrite}, driver.AttrState|driver.AttrAccess|driver.AttrPKeyIndex); err != nil {
					t.Fatal(err)
				}
			}
			connect(t, a.qp, b.qp)
		default:
			t.Fatal(wc.Err())
		}
	}
	if s := a.d.Verification(); s.Mismatches != 0 {
		t.Errorf("%+v after %d refusals: %v", s, refused, a.qp.VerifyError())
	}
	t.Logf("%d of 150 came too late for the card; %+v", refused, a.d.Verification())
}

// TestG21_VerifyFaults: faults that are right are no mismatch: a list that is too
// long in bytes, refused before its first packet, and memory that refuses a read in
// the midst of one.
func TestG21_VerifyFaults(t *testing.T) {
	for name, c := range map[string]struct {
		sges   func(a *side) []driver.SGE
		before func(ctx context.Context, c *drivertest.Card) error
		want   driver.Reason
	}{
		"length": {
			func(a *side) []driver.SGE {
				return []driver.SGE{a.mr.SGE(0, 10), {Addr: 1, Length: 1 << 31, LKey: 7}}
			}, func(context.Context, *drivertest.Card) error { return nil }, driver.ReasonLength,
		},
		"memory": {
			func(a *side) []driver.SGE { return []driver.SGE{a.mr.SGE(0, 5000), a.mr.SGE(9000, 700)} },
			func(ctx context.Context, c *drivertest.Card) error { return c.FailRead(ctx, 3) }, driver.ReasonDMARead,
		},
	} {
		a, b := verified(t, driver.Always)
		if err := c.before(testCtx(t), faults(t, a.d)); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&driver.SendWR{WRID: 3, Opcode: driver.Write, SGEs: c.sges(a), Remote: b.mr.Remote()}); err != nil {
			t.Fatal(err)
		}
		if wc := wait(t, a.cq, 1)[0]; wc.Reason != c.want || wc.FaultSegment != 1 {
			t.Errorf("%s: %v", name, wc.Err())
		}
		if s := a.d.Verification(); s.Mismatches != 0 || s.Skipped != 0 || s.Packets == 0 {
			t.Errorf("%s: %+v, %v", name, s, a.qp.VerifyError())
		}
	}
}
