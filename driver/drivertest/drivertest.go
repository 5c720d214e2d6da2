// Package drivertest injects faults into an open card, for tests of programs that
// use package driver: lost, late and damaged frames, memory that refuses a read, a
// walk that goes wrong, interrupts that do not come, a clock that the test moves, a
// device that goes away.
//
//	d, err := driver.Open(ctx, "soft:a")
//	…
//	c, err := drivertest.On(d)
//	…
//	c.FailRead(ctx, 2) // the second payload read from now on fails
//
// It works on any card whose debug page is there (capability DEBUG of docs/card.md),
// a soft card always; else On is driver.ErrNotSupported. The program under test needs
// no change, and it meets the fault where it would meet a real one: in a completion, an
// event, or the error of a call.
//
// When a call that takes a context returns nil, the card does from then on what was asked for. Each of them
// ends by the context, in 5 s where that has no deadline, or when the device goes away. The
// faults of a card are those of everybody who uses it: a test has its own.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rnic/driver"
	"rnic/hw"
)

// Card is the faults of an open card. Its methods are safe for concurrent use, but a
// port or a clock is for one test at a time.
type Card struct {
	d *driver.Device
	g *driver.Debug
}

// On gives the faults of an open card, or driver.ErrNotSupported where it has no debug
// page.
func On(d *driver.Device) (*Card, error) {
	g, err := d.Debug()
	if err != nil {
		return nil, err
	}
	return &Card{d, g}, nil
}

// taken is the end of each setter: what was set is in force.
func (c *Card) taken(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	return c.g.Sync(ctx)
}

// FailRead has the nth payload read of the card from now on fail, n from 1: its request
// ends with driver.ReasonDMARead. 0 takes the fault back.
func (c *Card) FailRead(ctx context.Context, n uint32) error { return c.taken(ctx, c.g.FailDMARead(n)) }

// FailWrite is FailRead for the nth payload write, with driver.ReasonDMAWrite.
func (c *Card) FailWrite(ctx context.Context, n uint32) error {
	return c.taken(ctx, c.g.FailDMAWrite(n))
}

// FlipByte inverts the first byte of the nth packet that the card gathers from now on.
// Its checksum is right: nobody but who knows the payload can tell. 0 takes it back.
func (c *Card) FlipByte(ctx context.Context, n uint32) error { return c.taken(ctx, c.g.FlipByte(n)) }

// WalkFault is a defect of the card's gather.
type WalkFault = hw.WalkFault

// Defects of the gather (enum WalkFault of docs/card.md), which driver.WithVerify finds.
const (
	NoFault          = hw.WalkFaultNone
	CursorOffByOne   = hw.WalkFaultCursorOffByOne  // after a packet, it stands a byte too far
	LookupSkipped    = hw.WalkFaultLookupSkipped   // the last translation is used again
	StaleCache       = hw.WalkFaultStaleCache      // the cache keeps the keys of regions that are deregistered
	SegmentsSwapped  = hw.WalkFaultSegmentsSwapped // the next two segments change places
	ShortLast        = hw.WalkFaultShortLast       // a message's last packet lacks a byte
	AckReqMissing    = hw.WalkFaultACKReqMissing   // a message's last packet asks for no acknowledgement
	OneByteOfPayload = hw.WalkFaultPayloadFlipped  // a byte of a packet is inverted
)

// BreakWalk puts a defect into the gather of the nth packet from now on, n from 1; with
// n 0 into that of every packet, until NoFault.
func (c *Card) BreakWalk(ctx context.Context, f WalkFault, n uint32) error {
	return c.taken(ctx, c.g.SetWalkFault(f, n))
}

// HoldInterrupts holds MSI-X vectors of the card back until release, which delivers what
// came meanwhile: those named, up to 31, else all. Vector 0 is that of control calls and asynchronous events: while
// it is held, calls wait.
func (c *Card) HoldInterrupts(vectors ...int) (release func() error, err error) {
	mask := uint32(0)
	for _, v := range vectors {
		if v < 0 || v > 31 {
			return nil, fmt.Errorf("drivertest: vector %d: 0 to 31 can be held: %w", v, driver.ErrInvalid)
		}
		mask |= 1 << v
	}
	if len(vectors) == 0 {
		mask = ^uint32(0)
	}
	return c.hold(c.g.HoldInterrupts(mask), func() error { return c.g.HoldInterrupts(0) })
}

// HoldFill stops the card between reading a key from its table and entering it into its
// cache, until release: so a deregistration can be made to fall in between.
func (c *Card) HoldFill() (release func() error, err error) {
	return c.hold(c.g.HoldFill(true), func() error { return c.g.HoldFill(false) })
}

func (c *Card) hold(err error, release func() error) (func() error, error) {
	if err != nil {
		return nil, err
	}
	return release, nil
}

// FlipKey inverts a bit of a key's entry in the card's key table, FlipCached in the key
// cache, wherever it has the key: bits are counted through the 64 bytes of KeyEntry
// (docs/card.md). Device.Scrub finds both.
func (c *Card) FlipKey(ctx context.Context, key uint32, bit int) error {
	return c.taken(ctx, c.g.FlipKey(ctx, key, bit))
}

// FlipCached is FlipKey for the cache. A bit that the cache does not keep, and a key that
// is not in it, change nothing.
func (c *Card) FlipCached(ctx context.Context, key uint32, bit uint16) error {
	a := c.d.Attr()
	for line := range a.KeyCacheSets * a.KeyCacheWays {
		held, err := c.g.CachedKey(ctx, line)
		if err != nil {
			return err
		}
		if held == key {
			return c.taken(ctx, c.g.FlipCache(uint16(line), bit))
		}
	}
	return nil
}

// Remove takes the device away, as when it is unplugged: every call and every wait of the
// program ends with driver.ErrDeviceGone.
func (c *Card) Remove() error { return c.g.Remove() }

// Clock is the card's clock while it stands.
type Clock struct{ c *Card }

// StopClock makes the card's clock stand: its timers run when the test moves it.
func (c *Card) StopClock(ctx context.Context) (*Clock, error) {
	if err := c.taken(ctx, c.g.SetClockMode(hw.ClockModeStepped)); err != nil {
		return nil, err
	}
	return &Clock{c}, nil
}

// Now is the card's time.
func (t *Clock) Now() (time.Duration, error) {
	ns, err := t.c.g.Clock()
	return time.Duration(ns), err
}

// Next is the time until the card's next timer: a retransmission, a queue pair that its
// rate limit holds. false: none is running.
func (t *Clock) Next() (d time.Duration, running bool, err error) {
	ns, running, err := t.c.g.NextTimer()
	return time.Duration(ns), running, err
}

// Advance moves the clock on, and waits until the card has done what was due and has
// nothing left to do.
func (t *Clock) Advance(ctx context.Context, d time.Duration) error {
	if err := t.c.g.StepClock(uint64(d)); err != nil {
		return err
	}
	return t.c.g.AwaitQuiescent(ctx)
}

// Run lets the clock run again.
func (t *Clock) Run(ctx context.Context) error {
	return t.c.taken(ctx, t.c.g.SetClockMode(hw.ClockModeReal))
}

// Clear takes back every fault that waits to happen, and lets go what is held.
func (c *Card) Clear(ctx context.Context) error {
	g := c.g
	return c.taken(ctx, errors.Join(g.FailDMARead(0), g.FailDMAWrite(0), g.FlipByte(0), g.SetWalkFault(NoFault, 0), g.HoldInterrupts(0), g.HoldFill(false),
		g.HoldPort(false), g.SetClockMode(hw.ClockModeReal)))
}
