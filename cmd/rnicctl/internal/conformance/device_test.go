package conformance

import (
	"strings"
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
func TestRecordedScenariosOnSoftCards(t *testing.T) {
	o := options("recorded")
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
	o := options("made")
	for name, r := range madeScenarios(t) {
		s, err := one(t.Context(), &o, r)
		if err != nil {
			t.Fatal(err)
		}
		if s.Result != Pass || s.Frames != len(r.capture) {
			t.Errorf("%s: %s after %d of %d frames: %s", name, s.Result, s.Frames, len(r.capture), s.Why)
		}
	}
}
