//go:build race

#include "textflag.h"

// func Load32(p *uint32) uint32
TEXT ·Load32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL (AX), AX
	MOVL AX, ret+8(FP)
	RET

// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	RET

// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	RET

// func Consumed32(p *uint32, v uint32)
TEXT ·Consumed32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET

// func Owner32(p *uint32) uint32
TEXT ·Owner32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL (AX), AX
	MOVL AX, ret+8(FP)
	RET

// func Doorbell(word *uint32, v uint32, flag *uint32) uint32
TEXT ·Doorbell(SB), NOSPLIT, $8-28
	MOVQ word+0(FP), AX
	MOVL v+8(FP), CX
	MOVQ flag+16(FP), DX
	MOVL CX, (AX)
	LOCK
	ADDL $0, 0(SP)
	MOVL (DX), AX
	MOVL AX, ret+24(FP)
	RET
