package pcidev_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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

const (
	nic  = "0000:03:00.0"
	twin = "0000:03:00.1"
)

// machine has a two-function card whose functions share a group with the port above them. e1000e and another driver
// know the first; the second has none.
func machine(t *testing.T) *pcitest.Machine {
	m := pcitest.New(t)
	m.Driver("other", "8086:10d3")
	m.Driver("e1000e", "8086:10d3")
	m.Driver("pcieport", "1b36:000c")
	m.Add(pcitest.Function{Addr: "0000:00:02.0", Vendor: 0x1b36, Device: 0x000c, Class: 0x060400, Driver: "pcieport", Group: 17})
	m.Add(pcitest.Function{Addr: nic, Port: "0000:00:02.0", Vendor: 0x8086, Device: 0x10d3, Driver: "e1000e", Group: 17, ResetMethods: "flr bus"})
	m.Add(pcitest.Function{Addr: twin, Port: "0000:00:02.0", Vendor: 0x10ee, Device: 0x7264, Group: 17})
	return m
}

// without gives a snapshot without what a change leaves behind on purpose: the lock, and the folder of records.
func without(s map[string]string) map[string]string {
	for _, p := range []string{"/run/rnic", "/run/rnic/setup.lock", "/run/rnic/bind"} {
		delete(s, p)
	}
	return s
}

// TestSET_BindAndUnbind: a function goes to vfio-pci and gets back the driver that it had, not another that knows it
// too; afterwards nothing is different. The bridge in its group is no hindrance.
func TestSET_BindAndUnbind(t *testing.T) {
	m := machine(t)
	before := m.Snapshot()
	ctx := t.Context()
	c, err := m.Tree().Bind(ctx, []string{"03:00.0"}, pcidev.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c) != 1 || c[0].Address != nic || c[0].Before != "e1000e" || c[0].After != "vfio-pci" || len(c[0].Steps) != 4 {
		t.Errorf("%+v", c)
	}
	if m.Bound(nic) != "vfio-pci" || m.Bound(twin) != "" {
		t.Errorf("bound %q, the other function %q", m.Bound(nic), m.Bound(twin))
	}
	// Again: nothing to do, and what it had is not forgotten.
	if c, err := m.Tree().Bind(ctx, []string{nic}, pcidev.Options{}); err != nil || len(c[0].Steps) != 0 {
		t.Errorf("again: %+v, %v", c, err)
	}
	c, err = m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{})
	if err != nil || c[0].Before != "vfio-pci" || c[0].After != "e1000e" || c[0].Note != "" {
		t.Errorf("unbind: %+v, %v", c, err)
	}
	if diff := cmp.Diff(before, without(m.Snapshot())); diff != "" {
		t.Errorf("not as it was:\n%s", diff)
	}
	// Once more: there is nothing to give back.
	if c, err := m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{}); err != nil || len(c[0].Steps) != 0 || c[0].After != "e1000e" {
		t.Errorf("unbind again: %+v, %v", c, err)
	}
}

// TestSET_BindUnbound: what had no driver has none afterwards, though one would take it; an override that was there
// is there again; a driver that was unloaded meanwhile is loaded again.
func TestSET_BindUnbound(t *testing.T) {
	m := machine(t)
	ctx, tree := t.Context(), m.Tree()
	write := func(path, text string) {
		t.Helper()
		if err := tree.Write(path, text); err != nil {
			t.Fatal(err)
		}
	}
	both := func() {
		t.Helper()
		if _, err := tree.Bind(ctx, []string{nic}, pcidev.Options{}); err != nil {
			t.Fatal(err)
		}
		if m.Bound(nic) != "vfio-pci" {
			t.Fatal("not bound")
		}
	}
	back := func(want string) {
		t.Helper()
		if _, err := tree.Unbind(ctx, []string{nic}, pcidev.Options{}); err != nil {
			t.Fatal(err)
		}
		if got := m.Bound(nic); got != want {
			t.Errorf("driver %q, want %q", got, want)
		}
	}
	write(m.Path("sys/bus/pci/drivers/e1000e/unbind"), nic)
	both()
	back("")
	write(m.Path("sys/bus/pci/devices/"+nic+"/driver_override"), "other")
	write(m.Path("sys/bus/pci/drivers_probe"), nic)
	both()
	m.Unload("other")
	back("other")
	if o := m.Read("sys/bus/pci/devices/" + nic + "/driver_override"); o != "other" {
		t.Errorf("override %q", o)
	}
	if diff := cmp.Diff([]string{"modprobe -- other_mod"}, m.Ran); diff != "" {
		t.Error(diff)
	}
}

// TestSET_DryRun changes nothing, and says what would be done.
func TestSET_DryRun(t *testing.T) {
	m := machine(t)
	m.Unload("vfio-pci")
	before := m.Snapshot()
	ctx := t.Context()
	c, err := m.Tree().Bind(ctx, []string{nic}, pcidev.Options{DryRun: true, Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	dev := m.Path("sys/bus/pci/devices/" + nic)
	want := []string{
		"modprobe vfio-pci", "write " + m.Path("run/rnic/bind/"+nic+".json"), "echo vfio-pci > " + dev + "/driver_override",
		"echo " + nic + " > " + dev + "/driver/unbind", "echo " + nic + " > " + m.Path("sys/bus/pci/drivers_probe"),
		"write " + m.Path("etc/udev/rules.d/70-rnic-"+nic+".rules"),
	}
	if diff := cmp.Diff(want, c[0].Steps); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, m.Snapshot()); diff != "" || len(m.Ran) != 0 {
		t.Errorf("a dry run has changed something: ran %v\n%s", m.Ran, diff)
	}
	if _, err := m.Tree().Bind(ctx, []string{nic}, pcidev.Options{}); err != nil {
		t.Fatal(err)
	}
	before = m.Snapshot()
	if c, err := m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{DryRun: true}); err != nil || c[0].After != "e1000e" || len(c[0].Steps) != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	if diff := cmp.Diff(before, m.Snapshot()); diff != "" {
		t.Errorf("a dry run has changed something:\n%s", diff)
	}
}

// TestSET_FailureHalfWay: wherever a bind or an unbind fails, of one function or of the second of two, all is
// afterwards as it was before; and the error names function, step and cause.
func TestSET_FailureHalfWay(t *testing.T) {
	for _, unbind := range []bool{false, true} {
		for _, failing := range []string{"driver_override", "unbind", "drivers_probe", "bind", "quiet"} {
			for _, victim := range []string{nic, twin} {
				t.Run(fmt.Sprintf("unbind=%v/%s/%s", unbind, failing, victim), func(t *testing.T) {
					t.Parallel() // a driver that does not come is waited for
					m := machine(t)
					m.Driver("rnic", "10ee:7264")
					ctx, tree := t.Context(), m.Tree()
					if err := tree.Write(m.Path("sys/bus/pci/drivers_probe"), twin); err != nil {
						t.Fatal(err)
					}
					o := pcidev.Options{Group: true, Persist: true}
					do := tree.Bind
					if unbind {
						if _, err := tree.Bind(ctx, []string{nic}, o); err != nil {
							t.Fatal(err)
						}
						do = tree.Unbind
					}
					before := without(m.Snapshot())
					failed := false
					m.Fail = func(path, text string) error {
						real, _ := filepath.EvalSymlinks(filepath.Dir(path))
						on := filepath.Base(real) == victim || strings.TrimSpace(text) == victim
						if failed || !on || filepath.Base(path) != failing && failing != "quiet" {
							return nil
						}
						if failing == "quiet" { // the driver does not take it, and nobody says so
							if filepath.Base(path) == "drivers_probe" || filepath.Base(path) == "bind" {
								failed = true
								return errSwallow
							}
							return nil
						}
						failed = true
						return unix.EIO
					}
					write := tree.Write
					tree.Write = func(path, text string) error {
						if err := write(path, text); err != errSwallow {
							return err
						}
						return nil
					}
					_, err := do(ctx, []string{nic}, o)
					if !failed {
						if unbind == (failing == "drivers_probe") || !unbind == (failing == "bind") {
							return // a step that this change does not have
						}
						t.Fatal("nothing was made to fail")
					}
					if err == nil || !strings.Contains(err.Error(), victim) || failing != "quiet" && !errors.Is(err, unix.EIO) {
						t.Errorf("error %v", err)
					}
					if diff := cmp.Diff(before, without(m.Snapshot())); diff != "" {
						t.Errorf("not as it was:\n%s", diff)
					}
				})
			}
		}
	}
}

var errSwallow = errors.New("swallowed")

// TestSET_KilledHalfWay: rnicctl is killed between unbind and probe. Whoever comes next, with unbind or with bind and
// unbind, gives the function back the driver that it had.
func TestSET_KilledHalfWay(t *testing.T) {
	for _, again := range []bool{false, true} {
		m := machine(t)
		ctx, cancel := context.WithCancel(t.Context())
		tree := m.Tree()
		block := make(chan struct{})
		write := tree.Write
		tree.Write = func(path, text string) error {
			if filepath.Base(path) == "drivers_probe" {
				cancel()
				<-block // the process is dead: this write and the undoing behind it never come
				return unix.EINTR
			}
			if ctx.Err() != nil {
				return unix.EINTR
			}
			return write(path, text)
		}
		if _, err := tree.Bind(ctx, []string{nic}, pcidev.Options{}); err == nil {
			t.Fatal("bind was not killed")
		}
		close(block)
		if m.Bound(nic) != "" {
			t.Fatalf("driver %q: not half-way", m.Bound(nic))
		}
		tree = m.Tree()
		if again {
			if _, err := tree.Bind(t.Context(), []string{nic}, pcidev.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tree.Unbind(t.Context(), []string{nic}, pcidev.Options{}); err != nil {
			t.Fatal(err)
		}
		if got := m.Bound(nic); got != "e1000e" {
			t.Errorf("bind again %v: driver %q", again, got)
		}
	}
}

// TestSET_Refusals: what would take something from the machine or could not be used, each with object and remedy; and
// nothing is changed. --yes takes what may be taken.
func TestSET_Refusals(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*pcitest.Machine)
		addr    string
		says    []string
		force   bool // --yes helps
	}{
		{"bridge", nil, "0000:00:02.0", []string{"bridge"}, false},
		{"no IOMMU", func(m *pcitest.Machine) { m.Add(pcitest.Function{Addr: "0000:09:00.0", Group: -1}) }, "0000:09:00.0", []string{"no IOMMU group", "doctor"}, false},
		{"no-IOMMU mode", func(m *pcitest.Machine) { m.File("sys/kernel/iommu_groups/17/name", "vfio-noiommu\n") }, nic, []string{"no IOMMU"}, false},
		{"virtual functions", func(m *pcitest.Machine) { m.File("sys/bus/pci/devices/"+nic+"/sriov_numvfs", "2\n") }, nic, []string{"2 virtual functions", "sriov_numvfs"}, false},
		{"group", nil, twin, []string{"group 17", nic + " (e1000e)", "--group"}, false},
		{"quarantine", func(m *pcitest.Machine) {
			if err := m.Tree().SetQuarantine(nic, &pcidev.Quarantine{Reason: "no reset works", By: "test", Since: time.Unix(1, 0)}); err != nil {
				panic(err)
			}
		}, nic, []string{"no reset works", "quarantine/" + nic}, true},
		{"interface", func(m *pcitest.Machine) {
			m.File("sys/devices/pci0000:00/0000:00:02.0/"+nic+"/net/eth7/flags", "0x1003\n")
			m.Link("sys/class/net/eth7", m.Path("sys/devices/pci0000:00/0000:00:02.0/"+nic+"/net/eth7"))
		}, nic, []string{"network interface eth7 is up", "--yes"}, true},
		{"disk", func(m *pcitest.Machine) {
			disk := "sys/devices/pci0000:00/0000:00:02.0/" + nic + "/ata1/block/sda/sda1"
			m.File(disk+"/dev", "8:1\n")
			m.Link("sys/class/block/sda1", m.Path(disk))
			m.File("proc/self/mountinfo", "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n")
		}, nic, []string{"disk sda1 is mounted at /"}, true},
		{"swap and raid", func(m *pcitest.Machine) {
			disk := "sys/devices/pci0000:00/0000:00:02.0/" + nic + "/nvme/nvme0/nvme0n1"
			m.File(disk+"/dev", "259:0\n")
			m.File(disk+"/holders/md127", "")
			m.Link("sys/class/block/nvme0n1", m.Path(disk))
			m.File("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1 partition 1 0 -2\n")
		}, nic, []string{"swapped to", "part of md127"}, true},
		{"display", func(m *pcitest.Machine) { m.File("sys/bus/pci/devices/"+nic+"/boot_vga", "1\n") }, nic, []string{"display"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(t)
			if c.prepare != nil {
				c.prepare(m)
			}
			before := without(m.Snapshot())
			_, err := m.Tree().Bind(t.Context(), []string{c.addr}, pcidev.Options{})
			var refused *pcidev.Refused
			if !errors.As(err, &refused) || refused.Addr != c.addr || refused.Fix == "" {
				t.Fatalf("error %v", err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if diff := cmp.Diff(before, without(m.Snapshot())); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
			if _, err := m.Tree().Bind(t.Context(), []string{c.addr}, pcidev.Options{Force: true}); (err == nil) != c.force {
				t.Errorf("with force: %v", err)
			}
		})
	}
	m := machine(t)
	if _, err := m.Tree().Bind(t.Context(), []string{"0000:0f:00.0"}, pcidev.Options{}); !errors.Is(err, vfio.ErrNotFound) {
		t.Errorf("no such function: %v", err)
	}
	if _, err := m.Tree().Bind(t.Context(), []string{"../../etc"}, pcidev.Options{}); !errors.Is(err, vfio.ErrInvalid) {
		t.Errorf("no address: %v", err)
	}
}

// TestSET_Group: --group takes every function but the bridge, and gives all back.
func TestSET_Group(t *testing.T) {
	m := machine(t)
	ctx := t.Context()
	c, err := m.Tree().Bind(ctx, []string{twin}, pcidev.Options{Group: true})
	if err != nil || len(c) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	if m.Bound(nic) != "vfio-pci" || m.Bound(twin) != "vfio-pci" || m.Bound("0000:00:02.0") != "pcieport" {
		t.Error("not all of the group, or its bridge")
	}
	if _, err := m.Tree().Unbind(ctx, []string{twin}, pcidev.Options{Group: true}); err != nil {
		t.Fatal(err)
	}
	if m.Bound(nic) != "e1000e" || m.Bound(twin) != "" {
		t.Errorf("%q, %q", m.Bound(nic), m.Bound(twin))
	}
}

// TestSET_Held: the kernel would wait for the holder.
func TestSET_Held(t *testing.T) {
	m := machine(t)
	ctx := t.Context()
	if _, err := m.Tree().Bind(ctx, []string{nic}, pcidev.Options{}); err != nil {
		t.Fatal(err)
	}
	m.Hold(4711, "pump", "/dev/vfio/17")
	_, err := m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{})
	var busy *vfio.BusyError
	if !errors.As(err, &busy) || busy.PID != 4711 || m.Bound(nic) != "vfio-pci" {
		t.Errorf("error %v, driver %s", err, m.Bound(nic))
	}
	// With force it is asked of the kernel, which waits; the command does not.
	tree := m.Tree()
	write, let := tree.Write, make(chan struct{})
	tree.Write = func(path, text string) error {
		if filepath.Base(path) == "unbind" {
			<-let
		}
		return write(path, text)
	}
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	time.AfterFunc(200*time.Millisecond, func() { close(let) })
	if _, err := tree.Unbind(ctx, []string{nic}, pcidev.Options{Force: true}); !errors.Is(err, vfio.ErrTimeout) {
		t.Errorf("error %v", err)
	}
}

// TestPersist: the rule names function, IDs and driver, and what the function had, for after a boot; unbind says
// that it is there, and removes it when asked.
func TestPersist(t *testing.T) {
	m := machine(t)
	ctx := t.Context()
	if _, err := m.Tree().Bind(ctx, []string{nic}, pcidev.Options{Persist: true}); err != nil {
		t.Fatal(err)
	}
	path := "etc/udev/rules.d/70-rnic-" + nic + ".rules"
	text := m.Read(path)
	for _, want := range []string{`KERNEL=="0000:03:00.0"`, `ATTR{vendor}=="0x8086"`, `ATTR{device}=="0x10d3"`, `ATTR{driver_override}="vfio-pci"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the rule has no %s:\n%s", want, text)
		}
	}
	// The machine boots: what is under /run is gone, and the rule binds the function again.
	if err := os.RemoveAll(m.Path("run")); err != nil {
		t.Fatal(err)
	}
	c, err := m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{DryRun: true})
	if err != nil || c[0].After != "e1000e" || !strings.Contains(c[0].Note, "next boot") {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{Persist: true}); err != nil || m.Bound(nic) != "e1000e" {
		t.Errorf("%v, driver %q", err, m.Bound(nic))
	}
	if m.Read(path) != "" {
		t.Error("the rule is still there")
	}
}

// TestUnknown: without a record the kernel chooses; where vfio-pci takes the function again, the error says why.
func TestUnknown(t *testing.T) {
	m := machine(t)
	tree := m.Tree()
	for _, w := range [][2]string{{"drivers/e1000e/unbind", nic}, {"devices/" + nic + "/driver_override", "vfio-pci"}, {"drivers_probe", nic}} {
		if err := tree.Write(m.Path("sys/bus/pci/"+w[0]), w[1]); err != nil {
			t.Fatal(err)
		}
	}
	c, err := tree.Unbind(t.Context(), []string{nic}, pcidev.Options{})
	if err != nil || c[0].After != "other" || !strings.Contains(c[0].Note, "kernel chooses") {
		t.Errorf("%+v, %v", c, err)
	}
	m = machine(t)
	tree = m.Tree()
	m.Unload("other")
	m.Unload("e1000e")
	for _, w := range [][2]string{{"devices/" + nic + "/driver/unbind", nic}, {"drivers/vfio-pci/new_id", "8086 10d3"}, {"drivers_probe", nic}} {
		if err := tree.Write(m.Path("sys/bus/pci/"+w[0]), w[1]); err != nil && !strings.HasSuffix(w[0], "driver/unbind") {
			t.Fatal(err)
		}
	}
	_ = os.Remove(m.Path("sys/bus/pci/devices/" + nic + "/driver"))
	if err := tree.Write(m.Path("sys/bus/pci/drivers_probe"), nic); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Unbind(t.Context(), []string{nic}, pcidev.Options{}); err == nil || !strings.Contains(err.Error(), "remove_id") {
		t.Errorf("error %v", err)
	}
}

// TestSET_HostileRecord: a record that names anything but a driver does not get into root's paths or programs.
func TestSET_HostileRecord(t *testing.T) {
	for _, text := range []string{`{"driver":"../../../tmp/x"}`, `{"driver":"e","module":"-r"}`, `{"driver":"a\nb"}`, `{`, strings.Repeat(" ", 70000)} {
		m := machine(t)
		m.File("run/rnic/bind/"+nic+".json", text)
		_, err := m.Tree().Unbind(t.Context(), []string{nic}, pcidev.Options{})
		if err == nil || !strings.Contains(err.Error(), "bind/"+nic+".json") || len(m.Ran) != 0 || m.Bound(nic) != "e1000e" {
			t.Errorf("%.30s: error %v, ran %v", text, err, m.Ran)
		}
	}
}

// TestLock: two commands do not change drivers at once; the second waits, and not for ever.
func TestLock(t *testing.T) {
	m := machine(t)
	tree := m.Tree()
	write, at, let := tree.Write, make(chan struct{}), make(chan struct{})
	tree.Write = func(path, text string) error {
		if filepath.Base(path) == "drivers_probe" {
			close(at)
			<-let
		}
		return write(path, text)
	}
	done := make(chan error)
	go func() {
		_, err := tree.Bind(t.Context(), []string{nic}, pcidev.Options{})
		done <- err
	}()
	<-at
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.Tree().Unbind(ctx, []string{nic}, pcidev.Options{}); !errors.Is(err, vfio.ErrTimeout) || !strings.Contains(err.Error(), "another rnicctl") {
		t.Errorf("error %v", err)
	}
	close(let)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
