package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// harmless is a mutant that changes nothing that a test could see.
var harmless = mutant{rule: "G06", what: "harmless", file: segGo, pkg: gather, test: "TestG06_",
	old: "const (\n\t// MaxSegments is", new: "const (\n\t// MaxSegments, still, is"}

func atRoot(t *testing.T) {
	t.Helper()
	if err := os.Chdir("../.."); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chdir("test/mutants"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSurvivorsAreReported(t *testing.T) {
	atRoot(t)
	var out bytes.Buffer
	survived, err := run([]mutant{harmless}, nil, &out)
	if err != nil || survived != 1 || !strings.Contains(out.String(), "SURVIVED") {
		t.Errorf("%d survived, %v\n%s", survived, err, out.String())
	}
}

func TestBadMutantsAreErrors(t *testing.T) {
	atRoot(t)
	stale, broken, untested := harmless, harmless, harmless
	stale.old = "this text is not in the file"
	broken.new = "const this does not compile ("
	untested.test = "TestG06_NoSuchTest"
	for _, c := range []struct {
		m    mutant
		want string
	}{{stale, "stands 0 times"}, {broken, "does not compile"}, {untested, "has no test TestG06_NoSuchTest"}} {
		if _, err := run([]mutant{c.m}, nil, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestTheTable: each mutant's test names its rule, and its text is still in the source.
func TestTheTable(t *testing.T) {
	atRoot(t)
	for _, m := range mutants {
		if !strings.HasPrefix(m.test, "Test"+m.rule+"_") || m.old == m.new || m.what == "" || m.rule == "" {
			t.Errorf("%+v", m)
		}
		if _, err := m.seed(t.TempDir()); err != nil {
			t.Errorf("%s, %s: %v", m.rule, m.what, err)
		}
	}
	if none := without(mutants[1:2]); len(none) != 21 || none[0] != "G02" {
		t.Errorf("with a mutant of G01 only, none for %v", none)
	}
}
