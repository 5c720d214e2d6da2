package softcard

import (
	"fmt"
	"strings"
	"testing"

	"rnic/hw"
	"rnic/hw/gather/oracle"
)

// TestG22_TheTraceIsTheWalk: each step of a walk is reported, in order, as the oracle
// says it was; nothing is traced when nobody asks.
func TestG22_TheTraceIsTheWalk(t *testing.T) {
	p := newTwo(t, defaultLink())
	const log = 8
	iova, mem := p.pair.a.host.alloc(t, hw.TraceRecordSize<<log)
	p.pair.a.must(hw.CommandSetTrace, 0, 0, (&hw.RingContext{IOVA: iova, LogEntries: log, LogStride: 6, QPN: p.a.number}).AsBytes())
	other := p.pair.a.newMR(0x3000_0000, 64<<10, 0x3377, allAccess)
	segs := []hw.DataSegment{p.src.sge(0, 1024), other.sge(512, 6144), p.src.sge(8192, 512)}
	p.send(segs...)
	p.write(p.src.sge(5, 100), p.src.sge(0, 0), hw.DataSegment{Addr: 1, Length: 7, LKey: noKey})
	p.run()
	records := func(mem []byte) (out []hw.TraceRecord) {
		for ; len(mem) > 0; mem = mem[hw.TraceRecordSize:] {
			var r hw.TraceRecord
			if copy(r.AsBytes(), mem); !r.Phase() {
				break
			}
			out = append(out, r)
		}
		return out
	}
	// The oracle walks the same requests over the same regions.
	region := func(m *tMR) oracle.Region {
		return oracle.Region{Valid: true, Tag: uint8(m.key), PD: testPD, Rights: uint8(allAccess), Base: m.base, Length: uint64(len(m.mem)), IOVA: m.iova}
	}
	world := &oracle.World{
		Regions: map[uint32]oracle.Region{p.src.key >> 8: region(p.src), other.key >> 8: region(other)},
		Read: func(iova uint64) (byte, bool) {
			b, err := p.pair.a.host.at(iova, 1, false)
			if err != nil {
				return 0, false
			}
			return b[0], true
		},
		Sets: 64, Ways: 4,
	}
	var want []string
	for _, r := range []struct {
		op    string
		index uint32
		psn   uint32
		segs  []hw.DataSegment
	}{{"send", 0, 1000, segs}, {"write", 1, 1002, []hw.DataSegment{p.src.sge(5, 100), p.src.sge(0, 0), {Addr: 1, Length: 7, LKey: noKey}}}} {
		req := oracle.Request{Op: r.op, Reliable: true, MTU: 4096, PD: testPD, QPN: p.a.number}
		total := uint32(0)
		for _, s := range r.segs {
			req.Segments = append(req.Segments, oracle.Segment{Addr: s.Addr, Length: s.Length, Key: s.LKey})
			total += s.Length
		}
		want = append(want, fmt.Sprintf("wqe %d: %d bytes", r.index, total))
		want = append(want, oracleSteps(t, world, req, r.psn)...)
	}
	var got []string
	for _, r := range records(mem) {
		got = append(got, traceStep(&r))
	}
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("step %d: traced %q, the oracle says %q", i+1, g, w)
		}
	}
	// A READ's response is a walk, too; and a trace of another QP says nothing.
	iovaB, memB := p.pair.b.host.alloc(t, hw.TraceRecordSize<<log)
	c, d := p.connected(18, defaultLink())
	p.pair.b.must(hw.CommandSetTrace, 0, 0, (&hw.RingContext{IOVA: iovaB, LogEntries: log, LogStride: 6, QPN: d.number}).AsBytes())
	c.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 5000)}})
	p.run()
	got = nil
	for _, r := range records(memB) {
		if r.Flags&hw.TraceFlagResponse == 0 || r.QPN != d.number || r.Flags&hw.TraceFlagACKReq != 0 {
			t.Errorf("record %+v is of no READ response", r)
		}
		got = append(got, traceStep(&r))
	}
	wantB := []string{ // the acceptance looked the key up before
		"packet 0 psn 1000: 4096 bytes, cursor 0+0, 5000 left", "lookup 0+0: 4096 bytes, HIT NONE", "read 0+0: 4096 bytes, cursor 0+4096, 904 left",
		"handover 0: 4096 bytes, ackreq false, last false, cursor 0+4096, 904 left", fmt.Sprintf("sent 0: %d bytes", 14+20+8+12+4+4096+4),
		"packet 1 psn 1001: 904 bytes, cursor 0+4096, 904 left", "lookup 0+4096: 904 bytes, HIT NONE", "read 0+4096: 904 bytes, cursor 1+0, 0 left",
		"handover 1: 904 bytes, ackreq false, last true, cursor 1+0, 0 left", fmt.Sprintf("sent 1: %d bytes", 14+20+8+12+4+904+4),
	}
	if testEngine == hw.EngineRTL { // which has a cache of its own: the acceptance did not look there
		wantB[1] = strings.Replace(wantB[1], "HIT", "MISS", 1)
	}
	if fmt.Sprint(got) != fmt.Sprint(wantB) {
		t.Errorf("READ response: traced\n %q, expected\n %q", got, wantB)
	}
}

// traceStep is a trace record in words.
func traceStep(r *hw.TraceRecord) string {
	cursor := fmt.Sprintf("cursor %d+%d, %d left", r.CursorSegment, r.CursorOffset, r.CursorLeft)
	switch r.Kind {
	case hw.TraceKindWQE:
		return fmt.Sprintf("wqe %d: %d bytes", r.WQEIndex, r.Bytes)
	case hw.TraceKindPacket:
		return fmt.Sprintf("packet %d psn %d: %d bytes, %s", r.Packet, r.PSN, r.Bytes, cursor)
	case hw.TraceKindLookup:
		return fmt.Sprintf("lookup %d+%d: %d bytes, %v %v", r.Segment, r.Offset, r.Bytes, r.Lookup, r.Reason)
	case hw.TraceKindRead:
		return fmt.Sprintf("read %d+%d: %d bytes, %s", r.Segment, r.Offset, r.Bytes, cursor)
	case hw.TraceKindHandover:
		return fmt.Sprintf("handover %d: %d bytes, ackreq %v, last %v, %s", r.Packet, r.Bytes, r.Flags&hw.TraceFlagACKReq != 0, r.Flags&hw.TraceFlagLast != 0, cursor)
	case hw.TraceKindSent:
		return fmt.Sprintf("sent %d: %d bytes", r.Packet, r.Bytes)
	case hw.TraceKindFault:
		return fmt.Sprintf("fault %d: segment %d+%d, key %#x, %v", r.Packet, r.Segment, r.Offset, r.Key, r.Reason)
	}
	return r.Kind.String()
}

// oracleSteps is what the oracle says of a request, in the words of traceStep, with
// the frames that leave.
func oracleSteps(t *testing.T, world *oracle.World, r oracle.Request, psn uint32) (out []string) {
	t.Helper()
	total := uint32(0)
	for _, s := range r.Segments {
		total += s.Length
	}
	walk := world.Gather(r)
	taken := uint32(0)
	cursor := func(taken uint32) string {
		left := total - taken
		if left == 0 {
			return fmt.Sprintf("cursor %d+0, 0 left", len(r.Segments))
		}
		for i, s := range r.Segments {
			if taken < s.Length {
				return fmt.Sprintf("cursor %d+%d, %d left", i, taken, left)
			}
			taken -= s.Length
		}
		return "cursor nowhere"
	}
	for _, s := range walk.Steps {
		switch s.Kind {
		case "packet":
			out = append(out, fmt.Sprintf("packet %d psn %d: %d bytes, %s", s.Packet, psn+uint32(s.Packet), s.Bytes, cursor(taken)))
		case "lookup":
			hit, reason := "MISS", s.Reason
			if s.Hit {
				hit = "HIT"
			}
			if reason == "" {
				reason = "NONE"
			}
			out = append(out, fmt.Sprintf("lookup %d+%d: %d bytes, %s %s", s.Segment, s.Offset, s.Bytes, hit, reason))
		case "read":
			taken += s.Bytes
			out = append(out, fmt.Sprintf("read %d+%d: %d bytes, %s", s.Segment, s.Offset, s.Bytes, cursor(taken)))
		case "handover":
			p := walk.Packets[s.Packet]
			out = append(out, fmt.Sprintf("handover %d: %d bytes, ackreq %v, last %v, %s", s.Packet, s.Bytes, p.AckReq, p.Cursor.Left == 0, cursor(taken)))
			out = append(out, fmt.Sprintf("sent %d: %d bytes", s.Packet, 14+20+8+12+(len(p.Payload)+3)/4*4+4))
		case "fault":
			out = append(out, fmt.Sprintf("fault %d: segment %d+%d, key %#x, %s", s.Packet, s.Segment, s.Offset, walk.Fault.Key, s.Reason))
		}
	}
	return out
}
