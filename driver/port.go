package driver

import (
	"context"
	"fmt"

	"rnic/hw"
)

// portNumber is the card's one port.
const portNumber = 1

// Port is the port as it was when last asked.
func (d *Device) Port() PortAttr {
	p := *d.port.Load()
	p.GIDs = append([]GID(nil), p.GIDs...)
	p.PKeys = append([]uint16(nil), p.PKeys...)
	return p
}

// queryPort asks the card about its port.
func (d *Device) queryPort(ctx context.Context) error {
	var c hw.PortContext
	if err := d.command(ctx, hw.CommandQueryPort, portNumber, 0, nil, c.AsBytes()); err != nil {
		return err
	}
	p := PortAttr{Link: c.Link, MaxMTU: c.MaxMTU, ActiveMTU: c.ActiveMTU, MAC: c.MAC, SpeedMbps: int(c.Speed)}
	for i := range min(d.attr.MaxGID, len(c.GID)/16) {
		var g GID
		if c.GIDValid&(1<<i) != 0 {
			g = GID(c.GID[16*i:])
		}
		p.GIDs = append(p.GIDs, g)
	}
	p.PKeys = append(p.PKeys, c.PKey[:min(int(c.PKeyCount), len(c.PKey))]...)
	d.port.Store(&p)
	return nil
}

// PortConfig is what ModifyPort sets.
type PortConfig struct {
	MAC       MAC
	GIDs      []GID    // the table, from index 0; a zero one is not set
	PKeys     []uint16 // the table, from index 0; none: the default P_Key 0xffff
	ActiveMTU MTU      // largest path MTU in use; 0: the card's largest
}

// Config is the port's configuration as it stands, for ModifyPort.
func (p PortAttr) Config() PortConfig {
	return PortConfig{MAC: p.MAC, GIDs: p.GIDs, PKeys: p.PKeys, ActiveMTU: p.ActiveMTU}
}

// ModifyPort sets the port's addresses, P_Keys and MTU, all of them. Queue
// pairs that are connected keep what they have.
func (d *Device) ModifyPort(ctx context.Context, p PortConfig) error {
	const op = "modify port"
	if err := d.alive(); err != nil {
		return d.fail(op, "", err)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	var c hw.PortContext
	if len(p.GIDs) > min(d.attr.MaxGID, len(c.GID)/16) {
		return d.fail(op, "", fmt.Errorf("%d GIDs, the card has %d: %w", len(p.GIDs), d.attr.MaxGID, ErrLimit))
	}
	if len(p.PKeys) > len(c.PKey) {
		return d.fail(op, "", fmt.Errorf("%d P_Keys, at most %d: %w", len(p.PKeys), len(c.PKey), ErrLimit))
	}
	c.MAC, c.ActiveMTU = p.MAC, p.ActiveMTU
	if c.ActiveMTU == 0 {
		c.ActiveMTU = d.attr.MaxMTU
	}
	for i, g := range p.GIDs {
		copy(c.GID[16*i:], g[:])
		if !g.IsZero() {
			c.GIDValid |= 1 << i
		}
	}
	pkeys := p.PKeys
	if len(pkeys) == 0 {
		pkeys = []uint16{0xffff}
	}
	c.PKeyCount = uint8(copy(c.PKey[:], pkeys))
	if err := d.command(ctx, hw.CommandModifyPort, portNumber, 0, c.AsBytes(), nil); err != nil {
		return d.fail(op, "", err)
	}
	return d.fail(op, "", d.queryPort(ctx))
}
