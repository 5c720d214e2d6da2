package main

import (
	"math/bits"
	"regexp"
	"slices"
)

var (
	upperName = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)
	lowerName = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	valueName = regexp.MustCompile(`^[A-Z0-9]+(_[A-Z0-9]+)*$`)
	bitName   = regexp.MustCompile(`^([A-Z][A-Z0-9]*(_[A-Z0-9]+)*|[a-z][a-z0-9]*(_[a-z0-9]+)*)$`)
	camelName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
)

// accesses are the kinds of register access, as in SystemRDL: read-only, read-write,
// write-only, and write one to clear.
var accesses = []string{"ro", "rw", "wo", "w1c"}

// A checker holds what is known while the contract is validated.
type checker struct {
	*problems
	enums   map[string]*enum
	structs map[string]*structure
	idents  map[string]int // exported Go identifier → line of its owner
}

// ident claims an exported Go name: two YAML names that would become one are refused here,
// with both lines, and not by the compiler.
func (k *checker) ident(line int, name string) {
	if at, taken := k.idents[name]; taken {
		k.add(line, "the Go name %s is taken by line %d", name, at)
		return
	}
	k.idents[name] = line
}

func (k *checker) name(line int, re *regexp.Regexp, name string) {
	if !re.MatchString(name) {
		k.add(line, "name %q does not match %s", name, re)
	}
}

func (k *checker) fits(line int, what string, v uint64, width int) {
	if bits.Len64(v) > width {
		k.add(line, "%s %#x does not fit in %d bits", what, v, width)
	}
}

func (c *card) validate(ps *problems) {
	k := &checker{ps, map[string]*enum{}, map[string]*structure{}, map[string]int{}}
	for _, n := range fixedNames {
		k.idents[n] = 0
	}
	c.checkHead(k)
	for i := range c.Enums {
		k.checkEnum(&c.Enums[i])
	}
	for i := range c.Structs {
		s := &c.Structs[i]
		k.name(s.Line, camelName, s.Name)
		k.ident(s.Line, s.Name)
		k.ident(s.Line, s.Name+"Size")
		k.ident(s.Line, s.Name+"Align")
		k.ident(s.Line, "View"+s.Name)
		k.ident(s.Line, "Slice"+s.Name)
		k.structs[s.Name] = s
	}
	state := map[*structure]int{}
	for i := range c.Structs {
		c.checkStruct(k, &c.Structs[i], state)
	}
	c.checkBlocks(k)
}

func (c *card) checkHead(k *checker) {
	k.fits(c.Contract.Line, "magic", c.Contract.Magic, 32)
	k.fits(c.Contract.Line, "major", c.Contract.Major, 16)
	k.fits(c.Contract.Line, "minor", c.Contract.Minor, 16)
	p := c.PCI
	k.fits(p.Line, "vendor", p.Vendor, 16)
	k.fits(p.Line, "device", p.Device, 16)
	k.fits(p.Line, "class", p.Class, 24)
	k.fits(p.Line, "subsystem_vendor", p.SubsystemVendor, 16)
	k.fits(p.Line, "subsystem", p.Subsystem, 16)
	slots := map[uint64]int{}
	for i := range c.Bars {
		b := &c.Bars[i]
		k.name(b.Line, upperName, b.Name)
		k.ident(b.Line, "BAR"+camel(b.Name))
		k.ident(b.Line, "BAR"+camel(b.Name)+"Size")
		if b.Index > 5 {
			k.add(b.Line, "BAR %s: index %d is beyond the six of a function", b.Name, b.Index)
		}
		if at, taken := slots[b.Index]; taken {
			k.add(b.Line, "BAR %s: index %d is taken by line %d", b.Name, b.Index, at)
		}
		slots[b.Index] = b.Line
		if bits.OnesCount64(b.Size) != 1 || b.Size < 16 {
			k.add(b.Line, "BAR %s: size %#x is not a power of two of at least 16", b.Name, b.Size)
		}
	}
	for i := range c.Constants {
		n := &c.Constants[i]
		k.name(n.Line, upperName, n.Name)
		k.ident(n.Line, camel(n.Name))
	}
}

func (k *checker) checkEnum(e *enum) {
	k.name(e.Line, camelName, e.Name)
	k.ident(e.Line, e.Name)
	if k.enums[e.Name] == nil {
		k.enums[e.Name] = e
	}
	if e.bits = scalarBits(e.Type); e.bits == 0 {
		k.add(e.Line, "enum %s: type %q is none of u8, u16, u32, u64", e.Name, e.Type)
		return
	}
	if len(e.Values) == 0 {
		k.add(e.Line, "enum %s has no values", e.Name)
	}
	seen := map[uint64]int{}
	for _, v := range e.Values {
		k.name(v.Line, valueName, v.Name)
		k.ident(v.Line, e.Name+camel(v.Name))
		if e.Flags && v.Value >= uint64(e.bits) {
			k.add(v.Line, "enum %s: %s is bit %d of a type of %d bits", e.Name, v.Name, v.Value, e.bits)
		} else if !e.Flags {
			k.fits(v.Line, "enum "+e.Name+": "+v.Name, v.Value, e.bits)
		}
		if at, taken := seen[v.Value]; taken {
			k.add(v.Line, "enum %s: value %d is taken by line %d", e.Name, v.Value, at)
		}
		seen[v.Value] = v.Line
	}
}

// enumFor resolves an enum by name and sees that each of its values fits the place.
func (k *checker) enumFor(line int, name string, width int) *enum {
	if name == "" {
		return nil
	}
	e := k.enums[name]
	if e == nil {
		k.add(line, "enum %s is not defined", name)
		return nil
	}
	for _, v := range e.Values {
		if v.Value < 64 || !e.Flags {
			k.fits(line, "enum "+name+": "+v.Name, e.number(v), width)
		}
	}
	return e
}

// checkStruct resolves s's fields, checks them, and computes its layout.
// state is 1 while a structure is being checked and 2 afterwards.
func (c *card) checkStruct(k *checker, s *structure, state map[*structure]int) {
	if state[s] != 0 {
		if state[s] == 1 {
			k.add(s.Line, "struct %s contains itself", s.Name)
		}
		return
	}
	state[s] = 1
	s.align = 1
	members := map[string]int{"AsBytes": s.Line, "ReservedZero": s.Line}
	member := func(line int, name string) {
		if at, taken := members[name]; taken {
			k.add(line, "struct %s: the Go name %s is taken by line %d", s.Name, name, at)
		}
		members[name] = line
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		k.name(f.Line, lowerName, f.Name)
		member(f.Line, camel(f.Name))
		var ok bool
		if f.elem, f.count, ok = splitType(f.Type); !ok {
			k.add(f.Line, "%s.%s: type %q has no good array length", s.Name, f.Name, f.Type)
		}
		if f.bits = scalarBits(f.elem); f.bits == 0 {
			if f.sub = k.structs[f.elem]; f.sub == nil {
				k.add(f.Line, "%s.%s: type %q is neither u8, u16, u32, u64 nor a struct", s.Name, f.Name, f.elem)
				f.bits = 8 // goes on, to find what else is wrong
			} else {
				c.checkStruct(k, f.sub, state)
			}
		}
		k.checkField(s, f, member)
		s.align = max(s.align, f.align())
	}
	if bits.OnesCount64(s.Align) != 1 || s.Align < s.align || s.Size%s.Align != 0 && s.Size > s.Align {
		k.add(s.Line, "struct %s: align %d is not a power of two that divides %d and covers its fields' %d", s.Name, s.Align, s.Size, s.align)
	}
	if s.Size == 0 || s.Size%s.align != 0 {
		k.add(s.Line, "struct %s: size %d is not a multiple of its alignment %d", s.Name, s.Size, s.align)
	}
	k.layOut(s)
	state[s] = 2
	c.ordered = append(c.ordered, s)
}

func (k *checker) checkField(s *structure, f *field, member func(int, string)) {
	if f.align() > 0 && f.Offset%f.align() != 0 {
		k.add(f.Line, "%s.%s: offset %d is not aligned to %d", s.Name, f.Name, f.Offset, f.align())
	}
	if f.sub != nil {
		if f.Width != 0 || f.Enum != "" || len(f.Bits) != 0 {
			k.add(f.Line, "%s.%s: a nested struct takes no width, enum or bits", s.Name, f.Name)
		}
		return
	}
	if f.Width >= uint64(f.bits) {
		k.add(f.Line, "%s.%s: width %d is not narrower than %s", s.Name, f.Name, f.Width, f.elem)
	}
	if len(f.Bits) != 0 {
		if f.Width != 0 || f.Enum != "" || f.count != 0 {
			k.add(f.Line, "%s.%s: bits go with no width, enum or array", s.Name, f.Name)
		}
		k.checkWord(f.Line, s.Name+camel(f.Name), f.bits, f.Bits)
		for i := range f.Bits {
			member(f.Bits[i].Line, camel(f.Bits[i].Name))
			member(f.Bits[i].Line, "Set"+camel(f.Bits[i].Name))
		}
	}
	width := f.bits
	if f.Width != 0 {
		width = int(f.Width)
	}
	if f.enum = k.enumFor(f.Line, f.Enum, width); f.enum != nil && f.enum.bits != f.bits {
		k.add(f.Line, "%s.%s: enum %s is %s, the field %s", s.Name, f.Name, f.Enum, f.enum.Type, f.elem)
	}
}

// checkWord checks the bit fields of a word of a struct or of a register; goName is the
// name of the word's type.
func (k *checker) checkWord(line int, goName string, width int, bs []bitField) {
	k.ident(line, goName)
	slices.SortFunc(bs, func(a, b bitField) int { return int(a.Lo) - int(b.Lo) })
	names := map[string]int{}
	next := uint64(0)
	for i := range bs {
		b := &bs[i]
		k.name(b.Line, bitName, b.Name)
		if at, taken := names[b.Name]; taken {
			k.add(b.Line, "%s: bits %s stand on line %d already", goName, b.Name, at)
		}
		names[b.Name] = b.Line
		k.ident(b.Line, goName+camel(b.Name)+"Shift")
		k.ident(b.Line, goName+camel(b.Name)+"Mask")
		if b.Hi < b.Lo || b.Hi >= uint64(width) {
			k.add(b.Line, "%s: bits %s [%d:%d] are not inside %d bits, high first", goName, b.Name, b.Hi, b.Lo, width)
			continue
		}
		if b.Lo < next {
			k.add(b.Line, "%s: bits %s overlap the bits below", goName, b.Name)
		}
		next = b.Hi + 1
		b.enum = k.enumFor(b.Line, b.Enum, b.width())
	}
}

// layOut sorts the fields by offset, finds overlaps, and fills the gaps with reserved
// pieces as wide as their place and the structure's alignment allow.
func (k *checker) layOut(s *structure) {
	slices.SortStableFunc(s.Fields, func(a, b field) int { return int(a.Offset) - int(b.Offset) })
	next := uint64(0)
	gap := func(end uint64) {
		for next < end {
			size := s.align
			for next%size != 0 || end-next < size {
				size /= 2
			}
			n := uint64(1)
			if next+size <= end && size == s.align {
				n = (end - next) / size
			}
			s.layout = append(s.layout, piece{offset: next, bits: int(size) * 8, count: n})
			next += n * size
		}
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Offset < next {
			k.add(f.Line, "%s.%s: offset %d overlaps the field before it, which ends at %d", s.Name, f.Name, f.Offset, next)
			continue
		}
		if f.Offset+f.size() > s.Size {
			k.add(f.Line, "%s.%s: ends at %d, the struct at %d", s.Name, f.Name, f.Offset+f.size(), s.Size)
			return
		}
		gap(f.Offset)
		s.layout = append(s.layout, piece{field: f, offset: f.Offset})
		next = f.Offset + f.size()
	}
	gap(s.Size)
}

func (c *card) checkBlocks(k *checker) {
	type span struct {
		start, end uint64
		line       int
	}
	spans := map[string][]span{}
	for i := range c.Registers {
		b := &c.Registers[i]
		k.name(b.Line, upperName, b.Name)
		k.ident(b.Line, "Block"+camel(b.Name))
		j := slices.IndexFunc(c.Bars, func(r bar) bool { return r.Name == b.Bar })
		if j < 0 {
			k.add(b.Line, "block %s: BAR %q is not defined", b.Name, b.Bar)
			continue
		}
		b.bar = &c.Bars[j]
		if b.Offset%8 != 0 {
			k.add(b.Line, "block %s: offset %#x is not aligned to 8", b.Name, b.Offset)
		}
		for j := range b.Regs {
			r := &b.Regs[j]
			k.checkRegister(b, r)
			start, end := b.Offset+r.Offset, b.Offset+r.end()
			if end > b.bar.Size {
				k.add(r.Line, "%s.%s: ends at %#x, BAR %s at %#x", b.Name, r.Name, end, b.Bar, b.bar.Size)
			}
			for _, o := range spans[b.Bar] {
				if start < o.end && o.start < end {
					k.add(r.Line, "%s.%s: overlaps the register of line %d", b.Name, r.Name, o.line)
				}
			}
			spans[b.Bar] = append(spans[b.Bar], span{start, end, r.Line})
		}
	}
}

// end is the offset in the block behind the register and its repetitions.
func (r *register) end() uint64 {
	return r.Offset + (max(r.Count, 1)-1)*r.Stride + r.Width/8
}

func (k *checker) checkRegister(b *block, r *register) {
	full := b.Name + "." + r.Name
	goName := camel(b.Name) + camel(r.Name)
	k.name(r.Line, upperName, r.Name)
	k.ident(r.Line, "Reg"+goName)
	if r.Width != 32 && r.Width != 64 {
		k.add(r.Line, "%s: width %d is neither 32 nor 64", full, r.Width)
		return
	}
	if r.Offset%(r.Width/8) != 0 {
		k.add(r.Line, "%s: offset %#x is not aligned to %d", full, r.Offset, r.Width/8)
	}
	if !slices.Contains(accesses, r.Access) {
		k.add(r.Line, "%s: access %q is none of %q", full, r.Access, accesses)
	}
	k.fits(r.Line, full+": reset", r.Reset, int(r.Width))
	if r.Count != 0 {
		k.ident(r.Line, "Reg"+goName+"Count")
		k.ident(r.Line, "Reg"+goName+"Stride")
		if r.Stride == 0 || r.Stride%(r.Width/8) != 0 {
			k.add(r.Line, "%s: stride %d is not a multiple of %d", full, r.Stride, r.Width/8)
		}
	} else if r.Stride != 0 {
		k.add(r.Line, "%s: a stride without a count", full)
	}
	if len(r.Bits) != 0 {
		if r.Enum != "" {
			k.add(r.Line, "%s: bits and enum exclude each other", full)
		}
		k.checkWord(r.Line, goName, int(r.Width), r.Bits)
	}
	r.enum = k.enumFor(r.Line, r.Enum, int(r.Width))
}
