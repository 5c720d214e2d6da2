package pcidev

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// maxFile bounds a file that this package reads, in bytes.
const maxFile = 64 << 10

// A Record is what a function had before it was given to vfio-pci. It lies in Run/bind/ADDRESS.json from
// before the first change until the function has its driver again, so that another process, or the same
// command after it was killed, knows what to give back.
type Record struct {
	Driver   string `json:"driver"`   // "" where it had none
	Module   string `json:"module"`   // the driver's kernel module, "" where it is built in
	Override string `json:"override"` // driver_override
}

// word is a name that goes into a path of sysfs or to modprobe. The kernel's own names are of this form.
var word = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_. -]*$`)

// check holds what a file says to the form of kernel names: it ends in paths and arguments of root's.
func (r *Record) check() error {
	for _, s := range []string{r.Driver, r.Module, r.Override} {
		if s != "" && (!word.MatchString(s) || len(s) > 64) {
			return fmt.Errorf("%q is no name of a driver or module", s)
		}
	}
	return nil
}

func (t Tree) recordPath(addr string) string { return filepath.Join(t.Run, "bind", addr+".json") }

// record reads what a function had. ok is false where nothing is recorded: neither until the next boot, nor in the
// rule that outlives it.
func (t Tree) record(addr string) (r Record, ok bool, err error) {
	path := t.recordPath(addr)
	b, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		path = t.rulePath(addr)
		if b, err = readFile(path); errors.Is(err, fs.ErrNotExist) {
			return r, false, nil
		}
		if err == nil {
			_, b, _ = bytes.Cut(b, []byte(ruleRecord))
			b, _, _ = bytes.Cut(b, []byte("\n"))
		}
	}
	if err == nil {
		if err = json.Unmarshal(b, &r); err == nil {
			err = r.check()
		}
	}
	if err != nil {
		return r, false, fmt.Errorf("%s does not say what %s had: %w; correct it or remove it", path, addr, err)
	}
	return r, true, nil
}

// remove removes a file that may be gone already.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace writes a file whole or not at all.
func replace(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// readFile reads a small file; a larger one is an error.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b, err
}

// Quarantine is why a card was put aside. Whoever does so, as a test runner after a reset that failed, writes it to
// Run/quarantine/ADDRESS.json; the card comes back when the file is removed, by hand or by SetQuarantine. It
// lies under /run, since a boot resets everything.
type Quarantine struct {
	Reason string    `json:"reason"` // a sentence for people
	By     string    `json:"by"`     // the program
	Since  time.Time `json:"since"`
}

// QuarantinePath is the file that puts a function aside.
func (t Tree) QuarantinePath(addr string) string {
	return filepath.Join(t.Run, "quarantine", addr+".json")
}

func (t Tree) quarantined(addr string) bool { return exists(t.QuarantinePath(addr)) }

// Quarantine reads why a function was put aside; nil where it was not. A file that cannot be read puts it aside all
// the same, and says so as its reason.
func (t Tree) Quarantine(addr string) *Quarantine {
	path := t.QuarantinePath(addr)
	b, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var q Quarantine
	if err == nil {
		err = json.Unmarshal(b, &q)
	}
	if err != nil {
		return &Quarantine{Reason: fmt.Sprintf("%s cannot be read: %v", path, err)}
	}
	return &q
}

// SetQuarantine puts a function aside, or with nil takes it back.
func (t Tree) SetQuarantine(addr string, q *Quarantine) error {
	if q == nil {
		return remove(t.QuarantinePath(addr))
	}
	b, err := json.MarshalIndent(q, "", "  ")
	if err != nil {
		return err
	}
	return replace(t.QuarantinePath(addr), append(b, '\n'))
}

// ruleRecord begins the line of a persistent rule that holds the record.
const ruleRecord = "# before: "

// rulePath is the udev rule that binds a function at each boot. Its number is below 80-drivers.rules, which loads
// modules.
func (t Tree) rulePath(addr string) string {
	return filepath.Join(t.Etc, "udev/rules.d", "70-rnic-"+addr+".rules")
}

// rule is the text of a function's persistent rule (udev(7)). It names the IDs besides the address: another card in
// that slot is left alone.
func rule(f *Function, r Record) (string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`# %[1]s (%04[2]x:%04[3]x) goes to vfio-pci when it appears. Written by rnicctl bind --persist; rnicctl unbind --persist
# removes it. The next line is what the function had before.
%[4]s%[5]s
ACTION=="add", SUBSYSTEM=="pci", KERNEL=="%[1]s", ATTR{vendor}=="0x%04[2]x", ATTR{device}=="0x%04[3]x", ATTR{driver_override}="vfio-pci", RUN{builtin}+="kmod load vfio-pci", RUN+="/bin/sh -c 'echo %[1]s > /sys/bus/pci/drivers_probe'"
`, f.Address, f.Vendor, f.Device, ruleRecord, b), nil
}

// Rule is the udev rule that gives a group of users the VFIO files of functions with these IDs, and of no others:
// the IOMMU group's file, the device's own, and the IOMMU's. /dev/vfio/vfio is open to everyone by the kernel.
func Rule(ids []ID, group string) string {
	var b strings.Builder
	b.WriteString("# Who is in the group " + group + " may use these cards without root: udev(7). Install as " + RulePath + ".\n")
	fmt.Fprintf(&b, "SUBSYSTEM==\"misc\", KERNEL==\"iommu\", GROUP=\"%s\", MODE=\"0660\"\n", group)
	for _, id := range ids {
		fmt.Fprintf(&b, "\n# %04x:%04x\n", id.Vendor, id.Device)
		fmt.Fprintf(&b, "SUBSYSTEM==\"vfio\", KERNEL==\"[0-9]*\", PROGRAM==\"/bin/sh -c 'grep -qs ^pci:v%08Xd%08X /sys/kernel/iommu_groups/%%k/devices/*/modalias'\", GROUP=\"%s\", MODE=\"0660\"\n",
			id.Vendor, id.Device, group)
		fmt.Fprintf(&b, "SUBSYSTEM==\"vfio-dev\", ATTRS{vendor}==\"0x%04x\", ATTRS{device}==\"0x%04x\", GROUP=\"%s\", MODE=\"0660\"\n", id.Vendor, id.Device, group)
	}
	return b.String()
}

// RulePath is where Rule belongs, under Etc's parent.
const RulePath = "/etc/udev/rules.d/60-rnic.rules"
