#include "textflag.h"

// Constants of folding in the bit-reflected polynomial of IEEE 802.3 (V. Gopal et al., Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009): to move 128
// bits on by D bits, their low half is multiplied by x^(D+32) mod P and their high half by
// x^(D-32) mod P, each reflected and shifted left by one.
DATA by2048<>+0(SB)/8, $0x11542778a
DATA by2048<>+8(SB)/8, $0x1322d1430
GLOBL by2048<>(SB), RODATA, $16
DATA by512<>+0(SB)/8, $0x154442bd4
DATA by512<>+8(SB)/8, $0x1c6e41596
GLOBL by512<>(SB), RODATA, $16
DATA by128<>+0(SB)/8, $0x1751997d0
DATA by128<>+8(SB)/8, $0x0ccaa009e
GLOBL by128<>(SB), RODATA, $16

// FOLD moves acc on by what Z16 says, and adds next: acc = acc.low·k.low ^ acc.high·k.high ^ next.
#define FOLD(acc, next) \
	VPCLMULQDQ $0x00, Z16, acc, Z17 \
	VPCLMULQDQ $0x11, Z16, acc, acc \
	VPTERNLOGD $0x96, next, Z17, acc

// LANE does so with the lowest 128 bits of Z0, by what X16 says.
#define LANE(next) \
	VPCLMULQDQ $0x00, X16, X0, X17 \
	VPCLMULQDQ $0x11, X16, X0, X0 \
	VPTERNLOGD $0x96, next, X17, X0

// func fold(crc uint32, b []byte) (lo, hi uint64)
TEXT ·fold(SB), NOSPLIT, $0-48
	MOVL crc+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), CX

	// Four accumulators of 64 bytes: the multiplications do not wait for each other.
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD AX, X4
	VPXORQ Z4, Z0, Z0
	VBROADCASTI32X4 by2048<>(SB), Z16
	JMP next

wide:
	FOLD(Z0, 0(SI))
	FOLD(Z1, 64(SI))
	FOLD(Z2, 128(SI))
	FOLD(Z3, 192(SI))

next:
	ADDQ $256, SI
	SUBQ $256, CX
	CMPQ CX, $256
	JAE wide

	VBROADCASTI32X4 by512<>(SB), Z16
	FOLD(Z0, Z1)
	FOLD(Z0, Z2)
	FOLD(Z0, Z3)

narrow:
	SUBQ $64, CX
	JB lanes
	FOLD(Z0, 0(SI))
	ADDQ $64, SI
	JMP narrow

lanes:
	VMOVDQU64 by128<>(SB), X16
	VEXTRACTI32X4 $1, Z0, X1
	VEXTRACTI32X4 $2, Z0, X2
	VEXTRACTI32X4 $3, Z0, X3
	LANE(X1)
	LANE(X2)
	LANE(X3)
	VMOVQ X0, AX
	VPEXTRQ $1, X0, BX
	VZEROUPPER
	MOVQ AX, lo+32(FP)
	MOVQ BX, hi+40(FP)
	RET
