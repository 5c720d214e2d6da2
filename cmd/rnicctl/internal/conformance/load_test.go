package conformance

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	all, err := Find([]string{goldenDir})
	if err != nil || len(all) < 91 || filepath.Base(all[0]) != "a_walk" {
		t.Fatalf("%d scenarios, %v", len(all), err)
	}
	one, err := Find([]string{goldenDir + "/l_soak", goldenDir + "/a_walk"})
	if err != nil || len(one) != 2 || filepath.Base(one[0]) != "l_soak" {
		t.Fatalf("%v, %v", one, err)
	}
	for _, bad := range [][]string{{t.TempDir()}, {goldenDir + "/absent"}, {goldenDir + "/README.md"}, nil, {goldenDir, t.TempDir()}} {
		if _, err := Find(bad); !errors.Is(err, ErrScenario) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestBadFiles: what a damaged or hostile file gives is an error that names it.
func TestBadFiles(t *testing.T) {
	text, capture, delivered := files(t, "j_drop_middle")
	if _, err := parse(text, capture, delivered); err != nil {
		t.Fatal(err)
	}
	edit := func(old, to string) []byte {
		t.Helper()
		out := bytes.Replace(text, []byte(old), []byte(to), 1)
		if bytes.Equal(out, text) {
			t.Fatalf("%q is not in the scenario", old)
		}
		return out
	}
	for name, c := range map[string]struct {
		text, capture, delivered []byte
		want                     string
	}{
		"cut JSON":      {text[:len(text)/2], capture, delivered, "scenario.json"},
		"no JSON":       {[]byte("\x00\xff"), capture, delivered, "scenario.json"},
		"schema":        {edit(`"schema": 1`, `"schema": 9`), capture, delivered, "schema 9"},
		"name":          {edit(`"scenario": "j_drop_middle"`, `"scenario": "j\u001b[2J"`), capture, delivered, "plain name"},
		"action":        {edit(`"action": "post_recv"`, `"action": "post\u0007"`), capture, delivered, "action"},
		"negative":      {edit(`"qpn": 106`, `"qpn": -1`), capture, delivered, "scenario.json"},
		"QPN":           {edit(`"qpn": 106`, `"qpn": 16777216`), capture, delivered, "24 bits"},
		"float":         {edit(`"qpn": 106`, `"qpn": 1.5`), capture, delivered, "scenario.json"},
		"MTU":           {edit(`"mtu": 1024`, `"mtu": 1000`), capture, delivered, "path.mtu"},
		"IP":            {edit(`"ip": "10.0.0.1"`, `"ip": "fd00::1"`), capture, delivered, "IPv4"},
		"MAC":           {edit(`52:54:00:00:00:0a`, `52:54:00:00:00`), capture, delivered, "mac"},
		"region length": {edit(`"len": 65536`, `"len": 18446744073709551615`), capture, delivered, "bytes"},
		"node":          {edit(`"node": "B"`, `"node": "C"`), capture, delivered, "neither A nor B"},
		"memory region": {edit(`"mr": "dst",
   "offset": 0,
   "len": 4001`, `"mr": "nil",
   "offset": 0,
   "len": 4001`), capture, delivered, "no region"},
		"memory range": {edit(`"offset": 0,
   "len": 4001`, `"offset": 18446744073709551615,
   "len": 4001`), capture, delivered, "outside"},
		"cut capture":      {text, capture[:len(capture)-7], delivered, "capture.pcap"},
		"empty capture":    {text, nil, delivered, "capture.pcap"},
		"no delivered":     {text, capture, nil, "delivered.pcap"},
		"broken delivered": {text, capture, []byte("pcap"), "delivered.pcap"},
	} {
		if _, err := parse(c.text, c.capture, c.delivered); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	dir := t.TempDir()
	for file, b := range map[string][]byte{"scenario.json": text[:100], "capture.pcap": capture} {
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); !errors.Is(err, ErrScenario) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}

// TestUnknown: what the loader takes and a replay does not know fails that
// scenario, and no other.
func TestUnknown(t *testing.T) {
	for name, change := range map[string]func(*Recording){
		"transport": func(r *Recording) { r.Transport = "XRC" },
		"action":    func(r *Recording) { r.Steps[1].Action = "dance" },
		"cq":        func(r *Recording) { r.Steps[2].CQ = "both" },
		"fill rule": func(r *Recording) { r.nodes[sideB].MRs[0].Fill.Rule = "noise" },
	} {
		r := load(t, "a_walk")
		change(r)
		o := options("unknown")
		if s, err := one(t.Context(), &o, r); err != nil || s.Result != Fail || !strings.Contains(s.Why, name) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// TestDamagedFrames: a recorded frame whose ICRC is not its own is not believed.
func TestDamagedFrames(t *testing.T) {
	text, capture, delivered := files(t, "a_walk")
	capture[len(capture)-10] ^= 1
	r, err := parse(text, capture, delivered)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := expect(r); err == nil || !strings.Contains(err.Error(), "recording is damaged") {
		t.Errorf("got %v", err)
	}
}

// TestFramesLost: a capture that lacks a frame, or has one more, fails its own
// scenario and takes no other's result away.
func TestFramesLost(t *testing.T) {
	dir := t.TempDir()
	text, capture, _ := files(t, "a_walk")
	cut := len(capture) - 16 - 62 // record header and the ACK, the last frame
	for name, c := range map[string][]byte{
		"fewer": capture[:cut],
		"more":  append(bytes.Clone(capture), capture[cut:]...),
		"none":  capture[:24],
		"whole": capture,
	} {
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		named := bytes.Replace(text, []byte(`"scenario": "a_walk"`), []byte(`"scenario": "`+name+`"`), 1)
		for file, b := range map[string][]byte{"scenario.json": named, "capture.pcap": c} {
			if err := os.WriteFile(filepath.Join(sub, file), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	o := options("frames-lost")
	o.Dirs = []string{dir}
	report, err := Run(t.Context(), o)
	if err != nil || report.Passed != 1 || report.Failed != 3 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, s := range report.Scenarios {
		if want := map[bool]Result{true: Pass, false: Fail}[s.Name == "whole"]; s.Result != want {
			t.Errorf("%s: %s (%s)", s.Name, s.Result, s.Why)
		} else if want == Fail && !strings.Contains(s.Why, "capture.pcap holds") {
			t.Errorf("%s: %s", s.Name, s.Why)
		}
	}
}

func files(t testing.TB, name string) (text, capture, delivered []byte) {
	t.Helper()
	read := func(file string) []byte {
		b, err := os.ReadFile(filepath.Join(goldenDir, name, file))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return b
	}
	return read("scenario.json"), read("capture.pcap"), read("delivered.pcap")
}

// TestNumbersOf64Bits: addresses and atomic operands keep all their bits.
func TestNumbersOf64Bits(t *testing.T) {
	r := load(t, "f_cas_hit")
	w := r.Steps[0].WRs[0]
	if w.CompareAdd != 1300138406242674913 || w.Swap != 1234605616436508552 || w.RemoteAddr != 35184372088896 {
		t.Errorf("%+v", w)
	}
	r = load(t, "l_soak")
	for i := range r.Steps {
		for _, w := range r.Steps[i].WRs {
			if w.WRID == 1038 && w.Swap != 13733738137791535482 {
				t.Errorf("swap of 1038 is %d", w.Swap)
			}
		}
	}
}

// FuzzParse feeds files of any content to the loader, and plans what it takes.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"a_walk", "j_corrupt", "j_reorder", "i_rnr_exhaust", "i_lkey_after_good", "k_uc_send_drop", "m_ipv6_ud"} {
		text, capture, delivered := files(f, name)
		f.Add(text, capture, delivered)
	}
	f.Fuzz(func(t *testing.T, text, capture, delivered []byte) {
		if len(delivered) == 0 {
			delivered = nil
		}
		r, err := parse(text, capture, delivered)
		if err != nil {
			return
		}
		r.needs()
		x, err := expect(r)
		if err != nil {
			return
		}
		for s := range x.arrive {
			for _, d := range x.arrive[s] {
				if d.frame < 0 || d.frame >= len(x.sent[s]) {
					t.Fatalf("delivery of frame %d of %d", d.frame, len(x.sent[s]))
				}
			}
		}
	})
}
