package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed twin/twin.c
var twinSource []byte

var errNoGCC = errors.New("gcc is needed for the twin in C: install it (Debian: apt install gcc)")

// twin is the process of the twin: it runs what it is told on the CPU that it was started on, and
// sleeps in between.
type twin struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// root is the folder of go.mod.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("run it inside the module: there is no go.mod above")
		}
		dir = up
	}
}

// buildTwin compiles the twin, unless the cache has one of this source.
func buildTwin(ctx context.Context) (string, error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	flags := []string{"-O2", "-Wall", "-Wextra", "-Werror"}
	sum := sha256.Sum256(append([]byte(strings.Join(flags, " ")), twinSource...))
	dir := filepath.Join(top, ".cache", "bench")
	file := filepath.Join(dir, "twin-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		return "", errNoGCC
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	made := filepath.Join(tmp, "twin")
	cmd := exec.CommandContext(ctx, "gcc", append(flags, "-x", "c", "-o", made, "-")...)
	cmd.Stdin = bytes.NewReader(twinSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return file, os.Rename(made, file) // whole, also where two build at once
}

// startTwin starts it. The caller's thread is the one whose CPU it inherits.
func startTwin(ctx context.Context) (*twin, error) {
	file, err := buildTwin(ctx)
	if err != nil {
		return nil, err
	}
	t := &twin{cmd: exec.CommandContext(ctx, file)}
	t.cmd.Stderr = os.Stderr
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewReader(out)
	return t, t.cmd.Start()
}

func (t *twin) close() error {
	return errors.Join(t.in.Close(), t.cmd.Wait())
}

// ask sends a command and reads the answer.
func (t *twin) ask(format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(t.in, format+"\n", args...); err != nil {
		return "", fmt.Errorf("twin: %w", err)
	}
	s, err := t.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("twin: %w", err)
	}
	return strings.TrimSpace(s), nil
}

// run has it do so many rounds of n requests, and gives the ns of the least one and the sum of the
// WR IDs that it completed.
func (t *twin) run(layer, work, shape string, n, rounds int) (ns, sum uint64, err error) {
	s, err := t.ask("run %s %s %s %d %d", layer, work, shape, n, rounds)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(s, "%d %d", &ns, &sum); err != nil {
		return 0, 0, fmt.Errorf("twin said %q: %w", s, err)
	}
	return ns, sum, nil
}

// onOneCPU runs f on a thread that stays on one CPU, as does the twin that is started by then. What
// is measured in f and the twin's work share that CPU's caches and clock.
func (b *bench) onOneCPU(ctx context.Context, f func() error) error {
	runtime.LockOSThread() // for good: the thread ends with its goroutine
	var was unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return fmt.Errorf("CPUs of this process: %w", err)
	}
	for cpu := range 1024 {
		if was.IsSet(cpu) {
			b.cpu = cpu // the last one
		}
	}
	var one unix.CPUSet
	one.Set(b.cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("stay on CPU %d: %w", b.cpu, err)
	}
	if b.twin == nil {
		var err error
		if b.twin, err = startTwin(ctx); err != nil {
			b.twin = nil
			return err
		}
	}
	return f()
}

// alone runs f as onOneCPU does, on a goroutine and thread of its own.
func (b *bench) alone(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- b.onOneCPU(ctx, f) }()
	return <-done
}
