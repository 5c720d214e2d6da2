package driver

import (
	"context"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/vfio"
)

// Quarantined reports whether the region was deregistered and its DMA addresses are
// kept out of use.
func (m *MR) Quarantined() bool {
	d := m.pd.d
	if m.mem != nil {
		return d.space.Allocator().Quarantined(m.iova, m.length)
	}
	return d.regions.Quarantined(m.iova, m.length)
}

// LookAt has the driver look at another word instead of the card's sleep flag, which it gives.
func (d *Device) LookAt(flag *uint32) (card *uint32) {
	for _, v := range d.vectors { // who takes events looks too
		v.mu.Lock()
		defer v.mu.Unlock()
	}
	card, d.domain.Sleep = d.domain.Sleep, flag
	return card
}

// OwnRings has rings made from now on stand in a mapping of their own, until the call that it gives.
func (d *Device) OwnRings() (end func()) {
	old := d.arena
	d.arena = vfio.NewArena(d.space, vfio.MemoryOptions{})
	return func() { d.arena = old }
}

// UnmapRings takes the mapping of a queue pair's rings, made after OwnRings and first, from the card.
func (q *QP) UnmapRings() error { return q.pd.d.dev.UnmapDMA(q.ring.IOVA, 2<<20) }

// IOVA is the DMA address of the region's first byte.
func (m *MR) IOVA() uint64 { return m.iova }

// SetState changes the state of the region's key, as nothing in this driver does.
func (m *MR) SetState(ctx context.Context, s hw.KeyState) error {
	d := m.pd.d
	e := m.entry()
	e.SetState(s)
	d.shadow.mu.Lock()
	d.shadow.keys[m.key>>8].key.State = s
	d.shadow.mu.Unlock()
	if err := d.writeKey(ctx, m.key>>8, e); err != nil {
		return err
	}
	return d.command(ctx, hw.CommandFenceKey, m.key>>8, 0, nil, nil)
}

// EditShadow changes the shadow's copy of the region's key, as a flipped bit does.
func (m *MR) EditShadow(edit func(*gather.Key)) {
	s := &m.pd.d.shadow
	s.mu.Lock()
	edit(&s.keys[m.key>>8].key)
	s.mu.Unlock()
}

// MoveShadow has the region's key be on its way to the card, or no longer.
func (m *MR) MoveShadow(moving bool) { m.pd.d.shadow.move(m, moving) }

// WriteKey stores an entry into the card's key table, past the shadow.
func (d *Device) WriteKey(ctx context.Context, index uint32, e hw.KeyEntry) error {
	return d.writeKey(ctx, index, e)
}

// Fence has the card's cache forget a key.
func (d *Device) Fence(ctx context.Context, key uint32) error {
	return d.command(ctx, hw.CommandFenceKey, key>>8, 0, nil, nil)
}
