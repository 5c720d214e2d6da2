// Package rules holds the rules of the house as tests: who may import whom, where unsafe and
// assembly stand, and what the tree may contain.
package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strconv"
	"strings"
	"testing"
)

// A room is a part of the tree, by the path under the module, and the rooms that its
// non-test code may import besides itself.
type room struct {
	path string
	uses []string
}

// rooms say what architecture.md says: cmd → driver → queues → hw; driver → vfio and hw/gather; all
// → hw/mmio; softcard → hw and vfio. The longest path that fits decides. A name covers the
// packages below it, "hw" only the contract itself.
var rooms = []room{
	{"hw", nil},
	{"hw/internal", nil},
	{"hw/mmio", nil},
	{"hw/roce", nil},
	{"hw/gather", []string{"hw"}},
	{"hw/rtl", []string{"hw", "hw/gather", "hw/roce"}},
	{"hw/image", []string{"hw"}},
	{"hw/softcard", []string{"hw", "hw/mmio", "hw/roce", "hw/gather", "hw/image", "hw/rtl", "vfio"}},
	{"vfio", []string{"hw/mmio"}},
	{"queues", []string{"hw", "hw/mmio"}},
	{"driver", []string{"queues", "vfio", "hw", "hw/mmio", "hw/gather", "hw/image"}},
	{"cmd", []string{"driver", "vfio", "hw", "hw/roce", "hw/gather", "hw/image", "hw/softcard"}},
	{"docs", []string{"driver", "vfio", "hw", "hw/softcard"}},
	{"test", []string{"cmd", "driver", "queues", "vfio", "hw", "hw/mmio", "hw/roce", "hw/gather", "hw/image", "hw/softcard"}},
}

// roomOf gives the room that a package path under the module belongs to.
func roomOf(pkg string) *room {
	var best *room
	for i := range rooms {
		r := &rooms[i]
		if (pkg == r.path || strings.HasPrefix(pkg, r.path+"/")) && (best == nil || len(r.path) > len(best.path)) {
			best = r
		}
	}
	return best
}

// mayImport says whether the package in directory from may import the one in directory to.
func mayImport(from, to string) bool {
	a, b := roomOf(from), roomOf(to)
	if a == nil || b == nil {
		return false
	}
	if a == b {
		return true
	}
	for _, u := range a.uses {
		if u == b.path {
			return true
		}
	}
	return false
}

func TestImportsGoOneWay(t *testing.T) {
	for _, file := range goFiles(t) {
		f := parse(t, file)
		dir := path.Dir(file)
		for _, spec := range f.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			to, ours := strings.CutPrefix(name, "rnic/")
			switch {
			case name == "C" && !cgoAllowed(t, file):
				t.Errorf("%s: imports C; the module has no cgo but behind the build tag rtl, in hw/rtl", file)
			case name == "unsafe" && !unsafeAllowed(file):
				t.Errorf("%s: imports unsafe, which stands in hw's generated views, hw/mmio and vfio only", file)
			case !ours:
			case strings.HasSuffix(file, "_test.go"):
				// A test may stand on any room but for the two that meet only at the contract.
				if strings.HasPrefix(dir, "hw/softcard") && (to == "driver" || to == "queues") {
					t.Errorf("%s: imports %s; a card's test does not lean on the driver", file, name)
				}
			case !mayImport(dir, to):
				t.Errorf("%s: imports %s, which its room may not", file, name)
			}
		}
	}
}

// cgoAllowed holds for what binds the simulated engine: none of it is built without the tag.
func cgoAllowed(t *testing.T, file string) bool {
	return path.Dir(file) == "hw/rtl" && bytes.HasPrefix(read(t, file), []byte("//go:build rtl\n"))
}

// unsafeAllowed holds for tests as well.
func unsafeAllowed(file string) bool {
	return file == "hw/card_gen.go" || path.Dir(file) == "hw" && strings.HasSuffix(file, "_test.go") ||
		strings.HasPrefix(file, "hw/mmio/") || strings.HasPrefix(file, "vfio/")
}

// TestRulesBite: the table refuses what architecture.md forbids.
func TestRulesBite(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"driver", "queues", true}, {"driver", "vfio", true}, {"driver", "hw/gather", true}, {"queues", "hw", true},
		{"hw/softcard", "vfio/vfiouser", true}, {"hw/softcard/soft", "hw/softcard", true}, {"queues", "hw/mmio", true},
		{"cmd/rnicctl", "driver", true}, {"test/gate", "driver", true},
		{"hw/softcard", "driver", false}, {"hw/softcard/soft", "queues", false}, {"driver", "hw/softcard", false},
		{"hw/rtl", "hw/roce", true}, {"hw/rtl", "hw/softcard", false}, {"driver", "hw/rtl", false},
		{"driver", "hw/softcard/soft", false}, {"queues", "driver", false}, {"queues", "vfio", false}, {"vfio", "hw", false},
		{"vfio", "driver", false}, {"hw", "vfio", false}, {"hw/gather", "hw/softcard", false}, {"hw/gather", "vfio", false},
		{"hw/roce", "queues", false}, {"cmd/rnicctl", "queues", false}, {"hw/mmio", "hw", false}, {"elsewhere", "hw", false},
	} {
		if got := mayImport(c.from, c.to); got != c.want {
			t.Errorf("mayImport(%s, %s) = %v", c.from, c.to, got)
		}
	}
}

// TestAssemblyStandsInTwoRooms: accesses and barriers, and the CRC of a long payload.
func TestAssemblyStandsInTwoRooms(t *testing.T) {
	for _, file := range files(t) {
		if strings.HasSuffix(file, ".s") && path.Dir(file) != "hw/mmio" && file != "hw/roce/crc_amd64.s" {
			t.Errorf("%s: assembly stands in hw/mmio and hw/roce/crc_amd64.s only", file)
		}
	}
}

// kindTexts are what a branch on the kind of card would compare with.
var kindTexts = []string{"soft:", "soft", "vfio-user:", "vfio-user", "rnicsim"}

// TestNoBranchOnTheKindOfCard: driver, queues and hw/gather meet a card only at the contract and at
// vfio.Device. They name no address scheme and compare no engine kind.
func TestNoBranchOnTheKindOfCard(t *testing.T) {
	for _, file := range goFiles(t) {
		r := roomOf(path.Dir(file)).path
		if strings.HasSuffix(file, "_test.go") || r != "driver" && r != "queues" && r != "hw/gather" {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "../../"+file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, why := range branchesOnKind(f) {
			t.Errorf("%s: %s", file, why)
		}
	}
}

// branchesOnKind looks for the texts of kindTexts and for values of hw.Engine.
func branchesOnKind(f *ast.File) []string {
	var found []string
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(n.Value)
			for _, k := range kindTexts {
				if err == nil && n.Kind == token.STRING && s == k {
					found = append(found, "names the card kind "+n.Value)
				}
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "hw" && strings.HasPrefix(n.Sel.Name, "Engine") && n.Sel.Name != "Engine" {
				found = append(found, "names the engine kind hw."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

func TestBranchOnTheKindIsFound(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package driver
func f(d Device) bool { return d.Info().Backend == "vfio-user" || e == hw.EngineGo }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := branchesOnKind(f); len(got) != 2 {
		t.Errorf("found %q, want the text and the engine", got)
	}
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../"+file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
