package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"rnic/hw"
	"rnic/hw/softcard"
	"rnic/hw/softcard/soft"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

// Exit codes, those of rnicctl.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitBusy       = 4
	exitPermission = 5
)

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(err error) int {
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, vfio.ErrBusy):
		return exitBusy
	case errors.Is(err, vfio.ErrPermission):
		return exitPermission
	}
	return exitFailed
}

type options struct {
	cards []string
	slots int
	json  bool
	// Of cards that do not say their own.
	engine string
	seed   uint64
}

func command(stdout io.Writer) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "rnicsim --card NAME=PATH [--card NAME=PATH ...]",
		Short: "Serve soft cards on UNIX sockets, joined by a wire",
		Long: `Serve soft RDMA cards over vfio-user, each on a UNIX socket, joined by a wire.

A card is NAME=PATH[,KEY=VALUE...] with the keys mac, ip (can be repeated), engine
(go, none, rtl), seed and flash, the file of its flash for ` + "`rnicctl bitstream`" + `, which is made
where there is none; what is not given is derived from NAME. A program opens it
as vfio-user:PATH. One client at a time holds a card; when it goes, however it
does, the card is reset for the next. Runs until SIGINT or SIGTERM.`,
		Example: `  rnicsim --card a=/tmp/a.sock --card b=/tmp/b.sock
  rnicsim --card a=/tmp/a.sock,mac=02:00:00:00:00:0a,ip=10.0.0.1/24 --card b=/tmp/b.sock --wire-slots 2`,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), &o, stdout) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringArrayVar(&o.cards, "card", nil, "a card, NAME=PATH[,KEY=VALUE...] (repeatable)")
	f.IntVar(&o.slots, "wire-slots", softcard.DefaultSlots, "room of each direction of the wire, in frames")
	f.StringVar(&o.engine, "engine", "go", "gather engine of the cards: go, none, or rtl (programs built with -tags rtl)")
	f.Uint64Var(&o.seed, "seed", 0, "varies the addresses that are derived from names")
	f.BoolVar(&o.json, "json", false, "one JSON object a line")
	return cmd
}

// parseCard reads a --card.
func (o *options) parseCard(s string) (cfg softcard.Config, path, flash string, err error) {
	fields := strings.Split(s, ",")
	name, path, ok := strings.Cut(fields[0], "=")
	if !ok || name == "" || path == "" || strings.Contains(name, "?") {
		return cfg, "", "", fmt.Errorf("--card %s: want NAME=PATH[,KEY=VALUE...]", s)
	}
	query := strings.Join(fields[1:], "&")
	if !strings.Contains("&"+query, "&engine=") {
		query += "&engine=" + o.engine
	}
	if !strings.Contains("&"+query, "&seed=") {
		query += fmt.Sprintf("&seed=%d", o.seed)
	}
	if cfg, flash, err = soft.Config(name + "?" + query); err != nil {
		return cfg, "", "", fmt.Errorf("--card %s: %w", s, err)
	}
	return cfg, path, flash, nil
}

// served is a card at its socket.
type served struct {
	*softcard.Card
	cfg  softcard.Config
	path string
	l    *vfiouser.Listener
	out  *printer
}

// Attach tells that a client has come.
func (s *served) Attach(h vfiouser.Host) {
	s.Card.Attach(h)
	s.out.event(event{Event: "attached", Card: s.cfg.Name})
}

// serve serves the cards until the context ends.
func serve(ctx context.Context, o *options, stdout io.Writer) (err error) {
	if len(o.cards) == 0 {
		return usageError{errors.New("no card: give at least one --card NAME=PATH")}
	}
	if o.slots < 1 { // 0 is the default of NewWire, but nobody's who has written it
		return usageError{fmt.Errorf("--wire-slots %d: give at least 2", o.slots)}
	}
	wire, err := softcard.NewWire(o.slots)
	if err != nil {
		return usageError{err}
	}
	out := &printer{w: stdout, json: o.json}
	var cards []*served
	names, paths := map[string]bool{}, map[string]bool{}
	for _, c := range o.cards {
		cfg, path, flash, err := o.parseCard(c)
		if err != nil {
			return usageError{err}
		}
		if names[cfg.Name] || paths[path] {
			return usageError{fmt.Errorf("--card %s: name or path is there twice", c)}
		}
		names[cfg.Name], paths[path] = true, true
		if flash != "" {
			if cfg.Flash, err = softcard.OpenFlash(flash); err != nil {
				return err
			}
			defer cfg.Flash.Close()
		}
		cards = append(cards, &served{cfg: cfg, path: path, out: out})
	}
	for _, s := range cards {
		if s.Card, err = softcard.New(s.cfg); err != nil {
			return err
		}
		defer s.Card.Close()
		if err = wire.Join(s.Card); err != nil {
			return err
		}
		// A worker for each: one may have to wait for its client, when that is
		// stopped or answers DMA by message, and the others are not to wait.
		runner := softcard.NewRunner()
		defer runner.Close()
		runner.Add(s.Card)
		defer runner.Remove(s.Card)
		if s.l, err = vfiouser.Listen(s.path); err != nil {
			return err
		}
		defer s.l.Close()
	}
	out.ready(cards, o.slots)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, s := range cards {
		all.Go(func() {
			err := s.l.Serve(ctx, s, func(err error) {
				e := event{Event: "detached", Card: s.cfg.Name}
				if err != nil && ctx.Err() == nil {
					e.Error = err.Error()
				}
				out.event(e)
			})
			cancel(err) // one that fails ends all
		})
	}
	all.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	out.event(event{Event: "stopped"})
	return nil
}

// engineName is the engine as the option names it.
func engineName(e hw.Engine) string { return strings.ToLower(e.String()) }
