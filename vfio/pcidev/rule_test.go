package pcidev_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rnic/vfio/pcidev"
)

// udevKeys are the keys of udev(7) that our rules may use, and whether each is matched or assigned.
var udevKeys = map[string]bool{
	"ACTION": true, "SUBSYSTEM": true, "KERNEL": true, "ATTR": true, "ATTRS": true, "PROGRAM": true,
	"GROUP": false, "MODE": false, "RUN": false,
}

var udevTerm = regexp.MustCompile(`^([A-Z]+)(\{[a-z_]+\})?(==|!=|\+=|:=|=)"((?:[^"\\]|\\.)*)"(?:,\s*|$)`)

// sound holds a file of rules to the grammar of udev(7): a rule a line, terms divided by commas, a match
// operator with keys that match, an assignment with those that assign, and an assignment in each rule.
func sound(t *testing.T, name, text string) {
	t.Helper()
	rules := 0
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		rules++
		assigns := false
		for rest := line; rest != ""; {
			m := udevTerm.FindStringSubmatch(rest)
			if m == nil {
				t.Fatalf("%s:%d: %q is no term", name, i+1, rest)
			}
			match, known := udevKeys[m[1]]
			isMatch := m[3] == "==" || m[3] == "!="
			if m[1] == "ATTR" && m[3] == "=" { // which is both
				match = false
			}
			if !known || match != isMatch {
				t.Errorf("%s:%d: %q", name, i+1, m[0])
			}
			assigns = assigns || !isMatch
			rest = rest[len(m[0]):]
		}
		if !assigns {
			t.Errorf("%s:%d: assigns nothing", name, i+1)
		}
	}
	if rules == 0 {
		t.Errorf("%s: no rule", name)
	}
	verified(t, text)
}

// verified asks udev itself, from version 254 on.
func verified(t *testing.T, text string) {
	t.Helper()
	udevadm, err := exec.LookPath("udevadm")
	if err != nil || exec.Command(udevadm, "verify", "--help").Run() != nil {
		t.Log("udevadm verify is not here; the grammar alone was checked")
		return
	}
	file := filepath.Join(t.TempDir(), "60-x.rules")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// The group need not exist here.
	if out, err := exec.Command(udevadm, "verify", "--resolve-names=never", file).CombinedOutput(); err != nil {
		t.Errorf("udevadm verify: %v\n%s\n%s", err, out, text)
	}
}

// TestRules: the rules that are written are sound, and that for use without root, of the contract's card, is the
// example in docs/examples/udev.
func TestRules(t *testing.T) {
	rule := pcidev.Rule([]pcidev.ID{{Vendor: 0x10ee, Device: 0x7264}}, "rnic")
	example, err := os.ReadFile("../../docs/examples/udev/60-rnic.rules")
	if err != nil {
		t.Fatal(err)
	}
	if string(example) != rule {
		t.Errorf("docs/examples/udev/60-rnic.rules is not what is written:\n%s", rule)
	}
	sound(t, "60-rnic.rules", rule)
	sound(t, "two IDs", pcidev.Rule([]pcidev.ID{{Vendor: 0x10ee, Device: 0x7264}, {Vendor: 0x1234, Device: 0xabcd, Name: `a "board"`}}, "rnic"))
	m := machine(t)
	if _, err := m.Tree().Bind(t.Context(), []string{nic}, pcidev.Options{Persist: true}); err != nil {
		t.Fatal(err)
	}
	sound(t, "persistent", m.Read("etc/udev/rules.d/70-rnic-"+nic+".rules"))
}

// TestRuleFindsTheGroup runs the rule's program as udev would: it succeeds for the group of a card, and for no other.
func TestRuleFindsTheGroup(t *testing.T) {
	m := machine(t)
	rule := pcidev.Rule([]pcidev.ID{{Vendor: 0x10ee, Device: 0x7264}}, "rnic")
	program := regexp.MustCompile(`PROGRAM=="/bin/sh -c '([^']*)'"`).FindStringSubmatch(rule)
	if program == nil {
		t.Fatalf("no program in\n%s", rule)
	}
	m.File("sys/kernel/iommu_groups/18/devices/x/modalias", "pci:v000010EEd00007265sv0\n")
	for group, want := range map[string]bool{"17": true, "18": false, "19": false} {
		line := strings.ReplaceAll(strings.ReplaceAll(program[1], "%k", group), "/sys/", m.Path("sys")+"/")
		if got := exec.Command("/bin/sh", "-c", line).Run() == nil; got != want {
			t.Errorf("group %s: %v", group, got)
		}
	}
}

// TestUnit has systemd look at the example of a service, with programs that are there.
func TestUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not here")
	}
	text, err := os.ReadFile("../../docs/examples/systemd/rnic-stream.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := regexp.MustCompile(`/usr/local/bin/[a-z]+|/usr/bin/udevadm`).ReplaceAllString(string(text), "/bin/true")
	file := filepath.Join(t.TempDir(), "rnic-stream.service")
	if err := os.WriteFile(file, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), "rnic-stream.service:") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
