//go:build race || arm64

package mmio

// Load32 loads 32 bits from p with one access. p must be 4-byte aligned.
//
//go:noescape
func Load32(p *uint32) uint32

// ToDevice makes all earlier stores to DMA memory visible to the device
// before any later store to it or to a register: descriptors first, then the
// doorbell (udma_to_device_barrier).
//
// amd64: stores to write-back memory and to uncached memory leave in program
// order (Intel SDM vol. 3A, 9.2.2), so keeping the compiler from moving them
// is enough, and the function is empty. arm64: dmb oshst.
//
//go:noescape
func ToDevice()

// FromDevice makes all later loads from DMA memory come after the loads
// before it: the phase bit of a completion first, then its body
// (udma_from_device_barrier).
//
// amd64: loads are not reordered with loads, so the function is empty.
// arm64: dmb oshld.
//
//go:noescape
func FromDevice()

// Doorbell rings one doorbell: ToDevice, the store of v to word, StoreLoad,
// then the load of flag, which it gives. It is those four in one call, for the
// data path.
//
//go:noescape
func Doorbell(word *uint32, v uint32, flag *uint32) uint32

// Owner32 loads the word that says whose an entry of a ring is, and makes all
// later loads come after it: Load32, then FromDevice.
//
//go:noescape
func Owner32(p *uint32) uint32

// Consumed32 stores to p how many entries of a ring were read, after all
// earlier loads from DMA memory: FromDevice, then Store32.
//
//go:noescape
func Consumed32(p *uint32, v uint32)
