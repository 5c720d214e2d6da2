package pcidev

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rnic/vfio"
)

// A Rung is a way to reset a function. Each takes more with it than the one below.
type Rung string

// The rungs, from the lowest up.
const (
	RungFunction Rung = "function" // this function alone: FLR, power management, what the device has
	RungBus      Rung = "bus"      // the secondary bus of the bridge above: the link goes down and comes up
	RungRescan   Rung = "rescan"   // removed from the bus and looked for again, as if pulled and plugged
)

// Rungs are all rungs, from the lowest up.
var Rungs = []Rung{RungFunction, RungBus, RungRescan}

// Outcome is how a rung ended.
type Outcome string

// The outcomes.
const (
	OK     Outcome = "ok"      // the function answers again
	Failed Outcome = "failed"  // it does not, or the kernel refused
	Lacks  Outcome = "lacks"   // kernel or topology do not have this rung
	NotRun Outcome = "not-run" // a rung below did it, or it was not asked for
)

// A Try is a rung and what came of it.
type Try struct {
	Rung    Rung
	Outcome Outcome
	How     string // the kernel's method, or ""
	Took    time.Duration
	Err     error // of Failed and Lacks
}

// functionMethods are the kernel's methods that reset one function (Documentation/ABI/testing/sysfs-bus-pci,
// reset_method); the others, bus and cxl_bus, reset what is around it.
var functionMethods = []string{"device_specific", "acpi", "flr", "af_flr", "pm"}

// methodBus is the kernel's reset of the secondary bus, which it refuses where other functions are on that bus.
const methodBus = "bus"

// rescanTime is how long a removed function may take to come back: link training and configuration retries (PCI
// Express Base 4.0, 6.6.1: 1 s), and the kernel's scan.
const rescanTime = 3 * time.Second

// Reset resets a function by the lowest rung that works, of those between from and max. It is done when configuration
// space answers with the function's own IDs; who finds it ill all the same begins higher. After a rescan the function has the driver that it had. The error is of a reset that
// was not begun: *Refused, vfio.ErrBusy (a process has the function open), ErrNotFound, ErrPermission. force resets a
// function that the machine uses.
func (t Tree) Reset(ctx context.Context, addr string, from, max Rung, force bool) ([]Try, error) {
	first, last := slices.Index(Rungs, from), slices.Index(Rungs, max)
	if first < 0 || last < first {
		return nil, fmt.Errorf("%w: rungs %q to %q; they are function, bus, rescan, in this order", vfio.ErrInvalid, from, max)
	}
	addr, err := ParseAddress(addr)
	if err != nil {
		return nil, err
	}
	unlock, err := t.lock(ctx, false)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := t.Function(addr)
	if err != nil {
		return nil, err
	}
	uses := t.Uses(addr)
	switch {
	case f.Bridge():
		return nil, &Refused{addr, "it is a bridge: what is behind it would be reset", "name the function behind it"}
	case f.PID != 0:
		return nil, &vfio.Error{Addr: addr, Op: "reset", Err: &vfio.BusyError{PID: f.PID}}
	case len(uses) > 0 && !force:
		return nil, &Refused{addr, "this machine uses it: " + join(uses), "end that use first, or give --yes if it may be cut off"}
	case f.VFs > 0 && !force:
		return nil, &Refused{addr, fmt.Sprintf("%d virtual functions of it are enabled, and would be reset with it", f.VFs),
			"end their use first, or give --yes if they may be cut off"}
	}
	var tries []Try
	done := false
	for i, r := range Rungs {
		try := Try{Rung: r, Outcome: NotRun}
		if !done && first <= i && i <= last && ctx.Err() == nil {
			t.try(ctx, &f, &try)
			done = try.Outcome == OK
		}
		tries = append(tries, try)
	}
	return tries, ctx.Err()
}

// try climbs one rung.
func (t Tree) try(ctx context.Context, f *Function, try *Try) {
	start := time.Now()
	var how string
	var err error
	switch try.Rung {
	case RungFunction:
		how = strings.Join(only(f.ResetMethods, functionMethods), " ")
		err = t.resetBy(ctx, f, how)
	case RungBus:
		how = strings.Join(only(f.ResetMethods, []string{methodBus}), " ")
		err = t.resetBy(ctx, f, how)
	case RungRescan:
		err = t.rescan(ctx, f)
	}
	if err == nil {
		err = t.answers(f)
	}
	try.Took, try.How = time.Since(start), how
	switch lacks, ok := err.(lacking); {
	case ok:
		try.Outcome, try.Err = Lacks, lacks
	case err != nil:
		try.Outcome, try.Err = Failed, err
	default:
		try.Outcome = OK
	}
}

// lacking is why a rung is not there.
type lacking string

func (l lacking) Error() string { return string(l) }

// only gives the methods of have that are in want, in have's order.
func only(have, want []string) (list []string) {
	for _, m := range have {
		if slices.Contains(want, m) {
			list = append(list, m)
		}
	}
	return list
}

// resetBy has the kernel reset the function by these of its methods and no other, and sets the choice back.
func (t Tree) resetBy(ctx context.Context, f *Function, methods string) error {
	dev := t.device(f.Address)
	if methods == "" {
		return lacking("the kernel has no such method for it; it has " + none2(strings.Join(f.ResetMethods, " ")))
	}
	if all := strings.Join(f.ResetMethods, " "); all != methods {
		path := filepath.Join(dev, "reset_method")
		if err := t.write(ctx, path, methods+"\n"); err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			_ = t.write(ctx, path, all+"\n") // it is gone with the function, or the next reset has fewer ways
		}()
	}
	return t.write(ctx, filepath.Join(dev, "reset"), "1\n")
}

func none2(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// rescan removes the function and has the bus looked through. The function comes back without its override, and to
// whatever driver the kernel chooses: it is given the one that it had.
func (t Tree) rescan(ctx context.Context, f *Function) error {
	had := Record{Driver: f.Driver, Module: t.module(f.Driver), Override: f.Override}
	if err := t.write(ctx, filepath.Join(t.device(f.Address), "remove"), "1\n"); err != nil {
		return err
	}
	if err := t.write(ctx, filepath.Join(t.Sys, "bus/pci/rescan"), "1\n"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rescanTime)
	defer cancel()
	for !exists(t.device(f.Address)) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: it did not come back in %v", vfio.ErrGone, rescanTime)
		case <-time.After(10 * time.Millisecond):
		}
	}
	c := &Change{Address: f.Address, Before: t.driver(f.Address), After: had.Driver, function: *f}
	return t.run(ctx, c, t.giveSteps(f.Address, had, true))
}

// answers tells whether configuration space gives the function's own IDs.
func (t Tree) answers(f *Function) error {
	v, d, err := configID(t.device(f.Address))
	switch {
	case err != nil:
		return err
	case v == 0xffff && d == 0xffff:
		return fmt.Errorf("%w: configuration space reads all ones", vfio.ErrGone)
	case v != f.Vendor || d != f.Device:
		return fmt.Errorf("configuration space says %04x:%04x, it was %04x:%04x", v, d, f.Vendor, f.Device)
	}
	return nil
}
