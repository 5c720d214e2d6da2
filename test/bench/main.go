// Command bench is what `make bench` runs: the figures of docs/performance.md, each against its floor
// and its aim, in one table. Ratios are of two things that ran in turn; absolute figures stand beside them.
//
//	go run ./test/bench [-json] [-only ROW[,ROW]] [-quick] [-check]
//
// A floor that is missed is said in the table, and is an exit code of 1 with -check only: a busy
// machine is no defect. It wants gcc for the rows that have a twin in C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// bench is a run of the program.
type bench struct {
	quick bool
	only  []string
	log   io.Writer
	twin  *twin
	cpu   int // that the twin and what is compared with it run on
	rows  []row
}

// A part measures rows. All parts of which a row is wanted run; no part needs another.
type part struct {
	rows    []string // as they stand in the table
	measure func(context.Context, *bench) error
}

func parts() []part {
	return append(twinParts(),
		part{[]string{"alloc"}, measureAllocations},
		part{[]string{"gather-icrc"}, measureGather},
		part{[]string{"write64k", "write64k-copies", "write64k-32m"}, measureWrite},
		part{[]string{"send64"}, measureSend},
		part{[]string{"rtt-p50", "rtt-p99"}, measureRoundTrip},
		part{[]string{"qps"}, measureQPs},
		part{[]string{"register", "register-alloc"}, measureRegistration},
		part{[]string{"verify-off", "verify-sample16"}, measureVerification},
		part{[]string{"rxe"}, measureRXE},
		part{[]string{"rtl"}, elsewhere},
	)
}

func run(ctx context.Context, args []string, out, log io.Writer) int {
	b := &bench{log: log}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(log)
	asJSON := f.Bool("json", false, "print one JSON object (docs/json/bench.schema.json)")
	only := f.String("only", "", "measure these `rows` only, by name, with commas between")
	check := f.Bool("check", false, "end with 1 where a floor is missed")
	f.BoolVar(&b.quick, "quick", false, "a few rounds of each, to see that all of it works; the figures say little")
	turns := f.Int("in-guest", 0, "what -only rxe runs in its guest, so many `times`")
	if f.Parse(args) != nil || f.NArg() > 0 {
		return 2
	}
	if *turns > 0 {
		if err := inGuest(ctx, *turns, out); err != nil {
			fmt.Fprintln(log, "bench:", err)
			return 1
		}
		return 0
	}
	all := parts()
	if *only != "" {
		b.only = strings.Split(*only, ",")
	}
	for _, name := range b.only {
		if !slices.ContainsFunc(all, func(p part) bool { return slices.Contains(p.rows, name) }) {
			fmt.Fprintf(log, "bench: no row %q; there are", name)
			for _, p := range all {
				fmt.Fprintf(log, " %s", strings.Join(p.rows, " "))
			}
			fmt.Fprintln(log)
			return 2
		}
	}
	r := report{Schema: schema, Time: time.Now().UTC().Format(time.RFC3339), Quick: b.quick, Load: []float64{load()}}
	var err error
	if r.Machine, err = machine(ctx); err == nil {
		err = b.measure(ctx, all)
	}
	if b.twin != nil {
		err = errors.Join(err, b.twin.close())
	}
	if err != nil {
		fmt.Fprintln(log, "bench:", err)
		return 1
	}
	r.Rows, r.Load = b.rows, append(r.Load, load())
	if *asJSON {
		err = r.json(out)
	} else {
		err = r.table(out)
	}
	if err != nil {
		fmt.Fprintln(log, "bench:", err)
		return 1
	}
	if *check && slices.ContainsFunc(r.Rows, func(r row) bool { return r.Result == missed }) {
		return 1
	}
	return 0
}

func (b *bench) measure(ctx context.Context, all []part) error {
	for _, p := range all {
		if len(b.only) > 0 && !slices.ContainsFunc(b.only, func(n string) bool { return slices.Contains(p.rows, n) }) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fmt.Fprintf(b.log, "%s …\n", strings.Join(p.rows, ", "))
		if err := p.measure(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.rows[0], err)
		}
	}
	return nil
}

// times is how often each of the things compared runs, in turn: the least of them counts.
func (b *bench) times() int { return b.atScale(15, 2) }

// atScale is n, or with -quick the few.
func (b *bench) atScale(n, few int) int {
	if b.quick {
		return few
	}
	return n
}
