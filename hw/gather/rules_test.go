package gather_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
)

// The tests in this file are the rules of gather.md one by one, with values
// worked out by hand from their text.

// region returns a table entry that grants everything to domain 5.
func region(tag uint8, base, length, iova uint64) gather.Key {
	return gather.Key{
		State: hw.KeyStateValid, Tag: tag, PD: 5, Base: base, Length: length, IOVA: iova,
		Access: hw.AccessLocalWrite | hw.AccessRemoteWrite | hw.AccessRemoteRead | hw.AccessRemoteAtomic,
	}
}

// flat is a world in which key 0x100 maps address a to IOVA a, for the bytes
// of memory m; 0x200 does so for the same bytes under another key.
func flat(size int) (*gather.Keys, *memory) {
	m := &memory{iova: 0x1000, bytes: make([]byte, size)}
	for i := range m.bytes {
		m.bytes[i] = byte(i) ^ byte(i>>8)*31
	}
	return &gather.Keys{Table: table{
		1: region(0, 0x1000, uint64(size), 0x1000),
		2: region(0, 0x1000, uint64(size), 0x1000),
	}}, m
}

var local = gather.Who{PD: 5, QPN: 17}

// packet is what one call of Packet gave.
type packet struct {
	payload []byte
	cursor  gather.Cursor
	steps   []string
}

// walk runs a message to its end or fault.
func walk(t testing.TB, tl gather.Translator, m gather.Memory, segs []gather.Segment, who gather.Who, mtu uint32) ([]packet, gather.Fault) {
	t.Helper()
	c, f, ok := gather.Start(segs)
	if !ok {
		return nil, f
	}
	var out []packet
	for {
		var tr steps
		dst := make([]byte, mtu)
		before := c
		n, f, ok := gather.Packet(tl, m, &tr, segs, who, &c, mtu, dst)
		if !ok {
			if n != 0 || c != before {
				t.Fatalf("fault %v left %d bytes and cursor %v; the packet began at %v (G17)", f, n, c, before)
			}
			return out, f
		}
		out = append(out, packet{dst[:n], c, tr})
		if c.Done() {
			return out, f
		}
	}
}

func sizes(ps []packet) (n []int) {
	for _, p := range ps {
		n = append(n, len(p.payload))
	}
	return n
}

func lookups(ps []packet) (segs [][]string) {
	for _, p := range ps {
		l := []string{}
		for _, s := range p.steps {
			if s[:6] == "lookup" {
				l = append(l, s)
			}
		}
		segs = append(segs, l)
	}
	return segs
}

func TestG01_Triggers(t *testing.T) {
	want := map[gather.Op]bool{
		gather.Send: true, gather.Write: true, gather.ReadResponse: true,
		gather.ReadRequest: false, gather.Atomic: false, gather.Response: false,
	}
	for op, gathers := range want {
		if op.Gathers() != gathers {
			t.Errorf("op %d gathers: %v, want %v", op, op.Gathers(), gathers)
		}
	}
	// Nothing is handed over before the gather has finished whole: with the
	// last byte of the packet unreadable, Packet gives none.
	keys, m := flat(0x1000)
	segs := []gather.Segment{{Addr: 0x1000, Length: 100, Key: 0x100}, {Addr: 0x1800, Length: 100, Key: 0x100}}
	m.bad = func(iova uint64) bool { return iova == 0x1863 }
	ps, f := walk(t, keys, m, segs, local, 4096)
	if len(ps) != 0 || f != (gather.Fault{Segment: 1, Key: 0x100, Reason: hw.ReasonDMARead}) {
		t.Errorf("%d packets handed over, fault %v; want none, and a DMA fault in segment 1", len(ps), f)
	}
}

func TestG02_ResultsAreScattered(t *testing.T) {
	// An atomic's 8-byte result through two segments of 3 and 5 bytes.
	segs := []gather.Segment{{Addr: 0x1005, Length: 3, Key: 0x100}, {Addr: 0x1011, Length: 5, Key: 0x200}}
	result := []byte{0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8}
	who := gather.Who{PD: 5, QPN: 17, Access: hw.AccessLocalWrite}

	keys, m := flat(64)
	want := slices.Clone(m.bytes)
	copy(want[5:], result[:3])
	copy(want[0x11:], result[3:])
	c, _, _ := gather.Start(segs)
	var tr steps
	if f, ok := gather.Scatter(keys, m, &tr, segs, who, &c, result); !ok {
		t.Fatal(f)
	}
	if !bytes.Equal(m.bytes, want) {
		t.Errorf("memory\n%x, want\n%x", m.bytes, want)
	}
	if w := []string{"lookup 0+0 3 miss NONE", "read 0+0 3 NONE", "lookup 1+0 5 miss NONE", "read 1+0 5 NONE"}; !slices.Equal(tr, w) {
		t.Errorf("steps %q, want %q", tr, w)
	}
	if c != (gather.Cursor{Segment: 2}) {
		t.Errorf("cursor %v, want the end", c)
	}

	// Local write must be granted, bounds hold, the write can fail, and a
	// result longer than its segments goes nowhere.
	for name, tc := range map[string]struct {
		spoil func(k *gather.Key, m *memory)
		src   []byte
		want  gather.Fault
	}{
		"access":  {func(k *gather.Key, _ *memory) { k.Access = hw.AccessRemoteWrite }, result, gather.Fault{Segment: 1, Key: 0x200, Reason: hw.ReasonAccess}},
		"bounds":  {func(k *gather.Key, _ *memory) { k.Length = 0x15 }, result, gather.Fault{Segment: 1, Key: 0x200, Reason: hw.ReasonBounds}},
		"write":   {func(_ *gather.Key, m *memory) { m.bad = func(a uint64) bool { return a == 0x1012 } }, result, gather.Fault{Segment: 1, Key: 0x200, Reason: hw.ReasonDMAWrite}},
		"no room": {func(*gather.Key, *memory) {}, append(result, 0), gather.Fault{Reason: hw.ReasonLength}},
	} {
		keys, m := flat(64)
		k := keys.Table.(table)[2]
		tc.spoil(&k, m)
		keys.Table.(table)[2] = k
		c, _, _ := gather.Start(segs)
		f, ok := gather.Scatter(keys, m, nil, segs, who, &c, tc.src)
		if ok || f != tc.want {
			t.Errorf("%s: %v %v, want %v", name, ok, f, tc.want)
		}
		if c != (gather.Cursor{Left: 8}) {
			t.Errorf("%s: cursor %v moved", name, c)
		}
	}
}

func TestG03_InlineForksOff(t *testing.T) {
	wqe := make([]byte, 400)
	for i := range wqe {
		wqe[i] = byte(i*3) ^ byte(i>>8) // no two packets alike
	}
	c := gather.StartInline(400)
	var got []byte
	for i, want := range []struct {
		n int
		c gather.Cursor
	}{{256, gather.Cursor{Offset: 256, Left: 144}}, {144, gather.Cursor{Segment: 1}}} {
		dst := make([]byte, 256)
		n, f, ok := gather.InlinePacket(wqe, &c, 256, dst)
		if !ok || n != want.n || c != want.c {
			t.Fatalf("packet %d: %d bytes, cursor %v, %v; want %d, %v", i, n, c, f, want.n, want.c)
		}
		got = append(got, dst[:n]...)
	}
	if !bytes.Equal(got, wqe) {
		t.Error("the packets do not carry the WQE's bytes")
	}
	// Zero bytes are one empty packet.
	c = gather.StartInline(0)
	if n, _, ok := gather.InlinePacket(nil, &c, 256, nil); !ok || n != 0 || c != (gather.Cursor{Segment: 1}) {
		t.Errorf("empty inline: %d bytes, cursor %v, %v", n, c, ok)
	}
	// A WQE that shrank between two fetches is a fault, not a panic.
	c = gather.Cursor{Offset: 256, Left: 144}
	if _, f, ok := gather.InlinePacket(wqe[:399], &c, 256, make([]byte, 256)); ok || f.Reason != hw.ReasonMalformed {
		t.Errorf("short WQE: %v %v, want malformed", ok, f)
	}
}

func TestG04_Addressing(t *testing.T) {
	var buf [1]gather.Segment
	segs := gather.WireSegments(&buf, 0x1010, 0x100, 32)
	if !slices.Equal(segs, []gather.Segment{{Addr: 0x1010, Length: 32, Key: 0x100}}) {
		t.Fatalf("RETH {0x1010, 0x100, 32} is the list %v", segs)
	}
	keys, m := flat(64)
	k := keys.Table.(table)[1]
	k.Access = hw.AccessLocalWrite | hw.AccessRemoteWrite | hw.AccessRemoteAtomic // all but RemoteRead
	keys.Table.(table)[1] = k
	for op, want := range map[gather.Op]hw.Reason{
		gather.Send:         hw.ReasonNone,
		gather.Write:        hw.ReasonNone,
		gather.ReadResponse: hw.ReasonAccess,
	} {
		_, f := walk(t, keys, m, segs, gather.Who{PD: 5, Access: op.Access()}, 256)
		if f.Reason != want {
			t.Errorf("op %d from a region without remote read: %v, want %v", op, f.Reason, want)
		}
	}
	k.Access |= hw.AccessRemoteRead
	keys.Table.(table)[1] = k
	if ps, f := walk(t, keys, m, segs, gather.Who{PD: 5, Access: hw.AccessRemoteRead}, 256); len(ps) != 1 || !bytes.Equal(ps[0].payload, m.bytes[16:48]) {
		t.Errorf("READ response: %v, %v", ps, f)
	}
}

func TestG05_OneEngine(t *testing.T) {
	// A READ response is the same walk as a SEND of that one segment.
	keys, m := flat(1000)
	var buf [1]gather.Segment
	send, _ := walk(t, keys, m, []gather.Segment{{Addr: 0x1007, Length: 700, Key: 0x100}}, local, 256)
	resp, _ := walk(t, keys, m, gather.WireSegments(&buf, 0x1007, 0x100, 700), gather.Who{PD: 5, Access: hw.AccessRemoteRead}, 256)
	if fmt.Sprint(send) != fmt.Sprint(resp) {
		t.Error("the same list walks differently for a READ response")
	}
	if got := sizes(resp); !slices.Equal(got, []int{256, 256, 188}) {
		t.Errorf("packets of %v bytes, want 256, 256, 188", got)
	}
}

func TestG06_Segments(t *testing.T) {
	for _, n := range []int{0, 1, 2, 62, 63} {
		segs := make([]gather.Segment, n)
		var want []byte
		keys, m := flat(256)
		for i := range segs {
			segs[i] = gather.Segment{Addr: 0x1000 + uint64(i*4), Length: 3, Key: 0x100 << (i % 2)}
			want = append(want, m.bytes[i*4:][:3]...)
		}
		ps, f := walk(t, keys, m, segs, local, 256)
		if f != (gather.Fault{}) || len(ps) != 1 || !bytes.Equal(ps[0].payload, want) || len(lookups(ps)[0]) != n {
			t.Errorf("%d segments: %d packets, %v", n, len(ps), f)
		}
	}
	if _, f, ok := gather.Start(make([]gather.Segment, 64)); ok || f.Reason != hw.ReasonMalformed {
		t.Errorf("64 segments: %v %v, want malformed", ok, f)
	}
	c := gather.Cursor{Left: 1}
	if _, f, ok := gather.Packet(nil, nil, nil, make([]gather.Segment, 64), local, &c, 256, nil); ok || f.Reason != hw.ReasonMalformed {
		t.Errorf("a packet of 64 segments: %v %v, want malformed", ok, f)
	}
}

func TestG07_PacketSize(t *testing.T) {
	for _, tc := range []struct {
		mtu     uint32
		lengths []uint32
		want    []int
	}{
		{4096, []uint32{1024, 6144, 512}, []int{4096, 3584}},
		{4096, []uint32{4096}, []int{4096}},
		{4096, []uint32{4097}, []int{4096, 1}},
		{4096, []uint32{4095}, []int{4095}},
		{1024, []uint32{1024, 1024}, []int{1024, 1024}},
		{1024, []uint32{1, 1023, 1}, []int{1024, 1}},
		{512, []uint32{100, 0, 1000}, []int{512, 512, 76}},
		{256, []uint32{257, 255}, []int{256, 256}},
		{2048, []uint32{5000}, []int{2048, 2048, 904}},
		{256, nil, []int{0}},
		{256, []uint32{0, 0}, []int{0}},
	} {
		keys, m := flat(8192)
		var segs []gather.Segment
		total := uint32(0)
		for _, l := range tc.lengths {
			segs = append(segs, gather.Segment{Addr: 0x1000, Length: l, Key: 0x100})
			total += l
		}
		ps, f := walk(t, keys, m, segs, local, tc.mtu)
		if got := sizes(ps); !slices.Equal(got, tc.want) || f != (gather.Fault{}) {
			t.Errorf("%v at %d: packets of %v, %v; want %v", tc.lengths, tc.mtu, got, f, tc.want)
		}
		if got := gather.Packets(total, tc.mtu); int(got) != len(tc.want) {
			t.Errorf("Packets(%d, %d) = %d, want %d", total, tc.mtu, got, len(tc.want))
		}
		if total == 0 && len(ps) == 1 && len(ps[0].steps) != 0 {
			t.Errorf("%v: a message without bytes took steps %q", tc.lengths, ps[0].steps)
		}
	}
	if got := gather.Packets(math.MaxUint32, 256); got != 1<<24 {
		t.Errorf("Packets(2^32-1, 256) = %d, want 2^24", got)
	}
}

func TestG08_Cursor(t *testing.T) {
	lengths := []uint32{0, 300, 0, 212, 0, 0, 44, 0}
	var segs []gather.Segment
	for _, l := range lengths {
		segs = append(segs, gather.Segment{Addr: 0x1000, Length: l, Key: 0x100})
	}
	keys, m := flat(512)
	c, _, ok := gather.Start(segs)
	if !ok || c != (gather.Cursor{Segment: 1, Left: 556}) {
		t.Errorf("start %v, want past the empty segment 0", c)
	}
	ps, f := walk(t, keys, m, segs, local, 256)
	want := []gather.Cursor{
		{Segment: 1, Offset: 256, Left: 300}, // in the middle of a segment
		{Segment: 6, Left: 44},               // a segment ended, two empty ones passed
		{Segment: 8},                         // the end, the last empty one passed
	}
	if len(ps) != len(want) || f != (gather.Fault{}) {
		t.Fatalf("%d packets, %v", len(ps), f)
	}
	for i, p := range ps {
		if p.cursor != want[i] {
			t.Errorf("after packet %d: %v, want %v", i+1, p.cursor, want[i])
		}
	}
	// A message that ends in mid-segment? There is none: but a cursor resumes
	// wherever it was saved, and Seek finds the same places.
	for off, want := range map[uint32]gather.Cursor{
		0: {Segment: 1, Left: 556}, 1: {Segment: 1, Offset: 1, Left: 555}, 299: {Segment: 1, Offset: 299, Left: 257},
		300: {Segment: 3, Left: 256}, 511: {Segment: 3, Offset: 211, Left: 45}, 512: {Segment: 6, Left: 44},
		555: {Segment: 6, Offset: 43, Left: 1}, 556: {Segment: 8},
	} {
		if c, ok := gather.Seek(segs, off); !ok || c != want {
			t.Errorf("seek %d: %v %v, want %v", off, c, ok, want)
		}
	}
	if _, ok := gather.Seek(segs, 557); ok {
		t.Error("seek beyond the end went well")
	}
	// Empty lists: at the end from the start.
	for _, n := range []int{0, 1, 63} {
		if c, _, ok := gather.Start(make([]gather.Segment, n)); !ok || c != (gather.Cursor{Segment: n}) || !c.Done() {
			t.Errorf("%d empty segments: %v %v", n, c, ok)
		}
	}
	// A cursor that is not in its list, as when a WQE changed: no panic, no byte.
	for _, c := range []gather.Cursor{{Segment: -1, Left: 1}, {Segment: 8, Left: 1}, {Segment: 1, Offset: 301, Left: 1}, {Segment: 6, Left: 45}, {Segment: 99, Left: 3}} {
		before := c
		if n, f, ok := gather.Packet(keys, m, nil, segs, local, &c, 256, make([]byte, 256)); ok || n != 0 || f.Reason != hw.ReasonMalformed || c != before {
			t.Errorf("cursor %v: %d bytes, %v, cursor now %v; want malformed, unmoved", before, n, f, c)
		}
	}
}

func TestG09_OneLookupPerSegmentAndPacket(t *testing.T) {
	keys, m, segs, who := chapter(t)
	ps, _ := walk(t, keys, m, segs, who, 4096)
	want := [][]string{
		{"lookup 0+0 1024 miss NONE", "lookup 1+0 3072 miss NONE"},
		{"lookup 1+3072 3072 hit NONE", "lookup 2+0 512 hit NONE"},
	}
	if got := lookups(ps); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the chapter's lookups: %q, want %q", got, want)
	}
	// Never skipped because the last segment had the same lkey, and each
	// lookup stands right before its read.
	keys, m = flat(1024)
	same := []gather.Segment{{Addr: 0x1000, Length: 10, Key: 0x100}, {Addr: 0x100a, Length: 10, Key: 0x100}, {Addr: 0x1000, Length: 500, Key: 0x100}}
	ps, _ = walk(t, keys, m, same, local, 256)
	wantSteps := [][]string{
		{"lookup 0+0 10 miss NONE", "read 0+0 10 NONE", "lookup 1+0 10 miss NONE", "read 1+0 10 NONE", "lookup 2+0 236 miss NONE", "read 2+0 236 NONE"},
		{"lookup 2+236 256 miss NONE", "read 2+236 256 NONE"},
		{"lookup 2+492 8 miss NONE", "read 2+492 8 NONE"},
	}
	for i := range ps {
		if !slices.Equal(ps[i].steps, wantSteps[i]) {
			t.Errorf("packet %d: %q, want %q", i+1, ps[i].steps, wantSteps[i])
		}
	}
	// No lookup after one that failed.
	keys.Table.(table)[1] = gather.Key{}
	var tr steps
	c, _, _ := gather.Start(same)
	gather.Packet(keys, m, &tr, same, local, &c, 256, make([]byte, 256))
	if w := []string{"lookup 0+0 10 miss KEY_INDEX"}; !slices.Equal(tr, w) {
		t.Errorf("steps %q, want %q", tr, w)
	}
}

func TestG10_OrderOfChecks(t *testing.T) {
	// Each subset of the five faults: the first in the rule's order is told.
	order := []hw.Reason{hw.ReasonKeyIndex, hw.ReasonKeyTag, hw.ReasonPD, hw.ReasonAccess, hw.ReasonBounds}
	for set := range 1 << len(order) {
		k := region(0x42, 0x1000, 100, 0x9000)
		want := hw.ReasonNone
		for i := len(order) - 1; i >= 0; i-- {
			if set>>i&1 != 0 {
				want = order[i]
			}
		}
		if set&1 != 0 {
			k.State = hw.KeyStateInvalid
		}
		if set&2 != 0 {
			k.Tag = 0x43
		}
		if set&4 != 0 {
			k.PD = 6
		}
		if set&8 != 0 {
			k.Access &^= hw.AccessRemoteRead
		}
		n := uint32(100)
		if set&16 != 0 {
			n = 101
		}
		iova, r := gather.Check(&k, 0x742, gather.Who{PD: 5, Access: hw.AccessRemoteRead}, 0x1000, n)
		if r != want || (r == hw.ReasonNone) != (iova == 0x9000) {
			t.Errorf("faults %05b: %v at %#x, want %v", set, r, iova, want)
		}
	}
	// What exists: an entry in the table, and valid.
	k := region(0x42, 0x1000, 100, 0x9000)
	if _, r := gather.Check(nil, 0x742, local, 0x1000, 1); r != hw.ReasonKeyIndex {
		t.Errorf("index beyond the table: %v", r)
	}
	k.State = hw.KeyStateFree
	if _, r := gather.Check(&k, 0x742, local, 0x1000, 1); r != hw.ReasonKeyIndex {
		t.Errorf("free entry: %v", r)
	}
	keys, _ := flat(64)
	for _, key := range []uint32{0x300, 0xffffff00, 0} {
		if _, _, r := keys.Translate(key, local, 0x1000, 1); r != hw.ReasonKeyIndex {
			t.Errorf("key %#x: %v, want key-index", key, r)
		}
	}
}

func TestG10_Bounds(t *testing.T) {
	const top = math.MaxUint64
	for _, tc := range []struct {
		base, length, addr uint64
		n                  uint32
		want               hw.Reason
	}{
		{0x1000, 100, 0x1000, 100, hw.ReasonNone},
		{0x1000, 100, 0x1063, 1, hw.ReasonNone},
		{0x1000, 100, 0x1063, 2, hw.ReasonBounds},
		{0x1000, 100, 0x1064, 1, hw.ReasonBounds},
		{0x1000, 100, 0x0fff, 1, hw.ReasonBounds},
		{0x1000, 100, 0x0fff, 2, hw.ReasonBounds},
		{0x1000, 100, 0x1000, math.MaxUint32, hw.ReasonBounds},
		{0x1000, 100, top, 2, hw.ReasonBounds},
		{0x1000, 0, 0x1000, 1, hw.ReasonBounds},
		{0, 1 << 32, 1<<32 - 1, 1, hw.ReasonNone},
		{0, 1 << 32, 0, math.MaxUint32, hw.ReasonNone},
		{0, 100, top, 1, hw.ReasonBounds},
		{0, 100, top - 9, 20, hw.ReasonBounds},    // would wrap into the region
		{top - 9, 10, top - 9, 10, hw.ReasonNone}, // the last bytes there are
		{top - 9, 10, top - 9, 11, hw.ReasonBounds},
		{top - 9, 20, top - 9, 11, hw.ReasonBounds}, // an entry that itself wraps grants nothing beyond
	} {
		k := region(0, tc.base, tc.length, 0x100000)
		iova, r := gather.Check(&k, 0, local, tc.addr, tc.n)
		if r != tc.want || r == hw.ReasonNone && iova != 0x100000+tc.addr-tc.base {
			t.Errorf("[%#x+%#x] in region [%#x+%#x]: %v at %#x, want %v", tc.addr, tc.n, tc.base, tc.length, r, iova, tc.want)
		}
	}
	// The bytes of this piece: the packet before the region's end goes well.
	keys, m := flat(300)
	segs := []gather.Segment{{Addr: 0x1000, Length: 600, Key: 0x100}}
	ps, f := walk(t, keys, m, segs, local, 256)
	if len(ps) != 1 || f != (gather.Fault{Key: 0x100, Offset: 256, Reason: hw.ReasonBounds}) {
		t.Errorf("%d packets, %v; want one, and bounds at 256", len(ps), f)
	}
	// A segment that wraps around the address space, cut exactly there, does
	// not go on at address 0, though a table that grants everything says so.
	_, m = flat(4096)
	segs = []gather.Segment{{Addr: top - 255, Length: 600, Key: 0x100}}
	ps, f = walk(t, anywhere(0x1000), m, segs, local, 256)
	if len(ps) != 1 || f != (gather.Fault{Key: 0x100, Offset: 256, Reason: hw.ReasonBounds}) {
		t.Errorf("around the end of the address space: %d packets, %v; want one, and bounds at 256", len(ps), f)
	}
}

// anywhere is a Translator for which every piece is at the same place.
type anywhere uint64

func (a anywhere) Translate(uint32, gather.Who, uint64, uint32) (uint64, bool, hw.Reason) {
	return uint64(a), false, hw.ReasonNone
}

func TestG10_Windows(t *testing.T) {
	k := region(0, 0x1000, 100, 0x9000)
	k.Type, k.BoundQPN = hw.KeyTypeMW2, 17
	for _, tc := range []struct {
		who  gather.Who
		want hw.Reason
	}{
		{gather.Who{PD: 5, QPN: 17, Access: hw.AccessRemoteRead}, hw.ReasonNone},
		{gather.Who{PD: 5, QPN: 18, Access: hw.AccessRemoteRead}, hw.ReasonPD},
		{gather.Who{PD: 6, QPN: 17, Access: hw.AccessRemoteRead}, hw.ReasonPD},
		{gather.Who{PD: 5, QPN: 17, Access: gather.LocalRead}, hw.ReasonAccess},
		{gather.Who{PD: 5, QPN: 17, Access: hw.AccessLocalWrite}, hw.ReasonAccess},
	} {
		if _, r := gather.Check(&k, 0, tc.who, 0x1000, 1); r != tc.want {
			t.Errorf("window of QP 17 for %+v: %v, want %v", tc.who, r, tc.want)
		}
	}
}

func TestG12_EmptySegments(t *testing.T) {
	// Empty segments under a key that does not exist, in every place: no
	// lookup, no fault, and nothing is missing.
	keys, m := flat(64)
	void := gather.Segment{Addr: 0xdead, Key: 0xffffff}
	a, b := gather.Segment{Addr: 0x1000, Length: 5, Key: 0x100}, gather.Segment{Addr: 0x1010, Length: 6, Key: 0x100}
	for _, segs := range [][]gather.Segment{{void, a, b}, {a, void, b}, {a, b, void}, {void, void, a, void, void, b, void}} {
		ps, f := walk(t, keys, m, segs, local, 256)
		if len(ps) != 1 || f != (gather.Fault{}) || len(lookups(ps)[0]) != 2 ||
			!bytes.Equal(ps[0].payload, slices.Concat(m.bytes[:5], m.bytes[0x10:][:6])) {
			t.Errorf("%v: %v, %v", segs, ps, f)
		}
	}
	ps, f := walk(t, keys, m, []gather.Segment{void, void}, local, 256)
	if len(ps) != 1 || f != (gather.Fault{}) || len(ps[0].steps) != 0 {
		t.Errorf("empty segments only: %v, %v", ps, f)
	}
}

func TestG13_AckReq(t *testing.T) {
	const rc, uc = true, false
	for _, tc := range []struct {
		op                     gather.Op
		reliable               bool
		packet, packets, every uint32
		want                   bool
	}{
		{gather.Send, rc, 0, 2, 0, false}, {gather.Send, rc, 1, 2, 0, true}, {gather.Send, rc, 0, 1, 0, true},
		{gather.Write, rc, 0, 2, 0, false}, {gather.Write, rc, 1, 2, 0, true},
		{gather.ReadRequest, rc, 0, 1, 0, true}, {gather.Atomic, rc, 0, 1, 0, true},
		{gather.ReadResponse, rc, 0, 1, 0, false}, {gather.ReadResponse, rc, 65, 66, 66, false}, {gather.Response, rc, 0, 1, 0, false},
		{gather.Send, uc, 0, 1, 0, false}, {gather.Write, uc, 1, 2, 1, false},
		// Every 66th packet of a long message, and its last.
		{gather.Send, rc, 64, 200, 66, false}, {gather.Send, rc, 65, 200, 66, true}, {gather.Send, rc, 66, 200, 66, false},
		{gather.Write, rc, 131, 200, 66, true}, {gather.Write, rc, 199, 200, 66, true}, {gather.Write, rc, 198, 200, 66, false},
	} {
		if got := gather.AckReq(tc.op, tc.reliable, tc.packet, tc.packets, tc.every); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

func TestG14_BuffersDoNotShow(t *testing.T) {
	// The same 5,000 bytes in 1 buffer, in 3, in 63: the same packets.
	keys, m := flat(5000)
	cut := func(n int) (segs []gather.Segment) {
		at := uint64(0x1000)
		for i := range n {
			end := uint64(0x1000 + 5000*(i+1)/n)
			segs = append(segs, gather.Segment{Addr: at, Length: uint32(end - at), Key: 0x100 << (i % 2)})
			at = end
		}
		return segs
	}
	for _, n := range []int{1, 3, 63} {
		ps, f := walk(t, keys, m, cut(n), local, 1024)
		if f != (gather.Fault{}) || len(ps) != 5 {
			t.Fatalf("%d buffers: %d packets, %v", n, len(ps), f)
		}
		for i, p := range ps {
			if want := m.bytes[i*1024 : min((i+1)*1024, 5000)]; !bytes.Equal(p.payload, want) {
				t.Errorf("%d buffers: packet %d shows them", n, i+1)
			}
		}
	}
}
