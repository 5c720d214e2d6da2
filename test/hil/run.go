package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// errQuarantined is the cause where a card was put aside and nobody has lifted that.
var errQuarantined = errors.New("the card is quarantined")

// giveBackTime bounds the giving back of a function, which is done after an interruption too.
const giveBackTime = time.Minute

// runOptions are those of `hil run`.
type runOptions struct {
	cards     []*card
	suites    []string // nil: those of the inventory
	artefacts string
	rnicctl   string
	golden    string
	seed      uint64
	out, log  io.Writer
}

// runner runs cards one after another.
type runner struct {
	*runOptions
	inv    *inventory
	leases *leases
}

// codeOf is the exit code of what keeps a card from being tested, 1 where the error has none.
func codeOf(err error) int {
	var c *cannot
	var h *heldError
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &h):
		return exitHeld
	case errors.Is(err, os.ErrPermission):
		return exitPermission
	}
	return exitFailed
}

func (r *runner) logf(c *card, format string, a ...any) {
	fmt.Fprintf(r.log, "%s %s: %s\n", time.Now().Format(time.TimeOnly), c.Name, fmt.Sprintf(format, a...))
}

// runCards runs the suites on the chosen cards and leaves their results. Its error is one of the
// runner itself; what befell a card is in the exit code.
func runCards(ctx context.Context, inv *inventory, o *runOptions) (int, error) {
	self, err := thisProcess()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(o.artefacts, 0o755); err != nil {
		return 0, err
	}
	r := &runner{runOptions: o, inv: inv, leases: inv.leases(self)}
	rep := &report{Schema: "rnic.hil.v1", Host: self.Host, Who: self.Who, Started: time.Now(), Cards: []*cardResult{}}
	for _, c := range o.cards {
		res := r.card(ctx, c)
		rep.Cards = append(rep.Cards, res)
		if err := r.inv.remember(res); err != nil {
			r.logf(c, "its result is not remembered: %v", err)
		}
	}
	rep.Seconds = time.Since(rep.Started).Seconds()
	rep.settle()
	if err := rep.write(o.artefacts); err != nil {
		return 0, err
	}
	return rep.Exit, rep.table(o.out)
}

// card runs the suites of one card.
func (r *runner) card(ctx context.Context, c *card) *cardResult {
	res := &cardResult{Card: c.Name, Address: c.Address, Peer: c.peerAddress(), Started: time.Now(), Health: []healthResult{}, Suites: []suiteResult{}}
	names := c.Suites
	if r.suites != nil {
		names = r.suites
	}
	for _, s := range suites {
		if slices.Contains(names, s.name) {
			res.Suites = append(res.Suites, suiteResult{Suite: s.name, Result: notRun, Cases: []testCase{}})
		}
	}
	arts := &artefacts{dir: filepath.Join(r.artefacts, c.Name), left: maxArtefacts}
	err := r.leased(ctx, c, res, arts)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
		res.Result, res.Exit = "interrupted", exitInterrupted
	}
	res.settle(err)
	res.Artefacts = arts.names()
	res.Seconds = time.Since(res.Started).Seconds()
	r.logf(c, "%s%s", res.Result, because(res.Why))
	return res
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// leased takes the leases of the card and of its peer, in the order of their addresses, so that two runners
// never wait for each other, and gives them back.
func (r *runner) leased(ctx context.Context, c *card, res *cardResult, arts *artefacts) (err error) {
	type want struct{ name, addr string }
	wants := []want{{c.Name, c.Address}}
	if c.peer != nil {
		wants = append(wants, want{c.peer.Name, c.peer.Address})
	} else if c.Peer != "" {
		wants = append(wants, want{c.Peer, c.Peer})
	}
	slices.SortFunc(wants, func(a, b want) int { return strings.Compare(a.addr, b.addr) })
	began := time.Now()
	for _, w := range wants {
		under, h, err := r.leases.take(ctx, w.name, w.addr, c.Timeouts.Wait-time.Since(began), func(l *lease) {
			r.logf(c, "waiting for %s, which %s has until %s", w.name, l.Holder, l.Until.Format(time.TimeOnly))
		})
		if err != nil {
			return err
		}
		defer func() {
			if e := h.release(); e != nil {
				r.logf(c, "the lease of %s was not given back: %v", w.name, e)
			}
		}()
		ctx = under
	}
	res.Waited = time.Since(began).Seconds()
	err = r.owned(ctx, c, res, arts)
	if cause := context.Cause(ctx); errors.Is(cause, errLeaseLost) {
		err = cause
	}
	return err
}

// owned has the cards given to vfio-pci, tested and given back.
func (r *runner) owned(ctx context.Context, c *card, res *cardResult, arts *artefacts) (err error) {
	t := &tool{program: r.rnicctl, answer: c.Timeouts.Answer}
	s := &session{tool: t, card: c, golden: r.golden, seed: r.seed, bundles: filepath.Join(arts.dir, "bundles")}
	cards := []*card{c}
	if c.peer != nil {
		cards = append(cards, c.peer)
	}
	for _, m := range cards {
		if q := r.inv.quarantined(m.Address); q != nil {
			return fmt.Errorf("%w: %s since %s by %s: %s; `hil release %s` lifts it", errQuarantined, m.Name, q.Since.Format(time.RFC3339), q.By, q.Reason, m.Name)
		}
	}
	for _, m := range cards {
		if err := setUp(ctx, t, m.Address, m.Restore); err != nil {
			return err
		}
		defer func() {
			// Also after an interruption, and when the lease was lost: nobody else would do it.
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
			defer cancel()
			if e := giveBack(late, t, m.Address, m.Restore); e != nil {
				err = errors.Join(err, fmt.Errorf("give back %s: %w", m.Name, e))
			}
		}()
	}
	for _, m := range cards {
		info, err := checkIdentity(ctx, t, m)
		if m == c {
			res.identify(info)
		}
		if errors.Is(err, errIdentity) {
			return r.putAside(m, res, err)
		}
		if err != nil && !ill(ctx, err) { // what is ill is looked at next
			return err
		}
	}
	before, err := r.look(ctx, s, res, "before", nil)
	if err != nil {
		return err
	}
	for i := range res.Suites {
		if err := r.suite(ctx, s, res, &res.Suites[i], arts); err != nil {
			return err
		}
	}
	_, err = r.look(ctx, s, res, "after", before)
	return err
}

// suite runs one suite. A failure leaves artefacts, and has the card's health looked at.
func (r *runner) suite(ctx context.Context, s *session, res *cardResult, sr *suiteResult, arts *artefacts) error {
	r.logf(s.card, "%s", sr.Suite)
	var answers []*answer
	s.trace = func(a *answer) { answers = append(answers, a) }
	began := time.Now()
	i := slices.IndexFunc(suites, func(x suite) bool { return x.name == sr.Suite })
	sr.Cases = suites[i].run(ctx, s)
	sr.Seconds = time.Since(began).Seconds()
	s.trace = nil
	if ctx.Err() != nil {
		sr.Cases = append(sr.Cases, testCase{Name: "interrupted", Result: errored, Why: context.Cause(ctx).Error()})
		sr.settle()
		return context.Cause(ctx)
	}
	sr.settle()
	sr.Log = commandLog(answers)
	if sr.Result != failed {
		return nil
	}
	r.logf(s.card, "%s failed: %s", sr.Suite, sr.why())
	arts.collect(ctx, s, sr, answers)
	_, err := r.look(ctx, s, res, "after "+sr.Suite, nil)
	return err
}

// ill tells whether an error says that the card is not well, and not that somebody stopped the run or
// that it may not be used.
func ill(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, errIll) || codeOf(err) == exitGone)
}

// look looks at the card's health. An ill card is mended; one that stays ill, or is another by now, is put aside.
func (r *runner) look(ctx context.Context, s *session, res *cardResult, when string, before counters) (counters, error) {
	now, err := checkHealth(ctx, s.tool, s.card, before)
	if when != "before" && codeOf(err) == exitNoCard { // it was there
		err = fmt.Errorf("%w: %w", errIll, err)
	}
	h := healthResult{When: when, Counters: now, Ladder: []rung{}}
	if err != nil && ill(ctx, err) {
		h.Why = err.Error()
		r.logf(s.card, "not well %s: %v", when, err)
		if h.Ladder, now, err = mend(ctx, s.tool, s.card); err != nil {
			err = fmt.Errorf("%w: %w", errIll, err)
		}
	}
	h.Result = passed
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		h.Result = failed
		if h.Why == "" {
			h.Why = err.Error()
		}
	case h.Why != "":
		h.Result = mended
	}
	res.Health = append(res.Health, h)
	if errors.Is(err, errIll) || errors.Is(err, errIdentity) {
		return nil, r.putAside(s.card, res, err)
	}
	return now, err
}

// putAside quarantines a card and gives why.
func (r *runner) putAside(c *card, res *cardResult, why error) error {
	r.logf(c, "quarantined: %v", why)
	res.Quarantined = append(res.Quarantined, c.Name)
	return errors.Join(why, r.inv.quarantine(c.Address, why.Error(), r.leases.self))
}
