package roce

import "golang.org/x/sys/cpu"

// folds says whether this processor has what fold needs: multiplication without carries of
// 64 bytes at a time.
var folds = cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL

// fold shortens b, whose length is a multiple of 64 and at least 256, to 16 bytes that leave
// the same in a CRC register of 0 as b does in the register crc: lo, then hi, each with its first
// byte lowest.
//
//go:noescape
func fold(crc uint32, b []byte) (lo, hi uint64)
