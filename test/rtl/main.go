// Command rtl is what `make rtl` runs: it installs what the RTL needs from Debian (as root; else it says what is
// missing), lints, builds the simulated engine at each width, tests it alone and inside the soft card, runs the proofs, and
// prints a line for each step.
// With RNIC_FULL=1 the random simulation runs at the scale of the acceptance list.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
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
}

var steps = []step{
	{name: "lint", command: []string{"make", "-s", "-C", "bitstream/sim", "lint"}, limit: 5 * time.Minute},
	{name: "synthesizable", command: []string{"make", "-s", "-C", "bitstream/sim", "check"}, limit: 10 * time.Minute},
	{name: "build", command: []string{"make", "-s", "-C", "bitstream/sim", "archive"}, limit: 30 * time.Minute},
	{name: "proofs", command: []string{"make", "-s", "-C", "bitstream/formal"}, limit: 30 * time.Minute, show: "ok "},
	{name: "simulation", command: []string{"go", "test", "-count=1", "-v", "-tags", "rtl", "-timeout", "0", "./hw/rtl"},
		env: []string{"CGO_ENABLED=1"}, limit: time.Hour, show: "_test.go:"},
	{name: "in the card", command: []string{"go", "test", "-count=1", "-tags", "rtl", "./hw/softcard"},
		env: []string{"CGO_ENABLED=1"}, limit: 15 * time.Minute},
	{name: "conformance", command: []string{"go", "run", "-tags", "rtl", "./cmd/rnicctl", "conformance", "-d", "soft:?engine=rtl", "test/golden"},
		env: []string{"CGO_ENABLED=1"}, limit: 15 * time.Minute, show: " passed, "},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "rtl:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	start := time.Now()
	if err := install(ctx); err != nil {
		return err
	}
	for _, s := range steps {
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
		return fmt.Errorf("missing %s; as root: %s", strings.Join(missing, ", "), line)
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
