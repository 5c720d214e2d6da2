package driver

import (
	"errors"
	"fmt"
	"sync/atomic"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/vfio"
)

// ring wakes the goroutine that stores the trapped registers, for what. It
// never blocks: the data path kicks through it.
func (d *Device) ring(what *atomic.Bool) {
	what.Store(true)
	select {
	case d.rung <- struct{}{}:
	default: // it will look at all of them anyhow
	}
}

// ringer stores to the trapped registers: a store there is a message or a
// trap, and a card that hangs must hang nobody who posts.
func (d *Device) ringer() {
	defer d.wg.Done()
	for {
		select {
		case <-d.rung:
		case <-d.stop:
			return
		}
		if d.commandRung.Swap(false) {
			d.ringRegister(hw.RegControlCommandDoorbell, d.cmd.producer.Load())
		}
		if d.kickRung.Swap(false) {
			d.ringRegister(hw.RegKickKick, 1)
		}
	}
}

func (d *Device) ringRegister(off uint64, v uint32) {
	if err := d.ctrl.Write32(off, v); err != nil && !isGone(err) {
		d.log.Warn("doorbell register", zap.Uint64("offset", off), zap.Error(err))
	}
}

// watch waits for the end of the device, and for its wish to be given back.
func (d *Device) watch() {
	defer d.wg.Done()
	for {
		select {
		case e, ok := <-d.dev.Events():
			switch {
			case !ok:
				<-d.dev.Done()
				d.die(d.dev.Err())
				return
			case e == vfio.EventRequest:
				if err := d.giveBack(fmt.Errorf("%w: the function was asked back", ErrDeviceGone)); err != nil {
					d.log.Warn("give the function back", zap.Error(err))
				}
			case e == vfio.EventError:
				d.die(fmt.Errorf("%w: the function reported an error it cannot recover from", ErrDeviceGone))
			default:
				d.die(d.dev.Err())
			}
		case <-d.dev.Done():
			d.die(d.dev.Err())
			return
		case <-d.stop:
			return
		}
	}
}

// die ends the device's use, once: the BARs are replaced by pages of all ones,
// the queues marked, and everyone who waits is woken. What is mapped stays
// until Close, when no verb is inside any more.
func (d *Device) die(cause error) {
	if cause == nil {
		cause = ErrDeviceGone
	}
	if !isGone(cause) {
		cause = errors.Join(ErrDeviceGone, cause)
	}
	d.dieOnce.Do(func() {
		d.log.Info("device is gone", zap.Error(cause))
		for _, b := range []*vfio.BAR{d.ctrl, d.bells, d.keyTable} {
			if b != nil {
				if err := b.Revoke(); err != nil {
					d.log.Error("revoke BAR", zap.Error(err))
				}
			}
		}
		d.events.push(Event{Type: EventDeviceGone})
		d.mu.Lock()
		d.cause = cause
		close(d.gone)
		cqs, qps := d.children()
		d.mu.Unlock()
		if d.cmd != nil { // nil where Open failed early
			d.cmd.kill(cause)
		}
		for _, q := range qps {
			q.kill(cause)
		}
		for _, c := range cqs {
			c.kill(cause)
		}
	})
}

// giveBack ends the device's use while the kernel waits for the function, so
// everything that holds it goes at once: mappings, interrupts, the device itself.
func (d *Device) giveBack(cause error) error {
	d.die(cause)
	if err := d.dev.Close(); err != nil && !isGone(err) {
		return d.fail("give back", "", err)
	}
	return nil
}

// alive is nil while the device can be used.
func (d *Device) alive() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.aliveLocked()
}

func (d *Device) aliveLocked() error {
	switch {
	case d.closed:
		return ErrClosed
	case d.cause != nil:
		return d.cause
	}
	return nil
}

// fail makes the *DeviceError of an operation; nil stays nil, and an error
// that is one already stays as it is.
func (d *Device) fail(op, object string, err error) error {
	if err == nil {
		return nil
	}
	var e *DeviceError
	if errors.As(err, &e) {
		return err
	}
	return &DeviceError{Addr: d.addr, Op: op, Object: object, Err: err}
}
