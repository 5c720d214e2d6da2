// Package regs takes the names and values of registers as people write them.
package regs

import (
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"

	"rnic/hw"
)

// An Element is one register, or one element of a register array.
type Element struct {
	*hw.Register
	Index int // in an array, else 0
}

// Name is BLOCK.NAME, with [index] in an array.
func (e Element) Name() string {
	if e.Count == 0 {
		return e.FullName()
	}
	return fmt.Sprintf("%s[%d]", e.FullName(), e.Index)
}

// At is the element's offset in its BAR.
func (e Element) At() uint64 { return e.Offset + uint64(e.Index)*e.Stride }

// Readable tells whether reading gives something.
func (e Element) Readable() bool { return e.Access != hw.WO }

// Writable tells whether a store does something.
func (e Element) Writable() bool { return e.Access != hw.RO }

// All are the contract's registers in order, arrays element by element.
func All() []Element {
	var list []Element
	for i := range hw.Registers {
		r := &hw.Registers[i]
		for k := range max(r.Count, 1) {
			list = append(list, Element{r, k})
		}
	}
	return list
}

// Find gives the registers that the patterns name, in the contract's order. A pattern is a full name
// (IDENT.MAGIC), a name (MAGIC), a block (IDENT), an array or an element of it (CARD_NAME[2]), or one
// of these with the wildcards of path.Match; case does not matter. One that fits nothing is an error that
// names what is near. No pattern gives all.
func Find(patterns ...string) ([]Element, error) {
	all := All()
	if len(patterns) == 0 {
		return all, nil
	}
	wanted := make([]bool, len(all))
	for _, p := range patterns {
		up := strings.ToUpper(p)
		found := false
		for i, e := range all {
			ok, err := fits(up, e)
			if err != nil {
				return nil, fmt.Errorf("register pattern %q: %w", p, err)
			}
			if ok {
				wanted[i], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no register fits %q%s", p, near(up, all))
		}
	}
	var list []Element
	for i, e := range all {
		if wanted[i] {
			list = append(list, e)
		}
	}
	return list, nil
}

func fits(pattern string, e Element) (bool, error) {
	// Brackets are an index here, not a class.
	pattern, index, indexed := strings.Cut(pattern, "[")
	if indexed && (e.Count == 0 || index != strconv.Itoa(e.Index)+"]") {
		return false, nil
	}
	for _, name := range []string{e.FullName(), e.Register.Name, e.Block} {
		ok, err := path.Match(pattern, name)
		if err != nil || ok {
			return ok, err
		}
		if indexed && name == e.Register.Name {
			break // a block has no index
		}
	}
	return false, nil
}

// near names the registers that share the most letters at the start.
func near(name string, all []Element) string {
	_, last, ok := strings.Cut(name, ".")
	if !ok {
		last = name
	}
	best, names := 2, []string(nil)
	for _, e := range all {
		n := 0
		for n < len(last) && n < len(e.Register.Name) && last[n] == e.Register.Name[n] {
			n++
		}
		if n > best {
			best, names = n, nil
		}
		if n == best && n > 2 && !slices.Contains(names, e.FullName()) {
			names = append(names, e.FullName())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; near are " + strings.Join(names[:min(len(names), 5)], ", ")
}

// One gives the one register that a name means.
func One(name string) (Element, error) {
	list, err := Find(name)
	if err != nil {
		return Element{}, err
	}
	if len(list) > 1 {
		return Element{}, fmt.Errorf("%q names %d registers, %s and %s among them", name, len(list), list[0].Name(), list[1].Name())
	}
	return list[0], nil
}

// Parse reads a value for the register: a number in Go's notation, the name of one of its enum's
// values, or fields as NAME=NUMBER joined by commas over the value that it has now.
func (e Element) Parse(s string, now uint64) (uint64, error) {
	if v, err := strconv.ParseUint(s, 0, 64); err == nil {
		if bits.Len64(v) > e.Width {
			return 0, fmt.Errorf("%s: %s has more than %d bits", e.Name(), s, e.Width)
		}
		return v, nil
	}
	if e.Text != nil {
		if v, ok := named(e.Text, s); ok {
			return v, nil
		}
		return 0, fmt.Errorf("%s: %q is no number and none of its values", e.Name(), s)
	}
	if len(e.Fields) == 0 || !strings.Contains(s, "=") {
		return 0, fmt.Errorf("%s: %q is no number", e.Name(), s)
	}
	for _, part := range strings.Split(s, ",") {
		name, value, _ := strings.Cut(part, "=")
		i := slices.IndexFunc(e.Fields, func(f hw.RegisterField) bool { return strings.EqualFold(f.Name, name) })
		if i < 0 {
			return 0, fmt.Errorf("%s has no field %q", e.Name(), name)
		}
		f := &e.Fields[i]
		v, err := strconv.ParseUint(value, 0, 64)
		if err != nil && f.Text != nil {
			if n, ok := named(f.Text, value); ok {
				v, err = n, nil
			}
		}
		if err != nil {
			return 0, fmt.Errorf("%s.%s: %q is no number", e.Name(), f.Name, value)
		}
		mask := ^uint64(0) >> (63 - (f.Hi - f.Lo))
		if v > mask {
			return 0, fmt.Errorf("%s.%s: %s has more than %d bits", e.Name(), f.Name, value, f.Hi-f.Lo+1)
		}
		now = now&^(mask<<f.Lo) | v<<f.Lo
	}
	return now, nil
}

// named finds the value whose text is s. The contract's enums of registers are small.
func named(text func(uint64) string, s string) (uint64, bool) {
	for v := range uint64(256) {
		if strings.EqualFold(text(v), s) {
			return v, true
		}
	}
	return 0, false
}
