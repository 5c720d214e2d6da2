//go:build !race

#include "textflag.h"

// func Release32(p *uint32, v uint32)
TEXT ·Release32(SB), NOSPLIT, $0-12
	MOVD  p+0(FP), R0
	MOVWU v+8(FP), R1
	STLRW R1, (R0)
	RET

// func Release64(p *uint64, v uint64)
TEXT ·Release64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	STLR R1, (R0)
	RET
