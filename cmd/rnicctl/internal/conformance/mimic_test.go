package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"rnic/hw/roce"
)

const goldenDir = "../../../../test/golden"

// mimic stands in for two cards: it sends the frames that are expected, each
// when all that came before it in the recording has arrived and its request was
// posted, tells the completions that are expected, and keeps memory by a plain
// model of its own. So the loader, the planner and the comparer are tested on
// the recordings alone.
type mimic struct {
	x     *expectation
	sides [2]*mimicSide

	frames []expectedFrame // x.frames but those ruled out
	due    int             // of which so many have been sent
	time   time.Duration   // that passed since the last one

	// What a test makes it do otherwise; nil: nothing.
	onSend   func(n int, frame []byte) [][]byte // n: number among frames
	onPoll   func(at side, send bool, list []Completion) []Completion
	onQuery  func(q *QPState)
	onMemory func(at side, mr string, b []byte)
	onPost   func() error
}

type mimicSide struct {
	m    *mimic
	at   side
	port [][]byte // frames that wait
	in   [][]byte // frames delivered and not taken in

	polled  [2]int
	mem     map[string][]byte
	queried int
	recvs   []Step
	reads   []mimicRead
	epsn    uint32
	filled  uint64 // bytes of the message that is being received
	writeAt uint64
	writeOK bool
	posts   map[int]bool
}

type mimicRead struct {
	psn  uint32
	n    uint32 // responses
	sges []SGE
}

func newMimic(x *expectation) *mimic {
	m := &mimic{x: x}
	for _, f := range x.frames {
		if !f.dropped {
			m.frames = append(m.frames, f)
		}
	}
	for at := range m.sides {
		s := &mimicSide{m: m, at: side(at), mem: map[string][]byte{}, epsn: x.nodes[at].RQPSN, posts: map[int]bool{}}
		for i := range x.nodes[at].MRs {
			mr := &x.nodes[at].MRs[i]
			b := make([]byte, mr.Len)
			for j := range b {
				b[j] = mr.Fill.Byte(uint64(j))
			}
			s.mem[mr.Name] = b
		}
		m.sides[at] = s
	}
	return m
}

func (m *mimic) cards() [2]card { return [2]card{m.sides[0], m.sides[1]} }

var errRefused = errors.New("refused")

func (s *mimicSide) PostSend(wrs []WR) (int, error) {
	if s.m.onPost != nil {
		if err := s.m.onPost(); err != nil {
			return 0, err
		}
	}
	for i := range s.m.x.Steps {
		st := &s.m.x.Steps[i]
		if st.Action == actionPostSend && st.Node == s.at.String() && !s.posts[i] {
			s.posts[i] = true
			psn := s.m.psnOf(i)
			for _, w := range s.m.x.accepted(st) {
				n := uint32(s.m.x.packets(&w))
				if w.Opcode == opRead || w.Opcode == opCAS || w.Opcode == opFADD {
					s.reads = append(s.reads, mimicRead{psn: psn, n: n, sges: w.SGEs})
				}
				psn = roce.PSNAdd(psn, int32(n))
			}
			if st.RC != 0 {
				return acceptedWRs(st), errRefused
			}
			return len(wrs), nil
		}
	}
	return 0, errRefused
}

// psnOf is the PSN of the first packet of a post_send.
func (m *mimic) psnOf(step int) uint32 {
	at, _ := sideOf(m.x.Steps[step].Node)
	psn := m.x.nodes[at].SQPSN
	for i := range step {
		if s := &m.x.Steps[i]; s.Action == actionPostSend && s.Node == at.String() {
			for _, w := range m.x.accepted(s) {
				psn = roce.PSNAdd(psn, int32(m.x.packets(&w)))
			}
		}
	}
	return psn
}

func (s *mimicSide) PostRecv(step *Step) error {
	if step.RC != 0 {
		return errRefused
	}
	s.recvs = append(s.recvs, *step)
	return nil
}

func (s *mimicSide) Poll(send bool) ([]Completion, error) {
	if s.m.waits() {
		return nil, nil
	}
	cq, name := 0, "send"
	if !send {
		cq, name = 1, "recv"
	}
	n := 0
	for i := range s.m.x.Steps {
		if st := &s.m.x.Steps[i]; st.Action == actionPoll && st.Node == s.at.String() && st.CQ == name {
			if n == s.polled[cq] {
				s.polled[cq]++
				list := append([]Completion(nil), s.m.x.completions[i]...)
				if s.m.onPoll != nil {
					list = s.m.onPoll(s.at, send, list)
				}
				return list, nil
			}
			n++
		}
	}
	return nil, nil
}

func (s *mimicSide) Query(context.Context) (QPState, error) {
	n := 0
	for i := range s.m.x.Steps {
		if st := &s.m.x.Steps[i]; st.Action == actionQueryQP && st.Node == s.at.String() {
			if n == s.queried {
				s.queried++
				state := s.m.x.states[i]
				if s.m.onQuery != nil {
					s.m.onQuery(&state)
				}
				return state, nil
			}
			n++
		}
	}
	return QPState{}, errRefused
}

func (s *mimicSide) Modify(context.Context, string) error { return nil }

func (s *mimicSide) Memory(mr string) []byte {
	b := append([]byte(nil), s.mem[mr]...)
	if s.m.onMemory != nil {
		s.m.onMemory(s.at, mr, b)
	}
	return b
}

func (s *mimicSide) NextTimer(context.Context) (time.Duration, bool, error) {
	return time.Millisecond, s.m.waits(), nil
}

func (s *mimicSide) Advance(_ context.Context, d time.Duration) error {
	s.m.time += d
	return nil
}

func (s *mimicSide) Take(_ context.Context, i int, deliver, remove bool, c *corruption) error {
	f := append([]byte(nil), s.port[i]...)
	if remove {
		s.port = append(s.port[:i:i], s.port[i+1:]...)
	}
	if c != nil {
		f[c.offset] ^= c.xor
	}
	if deliver {
		s.in = append(s.in, f)
	}
	return nil
}

// Transmit sends the frames that come next in the recording, up to the first
// that is the other side's, or whose request is not posted yet, or that is sent
// again and no answer asked for it: that one waits for time to pass.
func (s *mimicSide) Transmit(context.Context) ([][]byte, error) {
	m := s.m
	var out [][]byte
	for m.due < len(m.frames) && m.frames[m.due].from == s.at {
		f := &m.frames[m.due]
		var p roce.Packet
		if err := roce.Decode(f.data, &p); err != nil {
			return nil, err
		}
		if p.Opcode().Operation().Request() {
			if !s.isPosted(p.BTH().PSN()) || m.waits() {
				break
			}
		} else if len(s.port) > 0 { // an answer waits for what it answers
			break
		}
		m.due++
		m.time = 0
		frames := [][]byte{f.data}
		if m.onSend != nil {
			frames = m.onSend(m.due-1, append([]byte(nil), f.data...))
		}
		out = append(out, frames...)
		m.sides[s.at.peer()].port = append(m.sides[s.at.peer()].port, frames...)
	}
	return out, nil
}

// waits tells whether the next frame is one that only time brings.
func (m *mimic) waits() bool {
	if m.due == len(m.frames) || m.time != 0 {
		return false
	}
	f := &m.frames[m.due]
	var p roce.Packet
	return roce.Decode(f.data, &p) == nil && p.Opcode().Operation().Request() && m.sides[f.from].isPosted(p.BTH().PSN()) && m.again(m.due)
}

func (s *mimicSide) isPosted(psn uint32) bool {
	for i := range s.posts {
		first := s.m.psnOf(i)
		for _, w := range s.m.x.accepted(&s.m.x.Steps[i]) {
			n := uint32(s.m.x.packets(&w))
			if d := roce.PSNDiff(psn, first); d >= 0 && d < int32(n) {
				return true
			}
			first = roce.PSNAdd(first, int32(n))
		}
	}
	return false
}

// again tells whether a frame restarts a run of packets: it was sent before, the
// one before it of this side was a later one, and no sequence NAK that
// arrived asked for it.
func (m *mimic) again(n int) bool {
	f := &m.frames[n]
	psn := psnOf(f.data)
	last := -1
	for i := n - 1; i >= 0; i-- {
		if m.frames[i].from == f.from {
			last = i
			break
		}
	}
	if last < 0 || roce.PSNLess(psnOf(m.frames[last].data), psn) {
		return false
	}
	for i := last + 1; i < n; i++ {
		a := aeth(m.frames[i].data)
		if a != nil && a.Syndrome() == roce.NAKPSNSequenceError && m.x.capture[m.frames[i].capture].relay == relayPass {
			return false
		}
	}
	return true
}

func psnOf(frame []byte) uint32 {
	var p roce.Packet
	if roce.Decode(frame, &p) != nil {
		return 0
	}
	return p.BTH().PSN()
}

// Receive places the payload of what was delivered.
func (s *mimicSide) Receive(context.Context) error {
	for _, f := range s.in {
		var p roce.Packet
		if roce.Parse(f, &p) != nil {
			continue
		}
		if p.Opcode().Operation().Request() {
			s.request(&p)
		} else {
			s.response(&p)
		}
	}
	s.in = nil
	return nil
}

func (s *mimicSide) request(p *roce.Packet) {
	op := p.Opcode()
	if p.BTH().PSN() != s.epsn {
		return
	}
	starts, ends := op.Position().Starts(), op.Position().Ends()
	if starts {
		s.filled = 0
	}
	n := uint64(len(p.Payload()))
	switch op.Operation() {
	case roce.OpSend:
		if len(s.recvs) == 0 {
			return
		}
		room := uint64(0)
		for _, g := range s.recvs[0].SGEs {
			if !s.m.x.covers(s.at, &g, 0) {
				return
			}
			room += uint64(g.Len)
		}
		if s.filled+n > room {
			return
		}
		grh := uint64(0)
		if op.Transport() == roce.UD {
			grh = 40
		}
		s.scatter(s.recvs[0].SGEs, grh+s.filled, p.Payload())
	case roce.OpWrite:
		if starts {
			h := p.RETH().Fields()
			s.writeAt = h.VA
			s.writeOK = h.DMALen == 0 || s.allows(h.RKey, h.VA, uint64(h.DMALen), 2)
		}
		if !s.writeOK {
			return
		}
		s.store(s.writeAt+s.filled, p.Payload())
	case roce.OpCompareSwap, roce.OpFetchAdd:
		h := p.AtomicETH().Fields()
		if !s.allows(h.RKey, h.VA, 8, 8) {
			return
		}
		old := s.load(h.VA)
		if op.Operation() == roce.OpFetchAdd {
			s.store(h.VA, binary.LittleEndian.AppendUint64(nil, old+h.SwapAdd))
		} else if old == h.Compare {
			s.store(h.VA, binary.LittleEndian.AppendUint64(nil, h.SwapAdd))
		}
	case roce.OpReadRequest:
		mtu := uint32(s.m.x.Path.MTU)
		s.epsn = roce.PSNAdd(s.epsn, int32(max(1, (p.RETH().Fields().DMALen+mtu-1)/mtu))-1)
	}
	s.filled += n
	s.epsn = roce.PSNAdd(s.epsn, 1)
	if ends && (op.Operation() == roce.OpSend || op.Has(roce.ExtImmDt)) && len(s.recvs) > 0 {
		s.recvs = s.recvs[1:]
	}
}

func (s *mimicSide) response(p *roce.Packet) {
	data := p.Payload()
	if x := p.AtomicAckETH(); x != nil {
		data = binary.LittleEndian.AppendUint64(nil, x.OrigRemoteData())
	}
	for i := range s.reads {
		r := &s.reads[i]
		if d := roce.PSNDiff(p.BTH().PSN(), r.psn); len(data) > 0 && d >= 0 && d < int32(r.n) {
			s.scatter(r.sges, uint64(d)*uint64(s.m.x.Path.MTU), data)
		}
	}
}

func (s *mimicSide) scatter(sges []SGE, skip uint64, b []byte) {
	for _, g := range sges {
		if n := uint64(g.Len); skip >= n {
			skip -= n
			continue
		}
		n := min(uint64(g.Len)-skip, uint64(len(b)))
		s.store(g.Addr+skip, b[:n])
		b, skip = b[n:], 0
	}
}

func (s *mimicSide) find(addr uint64) []byte {
	for i := range s.m.x.nodes[s.at].MRs {
		if m := &s.m.x.nodes[s.at].MRs[i]; addr >= m.Addr && addr < m.Addr+m.Len {
			return s.mem[m.Name][addr-m.Addr:]
		}
	}
	return nil
}

func (s *mimicSide) store(addr uint64, b []byte) { copy(s.find(addr), b) }
func (s *mimicSide) load(addr uint64) uint64     { return binary.LittleEndian.Uint64(s.find(addr)) }

func (s *mimicSide) allows(rkey uint32, addr, n uint64, access uint32) bool {
	for i := range s.m.x.nodes[s.at].MRs {
		m := &s.m.x.nodes[s.at].MRs[i]
		if m.RKey == rkey && m.Access&access != 0 && addr >= m.Addr && addr+n <= m.Addr+m.Len {
			return true
		}
	}
	return false
}

func load(t testing.TB, name string) *Recording {
	t.Helper()
	r, err := Load(goldenDir + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
