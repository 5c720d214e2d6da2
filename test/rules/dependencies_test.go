package rules

import (
	"bufio"
	"bytes"
	"path"
	"strconv"
	"strings"
	"testing"
)

// users says which rooms' programs may contain a module. Tests may import every module of
// go.mod. Each has a page in docs/decisions.
var users = map[string][]string{
	"golang.org/x/sys":                         {"vfio", "hw/roce", "hw/softcard", "driver", "cmd", "test"},
	"go.yaml.in/yaml/v3":                       {"hw/internal", "test"},
	"go.uber.org/zap":                          {"driver", "cmd"},
	"github.com/spf13/cobra":                   {"cmd"},
	"github.com/u-root/u-root":                 {"vfio", "cmd"},
	"github.com/cilium/ebpf":                   {"vfio"},
	"github.com/gopacket/gopacket":             {"hw/roce"},
	"github.com/google/go-cmp":                 nil,
	"github.com/santhosh-tekuri/jsonschema/v6": nil,
}

// moduleOf gives the module of a package, "" where it is not in users.
func moduleOf(pkg string) string {
	for m := range users {
		if pkg == m || strings.HasPrefix(pkg, m+"/") {
			return m
		}
	}
	return ""
}

func TestDependenciesStandWhereTheyBelong(t *testing.T) {
	for _, file := range goFiles(t) {
		for _, spec := range parse(t, file).Imports {
			pkg, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(pkg, "/")
			if !strings.Contains(first, ".") { // the standard library or this module
				continue
			}
			m := moduleOf(pkg)
			if m == "" {
				t.Errorf("%s: imports %s; a dependency needs a line in this test and a page in docs/decisions", file, pkg)
				continue
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			allowed := false
			for _, u := range users[m] {
				allowed = allowed || roomOf(path.Dir(file)).path == u
			}
			if !allowed {
				t.Errorf("%s: imports %s, which stands in %v only", file, pkg, users[m])
			}
		}
	}
}

// TestEachDependencyIsDecided: each module that go.mod requires directly has a page.
func TestEachDependencyIsDecided(t *testing.T) {
	var pages bytes.Buffer
	for _, f := range files(t) {
		if strings.HasPrefix(f, "docs/decisions/") {
			pages.Write(read(t, f))
		}
	}
	s := bufio.NewScanner(bytes.NewReader(read(t, "go.mod")))
	direct := 0
	for s.Scan() {
		fields := strings.Fields(strings.TrimPrefix(s.Text(), "require "))
		if len(fields) != 2 || !strings.Contains(fields[0], ".") { // an indirect one has a comment
			continue
		}
		direct++
		if name := strings.TrimSuffix(fields[0], "/v6"); !bytes.Contains(pages.Bytes(), []byte(name)) {
			t.Errorf("%s has no page in docs/decisions", fields[0])
		}
		if moduleOf(fields[0]) == "" {
			t.Errorf("%s has no line in this test", fields[0])
		}
	}
	if direct == 0 {
		t.Error("no dependency was found in go.mod")
	}
}
