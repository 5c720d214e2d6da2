package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"rnic/hw/roce"
)

// made builds a recording by hand, from what recipes say that soft-RoCE puts on
// the wire: a scenario of the two nodes of a_walk, and its frames one by one.
type made struct {
	t testing.TB
	r *Recording
}

func newMade(t testing.TB, name string, mtu int) *made {
	m := &made{t, load(t, "a_walk")}
	r := m.r
	r.Name, r.Path.MTU = name, mtu
	r.Steps, r.MemoryAfter, r.Frames, r.capture = nil, nil, nil, nil
	return m
}

// frame appends a frame of a side: opcode, PSN, payload as pattern of a region
// from an offset on, and what change does to the header.
func (m *made) frame(from side, op roce.Opcode, psn uint32, mr *MR, off, n uint64, change func(*roce.Header)) {
	a, b := &m.r.nodes[from], &m.r.nodes[from.peer()]
	mac := func(s string) (out [6]byte) {
		b, err := net.ParseMAC(s)
		if err != nil {
			m.t.Fatal(err)
		}
		copy(out[:], b)
		return out
	}
	h := roce.Header{
		DstMAC: mac(b.MAC), SrcMAC: mac(a.MAC), Src: netip.MustParseAddr(a.IP).As16(), Dst: netip.MustParseAddr(b.IP).As16(),
		HopLimit: 64, IPID: uint16(1000 + len(m.r.capture)), UDPSrcPort: a.SourcePorts[0],
		Opcode: op, PKey: 0xFFFF, DestQP: b.QPN, PSN: psn,
	}
	if change != nil {
		change(&h)
	}
	f := make([]byte, h.FrameLen(int(n)))
	at := h.Put(f, int(n))
	for i := range n {
		f[uint64(at)+i] = mr.Fill.Byte(off + i)
	}
	if err := resign(f); err != nil {
		m.t.Fatal(err)
	}
	m.r.capture = append(m.r.capture, recorded{from, relayPass, f})
	m.r.Frames = append(m.r.Frames, FrameInfo{Dir: from.direction(), Relay: relayPass})
}

// ack appends an acknowledgement.
func (m *made) ack(from side, s roce.Syndrome, psn, msn uint32) {
	m.frame(from, roce.RCAcknowledge, psn, nil, 0, 0, func(h *roce.Header) { h.AETH = roce.AETHFields{Syndrome: s, MSN: msn} })
}

// steps appends steps, as JSON so that they read as scenario.json does.
func (m *made) steps(text string) {
	var list []Step
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		m.t.Fatal(err)
	}
	m.r.Steps = append(m.r.Steps, list...)
}

func ackReq(h *roce.Header) { h.AckReq = true }

// madeRNRWriteImm is a WRITE with immediate of three packets that finds no
// receive: an RNR NAK of the last packet, then the whole WRITE again
// (recipes/rxe.md, quirk 12), each duplicate packet with an ACK (quirk 6).
func madeRNRWriteImm(t testing.TB) *Recording {
	m := newMade(t, "i_rnr_write_imm", 1024)
	a, b := &m.r.nodes[sideA], &m.r.nodes[sideB]
	m.r.QPAttr.MinRNRTimer = 20
	src, dst := &a.MRs[0], &b.MRs[0]
	m.steps(fmt.Sprintf(`[
	 {"node":"A","action":"post_send","wrs":[{"wr_id":1,"opcode":"WRITE_IMM","flags":2,"imm":77,"remote_addr":%d,"rkey":%d,
	  "sges":[{"mr":"MR1","addr":%d,"len":2500,"lkey":%d}]}],"rc":0,"bad_index":-1},
	 {"node":"B","action":"post_recv","wr_id":2,"sges":[],"rc":0},
	 {"node":"A","action":"poll","cq":"send","expected":1,"completions":[{"wr_id":1,"status":0,"opcode":1,"byte_len":2500,"qp_num":%d}]},
	 {"node":"B","action":"poll","cq":"recv","expected":1,"completions":[{"wr_id":2,"status":0,"opcode":129,"byte_len":2500,"wc_flags":3,"imm":77,"qp_num":%d}]}
	]`, dst.Addr, dst.RKey, src.Addr, src.LKey, a.QPN, b.QPN))
	psn := a.SQPSN
	write := func() {
		m.frame(sideA, roce.RCWriteFirst, psn, src, 0, 1024, func(h *roce.Header) {
			h.RETH = roce.RETHFields{VA: dst.Addr, RKey: dst.RKey, DMALen: 2500}
		})
		m.frame(sideA, roce.RCWriteMiddle, psn+1, src, 1024, 1024, nil)
		m.frame(sideA, roce.RCWriteLastImm, psn+2, src, 2048, 452, func(h *roce.Header) { h.AckReq, h.Imm = true, 77 })
	}
	write()
	m.ack(sideB, roce.SyndromeRNR(20), psn+2, 0)
	write()
	m.ack(sideB, 31, psn+1, 0)
	m.ack(sideB, 31, psn+1, 0)
	m.ack(sideB, 31, psn+2, 1)
	return m.r
}

// madeRNRTwice is a SEND that finds no receive for three rounds: the receive was
// posted only then, which the steps do not tell.
func madeRNRTwice(t testing.TB) *Recording {
	m := newMade(t, "i_rnr_rounds", 1024)
	a, b := &m.r.nodes[sideA], &m.r.nodes[sideB]
	src, dst := &a.MRs[0], &b.MRs[0]
	m.steps(fmt.Sprintf(`[
	 {"node":"A","action":"post_send","wrs":[{"wr_id":1,"opcode":"SEND","flags":2,"sges":[{"mr":"MR1","addr":%d,"len":10,"lkey":%d}]}],"rc":0,"bad_index":-1},
	 {"node":"B","action":"post_recv","wr_id":2,"sges":[{"mr":"dst","addr":%d,"len":10,"lkey":%d}],"rc":0},
	 {"node":"A","action":"poll","cq":"send","expected":1,"completions":[{"wr_id":1,"status":0,"opcode":0,"byte_len":10,"qp_num":%d}]},
	 {"node":"B","action":"poll","cq":"recv","expected":1,"completions":[{"wr_id":2,"status":0,"opcode":128,"byte_len":10,"wc_flags":1,"qp_num":%d}]}
	]`, src.Addr, src.LKey, dst.Addr, dst.LKey, a.QPN, b.QPN))
	for range 3 {
		m.frame(sideA, roce.RCSendOnly, a.SQPSN, src, 0, 10, ackReq)
		m.ack(sideB, roce.SyndromeRNR(12), a.SQPSN, 0)
	}
	m.frame(sideA, roce.RCSendOnly, a.SQPSN, src, 0, 10, ackReq)
	m.ack(sideB, 31, a.SQPSN, 1)
	return m.r
}

// madeBoth is two SENDs of two packets that cross. The directions race: where the
// answer comes behind the own packets, the post was before the peer's packets
// arrived.
func madeBoth(t testing.TB, answerFirst bool) *Recording {
	m := newMade(t, "h_both", 1024)
	for at := range m.r.nodes {
		n := &m.r.nodes[at]
		n.MRs = append([]MR(nil), n.MRs...)
	}
	a, b := &m.r.nodes[sideA], &m.r.nodes[sideB]
	post := func(s side) string {
		n := &m.r.nodes[s]
		mr := &n.MRs[0]
		return fmt.Sprintf(`{"node":"%v","action":"post_send","wrs":[{"wr_id":1,"opcode":"SEND","flags":2,"sges":[{"mr":"%s","addr":%d,"len":1500,"lkey":%d}]}],"rc":0,"bad_index":-1}`,
			s, mr.Name, mr.Addr, mr.LKey)
	}
	recv := func(s side) string {
		mr := &m.r.nodes[s].MRs[0]
		return fmt.Sprintf(`{"node":"%v","action":"post_recv","wr_id":2,"sges":[{"mr":"%s","addr":%d,"len":1500,"lkey":%d}],"rc":0}`, s, mr.Name, mr.Addr+8192, mr.LKey)
	}
	polls := func(s side) string {
		q := m.r.nodes[s].QPN
		return fmt.Sprintf(`{"node":"%v","action":"poll","cq":"send","expected":1,"completions":[{"wr_id":1,"status":0,"opcode":0,"byte_len":1500,"qp_num":%d}]},
		 {"node":"%v","action":"poll","cq":"recv","expected":1,"completions":[{"wr_id":2,"status":0,"opcode":128,"byte_len":1500,"wc_flags":1,"qp_num":%d}]}`, s, q, s, q)
	}
	m.steps("[" + recv(sideA) + "," + recv(sideB) + "," + post(sideA) + "," + post(sideB) + "," + polls(sideA) + "," + polls(sideB) + "]")
	send := func(s side) {
		n := &m.r.nodes[s]
		m.frame(s, roce.RCSendFirst, n.SQPSN, &n.MRs[0], 0, 1024, nil)
		m.frame(s, roce.RCSendLast, n.SQPSN+1, &n.MRs[0], 1024, 476, ackReq)
	}
	send(sideA)
	if answerFirst {
		m.ack(sideB, 31, a.SQPSN+1, 1)
		send(sideB)
	} else {
		send(sideB)
		m.ack(sideB, 31, a.SQPSN+1, 1)
	}
	m.ack(sideA, 31, b.SQPSN+1, 1)
	return m.r
}

// deliver says which frames arrive, in order; the others are lost.
func (m *made) deliver(frames ...int) {
	m.r.delivered = [][]byte{}
	for i := range m.r.capture {
		if !slices.Contains(frames, i) {
			m.r.capture[i].relay, m.r.Frames[i].Relay = "drop", "drop"
		}
	}
	for _, i := range frames {
		m.r.delivered = append(m.r.delivered, m.r.capture[i].data)
	}
}

// madeDup is a SEND of four packets, the second of which arrives twice: the
// duplicate draws an ACK of its own (recipes/rxe.md, quirk 6).
func madeDup(t testing.TB) *Recording {
	m := newMade(t, "j_dup_packet", 1024)
	m.send4()
	m.ack(sideB, 31, m.r.nodes[sideA].SQPSN+1, 0)
	m.ack(sideB, 31, m.r.nodes[sideA].SQPSN+3, 1)
	m.deliver(0, 1, 1, 2, 3, 4, 5)
	return m.r
}

// madeDropFirst is the same, but the first packet is lost: the NAK is of the first
// PSN of all.
func madeDropFirst(t testing.TB) *Recording {
	m := newMade(t, "j_drop_first", 1024)
	m.send4()
	m.ack(sideB, roce.NAKPSNSequenceError, m.r.nodes[sideA].SQPSN, 0)
	m.frames4()
	m.ack(sideB, 31, m.r.nodes[sideA].SQPSN+3, 1)
	m.deliver(1, 2, 3, 4, 5, 6, 7, 8, 9)
	return m.r
}

// madeAtomicLost is an atomic whose answer is lost: asked for again after the
// timeout, it is answered from the saved result and executed once.
func madeAtomicLost(t testing.TB) *Recording {
	m := newMade(t, "j_atomic_drop_ack", 1024)
	a, b := &m.r.nodes[sideA], &m.r.nodes[sideB]
	src, dst := &a.MRs[0], &b.MRs[0]
	m.steps(fmt.Sprintf(`[
	 {"node":"A","action":"post_send","wrs":[{"wr_id":1,"opcode":"FADD","flags":2,"compare_add":5,"remote_addr":%d,"rkey":%d,
	  "sges":[{"mr":"MR1","addr":%d,"len":8,"lkey":%d}]}],"rc":0,"bad_index":-1},
	 {"node":"A","action":"poll","cq":"send","expected":1,"completions":[{"wr_id":1,"status":0,"opcode":4,"byte_len":8,"qp_num":%d}]}
	]`, dst.Addr, dst.RKey, src.Addr, src.LKey, a.QPN))
	const old = 0xEEEEEEEEEEEEEEEE // dst is filled with 238
	for range 2 {
		m.frame(sideA, roce.RCFetchAdd, a.SQPSN, nil, 0, 0, func(h *roce.Header) {
			h.AckReq, h.Atomic = true, roce.AtomicETHFields{VA: dst.Addr, RKey: dst.RKey, SwapAdd: 5}
		})
		m.frame(sideB, roce.RCAtomicAcknowledge, a.SQPSN, nil, 0, 0, func(h *roce.Header) {
			h.AETH, h.AtomicAck = roce.AETHFields{Syndrome: 31, MSN: 1}, old
		})
	}
	m.deliver(0, 2, 3)
	sum := sha256.Sum256([]byte{0xF3, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE}) // once
	m.r.MemoryAfter = []MemoryRange{{Node: "B", MR: "dst", Len: 8, What: "added to once", SHA256: hex.EncodeToString(sum[:])}}
	return m.r
}

// madeReadDropLast is a READ whose last response is lost: after the timeout the
// rest is asked for, and comes as the end of the old response or as a new one.
func madeReadDropLast(t testing.TB) *Recording {
	m := newMade(t, "j_read_drop_last", 1024)
	a, b := &m.r.nodes[sideA], &m.r.nodes[sideB]
	src, dst := &a.MRs[0], &b.MRs[0]
	m.steps(fmt.Sprintf(`[
	 {"node":"A","action":"post_send","wrs":[{"wr_id":1,"opcode":"READ","flags":2,"remote_addr":%d,"rkey":%d,
	  "sges":[{"mr":"MR1","addr":%d,"len":2500,"lkey":%d}]}],"rc":0,"bad_index":-1},
	 {"node":"A","action":"poll","cq":"send","expected":1,"completions":[{"wr_id":1,"status":0,"opcode":2,"byte_len":2500,"qp_num":%d}]}
	]`, dst.Addr, dst.RKey, src.Addr, src.LKey, a.QPN))
	read := func(psn uint32, off uint64, n uint32) {
		m.frame(sideA, roce.RCReadRequest, psn, nil, 0, 0, func(h *roce.Header) {
			h.AckReq, h.RETH = true, roce.RETHFields{VA: dst.Addr + off, RKey: dst.RKey, DMALen: n}
		})
	}
	msn1 := func(h *roce.Header) { h.AETH = roce.AETHFields{Syndrome: 31, MSN: 1} }
	read(a.SQPSN, 0, 2500)
	m.frame(sideB, roce.RCReadResponseFirst, a.SQPSN, dst, 0, 1024, msn1)
	m.frame(sideB, roce.RCReadResponseMiddle, a.SQPSN+1, dst, 1024, 1024, nil)
	m.frame(sideB, roce.RCReadResponseLast, a.SQPSN+2, dst, 2048, 452, msn1)
	read(a.SQPSN+2, 2048, 452)
	m.frame(sideB, roce.RCReadResponseLast, a.SQPSN+2, dst, 2048, 452, msn1)
	m.deliver(0, 1, 2, 4, 5)
	return m.r
}

// send4 is the steps of a SEND of four packets, and the packets; frames4 the
// packets alone.
func (m *made) send4() {
	a, b := &m.r.nodes[sideA], &m.r.nodes[sideB]
	src, dst := &a.MRs[0], &b.MRs[0]
	m.steps(fmt.Sprintf(`[
	 {"node":"B","action":"post_recv","wr_id":2,"sges":[{"mr":"dst","addr":%d,"len":4000,"lkey":%d}],"rc":0},
	 {"node":"A","action":"post_send","wrs":[{"wr_id":1,"opcode":"SEND","flags":2,"sges":[{"mr":"MR1","addr":%d,"len":4000,"lkey":%d}]}],"rc":0,"bad_index":-1},
	 {"node":"A","action":"poll","cq":"send","expected":1,"completions":[{"wr_id":1,"status":0,"opcode":0,"byte_len":4000,"qp_num":%d}]},
	 {"node":"B","action":"poll","cq":"recv","expected":1,"completions":[{"wr_id":2,"status":0,"opcode":128,"byte_len":4000,"wc_flags":1,"qp_num":%d}]}
	]`, dst.Addr, dst.LKey, src.Addr, src.LKey, a.QPN, b.QPN))
	m.frames4()
}

func (m *made) frames4() {
	src, psn := &m.r.nodes[sideA].MRs[0], m.r.nodes[sideA].SQPSN
	m.frame(sideA, roce.RCSendFirst, psn, src, 0, 1024, nil)
	m.frame(sideA, roce.RCSendMiddle, psn+1, src, 1024, 1024, nil)
	m.frame(sideA, roce.RCSendMiddle, psn+2, src, 2048, 1024, nil)
	m.frame(sideA, roce.RCSendLast, psn+3, src, 3072, 928, ackReq)
}

// madeSoakLoss is the soak with every 13th frame lost. What is sent again after
// that is another thing on each run, so only completions and memory count.
func madeSoakLoss(t testing.TB) *Recording {
	r := load(t, "l_soak")
	r.Name, r.DeliveredDiffers = "l_soak_loss", true
	r.delivered = [][]byte{}
	for i := range r.capture {
		if i%13 == 12 {
			r.capture[i].relay, r.Frames[i].Relay = "drop", "drop"
		} else {
			r.delivered = append(r.delivered, r.capture[i].data)
		}
	}
	return r
}

// madeScenarios are replayed on the cards as recorded ones are.
func madeScenarios(t testing.TB) map[string]*Recording {
	return map[string]*Recording{
		"a WRITE with immediate that finds no receive": madeRNRWriteImm(t),
		"three rounds without a receive":               madeRNRTwice(t),
		"both send, the post came first":               madeBoth(t, false),
		"both send, the answer came first":             madeBoth(t, true),
		"a packet that arrives twice":                  madeDup(t),
		"the first packet is lost":                     madeDropFirst(t),
		"the answer to an atomic is lost":              madeAtomicLost(t),
		"the last response of a READ is lost":          madeReadDropLast(t),
	}
}
