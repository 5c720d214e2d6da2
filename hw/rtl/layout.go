//go:build rtl

package rtl

import (
	"encoding/binary"

	"rnic/hw"
	"rnic/hw/roce"
)

// bits packs the members of a packed structure, the lowest first.
type bits struct {
	b [128]byte
	n int
}

func (p *bits) put(v uint64, width int) {
	for i := range width {
		p.b[p.n>>3] |= byte(v>>i&1) << (p.n & 7)
		p.n++
	}
}

func (p *bits) flag(v bool) {
	if v {
		p.b[p.n>>3] |= 1 << (p.n & 7)
	}
	p.n++
}

// address is a number of 128 bits whose highest byte is the first on the wire.
func (p *bits) address(a [16]byte) {
	p.put(binary.BigEndian.Uint64(a[8:]), 64)
	p.put(binary.BigEndian.Uint64(a[:]), 64)
}

func (p *bits) mac(a [6]byte) {
	p.put(uint64(a[0])<<40|uint64(a[1])<<32|uint64(binary.BigEndian.Uint32(a[2:])), 48)
}

// take is put's reverse.
func (p *bits) take(width int) (v uint64) {
	for i := range width {
		v |= uint64(p.b[p.n>>3]>>(p.n&7)&1) << i
		p.n++
	}
	return v
}

// words are the 16-byte words of the job that go to the segment port.
func (j *Job) words() []byte {
	if j.IsInline {
		at := min(int(j.Cursor.Offset)&^15, len(j.Inline))
		return append(append([]byte{}, j.Inline[at:]...), make([]byte, -len(j.Inline[at:])&15)...)
	}
	var w []byte
	for i := j.Cursor.Segment; i < len(j.Segments); i++ {
		s := &j.Segments[i]
		w = binary.LittleEndian.AppendUint64(w, s.Addr)
		w = binary.LittleEndian.AppendUint32(w, s.Length)
		w = binary.LittleEndian.AppendUint32(w, s.Key)
	}
	return w
}

// walk is engine_pkg::walk_t, its last member first.
func (j *Job) walk(words int) *bits {
	p := &bits{}
	count := len(j.Segments)
	if j.IsInline {
		count = 1
	}
	p.put(uint64(words), 7)
	p.put(uint64(count), 6)
	p.put(uint64(j.Cursor.Left), 32)
	p.put(uint64(j.Cursor.Offset), 32)
	p.put(uint64(j.Cursor.Segment), 6)
	p.put(uint64(j.Who.Access), 8)
	p.put(uint64(j.Who.QPN), 24)
	p.put(uint64(j.Who.PD), 24)
	p.put(uint64(j.Rate), 8)
	p.put(uint64(j.Header.IPID), 16)
	p.put(uint64(j.Header.PSN), 24)
	phase := uint32(0)
	if j.AckEvery != 0 {
		phase = j.Packet % j.AckEvery
	}
	p.put(uint64(phase), 16)
	p.put(uint64(j.AckEvery), 16)
	p.put(uint64(j.Packets), 24)
	p.put(uint64(j.Packet), 24)
	p.put(uint64(j.MTU), 13)
	p.flag(j.Header.VLAN.Valid)
	p.flag(j.Header.IPv6)
	p.put(uint64(j.Header.Opcode), 8)
	p.flag(j.Header.AckReq)
	p.flag(j.Solicited || j.Kind == Plain && j.Header.SE)
	p.flag(j.Inv)
	p.flag(j.Imm)
	p.flag(j.IsInline)
	p.put(uint64(j.Transport), 2)
	p.put(uint64(j.Kind), 2)
	p.flag(j.Trace)
	p.flag(j.Chain)
	p.put(uint64(j.Token), 32)
	return p
}

// head is engine_pkg::head_t, its last member first.
func (j *Job) head() *bits {
	p, h := &bits{}, &j.Header
	p.put(uint64(h.DETH.SrcQP), 24)
	p.put(uint64(h.DETH.QKey), 32)
	p.put(uint64(h.InvRKey), 32)
	p.put(uint64(h.Imm), 32)
	p.put(h.AtomicAck, 64)
	p.put(uint64(h.AETH.MSN), 24)
	p.put(uint64(h.AETH.Syndrome), 8)
	p.put(h.Atomic.Compare, 64)
	p.put(h.Atomic.SwapAdd, 64)
	va, rkey := h.RETH.VA, h.RETH.RKey
	if j.Kind == Plain && h.Opcode.Has(roce.ExtAtomicETH) {
		va, rkey = h.Atomic.VA, h.Atomic.RKey
	}
	p.put(uint64(h.RETH.DMALen), 32)
	p.put(uint64(rkey), 32)
	p.put(va, 64)
	p.put(uint64(h.DestQP), 24)
	p.put(uint64(h.PKey), 16)
	p.flag(h.BECN)
	p.flag(h.FECN)
	p.flag(h.MigReq)
	p.put(uint64(h.UDPSrcPort), 16)
	p.put(uint64(h.FlowLabel), 20)
	p.put(uint64(h.HopLimit), 8)
	p.put(uint64(h.TrafficClass), 8)
	p.address(h.Dst)
	p.address(h.Src)
	p.flag(h.IPv6)
	tci := uint64(h.VLAN.PCP)<<13 | uint64(h.VLAN.VID)&0xfff
	if h.VLAN.DEI {
		tci |= 1 << 12
	}
	p.put(tci, 16)
	p.flag(h.VLAN.Valid)
	p.mac(h.SrcMAC)
	p.mac(h.DstMAC)
	return p
}

// result reads engine_pkg::result_t.
func result(b []byte) (r Result) {
	p := &bits{}
	copy(p.b[:], b)
	r.Cursor.Left = uint32(p.take(32))
	r.Cursor.Offset = uint32(p.take(32))
	r.Cursor.Segment = int(p.take(6))
	r.Fault.Key = uint32(p.take(32))
	r.Fault.Offset = uint32(p.take(32))
	r.Fault.Segment = int(p.take(6))
	r.Fault.Reason = hw.Reason(p.take(8))
	r.PSNs = uint32(p.take(24))
	r.Token = uint32(p.take(32))
	return r
}

// traceStep reads engine_pkg::trace_t.
func traceStep(b []byte) (t Trace) {
	p := &bits{}
	copy(p.b[:], b)
	t.Key = uint32(p.take(32))
	t.Bytes = uint32(p.take(32))
	t.Offset = uint32(p.take(32))
	t.Segment = uint8(p.take(6))
	t.Reason = hw.Reason(p.take(8))
	t.Hit = p.take(1) != 0
	t.Kind = hw.TraceKind(p.take(8))
	return t
}
