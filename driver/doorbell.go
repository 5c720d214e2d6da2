package driver

import (
	"fmt"

	"rnic/hw/mmio"
)

// doorbell is a queue's page in BAR DOORBELL.
type doorbell struct {
	page   uint32
	offset uint64 // of the queue's first word in the BAR
	second uint64 // of its second word
}

// newDoorbell takes a page and chooses the words' places in it, 64 bytes apart
// and coloured by the page's number: a card that scans a thousand pages at
// one offset would find all the words in one set of its cache.
func (d *Device) newDoorbell() (doorbell, error) {
	p, err := d.doorbells.alloc()
	if err != nil {
		return doorbell{}, fmt.Errorf("doorbell pages: %w", err)
	}
	base := uint64(p) * uint64(d.attr.DoorbellStride)
	return doorbell{page: p, offset: base + uint64(p%32)*128, second: base + uint64(p%32)*128 + 64}, nil
}

// word is a doorbell word, zeroed. The whole of BAR DOORBELL is mapped: Open
// checked it.
func (d *Device) word(off uint64) (*uint32, error) {
	w := d.bells.Word32(off)
	if w == nil {
		return nil, fmt.Errorf("doorbell at %#x is not mapped: %w", off, ErrNotSupported)
	}
	mmio.Store32(w, 0)
	return w, nil
}
