package softcard

import (
	"bytes"
	"encoding/binary"
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// victim is a pair with a QP that is given nonsense, and one beside it that must
// not notice.
type victim struct {
	*two
	c, d  *tQP
	guard *tMR // memory that nobody has a key for
}

func newVictim(tb testing.TB) *victim {
	v := &victim{two: &two{pair: newPair(tb, 64)}}
	v.a, v.b = v.pair.a.newQP(qpConfig{number: 17, sqLog: 6, rqLog: 3}), v.pair.b.newQP(qpConfig{number: 17, sqLog: 6, rqLog: 3})
	v.c, v.d = v.connected(18, defaultLink())
	v.src = v.pair.a.newMR(0x1000_0000, 64<<10, srcKey, allAccess)
	v.dst = v.pair.b.newMR(0x2000_0000, 64<<10, dstKey, allAccess)
	v.guard = &tMR{}
	v.guard.iova, v.guard.mem = v.pair.b.host.alloc(tb, 64<<10)
	fill(v.src.mem, 1)
	fill(v.guard.mem, 3)
	return v
}

// again connects the victim's QPs anew.
func (v *victim) again() {
	for _, q := range []*tQP{v.a, v.b} {
		q.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateReset})
		q.sqPI, q.rqPI = 0, 0
		q.sendCQ.all()
		q.recvCQ.all()
	}
	k := defaultLink()
	k.timeout, k.retry, k.rnr, k.minRNR = 4, 1, 1, 1
	connect(v.a, v.b, k, psnA, 2000)
}

// settle runs until nothing waits for a time any more.
func (v *victim) settle() {
	v.run()
	for i := 0; v.tick(); i++ {
		if i > 10_000 {
			v.tb.Fatal("timers without end")
		}
	}
}

// unharmed sends on the other QP and looks at the guard.
func (v *victim) unharmed() {
	v.tb.Helper()
	index := v.c.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: v.dst.base, rkey: v.dst.key, sges: []hw.DataSegment{v.src.sge(7, 5000)}})
	v.settle()
	wantWCs(v.tb, "the QP beside", v.c.sendCQ, good(index))
	if !bytes.Equal(v.dst.mem[:5000], v.src.mem[7:5007]) {
		v.tb.Error("the QP beside: other bytes")
	}
	want := make([]byte, len(v.guard.mem))
	if fill(want, 3); !bytes.Equal(v.guard.mem, want) {
		v.tb.Fatal("memory without a key was written")
	}
}

// FuzzWQE puts arbitrary bytes into both rings of a QP and rings its doorbells. The rings have other bytes at
// each read, where rq has a high byte: its bits change.
func FuzzWQE(f *testing.F) {
	ring := func(ws ...tWR) []byte {
		var b []byte
		for i := range ws {
			b = append(b, ws[i].wqe(uint32(len(b)/hw.WQEBlock))...)
		}
		return b
	}
	s := hw.DataSegment{Addr: 0x1000_0000, Length: 5000, LKey: srcKey}
	f.Add(ring(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{s, s}}, tWR{op: hw.OpcodeRDMARead, flags: 1, remote: 0x2000_0000, rkey: dstKey, sges: []hw.DataSegment{s}}), uint16(3), uint16(2))
	f.Add(ring(tWR{op: hw.OpcodeAtomicCmpAndSwp, remote: 0x2000_0000, rkey: dstKey, sges: []hw.DataSegment{s}}, tWR{op: hw.OpcodeSend, isInline: true, inline: make([]byte, 900)}), uint16(17), uint16(1))
	f.Add(bytes.Repeat([]byte{0xff}, 4096), uint16(64), uint16(8))
	f.Add([]byte{}, uint16(65), uint16(9))
	f.Add(ring(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{s}}, tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{s}}), uint16(2), uint16(0x102))
	f.Add(ring(tWR{op: hw.OpcodeRDMAWrite, remote: 0x2000_0000, rkey: dstKey, sges: []hw.DataSegment{s, s}}), uint16(1), uint16(0xff01))
	v := newVictim(f)
	f.Fuzz(func(t *testing.T, b []byte, sq, rq uint16) {
		v.tb, v.pair.a.tb, v.pair.b.tb = t, t, t
		v.again()
		for i := range 4 {
			v.b.recv(v.dst.sge(uint32(i)*8192, 8192))
		}
		other := byte(rq >> 8)
		rq &= 0xff
		change := func(ring []byte, off uint64, n int) {
			for i := off; i < min(off+uint64(n), uint64(len(ring))); i++ { // nothing where off is beyond it
				ring[i] ^= other
			}
		}
		v.pair.a.host.onRead = func(iova uint64, p []byte) {
			change(v.a.sq, iova-v.a.ctx.SQIOVA, len(p))
			change(v.a.rq, iova-v.a.ctx.RQIOVA, len(p))
		}
		defer func() { v.pair.a.host.onRead = nil }()
		clear(v.a.sq)
		copy(v.a.sq, b)
		clear(v.a.rq)
		copy(v.a.rq, b)
		v.pair.a.ring(v.a.ctx.SQDoorbell, uint32(sq))
		v.pair.a.ring(v.a.ctx.RQDoorbell, uint32(rq))
		// The far end sends into the receives, too.
		v.b.post(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{v.dst.sge(0, 100)}})
		v.settle()
		last := -1
		for _, e := range v.a.sendCQ.all() {
			if int(e.WQEIndex) <= last || e.WQEIndex >= uint32(sq) {
				t.Errorf("send completion of block %d after %d, of %d posted", e.WQEIndex, last, sq)
			}
			last = int(e.WQEIndex)
		}
		v.unharmed()
	})
}

// FuzzRequest gives a responder and a requester arbitrary packets with right
// checksums: five bytes each for opcode, PSN, length and key, and what is left.
func FuzzRequest(f *testing.F) {
	f.Add([]byte{4, 0, 10, 0, 0, 10, 1, 200, 0, 0, 12, 2, 40, 0, 0})
	f.Add([]byte{0, 0, 255, 0, 0, 1, 1, 255, 0, 0, 2, 2, 5, 0, 0, 19, 3, 0, 0, 0, 12, 4, 3, 3, 3})
	f.Add([]byte{17, 0, 0, 0, 0x60, 17, 0, 0, 0, 0x20, 16, 0, 9, 0, 0, 13, 0, 255, 0, 0, 18, 0, 0, 0, 0})
	v := newVictim(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		v.tb, v.pair.a.tb, v.pair.b.tb = t, t, t
		v.again()
		for i := range 4 {
			v.b.recv(v.dst.sge(uint32(i)*8192, 8192))
		}
		// The victim has requests of its own in flight, which the frames may answer.
		for range 2 {
			v.b.post(tWR{op: hw.OpcodeRDMARead, remote: v.src.base, rkey: v.src.key, sges: []hw.DataSegment{v.dst.sge(40<<10, 200)}})
			v.b.post(tWR{op: hw.OpcodeRDMAWrite, remote: v.src.base, rkey: v.src.key, sges: []hw.DataSegment{v.dst.sge(0, 100)}})
		}
		for v.pair.b.card.Step(v.now, 64) {
		}
		for n := 0; len(b) >= 5 && n < 40; b, n = b[5:], n+1 {
			h := v.header(roce.Opcode(b[0]), psnA+uint32(int8(b[1])))
			if !h.Opcode.Valid() || h.Opcode.Transport() != roce.RC {
				continue
			}
			if !h.Opcode.Operation().Request() {
				h.PSN = 2000 + uint32(int8(b[1]))
			}
			size := int(b[2]) * 17
			if b[2] == 255 {
				size = 4096
			}
			if !h.Opcode.HasPayload() {
				size = 0
			}
			h.AckReq = b[3]&1 != 0
			key := uint32(dstKey)
			if b[3]&2 != 0 {
				key ^= uint32(b[4])
			}
			va := v.dst.base + uint64(binary.LittleEndian.Uint16(b[3:]))
			h.RETH = roce.RETHFields{VA: va, RKey: key, DMALen: uint32(b[2])*17 + uint32(b[3]>>4)}
			h.Atomic = roce.AtomicETHFields{VA: va, RKey: key, SwapAdd: 1}
			h.AETH = roce.AETHFields{Syndrome: roce.Syndrome(b[4])}
			v.inject(h.Append(nil, make([]byte, size)))
			for v.pair.b.card.Step(v.now, 64) {
			}
		}
		v.settle()
		if s := v.b.state(); s != hw.QPStateRTS && s != hw.QPStateErr {
			t.Errorf("state %v", s)
		}
		v.unharmed()
	})
}
