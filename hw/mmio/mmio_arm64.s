#include "textflag.h"

// Barrier operands (Arm ARM, DMB and DSB, CRm field).
#define OSHLD $1
#define OSHST $2
#define ST $14
#define SY $15

// func Load32(p *uint32) uint32
TEXT ·Load32(SB), NOSPLIT, $0-12
	MOVD  p+0(FP), R0
	MOVWU (R0), R1
	MOVW  R1, ret+8(FP)
	RET

// func Store32(p *uint32, v uint32)
TEXT ·Store32(SB), NOSPLIT, $0-12
	MOVD  p+0(FP), R0
	MOVWU v+8(FP), R1
	MOVW  R1, (R0)
	RET

// func Load64(p *uint64) uint64
TEXT ·Load64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD (R0), R1
	MOVD R1, ret+8(FP)
	RET

// func Store64(p *uint64, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET

// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	DMB OSHST
	RET

// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	DMB OSHLD
	RET

// func StoreLoad()
TEXT ·StoreLoad(SB), NOSPLIT, $0-0
	DMB SY
	RET

// func Consumed32(p *uint32, v uint32)
TEXT ·Consumed32(SB), NOSPLIT, $0-12
	MOVD  p+0(FP), R0
	MOVWU v+8(FP), R1
	DMB   OSHLD
	MOVW  R1, (R0)
	RET

// func Owner32(p *uint32) uint32
TEXT ·Owner32(SB), NOSPLIT, $0-12
	MOVD  p+0(FP), R0
	MOVWU (R0), R1
	DMB   OSHLD
	MOVW  R1, ret+8(FP)
	RET

// func WriteCombineFlush()
TEXT ·WriteCombineFlush(SB), NOSPLIT, $0-0
	DSB ST
	RET

// func Doorbell(word *uint32, v uint32, flag *uint32) uint32
TEXT ·Doorbell(SB), NOSPLIT, $0-28
	MOVD  word+0(FP), R0
	MOVWU v+8(FP), R1
	MOVD  flag+16(FP), R2
	DMB   OSHST
	MOVW  R1, (R0)
	DMB   SY
	MOVWU (R2), R3
	MOVW  R3, ret+24(FP)
	RET
