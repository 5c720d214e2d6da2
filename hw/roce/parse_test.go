package roce_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"rnic/hw/roce"
	"rnic/hw/roce/rocetest"
)

var opcodes = []roce.Opcode{
	roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendLastImm, roce.RCSendOnly, roce.RCSendOnlyImm,
	roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteLastImm, roce.RCWriteOnly, roce.RCWriteOnlyImm,
	roce.RCReadRequest, roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast, roce.RCReadResponseOnly,
	roce.RCAcknowledge, roce.RCAtomicAcknowledge, roce.RCCompareSwap, roce.RCFetchAdd, roce.RCSendLastInv, roce.RCSendOnlyInv,
	roce.UCSendFirst, roce.UCSendMiddle, roce.UCSendLast, roce.UCSendLastImm, roce.UCSendOnly, roce.UCSendOnlyImm,
	roce.UCWriteFirst, roce.UCWriteMiddle, roce.UCWriteLast, roce.UCWriteLastImm, roce.UCWriteOnly, roce.UCWriteOnlyImm,
	roce.UDSendOnly, roce.UDSendOnlyImm, roce.CNP,
}

// randomHeader is a header with every field that the wire has for its opcode
// and IP version drawn at random, and a length of payload that fits.
func randomHeader(r *rand.Rand, op roce.Opcode, v6, vlan bool) (roce.Header, int) {
	h := roce.Header{
		IPv6: v6, TrafficClass: uint8(r.Uint32()), HopLimit: uint8(r.Uint32()), UDPSrcPort: uint16(r.Uint32()),
		Opcode: op, SE: r.IntN(2) == 0, MigReq: r.IntN(2) == 0, FECN: r.IntN(2) == 0, BECN: r.IntN(2) == 0,
		AckReq: r.IntN(2) == 0, PKey: uint16(r.Uint32()), DestQP: r.Uint32() >> 8, PSN: r.Uint32() >> 8,
	}
	binary.BigEndian.PutUint32(h.DstMAC[2:], r.Uint32())
	binary.BigEndian.PutUint32(h.SrcMAC[1:], r.Uint32())
	if vlan {
		h.VLAN = roce.VLANTag{Valid: true, PCP: uint8(r.IntN(8)), DEI: r.IntN(2) == 0, VID: uint16(r.IntN(4096))}
	}
	a, b := r.Uint64(), r.Uint64()
	if v6 {
		binary.BigEndian.PutUint64(h.Src[:], a)
		binary.BigEndian.PutUint64(h.Src[8:], ^a)
		binary.BigEndian.PutUint64(h.Dst[:], b)
		binary.BigEndian.PutUint64(h.Dst[8:], ^b)
		h.FlowLabel = r.Uint32() >> 12
	} else {
		h.Src = roce.V4Mapped([4]byte{byte(a), byte(a >> 8), byte(a >> 16), byte(a >> 24)})
		h.Dst = roce.V4Mapped([4]byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
		h.IPID = uint16(r.Uint32())
	}
	if op.Has(roce.ExtDETH) {
		h.DETH = roce.DETHFields{QKey: r.Uint32(), SrcQP: r.Uint32() >> 8}
	}
	if op.Has(roce.ExtRETH) {
		h.RETH = roce.RETHFields{VA: r.Uint64(), RKey: r.Uint32(), DMALen: r.Uint32()}
	}
	if op.Has(roce.ExtAtomicETH) {
		h.Atomic = roce.AtomicETHFields{VA: r.Uint64(), RKey: r.Uint32(), SwapAdd: r.Uint64(), Compare: r.Uint64()}
	}
	if op.Has(roce.ExtAETH) {
		h.AETH = roce.AETHFields{Syndrome: roce.Syndrome(r.Uint32()), MSN: r.Uint32() >> 8}
	}
	if op.Has(roce.ExtAtomicAckETH) {
		h.AtomicAck = r.Uint64()
	}
	if op.Has(roce.ExtImmDt) {
		h.Imm = r.Uint32()
	}
	if op.Has(roce.ExtIETH) {
		h.InvRKey = r.Uint32()
	}
	switch {
	case op == roce.CNP:
		return h, roce.CNPPayload
	case op.HasPayload():
		return h, r.IntN(300)
	}
	return h, 0
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestBuildParse builds every opcode over IPv4 and IPv6, tagged and not, and
// gets back what it put in; the witness agrees about the ICRC.
func TestBuildParse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, op := range opcodes {
		for i := range 40 {
			h, n := randomHeader(r, op, i&1 == 0, i&2 == 0)
			payload := randomBytes(r, n)
			frame := h.Append([]byte{1, 2, 3}, payload)[3:] // at an odd place
			checkICRC(t, frame, true)
			if len(frame) != h.FrameLen(n) || h.Len() > roce.MaxHeaderLen {
				t.Fatalf("%v: %d bytes, FrameLen says %d", op, len(frame), h.FrameLen(n))
			}
			var p roce.Packet
			if err := roce.Parse(frame, &p); err != nil {
				t.Fatalf("%v: %v", op, err)
			}
			var back roce.Header
			p.Header(&back)
			if d := cmp.Diff(h, back); d != "" {
				t.Fatalf("%v (-built +parsed):\n%s", op, d)
			}
			if g := p.DstGID(); !p.SentTo(&g) {
				t.Fatalf("%v: not sent to its GID", op)
			}
			if g := p.SrcGID(); p.SentTo(&g) {
				t.Fatalf("%v: sent to where it comes from", op)
			}
			if !bytes.Equal(p.Payload(), payload) || len(p.Trailer()) != 0 {
				t.Fatalf("%v: payload %x, want %x", op, p.Payload(), payload)
			}
		}
	}
}

// TestG14_Flow builds the frames of a connection from what they have in common, each as if alone.
func TestG14_Flow(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for i := range 40 {
		h, _ := randomHeader(r, roce.RCSendOnly, i&1 == 0, i&2 == 0)
		var f roce.Flow
		first, _ := randomHeader(r, opcodes[i%len(opcodes)], true, true)
		f.Set(&first) // of a connection before, in the same place
		f.Set(&h)
		for _, op := range opcodes {
			own, n := randomHeader(r, op, h.IPv6, h.VLAN.Valid)
			h.Opcode, h.SE, h.AckReq, h.PSN, h.IPID = op, own.SE, own.AckReq, own.PSN, own.IPID
			h.DETH, h.RETH, h.Atomic, h.AETH, h.AtomicAck, h.Imm, h.InvRKey = own.DETH, own.RETH, own.Atomic, own.AETH, own.AtomicAck, own.Imm, own.InvRKey
			payload := randomBytes(r, n)
			buf := randomBytes(r, roce.Headroom+roce.MaxMTU) // what a used slot holds
			copy(buf[roce.Headroom:], payload)
			start, end := f.Frame(buf, roce.Headroom, n, &h)
			checkICRC(t, buf[start:end], true)
			answer, to, from := h, h.Src, h.Dst
			answer.Src, answer.Dst = from, to
			var p roce.Packet
			for i, x := range []roce.Header{answer, h} {
				if err := roce.Parse(x.Append(nil, payload), &p); err != nil || f.Answers(&p) != (i == 0) {
					t.Fatalf("%v: Answers of frame %d is %v, %v", op, i, f.Answers(&p), err)
				}
			}
			if want := h.Append(nil, payload); !bytes.Equal(buf[start:end], want) {
				t.Fatalf("%v: of the flow\n%x\nappended\n%x", op, buf[start:end], want)
			}
		}
	}
}

// TestPutBefore builds in place around a payload that never moves.
func TestPutBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, op := range opcodes {
		h, n := randomHeader(r, op, true, true)
		payload := randomBytes(r, n)
		buf := randomBytes(r, roce.Headroom+roce.MaxMTU) // what a used slot holds
		copy(buf[roce.Headroom:], payload)
		start := h.PutBefore(buf, roce.Headroom, n)
		frame, err := roce.Finish(buf[start:])
		if err != nil {
			t.Fatalf("%v: %v", op, err)
		}
		if want := h.Append(nil, payload); !bytes.Equal(frame, want) {
			t.Fatalf("%v: in place\n%x\nappended\n%x", op, frame, want)
		}
	}
}

// TestLayersAgree compares the layers below the transport with gopacket's
// decode, of tagged and untagged frames over IPv4 and IPv6.
func TestLayersAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 400 {
		op := opcodes[i%len(opcodes)]
		h, n := randomHeader(r, op, i&1 == 0, i&2 == 0)
		frame := h.Append(nil, randomBytes(r, n))
		pkt := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		if e := pkt.ErrorLayer(); e != nil {
			t.Fatalf("gopacket: %v\n%x", e.Error(), frame)
		}
		eth := pkt.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		if !bytes.Equal(eth.DstMAC, h.DstMAC[:]) || !bytes.Equal(eth.SrcMAC, h.SrcMAC[:]) {
			t.Fatalf("gopacket: %v", eth)
		}
		tag, tagged := pkt.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q)
		if tagged != h.VLAN.Valid {
			t.Fatalf("gopacket sees a tag: %v, built: %v", tagged, h.VLAN)
		}
		if tagged {
			got := roce.VLANTag{Valid: true, PCP: tag.Priority, DEI: tag.DropEligible, VID: tag.VLANIdentifier}
			if got != h.VLAN {
				t.Fatalf("gopacket: %+v, built %+v", got, h.VLAN)
			}
		}
		if h.IPv6 {
			ip := pkt.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
			if !ip.SrcIP.Equal(h.Src[:]) || !ip.DstIP.Equal(h.Dst[:]) || ip.TrafficClass != h.TrafficClass ||
				ip.FlowLabel != h.FlowLabel || ip.HopLimit != h.HopLimit {
				t.Fatalf("gopacket: %+v\nbuilt: %+v", ip, h)
			}
		} else {
			ip := pkt.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
			if !ip.SrcIP.Equal(net.IP(h.Src[:])) || !ip.DstIP.Equal(net.IP(h.Dst[:])) || ip.TOS != h.TrafficClass ||
				ip.Id != h.IPID || ip.TTL != h.HopLimit || ip.Flags != layers.IPv4DontFragment {
				t.Fatalf("gopacket: %+v\nbuilt: %+v", ip, h)
			}
		}
		udp := pkt.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if uint16(udp.SrcPort) != h.UDPSrcPort || udp.DstPort != 4791 || int(udp.Length) != 8+len(udp.Payload) {
			t.Fatalf("gopacket: %+v", udp)
		}

		// The other way: gopacket writes the same layers with its checksums,
		// a UDP one too, and Parse takes them.
		parse(t, reserialize(t, pkt, udp), nil)
	}
}

// reserialize writes a packet's layers by gopacket, with the UDP checksum that
// our frames leave out.
func reserialize(t *testing.T, pkt gopacket.Packet, udp *layers.UDP) []byte {
	t.Helper()
	var ls []gopacket.SerializableLayer
	for _, l := range pkt.Layers() {
		if s, ok := l.(gopacket.SerializableLayer); ok && l.LayerType() != gopacket.LayerTypePayload {
			ls = append(ls, s)
		}
	}
	var err error
	if ip := pkt.Layer(layers.LayerTypeIPv6); ip != nil {
		err = udp.SetNetworkLayerForChecksum(ip.(*layers.IPv6))
	} else {
		err = udp.SetNetworkLayerForChecksum(pkt.Layer(layers.LayerTypeIPv4).(*layers.IPv4))
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	ls = append(ls, gopacket.Payload(udp.Payload))
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func parse(t *testing.T, frame []byte, want error) {
	t.Helper()
	if err := roce.Parse(frame, new(roce.Packet)); !errors.Is(err, want) {
		t.Fatalf("Parse = %v, want %v\n%x", err, want, frame)
	}
}

// seal makes the IPv4 checksum and the ICRC of an altered frame right again, so
// that only the alteration is wrong.
func seal(t *testing.T, frame []byte) []byte {
	t.Helper()
	id := uint16(0)
	if frame[12] == 0x08 && frame[13] == 0 {
		id = binary.BigEndian.Uint16(frame[18:])
	}
	if err := rocetest.SetIPID(frame, id); err != nil {
		t.Fatal(err)
	}
	return frame
}

// TestParseRefuses breaks one thing at a time and expects its reason.
func TestParseRefuses(t *testing.T) {
	const ip4, udp4, bth4 = 14, 34, 42
	h := roce.Header{
		Src: roce.V4Mapped([4]byte{10, 0, 0, 1}), Dst: roce.V4Mapped([4]byte{10, 0, 0, 2}), HopLimit: 64,
		UDPSrcPort: 0xC001, Opcode: roce.RCSendOnly, PKey: 0xFFFF, DestQP: 17, PSN: 5,
	}
	h6 := h
	h6.IPv6 = true
	h6.Src[0], h6.Dst[0] = 0xFD, 0xFD
	tagged := h
	tagged.VLAN.Valid = true
	v4 := func() []byte { return h.Append(nil, []byte("payload")) } // 7 bytes and 1 of pad
	v6 := func() []byte { return h6.Append(nil, []byte("payload")) }
	op := func(o roce.Opcode, n int) []byte { // n bytes behind the BTH, pad 0
		f := h.Append(nil, make([]byte, n))
		f[bth4] = byte(o)
		return f
	}
	lengths := func(f []byte, by int) []byte { // IP and UDP length changed alike
		binary.BigEndian.PutUint16(f[ip4+2:], uint16(int(binary.BigEndian.Uint16(f[ip4+2:]))+by))
		binary.BigEndian.PutUint16(f[udp4+4:], uint16(int(binary.BigEndian.Uint16(f[udp4+4:]))+by))
		return f
	}
	set := func(f []byte, i int, b ...byte) []byte { copy(f[i:], b); return f }
	fix := func(f []byte) []byte { return seal(t, f) }

	for _, c := range []struct {
		name  string
		frame []byte
		want  error
	}{
		{"v4 sound", v4(), nil},
		{"v6 sound", v6(), nil},
		{"trailer", append(v4(), 1, 2, 3), nil},
		{"ECN marked on the way", set(v4(), bth4+4, 0x80), nil},
		{"pad not zero", fix(set(v4(), bth4+12+7, 0xAA)), nil},
		{"reserved bits set", fix(set(v4(), bth4+8, 0x7F)), nil},
		{"reserved IPv4 flag", fix(set(v4(), ip4+6, 0xC0)), nil},
		{"empty", nil, roce.ErrTruncated},
		{"ARP", set(v4(), 12, 0x08, 0x06), roce.ErrNotRoCE},
		{"RoCEv1", set(v4(), 12, 0x89, 0x15), roce.ErrNotRoCE},
		{"two tags", set(tagged.Append(nil, nil), 16, 0x81, 0x00), roce.ErrNotRoCE},
		{"IPv6 as IPv4", set(v4(), 12, 0x86, 0xDD), roce.ErrIPHeader},
		{"IPv4 as IPv6", set(v6(), 12, 0x08, 0x00), roce.ErrIPHeader},
		{"IPv4 options", set(v4(), ip4, 0x46), roce.ErrIPHeader},
		{"IHL 4", set(v4(), ip4, 0x44), roce.ErrIPHeader},
		{"IPv6 hop-by-hop", set(v6(), ip4+6, 0), roce.ErrNotRoCE},
		{"TCP", set(v4(), ip4+9, 6), roce.ErrNotRoCE},
		{"another port", set(v4(), udp4+2, 0x12, 0xB8), roce.ErrNotRoCE},
		{"more fragments", fix(set(v4(), ip4+6, 0x20)), roce.ErrFragment},
		{"fragment offset", fix(set(v4(), ip4+7, 1)), roce.ErrFragment},
		{"IPv4 checksum", set(v4(), ip4+10, v4()[ip4+10]^1), roce.ErrIPChecksum},
		{"TTL without checksum", set(v4(), ip4+8, 63), roce.ErrIPChecksum},
		{"IPv4 longer than frame", fix2(lengths(v4(), 4)), roce.ErrTruncated},
		{"IPv6 longer than frame", v6()[:len(v6())-1], roce.ErrTruncated},
		{"UDP shorter than IP", fix(set(v4(), udp4+5, 8)), roce.ErrLength},
		{"IPv6 length 0", set(v6(), ip4+4, 0, 0), roce.ErrLength},
		{"no room for ICRC", fix2(lengths(h.Append(nil, nil), -4)), roce.ErrLength},
		{"IP length under its header", fix2(set(v4(), ip4+2, 0, 19)), roce.ErrLength},
		{"UDP checksum", set(v4(), udp4+6, 0x12, 0x34), roce.ErrUDPChecksum},
		{"UDP checksum v6", set(v6(), udp4+20+6, 0x12, 0x34), roce.ErrUDPChecksum},
		{"payload bit", set(v4(), bth4+12, 'P'), roce.ErrICRC},
		{"ICRC bit", set(v4(), len(v4())-1, v4()[len(v4())-1]^0x80), roce.ErrICRC},
		{"opcode and no ICRC", set(v4(), bth4, 0xFF), roce.ErrICRC},
		{"TVer", fix(set(v4(), bth4+1, 0x11)), roce.ErrTVer},
		{"reserved RC", fix(op(0x15, 8)), roce.ErrOpcode},
		{"RD", fix(op(0x44, 8)), roce.ErrOpcode},
		{"XRC", fix(op(0xA4, 8)), roce.ErrOpcode},
		{"UD first", fix(op(0x60, 8)), roce.ErrOpcode},
		{"pad more than room", fix(set(h.Append(nil, nil), bth4+1, 0x10)), roce.ErrLength},
		{"odd length", fix2(append(lengths(v4(), 1), 0)), roce.ErrLength},
		{"no room for RETH", fix(op(roce.RCWriteOnly, 12)), roce.ErrLength},
		{"room for RETH", fix(op(roce.RCWriteOnly, 16)), nil},
		{"no room for RETH and ImmDt", fix(op(roce.RCWriteOnlyImm, 16)), roce.ErrLength},
		{"no room for AtomicETH", fix(op(roce.RCFetchAdd, 24)), roce.ErrLength},
		{"payload behind AtomicETH", fix(op(roce.RCFetchAdd, 32)), roce.ErrLength},
		{"payload behind READ request", fix(op(roce.RCReadRequest, 20)), roce.ErrLength},
		{"payload behind ACK", fix(op(roce.RCAcknowledge, 8)), roce.ErrLength},
		{"pad behind ACK", fix(set(op(roce.RCAcknowledge, 4), bth4+1, 0x10)), roce.ErrLength},
		{"CNP", fix(op(roce.CNP, 16)), nil},
		{"short CNP", fix(op(roce.CNP, 12)), roce.ErrLength},
		{"padded CNP", fix(set(op(roce.CNP, 16), bth4+1, 0x10)), roce.ErrLength},
	} {
		t.Run(c.name, func(t *testing.T) { parse(t, c.frame, c.want) })
	}
	// Cut anywhere, every frame is refused as truncated.
	for _, f := range [][]byte{v4(), v6(), tagged.Append(nil, []byte("payload"))} {
		for n := range f {
			parse(t, f[:n:n], roce.ErrTruncated)
		}
	}
}

// fix2 makes the checksum of an IPv4 header right whose lengths are not.
func fix2(f []byte) []byte {
	f[24], f[25] = 0, 0
	var s uint32
	for i := 14; i < 34; i += 2 {
		s += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	for s > 0xFFFF {
		s = s>>16 + s&0xFFFF
	}
	binary.BigEndian.PutUint16(f[24:], ^uint16(s))
	if len(f) > 60 && int(binary.BigEndian.Uint16(f[16:]))+14 == len(f) {
		if crc, err := rocetest.ICRC(f); err == nil {
			binary.LittleEndian.PutUint32(f[len(f)-4:], crc)
		}
	}
	return f
}

// TestEveryBitIsCovered flips each bit of recorded frames: Parse must refuse
// all but those that may change on the way, and those of the Ethernet header
// that make no other frame of it.
func TestEveryBitIsCovered(t *testing.T) {
	for _, name := range []string{"b_send_00001", "f_fetch_add", "m_ipv6_send", "k_ud_send"} {
		frame := pcapFrames(t, filepath.Join(goldenDir, name, "capture.pcap"))[0]
		udp := 34
		free := map[int]byte{} // bits that the ICRC leaves out and no other check holds
		if frame[12] == 0x86 {
			udp = 54
			free[14], free[15], free[16], free[17], free[21] = 0x0F, 0xFF, 0xFF, 0xFF, 0xFF
		}
		for i := range 12 {
			free[i] = 0xFF
		}
		free[udp+8+4] = 0xFF
		for i := range frame {
			for b := range 8 {
				m := byte(1) << b
				frame[i] ^= m
				err := roce.Parse(frame, new(roce.Packet))
				if ok := free[i]&m != 0; (err == nil) != ok {
					t.Errorf("%s: byte %d bit %d flipped: %v", name, i, b, err)
				}
				frame[i] ^= m
			}
		}
	}
}

// TestPutPanics: a caller's mistake does not become a frame.
func TestPutPanics(t *testing.T) {
	for _, c := range []struct {
		op   roce.Opcode
		n    int
		room int
	}{
		{roce.RCReadRequest, 1, 200},
		{roce.RCAcknowledge, 4, 200},
		{0x15, 0, 200},
		{roce.RCSendOnly, -1, 200},
		{roce.RCSendOnly, 65536, 200},
		{roce.RCSendOnly, 0, 53},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			h := roce.Header{Opcode: c.op}
			h.Put(make([]byte, c.room), c.n)
		})
	}
}

// TestFinishRefuses: what is no header stack, or has no room, is not sealed.
func TestFinishRefuses(t *testing.T) {
	h := roce.Header{Opcode: roce.RCSendOnly}
	buf := make([]byte, h.FrameLen(5))
	h.Put(buf, 5)
	if _, err := roce.Finish(buf[:len(buf)-1]); err != roce.ErrTruncated {
		t.Errorf("a byte too short: %v", err)
	}
	if _, err := roce.Finish(make([]byte, 100)); err != roce.ErrNotRoCE {
		t.Errorf("zeros: %v", err)
	}
	h.Put(buf, 0)
	roce.BTH(buf[42:]).SetPadCount(3)
	if _, err := roce.Finish(buf); err != roce.ErrLength {
		t.Errorf("pad without payload: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range scenarios(f) {
		frames := pcapFrames(f, filepath.Join(s.dir, "capture.pcap"))
		for i := 0; i < len(frames) && i < 3; i++ {
			f.Add(frames[i])
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		frame := bytes.Clone(in)
		// A fuzzer does not find CRCs: half of what it makes is sealed first.
		if len(in) > 0 && in[len(in)-1]&1 == 0 {
			if _, err := rocetest.Stored(frame); err == nil {
				seal4(frame)
			}
		}
		keep := bytes.Clone(frame)
		var p roce.Packet
		err := roce.Parse(frame, &p)
		if !bytes.Equal(frame, keep) {
			t.Fatal("Parse wrote to the frame")
		}
		if (roce.Decode(frame, new(roce.Packet)) == nil && roce.CheckICRC(frame) == nil) != (err == nil) {
			t.Fatalf("Parse = %v, Decode and CheckICRC differ", err)
		}
		if err != nil {
			var e roce.ParseError
			if !errors.As(err, &e) || e == 0 || int(e) >= roce.NumParseErrors {
				t.Fatalf("untyped error %#v", err)
			}
			return
		}
		if crc, err := rocetest.ICRC(frame); err != nil || crc != p.ICRC() {
			t.Fatalf("taken with ICRC 0x%08x, the witness says 0x%08x, %v", p.ICRC(), crc, err)
		}
		// Parse, build, parse: the same fields and payload.
		var h, h2 roce.Header
		p.Header(&h)
		built := h.Append(nil, p.Payload())
		var p2 roce.Packet
		if err := roce.Parse(built, &p2); err != nil {
			t.Fatalf("what was built from it is refused: %v\n%x\n%x", err, frame, built)
		}
		p2.Header(&h2)
		if h != h2 || !bytes.Equal(p.Payload(), p2.Payload()) || len(p.Pad()) != len(p2.Pad()) {
			t.Fatalf("round trip:\n%+v\n%+v", h, h2)
		}
	})
}

// seal4 makes checksum and ICRC right where the witness finds a frame.
func seal4(frame []byte) {
	at := 18
	if frame[12] == 0x81 && frame[13] == 0 {
		at = 22
	}
	_ = rocetest.SetIPID(frame, binary.BigEndian.Uint16(frame[at:]))
}
