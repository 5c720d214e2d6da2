package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"rnic/vfio/pcidev"
)

// rung is one step of the reset ladder, as it went.
type rung struct {
	Rung   string  `json:"rung"` // reopen, function, bus, rescan
	Result string  `json:"result"`
	Why    string  `json:"why"`
	Took   float64 `json:"seconds"`
}

// mend tries to make an ill card well: it climbs the reset ladder and looks at the card's health after
// each rung. A PCI function has those of `rnicctl reset`; any other address is closed and opened again, which
// resets the card. It gives what was done, and what the last look found.
func mend(ctx context.Context, t *tool, c *card) (climbed []rung, now counters, err error) {
	rungs := []string{"reopen"}
	if c.pci() {
		rungs = []string{"function", "bus", "rescan"}
	}
	for _, name := range rungs {
		began := time.Now()
		var reset error
		if c.pci() {
			reset = climb(ctx, t, c.Address, name)
		}
		if reset == nil {
			now, err = checkHealth(ctx, t, c, nil)
		} else {
			now, err = nil, reset
		}
		r := rung{Rung: name, Result: "pass", Took: time.Since(began).Seconds()}
		if err != nil {
			r.Result, r.Why = "fail", err.Error()
		}
		climbed = append(climbed, r)
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return climbed, now, err
}

// climb does one rung, also where a lower one would leave a function that answers: it answered before, and was ill.
func climb(ctx context.Context, t *tool, addr, name string) error {
	a := t.run(ctx, lookTime, "reset", addr, "--from", name, "--max", name)
	if err := a.problem(); err != nil || a.code == exitOK {
		return err
	}
	var said struct {
		Rungs []struct{ Rung, Result, Why string }
	}
	a.object("rnic.reset.v1", &said)
	for _, r := range said.Rungs {
		if r.Rung == name {
			return fmt.Errorf("reset: %s: %s", r.Result, r.Why)
		}
	}
	return fmt.Errorf("reset: exit %d", a.code)
}

// vfioPCI is the kernel's driver for functions of user space. A card that is to have it after a run has it before:
// such a card is neither bound nor unbound, and its runner needs no rights to do so.
const vfioPCI = pcidev.VFIODriver

// setUp gives a PCI function to vfio-pci. Other addresses need nothing.
func setUp(ctx context.Context, t *tool, addr, restore string) error {
	switch {
	case !isPCI(addr):
		return nil
	case restore == vfioPCI:
		return driverIs(addr, vfioPCI)
	}
	return changeOwner(ctx, t, "bind", addr)
}

// giveBack gives a PCI function to the driver that it had before, which is to be the one that the inventory names.
func giveBack(ctx context.Context, t *tool, addr, restore string) error {
	if !isPCI(addr) {
		return nil
	}
	if restore != vfioPCI {
		if err := changeOwner(ctx, t, "unbind", addr); err != nil {
			return err
		}
	}
	return driverIs(addr, restore)
}

func changeOwner(ctx context.Context, t *tool, command, addr string) error {
	a := t.run(ctx, lookTime, command, addr)
	if err := a.problem(); err != nil {
		return err
	}
	if a.code != exitOK {
		return &cannot{a.code, fmt.Errorf("rnicctl %s %s: exit %d", command, addr, a.code)}
	}
	return nil
}

// driverIs wants a kernel driver at a function: a name, "none", or "" for whichever.
func driverIs(addr, want string) error {
	if want == "" {
		return nil
	}
	has := "none"
	if link, err := os.Readlink(filepath.Join(function(addr), "driver")); err == nil {
		has = filepath.Base(link)
	}
	if has != want {
		return &cannot{exitFailed, fmt.Errorf("%s has the driver %s, the inventory says restore: %s", addr, has, want)}
	}
	return nil
}
