#include "textflag.h"

// func Store32(p *uint32, v uint32)
TEXT ·Store32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET

// func Load64(p *uint64) uint64
TEXT ·Load64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ (AX), AX
	MOVQ AX, ret+8(FP)
	RET

// func Store64(p *uint64, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX)
	RET

// func StoreLoad()
TEXT ·StoreLoad(SB), NOSPLIT, $8-0
	LOCK
	ADDL $0, 0(SP)
	RET

// func WriteCombineFlush()
TEXT ·WriteCombineFlush(SB), NOSPLIT, $0-0
	SFENCE
	RET
