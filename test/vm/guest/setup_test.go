package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/pcidev"
)

// The tests of setup run rnicctl itself, and look at sysfs by their own eyes. The machine needs a function with the driver
// that native names and edu without one, in this order, a soft card without a driver, and rnicctl in its place.
const tool = "/bin/rnicctl"

// nicDriver is the kernel's own driver of the first function, and nicClass what the function has in sysfs while it is bound:
// e1000e with a network interface, or nvme, which the cloud kernel has built in.
var nicDriver, nicClass = func() (driver, class string) {
	if os.Getenv("RNIC_VM") == "6.12" {
		return "nvme", "nvme"
	}
	return "e1000e", "net"
}()

// machine gives the addresses of the function with a driver, of edu and of the card.
func machine(t *testing.T) (nic, edu, card string) {
	t.Helper()
	if _, err := os.Stat(tool); err != nil || os.Getenv("RNIC_VM") == "" {
		t.Skip("not in the guest: there is no " + tool)
	}
	d := strings.Split(os.Getenv("RNIC_VM_DEVICES"), ",")
	return d[0], d[1], strings.Split(os.Getenv("RNIC_VM_CARDS"), ",")[0]
}

// ran is what a run of rnicctl left.
type ran struct {
	exit int
	out  string // JSON where that was asked for
	err  string
}

// who runs a command: root, or an ordinary user. Fields are exported for JSON.
type who struct {
	UID, GID int
	Groups   []int
	Locked   uint64 // RLIMIT_MEMLOCK, bytes
}

var (
	root = who{}
	// user is in no group that matters, with little locked memory.
	user = who{UID: 1000, GID: 1000, Locked: 64 << 10}
)

func run(t *testing.T, as who, args ...string) ran {
	t.Helper()
	cmd := exec.Command(tool, args...)
	if as.UID != 0 {
		// The process lowers its own limit, and then is somebody else.
		text, err := json.Marshal(as)
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.Command("/proc/self/exe", append([]string{"-test.run=^TestHelper_AsUser$", "--"}, args...)...)
		cmd.Env = append(os.Environ(), "RNIC_VM_AS_USER="+string(text))
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// TestHelper_AsUser is no test: it is the ordinary user's process, which becomes rnicctl.
func TestHelper_AsUser(t *testing.T) {
	text := os.Getenv("RNIC_VM_AS_USER")
	if text == "" {
		t.Skip("it is started by others")
	}
	var as who
	if err := json.Unmarshal([]byte(text), &as); err != nil {
		t.Fatal(err)
	}
	args := os.Args[slices.Index(os.Args, "--")+1:]
	for _, err := range []error{
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: as.Locked, Max: as.Locked}), unix.Setgroups(as.Groups), syscall.Setgid(as.GID), syscall.Setuid(as.UID),
		syscall.Exec(tool, append([]string{"rnicctl"}, args...), os.Environ()),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func well(t *testing.T, args ...string) ran {
	t.Helper()
	r := run(t, root, args...)
	if r.exit != 0 {
		t.Fatalf("rnicctl %s: exit %d\n%s%s", strings.Join(args, " "), r.exit, r.out, r.err)
	}
	return r
}

// bound is the driver that the kernel says a function has.
func bound(addr string) string {
	to, err := os.Readlink("/sys/bus/pci/devices/" + addr + "/driver")
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func override(addr string) string {
	b, _ := os.ReadFile("/sys/bus/pci/devices/" + addr + "/driver_override")
	return strings.TrimSpace(string(b))
}

// is wants a function's driver and override.
func is(t *testing.T, addr, drv, over string) {
	t.Helper()
	if d, o := bound(addr), override(addr); d != drv || o != over {
		t.Errorf("%s has driver %q and override %q, want %q and %q", addr, d, o, drv, over)
	}
}

// files are the files under a folder, with their text.
func files(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err == nil && d.Type().IsRegular() {
				b, e := os.ReadFile(path)
				all[path], err = string(b), e
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestSetup_DryRun changes nothing: no driver, no override, no file.
func TestSetup_DryRun(t *testing.T) {
	nic, _, _ := machine(t)
	before := files(t, "/run", "/etc")
	r := well(t, "bind", "--dry-run", "--persist", nic)
	if !strings.Contains(r.out, "/sys/bus/pci/devices/"+nic+"/driver_override") {
		t.Errorf("%s", r.out)
	}
	is(t, nic, nicDriver, "(null)")
	if after := files(t, "/run", "/etc"); !maps.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
	well(t, "bind", nic)
	before = files(t, "/run", "/etc")
	well(t, "unbind", "--dry-run", nic)
	is(t, nic, "vfio-pci", "vfio-pci")
	if after := files(t, "/run", "/etc"); !maps.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
	well(t, "unbind", nic)
	is(t, nic, nicDriver, "(null)")
}

// TestSetup_BindUnbind: e1000e, or nvme, to vfio-pci and back, again and again; its network interface, or controller, goes and comes.
func TestSetup_BindUnbind(t *testing.T) {
	nic, edu, _ := machine(t)
	made := func() int {
		list, _ := filepath.Glob("/sys/bus/pci/devices/" + nic + "/" + nicClass + "/*")
		return len(list)
	}
	times := 3
	if full() {
		times = 100
	}
	for range times {
		well(t, "bind", nic)
		is(t, nic, "vfio-pci", "vfio-pci")
		if made() != 0 {
			t.Error("what its driver made of it is still there")
		}
		r := well(t, "unbind", nic)
		is(t, nic, nicDriver, "(null)")
		if made() != 1 || !strings.Contains(r.out, nicDriver) {
			t.Errorf("%d of what its driver makes\n%s", made(), r.out)
		}
	}
	// What had no driver has none.
	well(t, "bind", edu)
	is(t, edu, "vfio-pci", "vfio-pci")
	well(t, "unbind", edu)
	is(t, edu, "", "(null)")
	if list := files(t, "/run/rnic/bind"); len(list) != 0 {
		t.Errorf("records are left: %v", list)
	}
}

// TestSetup_FailureHalfWay: each write to the real kernel fails in turn, of bind and of unbind, and the function has
// afterwards the driver that it had.
func TestSetup_FailureHalfWay(t *testing.T) {
	nic, _, _ := machine(t)
	for _, unbind := range []bool{false, true} {
		for n := 1; ; n++ {
			want, over := nicDriver, "(null)"
			if unbind {
				well(t, "bind", nic)
				want, over = "vfio-pci", "vfio-pci"
			}
			tree := pcidev.Host
			writes, failed := 0, false
			tree.Write = func(path, text string) error {
				if writes++; writes == n && !failed {
					failed = true
					return unix.EIO
				}
				return os.WriteFile(path, []byte(text), 0)
			}
			do := tree.Bind
			if unbind {
				do = tree.Unbind
			}
			_, err := do(t.Context(), []string{nic}, pcidev.Options{})
			if !failed {
				if err != nil || n < 4 {
					t.Errorf("unbind %v ended after %d writes: %v", unbind, n-1, err)
				}
				well(t, "unbind", nic)
				break
			}
			if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), nic) {
				t.Errorf("write %d: %v", n, err)
			}
			is(t, nic, want, over)
			well(t, "unbind", nic)
			is(t, nic, nicDriver, "(null)")
		}
	}
}

// TestHelper_Killed is no test: it is a rnicctl bind that is killed when the function has no driver.
func TestHelper_Killed(t *testing.T) {
	nic := os.Getenv("RNIC_VM_KILLED")
	if nic == "" {
		t.Skip("it is started by others")
	}
	tree := pcidev.Host
	tree.Write = func(path, text string) error {
		if filepath.Base(path) == "drivers_probe" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return os.WriteFile(path, []byte(text), 0)
	}
	_, err := tree.Bind(t.Context(), []string{nic}, pcidev.Options{})
	t.Fatalf("it was not killed: %v", err)
}

// TestSetup_KilledHalfWay: bind is killed between unbind and probe; another process gives the function its driver back.
func TestSetup_KilledHalfWay(t *testing.T) {
	nic, _, _ := machine(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelper_Killed$")
	cmd.Env = append(os.Environ(), "RNIC_VM_KILLED="+nic)
	out, err := cmd.CombinedOutput()
	if err == nil || !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("%v\n%s", err, out)
	}
	is(t, nic, "", "vfio-pci")
	well(t, "unbind", nic)
	is(t, nic, nicDriver, "(null)")
}

// TestSetup_Refused: an interface that is up keeps its driver, unless --yes; a group that others are in is refused by
// name, and given and taken as a whole.
func TestSetup_Refused(t *testing.T) {
	nic, _, _ := machine(t)
	list, err := filepath.Glob("/sys/bus/pci/devices/" + nic + "/net/*")
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	up(t, filepath.Base(list[0]))
	r := run(t, root, "bind", nic)
	if r.exit != 1 || !strings.Contains(r.err, "network interface "+filepath.Base(list[0])+" is up") {
		t.Errorf("exit %d: %s", r.exit, r.err)
	}
	is(t, nic, nicDriver, "(null)")
	well(t, "bind", "--yes", nic)
	well(t, "unbind", nic)
	is(t, nic, nicDriver, "(null)")

	const sata, smbus = "0000:00:1f.2", "0000:00:1f.3"
	if d := bound(smbus); d != "i801_smbus" {
		t.Fatalf("the chipset's SMBus has driver %q", d)
	}
	r = run(t, root, "bind", sata)
	if r.exit != 1 || !strings.Contains(r.err, smbus+" (i801_smbus)") || bound(sata) == "vfio-pci" {
		t.Errorf("exit %d: %s", r.exit, r.err)
	}
	f := find(t, run(t, root, "doctor", sata, "--json"), "group-not-viable")
	if f.Result != "fail" || !strings.Contains(f.Value, smbus+" (i801_smbus)") || !strings.Contains(f.Fix, "--group") {
		t.Errorf("%+v", f)
	}
	had := bound(sata)
	// Bound past rnicctl, it is the kernel that refuses.
	give(t, sata, "vfio-pci")
	_, err = vfio.Open(t.Context(), sata)
	names(t, err, vfio.CheckGroupNotViable, "IOMMU group", smbus+" is bound to i801_smbus", "rnicctl bind "+smbus)
	give(t, sata, had)
	well(t, "bind", "--group", sata)
	is(t, sata, "vfio-pci", "vfio-pci")
	is(t, smbus, "vfio-pci", "vfio-pci")
	if f := find(t, run(t, root, "doctor", sata, "--json"), "group-not-viable"); f.Result != "ok" {
		t.Errorf("%+v", f)
	}
	well(t, "unbind", "--group", sata)
	is(t, sata, had, "(null)")
	is(t, smbus, "i801_smbus", "(null)")
}

// give binds a function to a driver by sysfs alone, or to its own one.
func give(t *testing.T, addr, driver string) {
	t.Helper()
	over := driver
	if driver != "vfio-pci" {
		over = "\n"
	}
	if bound(addr) != "" {
		write(t, "/sys/bus/pci/devices/"+addr+"/driver/unbind", addr)
	}
	write(t, "/sys/bus/pci/devices/"+addr+"/driver_override", over)
	write(t, "/sys/bus/pci/drivers_probe", addr)
	if bound(addr) != driver {
		t.Fatalf("%s has driver %q, want %q", addr, bound(addr), driver)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// names wants an error that has a check's stable name, and object, present value, limit and remedy.
func names(t *testing.T, err error, check string, says ...string) {
	t.Helper()
	var e *vfio.SetupError
	if !errors.As(err, &e) || e.Check != check || e.Object == "" || e.Value == "" || e.Limit == "" || e.Fix == "" {
		t.Errorf("%v; want check %s and every part", err, check)
		return
	}
	t.Log(err)
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not say %q", err, s)
		}
	}
}

// up brings a network interface up.
func up(t *testing.T, name string) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSetup_Reset: the kernel's own resets. The card has FLR; the other is removed and found again, and has its
// driver, and unbind still knows what it had.
func TestSetup_Reset(t *testing.T) {
	nic, _, card := machine(t)
	well(t, "bind", card)
	r := well(t, "reset", card)
	if !strings.Contains(r.out, "function  ok") {
		t.Errorf("%s", r.out)
	}
	well(t, "unbind", card)
	well(t, "bind", nic)
	r = well(t, "reset", "--from", "rescan", nic)
	if !strings.Contains(r.out, "rescan    ok") {
		t.Errorf("%s", r.out)
	}
	is(t, nic, "vfio-pci", "vfio-pci")
	well(t, "unbind", nic)
	is(t, nic, nicDriver, "(null)")
}

// finding is a check of rnicctl doctor.
type finding struct{ Check, Object, Result, Value, Limit, Fix string }

// find gives a check's finding in doctor's JSON.
func find(t *testing.T, r ran, check string) finding {
	t.Helper()
	var o struct{ Findings []finding }
	if err := json.Unmarshal([]byte(r.out), &o); err != nil {
		t.Fatalf("exit %d, %v: %s%s", r.exit, err, r.out, r.err)
	}
	for _, f := range o.Findings {
		if f.Check == check {
			return f
		}
	}
	t.Fatalf("no check %s in %s", check, r.out)
	return finding{}
}

// TestSetup_Doctor provokes faults on the real kernel. Each is found under its name, with its value.
func TestSetup_Doctor(t *testing.T) {
	nic, edu, card := machine(t)
	const limit = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
	expect := func(as who, addr, check, result string, says ...string) {
		t.Helper()
		r := run(t, as, "doctor", addr, "--json")
		f := find(t, r, check)
		for _, s := range says {
			if !strings.Contains(f.Value, s) {
				t.Errorf("%s: the value %q does not say %q", check, f.Value, s)
			}
		}
		if f.Result != result || (result == "fail") != (f.Fix != "" && r.exit == 1 && f.Limit != "") && result == "fail" {
			t.Errorf("exit %d, %+v", r.exit, f)
		}
	}
	expect(root, card, "iommu-off", "ok", "IOMMU groups")
	expect(root, card, "msi-no-remap", "ok")
	expect(root, card, "mapping-limit", "ok", "65535")
	expect(root, card, "not-bound", "fail", "no driver")
	expect(root, nic, "not-bound", "fail", nicDriver)
	expect(root, card, "memlock-low", "ok", "CAP_IPC_LOCK")

	write(t, limit, "64")
	expect(root, card, "mapping-limit", "fail", "64 DMA mappings")
	// --fix binds the card, which has no driver, and raises the limit; not the other, which has one.
	run(t, root, "doctor", "--fix", nic)
	run(t, root, "doctor", "--fix", card)
	if b, _ := os.ReadFile(limit); strings.TrimSpace(string(b)) != "65535" {
		t.Errorf("the limit is %s", b)
	}
	is(t, nic, nicDriver, "(null)")
	is(t, card, "vfio-pci", "vfio-pci")
	for _, check := range []string{"not-bound", "group-not-viable", "busy", "no-permission", "bar-all-ones", "contract-mismatch"} {
		expect(root, card, check, "ok")
	}

	// An ordinary user with little locked memory and no udev rule.
	expect(user, card, "memlock-low", "fail", "soft 64 KiB, hard 64 KiB")
	expect(user, card, "no-permission", "fail", "/dev/vfio/")

	// Held by this process.
	group, err := os.Readlink("/sys/bus/pci/devices/" + card + "/iommu_group")
	if err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile("/dev/vfio/"+filepath.Base(group), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(root, card, "busy", "fail", fmt.Sprintf("pid %d", os.Getpid()))
	if r := run(t, root, "unbind", card); r.exit != 4 || !strings.Contains(r.err, fmt.Sprint(os.Getpid())) {
		t.Errorf("unbind of a card that is held: exit %d, %s", r.exit, r.err)
	}
	held.Close()

	// Another card than the contract's, named as one.
	ids := filepath.Join(t.TempDir(), "pci.ids")
	if err := os.WriteFile(ids, []byte("1234:11e8 edu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RNIC_PCI_IDS", ids)
	well(t, "bind", edu)
	expect(root, edu, "contract-mismatch", "fail", "0x10000ed")
	if r := well(t, "list"); !strings.Contains(r.out, edu) || !strings.Contains(r.out, " edu ") {
		t.Errorf("%s", r.out)
	}
	well(t, "unbind", edu, card)

	if err := pcidev.Host.SetQuarantine(card, &pcidev.Quarantine{Reason: "no reset works", By: "a test", Since: time.Now()}); err != nil {
		t.Fatal(err)
	}
	expect(root, card, "quarantined", "fail", "no reset works")
	if err := pcidev.Host.SetQuarantine(card, nil); err != nil {
		t.Fatal(err)
	}
}

// TestSetup_Report: the real kernel's log and files, and nothing in the way of making it as an ordinary user.
func TestSetup_Report(t *testing.T) {
	_, _, card := machine(t)
	well(t, "bind", card)
	r := well(t, "report", "-o", "/tmp/report.tar.gz", "--json")
	for _, name := range []string{"kernel/log.txt", "cards/0/regs.json", "cards/0/sysfs.txt", "kernel/parameters.txt", "config/run/rnic/bind/" + card + ".json"} {
		if !strings.Contains(r.out, `"`+name+`"`) {
			t.Errorf("no %s: %s", name, r.out)
		}
	}
	if r := run(t, user, "report", "-o", "/tmp/user.tar.gz"); r.exit != 0 || !strings.Contains(r.out, "without cards/0/info.json") {
		t.Errorf("exit %d: %s%s", r.exit, r.out, r.err)
	}
	well(t, "unbind", card)
}

// TestUnsafe_Doctor runs in a guest without interrupt remapping, whose IOMMU translates 39 bits.
func TestUnsafe_Doctor(t *testing.T) {
	_, _, card := machine(t)
	well(t, "bind", card)
	module := map[string]string{"type1": "vfio_iommu_type1", "iommufd": "iommufd"}[os.Getenv("RNIC_VM_VFIO")]
	_, err := vfio.Open(t.Context(), card+"?vfio="+os.Getenv("RNIC_VM_VFIO"))
	names(t, err, vfio.CheckMSINoRemap, card, "interrupt remapping on", "/sys/module/"+module+"/parameters/allow_unsafe_interrupts")
	r := run(t, root, "doctor", card, "--json")
	if f := find(t, r, "msi-no-remap"); r.exit != 1 || f.Result != "fail" || !strings.Contains(f.Fix, "/sys/module/"+module+"/parameters/allow_unsafe_interrupts") {
		t.Errorf("exit %d, %+v", r.exit, f)
	}
	write(t, "/sys/module/"+module+"/parameters/allow_unsafe_interrupts", "Y")
	r = run(t, root, "doctor", card, "--json")
	if f := find(t, r, "msi-no-remap"); f.Result != "warn" {
		t.Errorf("%+v", f)
	}
	if f := find(t, r, "iova-width"); f.Result != "warn" || !strings.Contains(f.Value, "translates 39 bits") || !strings.Contains(f.Fix, "0x8000000000") {
		t.Errorf("%+v", f)
	}
}

// TestOff_Doctor runs in a guest without IOMMU.
func TestOff_Doctor(t *testing.T) {
	nic, _, _ := machine(t)
	r := run(t, root, "doctor", nic, "--json")
	if f := find(t, r, "iommu-off"); r.exit != 1 || f.Result != "fail" || f.Value != "0 IOMMU groups" || f.Fix == "" {
		t.Errorf("exit %d, %+v", r.exit, f)
	}
	_, err := vfio.Open(t.Context(), nic)
	names(t, err, vfio.CheckIOMMUOff, nic, "in no IOMMU group")
	if r := run(t, root, "bind", nic); r.exit != 1 || !strings.Contains(r.err, "no IOMMU group") {
		t.Errorf("exit %d: %s", r.exit, r.err)
	}
	is(t, nic, nicDriver, "(null)")
}
