// Command rtl is what `make rtl` runs: it installs what the RTL needs from Debian (as root; else it says what is
// missing), lints, builds the simulated engine at each width, tests it alone and inside the soft card, runs the proofs, and
// prints a line for each step.
//
// With RNIC_FULL=1 the random simulation runs at the scale of the acceptance list, and the proofs go deeper. With -gate, unless
// RNIC_FULL=1, there is one width, and what leans on the whole card is its recorded scenarios: the scale of the gate. What is
// missing and cannot be installed is then named, and the rest left out, unless this is CI.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"rnic/test/vm/vm"
)

// packages are Debian's, by the program that is looked for.
var packages = []struct{ program, name string }{
	{"verilator", "verilator"}, {"yosys", "yosys"}, {"g++", "g++"}, {"make", "make"},
}

// A step is one line of the summary.
type step struct {
	name    string
	command []string
	env     []string
	limit   time.Duration
	show    string // lines of the log with this in it belong to the summary
	whole   bool   // not at the scale of the gate
}

// jobs has make use the processors.
var jobs = fmt.Sprintf("-j%d", runtime.NumCPU())

var steps = []step{
	{name: "lint", command: []string{"make", "-s", "-C", "bitstream/sim", "lint"}, limit: 5 * time.Minute},
	{name: "synthesizable", command: []string{"make", "-s", "-C", "bitstream/sim", "check"}, limit: 10 * time.Minute},
	{name: "build", command: []string{"make", "-s", jobs, "-C", "bitstream/sim", "archive"}, limit: 30 * time.Minute},
	{name: "proofs", command: []string{"make", "-s", jobs, "-C", "bitstream/formal"}, limit: 30 * time.Minute, show: "ok "},
	{name: "simulation", command: []string{"go", "test", "-count=1", "-v", "-tags", "rtl", "-timeout", "0", "./hw/rtl"}, limit: time.Hour, show: "_test.go:"},
	{name: "in the card", command: []string{"go", "test", "-count=1", "-tags", "rtl", "-timeout", "0", "./hw/softcard"}, limit: 15 * time.Minute, whole: true},
	{name: "conformance", command: []string{"go", "run", "-tags", "rtl", "./cmd/rnicctl", "conformance", "-d", "soft:?engine=rtl", "test/golden"},
		limit: 15 * time.Minute, show: " passed, "},
	{name: "host gather", command: []string{"go", "run", "-tags", "rtl", "./cmd/rnicctl", "conformance", "-d", "soft:?engine=rtl", "--gather", "host", "test/golden"},
		limit: 15 * time.Minute, show: " passed, ", whole: true},
}

// errMissing names the programs that are not there and were not installed.
var errMissing = errors.New("missing")

func main() {
	gate := flag.Bool("gate", false, "one width and the recorded scenarios, unless RNIC_FULL=1")
	flag.Parse()
	if os.Getenv("RNIC_FULL") == "1" {
		*gate = false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *gate)
	if errors.Is(err, errMissing) && *gate && os.Getenv("CI") == "" {
		fmt.Printf("%srtl: %v\n", vm.Skipped, err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rtl:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, gate bool) error {
	start := time.Now()
	if err := install(ctx); err != nil {
		return err
	}
	for _, s := range steps {
		if gate && s.whole {
			continue
		}
		if gate && s.command[0] == "make" {
			s.command = append(s.command, "WIDTHS=128")
		}
		if s.command[0] == "go" {
			// Go caches programs, and does not look into the library: its sum is part of what they are made of.
			sum, err := librarySum()
			if err != nil {
				return err
			}
			s.env = append(s.env, "CGO_ENABLED=1", "CGO_CPPFLAGS=-DRTL_LIBRARY=0x"+sum)
		}
		began := time.Now()
		log, err := s.run(ctx)
		took := time.Since(began).Seconds()
		if err != nil {
			fmt.Printf("FAIL  %-14s %7.1f s\n\n%s\n", s.name, took, log)
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("ok    %-14s %7.1f s\n", s.name, took)
		if s.show != "" {
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, s.show) {
					fmt.Print("      ", strings.TrimSpace(line), "\n")
				}
			}
		}
	}
	fmt.Printf("ok    %-14s %7.1f s\n", "all", time.Since(start).Seconds())
	return nil
}

// librarySum is the SHA-256 of the simulated engine's library.
func librarySum() (string, error) {
	b, err := os.ReadFile("bitstream/sim/build/librnicrtl.a")
	return fmt.Sprintf("%x", sha256.Sum256(b)), err
}

// install makes sure that the programs are there.
func install(ctx context.Context) error {
	var missing []string
	for _, p := range packages {
		if _, err := exec.LookPath(p.program); err != nil {
			missing = append(missing, p.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	line := "apt-get install -y --no-install-recommends " + strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: %s; as root: %s", errMissing, strings.Join(missing, ", "), line)
	}
	for _, command := range []string{"apt-get update", line} {
		words := strings.Fields(command)
		s := step{command: words, env: []string{"DEBIAN_FRONTEND=noninteractive"}, limit: 20 * time.Minute}
		if log, err := s.run(ctx); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, log)
		}
	}
	fmt.Printf("ok    %-14s installed %s\n", "tools", strings.Join(missing, ", "))
	return nil
}

func (s *step) run(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("not done in %v", s.limit))
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return log.Bytes(), err
}
