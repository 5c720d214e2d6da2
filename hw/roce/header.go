package roce

import "fmt"

// Bounds of a header stack, in bytes.
const (
	// MaxHeaderLen is the longest that Header.Len can be: a tagged IPv6 frame
	// of an atomic request.
	MaxHeaderLen = EthernetLen + VLANLen + IPv6Len + UDPLen + BTHLen + AtomicETHLen

	// Headroom is room for any header stack that keeps a payload behind it as
	// aligned as the buffer is, up to 128 bytes.
	Headroom = 128

	// MaxMTU is the largest path MTU: the most payload of one packet.
	MaxMTU = 4096

	// MaxFrame is the longest frame with a payload of at most MaxMTU.
	MaxFrame = MaxHeaderLen + MaxMTU + ICRCLen
)

const _ = uint(Headroom - MaxHeaderLen)

// Header holds every field of a frame's headers that is not a constant, a
// length or a checksum. Fields wider here than on the wire use their lower
// bits. Only the extended headers that Opcode has are used.
type Header struct {
	DstMAC, SrcMAC [6]byte
	VLAN           VLANTag

	IPv6         bool     // else IPv4, and Src and Dst must be IPv4-mapped
	Src, Dst     [16]byte // GIDs; an IPv4 address is its IPv4-mapped IPv6 one
	TrafficClass uint8    // IPv4 TOS or IPv6 traffic class: DSCP and ECN
	HopLimit     uint8    // IPv4 TTL or IPv6 hop limit
	FlowLabel    uint32   // IPv6 only, 20 bits
	IPID         uint16   // IPv4 only: identification
	UDPSrcPort   uint16   // see SourcePort

	Opcode     Opcode
	SE         bool // solicited event
	MigReq     bool // migration request
	FECN, BECN bool
	AckReq     bool
	PKey       uint16
	DestQP     uint32 // 24 bits
	PSN        uint32 // 24 bits

	DETH      DETHFields
	RETH      RETHFields
	Atomic    AtomicETHFields
	AETH      AETHFields
	AtomicAck uint64 // original remote data
	Imm       uint32
	InvRKey   uint32 // IETH: the key to invalidate
}

// V4Mapped is the IPv4-mapped IPv6 form of an IPv4 address, ::ffff:a.b.c.d,
// which is also its GID (RFC 4291, 2.5.5.2; annex A17).
func V4Mapped(a [4]byte) [16]byte {
	return [16]byte{10: 0xFF, 11: 0xFF, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}

// Len is the length in bytes of the headers that Put writes, at most
// MaxHeaderLen.
func (h *Header) Len() int {
	n := EthernetLen + IPv4Len + UDPLen + BTHLen + h.Opcode.ExtLen()
	if h.VLAN.Valid {
		n += VLANLen
	}
	if h.IPv6 {
		n += IPv6Len - IPv4Len
	}
	return n
}

// FrameLen is the length in bytes of the whole frame with a payload of n
// bytes: headers, payload, pad and ICRC.
func (h *Header) FrameLen(n int) int { return h.Len() + (n+3)&^3 + ICRCLen }

// PutBefore writes the headers so that they end at buf[at], where a payload of
// n bytes begins, and gives where they start: at - Len(). Finish(buf[start:])
// then completes the frame. It panics as Put does, or if at < Len().
func (h *Header) PutBefore(buf []byte, at, n int) (start int) {
	start = at - h.Len()
	h.Put(buf[start:at], n)
	return start
}

// Put writes the headers in front of a payload of n bytes to the first Len()
// bytes of b: all lengths, the IPv4 checksum and the pad count included, UDP
// checksum zero, reserved fields zero. It returns Len(). Neither the payload
// nor what follows it is touched; Finish does that.
//
// It panics where a caller's mistake would make a frame that says something
// untrue: b is shorter than Len(), the opcode is not Valid or has no payload
// while n is not 0, or the lengths do not fit their 16 bits.
func (h *Header) Put(b []byte, n int) int {
	op := &opcodes[h.Opcode]
	udpLen := UDPLen + BTHLen + int(op.extLen) + (n+3)&^3 + ICRCLen
	if !op.valid || n < 0 || n > 0 && !op.payload || udpLen > 0xFFFF-IPv4Len {
		panic(fmt.Sprintf("roce: %v cannot carry %d bytes of payload", h.Opcode, n))
	}
	_ = b[h.Len()-1]

	etherType := uint16(EtherTypeIPv4)
	if h.IPv6 {
		etherType = EtherTypeIPv6
	}
	eth := Ethernet(b)
	eth.SetDst(h.DstMAC)
	eth.SetSrc(h.SrcMAC)
	i := EthernetLen
	if h.VLAN.Valid {
		eth.SetEtherType(EtherTypeVLAN)
		tag := VLAN(b[i:])
		tag.SetTag(h.VLAN)
		tag.SetEtherType(etherType)
		i += VLANLen
	} else {
		eth.SetEtherType(etherType)
	}

	if h.IPv6 {
		ip := IPv6(b[i : i+IPv6Len])
		ip.SetVersionClassFlow(h.TrafficClass, h.FlowLabel)
		ip.SetPayloadLength(uint16(udpLen))
		ip.SetNextHeader(ProtocolUDP)
		ip.SetHopLimit(h.HopLimit)
		ip.SetSrc(h.Src)
		ip.SetDst(h.Dst)
		i += IPv6Len
	} else {
		ip := IPv4(b[i : i+IPv4Len])
		ip.SetVersionIHL(IPv4Len / 4)
		ip.SetTOS(h.TrafficClass)
		ip.SetTotalLength(uint16(IPv4Len + udpLen))
		ip.SetID(h.IPID)
		ip.SetFlagsOffset(IPv4DontFragment)
		ip.SetTTL(h.HopLimit)
		ip.SetProtocol(ProtocolUDP)
		ip.SetSrc([4]byte(h.Src[12:]))
		ip.SetDst([4]byte(h.Dst[12:]))
		ip.UpdateChecksum()
		i += IPv4Len
	}

	udp := UDP(b[i : i+UDPLen])
	udp.SetSrcPort(h.UDPSrcPort)
	udp.SetDstPort(UDPPort)
	udp.SetLength(uint16(udpLen))
	udp.SetChecksum(0)
	i += UDPLen

	bth := BTH(b[i : i+BTHLen])
	bth.SetOpcode(h.Opcode)
	bth[1] = 0
	bth.SetSE(h.SE)
	bth.SetMigReq(h.MigReq)
	bth.SetPadCount(uint8(-n & 3))
	bth.SetPKey(h.PKey)
	bth[4] = 0
	bth.SetFECN(h.FECN)
	bth.SetBECN(h.BECN)
	bth.SetDestQP(h.DestQP)
	bth[8] = 0
	bth.SetAckReq(h.AckReq)
	bth.SetPSN(h.PSN)
	i += BTHLen

	return h.putExt(b, i, op.ext)
}

// putExt writes the extended headers at b[i:] and gives where they end.
func (h *Header) putExt(b []byte, i int, ext Ext) int {
	if ext&ExtDETH != 0 {
		DETH(b[i : i+DETHLen]).Encode(&h.DETH)
		i += DETHLen
	}
	if ext&ExtRETH != 0 {
		RETH(b[i : i+RETHLen]).Encode(&h.RETH)
		i += RETHLen
	}
	if ext&ExtAtomicETH != 0 {
		AtomicETH(b[i : i+AtomicETHLen]).Encode(&h.Atomic)
		i += AtomicETHLen
	}
	if ext&ExtAETH != 0 {
		AETH(b[i : i+AETHLen]).Encode(&h.AETH)
		i += AETHLen
	}
	if ext&ExtAtomicAckETH != 0 {
		AtomicAckETH(b[i : i+AtomicAckETHLen]).SetOrigRemoteData(h.AtomicAck)
		i += AtomicAckETHLen
	}
	if ext&ExtImmDt != 0 {
		ImmDt(b[i : i+ImmDtLen]).SetImm(h.Imm)
		i += ImmDtLen
	}
	if ext&ExtIETH != 0 {
		IETH(b[i : i+IETHLen]).SetRKey(h.InvRKey)
		i += IETHLen
	}
	return i
}

// Append appends the whole frame with a copy of payload to dst, and gives the
// longer slice. It panics as Put does. The hot path builds in place instead,
// with Flow.Frame.
func (h *Header) Append(dst, payload []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, h.FrameLen(len(payload)))...)
	frame := dst[at:]
	copy(frame[h.Put(frame, len(payload)):], payload)
	if _, err := Finish(frame); err != nil {
		panic(err) // Put wrote the headers that Finish reads
	}
	return dst
}
