package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func sh(name, script string) suite { return suite{name: name, command: []string{"sh", "-c", script}} }

func TestStopsAtTheFirstFailure(t *testing.T) {
	dir := t.TempDir()
	after := filepath.Join(dir, "after")
	var out bytes.Buffer
	err := run(t.Context(), []suite{
		sh("good", "echo fine"),
		sh("bad", "echo what is wrong; exit 3"),
		sh("never", "touch "+after),
	}, nil, filepath.Join(dir, "logs"), &out)
	if err == nil || !strings.Contains(err.Error(), "suite bad: exit status 3") {
		t.Errorf("error %v, want suite bad's", err)
	}
	if got := out.String(); !strings.HasPrefix(got, "ok    good ") || !strings.Contains(got, "FAIL  bad ") || !strings.Contains(got, "what is wrong") {
		t.Errorf("output lacks a suite's line or the failing suite's log:\n%s", got)
	}
	if _, err := os.Stat(after); !os.IsNotExist(err) {
		t.Error("a suite ran after the failing one")
	}
	if log, err := os.ReadFile(filepath.Join(dir, "logs", "good.log")); err != nil || string(log) != "fine\n" {
		t.Errorf("log of suite good: %q, %v", log, err)
	}
}

func TestQuietSuiteMustSayNothing(t *testing.T) {
	s := sh("quiet", "echo file.go")
	s.quiet = true
	if err := run(t.Context(), []suite{s}, nil, t.TempDir(), &bytes.Buffer{}); err == nil {
		t.Error("a quiet suite that printed passed")
	}
}

// TestLimitEndsTheWholeGroup: what a suite started in the background ends with it.
func TestLimitEndsTheWholeGroup(t *testing.T) {
	t.Setenv("RNIC_FULL", "")
	pipe := filepath.Join(t.TempDir(), "pid")
	s := sh("slow", "sleep 1000 & echo $! >"+pipe+"; wait")
	s.limit = 300 * time.Millisecond
	log, err := s.run(context.Background())
	if err == nil || !strings.Contains(err.Error(), "not done in 300ms") {
		t.Fatalf("error %v, log %q", err, log)
	}
	pid, err := os.ReadFile(pipe)
	if err != nil {
		t.Fatal(err)
	}
	// The killed child is reaped by init, or stays a zombie where there is none that reaps.
	for try := 0; ; try++ {
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || bytes.Contains(status, []byte(") Z ")) || bytes.Contains(status, []byte(") X ")) {
			return
		}
		if try == 1000 {
			t.Fatalf("the suite's child still runs: %s", status)
		}
		time.Sleep(10 * time.Millisecond) // the kernel may take its time to end it
	}
}

func TestUnknownSuite(t *testing.T) {
	err := run(t.Context(), suites, []string{"nothing"}, t.TempDir(), &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), `no suite "nothing"`) {
		t.Errorf("error %v", err)
	}
}

func TestSkipsAreCounted(t *testing.T) {
	if got := skips([]byte("=== RUN   TestA\n--- SKIP: TestA (0.00s)\n    --- SKIP: TestB (0.00s)\n")); got != "   2 skipped" {
		t.Errorf("got %q", got)
	}
}

// TestSkippedLegsAreNamedAtTheEnd: by name and reason, and the last line says when only the mirror is why.
func TestSkippedLegsAreNamedAtTheEnd(t *testing.T) {
	leg := func(name, why string) suite {
		return sh("vm", "echo '    legs_test.go:9: leg skipped: "+name+": "+why+"'")
	}
	for _, c := range []struct {
		suites []suite
		last   string
	}{
		{[]suite{leg("TestVM_A/6.12", "no suite trixie: the mirror lacks it")}, "legs skipped: 1, only the mirror lacks what they need\n"},
		{[]suite{leg("TestVM_A/6.12", "the mirror lacks it"), leg("TestVM_A/6.1", "gcc is missing")}, "legs skipped: 2, for the reasons above\n"},
		{[]suite{sh("vm", "echo fine")}, " s\n"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), c.suites, nil, t.TempDir(), &out); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), c.last) {
			t.Errorf("the end is not %q:\n%s", c.last, out.String())
		}
		if strings.Contains(c.last, "skipped: 2") && !strings.Contains(out.String(), "\nskip  TestVM_A/6.12: the mirror lacks it\nskip  TestVM_A/6.1: gcc is missing\n") {
			t.Errorf("a leg is not named:\n%s", out.String())
		}
	}
}
