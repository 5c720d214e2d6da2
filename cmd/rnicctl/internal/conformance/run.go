package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rnic/driver"
)

// Options say what is replayed on which cards.
type Options struct {
	Dirs []string // scenario directories, or directories that hold some

	// Addresses of the cards that play nodes A and B, joined by a wire. The
	// default is a pair of soft cards of this process.
	AddrA, AddrB string

	Open []driver.Option // for both cards

	// Timeout bounds the waits for one answer of a card; 0: the driver's own.
	Timeout time.Duration

	Done     func(ScenarioReport)             // called after each scenario; may be nil
	Progress func(done, all int, name string) // called before each; may be nil

	attrs []driver.DeviceAttr // of both cards, once they were opened
}

// The default cards.
const (
	DefaultA = "soft:conformance-a?wire=conformance"
	DefaultB = "soft:conformance-b?wire=conformance"
)

// Run replays scenarios, one after the other, on cards that it opens anew, and
// so resets, for each of them. The error says why a run could not be made or
// not be ended: the report holds what was found until then. Is: ErrScenario for
// directories and files, else what opening and using a card gives.
func Run(ctx context.Context, o Options) (*Report, error) {
	report := &Report{Schema: Schema, Scenarios: []ScenarioReport{}}
	dirs, err := Find(o.Dirs)
	if err != nil {
		return report, err
	}
	all := make([]*Recording, len(dirs))
	for i, dir := range dirs {
		if all[i], err = Load(dir); err != nil {
			return report, err
		}
	}
	if o.AddrA == "" && o.AddrB == "" {
		o.AddrA, o.AddrB = DefaultA, DefaultB
	}
	for i, r := range all {
		if o.Progress != nil {
			o.Progress(i, len(all), r.Name)
		}
		s, err := one(ctx, &o, r)
		if err != nil {
			return report, fmt.Errorf("scenario %s: %w", r.Name, err)
		}
		all[i] = nil
		report.add(s)
		if o.Done != nil {
			o.Done(s)
		}
	}
	return report, nil
}

// one replays a scenario. Cards that are known to lack what it needs are not opened for it.
func one(ctx context.Context, o *Options, r *Recording) (s ScenarioReport, err error) {
	s = ScenarioReport{Name: r.Name, Result: Pass}
	x, err := expect(r)
	if err != nil {
		s.fail(err)
		return s, nil
	}
	s.Ruled = x.ruled
	if lacks := o.lacking(r.needs()); lacks != "" {
		s.Result, s.Why = Skip, lacks
		return s, nil
	}
	devs, err := o.openBoth(ctx)
	defer func() { err = errors.Join(err, closeBoth(devs)) }()
	if err != nil {
		return s, err
	}
	o.attrs = []driver.DeviceAttr{devs[0].Attr(), devs[1].Attr()}
	if lacks := o.lacking(r.needs()); lacks != "" {
		s.Result, s.Why = Skip, lacks
		return s, nil
	}
	s.Frames, err = o.replayOn(ctx, x, devs)
	switch {
	case err == nil:
	case ctx.Err() != nil || errors.Is(err, driver.ErrDeviceGone):
		return s, err // of the run, not of the scenario
	default:
		s.fail(err)
	}
	return s, nil
}

// openBoth opens the cards side by side: a function's reset takes a tenth of a second in the kernel's VFIO, and there are
// two for each opening. What was opened is given with an error too.
func (o *Options) openBoth(ctx context.Context) (devs [2]*driver.Device, err error) {
	var wait sync.WaitGroup
	var errs [2]error
	for i, addr := range []string{o.AddrA, o.AddrB} {
		wait.Go(func() { devs[i], errs[i] = o.open(ctx, addr) })
	}
	wait.Wait()
	return devs, errors.Join(errs[:]...)
}

func closeBoth(devs [2]*driver.Device) error {
	var wait sync.WaitGroup
	var errs [2]error
	for i, d := range devs {
		if d != nil {
			wait.Go(func() { errs[i] = d.Close() })
		}
	}
	wait.Wait()
	return errors.Join(errs[:]...)
}

func (o *Options) open(ctx context.Context, addr string) (*driver.Device, error) {
	ctx, cancel := o.within(ctx)
	defer cancel()
	return driver.Open(ctx, addr, o.Open...)
}

// within gives the time for a card's answers.
func (o *Options) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, o.Timeout)
}

// lacking says what a scenario needs and a card lacks, "" if nothing.
func (o *Options) lacking(needs []need) string {
	for _, n := range needs {
		for i := range o.attrs {
			if slices.Contains(o.attrs[i].NotSupported, n.feature()) {
				return fmt.Sprintf("needs %v, which card %s (%s) or its driver lacks", n, side(i), [2]string{o.AddrA, o.AddrB}[i])
			}
		}
	}
	return ""
}

// replayOn sets the cards up and plays.
func (o *Options) replayOn(ctx context.Context, x *expectation, devs [2]*driver.Device) (int, error) {
	var sides [2]*device
	for at := range devs {
		within, cancel := o.within(ctx)
		d, err := setUp(within, devs[at], x, side(at))
		cancel()
		if err != nil {
			return 0, err
		}
		sides[at] = d
	}
	sides[sideA].peer, sides[sideB].peer = sides[sideB], sides[sideA]
	return play(ctx, x, [2]card{sides[sideA], sides[sideB]})
}
