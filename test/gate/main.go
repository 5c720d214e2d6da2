// Command gate is what `make test` runs: every suite in turn, one line a suite with its seconds. It
// stops at the first that fails, shows that suite's log, and ends with 1. The logs stay in
// .cache/gate. With RNIC_FULL=1, the suites run at the scale of the acceptance lists.
//
// Arguments name the suites to run; without any, all run.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"rnic/test/vm/debian"
	"rnic/test/vm/vm"
)

// staticcheck is run by version, which keeps its modules out of go.mod.
const staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"

// A suite is one line of the gate: a command, run at the repository's root.
type suite struct {
	name    string
	command []string
	env     []string
	dir     string        // under the root; "" is the root
	limit   time.Duration // at gate scale; the full scale has ten times as long
	quiet   bool          // any output is a failure
}

var suites = []suite{
	{name: "build", command: []string{"go", "build", "./..."}},
	{name: "vet", command: []string{"go", "vet", "./..."}},
	{name: "vet arm64", command: []string{"go", "vet", "./..."}, env: []string{"GOARCH=arm64", "CGO_ENABLED=0"}},
	{name: "gofmt", command: []string{"gofmt", "-l", "."}, quiet: true},
	{name: "tidy", command: []string{"go", "mod", "tidy", "-diff"}},
	{name: "lint", command: []string{"go", "run", staticcheck, "./..."}},
	{name: "external", command: []string{"sh", "-c", "go vet . && go run . && go test -count=1 ."}, dir: "test/external", env: []string{"CGO_ENABLED=0"}},
	{name: "drift", command: test("-run", "^TestDrift$", "./hw/internal/cardgen")},
	{name: "rules", command: test("./test/rules")},
	{name: "walks", command: test("-run", "^TestG(02|17|21)_", "./hw/gather")}, // the campaigns, whole; under race they are a tenth
	{name: "no false alarm", command: test("-timeout", "60m", "-run", "^TestG21_VerifyCampaign$", "./driver")},
	{name: "sleep and kick", command: test("-timeout", "60m", "-run", "^Test(Sleep|Interrupts)_", "./driver", "./hw/softcard")},
	{name: "rate limits", command: test("-timeout", "60m", "-run", "^TestG1[56]_", "./hw/softcard", "./driver")},
	{name: "looking", command: test("./test/twoprocess")}, // the processes that it starts are without race all the same
	{name: "process", command: test("-race", "-timeout", "60m", "./test/process")},
	{name: "hil", command: test("-run", "^Test(Processes|HIL)_", "./test/hil")},
	{name: "docs", command: test("./docs")},                                                       // the commands of README and docs/getting-started.md
	{name: "rtl", command: []string{"go", "run", "./test/rtl", "-gate"}, limit: 15 * time.Minute}, // on a fresh machine it begins with installing Verilator and yosys
	{name: "unit", command: test("-race", "-timeout", "60m", "-skip", "^Test(Processes|VM|HIL)_", "./..."), limit: 15 * time.Minute},
	{name: "vm", command: test("-v", "-parallel", "2", "-timeout", "3h", "-run", "^TestVM_", "./test/vm/legs"), limit: 30 * time.Minute}, // on a fresh machine it begins with downloads
	{name: "mutants", command: []string{"go", "run", "./test/mutants", "-gate"}, limit: 10 * time.Minute},
}

// test is go test without its cache: a line of the gate says what was run now.
func test(args ...string) []string {
	return append([]string{"go", "test", "-count=1"}, args...)
}

func main() {
	list := flag.Bool("list", false, "print the suites' names and end")
	flag.Parse()
	if *list {
		for _, s := range suites {
			fmt.Println(s.name)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, suites, flag.Args(), ".cache/gate", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

// run runs the suites that names selects, all where there are none, and returns the first failure.
func run(ctx context.Context, suites []suite, names []string, logs string, out io.Writer) error {
	for _, n := range names {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == n }) {
			return fmt.Errorf("no suite %q; -list names them", n)
		}
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	start := time.Now()
	var legs []string
	for _, s := range suites {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		began := time.Now()
		log, err := s.run(ctx)
		file := filepath.Join(logs, strings.ReplaceAll(s.name, " ", "-")+".log")
		if e := os.WriteFile(file, log, 0o644); e != nil {
			return e
		}
		took := time.Since(began).Seconds()
		if err != nil {
			fmt.Fprintf(out, "FAIL  %-14s %7.1f s\n\n%s\n", s.name, took, log)
			return fmt.Errorf("suite %s: %w (log: %s)", s.name, err, file)
		}
		fmt.Fprintf(out, "ok    %-14s %7.1f s%s\n", s.name, took, skips(log))
		legs = append(legs, skippedLegs(log)...)
	}
	for _, l := range legs {
		fmt.Fprintf(out, "skip  %s\n", l)
	}
	fmt.Fprintf(out, "ok    %-14s %7.1f s%s\n", "all", time.Since(start).Seconds(), lastWord(legs))
	return nil
}

// run gives the suite's output and what is wrong.
func (s *suite) run(ctx context.Context) ([]byte, error) {
	limit := s.limit
	if limit == 0 {
		limit = 5 * time.Minute
	}
	if os.Getenv("RNIC_FULL") == "1" {
		limit *= 10
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done in %v", limit))
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = &log, &log
	// go test starts the test binaries: all of the group ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && s.quiet && log.Len() > 0:
		err = errors.New("it should have nothing to say")
	}
	return log.Bytes(), err
}

// skips counts the tests that a log reports as skipped, so that they are seen on the suite's line.
func skips(log []byte) string {
	if n := bytes.Count(log, []byte("--- SKIP:")); n > 0 {
		return fmt.Sprintf("   %d skipped", n)
	}
	return ""
}

// skippedLegs are the virtual machine's legs that a log reports as skipped: name and reason.
func skippedLegs(log []byte) []string {
	var legs []string
	for line := range strings.Lines(string(log)) {
		if _, leg, ok := strings.Cut(line, vm.Skipped); ok {
			legs = append(legs, strings.TrimSpace(leg))
		}
	}
	return legs
}

// lastWord says at the end of the last line what was not run, and whether only the mirror is why.
func lastWord(legs []string) string {
	if len(legs) == 0 {
		return ""
	}
	why := "for the reasons above"
	if !slices.ContainsFunc(legs, func(l string) bool { return !strings.Contains(l, debian.ErrMirrorLacks.Error()) }) {
		why = "only the mirror lacks what they need"
	}
	return fmt.Sprintf("   legs skipped: %d, %s", len(legs), why)
}
