package kerneltrace

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"rnic/vfio/uapi"
)

// The record that each program puts into the ring. Offsets in bytes.
const (
	recTime     = 0  // CLOCK_MONOTONIC, ns, at the entry
	recDuration = 8  // ns
	recPID      = 16 // thread in the low half, process in the high
	recKind     = 24 // what is below, 32 bits
	recCommand  = 28 // ioctl: its number; interrupt: the Linux IRQ; 32 bits
	recResult   = 32 // what the function returned
	recAddress  = 40 // pin: user address
	recPages    = 48 // pin: pages asked for
	recData     = 56 // ioctl: the caller's structure; interrupt, reset: a name
	dataSize    = 56
	recordSize  = recData + dataSize
)

const (
	recordIoctl = iota + 1
	recordInterrupt
	recordPin
	recordReset
	recordRelease
)

// What a call keeps from its entry to its return.
const (
	callTime    = 0
	callCommand = 8  // ioctl: its number; pin: the address
	callArg     = 16 // ioctl: the pointer; pin: pages
	callName    = 24 // reset: the function's name
	callSize    = callName + nameSize
	nameSize    = 16 // 0000:03:00.0 and its end
)

// Stack: the record, or a call, at the bottom; the key of a map above it.
const (
	frame    = -recordSize
	callsKey = -recordSize - 8
	lostKey  = -recordSize - 16
)

// spec gives programs and maps. Only calls of process pid are taken, of all where it is 0; names says where a
// struct pci_dev keeps its name.
func spec(pid uint32, names pciName) *ebpf.CollectionSpec {
	c := &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{
			"events": {Type: ebpf.RingBuf, MaxEntries: 1 << 20},
			"lost":   {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1},
			// One for each kind, since pins are inside of an ioctl. A thread that dies inside leaves its entry, hence LRU.
			"ioctls":   {Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: 4096},
			"pins":     {Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: 4096},
			"resets":   {Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: 4096},
			"releases": {Type: ebpf.LRUHash, KeySize: 8, ValueSize: callSize, MaxEntries: 4096},
		},
		Programs: map[string]*ebpf.ProgramSpec{},
	}
	add := func(name string, t ebpf.ProgramType, parts ...asm.Instructions) {
		var all asm.Instructions
		for _, p := range parts {
			all = append(all, p...)
		}
		c.Programs[name] = &ebpf.ProgramSpec{Name: name, Type: t, License: "Dual BSD/GPL", Instructions: all}
	}
	add("ioctl_enter", ebpf.TracePoint, begin(pid), ioctlEnter())
	add("ioctl_exit", ebpf.TracePoint, begin(0), ioctlExit())
	add("interrupt", ebpf.TracePoint, begin(0), interrupt())
	add("pin_enter", ebpf.Kprobe, begin(pid), pinEnter(regArg2, regArg3))
	add("pin_fast_enter", ebpf.Kprobe, begin(pid), pinEnter(regArg1, regArg2))
	add("pin_exit", ebpf.Kprobe, begin(0), exit("pins", recordPin, asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, callCommand, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recAddress, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, callArg, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recPages, asm.R1, asm.DWord),
	}))
	add("reset_enter", ebpf.Kprobe, begin(0), resetEnter(names))
	add("reset_exit", ebpf.Kprobe, begin(0), exit("resets", recordReset, asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, callName, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recData, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R7, callName+8, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recData+8, asm.R1, asm.DWord),
	}))
	add("release_enter", ebpf.Kprobe, begin(pid), newCall(), keep("releases"))
	add("release_exit", ebpf.Kprobe, begin(0), exit("releases", recordRelease, asm.Instructions{
		// What vfio_iommu_type1_release returns is nothing, and iommufd_fops_release 0.
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, frame+recResult, asm.R1, asm.DWord),
	}))
	return c
}

// begin has the context in R6 and the thread in R8, and goes on for process pid only.
func begin(pid uint32) asm.Instructions {
	p := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.StoreMem(asm.RFP, callsKey, asm.R8, asm.DWord),
	}
	if pid != 0 {
		p = append(p, asm.RSh.Imm(asm.R0, 32), asm.JNE.Imm(asm.R0, int32(pid), "out"))
	}
	return p
}

func out() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return()}
}

// zero clears size bytes at the frame, and spends R1.
func zero(size int16) asm.Instructions {
	p := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
	for i := int16(0); i < size; i += 8 {
		p = append(p, asm.StoreMem(asm.RFP, frame+i, asm.R1, asm.DWord))
	}
	return p
}

// stack puts the address of a place on the stack into a register.
func stack(r asm.Register, off int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, off)}
}

func mapPtr(r asm.Register, name string) asm.Instruction {
	return asm.LoadMapPtr(r, 0).WithReference(name)
}

func join(parts ...asm.Instructions) asm.Instructions {
	var all asm.Instructions
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// newCall is an empty call with its time, at the frame.
func newCall() asm.Instructions {
	return join(zero(callSize), asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, frame+callTime, asm.R0, asm.DWord),
	})
}

// keep puts the call at the frame into a map, and ends.
func keep(calls string) asm.Instructions {
	return join(asm.Instructions{mapPtr(asm.R1, calls)}, stack(asm.R2, callsKey), stack(asm.R3, frame),
		asm.Instructions{asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call()}, out())
}

// ioctlEnter keeps the commands that map, unmap and reset. The tracepoint syscalls:sys_enter_ioctl has fd, cmd and arg from byte
// 16 on, 8 bytes each.
func ioctlEnter() asm.Instructions {
	p := join(asm.Instructions{
		asm.LoadMem(asm.R7, asm.R6, 24, asm.DWord),
		asm.LoadMem(asm.R9, asm.R6, 32, asm.DWord),
	})
	for _, cmd := range []int32{
		uapi.VFIO_IOMMU_MAP_DMA, uapi.VFIO_IOMMU_UNMAP_DMA, uapi.IOMMU_IOAS_MAP, uapi.IOMMU_IOAS_UNMAP, uapi.VFIO_DEVICE_RESET,
	} {
		p = append(p, asm.JEq.Imm(asm.R7, cmd, "take"))
	}
	p = append(p, asm.Ja.Label("out"))
	call := newCall()
	call[0] = call[0].WithSymbol("take")
	return join(p, call, asm.Instructions{
		asm.StoreMem(asm.RFP, frame+callCommand, asm.R7, asm.DWord),
		asm.StoreMem(asm.RFP, frame+callArg, asm.R9, asm.DWord),
	}, keep("ioctls"))
}

// ioctlExit reads the caller's structure when the kernel is done with it, since it is there that an unmap says how much it
// undid. Byte 16 of syscalls:sys_exit_ioctl is the result.
func ioctlExit() asm.Instructions {
	p := join(lookup("ioctls"), zero(recordSize), asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, 16, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recResult, asm.R1, asm.DWord),
		asm.LoadMem(asm.R9, asm.R7, callCommand, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recCommand, asm.R9, asm.Word),
		// The structure's size: no more is read than the command has.
		asm.Mov.Imm(asm.R2, 24),
		asm.JEq.Imm(asm.R9, uapi.VFIO_IOMMU_UNMAP_DMA, "read"),
		asm.JEq.Imm(asm.R9, uapi.IOMMU_IOAS_UNMAP, "read"),
		asm.Mov.Imm(asm.R2, 32),
		asm.JEq.Imm(asm.R9, uapi.VFIO_IOMMU_MAP_DMA, "read"),
		asm.Mov.Imm(asm.R2, 40),
		asm.JEq.Imm(asm.R9, uapi.IOMMU_IOAS_MAP, "read"),
		asm.Ja.Label("done"),
	})
	read := stack(asm.R1, frame+recData)
	read[0] = read[0].WithSymbol("read")
	p = join(p, read, asm.Instructions{
		asm.LoadMem(asm.R3, asm.R7, callArg, asm.DWord),
		asm.FnProbeReadUser.Call(),
	})
	after := finish("ioctls", recordIoctl)
	after[0] = after[0].WithSymbol("done")
	return join(p, after)
}

// interrupt takes those of VFIO. irq:irq_handler_entry has the number at byte 8 and, at 12, where the name of the handler is, as
// "vfio-msix[0](0000:03:00.0)".
func interrupt() asm.Instructions {
	return join(zero(recordSize), asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, 8, asm.Word),
		asm.StoreMem(asm.RFP, frame+recCommand, asm.R1, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 12, asm.Word),
		asm.And.Imm(asm.R3, 0xffff),
		asm.Add.Reg(asm.R3, asm.R6),
	}, stack(asm.R1, frame+recData), asm.Instructions{
		asm.Mov.Imm(asm.R2, dataSize),
		asm.FnProbeReadKernelStr.Call(),
		asm.LoadMem(asm.R1, asm.RFP, frame+recData, asm.Word),
		asm.JNE.Imm(asm.R1, 'v'|'f'<<8|'i'<<16|'o'<<24, "out"),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, frame+recTime, asm.R0, asm.DWord),
		asm.StoreImm(asm.RFP, frame+recKind, recordInterrupt, asm.Word),
	}, submit())
}

// pinEnter keeps what is to be pinned, if a thread is inside of an ioctl that we follow.
func pinEnter(address, pages int16) asm.Instructions {
	return join(lookup("ioctls"), newCall(), asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, address, asm.DWord),
		asm.StoreMem(asm.RFP, frame+callCommand, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, pages, asm.DWord),
		asm.StoreMem(asm.RFP, frame+callArg, asm.R1, asm.DWord),
	}, keep("pins"))
}

// resetEnter keeps the name of the function that is reset.
func resetEnter(n pciName) asm.Instructions {
	p := newCall()
	if n.known {
		p = join(p, asm.Instructions{
			asm.LoadMem(asm.R3, asm.R6, regArg1, asm.DWord),
			asm.Add.Imm(asm.R3, int32(n.offset)),
		}, stack(asm.R1, frame+callArg), asm.Instructions{
			asm.Mov.Imm(asm.R2, 8),
			asm.FnProbeReadKernel.Call(),
		}, stack(asm.R1, frame+callName), asm.Instructions{
			asm.Mov.Imm(asm.R2, nameSize),
			asm.LoadMem(asm.R3, asm.RFP, frame+callArg, asm.DWord),
			asm.FnProbeReadKernelStr.Call(),
		})
	}
	return join(p, keep("resets"))
}

// lookup has the call of this thread in R7, or ends.
func lookup(calls string) asm.Instructions {
	return join(asm.Instructions{mapPtr(asm.R1, calls)}, stack(asm.R2, callsKey), asm.Instructions{
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
	})
}

// exit is the end of a call whose function's result is in the registers; fill adds to the record.
func exit(calls string, kind int64, fill asm.Instructions) asm.Instructions {
	return join(lookup(calls), zero(recordSize), asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, regRet, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recResult, asm.R1, asm.DWord),
	}, fill, finish(calls, kind))
}

// finish gives the record its kind, its thread and its times, forgets the call, and puts the record into the ring.
func finish(calls string, kind int64) asm.Instructions {
	return join(asm.Instructions{
		asm.StoreImm(asm.RFP, frame+recKind, kind, asm.Word),
		asm.StoreMem(asm.RFP, frame+recPID, asm.R8, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R1, asm.R7, callTime, asm.DWord),
		asm.StoreMem(asm.RFP, frame+recTime, asm.R1, asm.DWord),
		asm.Sub.Reg(asm.R0, asm.R1),
		asm.StoreMem(asm.RFP, frame+recDuration, asm.R0, asm.DWord),
		mapPtr(asm.R1, calls),
	}, stack(asm.R2, callsKey), asm.Instructions{asm.FnMapDeleteElem.Call()}, submit())
}

// submit puts the record into the ring, and counts it where there is no room.
func submit() asm.Instructions {
	return join(asm.Instructions{mapPtr(asm.R1, "events")}, stack(asm.R2, frame), asm.Instructions{
		asm.Mov.Imm(asm.R3, recordSize),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.StoreImm(asm.RFP, lostKey, 0, asm.Word),
		mapPtr(asm.R1, "lost"),
	}, stack(asm.R2, lostKey), asm.Instructions{
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
	}, out())
}
