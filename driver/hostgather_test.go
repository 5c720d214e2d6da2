package driver_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"rnic/driver"
)

// hosted makes a connected pair of which the host gathers for a.
func hosted(t testing.TB, init driver.QPInit, query string, opts ...driver.Option) (a, b *side) {
	t.Helper()
	w := wires.Add(1)
	a = newSide(t, fmt.Sprintf("soft:ha%d?wire=h%d%s", w, w, query), 256, init, opts...)
	b = newSide(t, fmt.Sprintf("soft:hb%d?wire=h%d", w, w), 256, init)
	connect(t, a.qp, b.qp)
	return a, b
}

func counter(t *testing.T, d *driver.Device, name string) uint64 {
	t.Helper()
	v, err := d.ReadRegister("COUNTERS." + name)
	if err != nil {
		t.Fatal(err)
	}
	return v.Value
}

// TestG21_HostGather: messages of many segments arrive whole, whoever asked for the host
// to gather, and the card counts no gather from several segments as its own.
func TestG21_HostGather(t *testing.T) {
	for name, c := range map[string]struct {
		query string
		opts  []driver.Option
	}{
		"asked for": {"", []driver.Option{driver.WithGather(driver.Host)}},
		"no engine": {"&engine=none", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := hosted(t, smallQP, c.query, c.opts...)
			if a.d.Gather() != driver.Host || b.d.Gather() != driver.Card {
				t.Fatalf("%v and %v gather", a.d.Gather(), b.d.Gather())
			}
			fill(a.mr.Bytes(), 3)
			rnd := rand.New(rand.NewPCG(1, 2))
			for i := range 60 {
				var sges []driver.SGE
				var want []byte
				for range rnd.IntN(64) {
					off, n := rnd.IntN(1<<19), rnd.IntN(700)
					sges = append(sges, a.mr.SGE(off, n))
					want = append(want, a.mr.Bytes()[off:off+n]...)
				}
				if i%2 == 0 {
					if err := b.qp.PostRecv(&driver.RecvWR{WRID: uint64(i), SGEs: []driver.SGE{b.mr.SGE(0, 1<<19)}}); err != nil {
						t.Fatal(err)
					}
					err := a.qp.PostSend(&driver.SendWR{WRID: uint64(i), Opcode: driver.Send, Flags: driver.Signaled, SGEs: sges})
					if err != nil {
						t.Fatal(err)
					}
					if wc := good(t, b.cq, uint64(i)); int(wc.ByteLen) != len(want) {
						t.Fatalf("%d bytes arrived of %d", wc.ByteLen, len(want))
					}
				} else if err := a.qp.PostSend(&driver.SendWR{WRID: uint64(i), Opcode: driver.Write, Flags: driver.Signaled, SGEs: sges, Remote: b.mr.Remote()}); err != nil {
					t.Fatal(err)
				}
				good(t, a.cq, uint64(i))
				if !bytes.Equal(b.mr.Bytes()[:len(want)], want) {
					t.Fatalf("message %d of %d segments, %d bytes: other bytes arrived", i, len(sges), len(want))
				}
			}
			// A READ response is one range, which the card reads itself.
			if err := b.qp.PostSend(&driver.SendWR{WRID: 99, Opcode: driver.Read, Flags: driver.Signaled, SGEs: []driver.SGE{b.mr.SGE(0, 9000)}, Remote: a.mr.Remote().At(5)}); err != nil {
				t.Fatal(err)
			}
			good(t, b.cq, 99)
			if !bytes.Equal(b.mr.Bytes()[:9000], a.mr.Bytes()[5:9005]) {
				t.Error("a READ brought other bytes")
			}
			if n, all := counter(t, a.d, "GATHERS_MULTI"), counter(t, a.d, "GATHERS"); n != 0 || all < 60 {
				t.Errorf("the card counts %d gathers of its own from several segments, %d in all", n, all)
			}
		})
	}
}

// TestG21_HostGatherFaults: this driver's checks of keys end up in the completion as the
// card's do.
func TestG21_HostGatherFaults(t *testing.T) {
	type fault struct {
		name string
		sge  func(s *side, other *driver.MR) driver.SGE
		want driver.Reason
	}
	for _, f := range []fault{
		{"index", func(s *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: s.mr.Addr(), Length: 10, LKey: s.mr.LKey() ^ 0x8000}
		}, driver.ReasonKeyIndex},
		{"beyond the table", func(s *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: s.mr.Addr(), Length: 10, LKey: 0xffffff00}
		}, driver.ReasonKeyIndex},
		{"tag", func(s *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: s.mr.Addr(), Length: 10, LKey: s.mr.LKey() ^ 1}
		}, driver.ReasonKeyTag},
		{"domain", func(s *side, o *driver.MR) driver.SGE { return o.SGE(0, 10) }, driver.ReasonPD},
		{"one byte outside", func(s *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: s.mr.Addr() + uint64(s.mr.Len()) - 9, Length: 10, LKey: s.mr.LKey()}
		}, driver.ReasonBounds},
		{"wraps", func(s *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: ^uint64(4), Length: 10, LKey: s.mr.LKey()}
		}, driver.ReasonBounds},
	} {
		outcome := func(opts ...driver.Option) driver.CompletionError {
			a, b := hosted(t, smallQP, "", opts...)
			pd, err := a.d.AllocPD(testCtx(t))
			if err != nil {
				t.Fatal(err)
			}
			other, err := pd.AllocMR(testCtx(t), 4096, 0)
			if err != nil {
				t.Fatal(err)
			}
			sges := []driver.SGE{a.mr.SGE(0, 5000), f.sge(a, other)}
			if err := a.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, SGEs: sges, Remote: b.mr.Remote()}); err != nil {
				t.Fatal(err)
			}
			var e *driver.CompletionError
			if wc := wait(t, a.cq, 1)[0]; !errors.As(wc.Err(), &e) {
				t.Fatalf("%s: a success", f.name)
			}
			e.QPN = 0
			return *e
		}
		card, host := outcome(), outcome(driver.WithGather(driver.Host))
		host.Key, card.Key = host.Key&0xff, card.Key&0xff // tags are random
		card.Key = host.Key
		if host != card || host.Reason != f.want || host.Segment != 1 {
			t.Errorf("%s:\n%+v, with the card's engine\n%+v", f.name, host, card)
		}
	}
}

// TestG21_HostGatherDereg: regions come and go while others are gathered; what was
// deregistered is gathered no more.
func TestG21_HostGatherDereg(t *testing.T) {
	a, b := hosted(t, smallQP, "", driver.WithGather(driver.Host))
	ctx := testCtx(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				m, err := a.pd.AllocMR(ctx, 8192, 0)
				if err == nil {
					err = m.Dereg(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	for i := range uint64(200) {
		if err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 100), a.mr.SGE(300, 9000)}, Remote: b.mr.Remote()}); err != nil {
			t.Fatal(err)
		}
		good(t, a.cq, i)
	}
	close(stop)
	wg.Wait()
	m, err := a.pd.AllocMR(ctx, 8192, 0)
	if err != nil {
		t.Fatal(err)
	}
	sge := m.SGE(0, 100)
	if err := m.Dereg(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{sge}, Remote: b.mr.Remote()}); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, a.cq, 1)[0]; wc.Reason != driver.ReasonKeyIndex {
		t.Errorf("gathered from a region that was deregistered: %v", wc.Err())
	}
}

// TestG21_HostGatherTrace: the trace has the steps that the host took, between the
// card's own.
func TestG21_HostGatherTrace(t *testing.T) {
	steps := func(opts ...driver.Option) string {
		a, b := hosted(t, smallQP, "", opts...)
		ctx := testCtx(t)
		tr, err := a.d.Trace(ctx, driver.TraceOptions{QPN: a.qp.Number()})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := a.qp.PostSend(&driver.SendWR{WRID: 5, Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 1024), a.mr.SGE(9000, 6144), a.mr.SGE(0, 0), a.mr.SGE(1, 512)}, Remote: b.mr.Remote()}); err != nil {
			t.Fatal(err)
		}
		good(t, a.cq, 5)
		var s strings.Builder
		for sent := 0; sent < 2; {
			r, err := tr.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&s, r.Kind, r.Packet, r.Segment, r.Offset, r.Bytes, r.Lookup, r.Cursor, r.CRC, r.WRID, r.HasWRID, r.Flags, r.Opcode)
			if r.Kind.String() == "SENT" {
				sent++
			}
		}
		return s.String()
	}
	if card, host := steps(), steps(driver.WithGather(driver.Host)); card != host {
		t.Errorf("the host's\n%s\nthe card's\n%s", host, card)
	}
}
