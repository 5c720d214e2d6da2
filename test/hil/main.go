// Command hil is hardware in the loop: it runs the suites on real cards, or on whatever stands in
// for them at an address that the driver opens. It leases each card, compares it with an
// inventory, looks at its health before and after, resets it when it is ill, puts it aside when
// that does not help, and gives it back as it was. docs/hardware-in-the-loop.md is its manual.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Exit codes. From 2 up they are rnicctl's.
const (
	exitOK          = 0
	exitFailed      = 1 // a suite failed, or a card was refused or put aside
	exitUsage       = 2
	exitNoCard      = 3
	exitHeld        = 4
	exitPermission  = 5
	exitLacks       = 6
	exitGone        = 7
	exitInterrupted = 130
)

const usage = `usage:
  hil run --inventory FILE [--card NAME,…] [--suite NAME,…] [--artefacts DIR]   run the suites
  hil status --inventory FILE                                                   what each card is doing
  hil release --inventory FILE NAME…                                            lift the quarantine of cards
Each command has --help. The inventory is described in docs/hardware-in-the-loop.md.
`

// usageError is a mistake on the command line or in the inventory.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program: arguments in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code, err := command(ctx, args, stdout, stderr)
	var bad usageError
	switch {
	case err == nil:
		return code
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	}
	fmt.Fprintln(stderr, "hil:", err)
	switch {
	case errors.As(err, &bad):
		return exitUsage
	case errors.Is(err, os.ErrPermission):
		return exitPermission
	}
	return exitFailed
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage, nil
	}
	var inventoryFile, cards, suites string
	o := runOptions{out: stdout, log: stderr}
	f := flag.NewFlagSet("hil "+args[0], flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&inventoryFile, "inventory", "", "the cards, a YAML `file`")
	switch args[0] {
	case "run":
		f.StringVar(&cards, "card", "", "`names` of cards, with commas between; all of the inventory without")
		f.StringVar(&suites, "suite", "", "`names` of suites instead of those of the inventory: "+strings.Join(suiteNames(), ", "))
		f.StringVar(&o.artefacts, "artefacts", "", "`folder` for results and for what a failure leaves (default .cache/hil/TIME-PID)")
		f.StringVar(&o.rnicctl, "rnicctl", filepath.Join("bin", "rnicctl"), "the `program`, as `make build` writes it")
		f.StringVar(&o.golden, "golden", filepath.Join("test", "golden"), "`folder` of the scenarios of the suite conformance")
		f.Uint64Var(&o.seed, "seed", 1, "of the random requests of the suites verify and faults")
	case "status", "release":
	case "-h", "-help", "--help", "help":
		fmt.Fprint(stdout, usage)
		return exitOK, nil
	default:
		return 0, usagef("no command %q\n%s", args[0], strings.TrimSpace(usage))
	}
	if err := f.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK, err
		}
		return 0, usageError{err}
	}
	if inventoryFile == "" {
		return 0, usagef("name the inventory with --inventory FILE")
	}
	inv, err := readInventory(inventoryFile)
	if err != nil {
		return 0, usageError{err}
	}
	if args[0] != "release" && f.NArg() > 0 {
		return 0, usagef("%q is not wanted here", f.Arg(0))
	}
	switch args[0] {
	case "status":
		return exitOK, printStatus(inv, stdout)
	case "release":
		return exitOK, release(inv, f.Args(), stdout)
	}
	if o.cards, err = inv.choose(cards); err != nil {
		return 0, usageError{err}
	}
	if o.suites, err = chooseSuites(suites); err != nil {
		return 0, usageError{err}
	}
	if o.rnicctl, err = filepath.Abs(o.rnicctl); err != nil {
		return 0, err
	}
	if _, err := os.Stat(o.rnicctl); err != nil {
		return 0, usagef("--rnicctl: %w; `make build` writes it", err)
	}
	if o.artefacts == "" {
		o.artefacts = filepath.Join(".cache", "hil", fmt.Sprintf("%s-%d", time.Now().UTC().Format("20060102T150405Z"), os.Getpid()))
	}
	return runCards(ctx, inv, &o)
}
