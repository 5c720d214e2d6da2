package softcard

import (
	"testing"

	"rnic/hw"
	"rnic/hw/roce"
)

// frameStates are the states of the victim's QP in which frames come: with requests of its own
// in flight, in the midst of a message of several packets, and where it takes none.
var frameStates = []struct {
	state  hw.QPState
	first  bool // a SEND's first packet has come
	second bool // a WRITE's first packet has come
	work   bool // it has requests in flight
}{
	{hw.QPStateRTS, false, false, true}, {hw.QPStateRTS, true, false, false}, {hw.QPStateRTS, false, true, true}, {hw.QPStateRTR, false, false, false},
	{hw.QPStateInit, false, false, false}, {hw.QPStateReset, false, false, false}, {hw.QPStateErr, false, false, false}, {hw.QPStateSQD, true, false, true},
}

// enter brings the victim's QP, freshly connected, to a state.
func (v *victim) enter(i int) {
	x := frameStates[i]
	switch x.state {
	case hw.QPStateRTR, hw.QPStateInit, hw.QPStateReset:
		v.b.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateReset})
		k := defaultLink()
		to := v.b.toward(v.a, k, 2000, psnA)
		for _, s := range []struct {
			to   hw.QPState
			mask hw.QPAttr
		}{{hw.QPStateInit, toInit}, {hw.QPStateRTR, toRTR}} {
			if x.state == hw.QPStateReset || x.state == hw.QPStateInit && s.to == hw.QPStateRTR {
				break
			}
			to.State = s.to
			v.b.modify(s.mask, to)
		}
		v.b.sqPI, v.b.rqPI = 0, 0
	}
	if x.state != hw.QPStateReset {
		for i := range 3 {
			v.b.recv(v.dst.sge(uint32(i)*8192, 8192))
		}
	}
	if x.work {
		v.b.post(tWR{op: hw.OpcodeRDMARead, remote: v.src.base, rkey: v.src.key, sges: []hw.DataSegment{v.dst.sge(40<<10, 5000)}})
		v.b.post(tWR{op: hw.OpcodeAtomicFetchAndAdd, remote: v.src.base, rkey: v.src.key, swapAdd: 1, sges: []hw.DataSegment{v.dst.sge(48<<10, 8)}})
		v.b.post(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{v.dst.sge(0, 100)}})
		v.hold()
	}
	if x.first || x.second {
		h := v.header(roce.RCSendFirst, psnA)
		if x.second {
			h.Opcode = roce.RCWriteFirst
			h.RETH = roce.RETHFields{VA: v.dst.base, RKey: dstKey, DMALen: 9000}
		}
		h.AckReq = false
		v.inject(h.Append(nil, make([]byte, 4096)))
		v.hold()
	}
	if x.state == hw.QPStateErr || x.state == hw.QPStateSQD {
		v.b.modify(hw.QPAttrState, hw.QPContext{State: x.state})
	}
}

// hold steps the victim's card alone: what it sent has no answer yet.
func (v *victim) hold() {
	for range 1000 {
		if !v.pair.b.card.Step(v.now, 64) {
			return
		}
	}
	v.tb.Fatal("the card finds work without end")
}

// FuzzFrames: frames of any bytes on the wire, at a card whose QP is in any state. Each frame
// of the input is a kind, then how much of it is changed and where: most keep a right ICRC, so
// that the checks behind it are reached.
func FuzzFrames(f *testing.F) {
	f.Add(uint8(0), []byte{0x10, 1, 0, 0, 13, 0, 0, 2, 16, 3, 41, 5})
	f.Add(uint8(1), []byte{1, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 1, 20, 7})
	f.Add(uint8(2), []byte{7, 0, 0, 0, 8, 200, 0, 0, 10, 4, 0, 0})
	f.Add(uint8(3), []byte{4, 10, 0, 0, 0x0c, 40, 0, 0, 0x13, 0, 0, 0, 0x14, 0, 0, 0})
	f.Add(uint8(4), []byte{4, 10, 0, 0})
	f.Add(uint8(6), []byte{4, 10, 0, 1, 45, 255})
	f.Add(uint8(7), []byte{2, 10, 0, 0, 0x11, 0, 0, 1, 66, 0x60})
	v := newVictim(f)
	f.Fuzz(func(t *testing.T, state uint8, b []byte) {
		v.tb, v.pair.a.tb, v.pair.b.tb = t, t, t
		v.again()
		v.enter(int(state) % len(frameStates))
		for n := 0; len(b) >= 4 && n < 30; n++ {
			kind, size, flags, changes := b[0], int(b[1])*17, b[2], int(b[3])%8
			b = b[4:]
			h := v.header(roce.Opcode(kind), psnA+uint32(flags>>4))
			if h.Opcode.Valid() && !h.Opcode.Operation().Request() {
				h.PSN = 2000 + uint32(flags>>4)
			}
			if size > 4096 {
				size = 4096
			}
			h.RETH = roce.RETHFields{VA: v.dst.base, RKey: dstKey, DMALen: uint32(size)}
			h.Atomic = roce.AtomicETHFields{VA: v.dst.base, RKey: dstKey, SwapAdd: 1}
			h.AETH = roce.AETHFields{Syndrome: roce.Syndrome(flags & 0x7f)}
			frame := make([]byte, 0, slotBytes)
			if h.Opcode.Valid() {
				if !h.Opcode.HasPayload() {
					size = 0
				}
				frame = h.Append(frame, make([]byte, size))
			} else { // no headers are known: that of a SEND, with the opcode put in
				h.Opcode = roce.RCSendOnly
				if frame = h.Append(frame, make([]byte, size)); size > 0 {
					frame[roce.EthernetLen+roce.IPv4Len+roce.UDPLen] = kind
				}
			}
			for ; changes > 0 && len(b) >= 2; changes-- {
				at := int(b[0])
				if at == 255 { // shorter
					frame = frame[:len(frame)*int(b[1])/256]
				} else if at < len(frame) {
					frame[at] ^= b[1]
				}
				b = b[2:]
			}
			if flags&1 == 0 { // the checksums are right all the same
				if len(frame) > roce.EthernetLen+roce.IPv4Len && flags&2 == 0 {
					roce.IPv4(frame[roce.EthernetLen:]).UpdateChecksum()
				}
				if full, err := roce.Finish(frame[:cap(frame)]); err == nil && flags&4 == 0 {
					frame = full
				}
			}
			v.inject(frame)
			if flags&8 != 0 {
				v.hold()
			}
		}
		v.settle()
		if s := v.b.state(); !s.Valid() {
			t.Errorf("state %v", s)
		}
		v.unharmed()
	})
}
