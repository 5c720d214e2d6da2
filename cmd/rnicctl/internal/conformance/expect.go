package conformance

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"rnic/hw/roce"
)

// expectation is what a replay of a recording has to show: the recording, as
// the rulings edited it.
type expectation struct {
	*Recording
	frames      []expectedFrame // capture order
	completions map[int][]Completion
	states      map[int]QPState
	loose       bool     // frames are not compared and turns not kept
	ruled       []string // rulings that edited something

	// Made of the above by plan.
	sent    [2][]expectedFrame // by sender
	arrive  [2][]delivery      // by sender, frames numbered as in sent
	turns   []turn
	opening map[int]int // post_send step: number in sent of its first frame
}

// expectedFrame is one frame as it has to be sent.
type expectedFrame struct {
	from    side
	capture int // number in capture.pcap
	number  int // number in its direction there
	data    []byte
	or      []byte // as good by a ruling; nil: nothing else is
	dropped bool   // ruled out
}

// turn is a run of frames of one direction, delivered as one batch.
type turn struct {
	from side
	end  int // frames of the direction sent when the run is whole
}

// expect works out what a replay has to show. The error says what of the
// recording is damaged or cannot be replayed.
func expect(r *Recording) (*expectation, error) {
	if err := errors.Join(r.damage, r.known(), r.checkICRC()); err != nil {
		return nil, err
	}
	arrive, err := r.deliveries()
	if err != nil {
		return nil, err
	}
	x := &expectation{Recording: r, arrive: arrive, completions: map[int][]Completion{}, states: map[int]QPState{}}
	var count [2]int
	for i, f := range r.capture {
		x.frames = append(x.frames, expectedFrame{from: f.from, capture: i, number: count[f.from], data: f.data})
		count[f.from]++
	}
	for i := range r.Steps {
		switch s := &r.Steps[i]; s.Action {
		case actionPoll:
			x.completions[i] = s.Completions
		case actionQueryQP:
			x.states[i] = *s.Result
		}
	}
	// What is lost by the number of the frame is another packet each time.
	x.loose, _ = path.Match("l_*", r.Name)
	x.loose = x.loose && r.changed()
	for i := range rulings {
		if u := &rulings[i]; u.appliesTo(r.Name) && u.edit(x) > 0 {
			x.ruled = append(x.ruled, fmt.Sprintf("%s: %s, because %s", u.object, u.instead, u.why))
		}
	}
	x.plan()
	return x, nil
}

// known refuses what a sound scenario may say and a replay does not know.
func (r *Recording) known() error {
	if r.Transport != "RC" && r.Transport != "UC" && r.Transport != "UD" {
		return fmt.Errorf("transport %.20q: RC, UC and UD are known", r.Transport)
	}
	for at := range r.nodes {
		for i := range r.nodes[at].MRs {
			if m := &r.nodes[at].MRs[i]; m.Fill.Rule != "pat" && m.Fill.Rule != "const" {
				return fmt.Errorf("region %q of %v: fill rule %.20q: pat and const are known", m.Name, side(at), m.Fill.Rule)
			}
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		switch s.Action {
		case actionPostRecv, actionPostSend, actionQueryQP, actionModifyQP, actionAsyncEvents:
		case actionPoll:
			if s.CQ != "send" && s.CQ != "recv" {
				return fmt.Errorf("step %d polls cq %.20q: send and recv are known", i, s.CQ)
			}
		default:
			return fmt.Errorf("step %d: action %.40q is not known", i, s.Action)
		}
	}
	return nil
}

// changed tells whether the wire lost or changed a frame.
func (r *Recording) changed() bool {
	return slices.ContainsFunc(r.capture, func(f recorded) bool { return f.relay != relayPass })
}

func (u *ruling) appliesTo(name string) bool {
	for _, pattern := range u.scenarios {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

// plan cuts the frames into turns and numbers the deliveries anew.
func (x *expectation) plan() {
	var renumber [2]map[int]int
	for s := range renumber {
		renumber[s] = map[int]int{}
	}
	for _, f := range x.frames {
		if f.dropped {
			continue
		}
		renumber[f.from][f.number] = len(x.sent[f.from])
		x.sent[f.from] = append(x.sent[f.from], f)
		if last := len(x.turns) - 1; last >= 0 && x.turns[last].from == f.from {
			x.turns[last].end++
		} else {
			x.turns = append(x.turns, turn{f.from, len(x.sent[f.from])})
		}
	}
	for s, list := range x.arrive {
		kept := list[:0:0]
		for _, d := range list {
			if n, ok := renumber[s][d.frame]; ok {
				d.frame = n
				kept = append(kept, d)
			}
		}
		x.arrive[s] = kept
	}
	x.opening = map[int]int{}
	first := [2]map[uint32]int{x.requests(sideA), x.requests(sideB)}
	psn := [2]uint32{x.nodes[sideA].SQPSN, x.nodes[sideB].SQPSN}
	for i := range x.Steps {
		s := &x.Steps[i]
		if s.Action != actionPostSend {
			continue
		}
		at, _ := sideOf(s.Node)
		if n, ok := first[at][psn[at]]; ok {
			x.opening[i] = n
		}
		for _, w := range x.accepted(s) {
			psn[at] = roce.PSNAdd(psn[at], int32(x.packets(&w)))
		}
	}
}

// accepted is the work requests of a post_send that were queued.
func (x *expectation) accepted(s *Step) []WR { return s.WRs[:acceptedWRs(s)] }

func acceptedWRs(s *Step) int {
	if s.RC == 0 {
		return len(s.WRs)
	}
	return min(max(s.BadIndex, 0), len(s.WRs))
}

// packets is how many PSNs a work request takes.
func (x *expectation) packets(w *WR) uint64 {
	switch w.Opcode {
	case opCAS, opFADD:
		return 1
	case opBindMW, opLocalInv:
		return 0
	}
	mtu := uint64(x.Path.MTU)
	return max(1, (w.length()+mtu-1)/mtu)
}

// requests is the number of the first frame of each request PSN of a sender.
func (x *expectation) requests(from side) map[uint32]int {
	first := map[uint32]int{}
	for n := range x.sent[from] {
		var p roce.Packet
		if roce.Decode(x.sent[from][n].data, &p) != nil || !p.Opcode().Operation().Request() {
			continue
		}
		if _, there := first[p.BTH().PSN()]; !there {
			first[p.BTH().PSN()] = n
		}
	}
	return first
}
