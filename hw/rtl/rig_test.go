//go:build rtl

package rtl

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/gather/oracle"
	"rnic/hw/roce"
)

// rig is what stands around an engine in a test: memory, a key table, and what came out, by context.
type rig struct {
	t    *testing.T
	e    *Engine
	keys map[uint32]*hw.KeyEntry
	end  uint32 // key indices from here on are beyond the table
	// read gives a byte of memory; ok is false where the IOMMU refuses it.
	read func(iova uint64) (b byte, ok bool)

	frames  [Contexts][][]byte
	results [Contexts][]Result
	traces  [Contexts][]Trace
	fenced  []uint32
	reads   int
	seen    func(iova uint64, n uint32) // of each read
	silent  func(tag uint32, iova uint64, n uint32) bool
	mrrs    uint32
}

func newRig(t *testing.T, width int, seed uint64) *rig {
	t.Helper()
	e, err := open(width, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return &rig{t: t, e: e, keys: map[uint32]*hw.KeyEntry{}, end: 1 << 20, mrrs: 512, read: func(iova uint64) (byte, bool) { return pattern(iova), true }}
}

// pattern is a memory in which any two places are likely to differ.
func pattern(iova uint64) byte {
	v := iova * 0x9e3779b97f4a7c15
	return byte(v>>56) ^ byte(v>>32)
}

func (r *rig) Read(tag uint32, iova uint64, n uint32) {
	r.reads++
	if n == 0 || iova/uint64(r.mrrs) != (iova+uint64(n)-1)/uint64(r.mrrs) {
		r.t.Errorf("a read of %d bytes at %#x crosses the maximum read request of %d", n, iova, r.mrrs)
	}
	if r.seen != nil {
		r.seen(iova, n)
	}
	if r.silent != nil && r.silent(tag, iova, n) {
		return
	}
	data := make([]byte, n)
	if !r.fetch(iova, data) {
		r.e.Fail(tag, iova, n)
		return
	}
	r.e.Complete(tag, iova, data)
}

// fetch reads memory, or not where the IOMMU refuses a byte of it.
func (r *rig) fetch(iova uint64, dst []byte) (ok bool) {
	for i := range dst {
		if dst[i], ok = r.read(iova + uint64(i)); !ok {
			return false
		}
	}
	return true
}

func (r *rig) Fill(context int, index uint32) {
	k := r.keys[index]
	if k == nil {
		k = &hw.KeyEntry{}
	}
	r.e.Entry(context, k, index < r.end)
}

func (r *rig) Frame(context int, frame []byte) { r.frames[context] = append(r.frames[context], frame) }
func (r *rig) Result(context int, v Result)    { r.results[context] = append(r.results[context], v) }
func (r *rig) Trace(context int, v Trace)      { r.traces[context] = append(r.traces[context], v) }
func (r *rig) Fenced(index uint32)             { r.fenced = append(r.fenced, index) }

// run runs until so many results are there.
func (r *rig) run(results int) {
	r.t.Helper()
	done := func() bool {
		n := 0
		for c := range r.results {
			n += len(r.results[c])
		}
		return n >= results
	}
	if !r.e.Run(20_000_000, r, done) {
		r.t.Fatalf("no end in 20 million cycles: results %v", r.results)
	}
}

// stalls draws the engine's surroundings.
func (r *rig) stalls(rng *rand.Rand) {
	lo := uint32(0)
	span := uint32([]int{0, 3, 40, 350}[rng.IntN(4)])
	if rng.IntN(2) == 0 {
		lo = span / 2
	}
	r.e.SetOption(LatencyMin, lo)
	r.e.SetOption(LatencyMax, span)
	r.e.SetOption(Mix, uint32(rng.IntN(2)))
	r.e.SetOption(ReadsMost, uint32(rng.IntN(2)*(1+rng.IntN(256))))
	for _, o := range []Option{StallRead, StallFill, StallFrame, StallResult, StallBeat, StallSegment} {
		r.e.SetOption(o, uint32([]int{0, 0, 10, 60}[rng.IntN(4)]))
	}
}

// region is a key of the oracle's and of the engine's table.
func (r *rig) region(index uint32, g oracle.Region) {
	e := &hw.KeyEntry{Base: g.Base, Length: g.Length, IOVA: g.IOVA, PD: g.PD, BoundQPN: g.QP}
	e.SetTag(g.Tag)
	e.SetAccess(hw.Access(g.Rights))
	if g.Valid {
		e.SetState(hw.KeyStateValid)
	}
	if g.Window {
		e.SetType(hw.KeyTypeMW2)
	}
	r.keys[index] = e
}

// message is one request, what it is to become, and the jobs that it is split into.
type message struct {
	request oracle.Request
	walk    oracle.Walk
	kind    Kind
	header  roce.Header
	trans   roce.Transport
	imm     bool
	inv     bool
	solicit bool
	psn     uint32
	ipid    uint16
	beyond  uint32 // bytes that the cursor has left beyond the end of the segments
}

// opcode is the BTH's opcode of packet i of the message (InfiniBand specification, volume 1, table 38).
func (m *message) opcode(first, last bool) roce.Opcode {
	type place struct{ first, last bool }
	at := place{first, last}
	var op roce.Opcode
	switch m.kind {
	case Send:
		op = map[place]roce.Opcode{{true, false}: roce.RCSendFirst, {false, false}: roce.RCSendMiddle, {false, true}: roce.RCSendLast, {true, true}: roce.RCSendOnly}[at]
		if m.imm && last {
			op = map[bool]roce.Opcode{true: roce.RCSendOnlyImm, false: roce.RCSendLastImm}[first]
		}
		if m.inv && last {
			op = map[bool]roce.Opcode{true: roce.RCSendOnlyInv, false: roce.RCSendLastInv}[first]
		}
	case Write:
		op = map[place]roce.Opcode{{true, false}: roce.RCWriteFirst, {false, false}: roce.RCWriteMiddle, {false, true}: roce.RCWriteLast, {true, true}: roce.RCWriteOnly}[at]
		if m.imm && last {
			op = map[bool]roce.Opcode{true: roce.RCWriteOnlyImm, false: roce.RCWriteLastImm}[first]
		}
	case ReadResponse:
		op = map[place]roce.Opcode{{true, false}: roce.RCReadResponseFirst, {false, false}: roce.RCReadResponseMiddle, {false, true}: roce.RCReadResponseLast, {true, true}: roce.RCReadResponseOnly}[at]
	}
	return op | roce.Opcode(m.trans)<<5
}

// frame is packet i of the message as hw/roce writes it.
func (m *message) frame(i int) []byte {
	h := m.header
	p := &m.walk.Packets[i]
	last := p.Cursor.Left == 0
	h.Opcode = m.opcode(i == 0, last)
	h.SE = m.solicit && last
	h.AckReq = p.AckReq
	h.PSN = roce.PSNAdd(m.psn, int32(i))
	h.IPID = m.ipid + uint16(i)
	return h.Append(nil, p.Payload)
}

// randomHeader draws every field of the headers.
func randomHeader(rng *rand.Rand) (h roce.Header) {
	bytes := func(b []byte) {
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	}
	bytes(h.DstMAC[:])
	bytes(h.SrcMAC[:])
	h.VLAN = roce.VLANTag{Valid: rng.IntN(2) == 0, PCP: uint8(rng.IntN(8)), DEI: rng.IntN(2) == 0, VID: uint16(rng.IntN(4096))}
	h.IPv6 = rng.IntN(2) == 0
	if h.IPv6 {
		bytes(h.Src[:])
		bytes(h.Dst[:])
	} else {
		h.Src = roce.V4Mapped([4]byte{byte(rng.Uint32()), 1, byte(rng.Uint32()), 255})
		h.Dst = roce.V4Mapped([4]byte{255, byte(rng.Uint32()), byte(rng.Uint32()), 254})
	}
	h.TrafficClass, h.HopLimit, h.FlowLabel = uint8(rng.Uint32()), uint8(rng.Uint32()), rng.Uint32()&0xfffff
	h.UDPSrcPort, h.PKey = uint16(rng.Uint32()), uint16(rng.Uint32())
	h.MigReq, h.FECN, h.BECN = rng.IntN(2) == 0, rng.IntN(4) == 0, rng.IntN(4) == 0
	h.DestQP = rng.Uint32() & roce.PSNMask
	h.RETH = roce.RETHFields{VA: rng.Uint64(), RKey: rng.Uint32(), DMALen: rng.Uint32()}
	h.Atomic = roce.AtomicETHFields{VA: rng.Uint64(), RKey: rng.Uint32(), SwapAdd: rng.Uint64(), Compare: rng.Uint64()}
	h.AETH = roce.AETHFields{Syndrome: roce.Syndrome(rng.Uint32()), MSN: rng.Uint32() & roce.PSNMask}
	h.AtomicAck, h.Imm, h.InvRKey = rng.Uint64(), rng.Uint32(), rng.Uint32()
	h.DETH = roce.DETHFields{QKey: rng.Uint32(), SrcQP: rng.Uint32() & roce.PSNMask}
	return h
}

// job is the job that sends the packets from first on, n of them; all that are left where n is 0.
func (m *message) job(first, n int) *Job {
	r := &m.request
	j := &Job{Kind: m.kind, Header: m.header, Transport: m.trans, Imm: m.imm, Inv: m.inv, Solicited: m.solicit,
		MTU: r.MTU, Packet: uint32(first), Packets: uint32(n), AckEvery: r.AckEvery, Inline: r.Inline, IsInline: r.Inline != nil,
		Who: gather.Who{PD: r.PD, QPN: r.QPN}}
	if m.kind == ReadResponse {
		j.Who.Access = hw.AccessRemoteRead
	}
	j.Header.PSN, j.Header.IPID = roce.PSNAdd(m.psn, int32(first)), m.ipid+uint16(first)
	total := 0
	for _, s := range r.Segments {
		j.Segments = append(j.Segments, gather.Segment(s))
		total += int(s.Length)
	}
	switch {
	case first > 0:
		c := m.walk.Packets[first-1].Cursor
		j.Cursor = gather.Cursor(c)
	case j.IsInline:
		j.Cursor = gather.Cursor{Left: uint32(len(r.Inline))}
	default:
		j.Cursor = gather.Cursor{Left: uint32(total) + m.beyond} // not in normal form: the engine need not be told
	}
	return j
}

// same compares two frames and says where they differ.
func same(got, want []byte) error {
	if string(got) == string(want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(want))
	}
	first, last, n := -1, 0, 0
	for i := range got {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			last = i
			n++
		}
	}
	return fmt.Errorf("%d of %d bytes are wrong, from %d to %d:\n got %x\nwant %x", n, len(got), first, last, got[first:min(first+64, last+1)], want[first:min(first+64, last+1)])
}
