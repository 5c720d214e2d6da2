package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatTheFuzzerSays: its lines, as the go command prints them, are understood.
func TestWhatTheFuzzerSays(t *testing.T) {
	m := statusLine.FindStringSubmatch("fuzz: elapsed: 5m0s, execs: 1330646 (2817/sec), new interesting: 53 (total: 260)")
	if len(m) != 3 || m[1] != "1330646" || m[2] != "53" {
		t.Errorf("%q", m)
	}
	m = keptLine.FindStringSubmatch("    Failing input written to testdata/fuzz/FuzzX/5df6fa05b2f7a1e7")
	if len(m) != 2 || m[1] != "testdata/fuzz/FuzzX/5df6fa05b2f7a1e7" {
		t.Errorf("%q", m)
	}
}

// TestHalts: an input that takes 10 s once, as on a busy machine, and passes when it is run again is no finding, and
// leaves no file; the target goes on for the rest of its time.
func TestHalts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module x\n\ngo 1.24\n",
		"x_test.go": "package x\n\nimport (\n\t\"os\"\n\t\"testing\"\n\t\"time\"\n)\n\n" +
			"func FuzzBusy(f *testing.F) {\n\tf.Add([]byte{9})\n\tf.Fuzz(func(t *testing.T, b []byte) {\n" +
			"\t\tif _, err := os.Stat(\"was\"); err != nil && len(b) != 1 {\n\t\t\t_ = os.WriteFile(\"was\", nil, 0o600)\n\t\t\ttime.Sleep(time.Minute)\n\t\t}\n\t})\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	if err := run(context.Background(), nil, 15e9, 1, false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("was"); err != nil {
		t.Fatal("no input took long: the test shows nothing")
	}
	if left, _ := filepath.Glob("testdata/fuzz/*/*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFindsAndKeeps: of a module with a target that fails and one that does not, the one is
// reported with the input that it failed by; both are reduced to what covers the most.
func TestFindsAndKeeps(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module x\n\ngo 1.24\n",
		"x.go":   "package x\n\nfunc F(b []byte) bool {\n\tif len(b) > 2 && b[0] == 1 {\n\t\treturn b[1] == 2\n\t}\n\treturn false\n}\n",
		"x_test.go": "package x\n\nimport \"testing\"\n\nfunc FuzzGood(f *testing.F) {\n\tf.Add([]byte{})\n\tf.Fuzz(func(t *testing.T, b []byte) { F(b) })\n}\n\n" +
			"func FuzzBad(f *testing.F) {\n\tf.Add([]byte{9})\n\tf.Fuzz(func(t *testing.T, b []byte) {\n\t\tif len(b) > 0 && b[0] != 9 {\n\t\t\tt.Error(\"found\")\n\t\t}\n\t})\n}\n",
		".cache/fuzz/corpus/FuzzGood/a": "go test fuzz v1\n[]byte(\"\\x01\\x02\\x03\")\n",
		".cache/fuzz/corpus/FuzzGood/b": "go test fuzz v1\n[]byte(\"\\x01\\x03\\x03\\x03\")\n", // longer, and covers no more
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	if err := run(context.Background(), []string{"FuzzGood"}, 0, 2, true); err != nil {
		t.Fatal(err)
	}
	kept, _ := filepath.Glob("testdata/fuzz/FuzzGood/*")
	if len(kept) != 1 {
		t.Fatalf("kept %v, one input covers all", kept)
	}
	if b, _ := os.ReadFile(kept[0]); !strings.Contains(string(b), `x02`) {
		t.Errorf("kept %q, not the shortest", b)
	}
	err := run(context.Background(), nil, 2e9, 2, false)
	if err == nil || !strings.Contains(err.Error(), "1 of 2 targets") || !strings.Contains(err.Error(), "FuzzBad") {
		t.Errorf("%v", err)
	}
	if bad, _ := filepath.Glob("testdata/fuzz/FuzzBad/*"); len(bad) != 1 {
		t.Errorf("inputs that failed: %v", bad)
	}
	if err := run(context.Background(), []string{"FuzzNone"}, 2e9, 1, false); err == nil || !strings.Contains(err.Error(), "no fuzz target") {
		t.Errorf("%v", err)
	}
}
