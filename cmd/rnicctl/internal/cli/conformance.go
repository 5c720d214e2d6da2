package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/conformance"
	"rnic/driver"
)

// conformance replays recorded scenarios on two cards.
func (a *app) conformance() *cobra.Command {
	var peer, gather string
	c := &cobra.Command{
		Use: "conformance DIR...", Short: "Replay recorded RoCEv2 scenarios and compare", Args: cobra.MinimumNArgs(1),
		Long: `conformance replays what two Linux soft-RoCE hosts did, on two cards, and compares every frame that the
cards send, every completion, QP state and memory range with the recording. A DIR is one scenario, or holds some.

The cards get the recorded addresses, QP numbers, keys and PSNs, their clocks are stepped, and the wire delivers
in turns, so that a replay is exact. The frames are taken from the cards' capture rings. Each scenario begins with
a card from reset: whatever the card did before is lost.

A replay needs two cards on one wire, the first by -d and the second by --peer. Where no card is present, and on
soft:, the second is made. A scenario is skipped only where it needs what a card or its driver lacks, and
"why" names that.`,
		RunE: func(c *cobra.Command, dirs []string) error {
			who, err := gatherMode(gather)
			if err != nil {
				return err
			}
			soft := softPair("conformance")
			addr, err := a.useAddress(c.Context(), soft[0])
			switch {
			case err != nil:
				return err
			case peer != "":
			case addr == soft[0]:
				peer = soft[1]
			default:
				if peer = softPeer(addr); peer == "" {
					return usagef("name the second card on the wire with --peer", "a replay needs two cards, and one is named: %s", addr)
				}
			}
			p := &progress{a: a}
			report, err := conformance.Run(c.Context(), conformance.Options{
				Dirs: dirs, AddrA: addr, AddrB: peer,
				Open:     []driver.Option{driver.WithLogger(a.logger()), driver.WithGather(who)},
				Timeout:  a.timeout,
				Progress: p.at,
			})
			p.end()
			switch {
			case errors.Is(err, conformance.ErrScenario):
				return usagef("name a directory with a scenario.json in it, or one that holds such directories", "%w", err)
			case err != nil:
				return err
			}
			if err := a.showConformance(report); err != nil {
				return err
			}
			if report.Failed > 0 {
				return errFound
			}
			return nil
		},
	}
	c.Flags().StringVar(&peer, "peer", "", "address of the second card, on the same wire")
	c.Flags().StringVar(&gather, "gather", "card", "who gathers: card or host")
	return c
}

// gatherMode reads --gather.
func gatherMode(s string) (driver.GatherMode, error) {
	switch s {
	case "card":
		return driver.Card, nil
	case "host":
		return driver.Host, nil
	}
	return 0, usagef("use card or host", "--gather %q is none of card, host", s)
}

// showConformance prints a line a scenario, then of each failure the first differing frame, side by side.
func (a *app) showConformance(r *conformance.Report) error {
	if a.json {
		return a.printJSON(r)
	}
	t := newTable("SCENARIO", "RESULT", "FRAMES", "WHY")
	for _, s := range r.Scenarios {
		t.row(s.Name, s.Result, s.Frames, s.Why)
	}
	if err := t.write(a); err != nil {
		return err
	}
	for _, s := range r.Scenarios {
		if len(s.Fields) == 0 {
			continue
		}
		fmt.Fprintf(a.out, "\n%s:\n", s.Name)
		t := newTable("FIELD", "RECORDED", "OURS", "DIFFERS")
		for _, f := range s.Fields {
			mark := ""
			if f.Differs {
				mark = "<"
			}
			t.row(f.Name, f.Recorded, f.Ours, mark)
		}
		if err := t.write(a); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.out, "\n%d passed, %d failed, %d skipped\n", r.Passed, r.Failed, r.Skipped)
	return err
}
