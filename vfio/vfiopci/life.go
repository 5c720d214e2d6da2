package vfiopci

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

// hold counts the calls that use the descriptors, so that none is closed, and
// its number given to another file, under a call.
type hold struct {
	mu     sync.Mutex
	users  int
	closed bool
	idle   chan struct{} // closed with the last user after close
}

func (h *hold) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.users++
	return true
}

func (h *hold) exit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users == 0 && h.closed {
		close(h.idle)
	}
}

func (h *hold) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed = true; h.users == 0 {
		close(h.idle)
	}
}

// connectEvents connects ERR and REQ, where the function has them.
func (d *Device) connectEvents() error {
	for _, e := range []struct {
		irq   int
		event vfio.Event
	}{{vfio.IRQREQ, vfio.EventRequest}, {vfio.IRQERR, vfio.EventError}} {
		if e.irq >= d.info.NumIRQs {
			continue
		}
		q, err := d.IRQ(e.irq)
		if err != nil {
			return err
		}
		if q.Count == 0 || q.Flags&vfio.IRQEventFD == 0 {
			continue
		}
		fd, err := d.sys.Eventfd()
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "vfio event")
		d.eventFDs = append(d.eventFDs, f)
		if err := d.SetIRQs(e.irq, 0, []int{fd}); err != nil {
			return err
		}
		d.watching.Go(func() {
			var b [8]byte
			for {
				if _, err := f.Read(b[:]); err != nil {
					return // closed
				}
				d.happened(e.event)
			}
		})
	}
	return nil
}

// happened makes an event known. A function that no longer answers is gone:
// the kernel asks for one back that it is removing.
func (d *Device) happened(e vfio.Event) {
	d.mu.Lock()
	if d.err == nil && len(d.events) < eventBacklog-1 { // the kernel repeats REQ until the function is given back
		d.events <- e
	}
	d.mu.Unlock()
	if !d.answers() {
		d.end(fmt.Errorf("%w: the function no longer answers (%v)", vfio.ErrGone, e))
	}
}

// answers reads revision and class, which come from the function itself: the
// kernel makes up vendor and device. All ones, or no answer, is a function that
// has left its slot.
func (d *Device) answers() bool {
	d.mu.Lock()
	r, ok := d.regions[vfio.RegionConfig]
	d.mu.Unlock()
	if !ok || !d.hold.enter() {
		return true // not open yet, or no longer
	}
	defer d.hold.exit()
	var b [4]byte
	n, err := d.sys.Pread(d.fd, b[:], int64(r.offset)+vfio.ConfigRevision)
	return err == nil && n == len(b) && binary.LittleEndian.Uint32(b[:]) != 0xffffffff
}

// gone looks whether an error means that the function has gone, and ends the
// device then. EIO alone does not: memory space may be off.
func (d *Device) gone(err error) error {
	if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENXIO) {
		return err
	}
	if d.answers() {
		return fmt.Errorf("the function refuses the access; is its memory space on (bit 1 of the command register)? %w", err)
	}
	err = fmt.Errorf("%w: the function no longer answers: %w", vfio.ErrGone, err)
	d.end(err)
	return err
}

// end marks the device with its first cause. In this order: calls fail, BARs
// become pages of ones, bus mastering goes off, what is mapped for DMA is
// unmapped, EventGone, Done. With the last call under way the descriptors are
// closed: a function that is gone is given back without Close, since the kernel
// waits for it.
func (d *Device) end(cause error) {
	d.ended.Do(func() {
		d.mu.Lock()
		d.err = cause
		mappings := d.mappings
		d.mappings = nil
		d.mu.Unlock()
		for _, m := range mappings {
			_ = m.Revoke() // what cannot be revoked still maps the function
		}
		d.masterOff()
		left := d.endDMA()
		d.events <- vfio.EventGone // its place is kept
		close(d.done)
		d.hold.close()
		go func() {
			<-d.hold.idle
			_ = d.sys.Close(d.fd)
			d.iommu.close()
			for _, m := range left { // the address space is gone, and what was pinned with it
				m.Unretain()
			}
			close(d.released)
		}()
	})
	<-d.done
}

// masterOff clears bus mastering, leaving the other bits alone.
func (d *Device) masterOff() {
	d.mu.Lock()
	r, ok := d.regions[vfio.RegionConfig]
	d.mu.Unlock()
	if !ok {
		return
	}
	var b [2]byte
	at := int64(r.offset) + vfio.ConfigCommand
	if n, err := d.sys.Pread(d.fd, b[:], at); err != nil || n != len(b) {
		return
	}
	v := binary.LittleEndian.Uint16(b[:])
	if v == 0xffff || v&vfio.CommandBusMaster == 0 {
		return
	}
	binary.LittleEndian.PutUint16(b[:], v&^vfio.CommandBusMaster)
	_, _ = d.sys.Pwrite(d.fd, b[:], at)
}

// alive is nil until the device ends.
func (d *Device) alive(op, object string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return &vfio.Error{Addr: d.addr, Op: op, Object: object, Err: d.err}
	}
	return nil
}

// Reset implements vfio.Device. The kernel saves and restores configuration
// space and MSI-X; everything else of the function is as after power on. One
// that outlasts the context goes on, and ends without harm.
func (d *Device) Reset(ctx context.Context) error {
	if !d.info.Reset {
		return d.fail("reset", "", vfio.ErrNotSupported)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	if err := d.use("reset", ""); err != nil {
		return err
	}
	res := make(chan error, 1)
	go func() {
		defer d.hold.exit()
		_, err := retryAgain(func() (int, error) { return d.sys.IoctlInt(d.fd, uapi.VFIO_DEVICE_RESET, 0) })
		if err != nil {
			err = d.gone(err)
		}
		res <- err
	}()
	select {
	case err := <-res:
		if err != nil {
			return d.fail("reset", "", err)
		}
		return nil
	case <-d.done:
		return d.fail("reset", "", vfio.ErrGone)
	case <-ctx.Done():
		return d.fail("reset", "", fmt.Errorf("%w: %w", vfio.ErrTimeout, context.Cause(ctx)))
	}
}

// Events implements vfio.Device.
func (d *Device) Events() <-chan vfio.Event { return d.events }

// Done implements vfio.Device.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err implements vfio.Device.
func (d *Device) Err() error {
	select {
	case <-d.done:
	default:
		return nil
	}
	return d.alive("use device", "")
}

// Close implements vfio.Device: bus mastering off, DMA unmapped, descriptors
// closed, with which the kernel resets the function. BARs are replaced before,
// since a mapped one keeps who asked for the function waiting. A call that the
// kernel does not end keeps its descriptors open, and not Close.
func (d *Device) Close() error {
	d.closed.Do(func() {
		d.end(vfio.ErrClosed)
		t := time.NewTimer(d.timeout)
		defer t.Stop()
		select {
		case <-d.released:
		case <-t.C:
			d.closeErr = &vfio.Error{Addr: d.addr, Op: "close", Err: fmt.Errorf("%w: a call is still in the kernel; the function is given back when it returns", vfio.ErrTimeout)}
		}
		for _, f := range d.eventFDs {
			_ = f.Close()
		}
		d.watching.Wait()
		close(d.events)
	})
	return d.closeErr
}
