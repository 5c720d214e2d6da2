package softcard

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"rnic/hw"
	"rnic/hw/roce"
	"rnic/hw/roce/rocetest"
)

// The witness of these tests is Linux soft-RoCE: test/golden holds what it put on
// the wire. The same work requests are posted here, in rings built by hand, and
// the same frames must come out. (rnicctl conformance does this through the
// driver; here nothing but the card is in between.)

const goldenDir = "../../test/golden"

type recording struct {
	Name      string `json:"scenario"`
	Transport string `json:"transport"`
	Path      struct {
		MTU          uint32 `json:"mtu"`
		TrafficClass uint8  `json:"traffic_class"`
		FlowLabel    uint32 `json:"flow_label"`
	} `json:"path"`
	Attr struct {
		Timeout   uint8     `json:"timeout"`
		Retry     uint8     `json:"retry_cnt"`
		RNRRetry  uint8     `json:"rnr_retry"`
		MinRNR    uint8     `json:"min_rnr_timer"`
		RD        uint8     `json:"max_rd_atomic"`
		DestRD    uint8     `json:"max_dest_rd_atomic"`
		Access    hw.Access `json:"qp_access"`
		SignalAll int       `json:"sq_sig_all"`
	} `json:"qp_attr"`
	Nodes  map[string]recordedNode `json:"nodes"`
	Steps  []recordedStep          `json:"steps"`
	Memory []struct {
		Node, MR    string
		Offset, Len uint32
		SHA256      string
	} `json:"memory_after"`
	Frames []struct {
		Dir   string `json:"dir"`
		Relay string `json:"relay"`
		Name  string `json:"name"`
		PSN   uint32 `json:"psn"`
		AETH  *struct{ Syndrome uint8 }
	} `json:"frames"`
}

type recordedNode struct {
	MAC, IP string
	QPN     uint32 `json:"qpn"`
	SQPSN   uint32 `json:"sq_psn"`
	RQPSN   uint32 `json:"rq_psn"`
	MRs     []struct {
		Name   string
		Addr   uint64
		Len    int
		LKey   uint32 `json:"lkey"`
		Access hw.Access
		Fill   struct {
			Rule  string
			Seed  int
			Value byte
		}
	} `json:"mrs"`
}

type recordedSGE struct {
	Addr uint64
	Len  uint32
	LKey uint32 `json:"lkey"`
}

type recordedWC struct {
	WRID    uint64 `json:"wr_id"`
	Status  hw.Status
	Opcode  hw.CQEOpcode
	ByteLen uint32 `json:"byte_len"`
	Flags   int    `json:"wc_flags"`
	Imm     uint32
}

type recordedStep struct {
	Node, Action string
	WRID         uint64 `json:"wr_id"`
	SGEs         []recordedSGE
	RC           int
	WRs          []struct {
		WRID   uint64 `json:"wr_id"`
		Opcode string
		Flags  int
		SGEs   []recordedSGE
		Imm    uint32
		Remote uint64 `json:"remote_addr"`
		RKey   uint32 `json:"rkey"`
		Add    uint64 `json:"compare_add"`
		Swap   uint64
	} `json:"wrs"`
	CQ          string
	Completions []recordedWC
	State       string
	Result      *struct {
		State hw.QPState
		SQPSN uint32 `json:"sq_psn"`
	}
}

func loadRecording(tb testing.TB, name string) *recording {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, name, "scenario.json"))
	if err != nil {
		tb.Fatal(err)
	}
	r := &recording{}
	if err := json.Unmarshal(b, r); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return r
}

func readPcap(tb testing.TB, file string) (frames [][]byte) {
	tb.Helper()
	f, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			tb.Fatal(err)
		}
		frames = append(frames, b)
	}
}

// goldenSkip are recordings of what does not reach a card, or not this one. What is
// ruled to be otherwise than recorded (test/golden/REPLAY.md) is in the functions
// named for it.
var goldenSkip = map[string]string{
	"b_send_inv_mr": "needs invalidation", "b_send_inv_multi": "needs invalidation", "b_send_inv_only": "needs invalidation",
	"f_atomic_misaligned": "refused when it is posted: nothing reaches the card",
}

// replay is a recording and the cards that replay it.
type replay struct {
	*pair
	rec     *recording
	qps     map[string]*tQP
	nodes   map[string]*node
	mrs     map[string]map[string]*tMR
	wrid    map[string]map[uint32]uint64 // by node: send index, and receive index | recvBit
	sent    map[string][][]byte          // frames by direction
	relay   map[string][]string          // by direction: what the relay did to each
	swapped *frame                       // the first of two that change places
}

func newReplay(tb testing.TB, rec *recording) *replay {
	r := &replay{pair: &pair{tb: tb, now: 1}, rec: rec, qps: map[string]*tQP{}, nodes: map[string]*node{}, mrs: map[string]map[string]*tMR{},
		wrid: map[string]map[uint32]uint64{}, sent: map[string][][]byte{}, relay: map[string][]string{}}
	log := uint8(0)
	for 128<<log < rec.Path.MTU {
		log++
	}
	for _, name := range []string{"A", "B"} {
		k := rec.Nodes[name]
		mac, err := net.ParseMAC(k.MAC)
		if err != nil {
			tb.Fatal(err)
		}
		n := newNode(tb, nodeConfig{name: name, mac: [6]byte(mac), ip: k.IP, clock: func() int64 { return r.now }})
		if err := n.card.WriteRegion(hw.BARCtrl, hw.RegDebugACKReqInterval, []byte{66, 0, 0, 0}); err != nil {
			tb.Fatal(err)
		}
		r.nodes[name], r.mrs[name], r.wrid[name] = n, map[string]*tMR{}, map[uint32]uint64{}
		r.qps[name] = n.newQP(qpConfig{number: k.QPN, segments: 32, signalAll: rec.Attr.SignalAll != 0})
		for _, m := range k.MRs {
			mr := n.newMR(m.Addr, m.Len, m.LKey, m.Access)
			for i := range mr.mem {
				if mr.mem[i] = m.Fill.Value; m.Fill.Rule == "pat" {
					mr.mem[i] = byte(m.Fill.Seed + 7*i + 13*(i>>8))
				}
			}
			r.mrs[name][m.Name] = mr
		}
	}
	r.a, r.b = r.nodes["A"], r.nodes["B"]
	r.join(1024)
	r.onWire = r.wire
	at := rec.Attr
	connect(r.qps["A"], r.qps["B"], linkAttrs{mtu: hw.MTU(log), access: at.Access, timeout: at.Timeout, retry: at.Retry, rnr: at.RNRRetry, minRNR: at.MinRNR,
		rdAtomic: at.RD, destRDAtomic: at.DestRD, flowLabel: rec.Path.FlowLabel, trafficClass: rec.Path.TrafficClass},
		rec.Nodes["A"].SQPSN, rec.Nodes["B"].SQPSN)
	for _, f := range rec.Frames {
		r.relay[f.Dir] = append(r.relay[f.Dir], f.Relay)
	}
	return r
}

// wire notes the frames that a card put on the wire, in order, and does to them
// what the recording's relay did. pair.run keeps the turns: a card takes in all
// that was delivered, and transmits until idle; then the other.
func (r *replay) wire(dir string, f *frame) {
	k := len(r.sent[dir])
	r.sent[dir] = append(r.sent[dir], bytes.Clone(f.bytes()))
	if k >= len(r.relay[dir]) {
		return
	}
	switch r.relay[dir][k] {
	case "drop":
		spoil(f)
	case "subst":
		switch {
		case r.rec.Name == "j_corrupt":
			f.bytes()[200] ^= 1
		case r.swapped == nil:
			r.swapped = f
		default:
			g := r.swapped
			f.buf, g.buf = g.buf, f.buf
			f.start, f.end, g.start, g.end = g.start, g.end, f.start, f.end
		}
	}
}

const recvBit = 1 << 31

func sges(in []recordedSGE) (out []hw.DataSegment) {
	for _, s := range in {
		out = append(out, hw.DataSegment{Addr: s.Addr, Length: s.Len, LKey: s.LKey})
	}
	return out
}

// memory is n bytes at a virtual address of a node.
func (r *replay) memory(node string, addr uint64, n uint32) []byte {
	for _, m := range r.mrs[node] {
		if off := addr - m.base; addr >= m.base && off+uint64(n) <= uint64(len(m.mem)) {
			return m.mem[off : off+uint64(n)]
		}
	}
	r.tb.Fatalf("%s: no memory at %#x", node, addr)
	return nil
}

func (r *replay) step(s *recordedStep) error {
	q := r.qps[s.Node]
	switch s.Action {
	case "post_recv":
		r.wrid[s.Node][q.recv(sges(s.SGEs)...)|recvBit] = s.WRID
	case "post_send":
		ops := map[string]hw.Opcode{"SEND": hw.OpcodeSend, "SEND_IMM": hw.OpcodeSendWithImm, "WRITE": hw.OpcodeRDMAWrite, "WRITE_IMM": hw.OpcodeRDMAWriteWithImm,
			"READ": hw.OpcodeRDMARead, "CAS": hw.OpcodeAtomicCmpAndSwp, "FADD": hw.OpcodeAtomicFetchAndAdd}
		for _, w := range s.WRs {
			x := tWR{op: ops[w.Opcode], imm: w.Imm, remote: w.Remote, rkey: w.RKey, sges: sges(w.SGEs)}
			for bit, f := range map[int]hw.WQEFlag{1: hw.WQEFlagFence, 2: hw.WQEFlagSignaled, 4: hw.WQEFlagSolicited} {
				if w.Flags&bit != 0 {
					x.flags |= f
				}
			}
			if w.Flags&8 != 0 {
				for _, g := range w.SGEs {
					x.inline = append(x.inline, r.memory(s.Node, g.Addr, g.Len)...)
				}
				x.isInline, x.sges = true, nil
			}
			switch w.Opcode {
			case "CAS":
				x.compare, x.swapAdd = w.Add, w.Swap
			case "FADD":
				x.swapAdd = w.Add
			}
			r.wrid[s.Node][q.put(x.wqe(q.sqPI))] = w.WRID
		}
		q.ringSQ() // the chain is one post
	case "modify_qp":
		q.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateErr})
	case "query_qp":
		x, _ := q.query()
		if name := r.rec.Name; s.Node == "A" && (name == "i_lkey_after_good" || name == "i_unsignaled_fail") {
			s.Result.State = hw.QPStateErr // it hung there
		}
		if x.State != s.Result.State || x.SQPSN != s.Result.SQPSN {
			return fmt.Errorf("state %v, sq_psn %d; recorded %v, %d", x.State, x.SQPSN, s.Result.State, s.Result.SQPSN)
		}
	case "poll":
		return r.poll(s, q)
	default:
		return fmt.Errorf("unknown action %q", s.Action)
	}
	return nil
}

// poll waits for as many completions as were recorded; time goes on only while
// some are missing.
func (r *replay) poll(s *recordedStep, q *tQP) error {
	cq, bit := q.sendCQ, uint32(0)
	if s.CQ == "recv" {
		cq, bit = q.recvCQ, recvBit
	}
	for i, want := range s.Completions {
		e, have := cq.poll()
		for !have {
			next := min(r.a.card.nextTimer(), r.b.card.nextTimer())
			if next == noTimer {
				return fmt.Errorf("completion %d of %d is missing", i, len(s.Completions))
			}
			r.now = max(r.now, next)
			r.run()
			e, have = cq.poll()
		}
		status := want.Status
		if ruled, ok := ruledStatus(r.rec.Name, s.CQ, i, status); ok {
			status = ruled
		}
		id, known := r.wrid[s.Node][e.WQEIndex|bit]
		if !known || id != want.WRID || e.Status != status || e.QPN != q.number {
			return fmt.Errorf("completion %d: wr_id %d, %v (%v); expected wr_id %d, %v", i, id, e.Status, e.Reason, want.WRID, status)
		}
		if status != hw.StatusSuccess {
			continue
		}
		lengthCounts := bit != 0 || want.Opcode == hw.CQEOpcodeRDMARead || want.Opcode == hw.CQEOpcodeCompSwap || want.Opcode == hw.CQEOpcodeFetchAdd
		if e.Opcode != want.Opcode || lengthCounts && e.ByteLen != want.ByteLen {
			return fmt.Errorf("completion %d: %v, %d bytes; recorded %v, %d", i, e.Opcode, e.ByteLen, want.Opcode, want.ByteLen)
		}
		if bit != 0 && (e.Flags&hw.CQEFlagImm != 0) != (want.Flags&2 != 0) || want.Flags&2 != 0 && bit != 0 && e.Imm != want.Imm {
			return fmt.Errorf("completion %d: flags %v, immediate %#x; recorded %#x, %#x", i, e.Flags, e.Imm, want.Flags, want.Imm)
		}
	}
	return nil
}

// ruledStatus is the status of completion i of a poll where soft-RoCE's is not to
// be copied.
func ruledStatus(name, cq string, i int, recorded hw.Status) (hw.Status, bool) {
	switch {
	case strings.HasPrefix(name, "i_lkey_") || name == "i_local_oob" || name == "i_unsignaled_fail":
		if recorded == hw.StatusLocQPOpErr {
			return hw.StatusLocProtErr, true
		}
	case strings.HasPrefix(name, "i_recv_too_small"):
		if i == 0 && cq == "send" {
			return hw.StatusRemInvReqErr, true
		}
		if i == 0 {
			return hw.StatusLocLenErr, true
		}
	case name == "i_rem_op_err" && cq == "recv" && i == 0:
		return hw.StatusLocProtErr, true
	}
	return 0, false
}

// ruledHang adds the completions that soft-RoCE never gave.
func ruledHang(r *recording) {
	var status []hw.Status
	switch r.Name {
	case "i_lkey_after_good":
		status = []hw.Status{hw.StatusSuccess, hw.StatusLocProtErr, hw.StatusWRFlushErr}
	case "i_unsignaled_fail":
		status = []hw.Status{hw.StatusLocProtErr, hw.StatusWRFlushErr}
	default:
		return
	}
	var posted []uint64
	for _, s := range r.Steps {
		for _, w := range s.WRs {
			posted = append(posted, w.WRID)
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.Action != "poll" || s.Node != "A" {
			continue
		}
		s.Completions = make([]recordedWC, len(status))
		for j := range status {
			s.Completions[j] = recordedWC{WRID: posted[len(posted)-len(status)+j], Status: status[j]}
		}
	}
}

// ruledFrames are the recorded frames of a direction, without or with another
// form of those that are not to be copied.
func (r *replay) ruledFrames(frames [][]byte, dir string) (out [][]byte) {
	for i, f := range r.rec.Frames {
		if f.Dir != dir {
			continue
		}
		b := frames[i]
		if strings.HasPrefix(r.rec.Name, "i_rnr_") && f.AETH != nil && f.AETH.Syndrome == uint8(roce.NAKPSNSequenceError) {
			continue // no sequence NAK after the RNR NAK
		}
		if strings.HasPrefix(r.rec.Name, "i_recv_too_small") && f.AETH != nil && f.AETH.Syndrome == uint8(roce.NAKRemoteOperationalError) {
			b = bytes.Clone(b)
			b[14+20+8+12] = byte(roce.NAKInvalidRequest)
			if err := rocetest.SetIPID(b, be.Uint16(b[18:])); err != nil {
				r.tb.Fatal(err)
			}
		}
		if r.rec.Name == "j_read_drop_middle" && i == 6 {
			// The re-read may begin FIRST: our own frame, but for that, is as recorded.
			h, p := roce.Header{}, roce.Packet{}
			if err := roce.Parse(b, &p); err != nil {
				r.tb.Fatal(err)
			}
			p.Header(&h)
			h.Opcode, h.AETH = roce.RCReadResponseFirst, roce.AETHFields{Syndrome: roce.SyndromeACK(roce.CreditInvalid), MSN: 1}
			b = h.Append(nil, p.Payload())
		}
		out = append(out, b)
	}
	return out
}

// withIPID is our frame with the recorded one's IPv4 identification, which is an
// arbitrary input that checksum and ICRC cover.
func withIPID(ours, recorded []byte) []byte {
	b := bytes.Clone(ours)
	if len(recorded) < 20 || be.Uint16(b[12:]) != roce.EtherTypeIPv4 {
		return b
	}
	if err := rocetest.SetIPID(b, be.Uint16(recorded[18:])); err != nil {
		return nil
	}
	return b
}

func describe(b []byte) string {
	var p roce.Packet
	if roce.Decode(b, &p) != nil {
		return hex.EncodeToString(b[:min(80, len(b))])
	}
	s := fmt.Sprintf("%v psn %d ackreq %v, %d bytes of payload", p.Opcode(), p.BTH().PSN(), p.BTH().AckReq(), len(p.Payload()))
	if a := p.AETH(); a != nil {
		s += fmt.Sprintf(", %v, msn %d", a.Syndrome(), a.MSN())
	}
	return s
}

// play replays the whole recording and compares.
func (r *replay) play(t *testing.T) {
	ruledHang(r.rec)
	for i := range r.rec.Steps {
		r.run()
		if err := r.step(&r.rec.Steps[i]); err != nil {
			t.Errorf("step %d, %s of %s: %v", i, r.rec.Steps[i].Action, r.rec.Steps[i].Node, err)
			break
		}
	}
	r.run()
	recorded := readPcap(t, filepath.Join(goldenDir, r.rec.Name, "capture.pcap"))
	for _, dir := range []string{"A>B", "B>A"} {
		want := r.ruledFrames(recorded, dir)
		if r.rec.Name == "j_reorder" {
			// Both NAKs of the recording are in before a packet is sent again: the
			// second one says where from. What is sent first may not differ.
			want = want[:len(want)*4/7]
			r.sent[dir] = r.sent[dir][:min(len(want), len(r.sent[dir]))]
		}
		for i := range max(len(want), len(r.sent[dir])) {
			switch {
			case i >= len(want):
				t.Errorf("%s frame %d: sent, not recorded: %s", dir, i, describe(r.sent[dir][i]))
			case i >= len(r.sent[dir]):
				t.Errorf("%s frame %d: not sent: %s", dir, i, describe(want[i]))
			case !bytes.Equal(withIPID(r.sent[dir][i], want[i]), want[i]):
				t.Errorf("%s frame %d: sent %s; recorded %s", dir, i, describe(r.sent[dir][i]), describe(want[i]))
			}
		}
	}
	for i, m := range r.rec.Memory {
		later := false // l_soak looks at memory between its steps
		for _, n := range r.rec.Memory[i+1:] {
			later = later || n.Node == m.Node && n.MR == m.MR && n.Offset < m.Offset+m.Len && m.Offset < n.Offset+n.Len
		}
		if later {
			continue
		}
		b := r.mrs[m.Node][m.MR].mem[m.Offset : m.Offset+m.Len]
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != m.SHA256 {
			t.Errorf("%s %s [%d, %d): other bytes than recorded", m.Node, m.MR, m.Offset, m.Offset+m.Len)
		}
	}
	for name, q := range r.qps {
		if es := append(q.sendCQ.all(), q.recvCQ.all()...); len(es) != 0 {
			t.Errorf("%s: completions that were not polled: %+v", name, es)
		}
	}
}

// TestGolden replays every recording of RC.
func TestGolden(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(goldenDir, "*", "scenario.json"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, d := range dirs {
		name := filepath.Base(filepath.Dir(d))
		rec := loadRecording(t, name)
		if rec.Transport != "RC" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if why := goldenSkip[name]; why != "" {
				t.Skip(why)
			}
			newReplay(t, rec).play(t)
		})
	}
}
