// Command fuzz is what `make fuzz` runs: every fuzz target of the module for a while, as many side by
// side as there are processors, one line a target. It ends with 1 when a target found something, and
// says where the input is kept.
//
// What the fuzzer learns stays in .cache/fuzz, where the next run begins. With -keep, nothing is
// fuzzed: the inputs there and in testdata/fuzz are reduced, for each target, to the few that cover
// all that they cover together, and those are written to testdata/fuzz, for the plain tests to run.
//
// Arguments name the targets (FuzzWQE, or hw/softcard.FuzzWQE); without any, all run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	each := flag.Duration("time", 5*time.Minute, "how long each target runs")
	jobs := flag.Int("jobs", runtime.NumCPU(), "how many targets run side by side")
	keep := flag.Bool("keep", false, "reduce the corpora instead, and keep them in testdata/fuzz")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args(), *each, *jobs, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// A target is a fuzz function, and where its package and its corpora are.
type target struct {
	pkg  string // under the module: hw/softcard
	dir  string // of its package, absolute
	bin  string // the package's test binary
	name string
}

func (t *target) String() string { return t.pkg + "." + t.name }

// cache is the folder of the inputs that the fuzzer found worth keeping. The test binary adds the
// target's name.
func (t *target) cache(root string) string {
	return filepath.Join(root, ".cache/fuzz/corpus", t.pkg)
}

// run does the whole work.
func run(ctx context.Context, names []string, each time.Duration, jobs int, keep bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	targets, err := list(ctx, root, names, keep)
	if err != nil {
		return err
	}
	show := newProgress(os.Stdout, len(targets))
	defer show.end()
	var mu sync.Mutex
	var failed []string
	work := make(chan *target)
	var wg sync.WaitGroup
	for range max(1, min(jobs, len(targets))) {
		wg.Go(func() {
			for t := range work {
				var line string
				var err error
				if keep {
					line, err = reduce(ctx, root, t)
				} else {
					line, err = fuzz(ctx, root, t, each, show)
				}
				mu.Lock()
				show.line(line)
				if err != nil {
					failed = append(failed, t.String())
				}
				mu.Unlock()
			}
		})
	}
	for i := range targets {
		select {
		case work <- &targets[i]:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	wg.Wait()
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case len(failed) > 0:
		slices.Sort(failed)
		return fmt.Errorf("%d of %d targets failed: %s", len(failed), len(targets), strings.Join(failed, " "))
	}
	return nil
}

// list builds the test binary of each package that has fuzz targets, with the fuzzer's
// instrumentation or, to reduce, with coverage, and asks it for them.
func list(ctx context.Context, root string, names []string, keep bool) ([]target, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	bins := filepath.Join(root, ".cache/fuzz/bin")
	if keep {
		bins += "-cover"
	}
	if err := os.MkdirAll(bins, 0o755); err != nil {
		return nil, err
	}
	var targets []target
	known := map[string]bool{}
	for _, dir := range strings.Fields(string(out)) {
		d, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, err
		}
		t := target{pkg: d, dir: dir, bin: filepath.Join(bins, strings.ReplaceAll(d, "/", "-")+".test")}
		build := []string{"test", "-c", "-fuzz=.", "-o", t.bin, "./" + d}
		if keep {
			build = []string{"test", "-c", "-cover", "-coverpkg=./...", "-o", t.bin, "./" + d}
		}
		if len(names) == 0 && !declares(dir, "Fuzz") ||
			len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return declares(dir, strings.TrimPrefix(n, d+".")+"(") }) {
			continue // not worth a build
		}
		if log, err := exec.CommandContext(ctx, "go", build...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(build, " "), err, log)
		}
		cmd := exec.CommandContext(ctx, t.bin, "-test.list", "^Fuzz")
		cmd.Dir = t.dir
		found, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s -test.list: %w", t.bin, err)
		}
		for _, n := range strings.Fields(string(found)) {
			if t.name = n; len(names) == 0 || slices.Contains(names, n) || slices.Contains(names, t.String()) {
				targets = append(targets, t)
				known[n], known[t.String()] = true, true
			}
		}
	}
	for _, n := range names {
		if !known[n] {
			return nil, fmt.Errorf("no fuzz target %q", n)
		}
	}
	return targets, nil
}

// declares tells whether the package in dir has a test function whose name begins so.
func declares(dir, name string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(files, func(f string) bool {
		b, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(b), "\nfunc "+name)
	})
}
