package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCounts: cells of modules in modules are counted as often as those are used, under plain names.
func TestCounts(t *testing.T) {
	// As yosys 0.23 writes it: engine has two fifos of one kind and a tags, which has a fifo too.
	const text = `{
		"\\engine": {"num_cells_by_type": {"LUT4": 5, "FDRE": 7, "$paramod$0123456789abcdef\\fifo": 2, "\\tags": 1}},
		"\\tags": {"num_cells_by_type": {"LUT6": 1, "FDSE": 1, "RAMB36E2": 3, "$paramod$0123456789abcdef\\fifo": 1}},
		"$paramod$0123456789abcdef\\fifo": {"num_cells_by_type": {"LUT2": 10, "RAM64M": 2}},
		"$paramod\\fifo\\BITS=s32'00000000000000000000000000000001": {"num_cells_by_type": {"LUT2": 10}}
	}`
	var modules map[string]module
	if err := json.Unmarshal([]byte(text), &modules); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := count(&out, modules); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"MODULE TIMES LUT CARRY MUXF FF LUTRAM RAMB18 RAMB36 DSP",
		"engine 1 5 0 0 7 0 0 0 0", "fifo 3 30 0 0 0 6 0 0 0", "tags 1 1 0 0 1 0 0 3 0", "all 36 0 0 8 6 0 3 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReport: the clock is the slowest of nextpnr's.
func TestReport(t *testing.T) {
	r := &report{}
	if err := json.Unmarshal([]byte(`{"fmax": {"a": {"achieved": 120.5, "constraint": 125}, "b": {"achieved": 99.25, "constraint": 125}}}`), r); err != nil {
		t.Fatal(err)
	}
	if r.fmax() != 99.25 {
		t.Errorf("%v", r.fmax())
	}
}

// TestSources: what is synthesized is what is simulated, and all that there is.
func TestSources(t *testing.T) {
	for _, file := range []string{"../../bitstream/sim/Makefile", "../../bitstream/syn/Makefile"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^MODULES := (.*)$`).FindSubmatch(text)
		if m == nil || !slices.Equal(strings.Fields(string(m[1])), sources) {
			t.Errorf("%s has other sources", file)
		}
	}
	files, err := filepath.Glob("../../bitstream/rtl/*.sv")
	if err != nil || len(files) != len(sources) {
		t.Errorf("%d files, %d sources, %v", len(files), len(sources), err)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		what  []string
		seeds int
		says  string
	}{{[]string{"ice40"}, 5, "neither"}, {nil, 0, "-seeds 0"}} {
		if err := run(context.Background(), c.what, c.seeds, 125, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, %d: %v", c.what, c.seeds, err)
		}
	}
}
