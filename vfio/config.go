package vfio

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// Offsets and bits of PCI configuration space (PCI Local Bus 3.0, 6.1; PCI
// Express Base 4.0, 7.5).
const (
	ConfigVendorID  = 0x00
	ConfigDeviceID  = 0x02
	ConfigCommand   = 0x04
	ConfigStatus    = 0x06
	ConfigRevision  = 0x08
	ConfigClass     = 0x09
	ConfigSubVendor = 0x2c
	ConfigSubsystem = 0x2e
	ConfigCapPtr    = 0x34

	CommandMemory    = 1 << 1  // memory space enable
	CommandBusMaster = 1 << 2  // bus master enable
	CommandINTxOff   = 1 << 10 // interrupt disable

	statusCapList = 1 << 4

	CapMSI        = 0x05
	CapPCIExpress = 0x10
	CapMSIX       = 0x11

	pcieDevCap  = 0x04 // in the PCI Express capability
	pcieDevCtl  = 0x08
	pcieDevSta  = 0x0a
	devCapFLR   = 1 << 28
	devCtlFLR   = 1 << 15
	devStaTrans = 1 << 5 // transactions pending

	configSize    = 256
	configExtSize = 4096
)

// Config reads and writes a function's configuration space.
type Config struct {
	dev  Device
	size uint64
}

// NewConfig prepares d's configuration space.
func NewConfig(d Device) (*Config, error) {
	r, err := d.Region(RegionConfig)
	if err != nil {
		return nil, err
	}
	if r.Size < configSize {
		return nil, &Error{Addr: d.Addr(), Op: "use configuration space", Object: fmt.Sprintf("of %d bytes", r.Size), Err: ErrNotSupported}
	}
	return &Config{dev: d, size: min(r.Size, configExtSize)}, nil
}

// Read8 reads a byte.
func (c *Config) Read8(off uint64) (uint8, error) {
	var b [1]byte
	err := c.dev.ReadRegion(RegionConfig, off, b[:])
	return b[0], err
}

// Read16 reads 16 bits.
func (c *Config) Read16(off uint64) (uint16, error) {
	var b [2]byte
	err := c.dev.ReadRegion(RegionConfig, off, b[:])
	return binary.LittleEndian.Uint16(b[:]), err
}

// Read32 reads 32 bits.
func (c *Config) Read32(off uint64) (uint32, error) {
	var b [4]byte
	err := c.dev.ReadRegion(RegionConfig, off, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// Write16 writes 16 bits.
func (c *Config) Write16(off uint64, v uint16) error {
	return c.dev.WriteRegion(RegionConfig, off, binary.LittleEndian.AppendUint16(nil, v))
}

// Write32 writes 32 bits.
func (c *Config) Write32(off uint64, v uint32) error {
	return c.dev.WriteRegion(RegionConfig, off, binary.LittleEndian.AppendUint32(nil, v))
}

// ID is what a function says that it is.
type ID struct {
	Vendor, Device, SubVendor, Subsystem uint16
	Class                                uint32 // 24 bits
	Revision                             uint8
}

// ID reads the identity. All ones for the vendor means that nothing answers:
// ErrGone.
func (c *Config) ID() (ID, error) {
	var b [0x30]byte
	if err := c.dev.ReadRegion(RegionConfig, 0, b[:]); err != nil {
		return ID{}, err
	}
	le := binary.LittleEndian
	id := ID{
		Vendor: le.Uint16(b[ConfigVendorID:]), Device: le.Uint16(b[ConfigDeviceID:]),
		SubVendor: le.Uint16(b[ConfigSubVendor:]), Subsystem: le.Uint16(b[ConfigSubsystem:]),
		Class: le.Uint32(b[ConfigRevision:]) >> 8, Revision: b[ConfigRevision],
	}
	if id.Vendor == 0xffff {
		return ID{}, &Error{Addr: c.dev.Addr(), Op: "read configuration space", Object: "vendor 0xffff", Err: ErrGone}
	}
	return id, nil
}

// Capability is an entry of the capability list.
type Capability struct {
	ID     uint8
	Offset uint64
}

// Capabilities walks the capability list. A pointer outside the list's space,
// or one that was seen before, is ErrProtocol: a broken function's list may
// have any form.
func (c *Config) Capabilities() ([]Capability, error) {
	b := make([]byte, configSize)
	if err := c.dev.ReadRegion(RegionConfig, 0, b); err != nil {
		return nil, err
	}
	caps, err := parseCapabilities(b)
	if err != nil {
		return nil, &Error{Addr: c.dev.Addr(), Op: "walk capabilities", Err: err}
	}
	return caps, nil
}

// parseCapabilities walks the list in a copy of the first 256 bytes.
func parseCapabilities(b []byte) ([]Capability, error) {
	if len(b) < configSize {
		return nil, fmt.Errorf("%w: configuration space of %d bytes", ErrProtocol, len(b))
	}
	if binary.LittleEndian.Uint16(b[ConfigStatus:])&statusCapList == 0 {
		return nil, nil
	}
	var caps []Capability
	var seen [configSize]bool
	for p := b[ConfigCapPtr] &^ 3; p != 0; p = b[p+1] &^ 3 { // the low bits are reserved
		switch {
		case p < 0x40:
			return nil, fmt.Errorf("%w: capability pointer %#x is in the header", ErrProtocol, p)
		case seen[p]:
			return nil, fmt.Errorf("%w: capability pointer %#x makes a cycle", ErrProtocol, p)
		}
		seen[p] = true
		caps = append(caps, Capability{ID: b[p], Offset: uint64(p)})
	}
	return caps, nil
}

// Find gives the offset of the first capability with that ID, or 0.
func (c *Config) Find(id uint8) (uint64, error) {
	caps, err := c.Capabilities()
	for _, k := range caps {
		if k.ID == id {
			return k.Offset, nil
		}
	}
	return 0, err
}

// SetBusMaster lets the function do DMA and raise MSI, or stops it, leaving
// the other command bits alone. VFIO opens a device with it off. Set it when
// rings are programmed; clear it before anything is unmapped.
func (c *Config) SetBusMaster(on bool) error {
	v, err := c.Read16(ConfigCommand)
	if err != nil {
		return err
	}
	w := v &^ CommandBusMaster
	if on {
		w |= CommandBusMaster
	}
	if w == v {
		return nil
	}
	return c.Write16(ConfigCommand, w)
}

// flrTime is how long a function may take for a function level reset (PCI
// Express Base 4.0, 6.6.2), and the step in which its return is awaited.
const flrTime = 100 * time.Millisecond

// FLR does a function level reset: bus mastering off, transactions drained,
// reset, at least 100 ms, until the function answers again, its command register
// as it was but for bus mastering. The context
// bounds it. A function without FLR is ErrNotSupported.
func (c *Config) FLR(ctx context.Context) error {
	fail := func(err error) error {
		return &Error{Addr: c.dev.Addr(), Op: "function level reset", Err: err}
	}
	off, err := c.Find(CapPCIExpress)
	if err != nil {
		return err
	}
	if off == 0 || off+pcieDevSta+2 > configSize {
		return fail(fmt.Errorf("no PCI Express capability: %w", ErrNotSupported))
	}
	if v, err := c.Read32(off + pcieDevCap); err != nil {
		return err
	} else if v&devCapFLR == 0 {
		return fail(ErrNotSupported)
	}
	if err := c.SetBusMaster(false); err != nil {
		return err
	}
	wait := func(ready func() (bool, error)) error {
		for {
			if ok, err := ready(); err != nil || ok {
				return err
			}
			t := time.NewTimer(flrTime)
			select {
			case <-ctx.Done():
				t.Stop()
				return fail(fmt.Errorf("%w: %w", ErrTimeout, ctx.Err()))
			case <-c.dev.Done():
				t.Stop()
				return fail(c.dev.Err())
			case <-t.C:
			}
		}
	}
	err = wait(func() (bool, error) {
		v, err := c.Read16(off + pcieDevSta)
		return v&devStaTrans == 0, err
	})
	if err != nil {
		return err
	}
	ctl, err := c.Read16(off + pcieDevCtl)
	if err != nil {
		return err
	}
	command, err := c.Read16(ConfigCommand)
	if err != nil {
		return err
	}
	if err := c.Write16(off+pcieDevCtl, ctl|devCtlFLR); err != nil {
		return err
	}
	first := true
	err = wait(func() (bool, error) {
		if first { // not to be touched before its time is over
			first = false
			return false, nil
		}
		v, err := c.Read16(ConfigVendorID)
		return v != 0xffff, err
	})
	if err != nil {
		return err
	}
	// The kernel's VFIO restores the command register. Behind a server the
	// function has it as the reset left it.
	if v, err := c.Read16(ConfigCommand); err != nil || v == command {
		return err
	}
	return c.Write16(ConfigCommand, command)
}
