// Package mmio loads and stores device memory with accesses of exactly the
// stated width, and names the barriers that order them.
//
// The compiler may merge, split or drop plain Go loads and stores, and
// sync/atomic stores are locked read-modify-write operations on amd64 (a
// device register sees a read and a write). The functions here are assembly
// bodies that hold one access each, so what is written is what the bus sees.
//
// Those that the data path calls for each message (Load32, ToDevice, FromDevice,
// Doorbell, Owner32, Consumed32, Release32, Release64) are compiled in place on amd64,
// where a call of an assembly function costs as much as what it does: see
// inplace_amd64.go.
//
// The barriers carry the names of why they are there, after rdma-core's
// util/udma_barrier.h. All are also compiler barriers, since the Go compiler
// moves no memory access over a call of an assembly function.
//
// The assembly is one file for each architecture (amd64, arm64).
package mmio

// Store32 stores 32 bits to p with one access. p must be 4-byte aligned.
// It orders nothing: put the barrier that the place needs before it.
//
//go:noescape
func Store32(p *uint32, v uint32)

// Load64 loads 64 bits from p with one access. p must be 8-byte aligned, and
// the device must take 64-bit accesses there.
//
//go:noescape
func Load64(p *uint64) uint64

// Store64 stores 64 bits to p with one access. p must be 8-byte aligned, and
// the device must take 64-bit accesses there.
//
//go:noescape
func Store64(p *uint64, v uint64)

// StoreLoad makes all earlier stores visible before any later load is
// performed: a doorbell is stored, then the card's sleep flag is loaded. Each
// side stores its own word and then loads the other's, and the one order that
// every processor may otherwise swap is a store followed by a load.
//
// amd64: a locked operation on the function's own stack, which is a full
// fence for write-back and uncached memory (Intel SDM vol. 3A, 9.2.3.9), and
// cheaper than MFENCE. arm64: dmb sy.
//
//go:noescape
func StoreLoad()

// WriteCombineFlush pushes stores to write-combining memory out to the device
// before any later store (mmio_flush_writes). The kernel's vfio-pci maps BARs
// uncached, where it costs little and changes nothing.
//
// amd64: SFENCE, which drains the write-combining buffers. arm64: dsb st.
//
//go:noescape
func WriteCombineFlush()
