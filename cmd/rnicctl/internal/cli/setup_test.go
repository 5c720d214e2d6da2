package cli

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/cmd/rnicctl/internal/doctor"
	"rnic/hw"
	"rnic/vfio"
	"rnic/vfio/pcidev"
	"rnic/vfio/pcidev/pcitest"
)

const board = "0000:03:00.0"

// machine has a card of the contract on the driver xdma, in a group of its own.
func machine(t *testing.T) *pcitest.Machine {
	t.Helper()
	sockets(t)
	t.Setenv(pcidev.IDsVariable, "")
	m := pcitest.New(t)
	m.Driver("xdma", "10ee:7264")
	m.Add(pcitest.Function{Addr: board, Vendor: hw.PCIVendorID, Device: hw.PCIDeviceID, Driver: "xdma", Group: 17, ResetMethods: "flr bus"})
	return m
}

// on runs rnicctl on a machine.
func on(t *testing.T, m *pcitest.Machine, args ...string) result {
	t.Helper()
	return rnicctlOn(t.Context(), m.Tree(), args...)
}

// TestBind: before and after, in text and JSON; a dry run shows the steps and does none.
func TestBind(t *testing.T) {
	m := machine(t)
	r := on(t, m, "bind", board, "--dry-run").well(t)
	if m.Bound(board) != "xdma" || !strings.Contains(r.out, "nothing was changed") || !strings.Contains(r.out, "driver_override") {
		t.Errorf("dry run: driver %q\n%s", m.Bound(board), r.out)
	}
	r = on(t, m, "bind", "03:00.0").well(t)
	if m.Bound(board) != "vfio-pci" || !strings.Contains(r.out, "ADDRESS") || !strings.Contains(r.out, "xdma") || !strings.Contains(r.out, "vfio-pci") {
		t.Errorf("driver %q\n%s", m.Bound(board), r.out)
	}
	if r := on(t, m, "bind", board).well(t); !strings.Contains(r.out, "nothing to do") {
		t.Errorf("again: %s", r.out)
	}
	o := on(t, m, "list", "--json").well(t).object(t, "list")["cards"].([]any)[0].(map[string]any)
	if o["driver"] != "vfio-pci" || o["state"] != "ready" || o["group"] != float64(17) {
		t.Errorf("list %v", o)
	}
	c := on(t, m, "unbind", board, "--json").well(t).object(t, "bind")
	change := c["changes"].([]any)[0].(map[string]any)
	if m.Bound(board) != "xdma" || c["command"] != "unbind" || change["before"] != "vfio-pci" || change["after"] != "xdma" || len(change["steps"].([]any)) != 4 {
		t.Errorf("driver %q, %v", m.Bound(board), c)
	}
}

// TestSetupFailures: exit code, code, message and remedy of what setup refuses or cannot do.
func TestSetupFailures(t *testing.T) {
	for _, c := range []struct {
		name    string
		args    string
		prepare func(*pcitest.Machine)
		exit    int
		code    string
		says    []string
	}{
		{"no argument", "bind", nil, exitUsage, "usage", nil},
		{"no address", "bind card0", nil, exitUsage, "usage", []string{"card0", "0000:03:00.0"}},
		{"no function", "bind 0000:0f:00.0", nil, exitNoCard, "no-card", []string{"0000:0f:00.0"}},
		{"group", "bind " + board, func(m *pcitest.Machine) {
			m.Add(pcitest.Function{Addr: "0000:03:00.1", Driver: "xdma", Group: 17})
		}, exitFound, "failed", []string{"0000:03:00.1 (xdma)", "group 17", "--group"}},
		{"not permitted", "bind " + board, func(m *pcitest.Machine) {
			m.Fail = func(string, string) error { return unix.EACCES }
		}, exitPermission, "not-permitted", []string{board, "root"}},
		{"held", "unbind " + board, func(m *pcitest.Machine) {
			if _, err := m.Tree().Bind(t.Context(), []string{board}, pcidev.Options{}); err != nil {
				t.Fatal(err)
			}
			m.Hold(4711, "pump", "/dev/vfio/17")
		}, exitHeld, "held", []string{"4711"}},
		{"rung", "reset --max roof " + board, nil, exitUsage, "usage", []string{"roof"}},
		{"reset held", "reset " + board, func(m *pcitest.Machine) {
			if _, err := m.Tree().Bind(t.Context(), []string{board}, pcidev.Options{}); err != nil {
				t.Fatal(err)
			}
			m.Hold(4711, "pump", "/dev/vfio/17")
		}, exitHeld, "held", []string{"4711"}},
		{"IDs", "list", func(m *pcitest.Machine) { m.File("etc/rnic/pci.ids", "# mine\nboard\n") }, exitUsage, "usage", []string{"pci.ids:2", "board"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(t)
			if c.prepare != nil {
				c.prepare(m)
			}
			r := on(t, m, append(strings.Fields(c.args), "--json")...)
			e := r.object(t, "error")["error"].(map[string]any)
			if r.code != c.exit || e["code"] != c.code || e["fix"] == "" {
				t.Errorf("exit %d, %v", r.code, e)
			}
			for _, s := range c.says {
				if !strings.Contains(e["message"].(string)+e["fix"].(string), s) {
					t.Errorf("%v does not say %q", e, s)
				}
			}
		})
	}
}

// TestReset: the ladder's table and JSON, and exit 1 where no rung helps.
func TestReset(t *testing.T) {
	m := machine(t)
	r := on(t, m, "reset", board).well(t)
	if lines := strings.Split(r.out, "\n"); strings.Join(strings.Fields(lines[0]), " ") != "RUNG RESULT TIME" || !strings.HasPrefix(lines[1], "function  ok") {
		t.Errorf("%s", r.out)
	}
	m.Fail = func(path, _ string) error {
		if filepath.Base(path) == "reset" {
			return unix.ENOTTY
		}
		return nil
	}
	r = on(t, m, "reset", board, "--max", "bus", "--json")
	o := r.object(t, "reset")
	if rungs := o["rungs"].([]any); r.code != exitFound || o["reset"] != false || rungs[1].(map[string]any)["result"] != "failed" || rungs[2].(map[string]any)["result"] != "not-run" {
		t.Errorf("exit %d, %v", r.code, o)
	}
	if r = on(t, m, "reset", board); r.code != exitOK || !strings.Contains(r.out, "function failed: ") {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
	if m.Bound(board) != "xdma" {
		t.Errorf("after a rescan its driver is %q", m.Bound(board))
	}
}

// TestOwnIDs: a board whose IDs are in the machine's file is a card, under the name given there.
func TestOwnIDs(t *testing.T) {
	m := machine(t)
	m.Add(pcitest.Function{Addr: "0000:04:00.0", Vendor: 0x1234, Device: 0x5678, Group: 18})
	m.File("etc/rnic/pci.ids", "1234:5678 Bench board\n")
	if err := m.Tree().SetQuarantine("0000:04:00.0", &pcidev.Quarantine{Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	cards := on(t, m, "list", "--json").well(t).object(t, "list")["cards"].([]any)
	if len(cards) != 2 {
		t.Fatalf("%v", cards)
	}
	if c := cards[1].(map[string]any); c["name"] != "Bench board" || c["id"] != "1234:5678" || c["state"] != "quarantined" || c["driver"] != "" {
		t.Errorf("%v", c)
	}
}

// TestDoctor: the report's columns, schema and exit code; --fix shows what it does, does it, and looks again.
func TestDoctor(t *testing.T) {
	m := machine(t)
	if err := m.Tree().Write(m.Path("sys/bus/pci/drivers/xdma/unbind"), board); err != nil {
		t.Fatal(err)
	}
	m.File("proc/self/limits", "Max locked memory 67108864 67108864 bytes\n")
	m.File("proc/interrupts", "0: 1 IR-IO-APIC 2-edge timer\n")
	m.File("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "64\n")
	m.File("etc/udev/rules.d/60-rnic.rules", "")
	m.File("dev/vfio/vfio", "")
	m.File("dev/vfio/17", "")
	sound := func(d *doctor.Doctor) {
		d.Open = func(ctx context.Context, _ string) (vfio.Device, error) { return vfio.Open(ctx, "soft:patient") }
	}
	run := func(args ...string) result {
		var out, err bytes.Buffer
		a := &app{out: &out, err: &err, pci: m.Tree(), patient: sound}
		code := a.main(t.Context(), append([]string{"doctor"}, args...))
		return result{code, out.String(), err.String()}
	}
	r := run()
	if head := strings.Join(strings.Fields(r.out[:strings.Index(r.out, "\n")]), " "); r.code != exitFound || head != "CHECK RESULT VALUE LIMIT FIX" || m.Bound(board) != "" {
		t.Errorf("exit %d, driver %q, heading %q", r.code, m.Bound(board), head)
	}
	results := func(o map[string]any) map[string]string {
		by := map[string]string{}
		for _, f := range o["findings"].([]any) {
			f := f.(map[string]any)
			by[f["check"].(string)] = f["result"].(string)
		}
		return by
	}
	o := run("--json").object(t, "doctor")
	if by := results(o); o["well"] != false || by["not-bound"] != "fail" || by["mapping-limit"] != "fail" || by["iova-width"] != "skip" {
		t.Errorf("%v", o)
	}
	// One repair fails: it says so, and the rest is done.
	m.Fail = func(path, _ string) error {
		if filepath.Base(path) == "dma_entry_limit" {
			return unix.EACCES
		}
		return nil
	}
	r = run("--fix", board)
	if r.code != exitFound || !strings.Contains(r.out, "  rnicctl bind "+board+"\n  done\n") || !strings.Contains(r.out, "failed: ") || m.Bound(board) != "vfio-pci" {
		t.Errorf("exit %d, driver %q\n%s", r.code, m.Bound(board), r.out)
	}
	m.Fail = nil
	o = run("--fix", "--json", "03:00.0").well(t).object(t, "doctor")
	if by := results(o); o["well"] != true || len(o["repairs"].([]any)) != 1 || by["mapping-limit"] != "ok" || by["contract-mismatch"] != "ok" || by["iova-width"] != "warn" {
		t.Errorf("%v", o)
	}
	// A card that is no PCI function, by -d.
	if r := rnicctl(t, "doctor", "-d", "soft:other").well(t); !strings.Contains(r.out, "contract 1.") || strings.Contains(r.out, "iommu-off") {
		t.Errorf("%s", r.out)
	}
	if r := run("0000:0f:00.0", "--json"); r.code != exitNoCard {
		t.Errorf("exit %d", r.code)
	}
}
