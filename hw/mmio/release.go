//go:build !race

package mmio

// Release32 stores v to p after all earlier loads and stores: who loads v
// with sync/atomic sees what was written before it. It is what sync/atomic's
// stores lack on amd64, where they are locked: they order later loads too, at
// the price of a full fence.
//
// amd64: a plain store, which leaves after earlier accesses (Intel SDM vol.
// 3A, 9.2.2). arm64: stlr.
//
//go:noescape
func Release32(p *uint32, v uint32)
