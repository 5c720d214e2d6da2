//go:build !race

#include "textflag.h"

// func Release32(p *uint32, v uint32)
TEXT ·Release32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET
