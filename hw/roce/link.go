package roce

import (
	"encoding/binary"
	"math/bits"
)

var be = binary.BigEndian

// Lengths in bytes of the headers below the transport, and their numbers.
const (
	EthernetLen = 14
	VLANLen     = 4
	IPv4Len     = 20 // without options, which RoCEv2 frames do not carry
	IPv6Len     = 40 // without extension headers
	UDPLen      = 8
	ICRCLen     = 4

	EtherTypeIPv4 = 0x0800
	EtherTypeIPv6 = 0x86DD
	EtherTypeVLAN = 0x8100 // IEEE 802.1Q C-tag
	ProtocolUDP   = 17
	UDPPort       = 4791 // destination port of RoCEv2 (IANA; annex A17)
)

// Ethernet is a view of an Ethernet II header.
//
//	0       6       12   14
//	+-------+-------+----+
//	|  dst  |  src  |type|
//	+-------+-------+----+
type Ethernet []byte

// Dst is the destination address.
func (b Ethernet) Dst() [6]byte { return [6]byte(b[0:6]) }

// Src is the source address.
func (b Ethernet) Src() [6]byte { return [6]byte(b[6:12]) }

// EtherType is the type field; of a tagged frame it is EtherTypeVLAN.
func (b Ethernet) EtherType() uint16 { return be.Uint16(b[12:]) }

// SetDst sets the destination address.
func (b Ethernet) SetDst(a [6]byte) { copy(b[0:6], a[:]) }

// SetSrc sets the source address.
func (b Ethernet) SetSrc(a [6]byte) { copy(b[6:12], a[:]) }

// SetEtherType sets the type field.
func (b Ethernet) SetEtherType(t uint16) { be.PutUint16(b[12:], t) }

// VLAN is a view of the four bytes that an 802.1Q tag puts behind the
// Ethernet header: tag control information and the type of what follows.
//
//	 3 bits 1   12 bits      16 bits
//	+-----+---+----------+------------+
//	| PCP |DEI|   VID    |    type    |
//	+-----+---+----------+------------+
type VLAN []byte

// Tag is the tag control information, with Valid set.
func (b VLAN) Tag() VLANTag {
	t := be.Uint16(b)
	return VLANTag{Valid: true, PCP: uint8(t >> 13), DEI: t&(1<<12) != 0, VID: t & 0xFFF}
}

// EtherType is the type of what follows the tag.
func (b VLAN) EtherType() uint16 { return be.Uint16(b[2:]) }

// SetTag sets the tag control information. Bits of PCP over 3 and of VID over
// 12 are dropped.
func (b VLAN) SetTag(t VLANTag) {
	v := uint16(t.PCP)<<13 | t.VID&0xFFF
	if t.DEI {
		v |= 1 << 12
	}
	be.PutUint16(b, v)
}

// SetEtherType sets the type of what follows the tag.
func (b VLAN) SetEtherType(t uint16) { be.PutUint16(b[2:], t) }

// VLANTag is the content of an 802.1Q tag. Not Valid: the frame is untagged.
type VLANTag struct {
	Valid bool
	PCP   uint8  // priority, 3 bits
	DEI   bool   // drop eligible
	VID   uint16 // VLAN identifier, 12 bits
}

// IPv4 is a view of an IPv4 header (RFC 791).
//
//	0        1        2        4        6          8     9     10       12     16     20
//	+--------+--------+--------+--------+----------+-----+-----+--------+------+------+
//	|ver,IHL |  TOS   | length |   ID   |flags,off.| TTL |proto|checksum| src  | dst  |
//	+--------+--------+--------+--------+----------+-----+-----+--------+------+------+
type IPv4 []byte

// IPv4DontFragment is the DF bit of IPv4.FlagsOffset.
const IPv4DontFragment = 0x4000

// Version is the version field, 4.
func (b IPv4) Version() uint8 { return b[0] >> 4 }

// IHL is the header's length in words of 32 bits; 5 has no options.
func (b IPv4) IHL() uint8 { return b[0] & 0xF }

// TOS is the type of service byte: DSCP and ECN.
func (b IPv4) TOS() uint8 { return b[1] }

// TotalLength is the length in bytes of the whole IP packet.
func (b IPv4) TotalLength() uint16 { return be.Uint16(b[2:]) }

// ID is the identification. The ICRC covers it.
func (b IPv4) ID() uint16 { return be.Uint16(b[4:]) }

// FlagsOffset is the flags (upper three bits) and the fragment offset.
func (b IPv4) FlagsOffset() uint16 { return be.Uint16(b[6:]) }

// TTL is the time to live.
func (b IPv4) TTL() uint8 { return b[8] }

// Protocol is the protocol number of what follows.
func (b IPv4) Protocol() uint8 { return b[9] }

// Checksum is the header checksum as stored.
func (b IPv4) Checksum() uint16 { return be.Uint16(b[10:]) }

// Src is the source address.
func (b IPv4) Src() [4]byte { return [4]byte(b[12:16]) }

// Dst is the destination address.
func (b IPv4) Dst() [4]byte { return [4]byte(b[16:20]) }

// SetVersionIHL sets version 4 and the header length in 32-bit words.
func (b IPv4) SetVersionIHL(ihl uint8) { b[0] = 4<<4 | ihl&0xF }

// SetTOS sets the type of service byte.
func (b IPv4) SetTOS(v uint8) { b[1] = v }

// SetTotalLength sets the length in bytes of the whole IP packet.
func (b IPv4) SetTotalLength(n uint16) { be.PutUint16(b[2:], n) }

// SetID sets the identification.
func (b IPv4) SetID(v uint16) { be.PutUint16(b[4:], v) }

// SetFlagsOffset sets flags and fragment offset.
func (b IPv4) SetFlagsOffset(v uint16) { be.PutUint16(b[6:], v) }

// SetTTL sets the time to live.
func (b IPv4) SetTTL(v uint8) { b[8] = v }

// SetProtocol sets the protocol number.
func (b IPv4) SetProtocol(v uint8) { b[9] = v }

// SetChecksum stores a header checksum as given.
func (b IPv4) SetChecksum(v uint16) { be.PutUint16(b[10:], v) }

// SetSrc sets the source address.
func (b IPv4) SetSrc(a [4]byte) { copy(b[12:16], a[:]) }

// SetDst sets the destination address.
func (b IPv4) SetDst(a [4]byte) { copy(b[16:20], a[:]) }

// words is the sum of the words of a header without options.
func (b IPv4) words() uint64 {
	_ = b[IPv4Len-1]
	return uint64(be.Uint32(b)) + uint64(be.Uint32(b[4:])) + uint64(be.Uint32(b[8:])) +
		uint64(be.Uint32(b[12:])) + uint64(be.Uint32(b[16:]))
}

// sum is the one's-complement sum of a header without options.
func (b IPv4) sum() uint16 { return foldSum(b.words()) }

// ChecksumOK reports whether the checksum of a header without options is right.
func (b IPv4) ChecksumOK() bool { return b.sum() == 0xFFFF }

// UpdateChecksum stores the right checksum for a header without options.
func (b IPv4) UpdateChecksum() {
	b.SetChecksum(0)
	b.SetChecksum(^b.sum())
}

// IPv6 is a view of an IPv6 header (RFC 8200).
//
//	0                      4        6      7      8       24      40
//	+----------------------+--------+------+------+-------+-------+
//	|ver, class, flow label| length | next |  hop |  src  |  dst  |
//	+----------------------+--------+------+------+-------+-------+
type IPv6 []byte

// Version is the version field, 6.
func (b IPv6) Version() uint8 { return b[0] >> 4 }

// TrafficClass is DSCP and ECN.
func (b IPv6) TrafficClass() uint8 { return uint8(be.Uint16(b) >> 4) }

// FlowLabel is the flow label, 20 bits.
func (b IPv6) FlowLabel() uint32 { return be.Uint32(b) & 0xFFFFF }

// PayloadLength is the length in bytes of what follows the header.
func (b IPv6) PayloadLength() uint16 { return be.Uint16(b[4:]) }

// NextHeader is the protocol number of what follows.
func (b IPv6) NextHeader() uint8 { return b[6] }

// HopLimit is the hop limit.
func (b IPv6) HopLimit() uint8 { return b[7] }

// Src is the source address.
func (b IPv6) Src() [16]byte { return [16]byte(b[8:24]) }

// Dst is the destination address.
func (b IPv6) Dst() [16]byte { return [16]byte(b[24:40]) }

// SetVersionClassFlow sets version 6, traffic class and flow label (20 bits).
func (b IPv6) SetVersionClassFlow(class uint8, flow uint32) {
	be.PutUint32(b, 6<<28|uint32(class)<<20|flow&0xFFFFF)
}

// SetPayloadLength sets the length in bytes of what follows the header.
func (b IPv6) SetPayloadLength(n uint16) { be.PutUint16(b[4:], n) }

// SetNextHeader sets the protocol number of what follows.
func (b IPv6) SetNextHeader(v uint8) { b[6] = v }

// SetHopLimit sets the hop limit.
func (b IPv6) SetHopLimit(v uint8) { b[7] = v }

// SetSrc sets the source address.
func (b IPv6) SetSrc(a [16]byte) { copy(b[8:24], a[:]) }

// SetDst sets the destination address.
func (b IPv6) SetDst(a [16]byte) { copy(b[24:40], a[:]) }

// UDP is a view of a UDP header (RFC 768).
//
//	0        2        4        6          8
//	+--------+--------+--------+----------+
//	|src port|dst port| length | checksum |
//	+--------+--------+--------+----------+
type UDP []byte

// SrcPort is the source port, which spreads flows over paths.
func (b UDP) SrcPort() uint16 { return be.Uint16(b) }

// DstPort is the destination port; UDPPort for RoCEv2.
func (b UDP) DstPort() uint16 { return be.Uint16(b[2:]) }

// Length is the length in bytes of UDP header and all behind it, ICRC included.
func (b UDP) Length() uint16 { return be.Uint16(b[4:]) }

// Checksum is the checksum as stored; zero means that there is none.
func (b UDP) Checksum() uint16 { return be.Uint16(b[6:]) }

// SetSrcPort sets the source port.
func (b UDP) SetSrcPort(v uint16) { be.PutUint16(b, v) }

// SetDstPort sets the destination port.
func (b UDP) SetDstPort(v uint16) { be.PutUint16(b[2:], v) }

// SetLength sets the length.
func (b UDP) SetLength(n uint16) { be.PutUint16(b[4:], n) }

// SetChecksum stores a checksum as given. RoCEv2 senders store zero.
func (b UDP) SetChecksum(v uint16) { be.PutUint16(b[6:], v) }

// foldSum reduces a sum of big-endian words to a one's-complement sum of 16 bits.
func foldSum(s uint64) uint16 {
	s = s>>32 + s&0xFFFFFFFF
	s = s>>16 + s&0xFFFF
	s = s>>16 + s&0xFFFF
	s = s>>16 + s&0xFFFF
	return uint16(s)
}

// onesSum adds b, read as big-endian words and padded with a zero byte, to s.
func onesSum(s uint64, b []byte) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		var c uint64
		s, c = bits.Add64(s, be.Uint64(b), 0)
		s += c
	}
	var last [8]byte
	copy(last[:], b)
	s, c := bits.Add64(s, be.Uint64(last[:]), 0)
	return s + c
}

// udpChecksumOK checks a nonzero UDP checksum over datagram, which starts at
// the UDP header, with the pseudo header of the two addresses (RFC 768, 8200).
func udpChecksumOK(addrs, datagram []byte) bool {
	s := onesSum(uint64(ProtocolUDP)+uint64(len(datagram)), addrs)
	return foldSum(onesSum(s, datagram)) == 0xFFFF
}
