package conformance

import (
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

func options(name string) Options {
	return Options{
		AddrA: "soft:" + name + "-a?wire=" + name, AddrB: "soft:" + name + "-b?wire=" + name,
		Open: []driver.Option{driver.WithStatusSocket("")},
	}
}

// TestRecordedScenariosOnSoftCards: the cards do what soft-RoCE did, but for the
// ruled differences; what is skipped is what is not built.
func TestRecordedScenariosOnSoftCards(t *testing.T) { recordedScenarios(t, options("recorded")) }

// TestRecordedScenariosWithHostGather: the same, whoever gathers: cards without an
// engine, and cards whose engine is switched off.
func TestRecordedScenariosWithHostGather(t *testing.T) {
	o := options("hostgather")
	o.AddrA += "&engine=none"
	o.Open = append(o.Open, driver.WithGather(driver.Host))
	recordedScenarios(t, o)
}

func recordedScenarios(t *testing.T, o Options) {
	t.Helper()
	o.Dirs = []string{goldenDir}
	o.Done = func(s ScenarioReport) {
		skip := ""
		switch {
		case strings.HasPrefix(s.Name, "b_send_inv_"):
			skip = "needs memory windows or invalidation"
		case strings.HasPrefix(s.Name, "k_uc_"):
			skip = "needs UC"
		case strings.HasPrefix(s.Name, "k_ud_"), s.Name == "m_ipv6_ud":
			skip = "needs UD"
		}
		if skip != "" && (s.Result != Skip || !strings.HasPrefix(s.Why, skip)) || skip == "" && s.Result != Pass {
			t.Errorf("%s: %s after %d frames: %s", s.Name, s.Result, s.Frames, s.Why)
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Passed+r.Skipped < 91 || r.Skipped > 11 {
		t.Errorf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
	}
}

// TestMadeScenariosOnSoftCards: scenarios that no recording shows.
func TestMadeScenariosOnSoftCards(t *testing.T) {
	for _, gather := range []driver.GatherMode{driver.Card, driver.Host} {
		o := options("made")
		o.Open = append(o.Open, driver.WithGather(gather))
		for name, r := range madeScenarios(t) {
			s, err := one(t.Context(), &o, r)
			if err != nil {
				t.Fatal(err)
			}
			if s.Result != Pass || s.Frames != len(r.capture) {
				t.Errorf("%s, gather mode %d: %s after %d of %d frames: %s", name, gather, s.Result, s.Frames, len(r.capture), s.Why)
			}
		}
	}
}

// TestRecordedScenariosOverVFIOUser replays some of each family on the cards of a
// rnicsim of its own process, on a wire of two slots.
func TestRecordedScenariosOverVFIOUser(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/rnicsim", "rnic/cmd/rnicsim")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sim := exec.CommandContext(t.Context(), dir+"/rnicsim", "--card", "a="+dir+"/a", "--card", "b="+dir+"/b", "--wire-slots", "2")
	out, err := sim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sim.Process.Signal(syscall.SIGTERM)
		if err := sim.Wait(); err != nil {
			t.Errorf("rnicsim: %v", err)
		}
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil { // it tells when it serves
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	o := options("")
	o.AddrA, o.AddrB = "vfio-user:"+dir+"/a", "vfio-user:"+dir+"/b"
	for _, name := range []string{
		"a_walk", "b_send_08192", "b_send_imm_solicited", "c_inline_write", "d_write_multi", "e_read_scatter", "e_read_then_send", "f_cas_hit", "g_maxsge_256",
		"h_ackreq_interval", "h_qp_attrs", "i_bad_rkey", "i_lkey_after_good", "i_rd_atomic_exceed", "i_rnr_exhaust", "j_corrupt", "j_drop_last", "j_reorder", "m_ipv6_send",
	} {
		o.Dirs = append(o.Dirs, goldenDir+"/"+name)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Scenarios {
		if s.Result != Pass {
			t.Errorf("%s: %s after %d frames: %s", s.Name, s.Result, s.Frames, s.Why)
		}
	}
}

// TestSoakWithLossOnSoftCards: completions and memory come out as recorded over a
// wire that loses frames by their number.
func TestSoakWithLossOnSoftCards(t *testing.T) {
	o := options("loss")
	r := madeSoakLoss(t)
	s, err := one(t.Context(), &o, r)
	if err != nil {
		t.Fatal(err)
	}
	if s.Result != Pass || s.Frames <= len(r.capture) {
		t.Errorf("%s after %d frames (%d recorded): %s", s.Result, s.Frames, len(r.capture), s.Why)
	}
	r.MemoryAfter[100].SHA256 = r.MemoryAfter[101].SHA256
	if s, err := one(t.Context(), &o, r); err != nil || s.Result != Fail || !strings.Contains(s.Why, "memory") {
		t.Errorf("other memory: %s, %s, %v", s.Result, s.Why, err)
	}
}
