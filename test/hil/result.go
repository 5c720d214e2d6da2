package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	notRun = "not-run" // of a suite behind something that ended the card's run
	mended = "mended"  // of a card's health: it was not well, and a reset has made it so
)

// report is results.json (docs/json/hil.schema.json).
type report struct {
	Schema  string        `json:"schema"`
	Host    string        `json:"host"`
	Who     string        `json:"who"`
	Started time.Time     `json:"started"`
	Seconds float64       `json:"seconds"`
	Exit    int           `json:"exit"`
	Cards   []*cardResult `json:"cards"`
}

// cardResult is what became of one card.
type cardResult struct {
	Card        string         `json:"card"`
	Address     string         `json:"address"`
	Peer        string         `json:"peer"`   // address; "" where there is none
	Result      string         `json:"result"` // pass, fail, refused, unavailable, interrupted
	Why         string         `json:"why"`
	Exit        int            `json:"exit"`
	Started     time.Time      `json:"started"`
	Seconds     float64        `json:"seconds"`
	Waited      float64        `json:"waited_seconds"` // for the lease
	Identity    *saidIdentity  `json:"identity"`       // as the card says it; null where it was not asked
	Health      []healthResult `json:"health"`
	Suites      []suiteResult  `json:"suites"`
	Quarantined []string       `json:"quarantined,omitempty"` // the cards that this run put aside: this one or its peer
	Artefacts   []string       `json:"artefacts"`             // files, below the folder of this one
}

type saidIdentity struct {
	Bitstream string `json:"bitstream_sha256"`
	Engine    string `json:"engine"`
	Contract  string `json:"contract"`
}

// healthResult is one look at the card's health, and what was done about it.
type healthResult struct {
	When     string   `json:"when"`   // before, "after SUITE" where the suite failed, after
	Result   string   `json:"result"` // pass, mended, fail
	Why      string   `json:"why"`
	Counters counters `json:"counters"` // of errors; null where they could not be read
	Ladder   []rung   `json:"ladder"`
}

type suiteResult struct {
	Suite   string     `json:"suite"`
	Result  string     `json:"result"` // pass, fail, skip (each case), not-run
	Seconds float64    `json:"seconds"`
	Again   string     `json:"again,omitempty"` // of a failed suite: its result when it was run once more, with frames captured
	Cases   []testCase `json:"cases"`
	Log     string     `json:"-"` // what was run, for JUnit
}

// count tells how many cases had an outcome.
func (s *suiteResult) count(result string) (n int) {
	for _, c := range s.Cases {
		if c.Result == result {
			n++
		}
	}
	return n
}

func (s *suiteResult) settle() {
	switch {
	case s.count(failed)+s.count(errored) > 0:
		s.Result = failed
	case s.count(passed) == 0:
		s.Result = skipped
	default:
		s.Result = passed
	}
}

// why names the first case that failed, or why all were skipped.
func (s *suiteResult) why() string {
	for _, c := range s.Cases {
		if c.Result == failed || c.Result == errored || s.Result == skipped {
			return c.Name + ": " + c.Why
		}
	}
	return ""
}

func (r *cardResult) identify(i *cardInfo) {
	if i != nil {
		r.Identity = &saidIdentity{i.Bitstream, i.Engine, i.Contract}
	}
}

// settle makes the result of a card from the error that ended its run, if one did, and from its suites.
func (r *cardResult) settle(err error) {
	if err != nil {
		r.Why = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	switch {
	case r.Result != "": // interrupted
	case errors.Is(err, errIdentity), errors.Is(err, errQuarantined):
		r.Result, r.Exit = "refused", exitFailed
	case errors.Is(err, errIll):
		r.Result, r.Exit = "fail", exitFailed
	case errors.Is(err, errLeaseLost):
		r.Result, r.Exit = "unavailable", exitHeld
	case err != nil && codeOf(err) != exitFailed:
		r.Result, r.Exit = "unavailable", codeOf(err)
	case err != nil:
		r.Result, r.Exit = "fail", exitFailed
	default:
		r.Result = "pass"
		for i := range r.Suites {
			if s := &r.Suites[i]; s.Result == failed {
				r.Result, r.Exit, r.Why = "fail", exitFailed, s.Suite+" failed: "+s.why()
				return
			}
		}
		// What befell a card during suites that passed is a failure, though a reset has made it good.
		if n := len(r.Health); n > 0 && r.Health[n-1].When == "after" && r.Health[n-1].Result != passed {
			r.Result, r.Exit, r.Why = "fail", exitFailed, "after the suites: "+r.Health[n-1].Why
		}
	}
}

// settle gives the run its exit code: interrupted before all, then a failure, then what kept the first card
// that could not be tested from it.
func (r *report) settle() {
	for _, want := range []func(int) bool{
		func(e int) bool { return e == exitInterrupted },
		func(e int) bool { return e == exitFailed },
		func(e int) bool { return e != exitOK },
	} {
		for _, c := range r.Cards {
			if want(c.Exit) {
				r.Exit = c.Exit
				return
			}
		}
	}
}

// write leaves results.json and junit.xml in a folder.
func (r *report) write(dir string) error {
	xml, err := r.junit()
	if err != nil {
		return err
	}
	return errors.Join(writeWhole(filepath.Join(dir, "results.json"), r), os.WriteFile(filepath.Join(dir, "junit.xml"), xml, 0o644))
}

// table is what people read of it.
func (r *report) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CARD\tSUITE\tRESULT\tPASSED\tFAILED\tSKIPPED\tSECONDS\tWHY")
	for _, c := range r.Cards {
		for i := range c.Suites {
			s := &c.Suites[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%.1f\t%s\n", c.Card, s.Suite, s.Result, s.count(passed), s.count(failed)+s.count(errored), s.count(skipped), s.Seconds, short(s.why()))
		}
		fmt.Fprintf(w, "%s\t\t%s\t\t\t\t%.1f\t%s\n", c.Card, c.Result, c.Seconds, short(c.Why))
	}
	return w.Flush()
}

// short is a line of a table; the whole of it is in results.json.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 160 {
		return string(r[:160]) + "…"
	}
	return s
}

// lastResult is what `hil status` tells of a card's last run.
type lastResult struct {
	Result string    `json:"result"`
	Why    string    `json:"why"`
	Ended  time.Time `json:"ended"`
}

func (inv *inventory) lastFile(card string) string { return filepath.Join(inv.State, card+".last") }

func (inv *inventory) remember(r *cardResult) error {
	if err := os.MkdirAll(inv.State, 0o777); err != nil {
		return err
	}
	return writeWhole(inv.lastFile(r.Card), lastResult{r.Result, r.Why, time.Now()})
}

// last is the card's last result, nil where there is none that can be read.
func (inv *inventory) last(card string) *lastResult {
	text, err := os.ReadFile(inv.lastFile(card))
	var l lastResult
	if err != nil || json.Unmarshal(text, &l) != nil {
		return nil
	}
	return &l
}
