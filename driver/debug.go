package driver

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"rnic/hw"
)

// Debug is the card's debug page (block DEBUG of docs/card.md): it sets the
// card's clock and pace, its port and its faults. It is for tests and replays,
// and a card may lack it. Errors are those of the register accesses.
type Debug struct{ d *Device }

// Debug gives the debug page, or ErrNotSupported where the card has none.
func (d *Device) Debug() (*Debug, error) {
	if err := d.alive(); err != nil {
		return nil, d.fail("use debug page", "", err)
	}
	if d.attr.Capabilities&hw.CapabilityDebug == 0 {
		return nil, d.fail("use debug page", "", ErrNotSupported)
	}
	return &Debug{d}, nil
}

// fail makes the error of an access; once the device is gone, that is why.
func (g *Debug) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	if gone := g.d.alive(); gone != nil {
		err = gone
	}
	return g.d.fail(op, "", err)
}

func (g *Debug) set(off uint64, v uint32) error {
	return g.fail("write debug page", g.d.ctrl.Write32(off, v))
}

func (g *Debug) get(off uint64) (uint32, error) {
	v, err := g.d.ctrl.Read32(off)
	return v, g.fail("read debug page", err)
}

func (g *Debug) get64(off uint64) (uint64, error) {
	v, err := g.d.ctrl.Read64(off)
	return v, g.fail("read debug page", err)
}

func flag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// Sync returns once the card has taken in what was set before: what it does from
// then on, it does so. It is a command that does nothing.
func (g *Debug) Sync(ctx context.Context) error {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := g.d.alive(); err != nil {
		return g.d.fail("use debug page", "", err)
	}
	return g.d.fail("use debug page", "", g.d.command(ctx, hw.CommandNop, 0, 0, nil, nil))
}

// SetAckReqInterval has every nth packet of a message ask for an
// acknowledgement too; 0: the last only (rule G13).
func (g *Debug) SetAckReqInterval(n uint32) error {
	v := g.d.verify
	if v == nil {
		return g.set(hw.RegDebugACKReqInterval, n)
	}
	v.setAckReq(n, true)
	if err := g.set(hw.RegDebugACKReqInterval, n); err != nil {
		return err
	}
	if err := g.Sync(context.Background()); err != nil {
		return err
	}
	v.setAckReq(n, false)
	return nil
}

// SetAckCoalesce lets one ACK answer several requests for one.
func (g *Debug) SetAckCoalesce(on bool) error { return g.set(hw.RegDebugACKCoalesce, flag(on)) }

// SetIPID sets the IPv4 identification of the next frame; it counts up.
func (g *Debug) SetIPID(id uint16) error { return g.set(hw.RegDebugIPID, uint32(id)) }

// SetRateIgnored opens the rate limiter's gate.
func (g *Debug) SetRateIgnored(on bool) error { return g.set(hw.RegDebugRateIgnored, flag(on)) }

// SetClockMode lets the card's clock run, or makes it stand until StepClock.
func (g *Debug) SetClockMode(m hw.ClockMode) error { return g.set(hw.RegDebugClockMode, uint32(m)) }

// Clock is the card's time in ns.
func (g *Debug) Clock() (uint64, error) { return g.get64(hw.RegDebugClockNow) }

// StepClock moves a clock that stands by so many ns.
func (g *Debug) StepClock(ns uint64) error {
	return g.fail("write debug page", g.d.ctrl.Write64(hw.RegDebugClockStep, ns))
}

// NextTimer is the time in ns until the card's next timer, with a clock that
// stands; false when none is running.
func (g *Debug) NextTimer() (ns uint64, ok bool, err error) {
	ns, err = g.get64(hw.RegDebugClockNext)
	return ns, err == nil && ns != hw.NoTimer, err
}

// SetRunMode lets the card run by itself, or only by Run.
func (g *Debug) SetRunMode(m hw.RunMode) error { return g.set(hw.RegDebugRunMode, uint32(m)) }

// Run has a stepped card take in what its port has, or transmit until nothing
// is left to send, or both, and waits until it is done.
func (g *Debug) Run(ctx context.Context, receive, transmit bool) error {
	v := hw.DebugRunStep(0).WithReceive(receive).WithTransmit(transmit)
	if err := g.set(hw.RegDebugRunStep, uint32(v)); err != nil {
		return err
	}
	return g.await(ctx, "the card's step to end", hw.RegDebugRunStep, 0)
}

// await waits until a register has a value.
func (g *Debug) await(ctx context.Context, what string, off uint64, want uint32) error {
	ctx, cancel := bound(ctx)
	defer cancel()
	for wait := 10 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		v, err := g.get(off)
		if err != nil || v == want {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			e := &DeadlineError{Waited: what, Cause: context.Cause(ctx)}
			for _, name := range []string{"DEBUG.RUN_MODE", "DEBUG.RUN_STEP", "DEBUG.QUIESCENT", "CONTROL.STATUS"} {
				if r, err := g.d.ReadRegister(name); err == nil {
					e.Registers = append(e.Registers, r)
				}
			}
			return g.d.fail("use debug page", "", e)
		}
	}
}

// Quiescent reports whether the card has nothing left to do but timers;
// frames that wait at the port do not count.
func (g *Debug) Quiescent() (bool, error) {
	v, err := g.get(hw.RegDebugQuiescent)
	return v == 1, err
}

// AwaitQuiescent waits for Quiescent.
func (g *Debug) AwaitQuiescent(ctx context.Context) error {
	return g.await(ctx, "the card to be quiescent", hw.RegDebugQuiescent, 1)
}

// HoldPort makes frames that arrive wait at the port until TakeFrame.
func (g *Debug) HoldPort(on bool) error {
	return g.set(hw.RegDebugPortMode, uint32(hw.DebugPortMode(0).WithHold(on)))
}

// PortWaiting is the number of frames that wait at the port.
func (g *Debug) PortWaiting() (int, error) {
	v, err := g.get(hw.RegDebugPortWaiting)
	return int(v), err
}

// TakeFrame acts on the waiting frame of that index, the oldest being 0.
// deliver: the card receives it; remove: it leaves the port (alone: a drop;
// deliver without it duplicates); corrupt: the delivered copy is changed as
// SetCorrupt says.
func (g *Debug) TakeFrame(index int, deliver, remove, corrupt bool) error {
	v := hw.DebugPortTake(0).WithIndex(uint16(index)).WithDeliver(deliver).WithRemove(remove).WithCorrupt(corrupt)
	return g.set(hw.RegDebugPortTake, uint32(v))
}

// SetCorrupt says what TakeFrame corrupts: these bits of the frame's byte at
// that offset are inverted.
func (g *Debug) SetCorrupt(offset uint16, xor uint8) error {
	return g.set(hw.RegDebugPortCorrupt, uint32(hw.DebugPortCorrupt(0).WithOffset(offset).WithXor(xor)))
}

// FailDMARead has the nth payload DMA read from now fail; 0: none.
func (g *Debug) FailDMARead(n uint32) error { return g.set(hw.RegDebugFailDMARead, n) }

// FailDMAWrite has the nth payload DMA write from now fail; 0: none.
func (g *Debug) FailDMAWrite(n uint32) error { return g.set(hw.RegDebugFailDMAWrite, n) }

// FlipByte inverts the first byte of the nth gathered packet from now; 0: none.
func (g *Debug) FlipByte(n uint32) error { return g.set(hw.RegDebugFlipByte, n) }

// HoldInterrupts holds the vectors back whose bits are set, until cleared.
func (g *Debug) HoldInterrupts(mask uint32) error { return g.set(hw.RegDebugHoldInterrupts, mask) }

// SetWalkFault puts a defect into the card's walk: in the nth packet from now,
// or in each one for n 0.
func (g *Debug) SetWalkFault(f hw.WalkFault, n uint32) error {
	if err := g.set(hw.RegDebugWalkFaultCount, n); err != nil {
		return err
	}
	return g.set(hw.RegDebugWalkFault, uint32(f))
}

// HoldFill stops a key-cache fill between its read and its entry, until
// cleared.
func (g *Debug) HoldFill(on bool) error { return g.set(hw.RegDebugHoldFill, flag(on)) }

// FlipCache inverts a bit of a line of the key cache.
func (g *Debug) FlipCache(line, bit uint16) error {
	return g.set(hw.RegDebugFlipCache, uint32(line)<<16|uint32(bit))
}

// FlipKey inverts a bit of a key's entry in the card's key table, counted through
// its 64 bytes (KeyEntry of docs/card.md), and leaves the key cache as it is. A card
// without KEY_WINDOW takes the entry by command: then the cache forgets the key, and
// reserved bits are refused. ErrInvalid: there is no such bit.
func (g *Debug) FlipKey(ctx context.Context, key uint32, bit int) error {
	const op = "flip key"
	object := fmt.Sprintf("key %#x", key)
	if bit < 0 || bit >= 8*hw.KeyEntrySize {
		return g.d.fail(op, object, fmt.Errorf("bit %d of %d bytes: %w", bit, hw.KeyEntrySize, ErrInvalid))
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := g.d.alive(); err != nil {
		return g.d.fail(op, object, err)
	}
	e, err := g.d.readKey(ctx, key>>8)
	if err != nil {
		return g.d.fail(op, object, err)
	}
	e.AsBytes()[bit/8] ^= 1 << (bit % 8)
	if g.d.keyWindow(key>>8) == nil {
		return g.d.fail(op, object, g.d.writeKey(ctx, key>>8, e))
	}
	word := bit / 32 * 4
	return g.d.fail(op, object, g.d.keyTable.Write32(uint64(key>>8)*hw.KeyEntrySize+uint64(word), binary.LittleEndian.Uint32(e.AsBytes()[word:])))
}

// CachedKey is the key in a line of the card's key cache, 0 where the line is empty.
// ErrInvalid: there is no such line.
func (g *Debug) CachedKey(ctx context.Context, line int) (key uint32, err error) {
	const op = "read key cache"
	object := fmt.Sprintf("line %d", line)
	if line < 0 || line >= g.d.attr.KeyCacheSets*g.d.attr.KeyCacheWays {
		return 0, g.d.fail(op, object, ErrInvalid)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := g.d.alive(); err != nil {
		return 0, g.d.fail(op, object, err)
	}
	var l hw.KeyCacheLine
	if err := g.d.command(ctx, hw.CommandReadKeyCache, uint32(line), 0, nil, l.AsBytes()); err != nil || l.Present == 0 {
		return 0, g.d.fail(op, object, err)
	}
	return keyInfo(l.Index, &l.Entry).Key, nil
}

// Remove takes the device away from this program, as when the kernel asks a
// function back: every call and every wait ends with ErrDeviceGone.
func (g *Debug) Remove() error {
	if err := g.d.alive(); err != nil {
		return g.d.fail("remove", "", err)
	}
	return g.d.giveBack(fmt.Errorf("%w: removed by a test", ErrDeviceGone))
}
