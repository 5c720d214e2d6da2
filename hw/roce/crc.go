package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// leastFold is from how many bytes on fold is faster than hash/crc32.
const leastFold = 512

// update is the CRC register, not inverted, after b.
//
// Most of b is hash/crc32's. Two lengths are not: long payloads on a processor that can fold, since
// the standard library has one chain of multiplications and waits for each
// (docs/decisions/37-crc-by-folding.md); and what is left below 64 bytes, such as the extended
// headers of a packet without payload, which it takes byte by byte.
func update(crc uint32, b []byte) uint32 {
	if n := len(b) &^ 15; n >= 64 {
		if folds && n >= leastFold {
			n &^= 63
			lo, hi := fold(crc, b[:n])
			crc = words(uint32(lo), uint32(lo>>32), uint32(hi), uint32(hi>>32))
		} else {
			crc = ^crc32.Update(^crc, crc32.IEEETable, b[:n])
		}
		b = b[n:]
	}
	le := binary.LittleEndian
	for ; len(b) >= 16; b = b[16:] {
		crc = words(crc^le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]))
	}
	for ; len(b) >= 4; b = b[4:] {
		crc = change(0, crc^le.Uint32(b))
	}
	for _, v := range b { // none of a frame, which has pad
		crc = slicing[0][uint8(crc)^v] ^ crc>>8
	}
	return crc
}

// words is the register after four words, starting from 0.
func words(a, b, c, d uint32) uint32 {
	return change(12, a) ^ change(8, b) ^ change(4, c) ^ change(0, d)
}
