package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// command runs one of Debian's programs.
func command(t *testing.T, line ...string) {
	t.Helper()
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", line, err, out)
	}
}

// login is a user as /etc/passwd and /etc/group have it, as a login would make it.
func login(t *testing.T, name string, locked uint64) who {
	t.Helper()
	w := who{Locked: locked}
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(strings.TrimSpace(line), ":")
			switch {
			case file == "/etc/passwd" && f[0] == name:
				w.UID, _ = strconv.Atoi(f[2])
				w.GID, _ = strconv.Atoi(f[3])
			case file == "/etc/group" && slices.Contains(strings.Split(f[3], ","), name):
				gid, _ := strconv.Atoi(f[2])
				w.Groups = append(w.Groups, gid)
			}
		}
	}
	if w.UID == 0 || w.GID == 0 {
		t.Fatalf("user %s is %+v", name, w)
	}
	return w
}

// node is what a program opens for a card: the group's, or the character device.
func node(t *testing.T, addr string) string {
	t.Helper()
	dev := "/sys/bus/pci/devices/" + addr
	if os.Getenv("RNIC_VM_VFIO") == "iommufd" {
		list, err := os.ReadDir(dev + "/vfio-dev")
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		return "/dev/vfio/devices/" + list[0].Name()
	}
	group, err := os.Readlink(dev + "/iommu_group")
	if err != nil {
		t.Fatal(err)
	}
	return "/dev/vfio/" + filepath.Base(group)
}

// TestSetup_User: Debian's own udevd applies the rule that doctor --fix installs, and then an ordinary user runs the demo's
// operations through the kernel; before it, and in no group, and with too little locked memory, the user is told what is missing.
// Modes and owners are udevd's alone.
func TestSetup_User(t *testing.T) {
	_, _, card := machine(t)
	addr := card + "?vfio=" + os.Getenv("RNIC_VM_VFIO")
	const enough = 256 << 20
	// What an earlier doctor --fix left, when no udevd was there.
	if err := os.RemoveAll("/etc/udev/rules.d/60-rnic.rules"); err != nil {
		t.Fatal(err)
	}
	// As at boot, for the devices that matter here.
	command(t, "/lib/systemd/systemd-udevd", "--daemon")
	t.Cleanup(func() { command(t, "/bin/udevadm", "control", "--exit") })
	command(t, "/bin/udevadm", "trigger", "--action=add", "--subsystem-match=misc", "--subsystem-match=pci", "--subsystem-match=vfio*")
	command(t, "/bin/udevadm", "settle", "--timeout=300")
	command(t, "/usr/sbin/useradd", "ordinary")
	command(t, "/usr/sbin/useradd", "other")
	well(t, "bind", card)

	demo := func(as who) ran {
		t.Helper()
		return run(t, as, "--timeout", "1m", "demo", "--json", "-d", addr, "--pcap", fmt.Sprintf("/tmp/%d.pcapng", as.UID))
	}
	// refused wants the failure's parts: object, present value, limit, remedy.
	refused := func(as who, says ...string) {
		t.Helper()
		r := demo(as)
		for _, s := range says {
			if !strings.Contains(r.err, s) {
				t.Errorf("the message does not say %q", s)
			}
		}
		t.Logf("exit %d: %s%s", r.exit, r.err, r.out)
		if r.exit == 0 {
			t.Error("it went well")
		}
	}
	refused(login(t, "ordinary", enough), "no-permission", node(t, card), "owner 0, group 0, mode 0600", "rnicctl doctor --fix", "usermod -aG rnic")

	r := well(t, "doctor", "--fix")
	command(t, "/usr/sbin/usermod", "-aG", "rnic", "ordinary")
	command(t, "/bin/udevadm", "settle", "--timeout=300")
	ordinary := login(t, "ordinary", enough)
	given := func() {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(node(t, card), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode&0o7777 != 0o660 || !slices.Contains(ordinary.Groups, int(st.Gid)) {
			t.Errorf("%s has mode %#o and group %d; the user is in %v\n%s", node(t, card), st.Mode&0o7777, st.Gid, ordinary.Groups, r.out)
		}
	}
	given()
	if f := find(t, run(t, ordinary, "doctor", card, "--json"), "no-permission"); f.Result != "ok" {
		t.Errorf("%+v", f)
	}
	operations(t, demo(ordinary))

	// A function that comes later has its rule from the start.
	well(t, "unbind", card)
	well(t, "bind", card)
	command(t, "/bin/udevadm", "settle", "--timeout=300")
	given()
	operations(t, demo(ordinary))

	refused(login(t, "other", enough), "no-permission", node(t, card), "mode 0660", "usermod -aG rnic")
	little := ordinary
	little.Locked = 64 << 10
	refused(little, "memlock-low", "RLIMIT_MEMLOCK", "65536 bytes, of which", "at least 2097152 bytes", "LimitMEMLOCK")
	well(t, "unbind", card)
}

// operations wants the demo's five operations to have gone well.
func operations(t *testing.T, r ran) {
	t.Helper()
	var d struct {
		Operations []struct {
			Operation string
			Result    string
		}
	}
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.exit != 0 || len(d.Operations) != 5 {
		t.Fatalf("exit %d, %v: %s%s", r.exit, err, r.out, r.err)
	}
	for _, o := range d.Operations {
		if o.Result != "pass" {
			t.Errorf("%+v", o)
		}
	}
	t.Logf("%+v", d.Operations)
}

// TestSetup_NoModule is the last: it takes vfio-pci out of the kernel.
func TestSetup_NoModule(t *testing.T) {
	nic, _, _ := machine(t)
	if err := unix.DeleteModule("vfio_pci", 0); err != nil {
		t.Fatal(err)
	}
	if f := find(t, run(t, root, "doctor", nic, "--json"), "vfio-module-missing"); f.Result != "fail" || f.Fix != "modprobe vfio-pci" {
		t.Errorf("%+v", f)
	}
	// There is no modprobe here: bind fails, and changes nothing.
	if r := run(t, root, "bind", nic); r.exit == 0 || !strings.Contains(r.err, "modprobe") {
		t.Errorf("exit %d: %s", r.exit, r.err)
	}
	is(t, nic, nicDriver, "(null)")
}
