package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// The ICRC (annex A17) is CRC-32 of IEEE 802.3 over eight bytes of ones, which
// stand for InfiniBand's local route header, then IP, UDP and BTH headers and
// all that follows up to the ICRC itself. What may change on the way counts as
// ones: IPv4 TOS, TTL and header checksum, or IPv6 traffic class, flow label
// and hop limit; the UDP checksum; byte 4 of the BTH (FECN, BECN, reserved).
// It is stored least significant byte first. The IPv4 identification counts.
//
// Headers are taken as masked words in registers, each with tables of its own, and the
// rest where it lies (update): hash/crc32's Update makes any buffer escape, so
// that a masked copy of the headers would be an allocation for each frame, and
// masking the frame itself would show wrong bytes to its other readers.

// icrcSeed is the CRC register after the eight bytes of ones, not inverted.
const icrcSeed = 0xDEBB20E3

// slicing[i][b] is the CRC register's change from byte b followed by i zero
// bytes. There is one for each byte of the longest headers: the words of a header
// are then looked up independently, and none waits for the one before it.
var slicing = func() (t [IPv6Len + UDPLen + BTHLen]crc32.Table) {
	t[0] = *crc32.IEEETable
	for i := 1; i < len(t); i++ {
		for b, v := range t[i-1] {
			t[i][b] = t[0][v&0xFF] ^ v>>8
		}
	}
	return t
}()

// change is the register's change from the four bytes of w, the first being the low
// one, that i zero bytes follow.
func change(i int, w uint32) uint32 {
	t := (*[4]crc32.Table)(slicing[i:])
	return t[3][w&0xFF] ^ t[2][w>>8&0xFF] ^ t[1][w>>16&0xFF] ^ t[0][w>>24]
}

// headerCRC is the CRC register, not inverted, behind the IP, UDP and BTH headers h.
func headerCRC(h []byte, v6 bool) (crc uint32) {
	le := binary.LittleEndian
	if v6 {
		h = h[:IPv6Len+UDPLen+BTHLen]
		crc = change(56, (le.Uint32(h[0:])|0xFFFF_FF0F)^icrcSeed) // class, flow label
		crc ^= change(52, le.Uint32(h[4:])|0xFF00_0000)           // hop limit
		crc ^= change(48, le.Uint32(h[8:])) ^ change(44, le.Uint32(h[12:]))
		crc ^= change(40, le.Uint32(h[16:])) ^ change(36, le.Uint32(h[20:]))
		crc ^= change(32, le.Uint32(h[24:])) ^ change(28, le.Uint32(h[28:]))
		crc ^= change(24, le.Uint32(h[32:])) ^ change(20, le.Uint32(h[36:]))
		crc ^= change(16, le.Uint32(h[40:])) ^ change(12, le.Uint32(h[44:])|0xFFFF_0000) // UDP checksum
		crc ^= change(8, le.Uint32(h[48:])) ^ change(4, le.Uint32(h[52:])|0x0000_00FF)   // BTH byte 4
		return crc ^ change(0, le.Uint32(h[56:]))
	}
	h = h[:IPv4Len+UDPLen+BTHLen]
	crc = change(36, (le.Uint32(h[0:])|0x0000_FF00)^icrcSeed) // TOS
	crc ^= change(32, le.Uint32(h[4:]))
	crc ^= change(28, le.Uint32(h[8:])|0xFFFF_00FF) // TTL, checksum
	crc ^= change(24, le.Uint32(h[12:])) ^ change(20, le.Uint32(h[16:]))
	crc ^= change(16, le.Uint32(h[20:])) ^ change(12, le.Uint32(h[24:])|0xFFFF_0000) // UDP checksum
	crc ^= change(8, le.Uint32(h[28:])) ^ change(4, le.Uint32(h[32:])|0x0000_00FF)   // BTH byte 4
	return crc ^ change(0, le.Uint32(h[36:]))
}

// icrc is the ICRC of a packet whose IP header starts at b[0] and which ends
// with the payload and its pad at the end of b.
func icrc(b []byte, v6 bool) uint32 {
	n := IPv4Len + UDPLen + BTHLen
	if v6 {
		n = IPv6Len + UDPLen + BTHLen
	}
	return ^update(headerCRC(b, v6), b[n:])
}

// ICRC computes the ICRC that belongs to a frame, whatever its last four bytes
// hold. The error is a ParseError: the frame's IP or UDP header is not of a
// RoCEv2 frame of this length.
func ICRC(frame []byte) (uint32, error) {
	l, e := locate(frame)
	if e != 0 {
		return 0, e
	}
	return icrc(frame[l.ip:l.end-ICRCLen], l.v6), nil
}

// CheckICRC reports whether the stored ICRC of a frame is right: nil, ErrICRC,
// or another ParseError as ICRC gives.
func CheckICRC(frame []byte) error {
	l, e := locate(frame)
	if e != 0 {
		return e
	}
	if !l.icrcOK(frame) {
		return ErrICRC
	}
	return nil
}

// Finish completes the frame at the start of b, where headers by Put and then
// the payload stand: it writes the pad bytes as zeros and the ICRC, and
// returns the frame, which is as long as its headers say. The error is a
// ParseError: b holds no such headers, or is too short for the frame.
func Finish(b []byte) ([]byte, error) {
	l, e := locate(b)
	if e != 0 {
		return nil, e
	}
	at := l.end - ICRCLen
	pad := int(BTH(b[l.bth:]).PadCount())
	if at-pad < l.bth+BTHLen {
		return nil, ErrLength
	}
	clear(b[at-pad : at])
	binary.LittleEndian.PutUint32(b[at:], icrc(b[l.ip:at], l.v6))
	return b[:l.end:l.end], nil
}
