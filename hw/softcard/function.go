package softcard

import (
	"fmt"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

var _ vfiouser.Function = (*Card)(nil)

// Regions lists the card's BARs and its configuration space.
func (c *Card) Regions() []vfiouser.RegionSpec {
	const rw = vfio.RegionRead | vfio.RegionWrite
	return []vfiouser.RegionSpec{
		{Index: hw.BARCtrl, Size: hw.BARCtrlSize, Flags: rw},
		{Index: hw.BARDoorbell, Size: hw.BARDoorbellSize, Flags: rw, Areas: []vfio.Area{{Size: hw.BARDoorbellSize}}, FD: c.mem.doorbellFD},
		{Index: hw.BARKeytable, Size: hw.BARKeytableSize, Flags: rw, Areas: []vfio.Area{{Size: hw.BARKeytableSize}}, FD: c.mem.keyFD},
		{Index: vfio.RegionConfig, Size: configBytes, Flags: rw},
	}
}

// IRQs lists the card's interrupts.
func (c *Card) IRQs() []vfiouser.IRQSpec {
	return []vfiouser.IRQSpec{
		{Index: vfio.IRQMSIX, Count: int(c.lim.Vectors), Flags: vfio.IRQEventFD},
		{Index: vfio.IRQERR, Count: 1, Flags: vfio.IRQEventFD},
		{Index: vfio.IRQREQ, Count: 1, Flags: vfio.IRQEventFD},
	}
}

// ReadRegion reads registers, the mapped BARs' memory, or configuration space.
func (c *Card) ReadRegion(i int, off uint64, p []byte) error {
	switch i {
	case hw.BARCtrl:
		c.regs.read(off, p)
	case vfio.RegionConfig:
		c.cfgs.read(off, p)
	case hw.BARDoorbell:
		for n := 0; n < len(p); {
			var b [4]byte
			at := off + uint64(n)
			le.PutUint32(b[:], c.dbLoad(uint32(at)&^3))
			n += copy(p[n:], b[at&3:])
		}
	case hw.BARKeytable:
		copy(p, c.mem.keyMap.Bytes(off, uint64(len(p))))
	default:
		return fmt.Errorf("softcard: no region %d: %w", i, unix.EINVAL)
	}
	return nil
}

// WriteRegion writes registers, doorbells, key-table entries or configuration
// space. Doorbells and the key table are there to be mapped; by message, they
// take whole 32-bit words.
func (c *Card) WriteRegion(i int, off uint64, p []byte) error {
	switch i {
	case hw.BARCtrl:
		return c.regs.write(off, p)
	case vfio.RegionConfig:
		c.writeConfig(off, p)
		return nil
	case hw.BARDoorbell, hw.BARKeytable:
		if off%4 != 0 || len(p)%4 != 0 {
			return fmt.Errorf("softcard: store of %d bytes at %#x of region %d: aligned 32-bit words only: %w", len(p), off, i, unix.EINVAL)
		}
		m := c.mem.doorbellMap
		if i == hw.BARKeytable {
			m = c.mem.keyMap
		}
		for words := hw.SliceCQArm(m.Bytes(off, uint64(len(p)))); len(p) > 0; p, words = p[4:], words[1:] {
			mmio.Store32(&words[0].Word, le.Uint32(p))
		}
		c.rouse()
		return nil
	}
	return fmt.Errorf("softcard: no region %d: %w", i, unix.EINVAL)
}

func (c *Card) writeConfig(off uint64, p []byte) {
	master, flr := c.cfgs.write(off, p)
	if flr {
		c.functionReset(c.attached(), 0)
		return
	}
	if h := c.attached(); master && h != nil {
		h.SetBusMaster(c.cfgs.busMaster())
	}
}

func (c *Card) attached() Host {
	c.regs.mu.Lock()
	defer c.regs.mu.Unlock()
	return c.regs.host
}

// Reset is DEVICE_RESET, and but for the command register a function level
// reset. DMA is cut off at once, STATUS.READY falls, and the next Step does the
// rest.
func (c *Card) Reset() { c.functionReset(c.attached(), vfio.CommandMemory) }

// Attach begins a client's session with a card that is reset.
func (c *Card) Attach(h Host) { c.functionReset(h, vfio.CommandMemory) }

// Detach ends the client's session: the card is reset.
func (c *Card) Detach() { c.functionReset(nil, vfio.CommandMemory) }

func (c *Card) functionReset(h Host, command uint16) {
	if h != nil {
		h.SetBusMaster(false)
	}
	c.cfgs.reset(command)
	r := &c.regs
	r.mu.Lock()
	r.host = h
	r.resetLocked()
	r.mu.Unlock()
	c.rouse()
}
