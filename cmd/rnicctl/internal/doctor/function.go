package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"rnic/hw"
	"rnic/vfio"
	"rnic/vfio/pcidev"
)

// function makes the checks of a PCI function, and where it is free and may be opened, those of the card.
func (d *Doctor) function(ctx context.Context, f *pcidev.Function) []Finding {
	at := f.Address
	busy, permission := d.busy(f), d.permission(f)
	found := []Finding{d.quarantine(f), d.vfs(f), d.bound(f), d.viable(f), busy, permission, d.link(f)}
	ready := f.State == pcidev.Ready && permission.Result == OK
	switch {
	case f.State == pcidev.Broken:
		return append(found, Finding{Check: AllOnes, Object: at, Result: Fail, Value: "configuration space reads ffff:ffff", Limit: fmt.Sprintf("%04x:%04x", f.Vendor, f.Device),
			Fix: "the card fell off the bus: rnicctl reset " + at + "; then its power, seat and image"},
			skipped(Contract, at, "nothing answers"), skipped(IOVAWidth, at, "nothing answers"), d.window(f, nil))
	case ready:
		more, ranges := d.card(ctx, at)
		more = append(more, d.window(f, ranges))
		// What only opening it shows is so: a holder of another user's is not seen in /proc.
		found = slices.DeleteFunc(found, func(f Finding) bool {
			return slices.ContainsFunc(more, func(m Finding) bool { return m.Check == f.Check })
		})
		return append(found, more...)
	}
	why := "it is " + string(f.State)
	if f.State == pcidev.Ready {
		why = "it may not be opened"
	}
	return append(append(found, notOpen(at, why)...), d.window(f, nil))
}

func (d *Doctor) quarantine(f *pcidev.Function) Finding {
	q := d.Tree.Quarantine(f.Address)
	if q == nil {
		return well(Quarantined, f.Address, "no", "no")
	}
	by := ""
	if q.By != "" {
		by = fmt.Sprintf(" (by %s, %s)", q.By, q.Since.Format(time.RFC3339))
	}
	return Finding{Check: Quarantined, Object: f.Address, Result: Fail, Value: q.Reason + by, Limit: "no", Fix: "look into that, then: rm " + d.Tree.QuarantinePath(f.Address)}
}

func (d *Doctor) vfs(f *pcidev.Function) Finding {
	r := well(VFsEnabled, f.Address, fmt.Sprintf("%d virtual functions", f.VFs), "0, to bind it")
	if f.VFs > 0 && f.Driver != pcidev.VFIODriver {
		r.Result, r.Fix = Fail, "end their use, then: echo 0 > "+d.sys("bus/pci/devices", f.Address, "sriov_numvfs")
	}
	return r
}

func (d *Doctor) bound(f *pcidev.Function) Finding {
	r := well(NotBound, f.Address, "driver "+f.Driver, "driver "+pcidev.VFIODriver)
	if f.Driver == pcidev.VFIODriver {
		return r
	}
	command := "rnicctl bind " + f.Address
	r.Result, r.Fix = Fail, command
	if f.Driver == "" {
		r.Value = "no driver"
		// Nobody loses anything by it. One with a driver is in use as far as anybody can tell.
		r.Repair = &Repair{Commands: []string{command}, do: func(ctx context.Context) error {
			_, err := d.Tree.Bind(ctx, []string{f.Address}, pcidev.Options{})
			return err
		}}
	}
	return r
}

func (d *Doctor) viable(f *pcidev.Function) Finding {
	if f.Group < 0 {
		return skipped(GroupNotReady, f.Address, "it is in no IOMMU group, see "+IOMMUOff)
	}
	if d.Tree.NoIOMMU(f) {
		return Finding{Check: GroupNotReady, Object: f.Address, Result: Fail, Value: fmt.Sprintf("group %d was made up by no-IOMMU mode", f.Group), Limit: "a group of an IOMMU", Fix: "turn the IOMMU on, see " + IOMMUOff}
	}
	others, err := d.Tree.Offenders(f)
	if err != nil {
		return skipped(GroupNotReady, f.Address, err.Error())
	}
	r := well(GroupNotReady, f.Address, fmt.Sprintf("group %d", f.Group), "no kernel driver has another of its group, bridges aside")
	if len(others) > 0 {
		var names []string
		for _, o := range others {
			names = append(names, fmt.Sprintf("%s (%s)", o.Address, o.Driver))
		}
		r.Result, r.Value = Fail, r.Value+": kernel drivers have "+strings.Join(names, ", ")
		r.Fix = "rnicctl bind --group " + f.Address + ", or a slot with a group of its own"
	}
	return r
}

func (d *Doctor) busy(f *pcidev.Function) Finding {
	if f.PID == 0 {
		return well(Busy, f.Address, "no process that this user can see", "free")
	}
	name := d.Tree.Program(f.PID)
	if name != "" {
		name = " (" + name + ")"
	}
	return Finding{Check: Busy, Object: f.Address, Result: Fail, Value: fmt.Sprintf("held by pid %d%s", f.PID, name), Limit: "free", Fix: fmt.Sprintf("end that process: kill %d", f.PID)}
}

// permission looks at the files of either way to the function: the group's and the container, or the device's own and
// the IOMMU.
func (d *Doctor) permission(f *pcidev.Function) Finding {
	if f.Driver != pcidev.VFIODriver {
		return skipped(NoPermission, f.Address, "it is not bound to vfio-pci")
	}
	dev := func(name string) string { return filepath.Join(d.Tree.Dev, name) }
	ways := [][]string{{dev("vfio/vfio"), dev("vfio/" + strconv.Itoa(f.Group))}}
	if list, err := os.ReadDir(d.sys("bus/pci/devices", f.Address, "vfio-dev")); err == nil && len(list) == 1 {
		ways = append(ways, []string{dev("iommu"), dev("vfio/devices/" + list[0].Name())})
	}
	var denied, missing []string
	for _, way := range ways {
		var bad []string
		for _, path := range way {
			switch err := d.Access(path); {
			case errors.Is(err, fs.ErrNotExist):
				missing = append(missing, path)
				bad = append(bad, path)
			case err != nil:
				denied = append(denied, path)
				bad = append(bad, path)
			}
		}
		if len(bad) == 0 {
			return well(NoPermission, f.Address, strings.Join(way, ", "), "readable and writable")
		}
	}
	r := Finding{Check: NoPermission, Object: f.Address, Result: Fail, Limit: "readable and writable",
		Value: "may not open " + strings.Join(denied, ", "), Fix: "as root: rnicctl doctor --fix (the udev rule), and usermod -aG " + Group + " USER; then log in again"}
	if len(denied) == 0 {
		r.Value, r.Fix = "there is no "+strings.Join(missing, ", "), "see "+NoModule+"; the kernel's log may say why: dmesg | grep -i vfio"
	}
	return r
}

func (d *Doctor) link(f *pcidev.Function) Finding {
	if f.Link.Width == 0 {
		return skipped(LinkDegraded, f.Address, "the kernel knows no PCI Express link of it")
	}
	r := well(LinkDegraded, f.Address, f.Link.Now(), f.Link.Most())
	if f.Link.Degraded() {
		r.Result, r.Fix = Fail, "seat the card again, look at its slot and cable, then: rnicctl reset --max rescan "+f.Address
	}
	return r
}

const (
	// usableIOVA is the least that a card must be able to reach (bytes).
	usableIOVA = 1 << 30
	// userBits are the bits of a program's addresses, 47 on amd64 and 48 on arm64: an IOMMU with fewer cannot have
	// each of them as a DMA address.
	userBits = 48
)

// contract looks at a card that is open: does it answer, does it speak this contract, what can it reach.
func (d *Doctor) contract(ctx context.Context, addr string, dev vfio.Device) []Finding {
	skip := func(why string) []Finding {
		return []Finding{skipped(Contract, addr, why), skipped(IOVAWidth, addr, why)}
	}
	bar := fmt.Sprintf("BAR %d", hw.BARCtrl)
	broken := func(err error) []Finding {
		return append([]Finding{{Check: AllOnes, Object: addr, Result: Fail, Value: bar + ": " + err.Error(), Limit: "registers can be read",
			Fix: "rnicctl selftest -d " + addr + " says which step is broken"}}, skip("its registers cannot be read")...)
	}
	ctrl, err := vfio.NewBAR(dev, hw.BARCtrl)
	if err != nil {
		return broken(err)
	}
	defer ctrl.Release()
	magic, err := ident(ctx, ctrl)
	if err != nil {
		return broken(err)
	}
	if magic == ^uint32(0) {
		return append([]Finding{{Check: AllOnes, Object: addr, Result: Fail, Value: bar + ": every register reads 0xffffffff", Limit: fmt.Sprintf("IDENT.MAGIC is %#x", uint32(hw.ContractMagic)),
			Fix: "nothing answers behind the BAR: load the image again, then rnicctl reset " + addr}}, skip("nothing answers")...)
	}
	found := []Finding{well(AllOnes, addr, fmt.Sprintf("%s: IDENT.MAGIC is %#x", bar, magic), "not all ones")}
	version := hw.IdentVersion(ctrl.Load32(hw.RegIdentVersion))
	r := well(Contract, addr, fmt.Sprintf("contract %d.%d", version.Major(), version.Minor()), fmt.Sprintf("contract %d.x", hw.ContractMajor))
	switch {
	case magic != hw.ContractMagic:
		r.Result, r.Value, r.Limit = Fail, fmt.Sprintf("IDENT.MAGIC is %#x", magic), fmt.Sprintf("%#x", uint32(hw.ContractMagic))
		r.Fix = "it is no card of this contract: load its image, or name another function"
		return append(found, r, skipped(IOVAWidth, addr, "it is no card of this contract"))
	case version.Major() != hw.ContractMajor:
		r.Result, r.Fix = Fail, "load an image of this contract, or use the release of rnicctl that speaks the card's"
		return append(found, r, skipped(IOVAWidth, addr, "it speaks another contract"))
	}
	if err := ready(ctx, ctrl); err != nil {
		return append(found, r, skipped(IOVAWidth, addr, err.Error()))
	}
	return append(found, r, width(addr, dev.IOVARanges(), ctrl.Load32(hw.RegIdentDMABits)))
}

// resetTime is how long a card may take for the reset that opening it does, ten times what FLR may (PCI Express Base 4.0,
// 6.6.2). Until then its registers read as zero.
const resetTime = time.Second

// ident reads the magic, once there is one.
func ident(ctx context.Context, ctrl *vfio.BAR) (uint32, error) {
	for end := time.Now().Add(resetTime); ; time.Sleep(time.Millisecond) {
		v, err := ctrl.Read32(hw.RegIdentMagic)
		if err != nil || v != 0 || ctx.Err() != nil || time.Now().After(end) {
			return v, err
		}
	}
}

// ready waits for the end of the reset that opening a card does.
func ready(ctx context.Context, ctrl *vfio.BAR) error {
	for {
		v, err := ctrl.Read32(hw.RegControlStatus)
		if err != nil || hw.ControlStatus(v).Ready() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("CONTROL.STATUS is %#x: its reset is not over: %w", v, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// notOpen are the checks of a card that was not opened.
func notOpen(addr, why string) (found []Finding) {
	for _, check := range []string{AllOnes, Contract, IOVAWidth} {
		found = append(found, skipped(check, addr, why))
	}
	return found
}

// window tells which DMA addresses the machine keeps for interrupts: a card's write to one is an interrupt, and no write to memory.
// The kernel has to leave them out of ranges, which are what it lets a driver map, where that is known.
func (d *Doctor) window(f *pcidev.Function, ranges []vfio.IOVARange) Finding {
	var kept []string
	r := well(MSIWindow, f.Address, "", "none of them can be mapped")
	for line := range strings.Lines(read(d.sys("bus/pci/devices", f.Address, "iommu_group/reserved_regions"))) {
		var w vfio.IOVARange
		var kind string
		if n, err := fmt.Sscanf(line, "%v %v %s", &w.First, &w.Last, &kind); n != 3 || err != nil || kind != "msi" {
			continue
		}
		kept = append(kept, w.String())
		if slices.ContainsFunc(ranges, func(can vfio.IOVARange) bool { return w.First <= can.Last && can.First <= w.Last }) {
			r.Result, r.Fix = Fail, "keep addresses that a program chooses itself (MapDMA) out of them; the kernel's log may say why it lets them be mapped: dmesg | grep -i iommu"
		}
	}
	if len(kept) == 0 {
		return skipped(MSIWindow, f.Address, "the kernel names no such window")
	}
	r.Value = "DMA addresses kept for interrupts: " + strings.Join(kept, ", ")
	return r
}

// width compares what the card can address with what the IOMMU translates.
func width(addr string, ranges []vfio.IOVARange, card uint32) Finding {
	if card == 0 || card > 64 {
		return Finding{Check: IOVAWidth, Object: addr, Result: Fail, Value: fmt.Sprintf("IDENT.DMA_BITS is %d", card), Limit: "1 to 64", Fix: "load a sound image: rnicctl selftest -d " + addr}
	}
	last := ^uint64(0) >> (64 - card) // the card's
	var usable, top uint64
	var text []string
	for _, r := range ranges {
		text = append(text, r.String())
		top = max(top, r.Last)
		if r.First <= last {
			usable += min(r.Last, last) - r.First
		}
	}
	have := bits.Len64(top)
	f := well(IOVAWidth, addr, fmt.Sprintf("the IOMMU translates %d bits (%s), the card has %d", have, strings.Join(text, ", "), card), fmt.Sprintf("%d bits", min(card, userBits)))
	switch {
	case usable < usableIOVA:
		f.Result, f.Limit = Fail, fmt.Sprintf("%s that both can reach", bytes(usableIOVA))
		f.Fix = "the card reaches too little of what the IOMMU translates: more address bits in its image, or the IOMMU in another mode"
	case have < int(min(card, userBits)):
		f.Result = Warn
		f.Fix = fmt.Sprintf("addresses that the driver chooses fit; one that a program chooses itself (MapDMA) stays below %#x (a virtual machine: aw-bits=48)", uint64(1)<<have)
	}
	return f
}
