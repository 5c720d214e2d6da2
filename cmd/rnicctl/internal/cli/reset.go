package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rnic/vfio"
	"rnic/vfio/pcidev"
)

// rungJSON is a rung of `reset`.
type rungJSON struct {
	Rung    pcidev.Rung    `json:"rung"`
	Result  pcidev.Outcome `json:"result"`
	Method  string         `json:"method"`
	Seconds float64        `json:"seconds"`
	Why     string         `json:"why"`
}

// reset resets a function, by more and more.
func (a *app) reset() *cobra.Command {
	var from, max string
	var force bool
	c := &cobra.Command{
		Use: "reset BDF", Short: "Reset a PCI function, by more and more until it answers", Args: cobra.ExactArgs(1),
		Long: `reset climbs a ladder, and stops at the first rung after which the function answers with its own IDs:

  function   this function alone, by FLR or what else the device has
  bus        the bus behind the bridge above: the link goes down and comes up
  rescan     removed and looked for again, as if pulled and plugged; it gets its driver back

A function that a process has open is not reset, nor without --yes one that the machine uses.`,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), a.timeout*4)
			defer cancel()
			tries, err := a.pci.Reset(ctx, args[0], pcidev.Rung(from), pcidev.Rung(max), force)
			if errors.Is(err, vfio.ErrInvalid) {
				return usagef("see rnicctl reset --help", "%w", err)
			}
			if len(tries) == 0 {
				return refusal(err)
			}
			return errors.Join(a.showReset(args[0], tries), err)
		},
	}
	c.Flags().StringVar(&from, "from", string(pcidev.RungFunction), "lowest rung, for a function that answers and is ill all the same")
	c.Flags().StringVar(&max, "max", string(pcidev.RungRescan), "highest rung: function, bus or rescan")
	c.Flags().BoolVar(&force, "yes", false, "also a function that the machine uses")
	return c
}

func (a *app) showReset(addr string, tries []pcidev.Try) error {
	list, done := []rungJSON{}, false
	t := newTable("RUNG", "RESULT", "TIME")
	for _, r := range tries {
		done = done || r.Outcome == pcidev.OK
		why, took := "", ""
		if r.Err != nil {
			why = r.Err.Error()
		}
		if r.Outcome == pcidev.OK || r.Outcome == pcidev.Failed {
			took = fmt.Sprintf("%.3f s", r.Took.Seconds())
		}
		list = append(list, rungJSON{r.Rung, r.Outcome, r.How, r.Took.Seconds(), why})
		t.row(r.Rung, r.Outcome, took)
	}
	if a.json {
		if err := a.printJSON(struct {
			Schema  string     `json:"schema"`
			Address string     `json:"address"`
			Reset   bool       `json:"reset"`
			Rungs   []rungJSON `json:"rungs"`
		}{"rnic.reset.v1", addr, done, list}); err != nil {
			return err
		}
	} else {
		if err := t.write(a); err != nil {
			return err
		}
		for _, r := range list {
			if r.Why != "" {
				fmt.Fprintf(a.out, "%s %s: %s\n", r.Rung, r.Result, r.Why)
			}
		}
	}
	if !done {
		if !a.json {
			fmt.Fprintf(a.out, "\n%s does not answer: power the machine off and on, and look at the card's seat and image\n", addr)
		}
		return errFound
	}
	return nil
}
