package main

import (
	"fmt"
	"strings"
	"testing"
)

// small is a good contract. Each defect below changes one place of it.
const small = `contract: {name: rnic, magic: 0x43494e52, major: 1, minor: 0, doc: A contract.}
pci: {vendor: 0x10ee, device: 1, class: 0x020000, subsystem_vendor: 0x10ee, subsystem: 1, doc: Identity.}
bars:
  - {name: CTRL, index: 0, size: 0x1000, doc: Registers.}
  - {name: TABLE, index: 2, size: 0x1000, doc: A table.}
constants:
  - {name: LIMIT, value: 5, doc: A limit.}
enums:
  - name: Color
    type: u8
    doc: A color.
    values:
      - {name: RED, value: 0, doc: Red.}
      - {name: BLUE, value: 3}
  - name: Right
    type: u16
    flags: true
    doc: Rights.
    values:
      - {name: READ, value: 0}
      - {name: WRITE, value: 9}
structs:
  - name: Inner
    size: 8
    align: 8
    doc: Inside.
    fields:
      - {name: addr, type: u64, offset: 0, doc: Address.}
  - name: Outer
    size: 32
    align: 16
    doc: Outside.
    fields:
      - {name: color, type: u8, offset: 0, enum: Color}
      - {name: mac, type: "u8[6]", offset: 2}
      - {name: inner, type: Inner, offset: 8}
      - {name: psn, type: u32, offset: 16, width: 24}
      - name: word
        type: u32
        offset: 20
        bits:
          - {name: low, hi: 7, lo: 0}
          - {name: kind, hi: 11, lo: 8, enum: Color}
registers:
  - block: MAIN
    bar: CTRL
    offset: 0x100
    doc: Main.
    regs:
      - {name: MAGIC, offset: 0x0, width: 32, access: ro, reset: 0x43494e52}
      - {name: WIDE, offset: 0x8, width: 64, access: rw, enum: Right}
      - {name: LIST, offset: 0x20, width: 32, access: ro, count: 4, stride: 4}
      - name: BITS
        offset: 0x40
        width: 32
        access: w1c
        bits:
          - {name: ON, hi: 0, lo: 0, doc: On.}
`

func TestGoodContract(t *testing.T) {
	if _, err := load("small.yaml", []byte(small)); err != nil {
		t.Fatal(err)
	}
}

// TestDefectsAreRefusedWithTheirLine seeds one defect at a time. A want without a line means the line
// of the defect.
func TestDefectsAreRefusedWithTheirLine(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		// The file's form.
		{"name: LIMIT, value: 5", "name: LIMIT, valeu: 5", `unknown key "valeu"`},
		{"name: LIMIT, value: 5", "name: LIMIT", `key "value" is missing`},
		{"name: LIMIT, value: 5", "name: LIMIT, value: five", `"five" is not a uint64`},
		{"name: LIMIT, value: 5", "name: LIMIT, value: -5", `"-5" is not a uint64`},
		{"name: LIMIT, value: 5", "name: LIMIT, value: [5]", "one value is wanted"},
		{"name: LIMIT, value: 5", "name: LIMIT, value: 5, value: 6", "stands twice"},
		{"name: RED, value", "name: 802, value", `"802" is not a string in YAML; quote it`},
		{"- {name: LIMIT, value: 5, doc: A limit.}", "- LIMIT", "a mapping is wanted"},
		// Identity.
		{"vendor: 0x10ee, device: 1", "vendor: 0x10ee, device: 0x10000", "device 0x10000 does not fit in 16 bits"},
		{"magic: 0x43494e52", "magic: 0x143494e52", "magic 0x143494e52 does not fit in 32 bits"},
		{"name: TABLE, index: 2", "name: TABLE, index: 0", "BAR TABLE: index 0 is taken by line 4"},
		{"name: TABLE, index: 2", "name: TABLE, index: 6", "index 6 is beyond the six"},
		{"index: 2, size: 0x1000", "index: 2, size: 0x1800", "size 0x1800 is not a power of two"},
		{"name: LIMIT", "name: Limit", `name "Limit" does not match`},
		{"name: LIMIT", "name: COLOR", "line 9: the Go name Color is taken by line 7"},
		// Enums.
		{"type: u8\n    doc: A color", "type: u12\n    doc: A color", `line 9: enum Color: type "u12" is none of u8`},
		{"name: BLUE, value: 3", "name: BLUE, value: 0", "enum Color: value 0 is taken by line 13"},
		{"name: BLUE, value: 3", "name: RED, value: 3", "the Go name ColorRed is taken by line 13"},
		{"name: BLUE, value: 3", "name: BLUE, value: 256", "BLUE 0x100 does not fit in 8 bits"},
		{"name: WRITE, value: 9", "name: WRITE, value: 16", "WRITE is bit 16 of a type of 16 bits"},
		// Structures.
		{"type: u64, offset: 0, doc: Address", "type: u65, offset: 0, doc: Address", `type "u65" is neither`},
		{`type: "u8[6]"`, `type: "u8[0]"`, "no good array length"},
		{`type: "u8[6]"`, `type: "u8[6"`, "no good array length"},
		{"type: u32, offset: 16", "type: u32, offset: 18", "offset 18 is not aligned to 4"},
		{"type: Inner, offset: 8", "type: Inner, offset: 12", "offset 12 is not aligned to 8"},
		{`type: "u8[6]", offset: 2`, `type: "u8[6]", offset: 3`, "line 36: Outer.inner: offset 8 overlaps the field before it, which ends at 9"},
		{"name: color, type: u8, offset: 0", "name: color, type: u8, offset: 4", "line 34: Outer.color: offset 4 overlaps the field before it, which ends at 8"},
		{"type: u32, offset: 16, width: 24", "type: u32, offset: 32, width: 24", "ends at 36, the struct at 32"},
		{"offset: 16, width: 24", "offset: 16, width: 32", "width 32 is not narrower than u32"},
		{"name: psn", "name: color", "the Go name Color is taken by line 34"},
		{"name: psn", "name: kind", "line 43: struct Outer: the Go name Kind is taken by line 37"},
		{"offset: 0, enum: Color", "offset: 0, enum: Colour", "enum Colour is not defined"},
		{"offset: 0, enum: Color", "offset: 0, enum: Right", "enum Right is u16, the field u8"},
		{"type: Inner, offset: 8", "type: Outer, offset: 8", "line 29: struct Outer contains itself"},
		{"size: 32\n    align: 16", "size: 28\n    align: 4", "line 29: struct Outer: size 28 is not a multiple of its alignment 8"},
		{"size: 32\n    align: 16", "size: 32\n    align: 12", "line 29: struct Outer: align 12 is not a power of two"},
		// Bits.
		{"name: low, hi: 7", "name: low, hi: 8", "line 43: OuterWord: bits kind overlap the bits below"},
		{"name: kind, hi: 11, lo: 8", "name: kind, hi: 32, lo: 8", "are not inside 32 bits"},
		{"name: kind, hi: 11, lo: 8", "name: kind, hi: 7, lo: 8", "high first"},
		{"name: kind, hi: 11", "name: kind, hi: 8", "BLUE 0x3 does not fit in 1 bits"},
		{"name: kind, hi: 11", "name: low, hi: 11", "bits low stand on line 42 already"},
		{"        offset: 20\n", "        offset: 20\n        width: 8\n", "line 38: Outer.word: bits go with no width, enum or array"},
		// Registers.
		{"bar: CTRL", "bar: CTL", `line 45: block MAIN: BAR "CTL" is not defined`},
		{"    offset: 0x100", "    offset: 0x104", "line 45: block MAIN: offset 0x104 is not aligned to 8"},
		{"    offset: 0x100", "    offset: 0xfd0", "line 53: MAIN.BITS: ends at 0x1014, BAR CTRL at 0x1000"},
		{"name: WIDE, offset: 0x8", "name: WIDE, offset: 0xc", "offset 0xc is not aligned to 8"},
		{"name: WIDE, offset: 0x8", "name: WIDE, offset: 0x0", "overlaps the register of line 50"},
		{"offset: 0x20, width: 32", "offset: 0x38, width: 32", "line 53: MAIN.BITS: overlaps the register of line 52"},
		{"width: 64, access: rw", "width: 48, access: rw", "width 48 is neither 32 nor 64"},
		{"width: 64, access: rw", "width: 64, access: rwx", `access "rwx" is none of`},
		{"reset: 0x43494e52}", "reset: 0x143494e52}", "reset 0x143494e52 does not fit in 32 bits"},
		{"count: 4, stride: 4", "count: 4, stride: 2", "stride 2 is not a multiple of 4"},
		{"count: 4, stride: 4", "stride: 4", "a stride without a count"},
		{"name: WIDE", "name: MAGIC", "the Go name RegMainMagic is taken by line 50"},
	} {
		at := strings.Index(small, c.old)
		if at < 0 || strings.Count(small, c.old) != 1 {
			t.Errorf("%q stands %d times in the good contract", c.old, strings.Count(small, c.old))
			continue
		}
		bad := strings.Replace(small, c.old, c.new, 1)
		_, err := load("small.yaml", []byte(bad))
		if err == nil {
			t.Errorf("%q was not refused", c.new)
			continue
		}
		want := c.want
		if !strings.HasPrefix(want, "line ") { // then it is the line of the defect
			want = fmt.Sprintf("line %d: ", strings.Count(small[:at], "\n")+1)
		}
		if !strings.Contains(err.Error(), "small.yaml: "+want) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q and %q", c.new, err, want, c.want)
		}
	}
}
