package vfiopci_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
	"rnic/vfio/vfiotest"
)

// mapped counts this process's mappings of the test kernel's devices.
func mapped(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return bytes.Count(b, []byte("/memfd:vfiotest"))
}

// Rows 28 and 29: wanted back, the program stops and closes. No file of sysfs is
// looked at, BARs are unmapped before the descriptor goes, nothing is left.
func TestVFIO_Request(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		b, err := vfio.NewBAR(d, 0)
		must(t, err)
		defer b.Release()
		must(t, b.Write32(0x1000, 7))
		m := memory(t, 4096)
		must(t, d.MapDMA(0x100000, m, 0, 4096, vfio.ProtReadWrite))
		reads, released := k.FileReads(), f.Released()
		for range 40 { // the kernel repeats itself
			f.Request()
		}
		if e := nextEvent(t, d); e != vfio.EventRequest {
			t.Errorf("event %v", e)
		}
		if v, err := b.Read32(0x1000); err != nil || v != 7 {
			t.Errorf("the function answers until it is given back: %#x, %v", v, err)
		}
		k.Do(vfiotest.Script{Call: "close", Times: 1, Before: func() {
			if n := mapped(t); n != 0 {
				t.Errorf("%d mappings of the BAR stand when the descriptor is closed", n)
			}
		}})
		must(t, d.Close())
		within(t, "the function's return", released)
		if n := k.FileReads(); n != reads {
			t.Errorf("%d files were looked at after the request", n-reads)
		}
		if v, err := b.Read32(0x1000); v != ^uint32(0) || !errors.Is(err, vfio.ErrClosed) {
			t.Errorf("a register afterwards: %#x, %v", v, err)
		}
		must(t, m.Close())
		for e := range d.Events() {
			if e != vfio.EventRequest && e != vfio.EventGone {
				t.Errorf("event %v", e)
			}
		}
	})
}

// Row 28: a fatal error of the bus that the function survives is an event.
func TestVFIO_ErrorInterrupt(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		f.Raise(vfio.IRQERR, 0)
		if e := nextEvent(t, d); e != vfio.EventError {
			t.Errorf("event %v", e)
		}
		if err := d.Err(); err != nil {
			t.Error(err)
		}
	})
}

// Row 30: a function that leaves its slot is gone for everyone: the BARs are
// ones, all calls end, and its descriptors are closed without Close, so that the
// unbinder does not wait for the program.
func TestVFIO_Unplug(t *testing.T) {
	for _, how := range []string{"request", "error", "access"} {
		if t.Failed() {
			return
		}
		eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
			b, err := vfio.NewBAR(d, 0)
			must(t, err)
			defer b.Release()
			word := b.Word32(0x1000)
			m := memory(t, 4096)
			must(t, d.MapDMA(0x100000, m, 0, 4096, vfio.ProtReadWrite))
			released := f.Released()
			f.Unplug()
			switch how {
			case "request":
				f.Request()
				if e := nextEvent(t, d); e != vfio.EventRequest {
					t.Errorf("event %v", e)
				}
			case "error":
				f.Raise(vfio.IRQERR, 0)
				nextEvent(t, d)
			case "access":
				k.Do(vfiotest.Script{Call: "pread", Times: 1, Err: unix.EIO})
				wants(t, d.ReadRegion(0, 0, make([]byte, 4)), vfio.ErrGone)
			}
			within(t, "the end of the device", d.Done())
			if e := nextEvent(t, d); e != vfio.EventGone {
				t.Errorf("event %v", e)
			}
			within(t, "the function's return", released)
			if *word != ^uint32(0) {
				t.Errorf("a register reads %#x", *word)
			}
			*word = 1 // a store goes nowhere
			wants(t, d.Err(), vfio.ErrGone, "no longer answers")
			for what, err := range map[string]error{
				"map": d.MapDMA(0x200000, m, 0, 4096, vfio.ProtRead), "unmap": d.UnmapDMA(0x100000, 4096), "read": d.ReadRegion(0, 0, make([]byte, 4)),
				"write": d.WriteRegion(7, 4, make([]byte, 2)), "irqs": d.SetIRQs(2, 0, []int{-1}), "disable": d.DisableIRQs(2), "trigger": d.TriggerIRQs(2, 0, 1), "reset": d.Reset(t.Context()),
			} {
				if !errors.Is(err, vfio.ErrGone) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err := d.MapRegion(0); !errors.Is(err, vfio.ErrGone) {
				t.Errorf("map region: %v", err)
			}
			must(t, m.Close()) // its mapping went with the device
			if n := k.OpenFiles(); n != 0 {
				t.Errorf("%d descriptors are open", n)
			}
			must(t, d.Close())
		})
	}
}

// Row 30: EIO of a function that answers is no end: its memory space is off.
// Its mapping then faults with SIGBUS, which is an error at the access.
func TestVFIO_MemorySpaceOff(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	d := mustOpen(t, k, bdf)
	b, err := vfio.NewBAR(d, 0)
	must(t, err)
	defer b.Release()
	cfg, err := vfio.NewConfig(d)
	must(t, err)
	must(t, cfg.Write16(vfio.ConfigCommand, 0))
	wants(t, d.ReadRegion(0, 0x1000, make([]byte, 4)), unix.EIO, "memory space", "command register")
	if d.Err() != nil {
		t.Error("the device has ended")
	}
	k.TakeAway() // as the kernel does with the pages of a mapping
	for _, err := range []error{
		func() error { _, err := b.Read32(0x1000); return err }(), b.Write32(0x1000, 1),
		func() error { _, err := b.Read64(0x1000); return err }(), b.Write64(0x1000, 1),
	} {
		wants(t, err, vfio.ErrGone, "region 0 offset 0x1000")
	}
	if v := b.Load32(0x1000); v != ^uint32(0) {
		t.Errorf("a faulting load gives %#x", v)
	}
	must(t, cfg.Write16(vfio.ConfigCommand, vfio.CommandMemory))
	must(t, d.ReadRegion(7, 0, make([]byte, 4)))
}

// Row 31: reset needs the kernel's flag, leaves mappings alone, and is bounded
// by its context although the kernel is not.
func TestVFIO_Reset(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		m := memory(t, 4096)
		must(t, d.MapDMA(0x100000, m, 0, 4096, vfio.ProtReadWrite))
		must(t, d.WriteRegion(0, 0x10, []byte{1, 2, 3, 4}))
		must(t, d.Reset(t.Context()))
		p := make([]byte, 4)
		must(t, d.ReadRegion(0, 0x10, p))
		if f.Resets() != 1 || !bytes.Equal(p, make([]byte, 4)) {
			t.Errorf("%d resets, register %v", f.Resets(), p)
		}
		must(t, d.UnmapDMA(0x100000, 4096))
		stuck := make(chan struct{})
		k.Do(vfiotest.Script{Call: "VFIO_DEVICE_RESET", Times: 1, Before: func() { <-stuck }})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		wants(t, d.Reset(ctx), vfio.ErrTimeout)
		must(t, d.ReadRegion(0, 0x10, p)) // it did no harm
		close(stuck)
	})
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf, NoReset: true})
	d := mustOpen(t, k, bdf)
	if d.Info().Reset {
		t.Error("Info promises a reset")
	}
	wants(t, d.Reset(t.Context()), vfio.ErrNotSupported)
}

// A call that stays in the kernel keeps its descriptors open, and not Close.
func TestVFIO_CloseIsBounded(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	f := k.Add(vfiotest.Function{Addr: bdf})
	d, err := vfiopci.Open(t.Context(), bdf, vfiopci.WithSystem(k), vfiopci.WithTimeout(time.Second))
	must(t, err)
	released := f.Released()
	stuck, entered := make(chan struct{}), make(chan struct{})
	k.Do(vfiotest.Script{Call: "VFIO_DEVICE_RESET", Times: 1, Before: func() { close(entered); <-stuck }})
	ended := make(chan error, 1)
	go func() { ended <- d.Reset(context.Background()) }()
	<-entered
	wants(t, d.Close(), vfio.ErrTimeout, "still in the kernel")
	if err := <-ended; !errors.Is(err, vfio.ErrClosed) {
		t.Errorf("reset: %v", err)
	}
	if k.OpenFiles() == 0 {
		t.Error("the descriptors are closed under the call")
	}
	close(stuck)
	within(t, "the function's return", released)
	for end := time.Now().Add(20 * time.Second); k.OpenFiles() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("descriptors stay open")
		}
	}
}

// Calls on all sides while the device closes or goes: every one ends, with
// success or a typed error.
func TestVFIO_ConcurrentEnd(t *testing.T) {
	for _, unplug := range []bool{false, true} {
		eachWay(t, vfiotest.Machine{}, vfiotest.Function{MSIX: 8}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
			var wg sync.WaitGroup
			started := make(chan struct{}, 64)
			spin := func(what func(i uint64) error) {
				for w := range uint64(2) {
					wg.Go(func() {
						for i := uint64(0); ; i++ {
							err := what(2*i + w)
							if i == 3 {
								started <- struct{}{}
							}
							if err == nil {
								continue
							}
							var e *vfio.Error
							if !errors.As(err, &e) || !errors.Is(err, vfio.ErrClosed) && !errors.Is(err, vfio.ErrGone) {
								t.Error(err)
							}
							return
						}
					})
				}
			}
			m := memory(t, 4096)
			spin(func(i uint64) error { return d.ReadRegion(7, 0, make([]byte, 64)) })
			spin(func(i uint64) error {
				iova := 0x100000 + i<<12
				if err := d.MapDMA(iova, m, 0, 4096, vfio.ProtRead); err != nil {
					return err
				}
				return d.UnmapDMA(iova, 4096)
			})
			spin(func(i uint64) error {
				b, err := vfio.NewBAR(d, 0)
				if err != nil {
					return err
				}
				b.Store32(0x1000, 1)
				return errors.Join(b.Release())
			})
			spin(func(i uint64) error { return d.Reset(t.Context()) })
			spin(func(i uint64) error { return d.SetIRQs(vfio.IRQMSIX, int(i%8), []int{-1}) })
			for range 10 {
				<-started
			}
			if unplug {
				f.Unplug()
				f.Request()
				within(t, "the end of the device", d.Done())
			}
			must(t, d.Close())
			wg.Wait()
			must(t, m.Close())
			if n := k.OpenFiles(); n != 0 {
				t.Errorf("%d descriptors are open", n)
			}
		})
	}
}
