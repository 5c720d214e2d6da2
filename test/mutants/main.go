// Command mutants shows that the rules' tests can fail. For each rule it seeds a defect in the
// source that keeps the rule, without touching the tree, and runs the rule's test, which must
// catch it. It prints the table of rule and mutant, and ends with 1 where one survives, no longer
// fits the source or does not compile, or where a rule has none.
//
// Arguments name the rules to run (G09); without any, all run. With -gate, unless RNIC_FULL=1, one
// mutant of each rule runs: the scale of the gate.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A mutant is one seeded defect.
type mutant struct {
	rule string // G01 to G22, or what the names of the promise's tests begin with
	what string // the defect, in words
	file string // from the root
	old  string // stands once in the file
	new  string
	pkg  string // whose test catches it
	test string // a prefix of the test's name, which names the rule
}

func main() {
	gate := flag.Bool("gate", false, "run one mutant of each rule, unless RNIC_FULL=1")
	flag.Parse()
	chosen := mutants
	if *gate && os.Getenv("RNIC_FULL") != "1" {
		chosen = firsts(mutants)
	}
	survived, err := run(chosen, flag.Args(), os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	case survived > 0:
		fmt.Fprintf(os.Stderr, "mutants: %d not caught\n", survived)
		os.Exit(1)
	}
	if none := without(mutants); flag.NArg() == 0 && len(none) > 0 {
		fmt.Fprintf(os.Stderr, "mutants: no defect is seeded for %s\n", strings.Join(none, ", "))
		os.Exit(1)
	}
}

// firsts is the first mutant of each rule.
func firsts(mutants []mutant) (first []mutant) {
	for _, m := range mutants {
		if !slices.ContainsFunc(first, func(f mutant) bool { return f.rule == m.rule }) {
			first = append(first, m)
		}
	}
	return first
}

// without lists the rules that have no mutant.
func without(mutants []mutant) (rules []string) {
	for n := 1; n <= 22; n++ {
		rule := fmt.Sprintf("G%02d", n)
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.rule == rule }) {
			rules = append(rules, rule)
		}
	}
	return rules
}

// run seeds the mutants of the rules named, and counts those that no test caught.
func run(mutants []mutant, rules []string, out io.Writer) (survived int, err error) {
	if len(rules) > 0 {
		mutants = slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return !slices.Contains(rules, m.rule) })
	}
	if mutants, err = simulated(mutants, out); err != nil {
		return 0, err
	}
	if err := sound(mutants); err != nil {
		return 0, err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tMUTANT\tIN\tTEST\tRESULT\tSECONDS")
	defer w.Flush()
	for i := range mutants {
		m := &mutants[i]
		began := time.Now()
		caught, err := m.run()
		if err != nil {
			return survived, fmt.Errorf("%s, %s: %w", m.rule, m.what, err)
		}
		result := "caught"
		if !caught {
			result = "SURVIVED"
			survived++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f\n", m.rule, m.what, m.file, m.test, result, time.Since(began).Seconds())
	}
	return survived, nil
}

// sound runs the tests without a mutant: one that fails anyway catches nothing.
func sound(mutants []mutant) error {
	tests := map[string][]string{}
	for i := range mutants {
		m := &mutants[i]
		if !slices.Contains(tests[m.pkg], m.test) {
			tests[m.pkg] = append(tests[m.pkg], m.test)
		}
	}
	for pkg, names := range tests {
		out, err := goTest(pkg, names, "")
		if err != nil {
			return fmt.Errorf("%s fails without a mutant: %w\n%s", pkg, err, out)
		}
		for _, n := range names {
			if !bytes.Contains(out, []byte("--- PASS: "+n)) {
				return fmt.Errorf("%s has no test %s that runs", pkg, n)
			}
		}
	}
	return nil
}

// run seeds the mutant and reports whether its test failed. A mutant that does not
// compile is an error: it would be caught by anything.
func (m *mutant) run() (caught bool, err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.seed(dir)
	if err != nil {
		return false, err
	}
	var env []string
	if m.gateware() {
		if env, err = m.simulate(dir); err != nil {
			return false, err
		}
		overlay = ""
	}
	out, err := goTest(m.pkg, []string{m.test}, overlay, env...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false, nil
	case !errors.As(err, &exit):
		return false, err
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return false, fmt.Errorf("the mutant does not compile:\n%s", out)
	}
	return true, nil
}

// seed writes the mutated file and the overlay that puts it in the place of the original.
func (m *mutant) seed(dir string) (overlay string, err error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return "", fmt.Errorf("%q stands %d times in %s, not once; bring the mutant up to date", m.old, n, m.file)
	}
	mutated := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(mutated, bytes.Replace(text, []byte(m.old), []byte(m.new), 1), 0o644); err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: mutated}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o644)
}

// goTest runs the tests whose names begin so.
func goTest(pkg string, names []string, overlay string, env ...string) ([]byte, error) {
	args := []string{"test", "-count=1", "-v", "-timeout", "5m", "-run", "^(" + strings.Join(names, "|") + ")"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if pkg == rtlSim {
		args, env = append(args, "-tags", "rtl", "-timeout", "10m"), append([]string{"CGO_ENABLED=1", rtlLibrary}, env...)
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), env...)
	return cmd.CombinedOutput()
}
