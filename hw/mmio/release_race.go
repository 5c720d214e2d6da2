//go:build race

package mmio

import "sync/atomic"

// Release32 is an atomic store here: the race detector does not see into
// assembly.
func Release32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// Release64 is Release32 for 64 bits.
func Release64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
