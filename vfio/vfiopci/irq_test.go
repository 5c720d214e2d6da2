package vfiopci_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
	"rnic/vfio/vfiotest"
)

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// count reads an eventfd's count, 0 where nothing came.
func count(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b[:])
}

// Row 24: MSI-X is one set of vectors, with holes; where the kernel can, one is
// added later.
func TestVFIO_MSIX(t *testing.T) {
	for _, noResize := range []bool{true, false} {
		eachWay(t, vfiotest.Machine{}, vfiotest.Function{MSIX: 8, NoResize: noResize}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
			cfg, err := vfio.NewConfig(d)
			must(t, err)
			q, err := d.IRQ(vfio.IRQMSIX)
			must(t, err)
			if q.Count != 8 || (q.Flags&vfio.IRQNoResize != 0) != noResize {
				t.Errorf("%+v", q)
			}
			a, b, c := eventfd(t), eventfd(t), eventfd(t)
			before := len(k.Calls())
			must(t, d.SetIRQs(vfio.IRQMSIX, 0, []int{a, -1, b}))
			if n := len(k.Calls()[before:]); n != 2 { // GET_IRQ_INFO and one SET_IRQS
				t.Errorf("%d calls for three vectors: %v", n, k.Calls()[before:])
			}
			if f.Raise(vfio.IRQMSIX, 0) {
				t.Error("MSI-X without bus mastering")
			}
			must(t, cfg.SetBusMaster(true))
			if !f.Raise(vfio.IRQMSIX, 0) || f.Raise(vfio.IRQMSIX, 1) || !f.Raise(vfio.IRQMSIX, 2) || count(t, a) != 1 || count(t, b) != 1 {
				t.Error("a vector went astray")
			}
			must(t, d.SetIRQs(vfio.IRQMSIX, 1, []int{c})) // the hole
			if !f.Raise(vfio.IRQMSIX, 1) || count(t, c) != 1 {
				t.Error("the hole was not filled")
			}
			err = d.SetIRQs(vfio.IRQMSIX, 3, []int{c})
			if noResize {
				wants(t, err, vfio.ErrInUse, "3 vectors were enabled", "DisableIRQs")
			} else if err != nil || !f.Raise(vfio.IRQMSIX, 3) {
				t.Errorf("a vector added: %v", err)
			}
			must(t, d.TriggerIRQs(vfio.IRQMSIX, 0, 2)) // the kernel's loopback
			if count(t, a) != 1 {
				t.Error("no loopback")
			}
			must(t, d.TriggerIRQs(vfio.IRQMSIX, 0, 0))
			if !f.Raise(vfio.IRQMSIX, 0) {
				t.Error("a trigger of nothing disabled the index")
			}
			wants(t, d.TriggerIRQs(vfio.IRQMSIX, 0, 8), vfio.ErrInvalid, "vectors connected")
			wants(t, d.SetIRQs(vfio.IRQMSIX, 7, []int{a, b}), vfio.ErrInvalid, "has 8 vectors")
			wants(t, d.SetIRQs(vfio.IRQMSIX, -1, []int{a}), vfio.ErrInvalid)
			wants(t, d.SetIRQs(vfio.IRQMSIX, 0, nil), vfio.ErrInvalid)
			wants(t, d.MaskIRQs(vfio.IRQMSIX, 0, 1, true), vfio.ErrInvalid) // not maskable
			must(t, d.DisableIRQs(vfio.IRQMSIX))
			must(t, d.DisableIRQs(vfio.IRQMSIX))
			if f.Raise(vfio.IRQMSIX, 0) {
				t.Error("connected after DisableIRQs")
			}
			must(t, d.SetIRQs(vfio.IRQMSIX, 0, []int{a, b, c, -1, a})) // larger than before
			for _, i := range []int{-1, 5, 99} {
				_, err := d.IRQ(i)
				wants(t, err, vfio.ErrNotFound)
			}
		})
	}
}

// Row 25: fewer vectors than were asked for is a number to go on with.
func TestVFIO_VectorBudget(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{MSIX: 64, Vectors: 3}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		fds := make([]int, 9)
		for i := range fds {
			fds[i] = eventfd(t)
		}
		err := d.SetIRQs(vfio.IRQMSIX, 0, fds)
		wants(t, err, vfio.ErrExhausted, "9 interrupt vectors were asked for", "has 3")
		var few *vfio.VectorsError
		if !errors.As(err, &few) || few.Available != 3 || few.Asked != 9 {
			t.Fatalf("%v", err)
		}
		must(t, d.SetIRQs(vfio.IRQMSIX, 0, fds[:few.Available]))
	})
}

// Rows 26 and 27: INTx, MSI and MSI-X exclude each other; INTx masks itself.
func TestVFIO_INTx(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{MSI: 2}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		q, err := d.IRQ(vfio.IRQINTx)
		must(t, err)
		if q.Flags != vfio.IRQEventFD|vfio.IRQMaskable|vfio.IRQAutomasked || q.Count != 1 {
			t.Errorf("%+v", q)
		}
		fd := eventfd(t)
		must(t, d.SetIRQs(vfio.IRQINTx, 0, []int{fd}))
		if !f.Raise(vfio.IRQINTx, 0) || f.Raise(vfio.IRQINTx, 0) {
			t.Error("INTx did not mask itself")
		}
		must(t, d.MaskIRQs(vfio.IRQINTx, 0, 1, false))
		if !f.Raise(vfio.IRQINTx, 0) {
			t.Error("INTx is still masked")
		}
		must(t, d.MaskIRQs(vfio.IRQINTx, 0, 1, true))
		wants(t, d.SetIRQs(vfio.IRQMSI, 0, []int{fd}), vfio.ErrInUse, "index 0 is connected", "DisableIRQs(0)")
		must(t, d.DisableIRQs(vfio.IRQINTx))
		must(t, d.SetIRQs(vfio.IRQMSI, 0, []int{fd, fd}))
		wants(t, d.SetIRQs(vfio.IRQMSIX, 0, []int{fd}), vfio.ErrInUse, "index 1 is connected")
		k.Fail("VFIO_DEVICE_SET_IRQS", unix.ENOMEM)
		wants(t, d.DisableIRQs(vfio.IRQMSI), unix.ENOMEM)
		k.Forget()
		must(t, d.DisableIRQs(vfio.IRQMSI))
	})
}

// Row 28: ERR and REQ are connected at open, where the function has them.
func TestVFIO_EventsAreConnected(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{})
	f := k.Add(vfiotest.Function{Addr: bdf, NotExpress: true})
	d := mustOpen(t, k, bdf)
	if !slices.Contains(k.Calls(), "eventfd") || f.Raise(vfio.IRQERR, 0) || !f.Request() {
		t.Error("REQ is not connected, or ERR of a function that has none is")
	}
	if e := nextEvent(t, d); e != vfio.EventRequest {
		t.Errorf("event %v", e)
	}
	k.Fail("eventfd", unix.EMFILE)
	k.Add(vfiotest.Function{Addr: "0000:04:00.0"})
	_, err := open(t, k, "0000:04:00.0")
	wants(t, err, unix.EMFILE)
}
