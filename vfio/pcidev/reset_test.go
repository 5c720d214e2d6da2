package pcidev_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/pcidev"
	"rnic/vfio/pcidev/pcitest"
)

// outcomes gives the ladder's outcomes in a line.
func outcomes(tries []pcidev.Try) string {
	var s []string
	for _, t := range tries {
		s = append(s, string(t.Outcome))
	}
	return strings.Join(s, " ")
}

// TestSET_ResetLadder: the lowest rung that works ends the ladder, --max ends it too, each rung uses its own methods of
// the kernel and no other, and the choice of methods is afterwards as it was.
func TestSET_ResetLadder(t *testing.T) {
	for _, c := range []struct {
		name    string
		methods string
		fails   []string // methods that fail
		from    pcidev.Rung
		max     pcidev.Rung
		want    string
		used    string // methods that the resets were done with
	}{
		{"function", "flr bus", nil, pcidev.RungFunction, pcidev.RungRescan, "ok not-run not-run", "flr"},
		{"two methods", "flr pm", nil, pcidev.RungFunction, pcidev.RungRescan, "ok not-run not-run", "flr pm"},
		{"bus", "flr bus", []string{"flr"}, pcidev.RungFunction, pcidev.RungRescan, "failed ok not-run", "flr,bus"},
		{"rescan", "flr bus", []string{"flr", "bus"}, pcidev.RungFunction, pcidev.RungRescan, "failed failed ok", "flr,bus"},
		{"max function", "flr bus", []string{"flr", "bus"}, pcidev.RungFunction, pcidev.RungFunction, "failed not-run not-run", "flr"},
		{"max bus", "flr bus", []string{"flr", "bus"}, pcidev.RungFunction, pcidev.RungBus, "failed failed not-run", "flr,bus"},
		{"bus alone", "bus", nil, pcidev.RungFunction, pcidev.RungRescan, "lacks ok not-run", "bus"},
		{"from bus", "flr bus", nil, pcidev.RungBus, pcidev.RungRescan, "not-run ok not-run", "bus"},
		{"bus and no other", "flr bus", []string{"bus"}, pcidev.RungBus, pcidev.RungBus, "not-run failed not-run", "bus"},
		{"from rescan", "flr bus", nil, pcidev.RungRescan, pcidev.RungRescan, "not-run not-run ok", ""},
		{"none", "", nil, pcidev.RungFunction, pcidev.RungRescan, "lacks lacks ok", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := pcitest.New(t)
			m.Driver("e1000e", "8086:10d3")
			m.Add(pcitest.Function{Addr: nic, Vendor: 0x8086, Device: 0x10d3, Driver: "e1000e", Group: 17, ResetMethods: c.methods})
			if _, err := m.Tree().Bind(t.Context(), []string{nic}, pcidev.Options{}); err != nil {
				t.Fatal(err)
			}
			dev := "sys/bus/pci/devices/" + nic + "/"
			var used []string
			m.Fail = func(path, text string) error {
				if filepath.Base(path) != "reset" {
					return nil
				}
				by := m.Read(dev + "reset_method")
				used = append(used, by)
				for _, f := range c.fails {
					if by == f {
						return unix.ENOTTY
					}
				}
				return nil
			}
			tries, err := m.Tree().Reset(t.Context(), nic, c.from, c.max, false)
			if err != nil || outcomes(tries) != c.want || strings.Join(used, ",") != c.used {
				t.Errorf("%s by %v, %v; want %s by %s", outcomes(tries), used, err, c.want, c.used)
			}
			if got := m.Read(dev + "reset_method"); got != c.methods {
				t.Errorf("reset_method is %q, was %q", got, c.methods)
			}
			if m.Bound(nic) != "vfio-pci" || m.Read(dev+"driver_override") != "vfio-pci" {
				t.Errorf("afterwards its driver is %q", m.Bound(nic))
			}
			m.Fail = nil
			if _, err := m.Tree().Unbind(t.Context(), []string{nic}, pcidev.Options{}); err != nil || m.Bound(nic) != "e1000e" {
				t.Errorf("unbind after it: %v, driver %q", err, m.Bound(nic))
			}
		})
	}
}

// TestSET_ResetBelievesTheFunction: a reset that the kernel reports as done is not, unless the function answers with its
// own IDs; one that does not come back from a rescan is gone.
func TestSET_ResetBelievesTheFunction(t *testing.T) {
	for _, id := range []string{"\xff\xff\xff\xff", "\x86\x80\x00\x00"} {
		m := pcitest.New(t)
		m.Add(pcitest.Function{Addr: nic, Vendor: 0x8086, Device: 0x10d3, Group: 17, ResetMethods: "flr"})
		config := m.Read("sys/bus/pci/devices/" + nic + "/config")
		m.Fail = func(path, _ string) error {
			if filepath.Base(path) == "reset" {
				m.File("sys/devices/pci0000:00/"+nic+"/config", id+config[4:])
			}
			return nil
		}
		tries, err := m.Tree().Reset(t.Context(), nic, pcidev.RungFunction, pcidev.RungFunction, false)
		if err != nil || tries[0].Outcome != pcidev.Failed || tries[0].Err == nil {
			t.Errorf("%x: %+v, %v", id, tries, err)
		}
	}
	m := pcitest.New(t)
	m.Add(pcitest.Function{Addr: nic, Group: 17})
	m.Fail = func(path, _ string) error {
		if filepath.Base(path) == "rescan" {
			return errSwallow
		}
		return nil
	}
	tree := m.Tree()
	write := tree.Write
	tree.Write = func(path, text string) error {
		if err := write(path, text); err != errSwallow {
			return err
		}
		return nil
	}
	tries, err := tree.Reset(t.Context(), nic, pcidev.RungFunction, pcidev.RungRescan, false)
	if err != nil || tries[2].Outcome != pcidev.Failed || !errors.Is(tries[2].Err, vfio.ErrGone) {
		t.Errorf("%+v, %v", tries, err)
	}
}

// TestSET_ResetRefusals: nothing is reset under a program that uses it, or that the machine uses.
func TestSET_ResetRefusals(t *testing.T) {
	m := pcitest.New(t)
	m.Driver("e1000e")
	m.Add(pcitest.Function{Addr: nic, Vendor: 0x8086, Device: 0x10d3, Driver: "e1000e", Group: 17, ResetMethods: "flr"})
	m.File("sys/devices/pci0000:00/"+nic+"/net/eth7/flags", "0x1003\n")
	m.Link("sys/class/net/eth7", m.Path("sys/devices/pci0000:00/"+nic+"/net/eth7"))
	m.Add(pcitest.Function{Addr: twin, Driver: "vfio-pci", Group: 18, ResetMethods: "flr"})
	m.Hold(4711, "pump", "/dev/vfio/18")
	m.Add(pcitest.Function{Addr: "0000:00:02.0", Class: 0x060400, Group: 19, ResetMethods: "flr"})
	m.Fail = func(path, _ string) error {
		t.Errorf("%s was written", path)
		return nil
	}
	ctx, tree := t.Context(), m.Tree()
	var refused *pcidev.Refused
	if _, err := tree.Reset(ctx, nic, pcidev.RungFunction, pcidev.RungRescan, false); !errors.As(err, &refused) || !strings.Contains(err.Error(), "eth7") {
		t.Errorf("in use: %v", err)
	}
	if _, err := tree.Reset(ctx, twin, pcidev.RungFunction, pcidev.RungRescan, true); !errors.Is(err, vfio.ErrBusy) {
		t.Errorf("held: %v", err)
	}
	if _, err := tree.Reset(ctx, "0000:00:02.0", pcidev.RungFunction, pcidev.RungRescan, true); !errors.As(err, &refused) {
		t.Errorf("bridge: %v", err)
	}
	if _, err := tree.Reset(ctx, nic, pcidev.RungFunction, "roof", false); !errors.Is(err, vfio.ErrInvalid) {
		t.Errorf("rung: %v", err)
	}
	m.Fail = nil
	if tries, err := tree.Reset(ctx, nic, pcidev.RungFunction, pcidev.RungRescan, true); err != nil || tries[0].Outcome != pcidev.OK {
		t.Errorf("forced: %+v, %v", tries, err)
	}
}

// TestQuarantine: a file puts a card aside, whatever is in it.
func TestQuarantine(t *testing.T) {
	m := machine(t)
	tree := m.Tree()
	state := func() pcidev.State {
		t.Helper()
		f, err := tree.Function(nic)
		if err != nil {
			t.Fatal(err)
		}
		return f.State
	}
	if q := tree.Quarantine(nic); q != nil || state() != pcidev.Kernel {
		t.Errorf("%+v, %s", q, state())
	}
	want := pcidev.Quarantine{Reason: "identity disagrees", By: "hil", Since: time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)}
	if err := tree.SetQuarantine(nic, &want); err != nil {
		t.Fatal(err)
	}
	if q := tree.Quarantine(nic); q == nil || *q != want || state() != pcidev.Quarantined {
		t.Errorf("%+v, %s", q, state())
	}
	m.File("run/rnic/quarantine/"+nic+".json", "not JSON")
	if q := tree.Quarantine(nic); q == nil || !strings.Contains(q.Reason, "cannot be read") || state() != pcidev.Quarantined {
		t.Errorf("%+v, %s", q, state())
	}
	for range 2 {
		if err := tree.SetQuarantine(nic, nil); err != nil || state() != pcidev.Kernel {
			t.Errorf("%v, %s", err, state())
		}
	}
}

// TestIDs: a file of one's own boards, and what it may not be.
func TestIDs(t *testing.T) {
	m := machine(t)
	t.Setenv(pcidev.IDsVariable, "")
	if ids, err := m.Tree().IDs(); err != nil || ids != nil {
		t.Errorf("no file: %v, %v", ids, err)
	}
	m.File("etc/rnic/pci.ids", "# my boards\n\n10EE:9038\tLab board, 1st floor\n 1234:11e8\n")
	ids, err := m.Tree().IDs()
	if diff := cmp.Diff([]pcidev.ID{{Vendor: 0x10ee, Device: 0x9038, Name: "Lab board, 1st floor"}, {Vendor: 0x1234, Device: 0x11e8}}, ids); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	t.Setenv(pcidev.IDsVariable, m.Path("nowhere"))
	if _, err := m.Tree().IDs(); err == nil {
		t.Error("the file that the variable names is missing, and that is no error")
	}
	t.Setenv(pcidev.IDsVariable, m.Path("mine"))
	for _, bad := range []string{
		"10ee", "10ee:90380", "10ee:xyz1", "+0ee:9038", "10ee:9038\x1b[2J evil", "10ee:9038 \x1b[2J", "10ee:9038 \xff\xfe", "ffff:ffff", "0000:0001",
		"10ee:9038 " + strings.Repeat("x", 81), strings.Repeat("1234:0001\n", 257), strings.Repeat("#\n", 40000), "# " + strings.Repeat("x", 66000),
	} {
		m.File("mine", "1234:0001\n"+bad+"\n")
		if ids, err := m.Tree().IDs(); err == nil || !strings.Contains(err.Error(), m.Path("mine")) {
			t.Errorf("%.40q: %d IDs, %v", bad, len(ids), err)
		}
	}
}

// FuzzParseIDs: any file gives sound IDs or an error.
func FuzzParseIDs(f *testing.F) {
	f.Add([]byte("# x\n10ee:9038 name\n1234:5678\r\n"))
	f.Add([]byte("10ee:9038\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ids, err := pcidev.ParseIDs(b)
		if err != nil && (len(ids) != 0 || !errors.Is(err, vfio.ErrInvalid)) {
			t.Errorf("%d IDs, %v", len(ids), err)
		}
		for _, id := range ids {
			if id.Vendor == 0 || id.Vendor == 0xffff || len(id.Name) > 80 || strings.ContainsAny(id.Name, "\x00\x1b\n\r") {
				t.Errorf("%+v", id)
			}
		}
	})
}
