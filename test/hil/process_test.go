package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests run runners as processes, on cards of rnicsim, and in a virtual machine on PCI functions: test/vm/legs has
// this same binary there. TestProcesses_ names what the gate runs in a line of its own.

// TestProcesses_Run: all suites pass on two soft cards, with all that a run leaves.
func TestProcesses_Run(t *testing.T) {
	names := suiteNames()
	if guestCards() != nil && os.Getenv("RNIC_FULL") != "1" {
		names = names[:3] // the others are verify again, and every request takes its time there
	}
	l := newLab(t, "suites: ["+strings.Join(names, ", ")+"]")
	text, err := os.ReadFile(l.inventory)
	if err != nil {
		t.Fatal(err)
	}
	l.write(string(text) + "    suites: [selftest]\n") // right's: the other end of the same wire
	art := filepath.Join(l.dir, "art")
	p := l.hil("run", "--artefacts", art).ends(exitOK)
	r := results(t, art)
	if len(r.Cards) != 2 || r.Exit != 0 {
		t.Fatalf("%+v", r)
	}
	for _, c := range r.Cards {
		if want := map[string]int{"left": len(names), "right": 1}[c.Card]; c.Result != "pass" || len(c.Suites) != want || len(c.Artefacts) != 0 {
			t.Errorf("%+v", c)
		}
		if c.Identity == nil || c.Identity.Engine != "go" || len(c.Health) != 2 || c.Health[0].When != "before" || c.Health[1].When != "after" || c.Health[1].Counters == nil {
			t.Errorf("%s: identity %+v, health %+v", c.Card, c.Identity, c.Health)
		}
		for i := range c.Suites {
			if s := &c.Suites[i]; s.Result != passed || s.count(passed) == 0 || s.count(passed) != len(s.Cases) {
				t.Errorf("%s: %+v", c.Card, s)
			}
		}
	}
	// The wire of the selftest was not skipped: the peer was used.
	if s := r.Cards[0].Suites[0]; s.Suite != "selftest" || len(s.Cases) != 12 || s.Cases[11].Name != "wire" {
		t.Errorf("%+v", s)
	}
	t.Logf("%s", p.out.String())
	if out := p.out.String(); !strings.HasPrefix(out, "CARD ") || strings.Count(out, "pass") != len(names)+1+2 {
		t.Errorf("table:\n%s", out)
	}
	if out := l.hil("status").ends(exitOK).out.String(); strings.Count(out, "free") != 2 || strings.Count(out, "pass 20") != 2 {
		t.Errorf("status:\n%s", out)
	}
}

// TestProcesses_Identity: a card that is not the one of the inventory is refused, put aside, and stays so until a
// person lifts it; what has it for a peer is refused too.
func TestProcesses_Identity(t *testing.T) {
	l := newLab(t, "")
	text, err := os.ReadFile(l.inventory)
	if err != nil {
		t.Fatal(err)
	}
	l.write(strings.Replace(string(text), "engine: go", "engine: fpga", 1)) // left's
	art := filepath.Join(l.dir, "art")
	l.hil("run", "--card", "left", "--artefacts", art).ends(exitFailed)
	c := results(t, art).Cards[0]
	if c.Result != "refused" || !strings.Contains(c.Why, "engine is go, the inventory says fpga") || len(c.Quarantined) != 1 || c.Suites[0].Result != notRun {
		t.Fatalf("%+v", c)
	}
	if out := l.hil("status").ends(exitOK).out.String(); !strings.Contains(out, "quarantined") {
		t.Errorf("status:\n%s", out)
	}

	l.write(string(text)) // right again, and still put aside
	art = filepath.Join(l.dir, "art2")
	l.hil("run", "--suite", "selftest", "--artefacts", art).ends(exitFailed)
	for _, c := range results(t, art).Cards {
		if c.Result != "refused" || !strings.Contains(c.Why, "hil release left") || c.Suites[0].Result != notRun {
			t.Errorf("%+v", c)
		}
	}
	l.hil("release", "left").ends(exitOK)
	l.hil("run", "--card", "left", "--suite", "selftest").ends(exitOK)
}

// TestProcesses_TwoRunners: one waits until the other is done, and one that may not wait so long names it.
func TestProcesses_TwoRunners(t *testing.T) {
	l := newLab(t, "timeouts: {wait: 1s}")
	first := l.hil("run", "--suite", "conformance,verify,bench", "--card", "right")
	first.says("right: conformance")
	// Stopped in mid-run it still has the card, and its lease is renewed no more.
	l.stop(first)
	second := l.hil("run", "--suite", "selftest", "--card", "left", "--artefacts", filepath.Join(l.dir, "art"))
	second.says("left: waiting for")
	second.ends(exitHeld)
	if c := results(t, filepath.Join(l.dir, "art")).Cards[0]; c.Result != "unavailable" || c.Exit != exitHeld || !strings.Contains(c.Why, "pid ") {
		t.Errorf("%+v", c)
	}
	third := l.hil("run", "--suite", "selftest", "--card", "right") // may wait for 10 min
	third.says("right: waiting for")
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	first.ends(exitOK)
	third.ends(exitOK)
}

// TestProcesses_Killed: the lease of a killed runner is there, keeps the next runner away until its time has passed,
// and no longer.
func TestProcesses_Killed(t *testing.T) {
	l := newLab(t, "")
	first := l.hil("run", "--suite", "conformance", "--card", "left")
	first.says("left: conformance")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	inv, err := readInventory(l.inventory)
	if err != nil {
		t.Fatal(err)
	}
	at, err := inv.leases(process{}).look(inv.Cards["left"].Address)
	if err != nil || at == nil || at.Holder.PID != first.Process.Pid {
		t.Fatalf("%+v, %v", at, err)
	}
	second := l.hil("run", "--suite", "selftest", "--card", "left", "--artefacts", filepath.Join(l.dir, "art"))
	second.ends(exitOK)
	r := results(t, filepath.Join(l.dir, "art"))
	if taken := r.Started.Add(time.Duration(r.Cards[0].Waited * float64(time.Second))); taken.Before(at.Until) {
		t.Errorf("taken at %v, before its end at %v", taken, at.Until)
	}
	if r.Started.Before(at.Until) != strings.Contains(second.log.String(), "left: waiting for") {
		t.Errorf("began at %v, the lease ended at %v:\n%s", r.Started, at.Until, second.log.String())
	}
}

// TestProcesses_Interrupted: it ends soon, with 130, and gives back what it has.
func TestProcesses_Interrupted(t *testing.T) {
	l := newLab(t, "")
	p := l.hil("run", "--suite", "conformance,verify", "--artefacts", filepath.Join(l.dir, "art"))
	p.says("left: conformance")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.ends(exitInterrupted)
	for _, c := range results(t, filepath.Join(l.dir, "art")).Cards {
		if c.Result != "interrupted" || c.Quarantined != nil {
			t.Errorf("%+v", c)
		}
	}
	if out := l.hil("status").ends(exitOK).out.String(); strings.Count(out, "free") != 2 {
		t.Errorf("status:\n%s", out)
	}
}

// TestProcesses_CardsDie: a card that dies in mid-suite ends the run with a failure and is put aside: opening it
// again does not help.
func TestProcesses_CardsDie(t *testing.T) {
	if guestCards() != nil {
		t.Skip("the cards' process is on the other side of the virtual machine: test/vm/legs kills it")
	}
	l := newLab(t, "")
	p := l.hil("run", "--suite", "conformance,verify", "--card", "left", "--artefacts", filepath.Join(l.dir, "art"))
	p.says("left: conformance")
	if err := l.sim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.ends(exitFailed)
	c := results(t, filepath.Join(l.dir, "art")).Cards[0]
	if c.Result != "fail" || len(c.Quarantined) != 1 || c.Suites[0].Result != failed || c.Suites[1].Result != notRun {
		t.Errorf("%+v", c)
	}
}

// TestProcesses_Held: a program that has the card without a lease is named, and is nobody's failure.
func TestProcesses_Held(t *testing.T) {
	l := newLab(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if isPCI(l.left) {
		l.rnicctl("bind", l.left)
		defer l.rnicctl("unbind", l.left)
	}
	holder := openCard(ctx, t, l.left)
	defer holder.Close()
	l.hil("run", "--card", "left", "--artefacts", filepath.Join(l.dir, "art")).ends(exitHeld)
	if c := results(t, filepath.Join(l.dir, "art")).Cards[0]; c.Result != "unavailable" || !strings.Contains(c.Why, "held by pid ") || c.Quarantined != nil {
		t.Errorf("%+v", c)
	}
}
