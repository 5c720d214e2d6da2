package main

import (
	"context"
	"errors"
	"math"
	"time"

	"rnic/driver"
	"rnic/vfio"
)

// measureRegistration registers 2 MiB, and maps the same memory for a card of the same kind with
// nothing around it. Taking down is not timed.
func measureRegistration(ctx context.Context, b *bench) (err error) {
	const size = 2 << 20
	mem, err := vfio.AllocMemory(size, vfio.MemoryOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	e, err := newEnd(ctx, "soft:bench-register?wire=bench-register", ends{memory: 4096, entries: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.d.Close()) }()
	raw, err := vfio.Open(ctx, "soft:bench-map?wire=bench-map")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	space, err := vfio.NewSpace(raw, 64)
	if err != nil {
		return err
	}
	timed := func(f func() (func() error, error)) (time.Duration, error) {
		start := time.Now()
		undo, err := f()
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		return took, undo()
	}
	wrap := func() (*vfio.Memory, error) { return vfio.WrapMemory(mem.Bytes()) }
	alloc := func() (*vfio.Memory, error) { return vfio.AllocMemory(size, vfio.MemoryOptions{}) }
	mapped := func(get func() (*vfio.Memory, error)) func() (func() error, error) {
		return func() (func() error, error) {
			m, err := get()
			if err != nil {
				return nil, err
			}
			d, err := space.Map(m, 0, m.Size(), vfio.ProtReadWrite)
			return func() error { return errors.Join(d.Unmap(), m.Close()) }, err
		}
	}
	works := []func() (func() error, error){
		mapped(wrap),
		func() (func() error, error) {
			m, err := e.pd.RegMR(ctx, mem.Bytes(), driver.LocalWrite)
			return func() error { return m.Dereg(ctx) }, err
		},
		mapped(alloc),
		func() (func() error, error) {
			m, err := e.pd.AllocMR(ctx, size, driver.LocalWrite)
			return func() error { return m.Dereg(ctx) }, err
		},
	}
	least := [4]time.Duration{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
	for range b.times() * b.atScale(40, 2) {
		for i, f := range works {
			t, err := timed(f)
			if err != nil {
				return err
			}
			least[i] = min(least[i], t)
		}
	}
	us := func(what string, i int) absolute { return absolute{what, float64(least[i]) / 1e3, "µs"} }
	b.add("register", "registration of 2 MiB (RegMR) against the mapping alone", "ratio", less, 1.5, 1.2, float64(least[1])/float64(least[0]), "", us("registration", 1), us("mapping", 0))
	b.add("register-alloc", "same, with the memory allocated (AllocMR)", "ratio", less, 1.5, 1.2, float64(least[3])/float64(least[2]), "", us("registration", 3), us("allocation and mapping", 2))
	return nil
}
