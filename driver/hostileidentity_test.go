package driver_test

import (
	"errors"
	"runtime"
	"testing"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/softcard"
)

// TestH03_CardThatStatesNonsense: a card whose identity would have its driver take all memory,
// or index beyond its BARs, is not opened.
func TestH03_CardThatStatesNonsense(t *testing.T) {
	for _, c := range []struct {
		name string
		regs map[uint64]uint32
	}{
		{"key cache of 2^34 lines", map[uint64]uint32{hw.RegIdentKeyCacheSets: 1 << 24, hw.RegIdentKeyCacheWays: 1 << 10}},
		{"key cache of sets without end", map[uint64]uint32{hw.RegIdentKeyCacheSets: 1<<32 - 1}},
		{"CQs without end", map[uint64]uint32{hw.RegIdentMaxCQs: 1 << 31}},
		{"no CQs", map[uint64]uint32{hw.RegIdentMaxCQs: 0}},
		{"keys of 32 bits", map[uint64]uint32{hw.RegIdentKeyIndexBits: 32}},
		{"doorbell pages whose size wraps around", map[uint64]uint32{hw.RegIdentDoorbellPages: 1<<32 - 1, hw.RegIdentDoorbellStride: 1 << 31}},
		{"doorbell pages of no size", map[uint64]uint32{hw.RegIdentDoorbellStride: 0}},
		{"vectors without end", map[uint64]uint32{hw.RegIdentMSIXVectors: 1<<32 - 1}},
		{"a flash of no size", map[uint64]uint32{hw.RegFlashSize: 0}},
		{"slots without end", map[uint64]uint32{hw.RegFlashSlots: 1<<32 - 1}},
		{"an image in a slot that is not there", map[uint64]uint32{hw.RegFlashStarted: 2}},
		{"addresses of no bits", map[uint64]uint32{hw.RegIdentDMABits: 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, softcard.Config{Flash: softcard.NewFlash()})
			for off, v := range c.regs {
				h.set(off, v)
			}
			d, err := driver.Open(t.Context(), h.addr)
			if err == nil {
				d.Close()
			}
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%v", err)
			}
			if f, err := driver.OpenFlash(t.Context(), h.addr); err == nil {
				f.Close()
			} else if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("flash: %v", err)
			}
		})
	}
}

// TestH03_CardThatStatesMuch: as much as a driver believes costs no memory before it is used.
func TestH03_CardThatStatesMuch(t *testing.T) {
	bytes := func(regs map[uint64]uint32) uint64 {
		h := newHarness(t, softcard.Config{})
		for off, v := range regs {
			h.set(off, v)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := driver.Open(t.Context(), h.addr)
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	plain := bytes(nil)
	much := bytes(map[uint64]uint32{
		hw.RegIdentMaxQPs: 1 << 24, hw.RegIdentMaxCQs: 1 << 24, hw.RegIdentMaxEQs: 1 << 24, hw.RegIdentMaxSRQs: 1<<32 - 1,
		hw.RegIdentKeyIndexBits: 24, hw.RegIdentRateLimits: 1<<32 - 1, hw.RegIdentMSIXVectors: 2048,
	})
	if much > plain+1<<20 {
		t.Errorf("%d bytes are allocated to open it, %d for a plain card", much, plain)
	}
}
