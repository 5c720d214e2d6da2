package softcard

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// header is a request's header as A would send it to B.
func (p *two) header(op roce.Opcode, psn uint32) roce.Header {
	a, b := p.pair.a.card, p.pair.b.card
	src, _ := a.net.gid(0)
	dst, _ := b.net.gid(0)
	return roce.Header{DstMAC: b.net.ctx.MAC, SrcMAC: a.net.ctx.MAC, Src: src, Dst: dst, HopLimit: 64, UDPSrcPort: 0xc000, PKey: 0xffff, DestQP: p.b.number,
		Opcode: op, PSN: psn, AckReq: true}
}

// inject puts a frame of the test's own on the wire to B.
func (p *two) inject(frame []byte) {
	c := p.pair.a.card
	f := c.txRequest(c.route(macNumber(p.pair.b.card.net.ctx.MAC)))
	if f == nil {
		p.tb.Fatal("no room on the wire")
	}
	f.start, f.end = 0, copy(f.buf, frame)
	c.send(f, 0)
}

// request injects a request and gives what B answered.
func (p *two) request(h roce.Header, payload []byte) []*roce.Packet {
	p.tb.Helper()
	p.sent["B>A"] = nil
	p.inject(h.Append(nil, payload))
	p.run()
	var out []*roce.Packet
	for _, f := range p.sent["B>A"] {
		out = append(out, parsed(p.tb, f))
	}
	return out
}

// answers describes answers: opcode, PSN, and syndrome and MSN where there are.
func answers(ps []*roce.Packet) (s string) {
	for _, x := range ps {
		s += fmt.Sprintf("%v %d", x.Opcode(), x.BTH().PSN())
		if a := x.AETH(); a != nil {
			s += fmt.Sprintf(" %#x msn %d", uint8(a.Syndrome()), a.MSN())
		}
		s += "; "
	}
	return s
}

func wantAnswers(t testing.TB, what string, got []*roce.Packet, want string) {
	t.Helper()
	if s := answers(got); s != want {
		t.Errorf("%s: answered %q, expected %q", what, s, want)
	}
}

// events takes the events of a node.
func (n *node) events() (out []hw.EQE) {
	for e, have := n.eq.poll(); have; e, have = n.eq.poll() {
		out = append(out, e)
	}
	return out
}

func (n *node) wantEvent(t testing.TB, typ hw.EventType, sub hw.Reason, object uint32) {
	t.Helper()
	all := n.events()
	for _, e := range all {
		if e.Type == typ && e.Subtype == sub && e.Object == object {
			return
		}
	}
	t.Errorf("no event %v %v of %d among %v", typ, sub, object, all)
}

const psnA = 1000 // the first PSN from A to B of newTwo

// TestG19_TheWholeRangeIsCheckedWhenAREADIsAccepted, and then there is one
// translation a packet.
func TestG19_TheWholeRangeIsCheckedWhenAREADIsAccepted(t *testing.T) {
	size := uint32(256 << 10)
	for _, k := range []struct {
		name   string
		change func(p *two, h *roce.Header)
		want   string
		reason hw.Reason
	}{
		{"no such key", func(_ *two, h *roce.Header) { h.RETH.RKey = noKey }, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonKeyIndex},
		{"stale key", func(_ *two, h *roce.Header) { h.RETH.RKey++ }, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonKeyTag},
		{"other domain", func(p *two, h *roce.Header) { p.pair.b.writeKey(p.dst, testPD+1, allAccess, hw.KeyStateValid) }, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonPD},
		{"no right", func(p *two, h *roce.Header) {
			p.pair.b.writeKey(p.dst, testPD, allAccess&^hw.AccessRemoteRead, hw.KeyStateValid)
		}, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonAccess},
		{"one byte too many", func(_ *two, h *roce.Header) { h.RETH.VA += uint64(size) - 12287 }, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonBounds},
		{"before it", func(_ *two, h *roce.Header) { h.RETH.VA-- }, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonBounds},
		{"wraps", func(_ *two, h *roce.Header) { h.RETH.VA = ^uint64(0) }, "RC_ACK 1000 0x62 msn 0; ", hw.ReasonBounds},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newTwo(t, defaultLink())
			h := p.header(roce.RCReadRequest, psnA)
			h.RETH = roce.RETHFields{VA: p.dst.base, RKey: p.dst.key, DMALen: 12288}
			k.change(p, &h)
			wantAnswers(t, "READ", p.request(h, nil), k.want)
			if n := p.pair.b.card.count[cntLookups]; n != 1 {
				t.Errorf("%d lookups, expected the one of the acceptance", n)
			}
			wantState(t, p.b, hw.QPStateErr)
			p.pair.b.wantEvent(t, hw.EventTypeQPAccessErr, k.reason, p.b.number)
			wantAnswers(t, "the QP in ERR", p.request(h, nil), "")
		})
	}
	p := newTwo(t, defaultLink())
	h := p.header(roce.RCReadRequest, psnA)
	h.RETH = roce.RETHFields{VA: p.dst.base + uint64(size) - 12288, RKey: p.dst.key, DMALen: 12288}
	wantAnswers(t, "READ to the last byte", p.request(h, nil), "RC_READ_RESP_FIRST 1000 0x1f msn 1; RC_READ_RESP_MIDDLE 1001; RC_READ_RESP_LAST 1002 0x1f msn 1; ")
	if n := p.pair.b.card.count[cntLookups]; n != 1+3 {
		t.Errorf("%d lookups, expected one at acceptance and one a packet", n)
	}
	h.PSN, h.RETH = 1003, roce.RETHFields{VA: 1, RKey: 0, DMALen: 0}
	wantAnswers(t, "READ of nothing", p.request(h, nil), "RC_READ_RESP_ONLY 1003 0x1f msn 2; ")
}

// TestG19_InMidResponse: a key that goes, and memory that refuses, in the middle of
// a response: NAK, and never further data.
func TestG19_InMidResponse(t *testing.T) {
	for _, k := range []struct {
		name   string
		fault  func(p *two)
		syn    string
		reason hw.Reason
		event  hw.EventType
	}{
		{"key gone", func(p *two) { p.pair.b.writeKey(p.dst, testPD, allAccess, hw.KeyStateInvalid) }, "0x62", hw.ReasonKeyIndex, hw.EventTypeQPAccessErr},
		{"DMA refused", func(p *two) {
			from := p.dst.iova + 8192
			p.pair.b.host.fail = func(iova uint64, _ int, write bool) bool { return !write && iova >= from && iova < p.dst.iova+256<<10 }
		}, "0x63", hw.ReasonDMARead, hw.EventTypeQPFatal},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := &two{pair: newPair(t, 2)} // room for one answer on the wire: the response takes turns
			p.a, p.b = p.connected(17, defaultLink())
			p.src = p.pair.a.newMR(0x1000_0000, 256<<10, srcKey, allAccess)
			p.dst = p.pair.b.newMR(0x2000_0000, 256<<10, dstKey, allAccess)
			p.sent = p.record()
			p.a.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 100<<10)}})
			record := p.onWire
			p.onWire = func(dir string, f *frame) {
				record(dir, f)
				if len(p.sent["B>A"]) == 2 { // two packets are out
					k.fault(p)
				}
			}
			p.run()
			var got []*roce.Packet
			for _, f := range p.sent["B>A"] {
				got = append(got, parsed(t, f))
			}
			wantAnswers(t, "READ", got, "RC_READ_RESP_FIRST 1000 0x1f msn 1; RC_READ_RESP_MIDDLE 1001; RC_ACK 1002 "+k.syn+" msn 1; ")
			status := hw.StatusRemAccessErr
			if k.syn == "0x63" {
				status = hw.StatusRemOpErr
			}
			wantWCs(t, "requester", p.a.sendCQ, wc{0, status, hw.ReasonRemoteNAK, hw.NoSegment, 0, 0})
			wantState(t, p.b, hw.QPStateErr)
			p.pair.b.wantEvent(t, k.event, k.reason, p.b.number)
		})
	}
}

// TestG19_WRITE: the whole range is checked at the first packet; nothing is
// written.
func TestG19_WRITE(t *testing.T) {
	p := newTwo(t, defaultLink())
	before := bytes.Clone(p.dst.mem)
	h := p.header(roce.RCWriteFirst, psnA)
	h.RETH = roce.RETHFields{VA: p.dst.base + 256<<10 - 8191, RKey: p.dst.key, DMALen: 8192}
	wantAnswers(t, "WRITE", p.request(h, make([]byte, 4096)), "RC_ACK 1000 0x62 msn 0; ")
	if !bytes.Equal(before, p.dst.mem) {
		t.Error("memory was written")
	}
	wantState(t, p.b, hw.QPStateErr)
}

// TestInvalidRequests: what breaks the protocol is answered with NAK invalid request
// and ends the connection.
func TestInvalidRequests(t *testing.T) {
	full, some := make([]byte, 4096), make([]byte, 100)
	type packet struct {
		op      roce.Opcode
		payload []byte
		reth    uint32 // DMALen
	}
	for name, k := range map[string][]packet{
		"MIDDLE without FIRST":       {{roce.RCSendMiddle, full, 0}},
		"LAST without FIRST":         {{roce.RCWriteLast, some, 0}},
		"ONLY inside a message":      {{roce.RCSendFirst, full, 0}, {roce.RCSendOnly, some, 0}},
		"FIRST inside a message":     {{roce.RCWriteFirst, full, 9000}, {roce.RCWriteFirst, full, 9000}},
		"WRITE in a SEND":            {{roce.RCSendFirst, full, 0}, {roce.RCWriteLast, some, 0}},
		"READ in a SEND":             {{roce.RCSendFirst, full, 0}, {roce.RCReadRequest, nil, 10}},
		"atomic in a SEND":           {{roce.RCSendFirst, full, 0}, {roce.RCFetchAdd, nil, 0}},
		"short FIRST":                {{roce.RCSendFirst, some, 0}},
		"short MIDDLE":               {{roce.RCSendFirst, full, 0}, {roce.RCSendMiddle, some, 0}},
		"empty LAST":                 {{roce.RCSendFirst, full, 0}, {roce.RCSendLast, nil, 0}},
		"long ONLY":                  {{roce.RCSendOnly, make([]byte, 4097), 0}},
		"RETH shorter than the data": {{roce.RCWriteOnly, some, 99}},
		"RETH longer than the data":  {{roce.RCWriteOnly, some, 101}},
		"WRITE that goes on":         {{roce.RCWriteFirst, full, 5000}, {roce.RCWriteMiddle, full, 0}},
		"RETH over 2^31":             {{roce.RCWriteFirst, full, 1<<31 + 1}},
		"READ over 2^31":             {{roce.RCReadRequest, nil, 1<<31 + 1}},
		"invalidation":               {{roce.RCSendOnlyInv, some, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTwo(t, defaultLink())
			p.b.recv(p.dst.sge(0, 64<<10))
			for i, x := range k {
				h := p.header(x.op, psnA+uint32(i))
				h.AckReq = i == len(k)-1
				h.RETH = roce.RETHFields{VA: p.dst.base, RKey: p.dst.key, DMALen: x.reth}
				h.Atomic = roce.AtomicETHFields{VA: p.dst.base, RKey: p.dst.key}
				got, want := p.request(h, x.payload), ""
				if i == len(k)-1 {
					want = fmt.Sprintf("RC_ACK %d 0x61 msn 0; ", psnA+i)
				}
				wantAnswers(t, "packet", got, want)
			}
			wantState(t, p.b, hw.QPStateErr)
			p.pair.b.wantEvent(t, hw.EventTypeQPReqErr, hw.ReasonNone, p.b.number)
			wantWCs(t, "receive queue", p.b.recvCQ, flushed(0))
		})
	}
}

// TestG11_HeldFillIsALostPacket: a packet whose lookup waits for a fill that is held back is as good as lost, the first
// of a message too: it is taken when it comes again.
func TestG11_HeldFillIsALostPacket(t *testing.T) {
	full, some := bytes.Repeat([]byte{1}, 4096), bytes.Repeat([]byte{2}, 100)
	for name, k := range map[string]struct{ first, last roce.Opcode }{"SEND": {roce.RCSendFirst, roce.RCSendLast}, "WRITE": {roce.RCWriteFirst, roce.RCWriteLast}} {
		t.Run(name, func(t *testing.T) {
			p := newTwo(t, defaultLink())
			p.b.recv(p.dst.sge(0, 64<<10))
			hold := &p.pair.b.card.regs.tests.holdFill
			for i, x := range []struct {
				op      roce.Opcode
				payload []byte
			}{{k.first, full}, {k.last, some}} {
				h := p.header(x.op, psnA+uint32(i))
				h.RETH = roce.RETHFields{VA: p.dst.base, RKey: p.dst.key, DMALen: 4196}
				hold.Store(1)
				p.pair.b.card.keys.cache.Flush()
				wantAnswers(t, "held", p.request(h, x.payload), "")
				hold.Store(0)
				wantAnswers(t, "again", p.request(h, x.payload), fmt.Sprintf("RC_ACK %d 0x1f msn %d; ", psnA+i, i))
			}
			if got, want := p.dst.mem[:4196], append(bytes.Clone(full), some...); !bytes.Equal(got, want) {
				t.Error("the message is not in memory")
			}
			wantState(t, p.b, hw.QPStateRTS)
		})
	}
}

// TestQPPermissions: an operation that the QP does not grant is an invalid request.
func TestQPPermissions(t *testing.T) {
	for op, access := range map[roce.Opcode]hw.Access{roce.RCWriteOnly: hw.AccessRemoteWrite, roce.RCReadRequest: hw.AccessRemoteRead, roce.RCCompareSwap: hw.AccessRemoteAtomic} {
		k := defaultLink()
		k.access = allAccess &^ access
		p := newTwo(t, k)
		h := p.header(op, psnA)
		h.RETH = roce.RETHFields{VA: p.dst.base, RKey: p.dst.key}
		h.Atomic = roce.AtomicETHFields{VA: p.dst.base, RKey: p.dst.key}
		wantAnswers(t, op.String(), p.request(h, nil), "RC_ACK 1000 0x61 msn 0; ")
	}
	p := newTwo(t, defaultLink())
	h := p.header(roce.RCFetchAdd, psnA)
	h.Atomic = roce.AtomicETHFields{VA: p.dst.base + 4, RKey: p.dst.key, SwapAdd: 1}
	wantAnswers(t, "misaligned atomic", p.request(h, nil), "RC_ACK 1000 0x61 msn 0; ")
}

// TestDuplicates: a SEND or WRITE is acknowledged again and not placed again, a READ
// is executed again, an atomic answered from its saved result.
func TestDuplicates(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.b.recv(p.dst.sge(0, 100))
	p.b.recv(p.dst.sge(100, 100))
	send := p.header(roce.RCSendOnly, 1000)
	wantAnswers(t, "before anything was received", p.request(p.header(roce.RCSendOnly, 999), nil), "RC_ACK 999 0x1f msn 0; ")
	wantAnswers(t, "SEND", p.request(send, []byte("abcd")), "RC_ACK 1000 0x1f msn 1; ")
	send.AckReq = false
	wantAnswers(t, "SEND again", p.request(send, []byte("efgh")), "RC_ACK 1000 0x1f msn 1; ")
	if string(p.dst.mem[:4]) != "abcd" || len(p.b.recvCQ.all()) != 1 {
		t.Error("the duplicate was placed or completed")
	}
	read := p.header(roce.RCReadRequest, 1001)
	read.RETH = roce.RETHFields{VA: p.dst.base, RKey: p.dst.key, DMALen: 5000}
	wantAnswers(t, "READ", p.request(read, nil), "RC_READ_RESP_FIRST 1001 0x1f msn 2; RC_READ_RESP_LAST 1002 0x1f msn 2; ")
	p.dst.mem[0] = 'X'
	got := p.request(read, nil)
	wantAnswers(t, "READ again", got, "RC_READ_RESP_FIRST 1001 0x1f msn 2; RC_READ_RESP_LAST 1002 0x1f msn 2; ")
	if got[0].Payload()[0] != 'X' {
		t.Error("the READ was not executed again")
	}
	read.PSN, read.RETH = 1002, roce.RETHFields{VA: p.dst.base + 4096, RKey: p.dst.key, DMALen: 904}
	wantAnswers(t, "the rest of the READ again", p.request(read, nil), "RC_READ_RESP_ONLY 1002 0x1f msn 2; ")
	read.RETH.DMALen = 4097
	wantAnswers(t, "READ into the future", p.request(read, nil), "")

	add := p.header(roce.RCFetchAdd, 1003)
	add.Atomic = roce.AtomicETHFields{VA: p.dst.base + 64, RKey: p.dst.key, SwapAdd: 10}
	le.PutUint64(p.dst.mem[64:], 7)
	for i := range 3 {
		got := p.request(add, nil)
		wantAnswers(t, "atomic", got, "RC_ATOMIC_ACK 1003 0x1f msn 3; ")
		if v := got[0].AtomicAckETH().OrigRemoteData(); v != 7 {
			t.Errorf("atomic, time %d: %d, expected 7", i, v)
		}
	}
	if v := le.Uint64(p.dst.mem[64:]); v != 17 {
		t.Errorf("memory holds %d, expected 17: executed once", v)
	}
	// Only so many results are kept; 20 later, the first is gone.
	for i := range uint32(20) {
		add.PSN = 1004 + i
		p.request(add, nil)
	}
	add.PSN = 1003
	wantAnswers(t, "atomic of long ago", p.request(add, nil), "")
	add.PSN = 1004 + 19 - 15
	wantAnswers(t, "the oldest that is kept", p.request(add, nil), fmt.Sprintf("RC_ATOMIC_ACK %d 0x1f msn 23; ", add.PSN))
}

// TestG19_DuplicateOfAGoneRegion: it is dropped, where the key went before it comes and where it goes in
// the middle of its response; the connection goes on.
func TestG19_DuplicateOfAGoneRegion(t *testing.T) {
	p := &two{pair: newPair(t, 2)} // room for one answer on the wire: the response takes turns
	p.a, p.b = p.connected(17, defaultLink())
	p.dst = p.pair.b.newMR(0x2000_0000, 256<<10, dstKey, allAccess)
	p.sent = p.record()
	record, again := p.onWire, false
	p.onWire = func(dir string, f *frame) {
		record(dir, f)
		if again && len(p.sent["B>A"]) == 2 {
			p.pair.b.writeKey(p.dst, testPD, allAccess, hw.KeyStateInvalid)
		}
	}
	const whole = "RC_READ_RESP_FIRST 1000 0x1f msn 1; RC_READ_RESP_MIDDLE 1001; RC_READ_RESP_MIDDLE 1002; RC_READ_RESP_LAST 1003 0x1f msn 1; "
	read := p.header(roce.RCReadRequest, 1000)
	read.RETH = roce.RETHFields{VA: p.dst.base, RKey: p.dst.key, DMALen: 4 * 4096}
	wantAnswers(t, "READ", p.request(read, nil), whole)
	wantAnswers(t, "READ again", p.request(read, nil), whole)
	again = true
	wantAnswers(t, "READ again, whose key goes", p.request(read, nil), "RC_READ_RESP_FIRST 1000 0x1f msn 1; RC_READ_RESP_MIDDLE 1001; ")
	wantAnswers(t, "READ again, without its key", p.request(read, nil), "")
	wantState(t, p.b, hw.QPStateRTS)
	p.b.recv()
	wantAnswers(t, "the next request", p.request(p.header(roce.RCSendOnly, 1004), nil), "RC_ACK 1004 0x1f msn 2; ")
}

// TestSequenceNAKOnce: a gap draws one NAK of the expected PSN until that has come.
func TestSequenceNAKOnce(t *testing.T) {
	p := newTwo(t, defaultLink())
	for range 3 {
		p.b.recv(p.dst.sge(0, 100))
	}
	at := func(psn uint32) roce.Header { return p.header(roce.RCSendOnly, psn) }
	wantAnswers(t, "gap", p.request(at(1002), nil), "RC_ACK 1000 0x60 msn 0; ")
	wantAnswers(t, "gap again", p.request(at(1003), nil), "")
	wantAnswers(t, "expected", p.request(at(1000), nil), "RC_ACK 1000 0x1f msn 1; ")
	wantAnswers(t, "another gap", p.request(at(1002), nil), "RC_ACK 1001 0x60 msn 1; ")
}

// TestDrops: frames that a card takes no notice of, and their counters.
func TestDrops(t *testing.T) {
	for _, k := range []struct {
		name string
		h    func(h *roce.Header)
		raw  func(b []byte) []byte
		at   counter
	}{
		{"wrong ICRC", nil, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, cntRXDropICRC},
		{"truncated", nil, func(b []byte) []byte { return b[:len(b)-1] }, cntRXDropMalformed},
		{"not RoCE", nil, func(b []byte) []byte { b[12] = 0x77; return b }, cntRXDropMalformed},
		{"empty", nil, func([]byte) []byte { return nil }, cntRXDropMalformed},
		{"other address", func(h *roce.Header) { h.Dst[15]++ }, nil, cntRXDropAddress},
		{"other MAC", func(h *roce.Header) { h.DstMAC[5]++ }, nil, cntRXDropAddress},
		{"other peer", func(h *roce.Header) { h.Src[15]++ }, nil, cntRXDropAddress},
		{"no such QP", func(h *roce.Header) { h.DestQP++ }, nil, cntRXDropQP},
		{"UC opcode", func(h *roce.Header) { h.Opcode = roce.UCSendOnly }, nil, cntRXDropQP},
		{"UD opcode", func(h *roce.Header) { h.Opcode = roce.UDSendOnly }, nil, cntRXDropQP},
		{"P_Key 0", func(h *roce.Header) { h.PKey = 0 }, nil, cntRXDropPKey},
		{"other P_Key", func(h *roce.Header) { h.PKey = 0x1234 }, nil, cntRXDropPKey},
		{"ACK of nothing", func(h *roce.Header) { h.Opcode = roce.RCAcknowledge }, nil, cntRXDropStale},
		{"READ response to nothing", func(h *roce.Header) { h.Opcode = roce.RCReadResponseOnly }, nil, cntRXDropStale},
	} {
		p := newTwo(t, defaultLink())
		p.b.recv(p.dst.sge(0, 100))
		h := p.header(roce.RCSendOnly, psnA)
		if k.h != nil {
			k.h(&h)
		}
		b := h.Append(nil, nil)
		if k.raw != nil {
			b = k.raw(b)
		}
		p.inject(b)
		p.onWire = nil
		p.run()
		c := p.pair.b.card
		for i := cntRXDropMalformed; i <= cntRXDropStale; i++ {
			want := uint64(0)
			if i == k.at {
				want = 1
			}
			if c.count[i] != want {
				t.Errorf("%s: counter %d is %d, expected %d", k.name, i, c.count[i], want)
			}
		}
		if n := len(p.b.recvCQ.all()); n != 0 || c.count[cntTXFrames] != 0 {
			t.Errorf("%s: it had an effect", k.name)
		}
	}
	// A limited member of the partition, any source MAC, TTL and port, ECN marks: taken.
	p := newTwo(t, defaultLink())
	p.b.recv(p.dst.sge(0, 100))
	h := p.header(roce.RCSendOnly, psnA)
	h.PKey, h.SrcMAC, h.HopLimit, h.UDPSrcPort, h.TrafficClass, h.FECN, h.MigReq = 0x7fff, [6]byte{2}, 1, 7, 3, true, true
	wantAnswers(t, "odd but right", p.request(h, nil), "RC_ACK 1000 0x1f msn 1; ")
}

// TestRecvFaults: what a receive can have wrong, for both ends.
func TestRecvFaults(t *testing.T) {
	for _, k := range []struct {
		name   string
		post   func(p *two)
		size   int
		local  wc
		syn    string
		status hw.Status
	}{
		{"too small", func(p *two) { p.b.recv(p.dst.sge(0, 50), p.dst.sge(0, 49)) }, 100,
			wc{0, hw.StatusLocLenErr, hw.ReasonLength, hw.NoSegment, 0, 0}, "0x61", hw.StatusRemInvReqErr},
		{"bad key", func(p *two) { p.b.recv(p.dst.sge(0, 50), hw.DataSegment{Addr: 1, Length: 60, LKey: noKey}) }, 100,
			wc{0, hw.StatusLocProtErr, hw.ReasonKeyIndex, 1, noKey, 0}, "0x63", hw.StatusRemOpErr},
		{"no local write", func(p *two) {
			p.pair.b.writeKey(p.dst, testPD, allAccess&^hw.AccessLocalWrite, hw.KeyStateValid)
			p.b.recv(p.dst.sge(0, 100))
		}, 100, wc{0, hw.StatusLocProtErr, hw.ReasonAccess, 0, dstKey, 0}, "0x63", hw.StatusRemOpErr},
		{"DMA refused", func(p *two) {
			p.b.recv(p.dst.sge(0, 100))
			p.pair.b.host.fail = func(iova uint64, n int, write bool) bool { return write && iova == p.dst.iova }
		}, 100, wc{0, hw.StatusLocQPOpErr, hw.ReasonDMAWrite, 0, dstKey, 0}, "0x63", hw.StatusRemOpErr},
		{"malformed", func(p *two) {
			p.b.recv(p.dst.sge(0, 100))
			p.b.rq[4] ^= 1 // its index
		}, 100, wc{0, hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0, 0}, "0x63", hw.StatusRemOpErr},
		{"more segments than the stride", func(p *two) {
			p.b.recv(p.dst.sge(0, 100))
			p.b.rq[0] = 64
		}, 100, wc{0, hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0, 0}, "0x63", hw.StatusRemOpErr},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newTwo(t, defaultLink())
			k.post(p)
			p.b.recv(p.dst.sge(4096, 100))
			p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{p.src.sge(0, uint32(k.size))}})
			p.run()
			wantWCs(t, "receiver", p.b.recvCQ, k.local, flushed(1))
			wantWCs(t, "sender", p.a.sendCQ, wc{0, k.status, hw.ReasonRemoteNAK, hw.NoSegment, 0, 0})
			wantState(t, p.a, hw.QPStateErr)
			wantState(t, p.b, hw.QPStateErr)
		})
	}
}
