package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a corpus that is kept.
const (
	keptFiles = 50
	keptBytes = 200 << 10
)

// candidate is an input, and the blocks of the module that running it covers.
type candidate struct {
	data   []byte
	blocks map[string]bool
}

// reduce replaces the target's corpus in testdata/fuzz by the fewest inputs, as a greedy choice finds
// them, that cover what it and the fuzzer's cache cover together.
func reduce(ctx context.Context, root string, t *target) (line string, err error) {
	fail := func(err error) (string, error) { return fmt.Sprintf("FAIL  %-56s %v", t, err), err }
	kept := filepath.Join(t.dir, "testdata/fuzz", t.name)
	var all []candidate
	seen := map[string]bool{}
	for _, dir := range []string{kept, filepath.Join(t.cache(root), t.name)} {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			return fail(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return fail(err)
			}
			if len(b) <= keptBytes/4 && !seen[string(b)] {
				seen[string(b)] = true
				all = append(all, candidate{data: b})
			}
		}
	}
	if len(all) == 0 {
		return fmt.Sprintf("none  %-56s no inputs in %s", t, t.cache(root)), nil
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(len(a.data)-len(b.data), bytes.Compare(a.data, b.data)) })
	// What the target covers with its own seeds alone is there without any file.
	covered, err := t.cover(ctx, kept, nil)
	if err != nil {
		return fail(err)
	}
	for i := range all {
		if all[i].blocks, err = t.cover(ctx, kept, all[i].data); err != nil {
			return fail(fmt.Errorf("input %d of %d: %w", i+1, len(all), err))
		}
	}
	total, size, n := len(covered), 0, 0
	if err := os.RemoveAll(kept); err != nil {
		return fail(err)
	}
	for n < keptFiles {
		best, gain := -1, 0
		for i := range all {
			g := 0
			for b := range all[i].blocks {
				if !covered[b] {
					g++
				}
			}
			if g > gain && size+len(all[i].data) <= keptBytes {
				best, gain = i, g
			}
		}
		if best < 0 {
			break
		}
		c := &all[best]
		for b := range c.blocks {
			covered[b] = true
		}
		if err := os.MkdirAll(kept, 0o755); err != nil {
			return fail(err)
		}
		if err := os.WriteFile(filepath.Join(kept, fmt.Sprintf("%x", sha256.Sum256(c.data))[:16]), c.data, 0o644); err != nil {
			return fail(err)
		}
		size, n = size+len(c.data), n+1
	}
	return fmt.Sprintf("kept  %-56s %3d of %5d inputs, %6d bytes, blocks %d to %d", t, n, len(all), size, total, len(covered)), nil
}

// cover runs the target with one input beside its own seeds, or with nothing beside them, and gives
// the blocks that were covered.
func (t *target) cover(ctx context.Context, kept string, data []byte) (map[string]bool, error) {
	const name = "reducing"
	profile, err := os.CreateTemp("", "fuzz-cover-")
	if err != nil {
		return nil, err
	}
	profile.Close()
	defer os.Remove(profile.Name())
	run := "^" + t.name + "$/^seed#"
	if data != nil {
		file := filepath.Join(kept, name)
		if err := os.MkdirAll(kept, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return nil, err
		}
		defer os.Remove(file)
		run = "^" + t.name + "$/^" + name + "$"
	}
	cmd := exec.CommandContext(ctx, t.bin, "-test.run", run, "-test.coverprofile", profile.Name(), "-test.timeout", "2m")
	cmd.Dir = t.dir
	if log, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, log)
	}
	b, err := os.ReadFile(profile.Name())
	if err != nil {
		return nil, err
	}
	blocks := map[string]bool{}
	for in := bufio.NewScanner(bytes.NewReader(b)); in.Scan(); {
		// file:from,to statements count
		if at := strings.LastIndexByte(in.Text(), ' '); at > 0 && in.Text()[at+1:] != "0" && !strings.HasPrefix(in.Text(), "mode:") {
			blocks[in.Text()[:at]] = true
		}
	}
	return blocks, nil
}
