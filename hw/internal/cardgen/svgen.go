package main

import (
	"fmt"
	"slices"
	"strings"
)

// svKeywords are the reserved words of IEEE 1800-2017, Annex B, that a field may be named, and
// words of C++ that Verilator warns of. Such a field gets an underscore behind its name.
var svKeywords = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(`
		accept_on alias always and assert assign assume automatic before begin bind bins bit break buf byte case cell chandle
		checker class clocking config const constraint context continue cover cross deassign default define design disable dist do
		edge else end enum event eventually expect export extends extern final first_match for force forever fork function generate
		global if iff implements implies import incdir include initial inout input inside instance int integer interconnect
		interface intersect join large let liblist library local localparam logic longint macromodule matches medium modport module
		nand negedge new nexttime nor not notif0 null or output package packed parameter primitive priority program property protected
		pull0 pull1 pullup pure rand randc real ref reg reject_on release repeat restrict return scalared sequence shortint signed small
		soft solve specify static string strong struct super supply0 supply1 table tagged task this throughout time timeprecision
		timeunit tran tri trigger type typedef union unique unsigned until untyped use var vectored virtual void wait wand weak while
		wildcard wire with within wor xnor xor
		bool catch char delete double float friend long operator short template try vector`) {
		m[w] = true
	}
	return m
}()

func svName(name string) string {
	if svKeywords[name] {
		return name + "_"
	}
	return name
}

// svUpper is the prefix of an enum's or word's constants.
func svUpper(name string) string { return strings.ToUpper(snake(name)) }

// logic declares a vector of that many bits.
func logic(width int) string {
	if width == 1 {
		return "logic"
	}
	return fmt.Sprintf("logic [%d:0]", width-1)
}

// svFile gives bitstream/rtl/card_pkg.sv.
func (c *card) svFile() ([]byte, error) {
	w := &writer{}
	w.p("// %s", marker)
	w.doc("// ", c.Contract.Doc)
	w.p("//\n// A packed structure lists its highest bytes first, so that byte 0 of the memory image is bits [7:0] and\n// a field has the value that the host stored, low byte first.\n")
	w.p("package card_pkg;\n")
	w.p("  localparam logic [31:0] CONTRACT_MAGIC = 32'h%08x;", c.Contract.Magic)
	w.p("  localparam logic [15:0] CONTRACT_MAJOR = 16'd%d;\n  localparam logic [15:0] CONTRACT_MINOR = 16'd%d;", c.Contract.Major, c.Contract.Minor)
	w.p("  localparam logic [15:0] PCI_VENDOR_ID = 16'h%04x;\n  localparam logic [15:0] PCI_DEVICE_ID = 16'h%04x;", c.PCI.Vendor, c.PCI.Device)
	w.p("  localparam logic [23:0] PCI_CLASS = 24'h%06x;", c.PCI.Class)
	w.p("  localparam logic [15:0] PCI_SUBSYSTEM_VENDOR_ID = 16'h%04x;\n  localparam logic [15:0] PCI_SUBSYSTEM_ID = 16'h%04x;\n", c.PCI.SubsystemVendor, c.PCI.Subsystem)
	for _, b := range c.Bars {
		w.doc("  // ", b.Doc)
		w.p("  localparam logic [31:0] BAR_%s = 32'd%d;\n  localparam logic [63:0] BAR_%[1]s_SIZE = 64'h%[3]x;", b.Name, b.Index, b.Size)
	}
	w.p("")
	for _, k := range c.Constants {
		width := 32
		if k.Value > ones(32) {
			width = 64
		}
		w.doc("  // ", k.Doc)
		w.p("  localparam logic [%d:0] %s = %d'h%x;", width-1, k.Name, width, k.Value)
	}
	for i := range c.Enums {
		svEnum(w, &c.Enums[i])
	}
	for _, s := range c.ordered {
		svStruct(w, s)
	}
	for i := range c.Registers {
		svBlock(w, &c.Registers[i])
	}
	w.p("\nendpackage")
	return w.Bytes(), nil
}

func svEnum(w *writer, e *enum) {
	w.p("")
	w.doc("  // ", e.Name+": "+e.Doc)
	prefix := svUpper(e.Name)
	if e.Flags { // a union of flags is no value of an enum, so they are constants
		for _, v := range e.Values {
			w.p("  localparam %s %s_%s = %d'h%x;%s", logic(e.bits), prefix, v.Name, e.bits, e.number(v), trailer(v.Doc))
		}
		return
	}
	w.p("  typedef enum logic [%d:0] {", e.bits-1)
	for i, v := range e.Values {
		comma := ","
		if i == len(e.Values)-1 {
			comma = ""
		}
		w.p("    %s_%s = %d'd%d%s%s", prefix, v.Name, e.bits, v.Value, comma, trailer(v.Doc))
	}
	w.p("  } %s_e;", snake(e.Name))
}

func (f *field) svType(owner string) string {
	switch {
	case f.count > 0: // flat, since yosys takes one dimension only; element 0 is lowest, as in memory
		return logic(int(f.size()) * 8)
	case f.sub != nil:
		return snake(f.sub.Name) + "_t"
	case len(f.Bits) != 0:
		return fmt.Sprintf("%s_%s_t", owner, f.Name)
	case f.enum != nil && !f.enum.Flags:
		return snake(f.enum.Name) + "_e"
	}
	return logic(f.bits)
}

func svStruct(w *writer, s *structure) {
	name := snake(s.Name)
	for i := range s.Fields {
		if f := &s.Fields[i]; len(f.Bits) != 0 {
			svWord(w, name+"_"+f.Name, f.bits, f.Bits, fmt.Sprintf("The word %s of %s.", f.Name, s.Name))
		}
	}
	w.p("")
	w.doc("  // ", s.Name+": "+s.Doc)
	w.p("  localparam logic [31:0] %s_SIZE = 32'd%d;\n  typedef struct packed {", strings.ToUpper(name), s.Size)
	for _, p := range slices.Backward(s.layout) {
		if p.field == nil {
			w.p("    %s reserved_%d; // 0x%02x", logic(p.bits*int(p.count)), p.offset, p.offset)
			continue
		}
		w.p("    %s %s; // 0x%02x %s", p.field.svType(name), svName(p.field.Name), p.offset, sentence(p.field.Doc))
	}
	w.p("  } %s_t;", name)
}

// svWord prints a packed structure of bit fields, bits [hi:lo] of which keep their numbers.
func svWord(w *writer, name string, width int, bs []bitField, what string) {
	w.p("\n  // %s\n  typedef struct packed {", what)
	top := width
	gap := func(low int) {
		if top > low {
			w.p("    %s reserved_%d; // [%d:%d]", logic(top-low), low, top-1, low)
		}
	}
	for i := range slices.Backward(bs) {
		b := &bs[i]
		gap(int(b.Hi) + 1)
		t := logic(b.width())
		if b.enum != nil && !b.enum.Flags && b.enum.bits == b.width() {
			t = snake(b.enum.Name) + "_e"
		}
		w.p("    %s %s; // [%d:%d] %s", t, svName(strings.ToLower(b.Name)), b.Hi, b.Lo, sentence(b.Doc))
		top = int(b.Lo)
	}
	gap(0)
	w.p("  } %s_t;", name)
}

func svBlock(w *writer, b *block) {
	w.p("")
	w.doc("  // ", fmt.Sprintf("Block %s of BAR %s: %s", b.Name, b.Bar, b.Doc))
	w.p("  localparam logic [31:0] BLOCK_%s = 32'h%08x;", b.Name, b.Offset)
	for i := range b.Regs {
		r := &b.Regs[i]
		n := "REG_" + b.Name + "_" + r.Name
		w.doc("  // ", fmt.Sprintf("%s: %s", r.Access, r.Doc))
		w.p("  localparam logic [31:0] %s = 32'h%08x;", n, b.Offset+r.Offset)
		w.p("  localparam logic [%d:0] %s_RESET = %d'h%x;", r.Width-1, n, r.Width, r.Reset)
		if r.Count > 0 {
			w.p("  localparam logic [31:0] %s_COUNT = 32'd%d;\n  localparam logic [31:0] %[1]s_STRIDE = 32'd%[3]d;", n, r.Count, r.Stride)
		}
	}
	for i := range b.Regs {
		if r := &b.Regs[i]; len(r.Bits) != 0 {
			svWord(w, strings.ToLower(b.Name+"_"+r.Name), int(r.Width), r.Bits, fmt.Sprintf("A value of %s.%s.", b.Name, r.Name))
		}
	}
}
