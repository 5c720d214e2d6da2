package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/doctor"
)

// findingJSON is a check of `doctor`.
type findingJSON struct {
	Check  string        `json:"check"`
	Object string        `json:"object"`
	Result doctor.Result `json:"result"`
	Value  string        `json:"value"`
	Limit  string        `json:"limit"`
	Fix    string        `json:"fix"`
	Safe   bool          `json:"safe"` // --fix does it
}

// repairJSON is what --fix did.
type repairJSON struct {
	Check    string   `json:"check"`
	Object   string   `json:"object"`
	Commands []string `json:"commands"`
	Error    string   `json:"error"` // "" where it went well
}

type doctorJSON struct {
	Schema   string        `json:"schema"`
	Well     bool          `json:"well"`
	Repairs  []repairJSON  `json:"repairs"`
	Findings []findingJSON `json:"findings"`
}

// doctor finds what keeps cards from being used.
func (a *app) doctor() *cobra.Command {
	var fix bool
	c := &cobra.Command{
		Use: "doctor [BDF]", Short: "What keeps a card from being used here, and what to do about it", Args: cobra.MaximumNArgs(1),
		Long: `doctor looks for what keeps this machine's cards, or the one named, from being used by the user that calls, and
prints a line a check: what is, what should be, and what to do. It ends with 1 where a check fails; a
warning is no failure, and a check that could not be made says why. A card that is bound to vfio-pci and free is
opened for the last checks, which resets it.

The checks, whose names do not change:

  ` + wrap(doctor.Checks, ", ", 100, "\n  ") + `

--fix first shows, then does what takes nothing from anyone: load modules, raise the calling shell's soft limit of
locked memory up to its hard one, raise dma_entry_limit to the kernel's default, bind a function that has no driver,
and as root install the udev rule; then it looks again.`,
		RunE: func(c *cobra.Command, args []string) error { return a.doctorRun(c.Context(), args, fix) },
	}
	c.Flags().BoolVar(&fix, "fix", false, "show, then do what is safe")
	return c
}

// wrap joins words into lines of at most so many bytes.
func wrap(words []string, between string, most int, newline string) string {
	var b strings.Builder
	width := 0
	for i, w := range words {
		switch {
		case i == 0:
		case width+len(between)+len(w) > most:
			b.WriteString(strings.TrimRight(between, " ") + newline)
			width = 0
		default:
			b.WriteString(between)
			width += len(between)
		}
		b.WriteString(w)
		width += len(w)
	}
	return b.String()
}

func (a *app) doctorRun(ctx context.Context, args []string, fix bool) error {
	ids, err := a.cardIDs()
	if err != nil {
		return err
	}
	if addr := a.asked(); len(args) == 0 && addr != "" {
		args = []string{addr}
	}
	d := &doctor.Doctor{Tree: a.pci, IDs: ids, Addrs: args, UID: os.Geteuid(), Timeout: a.timeout}
	if a.patient != nil {
		a.patient(d)
	}
	found, err := d.Run(ctx)
	if err != nil {
		return err
	}
	var repairs []repairJSON
	if fix {
		if repairs = a.repair(ctx, found); len(repairs) > 0 {
			if found, err = d.Run(ctx); err != nil {
				return err
			}
		}
	}
	return a.showDoctor(found, repairs)
}

// repair shows and does what is safe.
func (a *app) repair(ctx context.Context, found []doctor.Finding) (done []repairJSON) {
	for _, f := range found {
		if f.Repair == nil || ctx.Err() != nil {
			continue
		}
		r := repairJSON{Check: f.Check, Object: f.Object, Commands: f.Repair.Commands}
		if !a.json {
			fmt.Fprintf(a.out, "%s (%s):\n", r.Check, r.Object)
			for _, c := range r.Commands {
				fmt.Fprintln(a.out, "  "+c)
			}
		}
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, 4*a.timeout)
			defer cancel()
			return f.Repair.Do(ctx)
		}()
		said := "done"
		if err != nil {
			r.Error = err.Error()
			said = "failed: " + r.Error
		}
		if !a.json {
			fmt.Fprintln(a.out, "  "+said)
		}
		done = append(done, r)
	}
	if len(done) > 0 && !a.json {
		fmt.Fprintln(a.out)
	}
	return done
}

func (a *app) showDoctor(found []doctor.Finding, repairs []repairJSON) error {
	j := doctorJSON{Schema: "rnic.doctor.v1", Well: true, Repairs: append([]repairJSON{}, repairs...), Findings: []findingJSON{}}
	t := newTable("CHECK", "RESULT", "VALUE", "LIMIT", "FIX")
	for _, f := range found {
		j.Well = j.Well && f.Result != doctor.Fail
		j.Findings = append(j.Findings, findingJSON{f.Check, f.Object, f.Result, f.Value, f.Limit, f.Fix, f.Repair != nil})
		value := f.Value
		if f.Object != doctor.Machine {
			value = f.Object + ": " + value
		}
		t.row(f.Check, f.Result, value, f.Limit, f.Fix)
	}
	show := func() error { return t.write(a) }
	if a.json {
		show = func() error { return a.printJSON(j) }
	}
	if err := show(); err != nil {
		return err
	}
	if !j.Well {
		return errFound
	}
	return nil
}
