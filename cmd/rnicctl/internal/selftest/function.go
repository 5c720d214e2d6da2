package selftest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"rnic/hw"
	"rnic/vfio"
)

// function is a card without its driver: configuration space, registers, DMA and interrupts.
type function struct {
	dev     vfio.Device
	timeout time.Duration
	known   func(vendor, device uint16) bool
	cfg     *vfio.Config
	ctrl    *vfio.BAR
	space   *vfio.Space
}

func (f *function) close() error {
	var errs []error
	if f.cfg != nil && f.dev.Err() == nil {
		errs = append(errs, f.cfg.SetBusMaster(false))
	}
	if f.ctrl != nil {
		errs = append(errs, f.ctrl.Release())
	}
	return errors.Join(append(errs, f.dev.Close())...)
}

// config looks at configuration space: who it is, and the capabilities that the driver needs.
func (f *function) config(context.Context) (string, error) {
	if err := f.useConfig(); err != nil {
		return "", err
	}
	id, err := f.cfg.ID()
	if err != nil {
		return "", err
	}
	if (id.Vendor != hw.PCIVendorID || id.Device != hw.PCIDeviceID) && (f.known == nil || !f.known(id.Vendor, id.Device)) {
		return "", fmt.Errorf("it is %04x:%04x, the contract's card is %04x:%04x, and no other is named as a card", id.Vendor, id.Device, hw.PCIVendorID, hw.PCIDeviceID)
	}
	if id.Class != hw.PCIClass {
		return "", fmt.Errorf("class %06x, the contract's is %06x", id.Class, hw.PCIClass)
	}
	caps, err := f.cfg.Capabilities()
	if err != nil {
		return "", err
	}
	have := map[uint8]bool{}
	for _, c := range caps {
		have[c.ID] = true
	}
	for _, want := range []struct {
		id   uint8
		name string
	}{{vfio.CapPCIExpress, "PCI Express"}, {vfio.CapMSIX, "MSI-X"}} {
		if !have[want.id] {
			return "", fmt.Errorf("no %s capability (%#02x) among %d", want.name, want.id, len(caps))
		}
	}
	// Bus mastering is the driver's to turn on; the register must hold it.
	for _, on := range []bool{true, false} {
		if err := f.cfg.SetBusMaster(on); err != nil {
			return "", err
		}
		v, err := f.cfg.Read16(vfio.ConfigCommand)
		if err != nil {
			return "", err
		}
		if v&vfio.CommandBusMaster != 0 != on {
			return "", fmt.Errorf("command register %#04x after bus mastering was set to %v", v, on)
		}
	}
	return fmt.Sprintf("%04x:%04x, subsystem %04x:%04x, revision %d, %d capabilities", id.Vendor, id.Device, id.SubVendor, id.Subsystem, id.Revision, len(caps)), nil
}

func (f *function) useConfig() (err error) {
	if f.cfg == nil {
		f.cfg, err = vfio.NewConfig(f.dev)
	}
	return err
}

// useCtrl prepares BAR CTRL. Opening a function resets it, and what is written before that is over is lost.
func (f *function) useCtrl() (err error) {
	if f.ctrl != nil {
		return nil
	}
	if f.ctrl, err = vfio.NewBAR(f.dev, hw.BARCtrl); err != nil {
		return err
	}
	for deadline := time.Now().Add(f.timeout); ; time.Sleep(100 * time.Microsecond) {
		v, err := f.ctrl.Read32(hw.RegControlStatus)
		if err != nil || hw.ControlStatus(v).Ready() {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("CONTROL.STATUS is %#x: reset is not over after %v: %w", v, f.timeout, vfio.ErrTimeout)
		}
	}
}

// bars looks at the base address registers: all there, large enough, mappable where the data path needs it.
func (f *function) bars(context.Context) (string, error) {
	var found []string
	for _, b := range []struct {
		index  int
		name   string
		size   uint64
		mapped bool
	}{
		{hw.BARCtrl, "CTRL", hw.BARCtrlSize, false},
		{hw.BARDoorbell, "DOORBELL", hw.BARDoorbellSize, true},
		{hw.BARKeytable, "KEYTABLE", 0, true}, // as large as the key index is wide
	} {
		r, err := f.dev.Region(b.index)
		if err != nil {
			return "", err
		}
		switch {
		case r.Size == 0 || r.Size < b.size:
			return "", fmt.Errorf("BAR %d (%s) has %#x bytes, the contract says %#x", b.index, b.name, r.Size, b.size)
		case r.Flags&(vfio.RegionRead|vfio.RegionWrite) != vfio.RegionRead|vfio.RegionWrite:
			return "", fmt.Errorf("BAR %d (%s) cannot be read and written (flags %#x)", b.index, b.name, uint32(r.Flags))
		case b.mapped && len(r.Areas) == 0:
			return "", fmt.Errorf("BAR %d (%s) cannot be mapped: every access would be a message", b.index, b.name)
		}
		m, err := f.dev.MapRegion(b.index)
		if err != nil {
			return "", err
		}
		err = m.Release()
		if err != nil {
			return "", err
		}
		found = append(found, fmt.Sprintf("%s %#x", b.name, r.Size))
	}
	if err := f.useCtrl(); err != nil {
		return "", err
	}
	v, err := f.ctrl.Read32(hw.RegIdentMagic)
	if err != nil {
		return "", err
	}
	if v == ^uint32(0) {
		return "", fmt.Errorf("register IDENT.MAGIC reads as all ones: nothing answers behind BAR %d", hw.BARCtrl)
	}
	return strings.Join(found, ", "), nil
}

// identity reads magic, contract version and limits.
func (f *function) identity(context.Context) (string, error) {
	if err := f.useCtrl(); err != nil {
		return "", err
	}
	magic := f.ctrl.Load32(hw.RegIdentMagic)
	version := hw.IdentVersion(f.ctrl.Load32(hw.RegIdentVersion))
	pages := f.ctrl.Load32(hw.RegIdentDoorbellPages)
	stride := f.ctrl.Load32(hw.RegIdentDoorbellStride)
	bits := f.ctrl.Load32(hw.RegIdentKeyIndexBits)
	if err := f.ctrl.Err(); err != nil {
		return "", err
	}
	switch {
	case magic != hw.ContractMagic:
		return "", fmt.Errorf("IDENT.MAGIC is %#x, the contract's is %#x", magic, hw.ContractMagic)
	case int(version.Major()) != hw.ContractMajor:
		return "", fmt.Errorf("the card speaks contract %d.%d, this program %d.%d", version.Major(), version.Minor(), hw.ContractMajor, hw.ContractMinor)
	case int(stride) < os.Getpagesize() || int(stride)%os.Getpagesize() != 0:
		return "", fmt.Errorf("doorbell pages are %d bytes apart, this machine's pages have %d", stride, os.Getpagesize())
	case uint64(pages)*uint64(stride) > hw.BARDoorbellSize:
		return "", fmt.Errorf("%d doorbell pages of %d bytes do not fit BAR DOORBELL", pages, stride)
	case bits == 0 || bits > 24:
		return "", fmt.Errorf("a key index of %d bits", bits)
	}
	for _, l := range []struct {
		off  uint64
		name string
	}{
		{hw.RegIdentMaxQPs, "MAX_QPS"}, {hw.RegIdentMaxCQs, "MAX_CQS"}, {hw.RegIdentMaxEQs, "MAX_EQS"},
		{hw.RegIdentMaxSendSegments, "MAX_SEND_SEGMENTS"}, {hw.RegIdentMaxMTU, "MAX_MTU"}, {hw.RegIdentMSIXVectors, "MSIX_VECTORS"},
	} {
		if v := f.ctrl.Load32(l.off); v == 0 || v == ^uint32(0) {
			return "", fmt.Errorf("limit IDENT.%s is %#x", l.name, v)
		}
	}
	return fmt.Sprintf("contract %d.%d, engine %v", version.Major(), version.Minor(), hw.Engine(f.ctrl.Load32(hw.RegIdentEngine))), f.ctrl.Err()
}

// scratch walks ones and zeros through the scratch register.
func (f *function) scratch(context.Context) (string, error) {
	if err := f.useCtrl(); err != nil {
		return "", err
	}
	n := 0
	try := func(v uint32) error {
		n++
		if err := f.ctrl.Write32(hw.RegControlScratch, v); err != nil {
			return err
		}
		got, err := f.ctrl.Read32(hw.RegControlScratch)
		if err == nil && got != v {
			err = fmt.Errorf("wrote %#08x to CONTROL.SCRATCH, read %#08x: bits %#08x differ", v, got, v^got)
		}
		return err
	}
	for i := range 32 {
		for _, v := range []uint32{1 << i, ^(uint32(1) << i)} {
			if err := try(v); err != nil {
				return "", err
			}
		}
	}
	for _, v := range []uint32{0x55555555, 0xaaaaaaaa, 0xffffffff, 0} {
		if err := try(v); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d values held", n), nil
}

// widths reads and writes a register of 64 bits as one, and by halves.
func (f *function) widths(context.Context) (string, error) {
	if err := f.useCtrl(); err != nil {
		return "", err
	}
	const a = 0x0123456789abcdef
	check := func(how string, want uint64) error {
		got, err := f.ctrl.Read64(hw.RegControlScratchWide)
		if err != nil {
			return err
		}
		lo, err := f.ctrl.Read32(hw.RegControlScratchWide)
		if err != nil {
			return err
		}
		hi, err := f.ctrl.Read32(hw.RegControlScratchWide + 4)
		if err != nil {
			return err
		}
		if got != want || uint64(hi)<<32|uint64(lo) != want {
			return fmt.Errorf("%s: CONTROL.SCRATCH_WIDE should be %#016x, reads as %#016x, by halves as %#08x %#08x", how, uint64(want), got, hi, lo)
		}
		return nil
	}
	if err := f.ctrl.Write64(hw.RegControlScratchWide, a); err != nil {
		return "", err
	}
	if err := check("written as 64 bits", a); err != nil {
		return "", err
	}
	if err := f.ctrl.Write32(hw.RegControlScratchWide+4, 0xfedcba98); err != nil {
		return "", err
	}
	if err := check("high half written", 0xfedcba98<<32|a&0xffffffff); err != nil {
		return "", err
	}
	if err := f.ctrl.Write32(hw.RegControlScratchWide, 0x76543210); err != nil {
		return "", err
	}
	if err := check("low half written", 0xfedcba9876543210); err != nil {
		return "", err
	}
	// Identity is read only.
	if err := f.ctrl.Write32(hw.RegIdentMagic, 0); err != nil {
		return "", err
	}
	if v, err := f.ctrl.Read32(hw.RegIdentMagic); err != nil || v != hw.ContractMagic {
		return "", fmt.Errorf("IDENT.MAGIC is %#x after a store to it, %w", v, err)
	}
	return "32 and 64 bits, halves on their own, read-only registers stay", nil
}
