package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// module is what yosys counts of a module, without those in it.
type module struct {
	Cells map[string]int `json:"num_cells_by_type"`
}

// ultrascale counts the engine at 512 bits, by module.
func ultrascale(ctx context.Context, out io.Writer) error {
	began := time.Now()
	stat := filepath.Join(build, "ultrascale.json")
	script := fmt.Sprintf("read_verilog -sv %s; chparam -set W 512 engine; hierarchy -check -top engine; synth_xilinx -family xcup -top engine -run begin:check; tee -q -o %s stat -json",
		strings.Join(rtl(), " "), stat)
	if err := yosys(ctx, "ultrascale", script); err != nil {
		return err
	}
	text, err := os.ReadFile(stat)
	if err != nil {
		return err
	}
	var s struct {
		Modules map[string]module `json:"modules"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", stat, err)
	}
	fmt.Fprintf(out, "UltraScale+, 512 bits, by yosys alone (%.0f s)\n\n", time.Since(began).Seconds())
	return count(out, s.Modules)
}

// kinds are the columns of the counts, by what the names of cells begin with.
var kinds = []struct {
	name  string
	cells []string
}{
	{"LUT", []string{"LUT"}}, {"CARRY", []string{"CARRY"}}, {"MUXF", []string{"MUXF"}}, {"FF", []string{"FD"}},
	{"LUTRAM", []string{"RAM32", "RAM64", "RAM128", "RAM256", "SRL"}}, {"RAMB18", []string{"RAMB18"}}, {"RAMB36", []string{"RAMB36"}}, {"DSP", []string{"DSP"}},
}

// count prints how many cells of each kind each module has, all its instances together.
func count(out io.Writer, modules map[string]module) error {
	uses := instances(modules)
	all := make([]int, len(kinds))
	rows := map[string][]int{}
	times := map[string]int{}
	for name, m := range modules {
		if uses[name] == 0 {
			continue
		}
		p := plain(name)
		if rows[p] == nil {
			rows[p] = make([]int, len(kinds))
		}
		times[p] += uses[name]
		for i, k := range kinds {
			for cell, n := range m.Cells {
				if slices.ContainsFunc(k.cells, func(prefix string) bool { return strings.HasPrefix(cell, prefix) }) {
					rows[p][i] += n * uses[name]
					all[i] += n * uses[name]
				}
			}
		}
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(head string, cells []int) {
		fmt.Fprint(t, head)
		for _, n := range cells {
			fmt.Fprintf(t, "%d\t", n)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprint(t, "MODULE\tTIMES\t")
	for _, k := range kinds {
		fmt.Fprint(t, k.name, "\t")
	}
	fmt.Fprintln(t)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		line(fmt.Sprintf("%s\t%d\t", name, times[name]), rows[name])
	}
	line("all\t\t", all)
	return t.Flush()
}

// instances counts how often each module is in the design.
func instances(modules map[string]module) map[string]int {
	uses := map[string]int{}
	var walk func(name string, times int)
	walk = func(name string, times int) {
		uses[name] += times
		for cell, n := range modules[name].Cells {
			if _, ok := modules[cell]; ok {
				walk(cell, times*n)
			}
		}
	}
	for name := range modules {
		if plain(name) == "engine" {
			walk(name, 1)
		}
	}
	return uses
}

// plain is a module's name without what yosys adds for its parameters.
func plain(name string) string {
	name = strings.TrimPrefix(name, `\`)
	if rest, ok := strings.CutPrefix(name, "$paramod"); ok {
		if i := strings.Index(rest, `\`); i >= 0 {
			name = rest[i+1:]
		}
		name, _, _ = strings.Cut(name, `\`)
	}
	return name
}
