package driver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"rnic/driver"
	"rnic/hw"
)

// TestG10_Refusals: what a key does not grant is refused, and for the reason that rule
// G10 has, the first in its order: by this side's gather, whoever walks, by a receive's
// scatter, and by the wire. Not a byte of memory changes.
func TestG10_Refusals(t *testing.T) {
	const base, length = 0x7fff_0000_0000, 10000
	type request struct {
		addr uint64
		n    uint32
		key  uint32
	}
	// Each case has a region of 10,000 bytes with every right, a region of another
	// domain, and one without rights at hand.
	type world struct{ all, other, none *driver.MR }
	cases := []struct {
		name   string
		make   func(t *testing.T, s *side, w *world) request
		reason driver.Reason
		not    string // the ways in which there is no such fault
	}{
		{"another domain's key", func(_ *testing.T, _ *side, w *world) request { return request{base, 10, w.other.LKey()} }, driver.ReasonPD, ""},
		{"stale tag", func(t *testing.T, s *side, w *world) request {
			old := w.all.LKey()
			if err := w.all.Dereg(testCtx(t)); err != nil {
				t.Fatal(err)
			}
			var err error
			if w.all, err = s.pd.AllocMR(testCtx(t), length, allAccess, driver.WithIOVA(base), driver.WithKey(old&^0xff|(old+1)&0xff)); err != nil {
				t.Fatal(err)
			}
			return request{base, 10, old}
		}, driver.ReasonKeyTag, ""},
		{"one byte below", func(_ *testing.T, _ *side, w *world) request { return request{base - 1, 10, w.all.LKey()} }, driver.ReasonBounds, ""},
		{"one byte above", func(_ *testing.T, _ *side, w *world) request { return request{base + length - 9, 10, w.all.LKey()} }, driver.ReasonBounds, ""},
		{"all of it and a byte", func(_ *testing.T, _ *side, w *world) request { return request{base, length + 1, w.all.LKey()} }, driver.ReasonBounds, "gather scatter atomic"},
		{"address plus length wraps", func(_ *testing.T, _ *side, w *world) request { return request{^uint64(0) - 4, 10, w.all.LKey()} }, driver.ReasonBounds, "atomic"},
		{"wraps to inside the region", func(t *testing.T, s *side, w *world) request {
			// A region that begins at address 0: the end of the range is in it.
			m, err := s.pd.AllocMR(testCtx(t), length, allAccess, driver.WithIOVA(0))
			if err != nil {
				t.Fatal(err)
			}
			return request{^uint64(0) - 4, 10, m.LKey()}
		}, driver.ReasonBounds, "atomic"},
		{"freed index", func(t *testing.T, _ *side, w *world) request {
			key := w.all.LKey()
			if err := w.all.Dereg(testCtx(t)); err != nil {
				t.Fatal(err)
			}
			return request{base, 10, key}
		}, driver.ReasonKeyIndex, ""},
		{"index that never was", func(_ *testing.T, _ *side, w *world) request { return request{base, 10, w.all.LKey() + 0x10000} }, driver.ReasonKeyIndex, ""},
		{"beyond the table", func(_ *testing.T, s *side, _ *world) request { return request{base, 10, 0xffffff00} }, driver.ReasonKeyIndex, ""},
		{"invalid state", func(t *testing.T, s *side, w *world) request {
			if err := w.all.SetState(testCtx(t), hw.KeyStateInvalid); err != nil {
				t.Fatal(err)
			}
			return request{base, 10, w.all.LKey()}
		}, driver.ReasonKeyIndex, ""},
		{"no right", func(_ *testing.T, _ *side, w *world) request { return request{base, 10, w.none.LKey()} }, driver.ReasonAccess, "gather"}, // local read is always granted
		// The first that fails is the reason.
		{"stale tag, and outside", func(_ *testing.T, _ *side, w *world) request { return request{base - 1, 10, w.all.LKey() ^ 1} }, driver.ReasonKeyTag, ""},
		{"another domain's key, and outside", func(_ *testing.T, _ *side, w *world) request { return request{base - 1, 10, w.other.LKey()} }, driver.ReasonPD, ""},
		{"no right, and outside", func(_ *testing.T, _ *side, w *world) request { return request{base - 1, 10, w.none.LKey()} }, driver.ReasonAccess, "gather"}, // local read is always granted
	}
	for _, walks := range []driver.GatherMode{driver.Card, driver.Host} {
		for _, way := range []string{"gather", "scatter", "READ", "WRITE", "atomic"} {
			for _, c := range cases {
				if strings.Contains(c.not, way) || walks == driver.Host && way != "gather" { // nothing else depends on who gathers
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%s", []string{"card", "host"}[walks], way, c.name), func(t *testing.T) {
					a, b := hosted(t, smallQP, "", driver.WithGather(walks))
					ctx := testCtx(t)
					must := func(m *driver.MR, err error) *driver.MR {
						t.Helper()
						if err != nil {
							t.Fatal(err)
						}
						return m
					}
					pd, err := a.d.AllocPD(ctx)
					if err != nil {
						t.Fatal(err)
					}
					w := &world{
						all:   must(a.pd.AllocMR(ctx, length, allAccess, driver.WithIOVA(base))),
						other: must(pd.AllocMR(ctx, length, allAccess, driver.WithIOVA(base))),
						none:  must(a.pd.AllocMR(ctx, length, 0, driver.WithIOVA(base))),
					}
					x := c.make(t, a, w)
					if way == "atomic" && x.n == 10 {
						x.addr, x.n = atomicAddr(x.addr, base, length), 8
					}
					bad := driver.SGE{Addr: x.addr, Length: x.n, LKey: x.key}
					remote := driver.RemoteMR{Addr: x.addr, Length: uint64(x.n), RKey: x.key}
					fill(b.mr.Bytes(), 3)
					var wr driver.SendWR
					poster, segment := b, -1
					switch way {
					case "gather":
						poster, segment = a, 1
						wr = driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{a.mr.SGE(0, 20), bad}, Remote: b.mr.Remote()}
					case "scatter":
						if err := a.qp.PostRecv(&driver.RecvWR{WRID: 6, SGEs: []driver.SGE{a.mr.SGE(0, 20), bad}}); err != nil {
							t.Fatal(err)
						}
						wr = driver.SendWR{Opcode: driver.Send, SGEs: []driver.SGE{b.mr.SGE(0, 20+int(x.n))}}
					case "READ":
						wr = driver.SendWR{Opcode: driver.Read, SGEs: []driver.SGE{b.mr.SGE(0, int(x.n))}, Remote: remote}
					case "WRITE":
						wr = driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{b.mr.SGE(0, int(x.n))}, Remote: remote}
					case "atomic":
						wr = driver.SendWR{Opcode: driver.FetchAdd, CompareAdd: 1, SGEs: []driver.SGE{b.mr.SGE(0, 8)}, Remote: remote}
					}
					wr.WRID = 5
					if err := poster.qp.PostSend(&wr); err != nil {
						t.Fatal(err)
					}
					var e *driver.CompletionError
					if way == "scatter" {
						if wc := wait(t, a.cq, 1)[0]; !errors.As(wc.Err(), &e) || e.Status != driver.StatusLocProtErr || e.Reason != c.reason || e.WRID != 6 || e.Segment != 1 || e.Key != x.key {
							t.Errorf("receive: %v; want segment 1 refused for %v", wc.Err(), c.reason)
						}
					} else {
						wc := wait(t, poster.cq, 1)[0]
						if !errors.As(wc.Err(), &e) || e.Segment != segment || e.WRID != 5 {
							t.Fatalf("%v, segment %d: %+v", wc.Err(), segment, wc)
						}
						switch {
						case way == "gather" && (e.Status != driver.StatusLocProtErr || e.Reason != c.reason || e.Key != x.key || e.Offset != 0):
							t.Errorf("%v; want segment 1 refused for %v", e, c.reason)
						case way != "gather" && (e.Status != driver.StatusRemAccessErr || e.Reason != driver.ReasonRemoteNAK || e.AETH != 0x62):
							t.Errorf("%v; want a NAK for remote access", e) // InfiniBand specification volume 1, 9.7.5.2.8
						}
						if way != "gather" {
							if why := refusal(t, a); why != c.reason {
								t.Errorf("refused for %v, want %v", why, c.reason)
							}
						}
					}
					for _, m := range []*driver.MR{w.all, w.other, w.none} {
						for i, v := range m.Bytes() {
							if v != 0 {
								t.Fatalf("byte %d of %#x was written", i, m.LKey())
							}
						}
					}
				})
			}
		}
	}
}

// atomicAddr is an aligned address with the same fault, for 8 bytes.
func atomicAddr(addr, base, length uint64) uint64 {
	switch {
	case addr < base:
		return base - 8
	case addr > base:
		return base + length
	}
	return addr
}
