package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/doctor"
	"rnic/cmd/rnicctl/internal/selftest"
	"rnic/hw"
)

func TestVersion(t *testing.T) {
	o := rnicctl(t, "version", "--json").well(t).object(t, "version")
	if o["contract"] != fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor) {
		t.Errorf("%v", o)
	}
	if r := rnicctl(t, "version").well(t); !strings.HasPrefix(r.out, "rnicctl ") {
		t.Errorf("%q", r.out)
	}
}

// TestMan: a page for each command, reproducible.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	o := rnicctl(t, "man", a, "--json").well(t).object(t, "man")
	rnicctl(t, "man", b).well(t)
	pages := 0
	var count func(*cobra.Command)
	count = func(c *cobra.Command) {
		pages++
		for _, sub := range c.Commands() {
			count(sub)
		}
	}
	count((&app{}).root())
	list := o["pages"].([]any)
	if len(list) != pages {
		t.Errorf("%d pages of %d commands", len(list), pages)
	}
	for _, p := range list {
		one, err := os.ReadFile(p.(string))
		if err != nil {
			t.Fatal(err)
		}
		two, err := os.ReadFile(filepath.Join(b, filepath.Base(p.(string))))
		if err != nil || string(one) != string(two) || !strings.Contains(string(one), ".TH") {
			t.Errorf("%s: %v, the same twice: %v", p, err, string(one) == string(two))
		}
	}
}

// TestCompletion: the script of each shell; bash itself reads its own.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		r := rnicctl(t, "completion", shell).well(t)
		if !strings.Contains(r.out, "rnicctl") {
			t.Errorf("%s: %d bytes", shell, len(r.out))
		}
		if _, err := exec.LookPath("bash"); shell != "bash" || err != nil {
			continue
		}
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(r.out)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("bash does not read it: %v: %s", err, out)
		}
	}
}

// TestSchemasAreUsed: each file in docs/json is a sound schema, names what it describes, and a test here, of
// rnicsim, of the bench or of hardware in the loop holds output to it.
func TestSchemasAreUsed(t *testing.T) {
	files, err := filepath.Glob(schemas + "/*")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, f := range append(mustGlob(t, "*_test.go"), slices.Concat(mustGlob(t, "../../../rnicsim/*_test.go"), mustGlob(t, "../../../../test/bench/*_test.go"), mustGlob(t, "../../../../test/hil/*_test.go"))...) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(b)
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(filepath.Base(f), ".schema.json")
		if !ok {
			t.Errorf("%s is no schema", f)
			continue
		}
		if s := schema(t, name); s.Title == "" || s.Description == "" {
			t.Errorf("%s: no title or description", f)
		}
		if !strings.Contains(tests.String(), `"`+name+`"`) && !strings.Contains(tests.String(), "/"+name+".schema.json") {
			t.Errorf("%s: no test holds output to it", f)
		}
	}
}

func mustGlob(t *testing.T, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(list), err)
	}
	return list
}

// TestSelftest: the command's JSON, text and exit code, with a peer made on soft:, and one stage alone.
func TestSelftest(t *testing.T) {
	sockets(t)
	o := rnicctl(t, "selftest", "--json").well(t).object(t, "selftest")
	for _, s := range o["stages"].([]any) {
		if s := s.(map[string]any); s["result"] != "pass" {
			t.Errorf("%v", s)
		}
	}
	r := rnicctl(t, "selftest", "--stage", "scratch").well(t)
	if strings.Count(r.out, "pass") != 1 || strings.Count(r.out, "not-run") != 11 {
		t.Errorf("%s", r.out)
	}
	o = rnicctl(t, "selftest", "--json", "-d", "soft:st?wire=st", "--peer", "soft:other?wire=elsewhere", "--timeout", "1s").object(t, "selftest")
	last := o["stages"].([]any)[11].(map[string]any)
	if o["passed"] != false || last["result"] != "fail" || last["fix"] == "" {
		t.Errorf("%v", last)
	}
}

// TestDocs: docs/rnicctl.md names each command, each option, each exit code and each error code.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../../../docs/rnicctl.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "rnicctl ")
		if c.Runnable() && len(c.Commands()) == 0 && !strings.Contains(doc, name) {
			t.Errorf("command %q is missing", name)
		}
		for _, m := range regexp.MustCompile(`--([a-z]+)`).FindAllStringSubmatch(c.LocalFlags().FlagUsages(), -1) {
			if m[1] != "help" && !strings.Contains(doc, "--"+m[1]) {
				t.Errorf("%s: option --%s is missing", name, m[1])
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit((&app{}).root())
	for _, check := range doctor.Checks {
		if !strings.Contains(doc, "| "+check+" |") {
			t.Errorf("doctor's check %s is missing", check)
		}
	}
	stairs, err := os.ReadFile("../../../../docs/bring-up.md")
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, stage := range selftest.Names() { // in their order
		i := strings.Index(string(stairs)[at:], "| "+stage+" |")
		if i < 0 {
			t.Errorf("docs/bring-up.md: stage %s is missing, or not in its place", stage)
			continue
		}
		at += i
	}
	for _, c := range classes {
		if !strings.Contains(doc, "`"+c.code+"`") || !strings.Contains(doc, fmt.Sprintf("| %d |", c.exit)) {
			t.Errorf("exit %d, code %s is missing", c.exit, c.code)
		}
	}
}
