// Package rocetest is the independent witness of a frame's ICRC and IPv4
// checksum: bit by bit and byte by byte from the words of the rules, slow, and
// sharing no code with package roce.
package rocetest

import (
	"errors"
	"fmt"
)

// ErrFrame says that a frame is not one whose ICRC is defined. Is of every
// error of this package.
var ErrFrame = errors.New("rocetest: not a RoCEv2 frame")

// crcBit takes one bit into a CRC-32 register (IEEE 802.3, reflected: the
// least significant bit of each byte is first).
func crcBit(crc uint32, bit byte) uint32 {
	out := byte(crc&1) ^ bit
	crc >>= 1
	if out == 1 {
		crc ^= 0xEDB88320
	}
	return crc
}

// bounds finds where the IP header of a frame starts, how long it is, and where
// the IP packet ends.
func bounds(frame []byte) (ip, header, end int, err error) {
	at := func(i int) int {
		if i >= len(frame) {
			err = fmt.Errorf("%w: it ends at byte %d", ErrFrame, len(frame))
			return 0
		}
		return int(frame[i])
	}
	ip = 14
	if at(12) == 0x81 && at(13) == 0x00 {
		ip = 18
	}
	switch kind := at(ip-2)<<8 | at(ip-1); kind {
	case 0x0800:
		header = at(ip) & 15 * 4
		end = ip + at(ip+2)*256 + at(ip+3)
	case 0x86DD:
		header = 40
		end = ip + 40 + at(ip+4)*256 + at(ip+5)
	default:
		return 0, 0, 0, fmt.Errorf("%w: type 0x%04x", ErrFrame, kind)
	}
	if err == nil && (end > len(frame) || end < ip+header+8+12+4) {
		err = fmt.Errorf("%w: its IP packet ends at byte %d of %d", ErrFrame, end, len(frame))
	}
	return ip, header, end, err
}

// ICRC is the invariant CRC that belongs to a frame, which starts at its
// Ethernet header: CRC-32 over eight bytes of ones, then every byte from the IP
// header to the byte before the ICRC, with each bit that may change on the way
// taken as one (InfiniBand annex A17).
func ICRC(frame []byte) (uint32, error) {
	ip, header, end, err := bounds(frame)
	if err != nil {
		return 0, err
	}
	ones := map[int]byte{} // offset in the frame: bits taken as one
	if frame[ip]>>4 == 4 {
		ones[ip+1] = 0xFF                     // TOS
		ones[ip+8] = 0xFF                     // TTL
		ones[ip+10], ones[ip+11] = 0xFF, 0xFF // header checksum
	} else {
		ones[ip] = 0x0F // traffic class, upper half
		ones[ip+1] = 0xFF
		ones[ip+2], ones[ip+3] = 0xFF, 0xFF // traffic class, lower half; flow label
		ones[ip+7] = 0xFF                   // hop limit
	}
	udp := ip + header
	ones[udp+6], ones[udp+7] = 0xFF, 0xFF // UDP checksum
	ones[udp+8+4] = 0xFF                  // FECN, BECN, reserved

	crc := ^uint32(0)
	for range 64 {
		crc = crcBit(crc, 1)
	}
	for i := ip; i < end-4; i++ {
		b := frame[i] | ones[i]
		for bit := range 8 {
			crc = crcBit(crc, b>>bit&1)
		}
	}
	return ^crc, nil
}

// Stored is the ICRC that stands in a frame, least significant byte first.
func Stored(frame []byte) (uint32, error) {
	_, _, end, err := bounds(frame)
	if err != nil {
		return 0, err
	}
	b := frame[end-4 : end]
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24, nil
}

// SetIPID writes an IPv4 identification into a frame, and then the header
// checksum and the ICRC that belong to it. A replay compares frames so, since
// the identification is an input of the sender's. On an IPv6 frame, which has
// none, it only writes the ICRC.
func SetIPID(frame []byte, id uint16) error {
	ip, header, end, err := bounds(frame)
	if err != nil {
		return err
	}
	if frame[ip]>>4 == 4 {
		frame[ip+4], frame[ip+5] = byte(id>>8), byte(id)
		frame[ip+10], frame[ip+11] = 0, 0
		sum := 0
		for i := ip; i < ip+header; i += 2 {
			sum += int(frame[i])<<8 | int(frame[i+1])
			sum = sum&0xFFFF + sum>>16 // the carry comes in again at the end
		}
		frame[ip+10], frame[ip+11] = ^byte(sum>>8), ^byte(sum)
	}
	crc, err := ICRC(frame)
	if err != nil {
		return err
	}
	for i := range 4 {
		frame[end-4+i] = byte(crc >> (8 * i))
	}
	return nil
}
