package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const golden = "../../../../test/golden"

// copyScenario copies a recorded scenario, with its text changed.
func copyScenario(t *testing.T, name, old, to string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(golden, name))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "scenario.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(b), old, to, 1)
	if changed == string(b) {
		t.Fatalf("%s does not hold %q", file, old)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestConformanceCommand: exit codes, JSON to its schema, and what a failure says.
func TestConformanceCommand(t *testing.T) {
	sockets(t)
	// Sent with another length than was recorded: the first frame differs.
	wrong := copyScenario(t, "b_send_00004", `"len": 4,`, `"len": 3,`)
	run := rnicctl(t, "conformance", "--json", golden+"/a_walk", golden+"/i_recv_too_small", golden+"/k_ud_send", wrong)
	if run.code != exitFound {
		t.Errorf("exit %d, want %d: %s", run.code, exitFound, run.err)
	}
	run.objects(t, "conformance")
	var r struct {
		Scenarios []struct {
			Name, Result, Why string
			Frames            int
			Ruled             []string
			Fields            []struct{ Field, Recorded, Ours string }
		}
		Passed, Failed, Skipped int
	}
	if err := json.Unmarshal([]byte(run.out), &r); err != nil || len(r.Scenarios) != 4 {
		t.Fatalf("%v\n%s", err, run.out)
	}
	if r.Passed != 2 || r.Failed != 1 || r.Skipped != 1 {
		t.Errorf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
	}
	if s := r.Scenarios[0]; s.Name != "a_walk" || s.Result != "pass" || s.Frames != 3 || len(s.Ruled) != 0 {
		t.Errorf("%+v", s)
	}
	if s := r.Scenarios[1]; s.Result != "pass" || len(s.Ruled) != 3 || !strings.Contains(s.Ruled[0], "invalid request") {
		t.Errorf("%+v", s)
	}
	if s := r.Scenarios[2]; s.Result != "skip" || !strings.HasPrefix(s.Why, "needs UD") {
		t.Errorf("%+v", s)
	}
	s := r.Scenarios[3]
	if s.Result != "fail" || !strings.Contains(s.Why, "payload.length recorded 4, ours 3") || len(s.Fields) == 0 {
		t.Errorf("%+v", s)
	}

	run = rnicctl(t, "conformance", wrong)
	if run.code != exitFound || !strings.Contains(run.out, "SCENARIO") || !strings.Contains(run.out, "bth.pad") || !strings.Contains(run.out, "0 passed, 1 failed, 0 skipped") {
		t.Errorf("exit %d:\n%s", run.code, run.out)
	}
	rnicctl(t, "conformance", golden+"/a_walk").well(t)
}

// TestConformanceRefusals: bad usage and files end with 2, saying what to do.
func TestConformanceRefusals(t *testing.T) {
	sockets(t)
	cut := copyScenario(t, "a_walk", `"schema": 1`, `"schema": `)
	for _, c := range []struct {
		args []string
		exit int
		want string
	}{
		{nil, exitUsage, "wants an argument: DIR..."},
		{[]string{t.TempDir()}, exitUsage, "no scenario.json"},
		{[]string{golden + "/absent"}, exitUsage, "absent"},
		{[]string{golden + "/a_walk/scenario.json"}, exitUsage, "scenario.json"},
		{[]string{golden + "/a_walk", cut}, exitUsage, "scenario.json"},
		{[]string{"--gather", "nobody", golden + "/a_walk"}, exitUsage, "--gather"},
		{[]string{"--gather", "host", "--peer", "vfio-user:/absent", golden + "/a_walk"}, exitNoCard, "/absent"},
		{[]string{"-d", "vfio-user:/absent", golden + "/a_walk"}, exitUsage, "--peer"},
		{[]string{"-d", "vfio-user:/absent", "--peer", "vfio-user:/too", golden + "/a_walk"}, exitNoCard, "/absent"},
	} {
		r := rnicctl(t, append([]string{"conformance"}, c.args...)...)
		if r.code != c.exit || !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("%v: exit %d, want %d\n%s%s", c.args, r.code, c.exit, r.out, r.err)
		}
	}
}
