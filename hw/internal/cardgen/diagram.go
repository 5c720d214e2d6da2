package main

import (
	"fmt"
	"strings"
)

// A span is a run of bits of a structure with one label; "" is reserved. Spans of one
// owner that fill several rows are drawn without lines between them.
type span struct {
	lo, hi int // bits from the structure's first, both included
	label  string
	owner  *field
}

// spans cuts a structure into what its diagram shows, from bit 0 up.
func (s *structure) spans() []span {
	var out []span
	add := func(lo, bits int, label string, owner *field) {
		if bits > 0 {
			out = append(out, span{lo, lo + bits - 1, label, owner})
		}
	}
	for _, p := range s.layout {
		at := int(p.offset) * 8
		f := p.field
		switch {
		case f == nil:
			add(at, p.bits*int(p.count), "", nil)
		case f.sub != nil:
			add(at, int(f.size())*8, fmt.Sprintf("%s: %s", f.Name, f.Type), f)
		case len(f.Bits) != 0:
			next := 0
			for i := range f.Bits {
				b := &f.Bits[i]
				add(at+next, int(b.Lo)-next, "", nil)
				add(at+int(b.Lo), b.width(), b.Name, f)
				next = int(b.Hi) + 1
			}
			add(at+next, f.bits-next, "", nil)
		case f.Width != 0 && f.count == 0:
			add(at, int(f.Width), f.Name, f)
			add(at+int(f.Width), f.bits-int(f.Width), "", nil)
		default:
			add(at, int(f.size())*8, f.Name, f)
		}
	}
	return merge(out)
}

// merge joins neighbouring reserved spans.
func merge(in []span) []span {
	var out []span
	for _, s := range in {
		if n := len(out); n > 0 && out[n-1].label == "" && s.label == "" {
			out[n-1].hi = s.hi
			continue
		}
		out = append(out, s)
	}
	return out
}

const (
	margin   = 6 // columns before a row
	tallRows = 3 // a span of more whole rows is drawn with a tear
)

// diagram draws a structure, 32 bits a row and two columns a bit, bit 31 on the left.
// Labels too long for their place become letters, explained below.
func diagram(s *structure) string {
	var b strings.Builder
	pad := strings.Repeat(" ", margin)
	tens, units := make([]byte, 65), make([]byte, 65)
	for i := range tens {
		tens[i], units[i] = ' ', ' '
	}
	for bit := range 32 {
		col := 2*(31-bit) + 1
		units[col] = byte('0' + bit%10)
		if bit%10 == 0 {
			tens[col] = byte('0' + bit/10)
		}
	}
	b.WriteString(strings.TrimRight(pad+string(tens), " ") + "\n" + pad + strings.TrimRight(string(units), " ") + "\n")
	spans := s.spans()
	rows := (int(s.Size)*8 + 31) / 32
	var legend []string
	rule := func(open bool) { // open: the row above and the row below are one span
		if open {
			return
		}
		b.WriteString(pad + strings.Repeat("+-", 32) + "+\n")
	}
	rule(false)
	for row := 0; row < rows; row++ {
		lo, hi := row*32, row*32+31
		cells := make([]byte, 65)
		for i := range cells {
			cells[i] = ' '
		}
		cells[0], cells[64] = '|', '|'
		var whole *span
		for i := range spans {
			sp := &spans[i]
			if sp.hi < lo || sp.lo > hi {
				continue
			}
			from, to := max(sp.lo, lo)-lo, min(sp.hi, hi)-lo
			left, right := 2*(31-to), 2*(31-from)+2
			cells[left], cells[right] = '|', '|'
			if sp.lo <= lo && sp.hi >= hi {
				whole = sp
			}
			text := sp.label
			if text != "" && sp.owner.sub == nil && (sp.lo < lo || sp.hi > hi) {
				text = part(sp, max(sp.lo, lo), min(sp.hi, hi))
			}
			if text != "" && sp.owner.sub != nil && sp.lo < lo {
				text = ""
			}
			if space := right - left - 1; len(text) > space {
				key := string(rune('a' + len(legend)))
				legend = append(legend, key+" = "+text)
				text = key
			}
			copy(cells[left+1+(right-left-1-len(text))/2:], text)
		}
		fmt.Fprintf(&b, "0x%03x %s\n", row*4, string(cells))
		if whole != nil {
			last := (whole.hi + 1) / 32 // first row behind it
			if last-row > tallRows && whole.lo <= lo {
				b.WriteString(pad + "~" + strings.Repeat(" ", 63) + "~\n")
				row = last - 2 // then its last row
				continue
			}
			rule(row+1 < last && (whole.label == "" || whole.owner.sub != nil))
			continue
		}
		rule(false)
	}
	for _, l := range legend {
		b.WriteString(pad + l + "\n")
	}
	return b.String()
}

// part names the piece of a field that a row shows: bits of a number, elements of an array.
func part(s *span, lo, hi int) string {
	unit := 1
	if s.owner.count > 0 {
		unit = s.owner.bits
	}
	first, last := (lo-s.lo)/unit, (hi-s.lo)/unit
	if first == last {
		return fmt.Sprintf("%s[%d]", s.label, first)
	}
	return fmt.Sprintf("%s[%d:%d]", s.label, last, first)
}
