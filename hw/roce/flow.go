package roce

import (
	"encoding/binary"
	"fmt"
)

// Flow is what the frames of one connection have in common: their headers from Ethernet to
// BTH, and what these add to the IPv4 checksum and to the ICRC, worked out once by Set. Frame
// then adds what differs from frame to frame, byte for byte as PutBefore and Finish would.
//
// A sum and a CRC allow that, both being linear: the parts are computed with zeros where the
// others have their bits, and joined.
type Flow struct {
	base [EthernetLen + VLANLen + IPv6Len + UDPLen + BTHLen]byte
	n    int    // bytes of base that count
	ip   int    // where in it the IP header starts
	v6   bool   // IPv6
	sum  uint64 // of the IPv4 header, not folded
	crc  uint32 // the CRC register behind the BTH, not inverted
}

// Set takes from h what its connection's frames have in common. All others of its fields
// (the opcode, SE, AckReq, PSN, the IP identification, the extended headers) are Frame's.
func (f *Flow) Set(h *Header) {
	o := *h
	o.Opcode, o.SE, o.AckReq, o.PSN, o.IPID = RCSendOnly, false, false, 0, 0
	*f = Flow{v6: h.IPv6, ip: EthernetLen}
	if h.VLAN.Valid {
		f.ip += VLANLen
	}
	f.n = o.Put(f.base[:], 0)
	f.base[f.n-BTHLen] = 0 // the opcode
	UDP(f.base[f.n-BTHLen-UDPLen:]).SetLength(0)
	if f.v6 {
		IPv6(f.base[f.ip:]).SetPayloadLength(0)
	} else {
		ip := IPv4(f.base[f.ip:])
		ip.SetTotalLength(0)
		ip.SetChecksum(0)
		f.sum = ip.words()
	}
	f.crc = headerCRC(f.base[f.ip:f.n], f.v6)
}

// Frame completes the frame whose payload of n bytes stands at buf[at]: headers in front, pad
// and ICRC behind. h is the header that Set was given, with the fields that differ set for this
// frame. It gives where the frame starts and ends, and panics where PutBefore does, or if buf
// has no room behind the payload.
func (f *Flow) Frame(buf []byte, at, n int, h *Header) (start, end int) {
	op := &opcodes[h.Opcode]
	udpLen := UDPLen + BTHLen + int(op.extLen) + (n+3)&^3 + ICRCLen
	if !op.valid || n < 0 || n > 0 && !op.payload || udpLen > 0xFFFF-IPv4Len {
		panic(fmt.Sprintf("roce: %v cannot carry %d bytes of payload", h.Opcode, n))
	}
	start, end = at-int(op.extLen)-f.n, at+(n+3)&^3+ICRCLen
	b := buf[start:end:end]
	copy(b, f.base[:f.n])

	u, id, psn := uint16(udpLen), h.IPID, h.PSN&PSNMask
	flags, ack := uint8(-n&3)<<4, uint32(0) // of BTH bytes 1 and 8
	if h.SE {
		flags |= 0x80
	}
	if h.AckReq {
		ack = 0x80
	}
	ip, bth := b[f.ip:], b[f.n-BTHLen:f.n]
	crc := f.crc
	if f.v6 {
		be.PutUint16(ip[4:], u)
		crc ^= slicing[55][u>>8] ^ slicing[54][u&0xFF]
	} else {
		total := u + IPv4Len
		be.PutUint16(ip[2:], total)
		be.PutUint16(ip[4:], id)
		be.PutUint16(ip[10:], ^foldSum(f.sum+uint64(total)+uint64(id)<<16))
		crc ^= slicing[37][total>>8] ^ slicing[36][total&0xFF] ^ slicing[35][id>>8] ^ slicing[34][id&0xFF]
	}
	be.PutUint16(b[f.n-BTHLen-UDPLen+4:], u)
	bth[0] = uint8(h.Opcode)
	bth[1] |= flags
	be.PutUint32(bth[8:], ack<<24|psn)
	crc ^= slicing[15][u>>8] ^ slicing[14][u&0xFF] ^ slicing[11][h.Opcode] ^ slicing[10][flags]
	crc ^= slicing[3][ack] ^ slicing[2][psn>>16] ^ slicing[1][psn>>8&0xFF] ^ slicing[0][psn&0xFF]

	if op.extLen != 0 {
		h.putExt(b, f.n, op.ext)
	}
	last := len(b) - ICRCLen
	for i := last - -n&3; i < last; i++ {
		b[i] = 0
	}
	binary.LittleEndian.PutUint32(b[last:], ^update(crc, b[f.n:last]))
	return start, end
}

// FrameLen is the length in bytes of the whole frame of an opcode with a payload of n bytes.
func (f *Flow) FrameLen(op Opcode, n int) int {
	return f.n + op.ExtLen() + (n+3)&^3 + ICRCLen
}

// Answers reports whether a received frame has the flow's addresses, the other way round.
func (f *Flow) Answers(p *Packet) bool {
	if p.v6 != f.v6 {
		return false
	}
	own, got := f.base[f.ip:], p.frame[p.ip:]
	if f.v6 {
		return [16]byte(got[8:24]) == [16]byte(own[24:40]) && [16]byte(got[24:40]) == [16]byte(own[8:24])
	}
	return be.Uint32(got[12:]) == be.Uint32(own[16:]) && be.Uint32(got[16:]) == be.Uint32(own[12:])
}
