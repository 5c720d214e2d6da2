package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The model mirrors hw/card.yaml. Each piece keeps the line that it came from.

type contract struct {
	Line  int    `card:"@line"`
	Name  string `card:"name"`
	Magic uint64 `card:"magic"`
	Major uint64 `card:"major"`
	Minor uint64 `card:"minor"`
	Doc   string `card:"doc"`
}

type pci struct {
	Line            int    `card:"@line"`
	Vendor          uint64 `card:"vendor"`
	Device          uint64 `card:"device"`
	Class           uint64 `card:"class"`
	SubsystemVendor uint64 `card:"subsystem_vendor"`
	Subsystem       uint64 `card:"subsystem"`
	Doc             string `card:"doc"`
}

type bar struct {
	Line  int    `card:"@line"`
	Name  string `card:"name"`
	Index uint64 `card:"index"`
	Size  uint64 `card:"size"`
	Doc   string `card:"doc"`
}

type constant struct {
	Line  int    `card:"@line"`
	Name  string `card:"name"`
	Value uint64 `card:"value"`
	Doc   string `card:"doc"`
}

type enum struct {
	Line   int         `card:"@line"`
	Name   string      `card:"name"`
	Type   string      `card:"type"`
	Flags  bool        `card:"flags,optional"`
	Doc    string      `card:"doc"`
	Values []enumValue `card:"values"`

	bits int // width of Type
}

type enumValue struct {
	Line  int    `card:"@line"`
	Name  string `card:"name"`
	Value uint64 `card:"value"`
	Doc   string `card:"doc,optional"`
}

// number is the value as it stands in memory: flags are written as bit numbers.
func (e *enum) number(v enumValue) uint64 {
	if e.Flags {
		return 1 << v.Value
	}
	return v.Value
}

type structure struct {
	Line   int     `card:"@line"`
	Name   string  `card:"name"`
	Size   uint64  `card:"size"`
	Align  uint64  `card:"align"` // that the card wants in host memory
	Doc    string  `card:"doc"`
	Fields []field `card:"fields"`

	align  uint64  // that the compiler wants: the widest field's
	layout []piece // fields and reserved gaps, in order of offset
}

type field struct {
	Line   int        `card:"@line"`
	Name   string     `card:"name"`
	Type   string     `card:"type"`
	Offset uint64     `card:"offset"`
	Width  uint64     `card:"width,optional"`
	Enum   string     `card:"enum,optional"`
	Bits   []bitField `card:"bits,optional"`
	Doc    string     `card:"doc,optional"`

	elem  string     // type without the count: u8, u16, u32, u64 or a structure's name
	count uint64     // 0 where the field is not an array
	bits  int        // width of a scalar element, 0 for a nested structure
	sub   *structure // the nested structure
	enum  *enum
}

// size in bytes of the whole field.
func (f *field) size() uint64 {
	n := uint64(f.bits / 8)
	if f.sub != nil {
		n = f.sub.Size
	}
	return n * max(f.count, 1)
}

func (f *field) align() uint64 {
	if f.sub != nil {
		return f.sub.align
	}
	return uint64(f.bits / 8)
}

type bitField struct {
	Line int    `card:"@line"`
	Name string `card:"name"`
	Hi   uint64 `card:"hi"`
	Lo   uint64 `card:"lo"`
	Enum string `card:"enum,optional"`
	Doc  string `card:"doc,optional"`

	enum *enum
}

func (b *bitField) width() int { return int(b.Hi-b.Lo) + 1 }

// mask in place.
func (b *bitField) mask() uint64 { return ones(b.width()) << b.Lo }

func ones(width int) uint64 {
	if width >= 64 {
		return ^uint64(0)
	}
	return 1<<width - 1
}

// A piece of a structure's layout: a field, or a gap that must be zero.
type piece struct {
	field  *field // nil for a gap
	offset uint64
	bits   int    // of an element of a gap: 8, 16, 32 or 64
	count  uint64 // elements of a gap
}

type block struct {
	Line   int        `card:"@line"`
	Name   string     `card:"block"`
	Bar    string     `card:"bar"`
	Offset uint64     `card:"offset"`
	Doc    string     `card:"doc"`
	Regs   []register `card:"regs"`

	bar *bar
}

type register struct {
	Line   int        `card:"@line"`
	Name   string     `card:"name"`
	Offset uint64     `card:"offset"`
	Width  uint64     `card:"width"`
	Access string     `card:"access"`
	Reset  uint64     `card:"reset,optional"`
	Count  uint64     `card:"count,optional"`
	Stride uint64     `card:"stride,optional"`
	Enum   string     `card:"enum,optional"`
	Bits   []bitField `card:"bits,optional"`
	Doc    string     `card:"doc,optional"`

	enum *enum
}

type card struct {
	Line      int         `card:"@line"`
	Contract  contract    `card:"contract"`
	PCI       pci         `card:"pci"`
	Bars      []bar       `card:"bars"`
	Constants []constant  `card:"constants"`
	Enums     []enum      `card:"enums"`
	Structs   []structure `card:"structs"`
	Registers []block     `card:"registers"`

	ordered []*structure // a nested structure before its users
}

// load parses and validates a contract. The error lists every problem with its line.
func load(file string, text []byte) (*card, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(root.Content) != 1 {
		return nil, fmt.Errorf("%s: line 1: the file is empty", file)
	}
	c := &card{}
	var ps problems
	decode(root.Content[0], reflect.ValueOf(c).Elem(), "card", &ps)
	if len(ps) == 0 { // what does not decode cannot be checked further
		c.validate(&ps)
	}
	if len(ps) == 0 {
		return c, nil
	}
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = file + ": " + p.String()
	}
	return nil, fmt.Errorf("%s", strings.Join(lines, "\n"))
}

// scalarBits gives the width of u8, u16, u32 and u64, and 0 for anything else.
func scalarBits(t string) int {
	switch t {
	case "u8":
		return 8
	case "u16":
		return 16
	case "u32":
		return 32
	case "u64":
		return 64
	}
	return 0
}

// splitType takes "u8[6]" apart. ok is false where the count is not a positive number.
func splitType(t string) (elem string, count uint64, ok bool) {
	elem, rest, array := strings.Cut(t, "[")
	if !array {
		return elem, 0, true
	}
	digits, closed := strings.CutSuffix(rest, "]")
	n, err := strconv.ParseUint(digits, 0, 16)
	return elem, n, closed && err == nil && n > 0
}
