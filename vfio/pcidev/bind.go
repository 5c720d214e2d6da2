package pcidev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"rnic/vfio"
)

// Options say how Bind and Unbind go about it.
type Options struct {
	DryRun  bool // change nothing, say what would be done
	Group   bool // every function of the IOMMU groups, but for bridges
	Persist bool // Bind: at each boot as well; Unbind: no longer at each boot
	// Force takes a function that is in use: whose disk is mounted, whose interface is up, that is in quarantine, or
	// (Unbind) that a process has open.
	Force bool
}

// Change is what was done to a function, or with DryRun would be.
type Change struct {
	Address string
	Before  string   // driver, "" for none
	After   string   // driver, "" for none
	Steps   []string // as commands of a shell; none where nothing was to be done
	Note    string   // what else an operator should know, or ""

	function Function
	record   Record
	known    bool // what it had is recorded
	files    []savedFile
}

// savedFile is a file as it was before a change.
type savedFile struct {
	path, text string
	there      bool
}

// Refused is a change that was not begun, because of the state that a function is in.
type Refused struct {
	Addr string
	Why  string // object and present state
	Fix  string // what to do
}

// Error gives "ADDR: why; fix".
func (r *Refused) Error() string { return fmt.Sprintf("%s: %s; %s", r.Addr, r.Why, r.Fix) }

// undoTime bounds what is done to undo a change that failed; the caller's context may be over by then.
const undoTime = 10 * time.Second

// Bind gives functions to vfio-pci: all of them, or after a failure none. What each had is recorded first
// (Record). The driver is chosen by driver_override, which touches no other card, as new_id would.
// Errors: *Refused, vfio.ErrNotFound, ErrPermission, ErrTimeout.
func (t Tree) Bind(ctx context.Context, addrs []string, o Options) ([]Change, error) {
	unlock, err := t.lock(ctx, o.DryRun)
	if err != nil {
		return nil, err
	}
	defer unlock()
	functions, err := t.chosen(addrs, o.Group)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for i := range functions {
		f := &functions[i]
		if err := t.mayBind(f, functions, o); err != nil {
			return nil, err
		}
		c := Change{Address: f.Address, Before: f.Driver, After: VFIODriver, function: *f}
		if c.record, c.known, err = t.record(f.Address); err != nil {
			return nil, err
		}
		// A driver that is there now is what it had. Without one, an earlier bind may have been killed half-way.
		if f.Driver != "" && f.Driver != VFIODriver || !c.known {
			c.record = Record{Driver: f.Driver, Module: t.module(f.Driver), Override: f.Override}
		}
		changes = append(changes, c)
	}
	return t.all(ctx, changes, o, t.bindSteps)
}

// Unbind gives functions back to the drivers that they had: all of them, or after a failure none. Where nothing
// is recorded, the kernel chooses. It is not done to a function that a process has open (vfio.ErrBusy): the
// kernel would wait for that process.
func (t Tree) Unbind(ctx context.Context, addrs []string, o Options) ([]Change, error) {
	unlock, err := t.lock(ctx, o.DryRun)
	if err != nil {
		return nil, err
	}
	defer unlock()
	functions, err := t.chosen(addrs, o.Group)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for i := range functions {
		f := &functions[i]
		if err := t.mayUnbind(f, o); err != nil {
			return nil, err
		}
		c := Change{Address: f.Address, Before: f.Driver, function: *f}
		if c.record, c.known, err = t.record(f.Address); err != nil {
			return nil, err
		}
		switch {
		case f.Driver != "" && f.Driver != VFIODriver: // somebody else has given it a driver
			c.record, c.known = Record{Driver: f.Driver}, true
		case !c.known:
			c.Note = "what it had is not recorded: the kernel chooses its driver"
		}
		c.After = c.record.Driver
		if !o.Persist && exists(t.rulePath(f.Address)) {
			c.Note = t.rulePath(f.Address) + " gives it to vfio-pci again at the next boot; unbind --persist removes it"
		}
		changes = append(changes, c)
	}
	return t.all(ctx, changes, o, t.restoreSteps)
}

// chosen looks up the functions that are named, each once, with the rest of their groups where that was asked for.
func (t Tree) chosen(addrs []string, group bool) ([]Function, error) {
	var list []Function
	add := func(f Function) {
		if !slices.ContainsFunc(list, func(g Function) bool { return g.Address == f.Address }) {
			list = append(list, f)
		}
	}
	for _, a := range addrs {
		addr, err := ParseAddress(a)
		if err != nil {
			return nil, err
		}
		f, err := t.Function(addr)
		if err != nil {
			return nil, err
		}
		add(f)
		if !group || f.Group < 0 {
			continue
		}
		members, err := t.Group(f.Group)
		if err != nil {
			return nil, err
		}
		if err := t.holders(members); err != nil {
			return nil, err
		}
		for _, m := range members {
			if !m.Bridge() {
				add(m)
			}
		}
	}
	return list, nil
}

// mayBind refuses what would take something from the machine, or could not be used afterwards.
func (t Tree) mayBind(f *Function, with []Function, o Options) error {
	refuse := func(why, fix string) error { return &Refused{f.Address, why, fix} }
	switch {
	case f.Bridge():
		return refuse("it is a bridge, which the kernel must drive", "name the function behind it")
	case f.Group < 0 || t.NoIOMMU(f):
		return refuse("it is in no IOMMU group: there is no IOMMU, or it is off", "turn it on in the firmware and the kernel; `rnicctl doctor` says how")
	}
	if f.Driver != VFIODriver {
		if f.VFs > 0 {
			return t.refuseVFs(f)
		}
		if q := t.Quarantine(f.Address); q != nil && !o.Force {
			return refuse("it is in quarantine: "+q.Reason, "look into that, then remove "+t.QuarantinePath(f.Address)+", or give --yes")
		}
		if uses := t.Uses(f.Address); len(uses) > 0 && !o.Force {
			return refuse("this machine uses it: "+join(uses), "end that use first, or give --yes if it may be cut off")
		}
	}
	others, err := t.Offenders(f)
	if err != nil {
		return &vfio.Error{Addr: f.Address, Op: "read its IOMMU group", Object: fmt.Sprint(f.Group), Err: err}
	}
	others = slices.DeleteFunc(others, func(m Function) bool {
		return slices.ContainsFunc(with, func(w Function) bool { return w.Address == m.Address })
	})
	if len(others) > 0 {
		return refuse(fmt.Sprintf("IOMMU group %d would not be viable: kernel drivers have %s", f.Group, names(others)),
			"bind these too (--group), or move the card to a slot with a group of its own")
	}
	return nil
}

func (t Tree) mayUnbind(f *Function, o Options) error {
	switch {
	case f.State == Held && !o.Force:
		return &vfio.Error{Addr: f.Address, Op: "unbind", Object: "from " + f.Driver, Err: &vfio.BusyError{PID: f.PID}}
	case f.VFs > 0:
		return t.refuseVFs(f)
	}
	return nil
}

func (t Tree) refuseVFs(f *Function) error {
	return &Refused{f.Address, fmt.Sprintf("%d virtual functions of it are enabled, and would go with its driver", f.VFs),
		"end their use, then: echo 0 > " + filepath.Join(t.device(f.Address), "sriov_numvfs")}
}

// module is the kernel module of a driver, "" where it is built in.
func (t Tree) module(driver string) string {
	if driver == "" {
		return ""
	}
	return base(filepath.Join(t.drivers(), driver), "module")
}

// plan gives the steps of a change as things are now.
type plan func(c *Change, persist bool) ([]step, error)

// all makes the changes one after another. When one fails, it and those before it are undone, last first.
func (t Tree) all(ctx context.Context, changes []Change, o Options, do plan) ([]Change, error) {
	for i := range changes {
		c := &changes[i]
		for _, path := range []string{t.recordPath(c.Address), t.rulePath(c.Address)} {
			b, err := readFile(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			c.files = append(c.files, savedFile{path, string(b), err == nil})
		}
		steps, err := do(c, o.Persist)
		for _, s := range steps {
			if s.verify == nil {
				c.Steps = append(c.Steps, s.String())
			}
		}
		if err == nil && !o.DryRun {
			err = t.run(ctx, c, steps)
		}
		if err != nil {
			for ; i >= 0 && !o.DryRun; i-- {
				err = errors.Join(err, t.back(ctx, &changes[i]))
			}
			return nil, err
		}
		if !o.DryRun {
			c.After = t.driver(c.Address)
		}
	}
	return changes, nil
}

// back undoes a change, whether it was done whole or in part: driver, override and files are as they were.
func (t Tree) back(ctx context.Context, c *Change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	was := &Change{Address: c.Address, Before: t.driver(c.Address), After: c.Before, function: c.function}
	steps := t.giveSteps(c.Address, Record{Driver: c.Before, Module: t.module(c.Before), Override: c.function.Override}, true)
	for _, f := range c.files {
		switch {
		case f.there:
			steps = append(steps, step{file: f.path, text: f.text})
		case exists(f.path):
			steps = append(steps, step{remove: f.path})
		}
	}
	if err := t.run(ctx, was, steps); err != nil {
		return fmt.Errorf("and it could not be undone, `rnicctl unbind %s` tries again: %w", c.Address, err)
	}
	return nil
}

// bindSteps give a function to vfio-pci.
func (t Tree) bindSteps(c *Change, persist bool) ([]step, error) {
	dev := t.device(c.Address)
	var steps []step
	if now := t.driver(c.Address); now != VFIODriver {
		if !exists(filepath.Join(t.drivers(), VFIODriver)) {
			steps = append(steps, step{argv: []string{"modprobe", VFIODriver}})
		}
		b, err := c.record.encode()
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{file: t.recordPath(c.Address), text: b}, step{attr: filepath.Join(dev, "driver_override"), text: VFIODriver})
		if now != "" {
			steps = append(steps, step{attr: filepath.Join(dev, "driver/unbind"), text: c.Address})
		}
		steps = append(steps, step{attr: filepath.Join(t.Sys, "bus/pci/drivers_probe"), text: c.Address, unless: VFIODriver})
	}
	steps = append(steps, step{verify: &want{driver: VFIODriver}})
	if persist {
		text, err := rule(&c.function, c.record)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{file: t.rulePath(c.Address), text: text})
	}
	return steps, nil
}

// restoreSteps give a function back what it had, and forget that.
func (t Tree) restoreSteps(c *Change, persist bool) ([]step, error) {
	steps := t.giveSteps(c.Address, c.record, c.known)
	if exists(t.recordPath(c.Address)) {
		steps = append(steps, step{remove: t.recordPath(c.Address)})
	}
	if persist && exists(t.rulePath(c.Address)) {
		steps = append(steps, step{remove: t.rulePath(c.Address)})
	}
	return steps, nil
}

// giveSteps give a function the driver and the override of a record, or where that is not known, any but vfio-pci.
func (t Tree) giveSteps(addr string, r Record, known bool) (steps []step) {
	dev, now := t.device(addr), t.driver(addr)
	if t.override(addr) != r.Override {
		steps = append(steps, step{attr: filepath.Join(dev, "driver_override"), text: r.Override})
	}
	if now != "" && (now != r.Driver || !known) {
		steps = append(steps, step{attr: filepath.Join(dev, "driver/unbind"), text: addr})
	}
	switch {
	case !known:
		return append(steps, step{attr: filepath.Join(t.Sys, "bus/pci/drivers_probe"), text: addr}, step{verify: &want{not: VFIODriver}})
	case now != r.Driver && r.Driver != "":
		// Its own bind, not drivers_probe: of two drivers that know the card, it gets the one that it had.
		if r.Module != "" && !exists(filepath.Join(t.drivers(), r.Driver)) {
			steps = append(steps, step{argv: []string{"modprobe", "--", r.Module}})
		}
		steps = append(steps, step{attr: filepath.Join(t.drivers(), r.Driver, "bind"), text: addr, unless: r.Driver})
	}
	return append(steps, step{verify: &want{driver: r.Driver}})
}

// override is a function's driver_override, "" where there is none.
func (t Tree) override(addr string) string {
	if o := text(t.device(addr), "driver_override"); o != "(null)" {
		return o
	}
	return ""
}
