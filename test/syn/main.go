// Command syn is what `make syn` runs: the gather engine in gateware through open tools. It counts what the engine takes of an
// UltraScale+ by module (yosys; no timing, which takes the vendor's tools), and places and routes the transmit side on an ECP5
// to an image with its manifest, the best of some seeds. docs/synthesis.md has what was seen. It installs yosys from Debian
// (as root; else it says what is missing), and brings nextpnr-ecp5 and ecppack into .cache/syn.
//
// Arguments name what to do: ultrascale, ecp5; without any, both. -seeds gives the seeds of place and route.
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
)

// sources are the engine's files, in the order in which yosys reads them.
var sources = []string{
	"card_pkg", "engine_pkg", "icrc_pkg", "fifo", "transfer", "gate", "replay", "keycache", "splitter", "tags", "align", "pktbuf", "handover",
	"icrc", "txbuild", "counters", "engine",
}

// rtl are the paths of the sources.
func rtl() (files []string) {
	for _, s := range sources {
		files = append(files, filepath.Join("bitstream/rtl", s+".sv"))
	}
	return files
}

// build is where logs and images are written.
const build = "bitstream/syn/build"

// stepTime bounds one run of a tool.
const stepTime = time.Hour

func main() {
	seeds := flag.Int("seeds", 5, "seeds of place and route, from 1 on")
	target := flag.Float64("mhz", 125, "clock that the ECP5 is to reach")
	cache := flag.String("cache", ".cache/syn", "folder of the unpacked tools")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args(), *seeds, *target, *cache, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "syn:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, what []string, seeds int, target float64, cache string, out io.Writer) error {
	if len(what) == 0 {
		what = []string{"ultrascale", "ecp5"}
	}
	for _, w := range what {
		if w != "ultrascale" && w != "ecp5" {
			return fmt.Errorf("%q is neither ultrascale nor ecp5", w)
		}
	}
	if seeds < 1 {
		return fmt.Errorf("-seeds %d: at least 1", seeds)
	}
	if err := install(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	if slices.Contains(what, "ultrascale") {
		if err := ultrascale(ctx, out); err != nil {
			return err
		}
	}
	if slices.Contains(what, "ecp5") {
		return ecp5(ctx, seeds, target, cache, out)
	}
	return nil
}

// yosys runs a script; its log stays in build.
func yosys(ctx context.Context, name, script string) error {
	return step(ctx, name, nil, "yosys", "-q", "-l", filepath.Join(build, name+".log"), "-p", script)
}

// step runs a program; what it prints is in the error, and with log in a file.
func step(ctx context.Context, name string, log io.Writer, command ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, fmt.Errorf("not done in %v", stepTime))
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if log != nil {
		cmd.Stdout = io.MultiWriter(log, &said)
		cmd.Stderr = cmd.Stdout
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	const most = 2000
	text := strings.TrimSpace(said.String())
	return fmt.Errorf("%s: %w\n%s", name, err, text[max(0, len(text)-most):])
}

// version is the first line that a program says of itself.
func version(ctx context.Context, command ...string) (string, error) {
	b, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", command[0], err), errors.New(line))
	}
	return line, nil
}
