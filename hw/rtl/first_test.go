//go:build rtl

package rtl

import (
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/gather/oracle"
	"rnic/hw/roce"
)

var widths = Widths()

// TestChapter is the chapter's walk: 7,680 bytes from three buffers at an MTU of 4,096, two packets,
// lookups of segments 0, 1 and 1, 2.
func TestChapter(t *testing.T) {
	for _, width := range widths {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			r := newRig(t, width, 1)
			w := &oracle.World{Regions: map[uint32]oracle.Region{
				7:  {Valid: true, Tag: 0x11, PD: 3, Base: 0x10000, Length: 4096, IOVA: 0x700000},
				71: {Valid: true, Tag: 0x22, PD: 3, Base: 0x20000, Length: 8192, IOVA: 0x900000},
			}, Read: func(iova uint64) (byte, bool) { return pattern(iova), true }, Sets: 64, Ways: 4}
			for i, g := range w.Regions {
				r.region(i, g)
			}
			m := &message{kind: Send, psn: 0xfffffe, ipid: 9, request: oracle.Request{Op: "send", Reliable: true, MTU: 4096, PD: 3, QPN: 17, Segments: []oracle.Segment{
				{Addr: 0x10000, Length: 1024, Key: 7<<8 | 0x11}, {Addr: 0x20003, Length: 6144, Key: 71<<8 | 0x22}, {Addr: 0x10401, Length: 512, Key: 7<<8 | 0x11},
			}}}
			m.header = roce.Header{DstMAC: [6]byte{2, 0, 0, 0, 0, 2}, SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, Src: roce.V4Mapped([4]byte{10, 0, 0, 1}),
				Dst: roce.V4Mapped([4]byte{10, 0, 0, 2}), HopLimit: 64, UDPSrcPort: 49152, PKey: 0xffff, DestQP: 18}
			m.walk = w.Gather(m.request)
			j := m.job(0, 0)
			j.Token, j.Trace = 42, true
			r.e.Submit(2, j)
			r.run(1)
			if n := len(r.frames[2]); n != 2 {
				t.Fatalf("%d frames, want 2", n)
			}
			for i, f := range r.frames[2] {
				if err := same(f, m.frame(i)); err != nil {
					t.Errorf("packet %d: %v", i, err)
				}
			}
			if got, want := r.results[2][0], (Result{Token: 42, PSNs: 2}); got.Token != want.Token || got.PSNs != want.PSNs || got.Fault.Reason != 0 || got.Cursor.Segment != 3 || got.Cursor.Left != 0 {
				t.Errorf("result %+v", got)
			}
			compareTrace(t, r.traces[2], m.walk.Steps, true)
			for c, want := range map[Counter]uint64{Lookups: 4, Hits: 2, Misses: 2, Frames: 2, Faults: 0, Reads: uint64(r.reads), ReadBytes: 7680} {
				if got := r.e.Count(c); got != want {
					t.Errorf("counter %d is %d, want %d", c, got, want)
				}
			}
		})
	}
}

// compareTrace compares the steps of walks with what they must be.
func compareTrace(t *testing.T, got []Trace, want []oracle.Step, hits bool) {
	t.Helper()
	if err := sameTrace(got, want, hits); err != nil {
		t.Error(err)
	}
}

// sameTrace says where the steps of walks are not what they must be; hits: whether each lookup hit the cache as well.
func sameTrace(got []Trace, want []oracle.Step, hits bool) error {
	kinds := map[string]hw.TraceKind{"packet": hw.TraceKindPacket, "lookup": hw.TraceKindLookup, "read": hw.TraceKindRead,
		"handover": hw.TraceKindHandover, "fault": hw.TraceKindFault}
	n := 0
	for i, s := range want {
		// A read that fails is the fault's own step, as the card's trace has it.
		if s.Kind == "read" && s.Reason != "" && i+1 < len(want) && want[i+1].Kind == "fault" {
			continue
		}
		if n == len(got) {
			return fmt.Errorf("%d steps, %+v is missing", len(got), s)
		}
		g := got[n]
		bad := g.Kind != kinds[s.Kind]
		switch s.Kind {
		case "packet":
			bad = bad || g.Key != uint32(s.Packet)
		case "lookup", "read", "fault":
			bad = bad || int(g.Segment) != s.Segment || g.Offset != s.Offset || reasonName(g.Reason) != s.Reason ||
				s.Kind != "fault" && g.Bytes != s.Bytes || s.Kind == "lookup" && hits && g.Hit != s.Hit
		}
		if bad {
			return fmt.Errorf("step %d is %+v, want %+v", n, g, s)
		}
		n++
	}
	if n != len(got) {
		return fmt.Errorf("%d steps, %+v is too much", len(got), got[n])
	}
	return nil
}

// reasonName is a reason by the contract's name; no failure is the empty one.
func reasonName(r hw.Reason) string {
	if r == hw.ReasonNone {
		return ""
	}
	return r.String()
}
