package drivertest

import (
	"context"
	"fmt"
	"time"

	"rnic/driver"
)

// Port is the frames that wait at a card's port, oldest first, from 0. What the other
// side sends waits there until the test says what becomes of it.
type Port struct{ g *driver.Debug }

// HoldPort makes the frames that arrive at the card wait.
func (c *Card) HoldPort(ctx context.Context) (*Port, error) {
	if err := c.taken(ctx, c.g.HoldPort(true)); err != nil {
		return nil, err
	}
	return &Port{c.g}, nil
}

// Len is the number of frames that wait.
func (p *Port) Len() (int, error) { return p.g.PortWaiting() }

// Wait returns when at least n frames wait.
func (p *Port) Wait(ctx context.Context, n int) error {
	for wait := 20 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		has, err := p.g.PortWaiting()
		if err != nil || has >= n {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("drivertest: %d frames wait at the port, %d should: %w", has, n, context.Cause(ctx))
		}
	}
}

// Deliver lets the card have frame i: frames behind it move up. What waits longer is
// delayed, what is taken out of turn is reordered.
func (p *Port) Deliver(i int) error { return p.g.TakeFrame(i, true, true, false) }

// Drop loses frame i.
func (p *Port) Drop(i int) error { return p.g.TakeFrame(i, false, true, false) }

// Duplicate lets the card have a copy of frame i, which still waits.
func (p *Port) Duplicate(i int) error { return p.g.TakeFrame(i, true, false, false) }

// Corrupt lets the card have frame i with the bits of xor inverted in the byte at that
// offset, counted from the Ethernet header. The card finds it by the ICRC and drops it.
func (p *Port) Corrupt(i int, offset uint16, xor uint8) error {
	if err := p.g.SetCorrupt(offset, xor); err != nil {
		return err
	}
	return p.g.TakeFrame(i, true, true, true)
}

// Release lets the card have what waits, and all that comes.
func (p *Port) Release() error { return p.g.HoldPort(false) }
