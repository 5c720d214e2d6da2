//go:build rtl

package rtl

import (
	"errors"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/gather/oracle"
)

// mirror walks messages by hw/gather, as a card does whose engine is in Go: over the rig's memory, and over a key table
// and a cache of its own. What it does is told in the oracle's words, which the tests compare with.
type mirror struct {
	rig     *rig
	regions map[uint32]oracle.Region
	keys    gather.Keys
	beyond  uint32

	walk    *oracle.Walk
	packet  int
	lookups int // of all walks
	// gone, unless it is negative, is the lookup before which the region of index victim is invalidated.
	gone   int
	victim uint32
}

// newMirror is a mirror with the geometry of the engine's cache.
func newMirror(t *testing.T, r *rig, s *scene) *mirror {
	t.Helper()
	cache, err := gather.NewCache(gather.Geometry{Sets: 64, Ways: 4})
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{rig: r, regions: s.regions, gone: -1}
	m.keys = gather.Keys{Table: m, Cache: cache}
	return m
}

// Entry is the key table.
func (m *mirror) Entry(index uint32) (gather.Key, bool) {
	g := m.regions[index]
	k := gather.Key{Tag: g.Tag, PD: g.PD, Access: hw.Access(g.Rights), Base: g.Base, Length: g.Length, IOVA: g.IOVA, BoundQPN: g.QP}
	if g.Valid && !(m.gone >= 0 && m.lookups > m.gone && index == m.victim) {
		k.State = hw.KeyStateValid
	}
	if g.Window {
		k.Type = hw.KeyTypeMW2
	}
	return k, index < m.rig.end
}

// Translate counts the lookup, and invalidates before it.
func (m *mirror) Translate(key uint32, who gather.Who, addr uint64, n uint32) (uint64, bool, hw.Reason) {
	if m.lookups == m.gone {
		m.keys.Cache.Invalidate(m.victim)
	}
	m.lookups++
	return m.keys.Translate(key, who, addr, n)
}

// Lookup is a step of the walk.
func (m *mirror) Lookup(segment int, off, n uint32, hit bool, r hw.Reason) {
	m.step(oracle.Step{Kind: "lookup", Segment: segment, Offset: off, Bytes: n, Hit: hit, Reason: reasonName(r)})
}

// Read is a step of the walk.
func (m *mirror) Read(segment int, off, n uint32, r hw.Reason) {
	m.step(oracle.Step{Kind: "read", Segment: segment, Offset: off, Bytes: n, Reason: reasonName(r)})
}

func (m *mirror) step(s oracle.Step) {
	s.Packet = m.packet
	m.walk.Steps = append(m.walk.Steps, s)
}

// memory is the rig's.
type memory struct{ rig *rig }

func (m memory) Read(iova uint64, dst []byte) error {
	if !m.rig.fetch(iova, dst) {
		return errors.New("refused")
	}
	return nil
}

// gather walks a request.
func (m *mirror) gather(r oracle.Request) oracle.Walk {
	m.walk, m.packet = &oracle.Walk{}, 0
	op := map[string]gather.Op{"send": gather.Send, "write": gather.Write, "read-response": gather.ReadResponse}[r.Op]
	who := gather.Who{PD: r.PD, QPN: r.QPN, Access: op.Access()}
	var segments []gather.Segment
	for _, s := range r.Segments {
		segments = append(segments, gather.Segment(s))
	}
	c, f, ok := gather.Start(segments)
	if r.Inline != nil {
		c = gather.StartInline(uint32(len(r.Inline)))
	} else {
		c.Left += m.beyond
	}
	if !ok {
		panic(f)
	}
	packets := gather.Packets(c.Left, r.MTU)
	for ; ; m.packet++ {
		m.step(oracle.Step{Kind: "packet", Bytes: c.Left})
		dst := make([]byte, min(r.MTU, c.Left))
		if r.Inline != nil {
			_, f, ok = gather.InlinePacket(r.Inline, &c, r.MTU, dst)
		} else {
			_, f, ok = gather.Packet(m, memory{m.rig}, m, segments, who, &c, r.MTU, dst)
		}
		if !ok {
			m.walk.Fault = &oracle.Fault{Segment: f.Segment, Key: f.Key, Offset: f.Offset, Reason: f.Reason.String()}
			m.step(oracle.Step{Kind: "fault", Segment: f.Segment, Offset: f.Offset, Reason: f.Reason.String()})
			return *m.walk
		}
		m.walk.Packets = append(m.walk.Packets, oracle.Packet{Payload: dst, Cursor: oracle.Cursor(c),
			AckReq: gather.AckReq(op, r.Reliable, uint32(m.packet), packets, r.AckEvery)})
		m.step(oracle.Step{Kind: "handover"})
		if c.Done() {
			return *m.walk
		}
	}
}

// sizes are the bytes of the frames of a message's packets, of those too that are not sent because it fails.
func (m *message) sizes() (sizes []int) {
	total := m.beyond
	for _, s := range m.request.Segments {
		total += s.Length
	}
	if m.request.Inline != nil {
		total = uint32(len(m.request.Inline))
	}
	n := gather.Packets(total, m.request.MTU)
	for i := range n {
		h := m.header
		h.Opcode = m.opcode(i == 0, i == n-1)
		sizes = append(sizes, len(h.Append(nil, make([]byte, min(m.request.MTU, total-i*m.request.MTU)))))
	}
	return sizes
}
