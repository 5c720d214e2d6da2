// Package kerneltrace shows what the Linux kernel does for a card that VFIO drives, as it happens: mappings
// made and undone with sizes and times, pages pinned, interrupts, resets, and IOMMU faults with their
// address. It is what rnicctl trace kernel prints.
//
// Mappings and resets that a program asks for are seen at the ioctl's entry and exit, whose numbers and structures are the kernel's
// interface to programs (include/uapi/linux/vfio.h, iommufd.h): so one program of BPF is right for each kernel and for each of
// VFIO's interfaces. Interrupts come from the tracepoint irq:irq_handler_entry, pins, resets by the kernel, and what it
// undoes when a program ends, from kprobes. The IOMMU's drivers put a fault into the kernel's log only: Intel's and AMD's
// have no tracepoint that carries the address, so /dev/kmsg is read.
//
// The programs of BPF are written in this package, in instructions: nothing is compiled on the user's machine. Their licence is
// "Dual BSD/GPL". It takes root (CAP_BPF, CAP_PERFMON, and CAP_SYSLOG for faults) and a mounted tracefs; what cannot be attached is
// named by Trace.Missing, and the rest is shown.
package kerneltrace
