package hw

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const svPackage = "../bitstream/rtl/card_pkg.sv"

// An svType is a type of the SystemVerilog package: its width, and its members from bit 0 up.
type svType struct {
	width   uint64
	members map[string][2]uint64 // squashed name → first bit, width
}

var (
	svEnumHead = regexp.MustCompile(`^typedef enum logic \[(\d+):0\] \{$`)
	svEnd      = regexp.MustCompile(`^\} (\w+);$`)
	svMember   = regexp.MustCompile(`^(\w+)((?: ?\[\d+:0\])*) (\w+);`)
	svDim      = regexp.MustCompile(`\[(\d+):0\]`)
	svParam    = regexp.MustCompile(`^localparam (?:int unsigned|logic \[\d+:0\]) (\w+) = (?:\d+'([hd]))?([0-9a-f]+);`)
)

// readSV takes the package apart, line by line, by the rules of the language: the first member of
// a packed structure has the highest bits.
func readSV(t *testing.T) (types map[string]svType, params map[string]uint64) {
	t.Helper()
	file, err := os.ReadFile(svPackage)
	if err != nil {
		t.Fatal(err)
	}
	types, params = map[string]svType{}, map[string]uint64{}
	type member struct {
		name  string
		width uint64
	}
	var open []member
	enumWidth := uint64(0)
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSpace(line)
		if m := svEnumHead.FindStringSubmatch(line); m != nil {
			n, _ := strconv.ParseUint(m[1], 10, 64)
			enumWidth = n + 1
		} else if line == "typedef struct packed {" {
			open, enumWidth = nil, 0
		} else if m := svEnd.FindStringSubmatch(line); m != nil {
			typ := svType{enumWidth, map[string][2]uint64{}}
			for i := len(open) - 1; i >= 0; i-- {
				typ.members[strings.TrimSuffix(open[i].name, "_")] = [2]uint64{typ.width, open[i].width}
				typ.width += open[i].width
			}
			types[m[1]] = typ
		} else if m := svMember.FindStringSubmatch(line); m != nil && m[1] != "package" {
			width := uint64(1)
			if m[1] != "logic" {
				typ, ok := types[m[1]]
				if !ok {
					t.Fatalf("%q: the type is not declared before", line)
				}
				width = typ.width
			}
			for _, d := range svDim.FindAllStringSubmatch(m[2], -1) {
				n, _ := strconv.ParseUint(d[1], 10, 64)
				width *= n + 1
			}
			open = append(open, member{m[3], width})
		} else if m := svParam.FindStringSubmatch(line); m != nil {
			base := 10
			if m[2] == "h" {
				base = 16
			}
			v, err := strconv.ParseUint(m[3], base, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			params[m[1]] = v
		}
	}
	return types, params
}

// TestSystemVerilogLayout compares every packed structure with card.yaml: a field at byte n is
// at bit 8n.
func TestSystemVerilogLayout(t *testing.T) {
	m := contractYAML(t)
	structs := yamlStructs(m)
	types, params := readSV(t)
	bySquash := map[string]svType{}
	for name, typ := range types {
		bySquash[squash(name)] = typ
	}
	compare := func(what string, typ svType, name string, bit, width uint64) {
		t.Helper()
		if got, ok := typ.members[name]; !ok || got != [2]uint64{bit, width} {
			t.Errorf("%s.%s: bit and width %v (there: %v), want [%d %d]", what, name, got, ok, bit, width)
		}
	}
	word := func(name string, of plain, width uint64) {
		t.Helper()
		typ, ok := bySquash[squash(name)+"t"]
		if !ok || typ.width != width {
			t.Errorf("%s is %d bits (there: %v), want %d", name, typ.width, ok, width)
		}
		for _, b := range items(of, "bits") {
			compare(name, typ, strings.ToLower(text(b, "name")), num(b, "lo"), num(b, "hi")-num(b, "lo")+1)
		}
	}
	for name, s := range structs {
		typ, ok := bySquash[squash(name)+"t"]
		if !ok || typ.width != num(s, "size")*8 {
			t.Errorf("%s is %d bits (there: %v), want %d", name, typ.width, ok, num(s, "size")*8)
		}
		for _, f := range items(s, "fields") {
			_, count, size := typeOf(structs, f)
			compare(name, typ, text(f, "name"), num(f, "offset")*8, count*size*8)
			if f["bits"] != nil {
				word(name+text(f, "name"), f, size*8)
			}
		}
	}
	reg := func(name string, want uint64) {
		t.Helper()
		if got, ok := params[name]; !ok || got != want {
			t.Errorf("%s is %#x (there: %v), want %#x", name, got, ok, want)
		}
	}
	for _, b := range items(m, "registers") {
		for _, r := range items(b, "regs") {
			name := "REG_" + text(b, "block") + "_" + text(r, "name")
			reg(name, num(b, "offset")+num(r, "offset"))
			reg(name+"_RESET", num(r, "reset"))
			if r["bits"] != nil {
				word(text(b, "block")+text(r, "name"), r, num(r, "width"))
			}
		}
	}
	for _, c := range items(m, "constants") {
		reg(text(c, "name"), num(c, "value"))
	}
}

// TestSystemVerilogCompiles gives the package to Verilator and to yosys, where they are installed,
// with a module that uses it.
func TestSystemVerilogCompiles(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top.sv")
	err := os.WriteFile(top, []byte(`module top (input logic [511:0] image, output logic [23:0] qpn, output logic [1:0] state);
  card_pkg::cqe_t cqe;
  card_pkg::key_entry_t key;
  assign cqe = image;
  assign key = image;
  assign qpn = cqe.qpn[23:0];
  assign state = key.valid.state;
endmodule
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"verilator", "--lint-only", "-Wall", "-Wno-UNUSED", "-Wno-DECLFILENAME", svPackage, top},
		{"yosys", "-q", "-p", "read_verilog -sv " + svPackage + " " + top + "; hierarchy -top top; proc; check -assert"},
	} {
		t.Run(c[0], func(t *testing.T) {
			tool, err := exec.LookPath(c[0])
			if err != nil {
				t.Skipf("%s is not installed", c[0])
			}
			if out, err := exec.Command(tool, c[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
