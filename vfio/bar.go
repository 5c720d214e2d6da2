package vfio

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"rnic/hw/mmio"
)

// BAR gives register access to one region: through the mapping where it is
// mapped, by region reads and writes elsewhere. Registers are little-endian.
//
// Load and Store are for code that cannot stop at each register: a failed
// load gives all ones, as on a bus, and Err holds the first failure. Read and
// Write return it.
type BAR struct {
	dev  Device
	info RegionInfo
	m    *Mapping
	err  atomic.Pointer[error]
}

// NewBAR prepares region i of d. The caller releases it.
func NewBAR(d Device, i int) (*BAR, error) {
	info, err := d.Region(i)
	if err != nil {
		return nil, err
	}
	if info.Size == 0 {
		return nil, &Error{Addr: d.Addr(), Op: "use region", Object: fmt.Sprint(i), Err: ErrNotFound}
	}
	m, err := d.MapRegion(i)
	if err != nil {
		return nil, err
	}
	return &BAR{dev: d, info: info, m: m}, nil
}

// Info describes the region.
func (b *BAR) Info() RegionInfo { return b.info }

// Mapping is the region's mapping; BAR releases it.
func (b *BAR) Mapping() *Mapping { return b.m }

// Err is the first failure of a Load or Store, else the device's.
func (b *BAR) Err() error {
	if p := b.err.Load(); p != nil {
		return *p
	}
	return b.dev.Err()
}

func (b *BAR) note(err error) { b.err.CompareAndSwap(nil, &err) }

func (b *BAR) check(op string, off, n uint64) error {
	if off%n == 0 && n <= b.info.Size && off <= b.info.Size-n {
		return nil
	}
	return &Error{Addr: b.dev.Addr(), Op: op, Object: fmt.Sprintf("region %d offset %#x width %d", b.info.Index, off, n),
		Err: fmt.Errorf("%w (size %#x) or misaligned", ErrRange, b.info.Size)}
}

// mapped runs an access to the mapping. A kernel that has switched the
// function's memory space off answers it with SIGBUS, which is an error here.
func (b *BAR) mapped(op string, off uint64, f func()) error {
	if err := Guard(f); err != nil {
		return &Error{Addr: b.dev.Addr(), Op: op, Object: fmt.Sprintf("region %d offset %#x", b.info.Index, off), Err: err}
	}
	return b.dev.Err()
}

// Read32 reads the 32-bit register at off, a multiple of 4.
func (b *BAR) Read32(off uint64) (uint32, error) {
	if err := b.check("read register", off, 4); err != nil {
		return ^uint32(0), err
	}
	if p := b.m.Word32(off); p != nil {
		r := ^uint32(0)
		err := b.mapped("read register", off, func() { r = mmio.Load32(p) })
		return r, err
	}
	var v [4]byte
	if err := b.dev.ReadRegion(b.info.Index, off, v[:]); err != nil {
		return ^uint32(0), err
	}
	return binary.LittleEndian.Uint32(v[:]), nil
}

// Write32 writes the 32-bit register at off, a multiple of 4.
func (b *BAR) Write32(off uint64, v uint32) error {
	if err := b.check("write register", off, 4); err != nil {
		return err
	}
	if p := b.m.Word32(off); p != nil {
		return b.mapped("write register", off, func() { mmio.Store32(p, v) })
	}
	return b.dev.WriteRegion(b.info.Index, off, binary.LittleEndian.AppendUint32(nil, v))
}

// Read64 reads the 64-bit register at off, a multiple of 8: low half first,
// then the high one (the low read latches counters).
func (b *BAR) Read64(off uint64) (uint64, error) {
	if err := b.check("read register", off, 8); err != nil {
		return ^uint64(0), err
	}
	if lo, hi := b.m.Word32(off), b.m.Word32(off+4); lo != nil && hi != nil {
		r := ^uint64(0)
		err := b.mapped("read register", off, func() {
			l := mmio.Load32(lo)
			r = uint64(mmio.Load32(hi))<<32 | uint64(l)
		})
		return r, err
	}
	var v [8]byte
	if err := b.dev.ReadRegion(b.info.Index, off, v[:]); err != nil {
		return ^uint64(0), err
	}
	return binary.LittleEndian.Uint64(v[:]), nil
}

// Write64 writes the 64-bit register at off, a multiple of 8: low half first,
// then the high one, which completes the write.
func (b *BAR) Write64(off, v uint64) error {
	if err := b.check("write register", off, 8); err != nil {
		return err
	}
	if lo, hi := b.m.Word32(off), b.m.Word32(off+4); lo != nil && hi != nil {
		return b.mapped("write register", off, func() {
			mmio.Store32(lo, uint32(v))
			mmio.Store32(hi, uint32(v>>32))
		})
	}
	return b.dev.WriteRegion(b.info.Index, off, binary.LittleEndian.AppendUint64(nil, v))
}

// Load32 is Read32; a failure gives all ones and is kept for Err.
func (b *BAR) Load32(off uint64) uint32 {
	v, err := b.Read32(off)
	if err != nil {
		b.note(err)
		return ^uint32(0)
	}
	return v
}

// Store32 is Write32; a failure is kept for Err.
func (b *BAR) Store32(off uint64, v uint32) {
	if err := b.Write32(off, v); err != nil {
		b.note(err)
	}
}

// Load64 is Read64; a failure gives all ones and is kept for Err.
func (b *BAR) Load64(off uint64) uint64 {
	v, err := b.Read64(off)
	if err != nil {
		b.note(err)
		return ^uint64(0)
	}
	return v
}

// Store64 is Write64; a failure is kept for Err.
func (b *BAR) Store64(off, v uint64) {
	if err := b.Write64(off, v); err != nil {
		b.note(err)
	}
}

// Window is n bytes of the region at off where they are mapped as one piece,
// else nil. See Mapping.Bytes.
func (b *BAR) Window(off, n uint64) []byte { return b.m.Bytes(off, n) }

// Word32 is the mapped register at off for the data path, or nil.
func (b *BAR) Word32(off uint64) *uint32 { return b.m.Word32(off) }

// Revoke replaces the mapped areas by pages of all ones.
func (b *BAR) Revoke() error { return b.m.Revoke() }

// Release unmaps the region.
func (b *BAR) Release() error { return b.m.Release() }
