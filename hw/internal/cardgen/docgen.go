package main

import (
	"fmt"
	"strings"
)

// docFile gives docs/card.md.
func (c *card) docFile() ([]byte, error) {
	w := &writer{}
	w.p("<!-- %s -->\n\n# The card\n\n%s\n", marker, sentence(c.Contract.Doc))
	w.p("The one source is `hw/card.yaml`. From it `go generate ./hw` writes this page, the Go package `rnic/hw` and the")
	w.p("SystemVerilog package `bitstream/rtl/card_pkg.sv`; a test refuses a difference.\n")
	w.p("Descriptors are little-endian in host memory. In the diagrams each row is one 32-bit word: bit 31, the highest")
	w.p("of the byte at the highest address, is on the left, bit 0 on the right, and the number before the row is the word's")
	w.p("byte offset. A field of 64 bits takes two rows, its low half first. Blank places are reserved: software writes")
	w.p("zero there, and the card refuses anything else.\n")
	w.p("## Identity\n\n| | |\n|---|---|")
	w.p("| contract | %s, version %d.%d |\n| magic | 0x%08x |", c.Contract.Name, c.Contract.Major, c.Contract.Minor, c.Contract.Magic)
	w.p("| PCI vendor, device | %04x:%04x |\n| PCI subsystem | %04x:%04x |\n| PCI class | %06x |\n", c.PCI.Vendor, c.PCI.Device, c.PCI.SubsystemVendor, c.PCI.Subsystem, c.PCI.Class)
	w.p("%s\n", cell(c.PCI.Doc))
	w.p("| BAR | index | size | |\n|---|---|---|---|")
	for _, b := range c.Bars {
		w.p("| %s | %d | %s | %s |", b.Name, b.Index, byteSize(b.Size), cell(b.Doc))
	}
	w.p("\n## Constants\n\n| name | value | |\n|---|---|---|")
	for _, k := range c.Constants {
		w.p("| %s | %s | %s |", k.Name, number(k.Value), cell(k.Doc))
	}
	w.p("\n## Descriptors and contexts")
	for i := range c.Structs {
		docStruct(w, &c.Structs[i])
	}
	w.p("\n## Values")
	for i := range c.Enums {
		docEnum(w, &c.Enums[i])
	}
	w.p("\n## Registers\n\nA register of 64 bits is read low half first, which holds the high half for the second read; it is written low half first.\n")
	w.p("Access: ro read only, rw read and write, wo write only, w1c write one to clear.")
	for i := range c.Registers {
		docBlock(w, &c.Registers[i])
	}
	return w.Bytes(), nil
}

// cell makes a text fit a table's cell.
func cell(s string) string { return strings.ReplaceAll(sentence(s), "|", `\|`) }

func byteSize(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func enumLink(e *enum) string {
	if e == nil {
		return ""
	}
	return fmt.Sprintf("[%s](#%s)", e.Name, strings.ToLower(e.Name))
}

func docEnum(w *writer, e *enum) {
	value := "value"
	if e.Flags {
		value = "bit"
	}
	w.p("\n### %s\n\n%s (%s)\n\n| %s | name | |\n|---|---|---|", e.Name, sentence(e.Doc), e.Type, value)
	for _, v := range e.Values {
		w.p("| %d | %s | %s |", v.Value, v.Name, cell(v.Doc))
	}
}

func docStruct(w *writer, s *structure) {
	w.p("\n### %s\n\n%s %d bytes, aligned to %d.\n\n```", s.Name, sentence(s.Doc), s.Size, s.Align)
	w.WriteString(diagram(s))
	w.p("```\n\n| offset | field | type | values | |\n|---|---|---|---|---|")
	for i := range s.Fields {
		f := &s.Fields[i]
		t := f.Type
		if f.Width != 0 {
			t = fmt.Sprintf("%s, %d bits", t, f.Width)
		}
		if f.sub != nil {
			t = fmt.Sprintf("[%s](#%s)", f.Type, strings.ToLower(f.sub.Name))
		}
		w.p("| 0x%02x | %s | %s | %s | %s |", f.Offset, f.Name, t, enumLink(f.enum), cell(f.Doc))
		for j := range f.Bits {
			b := &f.Bits[j]
			w.p("| | %s.%s | %s | %s | %s |", f.Name, b.Name, bitRange(b), enumLink(b.enum), cell(b.Doc))
		}
	}
}

func bitRange(b *bitField) string {
	if b.Hi == b.Lo {
		return fmt.Sprintf("bit %d", b.Lo)
	}
	return fmt.Sprintf("bits %d:%d", b.Hi, b.Lo)
}

func docBlock(w *writer, b *block) {
	w.p("\n### %s\n\n%s In BAR %s at 0x%04x.\n", b.Name, sentence(b.Doc), b.Bar, b.Offset)
	w.p("| offset | name | width | access | reset | values | |\n|---|---|---|---|---|---|---|")
	for i := range b.Regs {
		r := &b.Regs[i]
		name := r.Name
		if r.Count > 0 {
			name = fmt.Sprintf("%s[%d], every %d bytes", name, r.Count, r.Stride)
		}
		reset := ""
		if r.Access != "wo" {
			reset = number(r.Reset)
		}
		w.p("| 0x%04x | %s | %d | %s | %s | %s | %s |", b.Offset+r.Offset, name, r.Width, r.Access, reset, enumLink(r.enum), cell(r.Doc))
		for j := range r.Bits {
			f := &r.Bits[j]
			w.p("| | %s.%s | %s | | | %s | %s |", r.Name, f.Name, bitRange(f), enumLink(f.enum), cell(f.Doc))
		}
	}
}
