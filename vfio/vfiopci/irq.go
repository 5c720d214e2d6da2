package vfiopci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

// irqState is how many vectors of which index are connected, for errors: the
// kernel says EINVAL to all that it does not like.
type irqState struct {
	mu      sync.Mutex // held across SET_IRQS
	enabled map[int]int
}

// IRQ implements vfio.Device.
func (d *Device) IRQ(i int) (vfio.IRQInfo, error) {
	const op = "describe interrupt"
	object := fmt.Sprint(i)
	if err := d.use(op, object); err != nil {
		return vfio.IRQInfo{}, err
	}
	defer d.hold.exit()
	fail := func(err error) (vfio.IRQInfo, error) { return vfio.IRQInfo{}, d.fail(op, object, err) }
	if i < 0 || i >= d.info.NumIRQs {
		return fail(fmt.Errorf("%w: it has %d interrupt indices", vfio.ErrNotFound, d.info.NumIRQs))
	}
	q := uapi.IRQInfo{Index: uint32(i)}
	q.Argsz = uint32(unsafe.Sizeof(q))
	_, err := d.sys.Ioctl(d.fd, uapi.VFIO_DEVICE_GET_IRQ_INFO, unsafe.Pointer(&q))
	switch {
	case errors.Is(err, unix.EINVAL):
		return vfio.IRQInfo{Index: i}, nil // ERR of a function that is not PCI Express
	case err != nil:
		return fail(d.gone(err))
	case q.Count > 4096:
		return fail(fmt.Errorf("%w: %d vectors", vfio.ErrProtocol, q.Count))
	}
	return vfio.IRQInfo{Index: i, Count: int(q.Count), Flags: vfio.IRQFlags(q.Flags)}, nil
}

// SetIRQs implements vfio.Device.
func (d *Device) SetIRQs(i, start int, fds []int) error {
	const op = "connect interrupts"
	object := fmt.Sprintf("index %d vectors %d+%d", i, start, len(fds))
	q, err := d.IRQ(i)
	if err != nil {
		return err
	}
	if err := d.use(op, object); err != nil {
		return err
	}
	defer d.hold.exit()
	fail := func(err error) error { return d.fail(op, object, err) }
	if start < 0 || len(fds) == 0 || start > q.Count || len(fds) > q.Count-start {
		return fail(fmt.Errorf("%w: it has %d vectors", vfio.ErrInvalid, q.Count))
	}
	d.irq.mu.Lock()
	defer d.irq.mu.Unlock()
	for _, other := range []int{vfio.IRQINTx, vfio.IRQMSI, vfio.IRQMSIX} {
		if i <= vfio.IRQMSIX && other != i && d.irq.enabled[other] > 0 {
			return fail(fmt.Errorf("%w: index %d is connected, and INTx, MSI and MSI-X exclude each other; DisableIRQs(%d) first", vfio.ErrInUse, other, other))
		}
	}
	if n := d.irq.enabled[i]; q.Flags&vfio.IRQNoResize != 0 && n > 0 && start+len(fds) > n {
		return fail(fmt.Errorf("%w: %d vectors were enabled as one set; DisableIRQs first, then connect all that are wanted", vfio.ErrInUse, n))
	}
	b := irqSet(uapi.VFIO_IRQ_SET_DATA_EVENTFD|uapi.VFIO_IRQ_SET_ACTION_TRIGGER, i, start, len(fds), 4*len(fds))
	for k, fd := range fds {
		binary.NativeEndian.PutUint32(b[irqSetSize+4*k:], uint32(int32(max(fd, -1))))
	}
	n, err := d.ask(uapi.VFIO_DEVICE_SET_IRQS, b)
	switch {
	case err != nil:
		return fail(d.gone(err))
	case n > 0: // fewer vectors than were asked for, and none enabled
		return fail(&vfio.VectorsError{Asked: len(fds), Available: n})
	}
	d.irq.enabled[i] = max(d.irq.enabled[i], start+len(fds))
	return nil
}

const irqSetSize = int(unsafe.Sizeof(uapi.IRQSet{}))

// irqSet is struct vfio_irq_set with room for data behind it.
func irqSet(flags uint32, i, start, n, data int) []byte {
	b := make([]byte, irqSetSize+data)
	for k, v := range []uint32{uint32(len(b)), flags, uint32(i), uint32(start), uint32(n)} {
		binary.NativeEndian.PutUint32(b[4*k:], v)
	}
	return b
}

// irqAction does an action without data.
func (d *Device) irqAction(op string, action uint32, i, start, n int) error {
	object := fmt.Sprintf("index %d vectors %d+%d", i, start, n)
	if err := d.use(op, object); err != nil {
		return err
	}
	defer d.hold.exit()
	if i < 0 || start < 0 || n < 0 {
		return d.fail(op, object, vfio.ErrInvalid)
	}
	d.irq.mu.Lock()
	defer d.irq.mu.Unlock()
	if _, err := d.ask(uapi.VFIO_DEVICE_SET_IRQS, irqSet(uapi.VFIO_IRQ_SET_DATA_NONE|action, i, start, n, 0)); err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
			err = fmt.Errorf("%w: index %d has %d vectors connected: %w", vfio.ErrInvalid, i, d.irq.enabled[i], err)
		}
		return d.fail(op, object, d.gone(err))
	}
	if n == 0 && action == uapi.VFIO_IRQ_SET_ACTION_TRIGGER {
		delete(d.irq.enabled, i)
	}
	return nil
}

// DisableIRQs implements vfio.Device. An index that is not connected is left
// alone: the kernel calls that an error.
func (d *Device) DisableIRQs(i int) error {
	d.irq.mu.Lock()
	n := d.irq.enabled[i]
	d.irq.mu.Unlock()
	if n == 0 {
		return d.alive("disable interrupts", fmt.Sprintf("index %d", i))
	}
	return d.irqAction("disable interrupts", uapi.VFIO_IRQ_SET_ACTION_TRIGGER, i, 0, 0)
}

// TriggerIRQs implements vfio.Device.
func (d *Device) TriggerIRQs(i, start, n int) error {
	if n == 0 {
		return nil // for the kernel it would disable the index
	}
	return d.irqAction("trigger interrupts", uapi.VFIO_IRQ_SET_ACTION_TRIGGER, i, start, n)
}

// MaskIRQs implements vfio.Device. INTx masks itself when it fires: unmask it
// when its cause is gone.
func (d *Device) MaskIRQs(i, start, n int, mask bool) error {
	if mask {
		return d.irqAction("mask interrupts", uapi.VFIO_IRQ_SET_ACTION_MASK, i, start, n)
	}
	return d.irqAction("unmask interrupts", uapi.VFIO_IRQ_SET_ACTION_UNMASK, i, start, n)
}
