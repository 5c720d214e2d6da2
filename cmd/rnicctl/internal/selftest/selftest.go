// Package selftest brings up a card in steps, each of which stands on the ones before it, and stops
// at the first that is broken.
package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"rnic/driver"
	"rnic/vfio"
)

// Outcome is how a stage ended.
type Outcome string

// The outcomes. NotRun is a stage behind a broken one, or one that was not asked for.
const (
	Pass   Outcome = "pass"
	Fail   Outcome = "fail"
	Skip   Outcome = "skip"
	NotRun Outcome = "not-run"
)

// Result is one stage's.
type Result struct {
	Stage   string
	Outcome Outcome
	Found   string // what was seen, of a pass
	Why     string // of a fail or skip
	Fix     string // what to look at, of a fail
	Took    time.Duration
}

// Report is all stages, in order. Passed is false where one failed.
type Report struct {
	Passed bool
	Stages []Result
}

// Options say what to test.
type Options struct {
	Addr   string   // the card
	Peer   string   // a second card on the same wire, "" for none
	Stages []string // the stages to run, all where empty
	// Known tells the IDs of boards besides the contract's; nil for none.
	Known func(vendor, device uint16) bool
	// Timeout bounds each answer of the card.
	Timeout time.Duration
	// Progress is told of each stage before it runs; nil for nobody.
	Progress func(done, of int, stage string)
}

// A stage is one step of the stairs. raw stages work on the bare function, the others with the driver.
type stage struct {
	name string
	raw  func(*function, context.Context) (found string, err error)
	card func(*pair, context.Context) (found string, err error)
	fix  string
}

var stages = []stage{
	{name: "config", raw: (*function).config, fix: "is it the right function, and is the image loaded? `rnicctl list --all` shows what answers"},
	{name: "bar", raw: (*function).bars, fix: "compare the image's BAR sizes and the bridge's windows with docs/card.md; memory decoding must be on"},
	{name: "identity", raw: (*function).identity, fix: "the image does not speak this contract: compare its build with `rnicctl version`"},
	{name: "scratch", raw: (*function).scratch, fix: "register writes do not arrive as they were sent: look at the BAR's write path and byte enables"},
	{name: "widths", raw: (*function).widths, fix: "the register file must take 32-bit accesses and 64-bit registers as two of them, low half first"},
	{name: "dma-read", raw: (*function).dmaRead, fix: "look at the kernel's log for IOMMU faults, and at the card's read tags and completion timeout"},
	{name: "dma-write", raw: (*function).dmaWrite, fix: "look at the kernel's log for IOMMU faults, and at the card's write path"},
	{name: "vectors", raw: (*function).vectors, fix: "look at the MSI-X table, and at interrupt remapping in the kernel's log"},
	{name: "key-table", card: (*pair).keyTable, fix: "the key table behind BAR KEYTABLE does not hold what was written, or a fence is not answered"},
	{name: "doorbell", card: (*pair).doorbell, fix: "doorbell, WQE fetch, key lookup or completion path: `rnicctl trace card` shows how far it came"},
	{name: "loopback", card: (*pair).loopback, fix: "the port must turn frames to its own address: `rnicctl capture` shows what it sent"},
	{name: "wire", card: (*pair).wire, fix: "cable and link, then the peer's address: `rnicctl capture` at both ends shows where frames are lost"},
}

// Names lists the stages from the lowest up.
func Names() []string {
	var names []string
	for _, s := range stages {
		names = append(names, s.name)
	}
	return names
}

// ErrStage is an unknown stage's name.
var ErrStage = errors.New("no such stage")

// skipped is why a stage cannot run here; it is no failure.
type skipped string

func (s skipped) Error() string { return string(s) }

// Run runs the stages. Its error is one that kept the card from being tested at all: no such card,
// held, interrupted; a broken stage is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	for _, n := range o.Stages {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("%w: %q; the stages are %s", ErrStage, n, strings.Join(Names(), ", "))
		}
	}
	r := &runner{Options: o}
	defer r.close()
	report := &Report{Passed: true}
	for i, s := range stages {
		res := Result{Stage: s.name, Outcome: NotRun}
		if report.Passed && (len(o.Stages) == 0 || slices.Contains(o.Stages, s.name)) {
			if o.Progress != nil {
				o.Progress(i, len(stages), s.name)
			}
			if err := r.run(ctx, &s, &res); err != nil {
				return report, err
			}
		}
		if res.Outcome == Fail {
			report.Passed = false
		}
		report.Stages = append(report.Stages, res)
	}
	return report, nil
}

// runner holds the card between stages, first bare, then with the driver.
type runner struct {
	Options
	fn   *function
	pair *pair
}

func (r *runner) run(ctx context.Context, s *stage, res *Result) error {
	start := time.Now()
	found, err := r.stage(ctx, s)
	res.Took = time.Since(start)
	var open *openError
	var skip skipped
	switch {
	case err == nil:
		res.Outcome, res.Found = Pass, found
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &open):
		return open.err
	case errors.As(err, &skip):
		res.Outcome, res.Why = Skip, string(skip)
	default:
		res.Outcome, res.Why, res.Fix = Fail, err.Error(), s.fix
	}
	return nil
}

// openError keeps the whole test from running.
type openError struct{ err error }

func (e *openError) Error() string { return e.err.Error() }

func (r *runner) stage(ctx context.Context, s *stage) (string, error) {
	// Vectors and DMA take several answers.
	ctx, cancel := context.WithTimeout(ctx, 4*r.Timeout)
	defer cancel()
	if s.raw != nil {
		if r.fn == nil {
			dev, err := vfio.Open(ctx, r.Addr)
			if err != nil {
				return "", &openError{err}
			}
			r.fn = &function{dev: dev, timeout: r.Timeout, known: r.Known}
		}
		return s.raw(r.fn, ctx)
	}
	if r.fn != nil {
		err := r.fn.close()
		r.fn = nil
		if err != nil {
			return "", err
		}
	}
	if r.pair == nil {
		p, err := openPair(ctx, r.Addr, r.Peer)
		for _, cause := range []error{driver.ErrNotFound, driver.ErrBusy, driver.ErrPermission} {
			if errors.Is(err, cause) {
				return "", &openError{err}
			}
		}
		if err != nil {
			return "", err
		}
		r.pair = p
	}
	return s.card(r.pair, ctx)
}

func (r *runner) close() {
	if r.fn != nil {
		_ = r.fn.close()
	}
	if r.pair != nil {
		r.pair.close()
	}
}
