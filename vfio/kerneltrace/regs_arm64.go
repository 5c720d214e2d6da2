package kerneltrace

// Where struct pt_regs (arch/arm64/include/asm/ptrace.h) keeps a function's arguments and result: x0 to x2, x0.
const (
	regArg1 = 0
	regArg2 = 8
	regArg3 = 16
	regRet  = 0
)
