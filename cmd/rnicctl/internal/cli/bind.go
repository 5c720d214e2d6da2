package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rnic/vfio/pcidev"
)

// driverChangeJSON is what bind or unbind did to a function.
type driverChangeJSON struct {
	Address string   `json:"address"`
	Before  string   `json:"before"` // driver, "" for none
	After   string   `json:"after"`
	Steps   []string `json:"steps"`
	Note    string   `json:"note"`
}

// bind gives functions to vfio-pci.
func (a *app) bind() *cobra.Command {
	return a.changeDrivers("bind", "Give PCI functions to vfio-pci", `bind gives PCI functions to the driver vfio-pci, so that a program can open them, and shows BEFORE and AFTER. What a
function had is recorded in /run/rnic/bind until unbind gives it back. When a step fails, what was done is undone,
of all functions named. --persist writes a udev rule besides, so that it holds after the next boot.

It is refused for a function whose IOMMU group has others with kernel drivers (--group takes them too; bridges
do not count), that has virtual functions, that is in quarantine, or that the machine uses: a disk that is
mounted, an interface that is up, the console's display. The last two, --yes takes all the same.`,
		"give it to vfio-pci at each boot (a udev rule)", pcidev.Tree.Bind)
}

// unbind gives them back.
func (a *app) unbind() *cobra.Command {
	return a.changeDrivers("unbind", "Give PCI functions back to the drivers that they had", `unbind gives PCI functions back to the drivers that they had before bind, and shows BEFORE and AFTER. Where that is
not recorded, the kernel chooses. A function that a process has open is not unbound, since the kernel would wait for
that process; --yes asks the process for it all the same.`,
		"no longer at each boot: removes the udev rule", pcidev.Tree.Unbind)
}

func (a *app) changeDrivers(name, short, long, persist string, do func(pcidev.Tree, context.Context, []string, pcidev.Options) ([]pcidev.Change, error)) *cobra.Command {
	var o pcidev.Options
	c := &cobra.Command{
		Use: name + " BDF...", Short: short, Long: long, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, addrs []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), a.timeout*time.Duration(1+len(addrs)))
			defer cancel()
			changes, err := do(a.pci, ctx, addrs, o)
			if err != nil {
				return refusal(err)
			}
			return a.showChanges(name, changes, o.DryRun)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.DryRun, "dry-run", false, "change nothing, show what would be done")
	f.BoolVar(&o.Group, "group", false, "every function of the IOMMU groups, but for bridges")
	f.BoolVar(&o.Persist, "persist", false, persist)
	f.BoolVar(&o.Force, "yes", false, "also a function that is in use or in quarantine")
	return c
}

// refusal gives a refused change its own remedy.
func refusal(err error) error {
	var r *pcidev.Refused
	if errors.As(err, &r) {
		return &failure{exit: exitFound, code: "failed", fix: r.Fix, err: fmt.Errorf("%s: %s", r.Addr, r.Why)}
	}
	return err
}

func (a *app) showChanges(command string, changes []pcidev.Change, dry bool) error {
	list := []driverChangeJSON{}
	t := newTable("ADDRESS", "BEFORE", "AFTER", "NOTE")
	for _, c := range changes {
		list = append(list, driverChangeJSON{c.Address, c.Before, c.After, append([]string{}, c.Steps...), c.Note})
		note := c.Note
		if len(c.Steps) == 0 && note == "" {
			note = "nothing to do"
		}
		t.row(c.Address, c.Before, c.After, note)
	}
	if a.json {
		return a.printJSON(struct {
			Schema  string             `json:"schema"`
			Command string             `json:"command"`
			DryRun  bool               `json:"dry_run"`
			Changes []driverChangeJSON `json:"changes"`
		}{"rnic.bind.v1", command, dry, list})
	}
	if err := t.write(a); err != nil {
		return err
	}
	if !dry && !a.verbose {
		return nil
	}
	heading := "done:"
	if dry {
		heading = "nothing was changed; it would be done so:"
	}
	if _, err := fmt.Fprintf(a.out, "\n%s\n", heading); err != nil {
		return err
	}
	for _, c := range changes {
		for _, s := range c.Steps {
			if _, err := fmt.Fprintln(a.out, " ", s); err != nil {
				return err
			}
		}
	}
	return nil
}
