package kerneltrace

// Where struct pt_regs (arch/x86/include/asm/ptrace.h) keeps a function's arguments and result.
const (
	regArg1 = 112 // di
	regArg2 = 104 // si
	regArg3 = 96  // dx
	regRet  = 80  // ax
)
