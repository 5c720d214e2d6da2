package roce_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"rnic/hw/roce"
	"rnic/hw/roce/rocetest"
)

// goldenDir holds what two Linux soft-RoCE guests put on the wire, with a
// decode of every frame that was made without this package.
const goldenDir = "../../test/golden"

type goldenFrame struct {
	N        int    `json:"n"`
	Dir      string `json:"dir"`
	Relay    string `json:"relay"`
	IPVer    int    `json:"ip_version"`
	Len      int    `json:"len"`
	TOS      uint8  `json:"ip_tos"`
	ID       uint16 `json:"ip_id"`
	Flags    uint16 `json:"ip_flags_frag"`
	TTL      uint8  `json:"ip_ttl"`
	TC6      uint8  `json:"ip6_tc"`
	Flow6    uint32 `json:"ip6_flow"`
	SPort    uint16 `json:"udp_sport"`
	DPort    uint16 `json:"udp_dport"`
	UDPLen   uint16 `json:"udp_len"`
	UDPSum   uint16 `json:"udp_csum"`
	Opcode   uint8  `json:"opcode"`
	Name     string `json:"name"`
	SE       int    `json:"se"`
	Mig      int    `json:"mig"`
	Pad      uint8  `json:"pad"`
	TVer     uint8  `json:"tver"`
	PKey     uint16 `json:"pkey"`
	Resv8a   uint8  `json:"resv8a"`
	DestQP   uint32 `json:"dest_qp"`
	AckReq   int    `json:"ackreq"`
	Resv7    uint8  `json:"resv7"`
	PSN      uint32 `json:"psn"`
	RETH     *goldenRETH
	Atomic   *goldenAtomic `json:"atomiceth"`
	AETH     *goldenAETH
	DETH     *goldenDETH
	Ack      *uint64 `json:"atomicack"`
	Imm      *uint32 `json:"imm"`
	IETH     *uint32 `json:"ieth"`
	Off      int     `json:"payload_off"`
	PayLen   int     `json:"payload_len"`
	PadBytes string  `json:"pad_bytes"`
	Trailer  int     `json:"trailer_after_ip"`
	ICRC     string  `json:"icrc"`
	ICRCOK   bool    `json:"icrc_ok"`
}

type goldenRETH struct {
	VA     uint64 `json:"va"`
	RKey   uint32 `json:"rkey"`
	DMALen uint32 `json:"dmalen"`
}

type goldenAtomic struct {
	VA      uint64 `json:"va"`
	RKey    uint32 `json:"rkey"`
	SwapAdd uint64 `json:"swap_add"`
	Compare uint64 `json:"compare"`
}

type goldenAETH struct {
	Syndrome uint8  `json:"syndrome"`
	Kind     string `json:"kind"`
	Value    uint8  `json:"value"`
	MSN      uint32 `json:"msn"`
}

type goldenDETH struct {
	QKey  uint32 `json:"qkey"`
	SrcQP uint32 `json:"src_qp"`
}

type goldenNode struct {
	MAC   string   `json:"mac"`
	IP    string   `json:"ip"`
	QPN   uint32   `json:"qpn"`
	SPort []uint16 `json:"udp_sport_observed"`
}

type goldenScenario struct {
	Scenario  string `json:"scenario"`
	Transport string `json:"transport"`
	Path      struct {
		FlowLabel uint32 `json:"flow_label"`
	} `json:"path"`
	Nodes            map[string]goldenNode `json:"nodes"`
	DeliveredDiffers bool                  `json:"delivered_differs"`
	Frames           []goldenFrame         `json:"frames"`
	dir              string
}

// scenarios reads every scenario.json; there must be some.
func scenarios(tb testing.TB) []goldenScenario {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(goldenDir, "*", "scenario.json"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("no recorded scenarios in %s: %v", goldenDir, err)
	}
	all := make([]goldenScenario, len(files))
	for i, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		if err := json.Unmarshal(b, &all[i]); err != nil {
			tb.Fatalf("%s: %v", f, err)
		}
		all[i].dir = filepath.Dir(f)
	}
	return all
}

// pcapFrames reads the frames of a pcap file with a reader that is not ours.
func pcapFrames(tb testing.TB, file string) [][]byte {
	tb.Helper()
	f, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
	var frames [][]byte
	for {
		b, _, err := r.ReadPacketData()
		if err == io.EOF {
			return frames
		}
		if err != nil {
			tb.Fatalf("%s: %v", file, err)
		}
		frames = append(frames, b)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// describe decodes a frame with this package into the shape of the recording's
// own decode. N, Dir and Relay are not in the frame.
func describe(t *testing.T, frame []byte) goldenFrame {
	t.Helper()
	var p roce.Packet
	if err := roce.Decode(frame, &p); err != nil {
		t.Fatalf("Decode: %v", err)
	}
	udp, bth := p.UDP(), p.BTH()
	icrc := binary.LittleEndian.AppendUint32(nil, p.ICRC())
	g := goldenFrame{
		IPVer: 4, Len: len(frame),
		SPort: udp.SrcPort(), DPort: udp.DstPort(), UDPLen: udp.Length(), UDPSum: udp.Checksum(),
		Opcode: uint8(bth.Opcode()), Name: bth.Opcode().String(),
		SE: bit(bth.SE()), Mig: bit(bth.MigReq()), Pad: bth.PadCount(), TVer: bth.TVer(), PKey: bth.PKey(),
		Resv8a: uint8(bit(bth.FECN()))<<7 | uint8(bit(bth.BECN()))<<6,
		DestQP: bth.DestQP(), AckReq: bit(bth.AckReq()), PSN: bth.PSN(),
		Off: p.PayloadOffset(), PayLen: len(p.Payload()), PadBytes: hex.EncodeToString(p.Pad()),
		Trailer: len(p.Trailer()), ICRC: hex.EncodeToString(icrc), ICRCOK: roce.CheckICRC(frame) == nil,
	}
	if ip := p.IPv6(); ip != nil {
		g.IPVer, g.TC6, g.Flow6, g.TTL = 6, ip.TrafficClass(), ip.FlowLabel(), ip.HopLimit()
	} else {
		ip := p.IPv4()
		g.TOS, g.ID, g.Flags, g.TTL = ip.TOS(), ip.ID(), ip.FlagsOffset(), ip.TTL()
	}
	if x := p.RETH(); x != nil {
		g.RETH = &goldenRETH{x.VA(), x.RKey(), x.DMALen()}
	}
	if x := p.AtomicETH(); x != nil {
		g.Atomic = &goldenAtomic{x.VA(), x.RKey(), x.SwapAdd(), x.Compare()}
	}
	if x := p.AETH(); x != nil {
		kind := map[roce.SyndromeKind]string{roce.ACK: "ACK", roce.NAK: "NAK", roce.RNRNAK: "RNR_NAK"}
		g.AETH = &goldenAETH{uint8(x.Syndrome()), kind[x.Syndrome().Kind()], x.Syndrome().Value(), x.MSN()}
	}
	if x := p.DETH(); x != nil {
		g.DETH = &goldenDETH{x.QKey(), x.SrcQP()}
	}
	if x := p.AtomicAckETH(); x != nil {
		v := x.OrigRemoteData()
		g.Ack = &v
	}
	if x := p.ImmDt(); x != nil {
		v := x.Imm()
		g.Imm = &v
	}
	if x := p.IETH(); x != nil {
		v := x.RKey()
		g.IETH = &v
	}
	return g
}

// header builds the headers of a recorded frame from the recording's decode
// alone: addresses from nodes, all else from frames[].
func header(t *testing.T, s *goldenScenario, g *goldenFrame) *roce.Header {
	t.Helper()
	mac := func(n goldenNode) [6]byte {
		a, err := net.ParseMAC(n.MAC)
		if err != nil {
			t.Fatal(err)
		}
		return [6]byte(a)
	}
	src, dst := s.Nodes[g.Dir[:1]], s.Nodes[g.Dir[2:]]
	h := &roce.Header{
		SrcMAC: mac(src), DstMAC: mac(dst),
		IPv6: g.IPVer == 6,
		Src:  netip.MustParseAddr(src.IP).As16(), Dst: netip.MustParseAddr(dst.IP).As16(),
		TrafficClass: g.TOS, HopLimit: g.TTL, IPID: g.ID, UDPSrcPort: g.SPort,
		Opcode: roce.Opcode(g.Opcode), SE: g.SE == 1, MigReq: g.Mig == 1, AckReq: g.AckReq == 1,
		PKey: g.PKey, DestQP: g.DestQP, PSN: g.PSN,
	}
	if h.IPv6 {
		h.TrafficClass, h.FlowLabel = g.TC6, g.Flow6
	}
	if x := g.RETH; x != nil {
		h.RETH = roce.RETHFields{VA: x.VA, RKey: x.RKey, DMALen: x.DMALen}
	}
	if x := g.Atomic; x != nil {
		h.Atomic = roce.AtomicETHFields{VA: x.VA, RKey: x.RKey, SwapAdd: x.SwapAdd, Compare: x.Compare}
	}
	if x := g.AETH; x != nil {
		h.AETH = roce.AETHFields{Syndrome: roce.Syndrome(x.Syndrome), MSN: x.MSN}
	}
	if x := g.DETH; x != nil {
		h.DETH = roce.DETHFields{QKey: x.QKey, SrcQP: x.SrcQP}
	}
	if g.Ack != nil {
		h.AtomicAck = *g.Ack
	}
	if g.Imm != nil {
		h.Imm = *g.Imm
	}
	if g.IETH != nil {
		h.InvRKey = *g.IETH
	}
	return h
}

// rebuild parses a frame and builds it again from the parsed fields and payload.
func rebuild(t *testing.T, frame []byte) []byte {
	t.Helper()
	var p roce.Packet
	if err := roce.Parse(frame, &p); err != nil {
		t.Fatalf("Parse: %v", err)
	}
	var h roce.Header
	p.Header(&h)
	return h.Append(nil, p.Payload())
}

// TestRecordedFrames compares every field of every recorded frame with the
// recording's decode, builds the frame from that decode, and again from what
// Parse gave, byte for byte; and the ICRC with the recorded bytes and the
// bitwise witness.
func TestRecordedFrames(t *testing.T) {
	total := 0
	for _, s := range scenarios(t) {
		t.Run(s.Scenario, func(t *testing.T) {
			frames := pcapFrames(t, filepath.Join(s.dir, "capture.pcap"))
			if len(frames) != len(s.Frames) {
				t.Fatalf("%d frames in the capture, %d in the decode", len(frames), len(s.Frames))
			}
			for i, frame := range frames {
				want := s.Frames[i]
				h := header(t, &s, &want)
				got := describe(t, frame)
				got.N, got.Dir, got.Relay = want.N, want.Dir, want.Relay
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("frame %d (-recorded +parsed):\n%s", i, d)
				}
				payload := frame[want.Off : want.Off+want.PayLen]
				if b := h.Append(nil, payload); !bytes.Equal(b, frame) {
					t.Fatalf("frame %d built from the decode:\n%x\nrecorded:\n%x", i, b, frame)
				}
				if b := rebuild(t, frame); !bytes.Equal(b, frame) {
					t.Fatalf("frame %d built from Parse:\n%x\nrecorded:\n%x", i, b, frame)
				}
				checkICRC(t, frame, true)
				total++
			}
		})
	}
	if total < 1000 {
		t.Errorf("only %d frames were compared", total)
	}
}

// checkICRC compares the stored ICRC of a frame, ours and the witness's.
func checkICRC(t *testing.T, frame []byte, ok bool) {
	t.Helper()
	stored, err := rocetest.Stored(frame)
	if err != nil {
		t.Fatal(err)
	}
	witness, err := rocetest.ICRC(frame)
	if err != nil {
		t.Fatal(err)
	}
	if (witness == stored) != ok {
		t.Fatalf("the witness says 0x%08x, stored is 0x%08x", witness, stored)
	}
	if got, err := roce.ICRC(frame); err != nil || got != witness {
		t.Fatalf("ICRC = 0x%08x, %v; the witness says 0x%08x", got, err, witness)
	}
	want := error(nil)
	if !ok {
		want = roce.ErrICRC
	}
	if err := roce.CheckICRC(frame); err != want {
		t.Fatalf("CheckICRC = %v, want %v", err, want)
	}
	if err := roce.Parse(frame, new(roce.Packet)); err != want {
		t.Fatalf("Parse = %v, want %v", err, want)
	}
}

// TestDeliveredFrames takes every frame as a receiver got it. Exactly one, in
// j_corrupt, was altered on the way.
func TestDeliveredFrames(t *testing.T) {
	bad := map[string]int{}
	files := 0
	for _, s := range scenarios(t) {
		if !s.DeliveredDiffers {
			continue
		}
		files++
		sent := map[string]bool{}
		for _, f := range pcapFrames(t, filepath.Join(s.dir, "capture.pcap")) {
			sent[string(f)] = true
		}
		for i, frame := range pcapFrames(t, filepath.Join(s.dir, "delivered.pcap")) {
			if !sent[string(frame)] {
				bad[s.Scenario]++
				checkICRC(t, frame, false)
				continue
			}
			checkICRC(t, frame, true)
			if b := rebuild(t, frame); !bytes.Equal(b, frame) {
				t.Fatalf("%s frame %d built from Parse:\n%x\nrecorded:\n%x", s.Scenario, i, b, frame)
			}
		}
	}
	if files == 0 || !cmp.Equal(bad, map[string]int{"j_corrupt": 1}) {
		t.Errorf("of %d captures, altered frames in %v", files, bad)
	}
}

// TestRecordedSourcePorts compares the UDP source ports with those that Linux
// chose for the same flow label and queue pairs.
func TestRecordedSourcePorts(t *testing.T) {
	n := 0
	for _, s := range scenarios(t) {
		a, b := s.Nodes["A"], s.Nodes["B"]
		for _, q := range [][2]goldenNode{{a, b}, {b, a}} {
			want := roce.SourcePort(s.Path.FlowLabel, q[0].QPN, q[1].QPN)
			if s.Transport == "UD" {
				want = roce.SourcePortUD(q[0].QPN)
			}
			for _, got := range q[0].SPort {
				if got != want {
					t.Errorf("%s QP %d: Linux used port %d, the rule says %d", s.Scenario, q[0].QPN, got, want)
				}
				n++
			}
		}
	}
	if n < 91 {
		t.Errorf("only %d ports were compared", n)
	}
}

// TestSetIPID: giving a recorded frame its own identification changes nothing;
// another one makes a frame that is right but for the identification.
func TestSetIPID(t *testing.T) {
	for _, name := range []string{"a_walk", "e_read_single", "m_ipv6_send"} {
		for i, frame := range pcapFrames(t, filepath.Join(goldenDir, name, "capture.pcap")) {
			var p roce.Packet
			if err := roce.Parse(frame, &p); err != nil {
				t.Fatal(err)
			}
			var h roce.Header
			p.Header(&h)
			id := h.IPID
			for _, h.IPID = range []uint16{id, id + 1, 0, 0xFFFF} {
				got := bytes.Clone(frame)
				if err := rocetest.SetIPID(got, h.IPID); err != nil {
					t.Fatal(err)
				}
				if want := h.Append(nil, p.Payload()); !bytes.Equal(got, want) {
					t.Fatalf("%s frame %d with identification %d:\n%x\nwant\n%x", name, i, h.IPID, got, want)
				}
			}
		}
	}
	if _, err := rocetest.ICRC(make([]byte, 60)); !errors.Is(err, rocetest.ErrFrame) {
		t.Errorf("zeros have an ICRC: %v", err)
	}
}
