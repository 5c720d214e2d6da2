package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/selftest"
	"rnic/vfio/pcidev"
)

// stageJSON is a stage of `selftest`.
type stageJSON struct {
	Stage   string           `json:"stage"`
	Result  selftest.Outcome `json:"result"`
	Found   string           `json:"found"`
	Why     string           `json:"why"`
	Fix     string           `json:"fix"`
	Seconds float64          `json:"seconds"`
}

// selftest brings a card up step by step.
func (a *app) selftest() *cobra.Command {
	var stages []string
	var peer string
	c := &cobra.Command{
		Use: "selftest", Short: "Bring a card up in steps; stops at the first broken", Args: cobra.NoArgs,
		Long: `selftest runs the stairs of a bring-up, each step standing on those before it, and stops at the first
that is broken, saying what was seen and where to look:

  ` + strings.Join(selftest.Names(), ", ") + `

The wire stage needs a second card on the same wire, --peer; without one it is skipped. On soft:, the default
where no card is present, a peer is made.`,
		RunE: func(c *cobra.Command, _ []string) error {
			soft := softPair("selftest")
			addr, err := a.useAddress(c.Context(), soft[0])
			if err != nil {
				return err
			}
			if addr == soft[0] && peer == "" {
				peer = soft[1]
			}
			ids, err := a.cardIDs()
			if err != nil {
				return err
			}
			known := func(v, d uint16) bool {
				return slices.ContainsFunc(ids, func(id pcidev.ID) bool { return id.Vendor == v && id.Device == d })
			}
			p := &progress{a: a}
			report, err := selftest.Run(c.Context(), selftest.Options{Addr: addr, Peer: peer, Stages: stages, Known: known, Timeout: a.timeout, Progress: p.at})
			p.end()
			if errors.Is(err, selftest.ErrStage) {
				return usagef("name one of them", "--stage: %w", err)
			}
			if err != nil {
				return err
			}
			if err := a.showSelftest(addr, peer, report); err != nil {
				return err
			}
			if !report.Passed {
				return errFound
			}
			return nil
		},
	}
	c.Flags().StringSliceVar(&stages, "stage", nil, "this stage alone (repeatable)")
	c.Flags().StringVar(&peer, "peer", "", "address of a second card on the same wire")
	return c
}

func (a *app) showSelftest(addr, peer string, r *selftest.Report) error {
	if a.json {
		out := struct {
			Schema  string      `json:"schema"`
			Address string      `json:"address"`
			Peer    string      `json:"peer"`
			Passed  bool        `json:"passed"`
			Stages  []stageJSON `json:"stages"`
		}{Schema: "rnic.selftest.v1", Address: addr, Peer: peer, Passed: r.Passed, Stages: []stageJSON{}}
		for _, s := range r.Stages {
			out.Stages = append(out.Stages, stageJSON{s.Stage, s.Outcome, s.Found, s.Why, s.Fix, s.Took.Seconds()})
		}
		return a.printJSON(out)
	}
	t := newTable("STAGE", "RESULT", "SECONDS", "FOUND")
	for _, s := range r.Stages {
		took := ""
		if s.Outcome != selftest.NotRun {
			took = fmt.Sprintf("%.3f", s.Took.Seconds())
		}
		t.row(s.Stage, s.Outcome, took, s.Found+s.Why)
	}
	if err := t.write(a); err != nil {
		return err
	}
	for _, s := range r.Stages {
		if s.Fix != "" {
			fmt.Fprintf(a.out, "\n%s is broken: %s\n  fix: %s\n", s.Stage, s.Why, s.Fix)
		}
	}
	return nil
}
