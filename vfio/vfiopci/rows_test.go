package vfiopci_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each row of the table in docs/vfio.md has a test that exists, or a sentence.
func TestVFIO_RowsAreHeld(t *testing.T) {
	text, err := os.ReadFile("../../docs/vfio.md")
	must(t, err)
	row := regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \| (.+) \|$`)
	name := regexp.MustCompile("`([\\w/]+\\.)?(Test\\w+)`")
	seen := map[string]map[string]bool{}
	n := 0
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if n++; m[1] != fmt.Sprint(n) {
			t.Errorf("row %s comes after row %d", m[1], n-1)
		}
		pkg, held := "", false
		for _, x := range name.FindAllStringSubmatch(m[3], -1) {
			if x[1] != "" {
				pkg = strings.TrimSuffix(x[1], ".")
			}
			if pkg == "" {
				t.Errorf("row %s: %s is in no package", m[1], x[2])
				continue
			}
			if seen[pkg] == nil {
				seen[pkg] = tests(t, pkg)
			}
			if held = true; !seen[pkg][x[2]] {
				t.Errorf("row %s (%s): %s has no %s", m[1], m[2], pkg, x[2])
			}
		}
		if words := strings.Fields(name.ReplaceAllString(m[3], "")); !held && len(words) < 8 {
			t.Errorf("row %s (%s) has neither a test nor a sentence", m[1], m[2])
		}
	}
	if n != 40 {
		t.Errorf("%d rows, want 40", n)
	}
}

// tests are the names of a package's test functions.
func tests(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	must(t, err)
	names := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		must(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}
