package conformance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"rnic/hw/roce"
	"rnic/hw/roce/rocetest"
)

// Difference says in what a replay differs from what is expected of it.
type Difference struct {
	What   string      // one line
	Fields []FieldPair // of the first differing frame, side by side
}

// FieldPair is one field of two frames.
type FieldPair struct {
	Name     string `json:"field"`
	Recorded string `json:"recorded"`
	Ours     string `json:"ours"`
	Differs  bool   `json:"differs"`
}

func (d *Difference) Error() string { return d.What }

func differ(format string, args ...any) error {
	return &Difference{What: fmt.Sprintf(format, args...)}
}

// compareFrame compares a frame that we sent with the one expected. The IPv4
// identification is an input: the recorded one is written into a copy of ours,
// once our own checksum and ICRC have been found right.
func compareFrame(want *expectedFrame, n int, ours []byte) error {
	name := fmt.Sprintf("frame %d of %s (capture.pcap frame %d)", n, want.from.direction(), want.capture)
	got := bytes.Clone(ours)
	if err := resign(got); err != nil {
		return differ("%s: we sent what is not RoCEv2: %v: %s", name, err, summary(ours))
	}
	if !bytes.Equal(got, ours) {
		return differ("%s: our frame's IPv4 checksum or ICRC is wrong: it is %s, should be %s",
			name, sums(ours), sums(got))
	}
	if err := rocetest.SetIPID(got, ipID(want.data)); err != nil {
		return differ("%s: %v", name, err)
	}
	if bytes.Equal(got, want.data) || want.or != nil && bytes.Equal(got, want.or) {
		return nil
	}
	d := &Difference{Fields: sideBySide(want.data, got)}
	var diff []string
	for _, f := range d.Fields {
		if f.Differs && f.Name != "icrc" && f.Name != "ip.checksum" {
			diff = append(diff, fmt.Sprintf("%s recorded %s, ours %s", f.Name, f.Recorded, f.Ours))
		}
	}
	if len(diff) == 0 {
		diff = []string{firstByte(want.data, got)}
	}
	d.What = fmt.Sprintf("%s: recorded %s, ours %s: %s", name, summary(want.data), summary(got), strings.Join(diff, "; "))
	return d
}

func sums(frame []byte) string {
	var p roce.Packet
	if err := roce.Decode(frame, &p); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("ICRC %08x", p.ICRC())
}

// firstByte tells where two byte strings part.
func firstByte(want, got []byte) string {
	for i := 0; i < len(want) && i < len(got); i++ {
		if want[i] != got[i] {
			return fmt.Sprintf("byte %d recorded 0x%02x, ours 0x%02x", i, want[i], got[i])
		}
	}
	return fmt.Sprintf("recorded %d bytes, ours %d", len(want), len(got))
}

// summary is a frame in a few words.
func summary(frame []byte) string {
	var p roce.Packet
	if err := roce.Decode(frame, &p); err != nil {
		return fmt.Sprintf("%d bytes that do not parse (%v)", len(frame), err)
	}
	s := fmt.Sprintf("%v psn %d", p.Opcode(), p.BTH().PSN())
	if p.BTH().AckReq() {
		s += " AckReq"
	}
	if a := p.AETH(); a != nil {
		s += fmt.Sprintf(" (%v, msn %d)", a.Syndrome(), a.MSN())
	}
	if n := len(p.Payload()); n > 0 {
		s += fmt.Sprintf(" [%d bytes]", n)
	}
	return s
}

// sideBySide is every field of either frame.
func sideBySide(want, got []byte) []FieldPair {
	var pairs []FieldPair
	at := map[string]int{}
	for _, f := range fields(want) {
		at[f[0]] = len(pairs)
		pairs = append(pairs, FieldPair{Name: f[0], Recorded: f[1], Ours: "-"})
	}
	for _, f := range fields(got) {
		if i, ok := at[f[0]]; ok {
			pairs[i].Ours = f[1]
		} else {
			pairs = append(pairs, FieldPair{Name: f[0], Recorded: "-", Ours: f[1]})
		}
	}
	for i := range pairs {
		pairs[i].Differs = pairs[i].Recorded != pairs[i].Ours
	}
	if w, g := payload(want), payload(got); !bytes.Equal(w, g) {
		pairs = append(pairs, FieldPair{Name: "payload", Recorded: fmt.Sprintf("%d bytes", len(w)),
			Ours: fmt.Sprintf("%d bytes: %s", len(g), firstByte(w, g)), Differs: true})
	}
	return pairs
}

func payload(frame []byte) []byte {
	var p roce.Packet
	if roce.Decode(frame, &p) != nil {
		return nil
	}
	return p.Payload()
}

// fields is a frame decoded: names and values.
func fields(frame []byte) [][2]string {
	var out [][2]string
	add := func(name, format string, args ...any) {
		out = append(out, [2]string{name, fmt.Sprintf(format, args...)})
	}
	var p roce.Packet
	if err := roce.Decode(frame, &p); err != nil {
		add("frame", "%d bytes: %v: %s", len(frame), err, hex.EncodeToString(frame[:min(len(frame), 96)]))
		return out
	}
	var h roce.Header
	p.Header(&h)
	add("eth.dst", "%x", h.DstMAC)
	add("eth.src", "%x", h.SrcMAC)
	if p.VLAN() != nil {
		add("vlan", "%+v", h.VLAN)
	}
	if ip := p.IPv4(); ip != nil {
		add("ip.tos", "0x%02x", ip.TOS())
		add("ip.length", "%d", ip.TotalLength())
		add("ip.id", "%d", ip.ID())
		add("ip.flags", "0x%04x", ip.FlagsOffset())
		add("ip.ttl", "%d", ip.TTL())
		add("ip.checksum", "0x%02x%02x", ip[10], ip[11])
	} else {
		ip := p.IPv6()
		add("ip.tos", "0x%02x", ip.TrafficClass())
		add("ip.flow_label", "0x%05x", ip.FlowLabel())
		add("ip.length", "%d", ip.PayloadLength())
		add("ip.ttl", "%d", ip.HopLimit())
	}
	add("ip.src", "%x", h.Src)
	add("ip.dst", "%x", h.Dst)
	add("udp.sport", "%d", p.UDP().SrcPort())
	add("udp.dport", "%d", p.UDP().DstPort())
	add("udp.length", "%d", p.UDP().Length())
	add("udp.checksum", "0x%04x", p.UDP().Checksum())
	b := p.BTH()
	add("bth.opcode", "%v", p.Opcode())
	add("bth.se", "%v", h.SE)
	add("bth.migreq", "%v", h.MigReq)
	add("bth.pad", "%d", b.PadCount())
	add("bth.pkey", "0x%04x", h.PKey)
	add("bth.byte4", "0x%02x", b[4])
	add("bth.dest_qp", "%d", h.DestQP)
	add("bth.ackreq", "%v", h.AckReq)
	add("bth.psn", "%d", h.PSN)
	if p.DETH() != nil {
		add("deth.qkey", "0x%08x", h.DETH.QKey)
		add("deth.src_qp", "%d", h.DETH.SrcQP)
	}
	if x := p.RETH(); x != nil {
		add("reth.va", "0x%x", x.Fields().VA)
		add("reth.rkey", "0x%08x", x.Fields().RKey)
		add("reth.dmalen", "%d", x.Fields().DMALen)
	}
	if x := p.AtomicETH(); x != nil {
		add("atomiceth", "%+v", x.Fields())
	}
	if p.AETH() != nil {
		add("aeth.syndrome", "0x%02x (%v)", uint8(h.AETH.Syndrome), h.AETH.Syndrome)
		add("aeth.msn", "%d", h.AETH.MSN)
	}
	if p.AtomicAckETH() != nil {
		add("atomicack", "0x%016x", h.AtomicAck)
	}
	if p.ImmDt() != nil {
		add("imm", "0x%08x", h.Imm)
	}
	if p.IETH() != nil {
		add("ieth.rkey", "0x%08x", h.InvRKey)
	}
	add("payload.length", "%d", len(p.Payload()))
	add("pad", "%x", p.Pad())
	add("icrc", "%08x", p.ICRC())
	add("trailer", "%x", p.Trailer())
	return out
}

// compareCompletion compares what the verbs define of a completion: on success
// the opcode; of receives the length, and immediate or invalidated key with
// their flags; of READ and atomics the length. soft-RoCE also sets GRH on RC
// receives and IMM at senders, and swaps the bytes of an invalidated key.
func compareCompletion(want, got *Completion) error {
	var diff []string
	check := func(name string, w, g any) {
		if w != g {
			diff = append(diff, fmt.Sprintf("%s recorded %v, ours %v", name, w, g))
		}
	}
	check("wr_id", want.WRID, got.WRID)
	check("status", statusName(want.Status), statusName(got.Status))
	check("qp_num", want.QPN, got.QPN)
	if want.Status == statusSuccess && got.Status == statusSuccess {
		check("opcode", want.Opcode, got.Opcode)
		switch want.Opcode {
		case wcRecv, wcRecvImm:
			check("byte_len", want.ByteLen, got.ByteLen)
			const flags = wcFlagImm | wcFlagInv
			check("wc_flags (IMM 2, INV 4)", want.Flags&flags, got.Flags&flags)
			switch {
			case want.Flags&wcFlagImm != 0:
				check("imm", fmt.Sprintf("0x%08x", want.Imm), fmt.Sprintf("0x%08x", got.Imm))
			case want.Flags&wcFlagInv != 0:
				check("invalidated rkey", fmt.Sprintf("0x%08x", swapped(want.Imm)), fmt.Sprintf("0x%08x", got.Imm))
			}
		case wcRead, wcCompSwap, wcFetchAdd:
			check("byte_len", want.ByteLen, got.ByteLen)
		}
	}
	if len(diff) == 0 {
		return nil
	}
	return differ("%s", strings.Join(diff, "; "))
}

func swapped(v uint32) uint32 { return v<<24 | v>>24 | v&0xFF00<<8 | v>>8&0xFF00 }

var statusNames = map[int]string{
	0: "SUCCESS", 1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 3: "LOC_EEC_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR",
	6: "MW_BIND_ERR", 7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR", 10: "REM_ACCESS_ERR",
	11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 21: "GENERAL_ERR",
}

// statusName is the name of an ibv_wc_status.
func statusName(status int) string {
	if name, ok := statusNames[status]; ok {
		return name
	}
	return fmt.Sprintf("status %d", status)
}

var stateNames = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func stateName(state int) string {
	if state >= 0 && state < len(stateNames) {
		return stateNames[state]
	}
	return fmt.Sprintf("state %d", state)
}

func compareState(want, got *QPState) error {
	if want.State != got.State {
		return differ("state recorded %s, ours %s", stateName(want.State), stateName(got.State))
	}
	if want.SQPSN != got.SQPSN {
		return differ("sq_psn recorded %d, ours %d", want.SQPSN, got.SQPSN)
	}
	return nil
}

// holds tells whether memory has the content that was read back.
func (m *MemoryRange) holds(b []byte) bool {
	sum := sha256.Sum256(b)
	return strings.EqualFold(hex.EncodeToString(sum[:]), m.SHA256)
}

// describe says what a range holds instead.
func (m *MemoryRange) describe(b []byte) string {
	s := fmt.Sprintf("memory of %s, region %q, %d bytes at %d (%q): ", m.Node, m.MR, m.Len, m.Offset, m.What)
	if want, err := hex.DecodeString(m.Hex); err == nil && uint64(len(want)) == m.Len && m.Len > 0 {
		return s + firstByte(want, b)
	}
	sum := sha256.Sum256(b)
	return s + fmt.Sprintf("sha256 recorded %.16s…, ours %x…; ours begins %x", m.SHA256, sum[:8], b[:min(len(b), 32)])
}
