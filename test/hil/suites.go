package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"rnic/hw"
)

// Outcomes of a case. An error is a suite that could not be run to its end.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
	errored = "error"
)

// testCase is one thing that a suite looked at.
type testCase struct {
	Name    string   `json:"name"`
	Result  string   `json:"result"`
	Why     string   `json:"why"` // "" for a pass
	Seconds float64  `json:"seconds"`
	Figures []figure `json:"figures,omitempty"`
}

// suite runs some cases on a card that nobody else has.
type suite struct {
	name string
	run  func(context.Context, *session) []testCase
}

// suites are all there are, in the order in which they are run: those first on which the others stand.
var suites = []suite{
	{"selftest", runSelftest},
	{"conformance", runConformance},
	{"verify", runVerify},
	{"faults", runFaults},
	{"bench", runBench},
}

func suiteNames() []string {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// chooseSuites reads a list with commas; nil for an empty one.
func chooseSuites(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	names := strings.Split(list, ",")
	for i, n := range names {
		if !slices.Contains(suiteNames(), n) {
			return nil, fmt.Errorf("--suite: there is no suite %q; there are %s", n, strings.Join(suiteNames(), ", "))
		}
		if slices.Contains(names[:i], n) {
			return nil, fmt.Errorf("--suite: %s is there twice", n)
		}
	}
	return names, nil
}

// session is one card while it is under test.
type session struct {
	*tool
	card    *card
	golden  string // folder of the scenarios
	seed    uint64
	bundles string // folder for what verify leaves of a mismatch
}

// oneCase is a suite's only case: the answer decides, once object has been found in it.
func oneCase(name string, a *answer, judge func() (ok bool, why string)) testCase {
	c := testCase{Name: name, Result: passed, Seconds: a.took.Seconds()}
	if err := a.problem(); err != nil {
		c.Result, c.Why = verdictOf(err), err.Error()
		return c
	}
	if ok, why := judge(); !ok {
		c.Result, c.Why = failed, why
	}
	return c
}

// verdictOf an obstacle: what the card or the machine lacks skips, anything else is an error.
func verdictOf(err error) string {
	if codeOf(err) == exitLacks {
		return skipped
	}
	return errored
}

func runSelftest(ctx context.Context, s *session) []testCase {
	args := []string{"selftest", "-d", s.card.Address}
	if p := s.card.peerAddress(); p != "" {
		args = append(args, "--peer", p)
	}
	a := s.run(ctx, s.card.Timeouts.Suite, args...)
	var r stairs
	if err := a.problem(); err != nil || !a.object("rnic.selftest.v1", &r) {
		return []testCase{oneCase("stairs", a, func() (bool, string) { return false, "no rnic.selftest.v1 in the output" })}
	}
	var cases []testCase
	for _, g := range r.Stages {
		c := testCase{Name: g.Stage, Seconds: g.Seconds, Why: g.Why}
		switch g.Result {
		case "pass":
			c.Result = passed
		case "fail":
			c.Result = failed
		case "skip":
			c.Result = skipped
		default:
			c.Result, c.Why = skipped, "not run: a stage below it is broken"
		}
		cases = append(cases, c)
	}
	return cases
}

func runConformance(ctx context.Context, s *session) []testCase {
	args := []string{"conformance", s.golden, "-d", s.card.Address}
	if p := s.card.peerAddress(); p != "" {
		args = append(args, "--peer", p)
	} else if !strings.HasPrefix(s.card.Address, "soft:") { // rnicctl makes a peer for one of those
		return []testCase{{Name: "scenarios", Result: skipped, Why: "a replay needs two cards, and the inventory names no peer"}}
	}
	a := s.run(ctx, s.card.Timeouts.Suite, args...)
	var r struct {
		Scenarios []struct {
			Name, Result, Why string
		}
	}
	if err := a.problem(); err != nil || !a.object("rnic.conformance.v1", &r) {
		return []testCase{oneCase("scenarios", a, func() (bool, string) { return false, "no rnic.conformance.v1 in the output" })}
	}
	var cases []testCase
	for _, v := range r.Scenarios {
		cases = append(cases, testCase{Name: v.Name, Result: v.Result, Why: v.Why})
	}
	if len(cases) > 0 {
		cases[0].Seconds = a.took.Seconds() // of all of them: there is no time of each
	}
	return cases
}

// Requests that the suites post.
const (
	verifyRequests = 2000
	faultRequests  = 200 // each defect of a walk shows within some tens
)

// verified is what is read of `rnicctl verify`.
type verified struct {
	Requests, Packets, Mismatches uint64
	Lost                          uint64 `json:"lost_records"`
	Mismatch                      *struct {
		Opcode      string
		Packet      uint32
		Differences []struct{ What, Card, Driver string }
	}
}

// difference says in a line what differs.
func (v *verified) difference() string {
	m := v.Mismatch
	if m == nil || len(m.Differences) == 0 {
		return fmt.Sprintf("%d mismatches", v.Mismatches)
	}
	d := m.Differences[0]
	return fmt.Sprintf("%s, packet %d: %s is %s on the card, %s in the driver", m.Opcode, m.Packet, d.What, d.Card, d.Driver)
}

func (s *session) verify(ctx context.Context, count int, more ...string) (*answer, *verified) {
	args := append([]string{"verify", "-d", s.card.Address, "--seed", strconv.FormatUint(s.seed, 10), "--count", strconv.Itoa(count)}, more...)
	if p := s.card.peerAddress(); p != "" {
		args = append(args, "--peer", p)
	}
	a := s.run(ctx, s.card.Timeouts.Suite, args...)
	v := &verified{}
	if !a.object("rnic.verify.v1", v) {
		return a, nil
	}
	return a, v
}

func runVerify(ctx context.Context, s *session) []testCase {
	a, v := s.verify(ctx, verifyRequests, "--bundles", s.bundles)
	return []testCase{oneCase("seed-"+strconv.FormatUint(s.seed, 10), a, func() (bool, string) {
		switch {
		case v == nil:
			return false, "no rnic.verify.v1 in the output"
		case v.Mismatches != 0:
			return false, v.difference()
		case a.code != exitOK:
			return false, strings.TrimSpace(string(a.err.bytes()))
		case v.Packets == 0:
			return false, "no packet was compared"
		}
		return true, ""
	})}
}

// runFaults puts each defect of a walk into the card by its debug page, and wants verification to find it: a
// card whose defects are not found would pass verify for nothing.
func runFaults(ctx context.Context, s *session) []testCase {
	var cases []testCase
	bundles := filepath.Join(s.bundles, "faults")
	for f := hw.WalkFaultNone + 1; f.Valid(); f++ {
		if f == hw.WalkFaultStaleCache { // it is one of the key cache, and no request of verify shows it
			continue
		}
		name := strings.ReplaceAll(strings.ToLower(f.String()), "_", "-")
		a, v := s.verify(ctx, faultRequests, "--fault", name, "--bundles", bundles)
		c := oneCase(name, a, func() (bool, string) {
			if v == nil || v.Mismatches == 0 || v.Mismatch == nil {
				return false, fmt.Sprintf("the defect was in the card for %d requests and was not found", faultRequests)
			}
			return true, ""
		})
		cases = append(cases, c)
		if c.Result == skipped || c.Result == errored {
			break // a card without a debug page, or one that is not there, is so for all
		}
	}
	if !slices.ContainsFunc(cases, func(c testCase) bool { return c.Result != passed }) {
		_ = os.RemoveAll(bundles) // of defects that were put in
		_ = os.Remove(s.bundles)  // where nothing else is in it
	}
	return cases
}
