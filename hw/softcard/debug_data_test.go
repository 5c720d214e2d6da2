package softcard

import (
	"bytes"
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// set stores to a 32-bit register of the debug page.
func (n *node) set(reg uint64, v uint32) {
	n.tb.Helper()
	var b [4]byte
	le.PutUint32(b[:], v)
	if err := n.card.WriteRegion(hw.BARCtrl, reg, b[:]); err != nil {
		n.tb.Fatal(err)
	}
}

// TestWalkFaults: each defect of the debug page is in the walk of the packet that it
// is for, and of no other.
func TestWalkFaults(t *testing.T) {
	type outcome struct {
		payload []byte
		ackReq  bool
		lookups uint64
		frames  int
	}
	run := func(f hw.WalkFault, nth uint32) outcome {
		p := newTwo(t, linkAttrs{mtu: hw.MTU1024, access: allAccess}) // no timeout: a request may stay unanswered
		p.pair.a.set(hw.RegDebugWalkFaultCount, nth)
		p.pair.a.set(hw.RegDebugWalkFault, uint32(f))
		p.b.recv(p.dst.sge(0, 64<<10))
		p.send(p.src.sge(10, 300), p.src.sge(5000, 400), p.src.sge(9000, 500), p.src.sge(20000, 1800)) // 3,000 bytes, 3 packets
		p.run()
		var o outcome
		for _, b := range p.sent["A>B"] {
			x := parsed(t, b)
			o.payload = append(o.payload, x.Payload()...)
			o.ackReq = x.BTH().AckReq()
			o.frames++
		}
		_, s := p.a.query()
		o.lookups = s.Lookups
		return o
	}
	right := run(hw.WalkFaultNone, 0)
	if len(right.payload) != 3000 || right.lookups != 3+2+1 || !right.ackReq {
		t.Fatalf("without a defect: %d bytes, %d lookups", len(right.payload), right.lookups)
	}
	differ := func(a, b []byte) (n int) {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	if o := run(hw.WalkFaultPayloadFlipped, 0); differ(o.payload, right.payload) != 3 {
		t.Errorf("PAYLOAD_FLIPPED: %d bytes differ, expected one a packet", differ(o.payload, right.payload))
	}
	if o := run(hw.WalkFaultPayloadFlipped, 2); differ(o.payload[:1024], right.payload[:1024]) != 0 || differ(o.payload[1024:2048], right.payload[1024:2048]) != 1 || differ(o.payload[2048:], right.payload[2048:]) != 0 {
		t.Error("PAYLOAD_FLIPPED of the second packet: not there, or elsewhere")
	}
	if o := run(hw.WalkFaultShortLast, 0); len(o.payload) != 2999 || differ(o.payload, right.payload) != 0 {
		t.Errorf("SHORT_LAST: %d bytes", len(o.payload))
	}
	if o := run(hw.WalkFaultACKReqMissing, 0); o.ackReq || !bytes.Equal(o.payload, right.payload) {
		t.Error("ACK_REQ_MISSING: the last packet asks")
	}
	if o := run(hw.WalkFaultCursorOffByOne, 1); len(o.payload) != 2999 || !bytes.Equal(o.payload[:1024], right.payload[:1024]) || !bytes.Equal(o.payload[1024:], right.payload[1025:]) {
		t.Errorf("CURSOR_OFF_BY_ONE: %d bytes", len(o.payload))
	}
	if o := run(hw.WalkFaultSegmentsSwapped, 1); bytes.Equal(o.payload, right.payload) || !bytes.Equal(o.payload[:400], right.payload[300:700]) || !bytes.Equal(o.payload[400:700], right.payload[:300]) {
		t.Error("SEGMENTS_SWAPPED: the first two segments are in order")
	}
	if o := run(hw.WalkFaultLookupSkipped, 2); o.lookups != 3+1 || o.frames != 3 {
		t.Errorf("LOOKUP_SKIPPED in the second packet: %d lookups, expected 4", o.lookups)
	}
}

// TestFlipByte: the Nth gathered packet has its first byte inverted.
func TestFlipByte(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.pair.a.set(hw.RegDebugFlipByte, 2)
	p.write(p.src.sge(0, 9000))
	p.run()
	want := append([]byte{}, p.src.mem[:9000]...)
	want[4096] ^= 0xff
	if !bytes.Equal(p.dst.mem[:9000], want) {
		t.Error("other bytes than expected")
	}
}

// TestACKCoalesce: with the register set, one ACK answers all that a Step took in.
func TestACKCoalesce(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.pair.b.set(hw.RegDebugACKCoalesce, 1)
	var want []wc
	for range 30 {
		want = append(want, good(p.send(p.src.sge(0, 100))))
	}
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, want...)
	if n := len(p.sent["B>A"]); n != 1 {
		t.Fatalf("%d ACKs, expected 1", n)
	}
	if x := parsed(t, p.sent["B>A"][0]); x.BTH().PSN() != psnA+29 || x.AETH().MSN() != 30 || x.AETH().Syndrome().Kind() != roce.ACK {
		t.Errorf("answered %v", answers([]*roce.Packet{x}))
	}
}

// TestRateIgnored: a QP that the gate holds goes when the gate is taken away.
func TestRateIgnored(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.pair.a.limit(p.a, 3, 1, 5000)
	p.write(p.src.sge(0, 9000))
	p.run()
	if x, _ := p.a.query(); x.Held != 1 {
		t.Fatal("it is not held")
	}
	p.pair.a.set(hw.RegDebugRateIgnored, 1)
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(0))
}

// TestTraceSample: with a sample of 16 one packet of each 16 is reported, whole, and
// not the same one each time; with one of 1 everything is.
func TestTraceSample(t *testing.T) {
	k := defaultLink()
	k.mtu = hw.MTU256
	p := newTwo(t, k)
	n := p.pair.a
	const log = 12
	iova, ring := n.host.alloc(t, hw.TraceRecordSize<<log)
	n.must(hw.CommandSetTrace, 0, 0, (&hw.RingContext{IOVA: iova, LogEntries: log, LogStride: 6, All: 1, Sample: 16}).AsBytes())
	const packets = 1600
	for range packets / 16 {
		p.write(p.src.sge(0, 2048), p.src.sge(5000, 2048)) // 16 packets
		p.run()
	}
	kinds := map[hw.TraceKind]int{}
	places := map[uint32]int{}
	for _, r := range hw.SliceTraceRecord(ring) {
		if r.QPN == 0 {
			break
		}
		kinds[r.Kind]++
		if r.Kind == hw.TraceKindHandover {
			places[r.Packet]++
		}
	}
	for _, kind := range []hw.TraceKind{hw.TraceKindPacket, hw.TraceKindLookup, hw.TraceKindRead, hw.TraceKindHandover, hw.TraceKindSent} {
		if kinds[kind] != packets/16 {
			t.Errorf("%d records %v of %d packets", kinds[kind], kind, packets)
		}
	}
	if kinds[hw.TraceKindWQE] != 0 {
		t.Errorf("%d WQE records", kinds[hw.TraceKindWQE])
	}
	if len(places) < 14 {
		t.Errorf("only the packets %v of 16 are ever looked at", places)
	}
	if r, _ := n.command(hw.CommandSetCapture, 0, 0, (&hw.RingContext{IOVA: iova, LogEntries: 4, LogStride: 12, All: 1, Sample: 2}).AsBytes(), 0); r.status != hw.CommandStatusBadParam {
		t.Errorf("a capture ring with a sample: %v", r)
	}
}
