package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"rnic/test/vm/vm"
)

// rtlSim is where the engine in gateware is simulated. Its tests want the library that make rtl builds.
const rtlSim = "./hw/rtl"

// What the engine is made of, as far as defects are seeded in it.
const (
	transferSV = "bitstream/rtl/transfer.sv"
	gateSV     = "bitstream/rtl/gate.sv"
	keycacheSV = "bitstream/rtl/keycache.sv"
	splitterSV = "bitstream/rtl/splitter.sv"
	alignSV    = "bitstream/rtl/align.sv"
	handoverSV = "bitstream/rtl/handover.sv"
	icrcSV     = "bitstream/rtl/icrc.sv"
	engineSV   = "bitstream/rtl/engine.sv"
)

func init() { mutants = append(mutants, rtlMutants...) }

// rtlMutants are defects of either side of the differential of engine and hw/gather: one in Go is one that the engine, as a
// second implementation, shows.
var rtlMutants = []mutant{
	{rule: "RTL", what: "hw/gather: of several empty segments one is passed", file: segGo, pkg: rtlSim, test: "TestRTL_Differential",
		old: "for c.Segment < len(segs) && c.Offset == segs[c.Segment].Length {", new: "if c.Segment < len(segs) && c.Offset == segs[c.Segment].Length {"},
	{rule: "RTL", what: "engine: a segment that ends with its packet is not passed", file: transferSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "w.words == 7'd0 || (segment_valid && !skips);", new: "w.words == 7'd0 || segment_valid;"},
	{rule: "RTL", what: "hw/gather: the domain is looked at before the tag", file: keyGo, pkg: rtlSim, test: "TestRTL_Differential",
		old: "if k.Tag != TagOf(key) {", new: "if k.PD != who.PD {\n\t\treturn 0, hw.ReasonPD\n\t}\n\tif k.Tag != TagOf(key) {"},
	{rule: "RTL", what: "hw/gather: a window is good for every QP", file: keyGo, pkg: rtlSim, test: "TestRTL_Differential",
		old: "k.Type == hw.KeyTypeMW2 && k.BoundQPN != who.QPN {", new: "k.Type == hw.KeyTypeMW2 && k.BoundQPN == 0 {"},
	{rule: "RTL", what: "hw/gather: an entry may be held that was used last", file: cacheGo, pkg: rtlSim, test: "TestRTL_Differential",
		old: "\t\t\tc.clock++\n\t\t\tl.used = c.clock\n\t\t\tc.stats.Hits++", new: "\t\t\tc.stats.Hits++"},
	{rule: "RTL", what: "hw/gather: the AckReq interval begins a packet late", file: msgGo, pkg: rtlSim, test: "TestRTL_Differential",
		old: "(packet+1)%every == 0", new: "packet != 0 && packet%every == 0"},
	{rule: "RTL", what: "engine: the last byte of a region is outside", file: keycacheSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "{32'd0, p3.n} > s3_length - s3_off ||", new: "{32'd0, p3.n} >= s3_length - s3_off ||"},
	{rule: "RTL", what: "engine: a fence leaves the entry in the cache", file: keycacheSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "if (match) present[32'(look_index[SW-1:0])*WAYS+32'(way)] <= 1'b0;", new: "if (match) present[32'(look_index[SW-1:0])*WAYS+32'(way)] <= 1'b1;"},
	{rule: "RTL", what: "engine: a bucket fills above its burst", file: gateSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "assign filled = sum > {1'b0, burst[at]} ? burst[at] : sum[63:0];", new: "assign filled = sum[63:0];"},
	{rule: "RTL", what: "engine: the second read of a piece goes where the first went", file: splitterSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "later_dest <= dest + {7'd0, chunk};", new: "later_dest <= dest;"},
	{rule: "RTL", what: "engine: bytes that were not asked for are not skipped", file: alignSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "assign turn = lane - (number == 9'd0 ? p.skip[LB-1:0] : '0);", new: "assign turn = lane;"},
	{rule: "RTL", what: "engine: a packet with a failed read is handed over", file: handoverSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "assign dma_bad = failed[at] || piece_failed;", new: "assign dma_bad = piece_failed;"},
	{rule: "RTL", what: "engine: the ICRC of a frame with a VLAN tag begins as of one without", file: icrcSV, pkg: rtlSim, test: "TestRTL_Differential",
		old: "s1_vlan ? icrc_pkg::START_18", new: "s1_vlan ? icrc_pkg::START_14"},
	{rule: "RTL", what: "engine: 32 tags, too few for segments of 64 bytes", file: engineSV, pkg: rtlSim, test: "TestRTL_Cycles",
		old: "parameter int TAGS = 256,", new: "parameter int TAGS = 32,"},
	{rule: "RTL", what: "engine: a packet is planned only when the walk has none", file: transferSV, pkg: rtlSim, test: "TestRTL_Cycles",
		old: "assign plan_room = !waiting[1];", new: "assign plan_room = waiting == 2'd0 && state == 3'd0;"},
}

// gateware says whether the defect is in SystemVerilog.
func (m *mutant) gateware() bool { return filepath.Ext(m.file) == ".sv" }

// simulated builds the engine where mutants want it. Where it cannot be built, for want of Verilator, those are left out
// and named, unless this is CI.
func simulated(mutants []mutant, out io.Writer) ([]mutant, error) {
	wants := func(m mutant) bool { return m.pkg == rtlSim }
	if !slices.ContainsFunc(mutants, wants) {
		return mutants, nil
	}
	for _, program := range []string{"verilator", "g++", "make"} {
		if _, err := exec.LookPath(program); err == nil {
			continue
		} else if os.Getenv("CI") != "" {
			return nil, err
		}
		fmt.Fprintf(out, "%smutants of RTL: %s is missing; make rtl, as root, installs it\n", vm.Skipped, program)
		return slices.DeleteFunc(slices.Clone(mutants), wants), nil
	}
	var err error
	rtlLibrary, err = archive("bitstream/rtl", ".cache/rtl", "-O2")
	return mutants, err
}

// rtlLibrary is the engine without a mutant, as environment.
var rtlLibrary string

// archive makes the library of the simulated engine, at one width, and gives the environment that links it: the linker looks into the
// folders in their order, and go's environment comes before hw/rtl's, which may be empty.
func archive(sources, build, fast string) (env string, err error) {
	for _, p := range []*string{&sources, &build} {
		if *p, err = filepath.Abs(*p); err != nil {
			return "", err
		}
	}
	out, err := exec.Command("make", "-s", fmt.Sprintf("-j%d", runtime.NumCPU()), "-C", "bitstream/sim", "archive", "WIDTHS=128",
		"RTL="+sources, "BUILD="+build, "FAST="+fast).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the engine is not built: %w\n%s", err, out)
	}
	return "CGO_LDFLAGS=-L" + build, nil
}

// simulate builds an engine with the mutant that seed left in dir, and gives the environment that links it in the place of the other.
func (m *mutant) simulate(dir string) (env []string, err error) {
	rtl := filepath.Join(dir, "rtl")
	if err := os.CopyFS(rtl, os.DirFS(filepath.Dir(m.file))); err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(dir, filepath.Base(m.file)), filepath.Join(rtl, filepath.Base(m.file))); err != nil {
		return nil, err
	}
	library, err := archive(rtl, filepath.Join(dir, "build"), "-O0") // one that is caught runs for less time than it is built
	return []string{library}, err
}
