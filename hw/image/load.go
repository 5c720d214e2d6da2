package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"rnic/hw"
)

// ErrVerify is a flash that does not hold what was written.
var ErrVerify = errors.New("the flash does not hold what was written")

// ErrSlot is a slot that is not to be written.
var ErrSlot = errors.New("slot not to be written")

// AnySlot lets Load choose the slot.
const AnySlot = -1

// Progress is told how far Load is: bytes done of all, and what it does.
type Progress func(done, all int, what string)

// A Plan is where an image will go.
type Plan struct {
	Slot       int
	Keep       int // the slot whose image stays the one to start until the new one is whole, or -1
	Generation uint32
	Slots      []Slot // as they were found
}

// Prepare reads the slots and chooses one for the image: slot, or AnySlot. It changes nothing. running is the slot that the card
// runs, or hw.NoSlot. errors.Is: ErrMismatch, ErrSlot.
func Prepare(f Flash, running uint32, slot int, im *Image, part string) (*Plan, error) {
	g := f.Geometry()
	if err := g.Check(); err != nil {
		return nil, err
	}
	if err := errors.Join(im.Check(), im.Manifest.For(part)); err != nil {
		return nil, err
	}
	if len(im.Data) > g.Room() {
		return nil, fmt.Errorf("%w: the image has %d bytes, a slot has room for %d", ErrSlot, len(im.Data), g.Room())
	}
	slots, err := ReadSlots(f, func(int) {})
	if err != nil {
		return nil, err
	}
	p := &Plan{Slot: slot, Keep: Newest(slots), Slots: slots}
	if p.Keep >= 0 {
		p.Generation = slots[p.Keep].Header.Generation
	}
	p.Generation++
	if running < uint32(len(slots)) && slots[running].State == Whole {
		p.Keep = int(running) // it has shown that it starts
	}
	if slot == AnySlot {
		// The first that holds no whole image, else the oldest.
		for i, s := range slots {
			if i == p.Keep {
				continue
			}
			if p.Slot < 0 || s.State != Whole && slots[p.Slot].State == Whole ||
				s.State == Whole && slots[p.Slot].State == Whole && newer(slots[p.Slot].Header.Generation, s.Header.Generation) {
				p.Slot = i
			}
		}
	}
	switch {
	case p.Slot < 0 || p.Slot >= len(slots):
		return nil, fmt.Errorf("%w: slot %d; there are %d", ErrSlot, p.Slot, len(slots))
	case p.Slot == p.Keep:
		return nil, fmt.Errorf("%w: slot %d has the image that the card falls back to; write another", ErrSlot, p.Slot)
	}
	return p, nil
}

// Load writes the image as planned, and verifies it. Power may be lost, or ctx end, at any byte: the header of the slot is
// erased first and programmed last, and the slot to keep is not touched. errors.Is: ErrVerify.
func (p *Plan) Load(ctx context.Context, f Flash, im *Image, progress Progress) error {
	g := f.Geometry()
	base := p.Slot * g.Slot()
	sectors := 1 + (len(im.Data)+g.Sector-1)/g.Sector
	done, all := 0, sectors*g.Sector+2*len(im.Data)
	step := func(n int, what string) error {
		done += n
		progress(done, all, what)
		return context.Cause(ctx)
	}
	// A sector is erased also where it reads as erased: an erase that power interrupted may leave bits that do not hold.
	for i := range sectors {
		if err := f.Erase(base + i*g.Sector); err != nil {
			return err
		}
		if err := step(g.Sector, "erase"); err != nil {
			return err
		}
	}
	first := base + g.Sector
	if err := program(f, first, im.Data, func(n int) error { return step(n, "program") }); err != nil {
		return err
	}
	if err := compare(f, first, im.Data, func(n int) error { return step(n, "verify") }); err != nil {
		return err
	}
	h, err := im.Manifest.Header(p.Generation)
	if err != nil {
		return err
	}
	none := func(int) error { return nil }
	if err := program(f, base, h.AsBytes(), none); err != nil {
		return err
	}
	return compare(f, base, h.AsBytes(), none)
}

// program writes pages; what is behind the bytes in their last word stays erased.
func program(f Flash, at int, data []byte, step func(n int) error) error {
	page := f.Geometry().Page
	for n := 0; n < len(data); n += page {
		p := data[n:min(n+page, len(data))]
		whole := p
		if len(p)%4 != 0 {
			whole = append(bytes.Clone(p), []byte{0xff, 0xff, 0xff}[:4-len(p)%4]...)
		}
		if err := f.Program(at+n, whole); err != nil {
			return err
		}
		if err := step(len(p)); err != nil {
			return err
		}
	}
	return nil
}

func compare(f Flash, at int, data []byte, step func(n int) error) error {
	sector := f.Geometry().Sector
	b := make([]byte, sector)
	for n := 0; n < len(data); n += sector {
		p := b[:min(sector, len(data)-n)]
		if err := f.Read(at+n, p); err != nil {
			return err
		}
		for i := range p {
			if p[i] != data[n+i] {
				return fmt.Errorf("%w: byte %#x is %#02x, not %#02x", ErrVerify, at+n+i, p[i], data[n+i])
			}
		}
		if err := step(len(p)); err != nil {
			return err
		}
	}
	return nil
}

// Running compares what a card says of itself after a load with the plan: nil if it runs the new image.
func (p *Plan) Running(started uint32) error {
	if started == uint32(p.Slot) {
		return nil
	}
	where := fmt.Sprintf("slot %d", started)
	if started == hw.NoSlot {
		where = "no slot"
	}
	return fmt.Errorf("the card runs the image of %s, and the new one is in slot %d", where, p.Slot)
}
