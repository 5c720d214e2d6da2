package conformance

import (
	"rnic/hw/roce"
	"rnic/hw/roce/rocetest"
)

// ruling is one difference from the recordings that was ruled in advance
// (test/golden/REPLAY.md). It edits what is expected; it never waives a scenario.
type ruling struct {
	scenarios []string // patterns of names, as path.Match knows them
	object    string   // which frame, field or completion
	instead   string   // what is expected of it
	why       string
	edit      func(*expectation) int // makes the change and tells how many things it changed
}

// rulings is all of them. What they change is found by what happens in the
// recording, since there are scenarios of these families that nobody has seen.
var rulings = []ruling{{
	scenarios: []string{"i_lkey_*", "i_local_oob*", "i_unsignaled_fail*"},
	object:    "completions and QP state of the side whose own key or bounds fail",
	instead:   "earlier requests as delivered, the failing one LOC_PROT_ERR, later ones flushed, QP in ERR",
	why:       "soft-RoCE's statuses differ from one kernel to the next, and 6.1 hangs if an earlier request still waits for its ACK",
	edit:      localFailure,
}, {
	scenarios: []string{"i_recv_too_small*"},
	object:    "NAK of the receiver",
	instead:   "NAK invalid request",
	why:       "soft-RoCE answers remote operational error where the specification says invalid request",
	edit:      answers(isSyndrome(roce.NAKRemoteOperationalError), roce.NAKInvalidRequest),
}, {
	scenarios: []string{"i_recv_too_small*"},
	object:    "completion of the request",
	instead:   "REM_INV_REQ_ERR",
	why:       "it follows the NAK",
	edit:      statuses("send", statusRemOp, statusRemInvReq),
}, {
	scenarios: []string{"i_recv_too_small*"},
	object:    "completion of the receive",
	instead:   "LOC_LEN_ERR",
	why:       "soft-RoCE says LOC_QP_OP_ERR where the specification says local length error",
	edit:      statuses("recv", statusLocQPOp, statusLocLen),
}, {
	scenarios: []string{"i_rem_op_err*"},
	object:    "completion of the receive",
	instead:   "LOC_PROT_ERR",
	why:       "soft-RoCE says LOC_QP_OP_ERR where the receive's own key is bad",
	edit:      statuses("recv", statusLocQPOp, statusLocProt),
}, {
	scenarios: []string{"b_send_inv_mr*"},
	object:    "answer to the SEND with invalidate of a region's key",
	instead:   "NAK remote access error",
	why:       "soft-RoCE acknowledges what it then completes in error",
	edit:      answers(isUnexecuted, roce.NAKRemoteAccessError),
}, {
	scenarios: []string{"b_send_inv_mr*"},
	object:    "completion of the SEND with invalidate",
	instead:   "REM_ACCESS_ERR",
	why:       "it follows the NAK",
	edit:      statuses("send", statusSuccess, statusRemAccess),
}, {
	scenarios: []string{"i_rnr_*"},
	object:    "sequence NAK right after an RNR NAK of the same PSN",
	instead:   "nothing",
	why:       "soft-RoCE answers the packets in flight as well, though the requester waits for the RNR timer anyway",
	edit:      sequenceNAKsAfterRNR,
}, {
	scenarios: []string{"j_read_drop_*"},
	object:    "first response packet to a READ of what is missing",
	instead:   "FIRST or MIDDLE, ONLY or LAST",
	why:       "soft-RoCE goes on in the old response, where a new request may as well get a new one",
	edit:      rereadFirst,
}, {
	scenarios: []string{"k_uc_gap_then_sends*", "k_uc_send_drop*"},
	object:    "receives of whole messages behind a gap",
	instead:   "each of them completes",
	why:       "soft-RoCE loses the first whole message behind a gap as well",
	edit:      wholeMessagesUC,
}}

// aeth is the AETH of a frame, a view of its bytes; nil if it has none.
func aeth(frame []byte) roce.AETH {
	var p roce.Packet
	if roce.Decode(frame, &p) != nil {
		return nil
	}
	return p.AETH()
}

func isSyndrome(s roce.Syndrome) func(roce.AETH) bool {
	return func(a roce.AETH) bool { return a.Syndrome() == s }
}

// isUnexecuted is an ACK that counts no message as executed.
func isUnexecuted(a roce.AETH) bool { return a.Syndrome().Kind() == roce.ACK && a.MSN() == 0 }

// answers gives the acknowledgements that are so another syndrome.
func answers(are func(roce.AETH) bool, to roce.Syndrome) func(*expectation) int {
	return func(x *expectation) int {
		n := 0
		for i := range x.frames {
			a := aeth(x.frames[i].data)
			if a == nil || !are(a) {
				continue
			}
			f := append([]byte(nil), x.frames[i].data...)
			a = aeth(f)
			a.Encode(&roce.AETHFields{Syndrome: to, MSN: a.MSN()})
			if resign(f) == nil {
				x.frames[i].data = f
				n++
			}
		}
		return n
	}
}

// resign writes the ICRC anew, with the independent code.
func resign(frame []byte) error { return rocetest.SetIPID(frame, ipID(frame)) }

// ipID is the IPv4 identification, 0 if there is none.
func ipID(frame []byte) uint16 {
	var p roce.Packet
	if roce.Decode(frame, &p) != nil || p.IPv4() == nil {
		return 0
	}
	return p.IPv4().ID()
}

// statuses gives the completions of one kind of CQ that have the one status the
// other.
func statuses(cq string, from, to int) func(*expectation) int {
	return func(x *expectation) int {
		n := 0
		for i := range x.Steps {
			if x.Steps[i].Action != actionPoll || x.Steps[i].CQ != cq {
				continue
			}
			list := append([]Completion(nil), x.completions[i]...)
			for j := range list {
				if list[j].Status == from {
					list[j].Status = to
					n++
				}
			}
			x.completions[i] = list
		}
		return n
	}
}

// sequenceNAKsAfterRNR drops each sequence NAK that follows an RNR NAK of its
// PSN, unless an answer of another kind came between.
func sequenceNAKsAfterRNR(x *expectation) int {
	n := 0
	var rnr [2]int64 // PSN of the last answer if it was an RNR NAK, else -1
	rnr[sideA], rnr[sideB] = -1, -1
	for i := range x.frames {
		f := &x.frames[i]
		a := aeth(f.data)
		if a == nil {
			continue
		}
		var p roce.Packet
		if roce.Decode(f.data, &p) != nil {
			continue
		}
		psn := int64(p.BTH().PSN())
		switch {
		case a.Syndrome().Kind() == roce.RNRNAK:
			rnr[f.from] = psn
		case a.Syndrome() == roce.NAKPSNSequenceError && rnr[f.from] == psn:
			f.dropped = true
			n++
		default:
			rnr[f.from] = -1
		}
	}
	return n
}

// localFailure works out the completions of a side one of whose work requests
// names memory that it may not use.
func localFailure(x *expectation) int {
	n := 0
	for at := range x.nodes {
		n += x.localFailureOf(side(at))
	}
	return n
}

func (x *expectation) localFailureOf(at side) int {
	var want []Completion
	failed := -1 // step that posted the failing request
	signalAll := x.QPAttr.SignalAll != 0
	for i := range x.Steps {
		s := &x.Steps[i]
		if s.Action != actionPostSend || s.Node != at.String() {
			continue
		}
		for _, w := range x.accepted(s) {
			c := Completion{WRID: w.WRID, QPN: x.nodes[at].QPN, Opcode: wcOpcode(w.Opcode), ByteLen: uint32(w.length())}
			switch {
			case failed >= 0:
				c.Status = statusFlushed
			case x.mayNotUse(at, &w):
				c.Status = statusLocProt
				failed = i
			case !signalAll && w.Flags&flagSignaled == 0:
				continue
			}
			want = append(want, c)
		}
	}
	if failed < 0 {
		return 0
	}
	last := -1
	for i := range x.Steps {
		s := &x.Steps[i]
		if s.Node != at.String() {
			continue
		}
		switch {
		case s.Action == actionPoll && s.CQ == "send":
			take := min(s.Expected, len(want))
			x.completions[i], want = want[:take:take], want[take:]
			last = i
		case s.Action == actionQueryQP && i > failed:
			state := x.states[i]
			state.State = stateErr
			x.states[i] = state
		}
	}
	if last >= 0 {
		x.completions[last] = append(x.completions[last], want...)
	}
	return 1
}

// mayNotUse tells whether a work request names local memory by a key that is
// not there, or beyond its region.
func (x *expectation) mayNotUse(at side, w *WR) bool {
	if w.Flags&flagInline != 0 {
		return false
	}
	access := uint32(0)
	if w.Opcode == opRead || w.Opcode == opCAS || w.Opcode == opFADD {
		access = accessLocalWrite // the result is scattered there
	}
	for _, g := range w.SGEs {
		if g.Len != 0 && !x.covers(at, &g, access) {
			return true
		}
	}
	return false
}

func (x *expectation) covers(at side, g *SGE, access uint32) bool {
	for i := range x.nodes[at].MRs {
		m := &x.nodes[at].MRs[i]
		if m.LKey == g.LKey && m.Access&access == access && g.Addr >= m.Addr && g.Addr-m.Addr <= m.Len && uint64(g.Len) <= m.Len-(g.Addr-m.Addr) {
			return true
		}
	}
	return false
}

// wcOpcode is the opcode of a completion of a work request.
func wcOpcode(op string) int {
	switch op {
	case opWrite, opWriteImm:
		return wcWrite
	case opRead:
		return wcRead
	case opCAS:
		return wcCompSwap
	case opFADD:
		return wcFetchAdd
	case opBindMW:
		return wcBindMW
	case opLocalInv:
		return wcLocalInv
	}
	return wcSend
}

// wholeMessagesUC works out the receive completions on UC: of each SEND all of
// whose packets arrive, in order, one receive each.
func wholeMessagesUC(x *expectation) int {
	if x.Transport != "UC" {
		return 0
	}
	for at := range x.nodes {
		to := side(at).peer()
		arrived := map[int]bool{}
		for _, d := range x.arrive[at] {
			arrived[d.frame] = d.corrupt == nil
		}
		var got []Completion
		frame := 0
		for i := range x.Steps {
			s := &x.Steps[i]
			if s.Action != actionPostSend || s.Node != side(at).String() {
				continue
			}
			for _, w := range x.accepted(s) {
				end := frame + int(min(x.packets(&w), uint64(len(x.frames)+1)))
				whole := end <= len(x.frames)
				for ; frame < end && whole; frame++ {
					whole = arrived[frame]
				}
				frame = end
				c := Completion{Opcode: wcRecv, ByteLen: uint32(w.length()), QPN: x.nodes[to].QPN}
				switch w.Opcode {
				case opWriteImm:
					c.Opcode = wcRecvImm
					fallthrough
				case opSendImm:
					c.Flags, c.Imm = wcFlagImm, w.Imm
				case opSend:
				default:
					continue
				}
				if whole {
					got = append(got, c)
				}
			}
		}
		receives := 0
		for i := range x.Steps {
			if s := &x.Steps[i]; s.Action == actionPostRecv && s.Node == to.String() && receives < len(got) {
				got[receives].WRID = s.WRID
				receives++
			}
		}
		got = got[:receives]
		for i := range x.Steps {
			s := &x.Steps[i]
			if s.Action != actionPoll || s.CQ != "recv" || s.Node != to.String() {
				continue
			}
			take := min(max(s.Expected, len(s.Completions)), len(got))
			x.completions[i], got = got[:take:take], got[take:]
		}
	}
	return 1
}

// rereadFirst lets the first response to a READ request that asks for the rest of
// an earlier one be the first of a new response.
func rereadFirst(x *expectation) int {
	n := 0
	var asked [2]map[uint32]bool // PSNs of the READ requests of a sender
	asked[sideA], asked[sideB] = map[uint32]bool{}, map[uint32]bool{}
	for i := range x.frames {
		f := &x.frames[i]
		var p roce.Packet
		if roce.Decode(f.data, &p) != nil {
			continue
		}
		psn := p.BTH().PSN()
		switch op := p.Opcode(); {
		case op == roce.RCReadRequest:
			asked[f.from][psn] = true
		case op == roce.RCReadResponseMiddle && asked[f.from.peer()][psn]:
			f.or = asNewResponse(&p, roce.RCReadResponseFirst, x.nextAETH(i))
			n++
		case op == roce.RCReadResponseLast && asked[f.from.peer()][psn]:
			f.or = asNewResponse(&p, roce.RCReadResponseOnly, p.AETH().Fields())
			n++
		}
	}
	return n
}

// nextAETH is that of the next frame of the sender of frame i that has one.
func (x *expectation) nextAETH(i int) roce.AETHFields {
	for _, f := range x.frames[i:] {
		if a := aeth(f.data); a != nil && f.from == x.frames[i].from {
			return a.Fields()
		}
	}
	return roce.AETHFields{Syndrome: roce.SyndromeACK(roce.CreditInvalid)}
}

// asNewResponse is a READ response packet with another opcode and an AETH. The
// ICRC is of the independent code.
func asNewResponse(p *roce.Packet, op roce.Opcode, a roce.AETHFields) []byte {
	var h roce.Header
	p.Header(&h)
	h.Opcode, h.AETH = op, a
	f := make([]byte, h.FrameLen(len(p.Payload())))
	at := h.Put(f, len(p.Payload()))
	copy(f[at:], p.Payload())
	if resign(f) != nil {
		return nil
	}
	return f
}
