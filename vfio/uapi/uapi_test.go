package uapi

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// facts are names with their values: "VFIO_SET_IOMMU" its number, "struct
// vfio_irq_set" its size, "struct vfio_irq_set.count" an offset and a size.
type facts map[string]string

// ours gives what a file of this package says, for an architecture.
func ours(t *testing.T, file, arch string) facts {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	all := []*ast.File{f}
	if file != "vfio.go" {
		g, err := parser.ParseFile(fset, "vfio.go", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	sizes := types.SizesFor("gc", arch)
	cfg := types.Config{Importer: importer.ForCompiler(fset, "source", nil), Sizes: sizes}
	pkg, err := cfg.Check("uapi", fset, all, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := facts{}
	for _, d := range f.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range gen.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					out[n.Name] = pkg.Scope().Lookup(n.Name).(*types.Const).Val().ExactString()
				}
			case *ast.TypeSpec:
				m := cStruct.FindStringSubmatch(gen.Doc.Text())
				if m == nil {
					t.Errorf("%s: the comment names no C structure", s.Name)
					continue
				}
				st := pkg.Scope().Lookup(s.Name.Name).Type().Underlying().(*types.Struct)
				var fields []*types.Var
				for i := range st.NumFields() {
					fields = append(fields, st.Field(i))
				}
				if fields[0].Type().String() != "structs.HostLayout" {
					t.Errorf("%s does not begin with structs.HostLayout", s.Name)
				}
				if !strings.Contains(gen.Doc.Text(), "newer kernels append") && !strings.Contains(gen.Doc.Text(), "newer\nkernels append") {
					out["struct "+m[1]] = fmt.Sprint(sizes.Sizeof(st))
				}
				for i, off := range sizes.Offsetsof(fields) {
					if i > 0 {
						out["struct "+m[1]+"."+cField(fields[i].Name())] = fmt.Sprintf("%d+%d", off, sizes.Sizeof(fields[i].Type()))
					}
				}
			}
		}
	}
	return out
}

var (
	cStruct  = regexp.MustCompile(`is struct (\w+)`)
	humps    = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	reserved = map[string]bool{"iommu_ioas_iova_ranges": true, "iommu_ioas_map": true}
)

func cField(name string) string { return strings.ToLower(humps.ReplaceAllString(name, "${1}_$2")) }

// theirs asks the C compiler for the same names. Those that the headers lack
// are left out.
func theirs(t *testing.T, names []string, flags ...string) facts {
	t.Helper()
	out := facts{}
	for len(names) > 0 {
		var c strings.Builder
		c.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include <linux/vfio.h>\n#if __has_include(<linux/iommufd.h>)\n#include <linux/iommufd.h>\n#endif\nint main(void) {\n")
		for i, n := range names {
			fmt.Fprintf(&c, "#line %d\n", i+1)
			st, field, _ := strings.Cut(n, ".")
			switch {
			case field == "reserved" && reserved[strings.TrimPrefix(st, "struct ")]:
				field = "__reserved"
				fallthrough
			case field != "":
				fmt.Fprintf(&c, "printf(\"%s %%zu+%%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", strings.ReplaceAll(n, " ", "_"), st, field, st, field)
			case strings.HasPrefix(n, "struct "):
				fmt.Fprintf(&c, "printf(\"%s %%zu\\n\", sizeof(%s));\n", strings.ReplaceAll(n, " ", "_"), n)
			default:
				fmt.Fprintf(&c, "printf(\"%s %%lld\\n\", (long long)(%s));\n", n, n)
			}
		}
		c.WriteString("return 0; }\n")
		dir := t.TempDir()
		src, bin := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe")
		if err := os.WriteFile(src, []byte(c.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		cmd := exec.Command("gcc", append(flags, "-fmax-errors=0", "-o", bin, src)...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		cmd.Stderr = &log
		if err := cmd.Run(); err == nil {
			text, err := exec.Command(bin).Output()
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
				n, v, _ := strings.Cut(line, " ")
				out[strings.Replace(n, "struct_", "struct ", 1)] = v
			}
			return out
		}
		lacking := map[string]bool{}
		for _, m := range regexp.MustCompile(`probe\.c:(\d+):\d+: error: (.*)`).FindAllStringSubmatch(log.String(), -1) {
			var line int
			fmt.Sscan(m[1], &line)
			if line < 1 || line > len(names) {
				t.Fatalf("gcc: %s", log.String())
			}
			lacking[names[line-1]] = true
		}
		if len(lacking) == 0 {
			t.Fatalf("gcc: %s", log.String())
		}
		names = slices.DeleteFunc(names, func(n string) bool { return lacking[n] })
	}
	return out
}

func needGCC(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("gcc is missing: ", err)
		}
		t.Skip("gcc is missing: ", err)
	}
}

func compare(t *testing.T, got, want facts, where string) {
	t.Helper()
	for _, n := range slices.Sorted(maps.Keys(want)) {
		if got[n] != want[n] {
			t.Errorf("%s is %s here and %s in %s", n, got[n], want[n], where)
		}
	}
}

// Everything of linux/vfio.h that Debian 12 has is checked against it.
func TestVFIOAgainstTheHeader(t *testing.T) {
	needGCC(t)
	mine := ours(t, "vfio.go", "amd64")
	real := theirs(t, slices.Sorted(maps.Keys(mine)))
	for _, n := range slices.Sorted(maps.Keys(mine)) {
		if real[n] == "" {
			t.Errorf("the header has no %s", n)
		}
	}
	compare(t, mine, real, "linux/vfio.h")
}

// What came later than Debian 12's headers is checked against those that this
// machine has, and against testdata/linux-6.12.txt, which holds what the same
// probe printed with the headers of Linux 6.12.
func TestIommufdAgainstTheHeader(t *testing.T) {
	mine := ours(t, "iommufd.go", "amd64")
	recorded := facts{}
	f, err := os.Open("testdata/linux-6.12.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, v, ok := strings.Cut(s.Text(), " = "); ok {
			recorded[n] = v
		}
	}
	for n := range mine {
		if recorded[n] == "" {
			t.Errorf("testdata has no %s", n)
		}
	}
	compare(t, mine, recorded, "Linux 6.12")
	needGCC(t)
	real := theirs(t, slices.Sorted(maps.Keys(mine)))
	compare(t, mine, real, "this machine's headers")
	for _, n := range slices.Sorted(maps.Keys(mine)) {
		if real[n] == "" {
			t.Logf("not in this machine's headers, compared with the record only: %s", n)
		}
	}
}

// Both architectures lay the structures out alike.
func TestArm64LaysOutAlike(t *testing.T) {
	for _, f := range []string{"vfio.go", "iommufd.go"} {
		compare(t, ours(t, f, "arm64"), ours(t, f, "amd64"), "amd64")
	}
}

func TestCapabilities(t *testing.T) {
	chain := func(n int, at ...uint32) []byte { // capabilities at these places, linked in order
		b := make([]byte, n)
		for i, off := range at {
			b[off] = byte(i + 1)
			if i+1 < len(at) {
				b[off+4] = byte(at[i+1])
			}
		}
		return b
	}
	if c, err := Capabilities(chain(64, 24, 48, 36), 24, 24); err != nil || len(c) != 3 || c[0].ID != 1 || c[2].ID != 3 || len(c[2].Data) != 28 {
		t.Errorf("%v, %v", c, err)
	}
	if c, err := Capabilities(make([]byte, 24), 0, 24); err != nil || c != nil {
		t.Errorf("no chain: %v, %v", c, err)
	}
	cycle := chain(64, 24, 32)
	cycle[36] = 24
	for _, x := range []struct {
		b     []byte
		first uint32
	}{
		{cycle, 24}, {make([]byte, 64), 16}, {make([]byte, 64), 60}, {make([]byte, 64), 64}, {make([]byte, 64), 0xfffffff8}, {make([]byte, 64), 26},
	} {
		if c, err := Capabilities(x.b, x.first, 24); err == nil {
			t.Errorf("first %#x: %d capabilities", x.first, len(c))
		}
	}
}
