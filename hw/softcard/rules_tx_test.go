package softcard

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// two is a connected pair with memory on both sides.
type two struct {
	*pair
	a, b     *tQP
	src, dst *tMR
	sent     map[string][][]byte
}

const (
	srcKey = 0x1250
	dstKey = 0x228e
	noKey  = 0xbad00 // no key has that index
)

func newTwo(t testing.TB, k linkAttrs) *two {
	p := &two{pair: newPair(t, 256)}
	p.a, p.b = p.connected(17, k)
	p.src = p.pair.a.newMR(0x1000_0000, 256<<10, srcKey, allAccess)
	p.dst = p.pair.b.newMR(0x2000_0000, 256<<10, dstKey, allAccess)
	fill(p.src.mem, 1)
	p.sent = p.record()
	return p
}

// send posts a signaled SEND and a receive for it.
func (p *two) send(sges ...hw.DataSegment) uint32 {
	p.b.recv(p.dst.sge(0, 128<<10))
	return p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: sges})
}

// write posts a signaled WRITE to the start of dst.
func (p *two) write(sges ...hw.DataSegment) uint32 {
	return p.a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: sges})
}

// wc is what a test compares of a completion.
type wc struct {
	index  uint32
	status hw.Status
	reason hw.Reason
	seg    uint8
	key    uint32
	offset uint64
}

func good(index uint32) wc { return wc{index: index, seg: hw.NoSegment} }

func flushed(index uint32) wc {
	return wc{index: index, status: hw.StatusWRFlushErr, reason: hw.ReasonFlushed, seg: hw.NoSegment}
}

func wantWCs(t testing.TB, what string, cq *tCQ, want ...wc) {
	t.Helper()
	var got []wc
	for _, e := range cq.all() {
		got = append(got, wc{e.WQEIndex, e.Status, e.Reason, e.FaultSegment, e.FaultKey, e.FaultOffset})
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: completions\n %v\nexpected\n %v", what, got, want)
	}
}

func wantState(t testing.TB, q *tQP, s hw.QPState) {
	t.Helper()
	if got := q.state(); got != s {
		t.Errorf("QP %d of %s: state %v, expected %v", q.number, q.n.card.Name(), got, s)
	}
}

// TestG02_AtomicsAndREADsLookUpNothingBeforeTheyLeave: no gather and no lookup
// before the request; the result is scattered when the response is in.
func TestG02_AtomicsAndREADsLookUpNothingBeforeTheyLeave(t *testing.T) {
	p := newTwo(t, defaultLink())
	fill(p.dst.mem, 9)
	p.a.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 100), p.src.sge(5000, 4900)}})
	p.a.post(tWR{op: hw.OpcodeAtomicFetchAndAdd, flags: hw.WQEFlagSignaled, remote: p.dst.base + 64, rkey: p.dst.key, swapAdd: 5, sges: []hw.DataSegment{p.src.sge(200, 3), p.src.sge(300, 5)}})
	c := p.pair.a.card
	for c.Step(p.now, 64) {
	}
	if len(p.sent["A>B"]) != 0 {
		t.Fatal("the test sees frames too early")
	}
	p.tap(0, p.pair.a)
	if n := len(p.sent["A>B"]); n != 2 {
		t.Fatalf("%d requests have left, expected 2", n)
	}
	if _, s := p.a.query(); s.Lookups != 0 || s.PayloadReads != 0 || c.count[cntLookups] != 0 {
		t.Errorf("before any response: %d lookups, %d reads; the card counts %d lookups", s.Lookups, s.PayloadReads, c.count[cntLookups])
	}
	want := append([]byte{}, p.dst.mem[:5000]...)
	old := append([]byte{}, p.dst.mem[64:72]...)
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(0), good(1))
	if got := append(append([]byte{}, p.src.mem[:100]...), p.src.mem[5000:9900]...); !bytes.Equal(got, want) {
		t.Error("the READ's bytes are not where its segments say")
	}
	if got := append(append([]byte{}, p.src.mem[200:203]...), p.src.mem[300:305]...); !bytes.Equal(got, old) {
		t.Errorf("the atomic's result is % x, the memory held % x", got, old)
	}
	if got := le.Uint64(p.dst.mem[64:]); got != le.Uint64(old)+5 {
		t.Errorf("fetch and add left %#x, expected %#x", got, le.Uint64(old)+5)
	}
	// READ: the first packet in both segments, the second in one; atomic: both.
	if n := c.count[cntLookups]; n != 3+2 {
		t.Errorf("%d lookups for the results, expected 5", n)
	}
}

// TestG13_TheLastPacketAsksForAnAcknowledgement, and in a long message every Nth.
func TestG13_TheLastPacketAsksForAnAcknowledgement(t *testing.T) {
	for _, every := range []uint32{0, 1, 2, 3, 66} {
		k := defaultLink()
		k.mtu = hw.MTU256
		p := newTwo(t, k)
		if err := p.pair.a.card.WriteRegion(hw.BARCtrl, hw.RegDebugACKReqInterval, []byte{byte(every), 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		p.send(p.src.sge(0, 256*7))
		p.write(p.src.sge(0, 256*6+1))
		p.write(p.src.sge(0, 0))
		p.a.post(tWR{op: hw.OpcodeRDMARead, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 1000)}})
		p.a.post(tWR{op: hw.OpcodeAtomicFetchAndAdd, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 8)}})
		p.run()
		var want []bool
		for _, n := range []uint32{7, 7, 1} {
			for i := uint32(1); i <= n; i++ {
				want = append(want, i == n || every != 0 && i%every == 0)
			}
		}
		want = append(want, true, true) // READ request, atomic
		var got []bool
		for _, f := range p.sent["A>B"] {
			got = append(got, parsed(t, f).BTH().AckReq())
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("interval %d: AckReq %v, expected %v", every, got, want)
		}
		asked := 0
		for _, w := range want[:15] {
			if w {
				asked++
			}
		}
		acks := 0
		for _, f := range p.sent["B>A"] {
			x := parsed(t, f)
			if x.BTH().AckReq() {
				t.Errorf("interval %d: %v asks for an acknowledgement", every, x.Opcode())
			}
			if x.Opcode() == roce.RCAcknowledge {
				acks++
			}
		}
		if acks != asked {
			t.Errorf("interval %d: %d ACKs for %d AckReqs", every, acks, asked)
		}
	}
}

// TestG14_NothingShowsHowManyBuffersThereWere: the same bytes from one buffer, from
// 63, or inline are the same frames.
func TestG14_NothingShowsHowManyBuffersThereWere(t *testing.T) {
	frames := func(post func(p *two)) [][]byte {
		p := newTwo(t, defaultLink())
		p.b.recv(p.dst.sge(0, 128<<10))
		post(p)
		p.run()
		wantWCs(t, "send queue", p.a.sendCQ, good(0))
		return p.sent["A>B"]
	}
	one := frames(func(p *two) { p.send(p.src.sge(10, 9001)) })
	many := frames(func(p *two) {
		var list []hw.DataSegment
		at := uint32(10)
		for i := range uint32(62) {
			n := i * 7 % 50
			list = append(list, p.src.sge(at, n))
			at += n
		}
		list = append(list, p.src.sge(at, 9011-at))
		p.send(list...)
	})
	if len(one) != 3 {
		t.Fatalf("%d frames, expected 3", len(one))
	}
	for i := range one {
		if !bytes.Equal(one[i], many[i]) {
			t.Errorf("frame %d differs between one buffer and 63", i)
		}
		x := parsed(t, one[i])
		pad := x.BTH().PadCount()
		if (len(x.Payload())+int(pad))%4 != 0 {
			t.Errorf("frame %d: %d bytes and %d of pad", i, len(x.Payload()), pad)
		}
	}
	short := frames(func(p *two) { p.send(p.src.sge(10, 333)) })
	inline := frames(func(p *two) {
		p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, isInline: true, inline: p.src.mem[10:343]})
	})
	if len(short) != 1 || len(inline) != 1 || !bytes.Equal(short[0], inline[0]) {
		t.Error("the frame differs between a gathered and an inline payload")
	}
}

// TestG03_InlineTouchesNoKeyAndNoMemory: neither a lookup nor a payload read.
func TestG03_InlineTouchesNoKeyAndNoMemory(t *testing.T) {
	p := newTwo(t, defaultLink())
	p.b.recv(p.dst.sge(0, 4096))
	data := bytes.Repeat([]byte{1, 2, 3}, 320) // 960
	p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, isInline: true, inline: data})
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(0))
	if _, s := p.a.query(); s.Lookups != 0 || s.PayloadReads != 0 || s.Gathers != 0 {
		t.Errorf("%d lookups, %d reads, %d gathers", s.Lookups, s.PayloadReads, s.Gathers)
	}
	if !bytes.Equal(p.dst.mem[:960], data) {
		t.Error("wrong bytes")
	}
}

// localFault is a way for a gather to fail at a segment.
type localFault struct {
	name   string
	sge    func(p *two) hw.DataSegment
	fail   bool // its memory refuses the read
	status hw.Status
	reason hw.Reason
}

func localFaults() []localFault {
	return []localFault{
		{name: "no such key", sge: func(p *two) hw.DataSegment { return hw.DataSegment{Addr: p.src.base, Length: 3000, LKey: noKey} }, status: hw.StatusLocProtErr, reason: hw.ReasonKeyIndex},
		{name: "stale key", sge: func(p *two) hw.DataSegment { return hw.DataSegment{Addr: p.src.base, Length: 3000, LKey: srcKey + 1} }, status: hw.StatusLocProtErr, reason: hw.ReasonKeyTag},
		{name: "another domain", sge: func(p *two) hw.DataSegment {
			m := *p.src
			m.key = 0x31ff
			p.pair.a.writeKey(&m, testPD+1, allAccess, hw.KeyStateValid)
			return m.sge(0, 3000)
		}, status: hw.StatusLocProtErr, reason: hw.ReasonPD},
		{name: "invalid key", sge: func(p *two) hw.DataSegment {
			m := *p.src
			m.key = 0x32ff
			p.pair.a.writeKey(&m, testPD, allAccess, hw.KeyStateInvalid)
			return m.sge(0, 3000)
		}, status: hw.StatusLocProtErr, reason: hw.ReasonKeyIndex},
		{name: "out of bounds", sge: func(p *two) hw.DataSegment {
			return hw.DataSegment{Addr: p.src.base + uint64(len(p.src.mem)) - 1, Length: 3000, LKey: srcKey}
		}, status: hw.StatusLocProtErr, reason: hw.ReasonBounds},
		{name: "wraps", sge: func(p *two) hw.DataSegment { return hw.DataSegment{Addr: ^uint64(0), Length: 3000, LKey: srcKey} }, status: hw.StatusLocProtErr, reason: hw.ReasonBounds},
		{name: "DMA refused", sge: func(p *two) hw.DataSegment { return p.src.sge(200<<10, 3000) }, fail: true, status: hw.StatusLocQPOpErr, reason: hw.ReasonDMARead},
	}
}

// refuse makes the client's memory refuse reads of the last 56 KiB of src.
func (p *two) refuse() {
	from, to := p.src.iova+uint64(200<<10), p.src.iova+uint64(256<<10)
	p.pair.a.host.fail = func(iova uint64, _ int, write bool) bool { return !write && iova >= from && iova < to }
}

// TestG17_NothingPartialLeaves: a packet of which any piece fails is dropped whole
// and takes no PSN; those before it stay sent.
func TestG17_NothingPartialLeaves(t *testing.T) {
	for _, k := range localFaults() {
		for position := range 4 { // of the failing segment; each has 3,000 bytes, the MTU is 4,096
			t.Run(fmt.Sprintf("%s at %d", k.name, position), func(t *testing.T) {
				p := newTwo(t, defaultLink())
				if k.fail {
					p.refuse()
				}
				var list []hw.DataSegment
				var first []byte
				for i := range position {
					list = append(list, p.src.sge(uint32(i)*3000, 3000))
					first = append(first, p.src.mem[i*3000:(i+1)*3000]...)
				}
				list = append(list, k.sge(p), p.src.sge(0, 3000))
				p.send(list...)
				p.run()
				whole := position * 3000 / 4096 // packets before the one that fails
				if n := len(p.sent["A>B"]); n != whole {
					t.Fatalf("%d frames, expected %d", n, whole)
				}
				for i, f := range p.sent["A>B"] {
					if x := parsed(t, f); !bytes.Equal(x.Payload(), first[i*4096:(i+1)*4096]) || x.BTH().PSN() != 1000+uint32(i) {
						t.Errorf("frame %d: PSN %d, or other bytes", i, x.BTH().PSN())
					}
				}
				if x, _ := p.a.query(); x.SQPSN != 1000+uint32(whole) {
					t.Errorf("next PSN %d, expected %d", x.SQPSN, 1000+whole)
				}
				wantWCs(t, "far end", p.b.recvCQ)
				wantState(t, p.b, hw.QPStateRTS)
			})
		}
	}
}

// TestG18_CompletionsOfALocalFault: the requests before it finish, the failing one
// completes signaled or not and names segment and reason, the rest is flushed in
// order.
func TestG18_CompletionsOfALocalFault(t *testing.T) {
	for _, k := range localFaults() {
		for _, signaled := range []hw.WQEFlag{0, hw.WQEFlagSignaled} {
			t.Run(fmt.Sprintf("%s, flags %v", k.name, signaled), func(t *testing.T) {
				p := newTwo(t, defaultLink())
				if k.fail {
					p.refuse()
				}
				bad := k.sge(p)
				r := []uint32{p.a.recv(p.src.sge(0, 64)), p.a.recv(p.src.sge(64, 64))}
				first := p.send(p.src.sge(0, 9000))
				unsignaled := p.a.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 5000)}})
				failing := p.a.post(tWR{op: hw.OpcodeRDMAWrite, flags: signaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 5000), p.src.sge(0, 100), bad}})
				rest := []uint32{p.send(p.src.sge(0, 10)), p.a.post(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{p.src.sge(0, 10)}})}
				_ = unsignaled
				// The first SEND's ACK is lost once: it still finishes.
				lost := false
				record := p.onWire
				p.onWire = func(dir string, f *frame) {
					record(dir, f)
					if dir == "B>A" && !lost {
						lost = true
						spoil(f)
					}
				}
				p.run()
				for p.tick() {
				}
				wantWCs(t, "send queue", p.a.sendCQ, good(first),
					wc{failing, k.status, k.reason, 2, bad.LKey, 0}, flushed(rest[0]), flushed(rest[1]))
				wantWCs(t, "receive queue", p.a.recvCQ, flushed(r[0]), flushed(r[1]))
				x, _ := p.a.query()
				if x.State != hw.QPStateErr || x.ErrorReason != k.reason || x.ErrorSegment != 2 || x.ErrorKey != bad.LKey {
					t.Errorf("state %v, reason %v, segment %d, key %#x", x.State, x.ErrorReason, x.ErrorSegment, x.ErrorKey)
				}
				// What is posted later is flushed, too.
				late, lateRecv := p.a.post(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{p.src.sge(0, 10)}}), p.a.recv(p.src.sge(0, 64))
				p.run()
				wantWCs(t, "send queue", p.a.sendCQ, flushed(late))
				wantWCs(t, "receive queue", p.a.recvCQ, flushed(lateRecv))
			})
		}
	}
}

// TestG18_LengthAndForm: a sum of lengths over the maximum, and WQEs that cannot be.
func TestG18_LengthAndForm(t *testing.T) {
	huge := func(p *two) []byte {
		return (&tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{p.src.sge(0, 1<<31), p.src.sge(0, 1)}}).wqe(p.a.sqPI)
	}
	bent := func(change func(b []byte)) func(p *two) []byte {
		return func(p *two) []byte {
			b := (&tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 10), p.src.sge(0, 10)}}).wqe(p.a.sqPI)
			change(b)
			return b
		}
	}
	for _, k := range []struct {
		name   string
		wqe    func(p *two) []byte
		status hw.Status
		reason hw.Reason
		seg    uint8
		key    uint32
	}{
		{"2^31 and one bytes", huge, hw.StatusLocLenErr, hw.ReasonLength, 1, srcKey},
		{"opcode", bent(func(b []byte) { b[0] = 77 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"opcode of no RC", bent(func(b []byte) { b[0] = byte(hw.OpcodeLocalInv) }), hw.StatusLocQPOpErr, hw.ReasonUnsupported, hw.NoSegment, 0},
		{"flag", bent(func(b []byte) { b[1] |= 0x80 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"no segments", bent(func(b []byte) { b[2] = 0 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"one segment", bent(func(b []byte) { b[2] = 1 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"more blocks than posted", bent(func(b []byte) { b[2] = 9 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"more blocks than there are", bent(func(b []byte) { b[2] = 255 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"reserved byte", bent(func(b []byte) { b[3] = 1 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"reserved bytes", bent(func(b []byte) { b[15] = 1 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"reserved in remote", bent(func(b []byte) { b[16+12] = 1 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"another index", bent(func(b []byte) { b[8]++ }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"inline length without inline", bent(func(b []byte) { b[12] = 5 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"inline of another length", bent(func(b []byte) { b[1] |= byte(hw.WQEFlagInline); b[12] = 5 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"inline READ", bent(func(b []byte) { b[0] = byte(hw.OpcodeRDMARead); b[1] |= byte(hw.WQEFlagInline); b[12] = 32 }), hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
		{"atomic into 7 bytes", func(p *two) []byte {
			return (&tWR{op: hw.OpcodeAtomicFetchAndAdd, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 7)}}).wqe(p.a.sqPI)
		}, hw.StatusLocLenErr, hw.ReasonLength, hw.NoSegment, 0},
		{"fetch and add that compares", func(p *two) []byte {
			return (&tWR{op: hw.OpcodeAtomicFetchAndAdd, compare: 1, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 8)}}).wqe(p.a.sqPI)
		}, hw.StatusLocQPOpErr, hw.ReasonMalformed, hw.NoSegment, 0},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newTwo(t, defaultLink())
			first := p.write(p.src.sge(0, 100))
			failing := p.a.put(k.wqe(p))
			rest := p.a.put((&tWR{op: hw.OpcodeSend}).wqe(p.a.sqPI))
			p.a.ringSQ()
			p.run()
			wantWCs(t, "send queue", p.a.sendCQ, good(first), wc{failing, k.status, k.reason, k.seg, k.key, 0}, flushed(rest))
			wantState(t, p.a, hw.QPStateErr)
			if n := len(p.sent["A>B"]); n != 1 {
				t.Errorf("%d frames, expected the first request's only", n)
			}
		})
	}
}

// TestG20_OtherQPsGoOn: while one QP fails, another on the same card sends and
// receives as if nothing had happened.
func TestG20_OtherQPsGoOn(t *testing.T) {
	for _, k := range localFaults() {
		p := newTwo(t, defaultLink())
		if k.fail {
			p.refuse()
		}
		c, d := p.connected(18, defaultLink())
		var want []wc
		for i := range 20 {
			if i == 7 {
				p.write(p.src.sge(0, 5000), k.sge(p))
			}
			d.recv(p.dst.sge(uint32(i)*8192, 8192))
			want = append(want, good(c.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{p.src.sge(uint32(i)*100, 6000)}})))
			for range i % 3 {
				p.pair.a.card.Step(p.now, 1)
			}
		}
		p.run()
		wantWCs(t, k.name+": other QP", c.sendCQ, want...)
		wantState(t, c, hw.QPStateRTS)
		wantState(t, p.a, hw.QPStateErr)
		for i := range 20 {
			if !bytes.Equal(p.dst.mem[i*8192:][:6000], p.src.mem[i*100:][:6000]) {
				t.Errorf("%s: message %d of the other QP has other bytes", k.name, i)
			}
		}
		if _, s := c.query(); s.Messages != 20 || s.Retransmits != 0 {
			t.Errorf("%s: other QP: %+v", k.name, s)
		}
	}
}
