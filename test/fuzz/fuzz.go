package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startTime is what a target may take beyond its time: to run the corpus first, and to end.
const startTime = 3 * time.Minute

// stats is what the fuzzer says of itself.
type stats struct{ execs, interesting int }

var (
	statusLine = regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+)`)
	keptLine   = regexp.MustCompile(`Failing input written to (\S+)`)
)

// fuzz runs one target for a while and gives its line, and what it found.
func fuzz(ctx context.Context, root string, t *target, each time.Duration, show *progress) (line string, err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, each+startTime, fmt.Errorf("not done %v after its time", startTime))
	defer cancel()
	show.begin(t)
	var all stats
	var log string
	halts := 0
	for left := each; left > 0; left = each - time.Since(began) {
		var s stats
		if s, log, err = t.session(ctx, root, left, show); err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		all.execs, all.interesting = all.execs+s.execs, all.interesting+s.interesting
		if err == nil || !stopped.MatchString(log) || !t.passes(ctx, log) {
			break
		}
		// Those seconds went by in waiting: the machine is busy.
		halts, err = halts+1, nil
	}
	show.done(t)
	result := "ok  "
	if err != nil {
		result = "FAIL"
	}
	line = fmt.Sprintf("%s  %-56s %6.0f s %10d executions %6d new interesting", result, t, time.Since(began).Seconds(), all.execs, all.interesting)
	if halts > 0 {
		line += fmt.Sprintf("  (%d times the fuzzer waited for its worker in vain; the input passed when it was run again)", halts)
	}
	if err != nil {
		line += fmt.Sprintf("\n%v\n%s", err, log)
		if m := keptLine.FindStringSubmatch(log); m != nil {
			line += fmt.Sprintf("the input is kept in %s\n", filepath.Join(t.pkg, m[1]))
		}
	}
	return line, err
}

// stopped is what the fuzzer says where its worker has ended by itself, which it does after 10 s with one input, or
// where it has not begun or ended in a second, and now and then where the time has passed.
var stopped = regexp.MustCompile(`(?m)fuzzing process hung or terminated unexpectedly|communicating with fuzzing process|^\s+context deadline exceeded$`)

// session runs the fuzzer once, and gives what it says.
func (t *target) session(ctx context.Context, root string, each time.Duration, show *progress) (s stats, log string, err error) {
	cmd := t.command(ctx, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", each.String(), "-test.parallel", "1",
		"-test.fuzzminimizetime", "10x", // else the time goes into making large inputs smaller
		"-test.fuzzcachedir", t.cache(root))
	r, w, err := os.Pipe()
	if err != nil {
		return s, "", err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return s, "", err
	}
	var said strings.Builder
	for in := bufio.NewScanner(r); in.Scan(); {
		if m := statusLine.FindStringSubmatch(in.Text()); m != nil {
			s.execs, _ = strconv.Atoi(m[1])
			s.interesting, _ = strconv.Atoi(m[2])
			show.update(t, s)
		} else if !strings.HasPrefix(in.Text(), "fuzz: elapsed") {
			fmt.Fprintln(&said, in.Text())
		}
	}
	return s, said.String(), cmd.Wait()
}

// passes runs the target's inputs as the plain tests do, that of a session that failed among them, which is
// removed if all pass.
func (t *target) passes(ctx context.Context, log string) bool {
	if t.command(ctx, "-test.run", "^"+t.name+"$", "-test.timeout", "2m").Run() != nil {
		return false
	}
	if m := keptLine.FindStringSubmatch(log); m != nil {
		_ = os.Remove(filepath.Join(t.dir, m[1]))
	}
	return true
}

// command is the target's test binary.
func (t *target) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.bin, args...)
	cmd.Dir = t.dir
	// The fuzzer starts the process that does the work: all of the group ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
