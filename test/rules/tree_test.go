package rules

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// topLevel is what may stand at the top: the rooms, and the files of the house.
var topLevel = []string{
	"driver", "vfio", "hw", "queues", "cmd", "bitstream", "test", "docs",
	"go.mod", "go.sum", "README.md", "Makefile", "LICENSE", "CHANGELOG.md", ".ci", ".github", ".gitignore",
}

// files are the tree's files under the root: those that git knows, and new ones that it
// would not ignore.
func files(t *testing.T) []string {
	t.Helper()
	list, err := tree()
	if err != nil {
		t.Fatalf("git ls-files: %v; the rules are tested in a clone", err)
	}
	return list
}

var tree = sync.OnceValues(func() ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-co", "--exclude-standard", "-z")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, f := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat("../../" + f); err == nil { // not deleted
			list = append(list, f)
		}
	}
	return list, nil
})

// goFiles are the Go files of the module; test/external is another one.
func goFiles(t *testing.T) []string {
	return slices.DeleteFunc(slices.Clone(files(t)), func(f string) bool {
		return !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "test/external/")
	})
}

func TestTopLevel(t *testing.T) {
	for _, f := range files(t) {
		if top, _, _ := strings.Cut(f, "/"); !slices.Contains(topLevel, top) {
			t.Errorf("%s: %s may not stand at the top level", f, top)
		}
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// maxLines of a Go file that a person writes.
const maxLines = 600

func TestFilesAreShort(t *testing.T) {
	for _, f := range goFiles(t) {
		text := read(t, f)
		if n := bytes.Count(text, []byte("\n")); n > maxLines && !generated.Match(text) {
			t.Errorf("%s: %d lines; a file has one subject and at most %d lines", f, n, maxLines)
		}
	}
}

// unfinished are words of unfinished work and of places on one machine. They are put together
// here so that this file does not hold them.
var unfinished = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}, "|") + `)\b|/wo` + `rk/|/ho` + `me/|/ro` + `ot/`)

func TestNothingUnfinishedAndNoMachinePaths(t *testing.T) {
	for _, f := range files(t) {
		switch path.Ext(f) {
		case ".go", ".sv", ".yaml", ".yml", ".md", ".sh", ".s", "":
		default:
			continue
		}
		if strings.HasPrefix(f, "test/golden/") {
			continue // recorded elsewhere
		}
		for i, line := range bytes.Split(read(t, f), []byte("\n")) {
			if m := unfinished.Find(line); m != nil {
				t.Errorf("%s:%d: %q", f, i+1, m)
			}
		}
	}
}

func TestEachPackageSaysWhatItIs(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range goFiles(t) {
		dir := path.Dir(f)
		documented[dir] = documented[dir] || packageDoc.Match(read(t, f))
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

var packageDoc = regexp.MustCompile(`(?m)^(//.*|\*/)\npackage `)

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
