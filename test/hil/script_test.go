package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rnic/vfio/pcidev"
)

// These tests have a rnicctl that does as it is told, so that boards can be ill in every way. What rnicctl itself does with
// real functions is tested where it is built.

const bdf = "0000:03:00.0"

const board = `
cards:
  board:
    address: 0000:03:00.0
    identity: {bitstream: 6a09e667f3bcc908bb67ae8584caa73b3c6ef372fe94f82ba54ff53a5f1d36f1, engine: fpga, contract: "1.0"}
    restore: xdma
    suites: [verify]
`

// What a board that is well answers.
const (
	infoOut   = `{"schema":"rnic.info.v1","answered_by":"card","holder":null,"contract":"1.0","engine":"fpga","bitstream_sha256":"6a09e667f3bcc908bb67ae8584caa73b3c6ef372fe94f82ba54ff53a5f1d36f1","port":{"link":"active"}}`
	statsOut  = `{"schema":"rnic.stats.v1","counters":{"dma_faults":0}}`
	stairsOut = `{"schema":"rnic.selftest.v1","passed":true,"stages":[{"stage":"config","result":"pass"},{"stage":"wire","result":"skip","why":"no peer"}]}`
	verifyOut = `{"schema":"rnic.verify.v1","requests":2000,"packets":9000,"mismatches":0}`
)

// What one that is not says.
const (
	illStairs = `{"schema":"rnic.selftest.v1","passed":false,"stages":[{"stage":"config","result":"pass"},{"stage":"bar","result":"fail","why":"CTRL reads as all ones"}]}`
	differs   = `{"schema":"rnic.verify.v1","requests":17,"packets":80,"mismatches":1,"mismatch":{"opcode":"SEND","packet":1,"differences":[{"what":"handover.crc","card":"1","driver":"2"}]}}`
)

func errorOut(code, message string) string {
	return fmt.Sprintf(`{"schema":"rnic.error.v1","error":{"code":%q,"message":%q,"fix":"x"}}`, code, message)
}

// newBoard is a scripted runner of a board whose function has the driver xdma. first are rules before those of a board that is well.
func newBoard(t *testing.T, first ...rule) *scripted {
	t.Helper()
	old := host
	host = pcidev.Under(t.TempDir())
	t.Cleanup(func() { host = old })
	t.Setenv("HIL_TEST_SYS", filepath.Dir(function(bdf)))
	link := filepath.Join(function(bdf), "driver")
	for _, err := range []error{
		os.MkdirAll(function(bdf), 0o755),
		os.Symlink("../drivers/xdma", link),
		os.WriteFile(filepath.Join(function(bdf), "aer_dev_nonfatal"), []byte("Undefined 0\nDLP 0\nUnsupReq 3\nTOTAL_ERR_NONFATAL 3\n"), 0o644),
		os.WriteFile(filepath.Join(function(bdf), "aer_dev_correctable"), []byte("RxErr 17\nTOTAL_ERR_COR 17\n"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return newScripted(t, board, append(first,
		rule{Args: "bind " + bdf, Link: []string{link, "../drivers/vfio-pci"}},
		rule{Args: "unbind " + bdf, Link: []string{link, "../drivers/xdma"}},
		rule{Args: "info -d " + bdf, Out: infoOut},
		rule{Args: "stats -d " + bdf, Out: statsOut},
		rule{Args: "selftest -d " + bdf, Out: stairsOut},
		rule{Args: "verify -d " + bdf, Out: verifyOut},
		rule{Args: "reset " + bdf},
		rule{Args: "regs -d " + bdf, Out: "the registers"},
		rule{Args: "report -o"},
	)...)
}

// driver is the driver that the board's function has.
func boardDriver(t *testing.T) string {
	t.Helper()
	link, err := os.Readlink(filepath.Join(function(bdf), "driver"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(link)
}

// firstWords are the commands, each by its name, of a PCI function's whole run.
func firstWords(list []string) []string {
	var words []string
	for _, l := range list {
		w, rest, _ := strings.Cut(l, " ")
		if _, max, ok := strings.Cut(rest, "--max "); ok {
			w += " " + max
		}
		words = append(words, w)
	}
	return words
}

func TestHIL_BoardIsBoundTestedAndGivenBack(t *testing.T) {
	s := newBoard(t)
	r, code := s.run(t.Context())
	if code != exitOK || r.Cards[0].Result != "pass" {
		t.Fatalf("exit %d, %+v", code, r.Cards[0])
	}
	want := []string{"bind", "info", "selftest", "info", "stats", "verify", "selftest", "info", "stats", "unbind"}
	if got := firstWords(s.called()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if d := boardDriver(t); d != "xdma" {
		t.Errorf("its driver is %s", d)
	}
	if c := r.Cards[0].Health[0].Counters; c["aer_nonfatal_UnsupReq"] != 3 || len(c) != len(errorCounters)+3 {
		t.Errorf("counters %v", c)
	}
}

// TestHIL_BoardIsMended: the ladder is climbed until the card is well, and no further.
func TestHIL_BoardIsMended(t *testing.T) {
	s := newBoard(t,
		rule{Args: "selftest", Times: 3, Out: illStairs, Exit: 1}, // before, after function and bus
	)
	r, code := s.run(t.Context())
	c := r.Cards[0]
	if code != exitOK || c.Result != "pass" || c.Health[0].Result != "mended" || !strings.Contains(c.Health[0].Why, "CTRL reads as all ones") {
		t.Fatalf("exit %d, %+v", code, c)
	}
	var rungs []string
	for _, g := range c.Health[0].Ladder {
		rungs = append(rungs, g.Rung+" "+g.Result)
	}
	if want := []string{"function fail", "bus fail", "rescan pass"}; !slices.Equal(rungs, want) {
		t.Errorf("%q, want %q", rungs, want)
	}
	want := []string{"bind", "info", "selftest", "reset function", "selftest", "reset bus", "selftest", "reset rescan", "selftest", "info", "stats", "verify", "selftest", "info", "stats", "unbind"}
	if got := firstWords(s.called()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestHIL_BoardStaysIll: it is put aside where rnicctl looks for that, given back, and refused from then on.
func TestHIL_BoardStaysIll(t *testing.T) {
	s := newBoard(t,
		rule{Args: "selftest", Out: illStairs, Exit: 1},
		rule{Args: "reset " + bdf + " --from bus --max bus", Exit: 1, Out: `{"schema":"rnic.reset.v1","rungs":[{"rung":"bus","result":"lacks","why":"others are on that bus"}]}`}, // a rung that fails is no reason to stop
	)
	r, code := s.run(t.Context())
	c := r.Cards[0]
	if code != exitFailed || c.Result != "fail" || !slices.Equal(c.Quarantined, []string{"board"}) || len(c.Health[0].Ladder) != 3 || c.Suites[0].Result != notRun {
		t.Fatalf("exit %d, %+v", code, c)
	}
	if why := c.Health[0].Ladder[1].Why; why != "reset: lacks: others are on that bus" {
		t.Errorf("bus: %s", why)
	}
	if d := boardDriver(t); d != "xdma" {
		t.Errorf("its driver is %s", d)
	}
	text, err := os.ReadFile(host.QuarantinePath(bdf))
	if err != nil || !strings.Contains(string(text), "CTRL reads as all ones") || !strings.Contains(string(text), `"by": "hil, `) {
		t.Errorf("%s, %v", text, err)
	}
	before := len(s.called())
	if r, code = s.run(t.Context()); code != exitFailed || r.Cards[0].Result != "refused" || !strings.Contains(r.Cards[0].Why, "hil release board") {
		t.Errorf("exit %d, %+v", code, r.Cards[0])
	}
	if after := s.called(); len(after) != before {
		t.Errorf("a quarantined card was touched: %q", after[before:])
	}
	if err := release(s.inv, []string{"board"}, &s.log); err != nil || s.inv.quarantined(bdf) != nil {
		t.Errorf("not released: %v", err)
	}
}

// TestHIL_BoardSuiteFails: what it leaves is kept, the suite is run once more, and the card's health decides on the rest.
func TestHIL_BoardSuiteFails(t *testing.T) {
	s := newBoard(t, rule{Args: "verify", Times: 1, Out: differs, Exit: 1})
	r, code := s.run(t.Context())
	c := r.Cards[0]
	if code != exitFailed || c.Result != "fail" || !strings.Contains(c.Why, "SEND, packet 1: handover.crc is 1 on the card, 2 in the driver") {
		t.Fatalf("exit %d, %+v", code, c)
	}
	if c.Suites[0].Again != passed {
		t.Errorf("run once more: %q", c.Suites[0].Again)
	}
	if len(c.Health) != 3 || c.Health[1].When != "after verify" || c.Quarantined != nil {
		t.Errorf("health %+v", c.Health)
	}
	for _, want := range []string{"board/verify.log", "board/verify-0.json", "board/verify.regs.json", "board/verify.stats.json"} {
		if !slices.Contains(c.Artefacts, want) {
			t.Errorf("%s is not among %q", want, c.Artefacts)
		}
		if text, err := os.ReadFile(filepath.Join(s.dir, "artefacts", want)); err != nil || len(text) == 0 {
			t.Errorf("%s: %v", want, err)
		}
	}
	log, _ := os.ReadFile(filepath.Join(s.dir, "artefacts/board/verify.log"))
	if !strings.Contains(string(log), "$ rnicctl verify -d "+bdf+" --seed 7 --count 2000") || !strings.Contains(string(log), "handover.crc") {
		t.Errorf("log:\n%s", log)
	}
}

// TestHIL_BoardObstacles: what keeps a board from being tested is no failure of it, has rnicctl's exit code, and
// puts nothing aside.
func TestHIL_BoardObstacles(t *testing.T) {
	for _, c := range []struct {
		what string
		rule rule
		code int
		back bool // what was bound is given back
	}{
		{"no such card", rule{Args: "bind", Out: errorOut("no-card", "there is none"), Exit: 3}, exitNoCard, false},
		{"not permitted", rule{Args: "bind", Out: errorOut("not-permitted", "root only"), Exit: 5}, exitPermission, false},
		{"held", rule{Args: "info", Out: errorOut("held", "pid 17"), Exit: 4}, exitHeld, true},
		{"held, and the holder answers", rule{Args: "info", Out: strings.NewReplacer(`"card"`, `"holder"`, `null`, `{"pid":17,"program":"x"}`).Replace(infoOut)}, exitHeld, true},
		{"no IOMMU", rule{Args: "info", Out: errorOut("not-supported", "no IOMMU"), Exit: 6}, exitLacks, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newBoard(t, c.rule)
			r, code := s.run(t.Context())
			if code != c.code || r.Cards[0].Result != "unavailable" || r.Cards[0].Quarantined != nil {
				t.Errorf("exit %d, %+v", code, r.Cards[0])
			}
			if back := slices.Contains(firstWords(s.called()), "unbind"); back != c.back {
				t.Errorf("given back: %v", back)
			}
		})
	}
}

func TestHIL_BoardIdentity(t *testing.T) {
	for _, c := range []struct {
		what string
		rule rule
		why  string
	}{
		{"another image", rule{Args: "info", Out: strings.Replace(infoOut, "6a09e667", "00000000", 1)}, "bitstream is 00000000f3bcc908"},
		{"no image", rule{Args: "info", Out: strings.Replace(infoOut, "6a09e667f3bcc908bb67ae8584caa73b3c6ef372fe94f82ba54ff53a5f1d36f1", "", 1)}, "bitstream is none, the inventory says 6a09e667"},
		{"another minor version", rule{Args: "info", Out: strings.Replace(infoOut, `"1.0"`, `"1.1"`, 1)}, "contract is 1.1, the inventory says 1.0"},
		{"another major version, which the driver does not open", rule{Args: "info", Out: errorOut("contract-version", "the card speaks 2.0"), Exit: 6}, "the card speaks 2.0"},
		{"after a rescan", rule{}, "engine is go"},
	} {
		t.Run(c.what, func(t *testing.T) {
			rules := []rule{c.rule}
			if c.rule.Args == "" { // the right one at first, and another when it came back
				rules = []rule{{Args: "info", Times: 1, Out: infoOut}, {Args: "selftest", Times: 1, Out: illStairs, Exit: 1}, {Args: "info", Out: strings.Replace(infoOut, "fpga", "go", 1)}}
			}
			s := newBoard(t, rules...)
			r, code := s.run(t.Context())
			got := r.Cards[0]
			if code != exitFailed || got.Result != "refused" || !strings.Contains(got.Why, c.why) || !slices.Equal(got.Quarantined, []string{"board"}) || got.Suites[0].Result != notRun {
				t.Errorf("exit %d, %+v", code, got)
			}
			if boardDriver(t) != "xdma" || s.inv.quarantined(bdf) == nil {
				t.Errorf("driver %s, quarantine %v", boardDriver(t), s.inv.quarantined(bdf))
			}
		})
	}
}

// TestHIL_BoardCounters: a PCIe error that the kernel counted during suites that passed is a failure; so is a card that
// counts errors while nobody sends anything.
func TestHIL_BoardCounters(t *testing.T) {
	s := newBoard(t, rule{Args: "verify", Out: verifyOut, Touch: bdf + "/aer_dev_nonfatal=DLP 1\nUnsupReq 3\n"})
	r, code := s.run(t.Context())
	if c := r.Cards[0]; code != exitFailed || c.Result != "fail" || !strings.HasSuffix(c.Why, "aer_nonfatal_DLP grew from 0 to 1") || c.Quarantined != nil || c.Health[1].Result != mended {
		t.Errorf("exit %d, %+v", code, c)
	}
	s = newBoard(t, rule{Args: "stats", Out: `{"schema":"rnic.stats.v1","counters":{"rx_drop_icrc":4}}`})
	r, code = s.run(t.Context())
	if c := r.Cards[0]; code != exitFailed || c.Result != "fail" || !strings.Contains(c.Why, "rx_drop_icrc is 4 in a card that was reset and left alone") || c.Quarantined == nil {
		t.Errorf("exit %d, %+v", code, c)
	}
}

// TestHIL_BoardGivenBackToAnother: a driver that is not the inventory's is said, though the suites passed.
func TestHIL_BoardGivenBackToAnother(t *testing.T) {
	s := newBoard(t, rule{Args: "unbind"}) // does nothing, and says that all is well
	r, code := s.run(t.Context())
	if c := r.Cards[0]; code != exitFailed || c.Result != "fail" || !strings.Contains(c.Why, "has the driver vfio-pci, the inventory says restore: xdma") {
		t.Errorf("exit %d, %+v", code, c)
	}
}

// TestHIL_BoardThatStays: one that is to have vfio-pci before and after is neither bound nor unbound.
func TestHIL_BoardThatStays(t *testing.T) {
	s := newBoard(t)
	s.inv.Cards["board"].Restore = vfioPCI
	r, code := s.run(t.Context())
	if c := r.Cards[0]; code != exitFailed || !strings.Contains(c.Why, "has the driver xdma") {
		t.Errorf("with another driver: exit %d, %+v", code, c)
	}
	link := filepath.Join(function(bdf), "driver")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../drivers/vfio-pci", link); err != nil {
		t.Fatal(err)
	}
	if r, code = s.run(t.Context()); code != exitOK {
		t.Errorf("exit %d, %+v", code, r.Cards[0])
	}
	if got := firstWords(s.called()); slices.Contains(got, "bind") || slices.Contains(got, "unbind") {
		t.Errorf("%q", got)
	}
}

// TestHIL_BoardInterrupted: an interruption is no illness; the function is given back by a command that is not interrupted.
func TestHIL_BoardInterrupted(t *testing.T) {
	s := newBoard(t, rule{Args: "verify", Sleep: true})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil && !slices.Contains(firstWords(s.called()), "verify") {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	r, code := s.run(ctx)
	if c := r.Cards[0]; code != exitInterrupted || c.Result != "interrupted" || c.Quarantined != nil || boardDriver(t) != "xdma" {
		t.Errorf("exit %d, driver %s, %+v", code, boardDriver(t), c)
	}
}

// TestHIL_BoardWithoutDebugPage: the suites that need what a card lacks are skipped, by what it lacks.
func TestHIL_BoardWithoutDebugPage(t *testing.T) {
	s := newBoard(t, rule{Args: "verify -d " + bdf + " --seed 7 --count 200 --fault", Out: errorOut("not-supported", "use debug page: not supported"), Exit: 6})
	r, code := s.run(t.Context(), "conformance", "faults")
	if code != exitOK {
		t.Fatalf("exit %d, %+v", code, r.Cards[0])
	}
	for _, sr := range r.Cards[0].Suites {
		if sr.Result != skipped || len(sr.Cases) != 1 {
			t.Errorf("%+v", sr)
		}
	}
	if why := r.Cards[0].Suites[1].Cases[0].Why; !strings.Contains(why, "use debug page: not supported") {
		t.Errorf("%s", why)
	}
}

// TestHIL_FaultThatIsNotFound: the suite fails where verification passes a card with a defect in its walk.
func TestHIL_FaultThatIsNotFound(t *testing.T) {
	s := newBoard(t,
		rule{Args: "verify -d " + bdf + " --seed 7 --count 200 --fault short-last", Out: verifyOut},
		rule{Args: "verify -d " + bdf + " --seed 7 --count 200 --fault", Out: differs, Exit: 1})
	r, code := s.run(t.Context(), "faults")
	sr := r.Cards[0].Suites[0]
	if code != exitFailed || sr.count(failed) != 1 || sr.count(passed) < 4 || !strings.HasPrefix(sr.why(), "short-last: the defect was in the card for 200 requests") {
		t.Errorf("exit %d, %+v", code, sr)
	}
}
