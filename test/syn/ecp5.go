package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rnic/hw"
	"rnic/hw/image"
)

// The chip, and the part that the image is for.
const (
	part    = "LFE5UM5G-85F"
	board   = "ecp5_evn" // openFPGALoader's name of Lattice's board with it
	top     = "bitstream/syn/ecp5.sv"
	chipArg = "--um5g-85k"
	pkgArg  = "CABGA756"
	grade   = "8"
)

// report is what nextpnr writes of one seed.
type report struct {
	Fmax map[string]struct {
		Achieved   float64 `json:"achieved"`
		Constraint float64 `json:"constraint"`
	} `json:"fmax"`
	Utilization map[string]struct {
		Used      int `json:"used"`
		Available int `json:"available"`
	} `json:"utilization"`
	Paths []struct {
		From, To string
		Path     []struct {
			Delay float64 `json:"delay"`
			Type  string  `json:"type"`
			To    struct {
				Cell string `json:"cell"`
			} `json:"to"`
		} `json:"path"`
	} `json:"critical_paths"`
}

// fmax is the clock that the design reaches.
func (r *report) fmax() float64 {
	least := 0.0
	for _, f := range r.Fmax {
		if least == 0 || f.Achieved < least {
			least = f.Achieved
		}
	}
	return least
}

// ecp5 makes the image of the best seed.
func ecp5(ctx context.Context, seeds int, target float64, cache string, out io.Writer) error {
	dir, err := prepare(ctx, cache)
	if err != nil {
		return err
	}
	cage, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	// The tools have their chips' data at fixed paths: they run in their folder as root directory, with their files in it.
	work := filepath.Join(cage, "io")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	began := time.Now()
	files := append(rtl(), top)
	script := fmt.Sprintf("read_verilog -sv %s; hierarchy -check -top ecp5; synth_ecp5 -run begin:check -top ecp5; write_json %s",
		strings.Join(files, " "), filepath.Join(work, "ecp5.json"))
	if err := yosys(ctx, "ecp5", script); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nECP5 %s %s, speed grade %s, 128 bits, target %.0f MHz\nyosys %.0f s\n", part, pkgArg, grade, target, time.Since(began).Seconds())
	var best *report
	bestSeed := 0
	for seed := 1; seed <= seeds; seed++ {
		began := time.Now()
		r, err := place(ctx, cage, seed, target)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "seed %d: %.1f MHz (%.0f s)\n", seed, r.fmax(), time.Since(began).Seconds())
		if best == nil || r.fmax() > best.fmax() {
			best, bestSeed = r, seed
		}
	}
	for _, kind := range []string{"TRELLIS_COMB", "TRELLIS_FF", "TRELLIS_RAMW", "DP16KD", "MULT18X18D", "TRELLIS_IO"} {
		u := best.Utilization[kind]
		fmt.Fprintf(out, "%-13s %6d of %6d\n", kind, u.Used, u.Available)
	}
	criticalPath(out, best)
	if err := pack(ctx, cage, bestSeed); err != nil {
		return err
	}
	file, err := manifest(ctx, cage, files, bestSeed, target, best)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, from seed %d; not loaded into a board\n", file, bestSeed)
	if best.fmax() < target {
		return fmt.Errorf("the best of %d seeds reaches %.1f MHz, and %.0f are wanted", seeds, best.fmax(), target)
	}
	return nil
}

// criticalPath prints where the clock's limit is.
func criticalPath(out io.Writer, r *report) {
	for _, p := range r.Paths {
		if !strings.Contains(p.From, "posedge") || !strings.Contains(p.To, "posedge") {
			continue
		}
		logic, routing, levels := 0.0, 0.0, 0
		for _, s := range p.Path {
			if s.Type == "routing" {
				routing += s.Delay
			} else {
				logic += s.Delay
				levels++
			}
		}
		if len(p.Path) > 0 {
			fmt.Fprintf(out, "critical path: to %s, %d steps, %.1f ns logic, %.1f ns routing\n", p.Path[len(p.Path)-1].To.Cell, levels, logic, routing)
		}
		return
	}
}

// place places and routes with a seed.
func place(ctx context.Context, cage string, seed int, target float64) (*report, error) {
	name := fmt.Sprintf("ecp5-%d", seed)
	log, err := os.Create(filepath.Join(build, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if err := step(ctx, name, log, caged(cage, "nextpnr-ecp5", chipArg, "--package", pkgArg, "--speed", grade, "--json", "/io/ecp5.json",
		"--textcfg", "/io/"+name+".config", "--freq", fmt.Sprint(target), "--timing-allow-fail", "--lpf-allow-unconstrained",
		"--seed", fmt.Sprint(seed), "--report", "/io/"+name+".json")...); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(cage, "io", name+".json"))
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("report of %s: %w", name, err)
	}
	if r.fmax() == 0 {
		return nil, fmt.Errorf("report of %s: no clock", name)
	}
	return r, nil
}

// pack makes the image.
func pack(ctx context.Context, cage string, seed int) error {
	if err := step(ctx, "ecppack", nil, caged(cage, "ecppack", "--compress", fmt.Sprintf("/io/ecp5-%d.config", seed), "--bit", "/io/ecp5.bit")...); err != nil {
		return err
	}
	image, err := os.ReadFile(filepath.Join(cage, "io", "ecp5.bit"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(build, "ecp5.bit"), image, 0o644)
}

// manifest writes that of the image, and gives the image's file.
func manifest(ctx context.Context, cage string, inputs []string, seed int, target float64, r *report) (string, error) {
	file := filepath.Join(build, "ecp5.bit")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	digest := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	m := &image.Manifest{
		Schema: image.ManifestSchema, Name: "transmit side, 128 bits, memories on the chip", Bytes: int64(len(data)), SHA256: digest(data),
		Part: part, Board: board, Contract: fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor), Capabilities: []string{},
		Build:  image.Build{Time: time.Now().UTC().Format(time.RFC3339), Inputs: map[string]string{}, Options: []string{fmt.Sprintf("seed %d", seed)}},
		Timing: image.Timing{TargetMHz: target, FmaxMHz: r.fmax(), SlackNs: 1000/target - 1000/r.fmax()},
	}
	for _, f := range inputs {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		m.Build.Inputs[f] = digest(b)
	}
	for _, command := range [][]string{{"yosys", "-V"}, caged(cage, "nextpnr-ecp5", "--version")} {
		v, err := version(ctx, command...)
		if err != nil {
			return "", err
		}
		m.Build.Tools = append(m.Build.Tools, v)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file+image.ManifestSuffix, append(text, '\n'), 0o644); err != nil {
		return "", err
	}
	// What was written is what rnicctl reads.
	_, err = image.Open(file)
	return file, err
}
