package hw

import (
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// TestOffsets compares the compiler's layout of every structure with card.yaml.
func TestOffsets(t *testing.T) {
	structs := yamlStructs(contractYAML(t))
	if len(structs) != len(overlays) {
		t.Errorf("card.yaml has %d structs, package hw %d", len(structs), len(overlays))
	}
	for name, s := range structs {
		o, ok := overlays[name]
		if !ok {
			t.Errorf("%s has no overlay", name)
			continue
		}
		if uint64(o.typ.Size()) != num(s, "size") {
			t.Errorf("%s: %d bytes, card.yaml has %d", name, o.typ.Size(), num(s, "size"))
		}
		fields := exported(o.typ)
		for _, f := range items(s, "fields") {
			got, ok := fields[squash(text(f, "name"))]
			if !ok {
				t.Errorf("%s.%s has no field in Go", name, text(f, "name"))
				continue
			}
			delete(fields, squash(text(f, "name")))
			_, count, size := typeOf(structs, f)
			if uint64(got.Offset) != num(f, "offset") || uint64(got.Type.Size()) != count*size {
				t.Errorf("%s.%s: offset %d, %d bytes; card.yaml has %d, %d", name, got.Name, got.Offset, got.Type.Size(), num(f, "offset"), count*size)
			}
		}
		for _, f := range fields {
			t.Errorf("%s.%s is not in card.yaml", name, f.Name)
		}
	}
}

// exported gives a structure's exported fields by their squashed names.
func exported(typ reflect.Type) map[string]reflect.StructField {
	m := map[string]reflect.StructField{}
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() {
			m[squash(f.Name)] = f
		}
	}
	return m
}

// method finds a method of a pointer by its squashed name.
func method(t *testing.T, p reflect.Value, name string) reflect.Value {
	t.Helper()
	for i := range p.NumMethod() {
		if squash(p.Type().Method(i).Name) == name {
			return p.Method(i)
		}
	}
	t.Fatalf("%s has no method %s", p.Type(), name)
	return reflect.Value{}
}

// testValue is a number for a field that no other field has, of so many bits.
func testValue(path string, bits uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(path))
	return h.Sum64() >> (64 - bits) // bits is never 0
}

func setNumber(v reflect.Value, n uint64) {
	if v.Kind() == reflect.Bool {
		v.SetBool(n == 1)
		return
	}
	v.SetUint(n)
}

func getNumber(v reflect.Value) uint64 {
	if v.Kind() == reflect.Bool {
		if v.Bool() {
			return 1
		}
		return 0
	}
	return v.Uint()
}

// A filler gives each field and bit field of a structure its test value, in Go and in C alike.
type filler struct {
	t       *testing.T
	structs map[string]plain
	c       strings.Builder
}

func (f *filler) fill(s plain, p reflect.Value, path string) {
	fields := exported(p.Type().Elem())
	for _, y := range items(s, "fields") {
		name := text(y, "name")
		v := p.Elem().FieldByIndex(fields[squash(name)].Index)
		elem, count, size := typeOf(f.structs, y)
		array := strings.Contains(text(y, "type"), "[")
		for i := range count {
			item, at := v, path+".f_"+name
			if array {
				item, at = v.Index(int(i)), fmt.Sprintf("%s[%d]", at, i)
			}
			if nested, ok := f.structs[elem]; ok {
				f.fill(nested, item.Addr(), at)
				continue
			}
			if y["bits"] != nil {
				f.fillBits(y, p, at)
				continue
			}
			bits := size * 8
			if w := num(y, "width"); w != 0 {
				bits = w
			}
			n := testValue(at, bits)
			setNumber(item, n)
			fmt.Fprintf(&f.c, "\t%s = %#xULL;\n", at, n)
		}
	}
}

func (f *filler) fillBits(y plain, p reflect.Value, at string) {
	for _, b := range items(y, "bits") {
		name := text(b, "name")
		width := num(b, "hi") - num(b, "lo") + 1
		n := testValue(at+name, width)
		set, get := method(f.t, p, "set"+squash(name)), method(f.t, p, squash(name))
		arg := reflect.New(set.Type().In(0)).Elem()
		setNumber(arg, n)
		set.Call([]reflect.Value{arg})
		if got := getNumber(get.Call(nil)[0]); got != n {
			f.t.Errorf("%s.%s: set %#x, read %#x", at, name, n, got)
		}
		fmt.Fprintf(&f.c, "\t%s.b_%s = %#xULL;\n", at, name, n)
	}
}

// TestImagesAgainstC fills every field and bit field with a value of its own, through the Go
// overlays and through C structures that are written from card.yaml alone and laid out by gcc,
// and compares the memory images.
func TestImagesAgainstC(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Fatal("gcc is not installed; the gate wants it, for the race detector too")
	}
	m := contractYAML(t)
	structs := yamlStructs(m)
	want := map[string]string{}
	var types, body strings.Builder
	written := map[string]bool{}
	for _, s := range items(m, "structs") {
		cStruct(&types, structs, s, written)
		name := text(s, "name")
		f := &filler{t: t, structs: structs}
		p := reflect.New(overlays[name].typ)
		f.fill(s, p, "x")
		want[name] = hex.EncodeToString(p.MethodByName("AsBytes").Call(nil)[0].Bytes())
		fmt.Fprintf(&body, "{\n\tstruct %s x;\n\tmemset(&x, 0, sizeof x);\n%s\tprint(%q, &x, sizeof x);\n}\n", name, f.c.String(), name)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "card.c")
	program := "#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n" + types.String() + `
static void print(const char *name, const void *p, size_t n) {
	printf("%s ", name);
	for (size_t i = 0; i < n; i++) printf("%02x", ((const unsigned char *)p)[i]);
	printf("\n");
}
int main(void) {
` + body.String() + "return 0;\n}\n"
	if err := os.WriteFile(source, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "card")
	if out, err := exec.Command(gcc, "-Wall", "-Werror", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%.2000s", err, out)
	}
	out, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(want) {
		t.Errorf("the C program printed %d structures, want %d", len(lines), len(want))
	}
	for _, line := range lines {
		name, image, _ := strings.Cut(line, " ")
		if want[name] != image {
			t.Errorf("%s:\nGo %s\nC  %s", name, want[name], image)
		}
	}
}

// cStruct writes a structure in C: fields of natural alignment, the gaps as bytes, bits as
// bit fields, which gcc allocates from the lowest bit on a little-endian host.
func cStruct(w *strings.Builder, structs map[string]plain, s plain, written map[string]bool) {
	name := text(s, "name")
	if written[name] {
		return
	}
	written[name] = true
	for _, f := range items(s, "fields") {
		if elem, _, _ := typeOf(structs, f); structs[elem] != nil {
			cStruct(w, structs, structs[elem], written)
		}
	}
	fmt.Fprintf(w, "struct %s {\n", name)
	next := uint64(0)
	gap := func(end uint64) {
		if end > next {
			fmt.Fprintf(w, "\tuint8_t gap%d[%d];\n", next, end-next)
		}
	}
	for _, f := range items(s, "fields") {
		elem, count, size := typeOf(structs, f)
		gap(num(f, "offset"))
		next = num(f, "offset") + count*size
		ctype := fmt.Sprintf("uint%d_t", size*8)
		dims := ""
		if strings.Contains(text(f, "type"), "[") {
			dims = fmt.Sprintf("[%d]", count)
		}
		switch {
		case structs[elem] != nil:
			ctype = "struct " + elem
		case f["bits"] != nil:
			var bits strings.Builder
			low := uint64(0)
			for _, b := range items(f, "bits") {
				if num(b, "lo") > low {
					fmt.Fprintf(&bits, " %s : %d;", ctype, num(b, "lo")-low)
				}
				fmt.Fprintf(&bits, " %s b_%s : %d;", ctype, text(b, "name"), num(b, "hi")-num(b, "lo")+1)
				low = num(b, "hi") + 1
			}
			if low < size*8 {
				fmt.Fprintf(&bits, " %s : %d;", ctype, size*8-low)
			}
			ctype = "struct {" + bits.String() + " }"
		}
		fmt.Fprintf(w, "\t%s f_%s%s;\n", ctype, text(f, "name"), dims)
	}
	gap(num(s, "size"))
	fmt.Fprintf(w, "};\n_Static_assert(sizeof(struct %s) == %d, \"size\");\n", name, num(s, "size"))
}

// TestReservedZero sets every bit of every structure alone: it is refused exactly where
// card.yaml names nothing.
func TestReservedZero(t *testing.T) {
	structs := yamlStructs(contractYAML(t))
	for name, s := range structs {
		mask := definedBits(structs, s)
		p := reflect.New(overlays[name].typ)
		image := p.MethodByName("AsBytes").Call(nil)[0].Bytes()
		zero := p.Interface().(interface{ ReservedZero() bool })
		if !zero.ReservedZero() {
			t.Errorf("%s: zero is refused", name)
		}
		for bit := range len(image) * 8 {
			image[bit/8] = 1 << (bit % 8)
			if defined := mask[bit/8]>>(bit%8)&1 == 1; zero.ReservedZero() != defined {
				t.Errorf("%s: bit %d of byte %#x: ReservedZero is %v, card.yaml defines it: %v", name, bit%8, bit/8, !defined, defined)
			}
			image[bit/8] = 0
		}
	}
}

// TestViews: a view shares the bytes, and is nil where they are too few or not aligned.
func TestViews(t *testing.T) {
	words := make([]uint64, 128)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	for name, o := range overlays {
		size, align := int(o.typ.Size()), o.typ.Align()
		p := reflect.ValueOf(o.view(memory))
		if p.IsNil() {
			t.Errorf("%s: no view of aligned memory", name)
			continue
		}
		image := p.MethodByName("AsBytes").Call(nil)[0].Bytes()
		if len(image) != size || &image[0] != &memory[0] {
			t.Errorf("%s: the view does not lie on the memory", name)
		}
		if !reflect.ValueOf(o.view(memory[:size-1])).IsNil() || !reflect.ValueOf(o.view(nil)).IsNil() {
			t.Errorf("%s: a view of too few bytes", name)
		}
		if align > 1 && !reflect.ValueOf(o.view(memory[1:])).IsNil() {
			t.Errorf("%s: a view of memory that is not aligned", name)
		}
		ring := reflect.ValueOf(o.slice(memory[:len(memory)-1]))
		if n := (len(memory) - 1) / size; ring.Len() != n {
			t.Errorf("%s: a slice of %d, want %d", name, ring.Len(), n)
		} else if n > 1 && ring.Index(1).Addr().Pointer() != uintptr(unsafe.Pointer(&memory[size])) {
			t.Errorf("%s: the slice's second entry does not lie behind the first", name)
		}
		if align > 1 && !reflect.ValueOf(o.slice(memory[1:])).IsNil() {
			t.Errorf("%s: a slice of memory that is not aligned", name)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		v := ViewCQE(memory)
		v.SetPhase(!v.Phase())
		if !v.ReservedZero() || len(v.AsBytes()) != CQESize {
			t.Error("the view is wrong")
		}
	}); n != 0 {
		t.Errorf("a view allocates %v times", n)
	}
}

// TestSettersKeepTheirNeighbours: what does not fit is dropped, and no other bit changes.
func TestSettersKeepTheirNeighbours(t *testing.T) {
	var k KeyEntry
	k.SetTag(0xa5)
	k.SetState(0xff) // two bits
	k.SetType(KeyTypeMW2)
	k.SetAccess(AccessLocalWrite | AccessRemoteRead)
	// 0xa5 | 3<<8 | 1<<12 | 0b101<<16, from the bit positions of card.yaml.
	if k.Valid != 0x000513a5 {
		t.Errorf("valid word %#08x, want 0x000513a5", k.Valid)
	}
	k.SetTag(0)
	if k.Valid != 0x00051300 {
		t.Errorf("valid word %#08x, want 0x00051300", k.Valid)
	}
	w := CQArmWord(0).WithCI(0xfffffff).WithSequence(9).WithArmed(true)
	if w != 0x89ffffff || w.CI() != 0xffffff || w.Sequence() != 9 || !w.Armed() || w.SolicitedOnly() || w.WithArmed(false) != 0x09ffffff {
		t.Errorf("arm word %#08x, want 0x89ffffff", uint32(w))
	}
}

// TestEnums compares names, values and validity with card.yaml.
func TestEnums(t *testing.T) {
	width := map[string]uint{"u8": 8, "u16": 16, "u32": 32, "u64": 64}
	for _, e := range items(contractYAML(t), "enums") {
		name := text(e, "name")
		str, valid := enumText[name], enumValid[name]
		defined := map[uint64]string{}
		all, joined := uint64(0), []string{}
		for _, v := range items(e, "values") {
			n := num(v, "value")
			if e["flags"] == true {
				n = 1 << n
				all |= n
				joined = append(joined, text(v, "name"))
			}
			defined[n] = text(v, "name")
			if got := str(n); got != text(v, "name") {
				t.Errorf("%s %#x is %q, want %q", name, n, got, text(v, "name"))
			}
			if !valid(n) {
				t.Errorf("%s %#x is not valid", name, n)
			}
		}
		for i := range width[text(e, "type")] {
			n := uint64(1) << i
			switch _, ok := defined[n]; {
			case ok:
			case valid(n):
				t.Errorf("%s %#x is valid and not defined", name, n)
			case e["flags"] == true && str(n) != fmt.Sprintf("%#x", n):
				t.Errorf("%s %#x is %q", name, n, str(n))
			case e["flags"] != true && str(n) != fmt.Sprintf("%s(%d)", name, n):
				t.Errorf("%s %d is %q", name, n, str(n))
			}
		}
		if e["flags"] == true && str(all) != strings.Join(joined, "|") {
			t.Errorf("%s %#x is %q", name, all, str(all))
		}
	}
}

// constants gives every constant of card_gen.go whose value is a literal, by its squashed name.
func constants(t *testing.T) map[string]uint64 {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "card_gen.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.INT {
			v, err := strconv.ParseUint(lit.Value, 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			out[squash(spec.Names[0].Name)] = v
		}
		return true
	})
	return out
}

// TestConstants compares constants, sizes, shifts, masks and register offsets with card.yaml.
func TestConstants(t *testing.T) {
	m, got := contractYAML(t), constants(t)
	want := func(name string, v uint64) {
		t.Helper()
		if g, ok := got[squash(name)]; !ok || g != v {
			t.Errorf("%s: %#x (there: %v), want %#x", name, g, ok, v)
		}
	}
	bits := func(word string, of plain) {
		for _, b := range items(of, "bits") {
			mask := uint64(0)
			for i := num(b, "lo"); i <= num(b, "hi"); i++ {
				mask |= 1 << i
			}
			want(word+text(b, "name")+"Shift", num(b, "lo"))
			want(word+text(b, "name")+"Mask", mask)
		}
	}
	for _, c := range items(m, "constants") {
		want(text(c, "name"), num(c, "value"))
	}
	for _, b := range items(m, "bars") {
		want("BAR"+text(b, "name"), num(b, "index"))
		want("BAR"+text(b, "name")+"Size", num(b, "size"))
	}
	for _, s := range items(m, "structs") {
		want(text(s, "name")+"Size", num(s, "size"))
		want(text(s, "name")+"Align", num(s, "align"))
		for _, f := range items(s, "fields") {
			bits(text(s, "name")+text(f, "name"), f)
		}
	}
	for _, b := range items(m, "registers") {
		want("Block"+text(b, "block"), num(b, "offset"))
		for _, r := range items(b, "regs") {
			name := text(b, "block") + text(r, "name")
			want("Reg"+name, num(b, "offset")+num(r, "offset"))
			if r["count"] != nil {
				want("Reg"+name+"Count", num(r, "count"))
				want("Reg"+name+"Stride", num(r, "stride"))
			}
			bits(name, r)
		}
	}
}

// TestRegisters compares the register table with card.yaml.
func TestRegisters(t *testing.T) {
	m := contractYAML(t)
	bar := map[string]int{}
	for _, b := range items(m, "bars") {
		bar[text(b, "name")] = int(num(b, "index"))
	}
	i := 0
	for _, b := range items(m, "registers") {
		for _, y := range items(b, "regs") {
			if i == len(Registers) {
				t.Fatal("the table is too short")
			}
			r := &Registers[i]
			i++
			name := text(b, "block") + "." + text(y, "name")
			if r.FullName() != name || r.BAR != bar[text(b, "bar")] || r.Offset != num(b, "offset")+num(y, "offset") ||
				uint64(r.Width) != num(y, "width") || r.Access.String() != text(y, "access") || r.Reset != num(y, "reset") ||
				uint64(r.Count) != num(y, "count") || r.Stride != num(y, "stride") || (r.Text != nil) != (y["enum"] != nil) {
				t.Errorf("%s is %+v", name, r)
			}
			ys := items(y, "bits")
			if len(ys) != len(r.Fields) {
				t.Errorf("%s has %d fields, want %d", name, len(r.Fields), len(ys))
				continue
			}
			for j, yb := range ys {
				f := &r.Fields[j]
				if f.Name != text(yb, "name") || uint64(f.Hi) != num(yb, "hi") || uint64(f.Lo) != num(yb, "lo") {
					t.Errorf("%s.%s is %+v", name, text(yb, "name"), f)
				}
				v := testValue(name+f.Name, 64)
				if got, want := f.Get(v), v>>num(yb, "lo")%(1<<(num(yb, "hi")-num(yb, "lo")+1)); got != want {
					t.Errorf("%s.%s of %#x: %#x, want %#x", name, f.Name, v, got, want)
				}
			}
		}
	}
	if i != len(Registers) {
		t.Errorf("the table has %d registers, card.yaml %d", len(Registers), i)
	}
}

// TestMTU: the codes of enum ibv_mtu.
func TestMTU(t *testing.T) {
	for code, bytes := range map[MTU]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 0: 0, 6: 0} {
		if code.Bytes() != bytes {
			t.Errorf("MTU %d is %d bytes, want %d", code, code.Bytes(), bytes)
		}
		if m, ok := MTUFor(bytes); bytes != 0 && (m != code || !ok) {
			t.Errorf("%d bytes are MTU %d, %v", bytes, m, ok)
		}
	}
	if _, ok := MTUFor(1500); ok {
		t.Error("1500 is no InfiniBand MTU")
	}
}
