//go:build !race && arm64

package mmio

// Release32 stores v to p after all earlier loads and stores: who loads v
// with sync/atomic sees what was written before it. It is what sync/atomic's
// stores lack on amd64, where they are locked: they order later loads too, at
// the price of a full fence.
//
// arm64: stlr.
//
//go:noescape
func Release32(p *uint32, v uint32)

// Release64 is Release32 for 64 bits.
//
//go:noescape
func Release64(p *uint64, v uint64)
