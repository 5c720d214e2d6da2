//go:build !race

package mmio

import "sync/atomic"

// These are Go on amd64, so that the compiler puts them in place. What makes that
// right:
//
//   - a plain store of 32 bits is one MOVL, and leaves after all earlier loads and
//     stores (Intel SDM vol. 3A, 9.2.2); sync/atomic's store is an XCHG, a full fence
//     on memory and a read round trip on a board;
//   - the gc compiler keeps stores in their order and moves no load over one that
//     may change it, and neither over an atomic operation; with one on each side,
//     a store is not joined with a neighbour's either;
//   - sync/atomic's load is a MOVL, its add a locked operation, which is a full
//     fence for write-back and uncached memory (9.2.3.9) also on the own stack.
//
// The race detector would take the plain stores for races: its builds call the
// assembly (called.go).

var here uint32 // never written

// apart keeps what comes before from what comes after, for the compiler.
func apart() { atomic.LoadUint32(&here) }

// Load32 loads 32 bits from p with one access. p must be 4-byte aligned.
func Load32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// ToDevice makes all earlier stores to DMA memory visible to the device
// before any later store to it or to a register: descriptors first, then the
// doorbell (udma_to_device_barrier). Stores leave in program order, so keeping
// the compiler from moving them is enough.
func ToDevice() { apart() }

// FromDevice makes all later loads from DMA memory come after the loads
// before it: the phase bit of a completion first, then its body
// (udma_from_device_barrier). Loads are not reordered with loads.
func FromDevice() { apart() }

// Doorbell rings one doorbell: ToDevice, the store of v to word, StoreLoad,
// then the load of flag, which it gives.
func Doorbell(word *uint32, v uint32, flag *uint32) uint32 {
	apart()
	*word = v
	var own uint32
	atomic.AddUint32(&own, 0)
	return atomic.LoadUint32(flag)
}

// Owner32 loads the word that says whose an entry of a ring is, and makes all
// later loads come after it: Load32, then FromDevice.
func Owner32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// Consumed32 stores to p how many entries of a ring were read, after all
// earlier loads from DMA memory: FromDevice, then Store32.
func Consumed32(p *uint32, v uint32) { Release32(p, v) }

// Release32 stores v to p after all earlier loads and stores: who loads v
// with sync/atomic sees what was written before it. It is what sync/atomic's
// stores lack on amd64, where they are locked: they order later loads too, at
// the price of a full fence.
func Release32(p *uint32, v uint32) {
	apart()
	*p = v
	apart()
}

// Release64 is Release32 for 64 bits.
func Release64(p *uint64, v uint64) {
	apart()
	*p = v
	apart()
}
