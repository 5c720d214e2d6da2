// Package doctor finds what keeps a machine, a PCI function or a card from being used, before a program does.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/pcidev"
)

// Result is how a check ended.
type Result string

// The results. A warning does not keep a program from running.
const (
	OK   Result = "ok"
	Warn Result = "warn"
	Fail Result = "fail"
	Skip Result = "skip" // it could not be made; Value says why
)

// The checks, by names that do not change. Those of the machine come first, then those of a function, then those of
// a card that could be opened. Those that package vfio meets too are its names: what it says when a card cannot be
// opened, doctor says before.
const (
	IOMMUOff      = vfio.CheckIOMMUOff
	NoIOMMU       = vfio.CheckNoIOMMU
	NoModule      = vfio.CheckNoModule
	MemlockLow    = vfio.CheckMemlockLow
	MappingLimit  = vfio.CheckMappingLimit
	MSINoRemap    = vfio.CheckMSINoRemap
	NoUdevRule    = "udev-rule-missing"
	NoCard        = "no-card"
	Quarantined   = "quarantined"
	VFsEnabled    = "vfs-enabled"
	NotBound      = vfio.CheckNotBound
	GroupNotReady = vfio.CheckGroupNotViable
	Busy          = vfio.CheckBusy
	NoPermission  = vfio.CheckNoPermission
	VFToken       = vfio.CheckVFToken
	LinkDegraded  = "link-degraded"
	AllOnes       = "bar-all-ones"
	OpenFailed    = "open-failed"
	Contract      = "contract-mismatch"
	IOVAWidth     = vfio.CheckIOVAWidth
	MSIWindow     = vfio.CheckMSIWindow
)

// Checks are all names, in the order of the report.
var Checks = []string{
	IOMMUOff, NoIOMMU, NoModule, MemlockLow, MappingLimit, MSINoRemap, NoUdevRule,
	NoCard, Quarantined, VFsEnabled, NotBound, GroupNotReady, Busy, NoPermission, VFToken, LinkDegraded,
	AllOnes, OpenFailed, Contract, IOVAWidth, MSIWindow,
}

// Finding is the result of one check of one object.
type Finding struct {
	Check  string
	Object string // "machine", a PCI address, a card's address
	Result Result
	Value  string // what is, or why it was not checked
	Limit  string // what should be
	Fix    string // what to do, "" where nothing is wrong
	// Repair does it, where that takes nothing from anyone; else nil.
	Repair *Repair
}

// Repair is a remedy that doctor may apply by itself.
type Repair struct {
	Commands []string // the same by hand
	do       func(context.Context) error
}

// Do applies the remedy.
func (r *Repair) Do(ctx context.Context) error { return r.do(ctx) }

// Doctor looks at a machine. The zero value of an optional field is the running kernel's.
type Doctor struct {
	Tree pcidev.Tree
	IDs  []pcidev.ID // of cards
	// Addrs are the cards to look at, PCI addresses or others that vfio.Open takes; all functions that are cards where
	// empty.
	Addrs []string
	// Open opens a card for the checks that need one; nil is vfio.Open.
	Open func(ctx context.Context, addr string) (vfio.Device, error)
	// Access tells whether this process may read and write a file; nil asks the kernel.
	Access func(path string) error
	// Memlock sets the limit of another process's locked memory; nil is prlimit(2).
	Memlock func(pid int, soft, hard uint64) error
	// UID is the user that asks.
	UID int
	// Timeout bounds each answer of a card.
	Timeout time.Duration
}

// Machine is the object of checks that are about no card.
const Machine = "machine"

// Run makes every check. Its error is one that kept it from looking.
func (d *Doctor) Run(ctx context.Context) ([]Finding, error) {
	if d.Open == nil {
		d.Open = vfio.Open
	}
	if d.Access == nil {
		d.Access = func(path string) error {
			return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
		}
	}
	if d.Memlock == nil {
		d.Memlock = func(pid int, soft, hard uint64) error {
			return unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: soft, Max: hard}, nil)
		}
	}
	functions, others, err := d.objects()
	if err != nil {
		return nil, err
	}
	var found []Finding
	if len(d.Addrs) == 0 || len(functions) > 0 { // cards of other processes need nothing of the kernel's
		found = d.machine()
	}
	if len(functions)+len(others) == 0 {
		var ids []string
		for _, id := range d.IDs {
			ids = append(ids, fmt.Sprintf("%04x:%04x", id.Vendor, id.Device))
		}
		found = append(found, Finding{Check: NoCard, Object: Machine, Result: Fail, Value: "no PCI function is a card", Limit: "an ID of " + strings.Join(ids, ", "),
			Fix: "is the image loaded, and was the bus looked through after it: echo 1 > /sys/bus/pci/rescan; a board with other IDs goes into /etc/rnic/pci.ids"})
	}
	for i := range functions {
		found = append(found, d.function(ctx, &functions[i])...)
	}
	for _, a := range others {
		card, _ := d.card(ctx, a)
		found = append(found, card...)
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Compare(slices.Index(Checks, a.Check), slices.Index(Checks, b.Check))
	})
	return found, ctx.Err()
}

// objects are what is to be looked at: PCI functions, and cards of other kinds by their addresses.
func (d *Doctor) objects() (functions []pcidev.Function, others []string, err error) {
	if len(d.Addrs) == 0 {
		functions, err = d.Tree.Functions(func(v, dev uint16) bool {
			return slices.ContainsFunc(d.IDs, func(id pcidev.ID) bool { return id.Vendor == v && id.Device == dev })
		})
		return functions, nil, err
	}
	for _, a := range d.Addrs {
		addr, err := pcidev.ParseAddress(a)
		if err != nil {
			others = append(others, a)
			continue
		}
		f, err := d.Tree.Function(addr)
		if err != nil {
			return nil, nil, err
		}
		functions = append(functions, f)
	}
	return functions, others, nil
}

// sys is a file of sysfs.
func (d *Doctor) sys(parts ...string) string {
	return filepath.Join(append([]string{d.Tree.Sys}, parts...)...)
}

// well is a check that found nothing.
func well(check, object, value, limit string) Finding {
	return Finding{Check: check, Object: object, Result: OK, Value: value, Limit: limit}
}

// skipped is a check that could not be made.
func skipped(check, object, why string) Finding {
	return Finding{Check: check, Object: object, Result: Skip, Value: why}
}

// card makes the checks that need an open card, and gives what DMA addresses it can have. Opening resets it, so that it is done only
// to a card that nobody has.
func (d *Doctor) card(ctx context.Context, addr string) ([]Finding, []vfio.IOVARange) {
	ctx, cancel := context.WithTimeout(ctx, 2*d.Timeout)
	defer cancel()
	dev, err := d.Open(ctx, addr)
	if err != nil {
		return append(opened(addr, err), notOpen(addr, "not opened")...), nil
	}
	found, ranges := d.contract(ctx, addr, dev), dev.IOVARanges()
	if err := dev.Close(); err != nil && !errors.Is(err, vfio.ErrGone) {
		found = append(found, Finding{Check: OpenFailed, Object: addr, Result: Fail, Value: "close: " + err.Error(), Limit: "it can be opened and closed", Fix: "see the kernel's log, then reset it: rnicctl reset " + addr})
	}
	return found, ranges
}

// opened gives the reason why a card cannot be opened its check.
func opened(addr string, err error) []Finding {
	f := Finding{Check: OpenFailed, Object: addr, Result: Fail, Value: err.Error(), Limit: "it can be opened", Fix: "do what the value names; the kernel's log may say more: dmesg | grep -i vfio"}
	var setup *vfio.SetupError
	switch {
	case errors.As(err, &setup):
		f.Value, f.Limit, f.Fix = setup.Object+": "+setup.Value, setup.Limit, setup.Fix
		if slices.Contains([]string{NotBound, GroupNotReady, Busy, NoPermission, VFToken}, setup.Check) { // the others are the machine's, and made
			f.Check = setup.Check
		}
	case errors.Is(err, vfio.ErrBusy):
		f.Check, f.Limit, f.Fix = Busy, "free", "end the process that holds it"
	case errors.Is(err, vfio.ErrPermission):
		f.Check, f.Limit, f.Fix = NoPermission, "readable and writable", "install the udev rule (rnicctl doctor --fix as root) and be in the group "+Group
	}
	return []Finding{f}
}
