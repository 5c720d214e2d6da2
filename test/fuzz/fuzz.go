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
	cmd := exec.CommandContext(ctx, t.bin, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", each.String(), "-test.parallel", "1",
		"-test.fuzzminimizetime", "10x", // else the time goes into making large inputs smaller
		"-test.fuzzcachedir", t.cache(root))
	cmd.Dir = t.dir
	// The fuzzer starts the process that does the work: all of the group ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	show.begin(t)
	err = cmd.Start()
	w.Close()
	var log strings.Builder
	var s stats
	if err == nil {
		for in := bufio.NewScanner(r); in.Scan(); {
			if m := statusLine.FindStringSubmatch(in.Text()); m != nil {
				s.execs, _ = strconv.Atoi(m[1])
				s.interesting, _ = strconv.Atoi(m[2])
				show.update(t, s)
			} else if !strings.HasPrefix(in.Text(), "fuzz: elapsed") {
				fmt.Fprintln(&log, in.Text())
			}
		}
		err = cmd.Wait()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}
	show.done(t)
	result := "ok  "
	if err != nil {
		result = "FAIL"
	}
	line = fmt.Sprintf("%s  %-56s %6.0f s %10d executions %6d new interesting", result, t, time.Since(began).Seconds(), s.execs, s.interesting)
	if err != nil {
		line += fmt.Sprintf("\n%v\n%s", err, log.String())
		if m := keptLine.FindStringSubmatch(log.String()); m != nil {
			line += fmt.Sprintf("the input is kept in %s\n", filepath.Join(t.pkg, m[1]))
		}
	}
	return line, err
}
