//go:build race || arm64

package mmio

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
