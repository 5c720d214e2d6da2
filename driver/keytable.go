package driver

import (
	"context"
	"fmt"

	"rnic/hw"
	"rnic/hw/mmio"
)

// keyWindow is the entry in BAR KEYTABLE, or nil where the card has no window
// or it is not mapped.
func (d *Device) keyWindow(index uint32) *hw.KeyEntry {
	if d.attr.Capabilities&hw.CapabilityKeyWindow == 0 {
		return nil
	}
	b := d.keyTable.Window(uint64(index)*hw.KeyEntrySize, hw.KeyEntrySize)
	if b == nil {
		return nil
	}
	return hw.ViewKeyEntry(b)
}

// writeKey stores an entry of the key table: by the window, the valid word
// cleared first and stored last, else by command.
func (d *Device) writeKey(ctx context.Context, index uint32, e hw.KeyEntry) error {
	w := d.keyWindow(index)
	if w == nil {
		return d.command(ctx, hw.CommandWriteKey, index, 0, e.AsBytes(), nil)
	}
	mmio.Store32(&w.Valid, 0)
	mmio.ToDevice()
	mmio.Store64(&w.Base, e.Base)
	mmio.Store64(&w.Length, e.Length)
	mmio.Store64(&w.IOVA, e.IOVA)
	mmio.Store32(&w.PD, e.PD)
	mmio.Store32(&w.BoundQPN, e.BoundQPN)
	mmio.Store32(&w.Parent, e.Parent)
	mmio.Store32(&w.AddressSpace, e.AddressSpace)
	mmio.ToDevice()
	mmio.Store32(&w.Valid, e.Valid)
	return d.dev.Err()
}

// readKey reads an entry of the card's key table.
func (d *Device) readKey(ctx context.Context, index uint32) (e hw.KeyEntry, err error) {
	err = d.command(ctx, hw.CommandReadKey, index, 0, nil, e.AsBytes())
	return e, err
}

// KeyInfo is a key as one of the places that know it has it.
type KeyInfo struct {
	Key    uint32 // index << 8 | tag
	State  hw.KeyState
	Type   hw.KeyType
	PD     uint32
	Access Access
	Base   uint64 // virtual address of the first byte
	Length uint64 // bytes
	IOVA   uint64
}

func keyInfo(index uint32, e *hw.KeyEntry) KeyInfo {
	v := hw.KeyEntryValid(e.Valid)
	return KeyInfo{Key: index<<8 | uint32(v.Tag()), State: v.State(), Type: v.Type(), PD: e.PD, Access: v.Access(), Base: e.Base, Length: e.Length, IOVA: e.IOVA}
}

// list asks the card which numbers of a kind are in use, ascending.
func (d *Device) list(ctx context.Context, kind hw.ListKind) ([]uint32, error) {
	var all []uint32
	first := uint32(0)
	for {
		var out [mailboxOut]byte
		r, err := d.cmd.do(ctx, hw.CommandList, uint32(kind), first, nil, out[:])
		if err != nil {
			return nil, err
		}
		n := int(min(r.OutLength, mailboxOut)) / 4
		for i := range n {
			v := uint32(out[4*i]) | uint32(out[4*i+1])<<8 | uint32(out[4*i+2])<<16 | uint32(out[4*i+3])<<24
			if v < first {
				return nil, fmt.Errorf("the card lists %#x after %#x", v, first)
			}
			all = append(all, v)
			first = v + 1
		}
		if n < len(out)/4 || first == 0 {
			return all, nil
		}
	}
}
