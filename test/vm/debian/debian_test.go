package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// apt skips a test where Debian's tools are missing; in CI that is a failure.
func apt(t *testing.T) {
	t.Helper()
	for _, p := range []string{"apt-get", "apt-config", "dpkg-deb"} {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("%s is missing", p)
		}
	}
}

func TestPrep_MirrorsOfBothForms(t *testing.T) {
	apt(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sources.list": "deb [arch=amd64] http://one.example/debian bookworm main contrib\n# deb http://comment.example/debian bookworm main\ndeb-src http://source.example/debian bookworm main\n",
		"sources.list.d/two.sources": `Types: deb deb-src
URIs: https://two.example/debian/
Suites: trixie trixie-updates
Components: main

Types: deb
URIs: https://off.example/debian
Suites: trixie
Components: main
Enabled: no

Types: deb
URIs: https://two.example/debian-security
Suites: trixie-security
Components: main
`,
		"sources.list.d/other.list": "deb https://other.example/apt cloud-sdk-bookworm main\ndeb https://another.example/ bookworm stable\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at := func(dir string) []string {
		return []string{"-o", "Dir::Etc=" + dir, "-o", "Dir::Etc::sourcelist=sources.list", "-o", "Dir::Etc::sourceparts=sources.list.d"}
	}
	got, err := Mirrors(t.Context(), at(dir)...)
	if want := []string{"http://one.example/debian/", "https://two.example/debian/"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("mirrors %q, want %q (%v)", got, want, err)
	}
	if got, err := Mirrors(t.Context(), at(t.TempDir())...); err == nil || errors.Is(err, ErrMirrorLacks) {
		t.Errorf("no source at all: %q, %v", got, err)
	}
}

// TestPrep_OnlyTheMirrorsLackIsOne: apt tells a mirror that has not got a suite from one that cannot be reached.
func TestPrep_OnlyTheMirrorsLackIsOne(t *testing.T) {
	apt(t)
	for _, c := range []struct {
		mirror string
		lacks  bool
	}{
		{"file:" + t.TempDir(), true},        // answers, and has nothing
		{"http://127.0.0.1:1/debian", false}, // nobody listens
	} {
		a := &Archive{dir: t.TempDir(), suites: []string{"trixie-backports"}}
		err := a.use(t.Context(), c.mirror)
		if err == nil || errors.Is(err, ErrMirrorLacks) != c.lacks {
			t.Errorf("%s: %v; the mirror's lack is %v", c.mirror, err, !c.lacks)
		}
	}
}

func TestAptEndsWithItsContext(t *testing.T) {
	gone := errors.New("time is up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := output(ctx, "", nil, "sleep", "1000"); !errors.Is(err, gone) {
		t.Errorf("error %v", err)
	}
}

func TestExact(t *testing.T) {
	p := Package{Name: "linux-headers-cloud-amd64", Version: "6.12.95-1~bpo12+1",
		Depends: "linux-base (>= 4.3), linux-headers-6.12.95+deb12-cloud-amd64 (= 6.12.95-1~bpo12+1)"}
	got, err := p.Exact("linux-headers-")
	if want := (Package{Name: "linux-headers-6.12.95+deb12-cloud-amd64", Version: "6.12.95-1~bpo12+1"}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := p.Exact("linux-base"); !errors.Is(err, ErrMirrorLacks) {
		t.Errorf("a relation that is not exact: %v", err)
	}
}

// archiveOf writes a tar archive.
func archiveOf(t *testing.T, files ...tar.Header) *tar.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range files {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = "text of " + h.Name
		}
		h.Size = int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return tar.NewReader(&b)
}

func TestUntar(t *testing.T) {
	dest := filepath.Join(t.TempDir(), "dest")
	err := Untar(archiveOf(t,
		tar.Header{Name: "./usr/bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./usr/bin/program", Typeflag: tar.TypeReg, Mode: 0o755},
		tar.Header{Name: "./usr/lib/a/lib.so", Typeflag: tar.TypeSymlink, Linkname: "../b/lib.so.1"},
		tar.Header{Name: "./usr/lib/hard", Typeflag: tar.TypeLink, Linkname: "./usr/bin/program"},
		tar.Header{Name: "./usr/share/doc/long", Typeflag: tar.TypeReg, Mode: 0o644},
	), dest, Under("usr/bin", "usr/lib"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr/bin/program", "usr/lib/hard"} {
		text, err := os.ReadFile(filepath.Join(dest, name))
		if err != nil || string(text) != "text of ./usr/bin/program" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dest, "usr/bin/program")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("the program cannot be run: %v", err)
	}
	if to, err := os.Readlink(filepath.Join(dest, "usr/lib/a/lib.so")); err != nil || to != "../b/lib.so.1" {
		t.Errorf("link to %q, %v", to, err)
	}
	if _, err := os.Stat(filepath.Join(dest, "usr/share")); !os.IsNotExist(err) {
		t.Errorf("what was not wanted is there: %v", err)
	}
}

// TestPrep_UntarStaysInside: no name and no link gets out of the folder.
func TestPrep_UntarStaysInside(t *testing.T) {
	for name, files := range map[string][]tar.Header{
		"dots":          {{Name: "../outside", Typeflag: tar.TypeReg, Mode: 0o644}},
		"link up":       {{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "up/outside", Typeflag: tar.TypeReg, Mode: 0o644}},
		"absolute link": {{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "TOP"}, {Name: "up/outside", Typeflag: tar.TypeReg, Mode: 0o644}},
		"hard link":     {{Name: "outside", Typeflag: tar.TypeLink, Linkname: "../secret"}},
	} {
		top := t.TempDir()
		if err := os.WriteFile(filepath.Join(top, "secret"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			files[i].Linkname = strings.Replace(files[i].Linkname, "TOP", top, 1)
		}
		if err := Untar(archiveOf(t, files...), filepath.Join(top, "dest"), All); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Stat(filepath.Join(top, "outside")); !os.IsNotExist(err) {
			t.Errorf("%s: a file is outside", name)
		}
		if _, err := os.Stat(filepath.Join(top, "dest/outside")); !os.IsNotExist(err) {
			t.Errorf("%s: a link to what is outside", name)
		}
	}
}
