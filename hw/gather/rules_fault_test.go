package gather_test

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
)

// The rules from G17 on: faults, the responder, the trace. See rules_test.go.

func TestG17_NothingPartial(t *testing.T) {
	// A DMA read fails in segment 2 while packet 2 is assembled: packet 1
	// stays, of packet 2 there is nothing, and the cursor stays before it.
	// Mended, the walk resumes exactly there.
	keys, m, segs, who := chapter(t)
	c, _, _ := gather.Start(segs)
	dst := make([]byte, 4096)
	if n, f, ok := gather.Packet(keys, m, nil, segs, who, &c, 4096, dst); !ok || n != 4096 {
		t.Fatal(n, f)
	}
	m.bad = func(iova uint64) bool { return iova == 0x10000+0x800+511 } // the message's last byte
	var tr steps
	n, f, ok := gather.Packet(keys, m, &tr, segs, who, &c, 4096, dst)
	if ok || n != 0 || f != (gather.Fault{Segment: 2, Key: 0x111, Reason: hw.ReasonDMARead}) {
		t.Errorf("%d bytes, %v; want none and a DMA fault in segment 2", n, f)
	}
	if want := (gather.Cursor{Segment: 1, Offset: 3072, Left: 3584}); c != want {
		t.Errorf("cursor %v, want %v: the packet took nothing", c, want)
	}
	if want := []string{"lookup 1+3072 3072 hit NONE", "read 1+3072 3072 NONE", "lookup 2+0 512 hit NONE", "read 2+0 512 DMA_READ"}; !slices.Equal(tr, want) {
		t.Errorf("steps %q, want %q", tr, want)
	}
	m.bad = nil
	if n, f, ok := gather.Packet(keys, m, nil, segs, who, &c, 4096, dst); !ok || n != 3584 || !c.Done() {
		t.Errorf("after mending: %d bytes, %v, cursor %v", n, f, c)
	}
}

func TestG18_LengthNamesTheSegment(t *testing.T) {
	for _, tc := range []struct {
		lengths []uint32
		segment int
		ok      bool
	}{
		{[]uint32{1 << 31}, 0, true},
		{[]uint32{1 << 30, 1<<30 - 1, 1}, 0, true},
		{[]uint32{1<<31 + 1}, 0, false},
		{[]uint32{1 << 30, 1 << 30, 0, 1, 5}, 3, false},
		{[]uint32{math.MaxUint32, math.MaxUint32}, 0, false}, // 32 bits would wrap
		{[]uint32{1, math.MaxUint32}, 1, false},
	} {
		var segs []gather.Segment
		for i, l := range tc.lengths {
			segs = append(segs, gather.Segment{Length: l, Key: uint32(i)})
		}
		c, f, ok := gather.Start(segs)
		if ok != tc.ok || !ok && f != (gather.Fault{Segment: tc.segment, Key: uint32(tc.segment), Reason: hw.ReasonLength}) {
			t.Errorf("%v: %v %v %v", tc.lengths, c, f, ok)
		}
	}
}

func TestG19_ResponderChecksTheWholeRangeThenEachPacket(t *testing.T) {
	keys, m := flat(1000)
	wire := gather.Who{PD: 5, QPN: 17, Access: hw.AccessRemoteRead}
	if _, _, r := keys.Translate(0x100, wire, 0x1000, 1001); r != hw.ReasonBounds {
		t.Errorf("range of 1,001 bytes in a region of 1,000 accepted: %v", r)
	}
	// Accepted, then the key goes away after the second packet.
	var buf [1]gather.Segment
	segs := gather.WireSegments(&buf, 0x1000, 0x100, 1000)
	if _, _, r := keys.Translate(0x100, wire, 0x1000, 1000); r != hw.ReasonNone {
		t.Fatal(r)
	}
	c, _, _ := gather.Start(segs)
	dst := make([]byte, 256)
	for i := range 3 {
		if i == 2 {
			keys.Table.(table)[1] = gather.Key{}
		}
		n, f, ok := gather.Packet(keys, m, nil, segs, wire, &c, 256, dst)
		if i < 2 && (!ok || n != 256) {
			t.Fatalf("packet %d: %v", i, f)
		}
		if i == 2 && (ok || f != (gather.Fault{Key: 0x100, Offset: 512, Reason: hw.ReasonKeyIndex})) {
			t.Errorf("key gone: %v %v", ok, f)
		}
	}
}

func TestG22_TraceChangesNothing(t *testing.T) {
	keys, m, segs, who := chapter(t)
	traced, _ := walk(t, keys, m, segs, who, 1024)
	keys, m, segs, who = chapter(t)
	c, _, _ := gather.Start(segs)
	for i := 0; !c.Done(); i++ {
		dst := make([]byte, 1024)
		n, f, ok := gather.Packet(keys, m, nil, segs, who, &c, 1024, dst)
		if !ok || !bytes.Equal(dst[:n], traced[i].payload) || c != traced[i].cursor {
			t.Fatalf("packet %d without a trace: %d bytes, %v, %v", i+1, n, c, f)
		}
	}
}

// TestG22_TheFaultIsReported: the step that failed is the trace's last, with its reason.
func TestG22_TheFaultIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		key  uint32
		bad  func(uint64) bool
		want []string
	}{
		"lookup": {0x900, nil, []string{"lookup 0+0 100 miss NONE", "read 0+0 100 NONE", "lookup 1+0 50 miss KEY_INDEX"}},
		"read": {0x200, func(a uint64) bool { return a == 0x1200 },
			[]string{"lookup 0+0 100 miss NONE", "read 0+0 100 NONE", "lookup 1+0 50 miss NONE", "read 1+0 50 DMA_READ"}},
	} {
		keys, m := flat(0x1000)
		m.bad = tc.bad
		segs := []gather.Segment{{Addr: 0x1000, Length: 100, Key: 0x100}, {Addr: 0x1200, Length: 50, Key: tc.key}, {Addr: 0x1300, Length: 9, Key: 0x100}}
		c, _, _ := gather.Start(segs)
		var tr steps
		if _, _, ok := gather.Packet(keys, m, &tr, segs, local, &c, 256, make([]byte, 256)); ok || !slices.Equal(tr, tc.want) {
			t.Errorf("%s: steps %q (ok %v), want %q", name, tr, ok, tc.want)
		}
	}
}
