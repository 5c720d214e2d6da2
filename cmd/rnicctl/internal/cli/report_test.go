package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rnic/vfio/pcidev"
)

// unpack gives the files of an archive, and their names in its order.
func unpack(t *testing.T, file string) (names []string, files map[string]string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, "rnic-report/")
		if !ok || h.Mode != 0o644 || h.Uid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%+v", h)
		}
		names = append(names, name)
		files[name] = string(text)
	}
}

// TestReport: what is in the archive, in which order, what is not and why; and no secret of the machine's.
func TestReport(t *testing.T) {
	m := machine(t)
	p := hold(t, "soft:reported")
	m.File("proc/version", "Linux version 6.1.0\n")
	m.File("proc/cmdline", "root=/dev/sda1 luks.key=hunter2 intel_iommu=on vfio-pci.ids=1:2 pci=noaer\n")
	m.File("proc/modules", "vfio_pci 16384 0 - Live 0\nsecretfs 1 0 - Live 0\nirqbypass 1 0 - Live 0\n")
	m.File("proc/interrupts", "CPU0\n  1: 1 IR-IO-APIC 1-edge i8042\n")
	m.File("dev/kmsg", "6,1,100,-;DMAR: IOMMU enabled\n SUBSYSTEM=pci\n6,2,200,-;usb 1-1: SerialNumber: hunter2\n4,3,300,-;pci "+board+": reset done\n")
	m.File("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n")
	m.File("etc/rnic/pci.ids", "1234:5678 Bench board\n")
	m.File("etc/udev/rules.d/99-other.rules", "hunter2\n")
	if err := m.Tree().SetQuarantine("0000:09:00.0", &pcidev.Quarantine{Reason: "it burns"}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "r.tar.gz")
	o := on(t, m, "report", "-o", file, "--json").well(t).object(t, "report")
	names, files := unpack(t, file)
	want := []string{
		"README.txt", "cards/0/sysfs.txt", "cards/1/info.json", "cards/1/qp.json", "cards/1/regs.json", "cards/1/stats.json",
		"config/etc/rnic/pci.ids", "config/run/rnic/quarantine/0000:09:00.0.json", "doctor.json", "environment.txt",
		"kernel/cmdline.txt", "kernel/interrupts.txt", "kernel/log.txt", "kernel/modules.txt", "kernel/parameters.txt", "kernel/version.txt",
		"list.json", "version.json",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if n := len(o["files"].([]any)); n != len(names)-1 {
		t.Errorf("%d files, %d told", len(names)-1, n)
	}
	missing := map[string]string{}
	for _, g := range o["missing"].([]any) {
		g := g.(map[string]any)
		missing[g["name"].(string)] = g["why"].(string)
	}
	if len(missing) != 5 || !strings.Contains(missing["cards/0/regs.json"], board+" is kernel") || !strings.Contains(missing["limits.txt"], "no such file") {
		t.Errorf("missing %v", missing)
	}
	for name, says := range map[string]string{
		"README.txt": "cards/0/regs.json", "cards/0/sysfs.txt": "driver: xdma", "cards/1/info.json": `"soft:reported"`, "cards/1/qp.json": fmt.Sprintf(`"qpn": %d`, p.pair[0].QP.Number()),
		"config/etc/rnic/pci.ids": "Bench board", "config/run/rnic/quarantine/0000:09:00.0.json": "it burns", "doctor.json": "not-bound",
		"kernel/log.txt": "[100 µs] DMAR: IOMMU enabled\n[300 µs] pci " + board + ": reset done\n", "kernel/parameters.txt": "enable_unsafe_noiommu_mode: N",
	} {
		if !strings.Contains(files[name], says) {
			t.Errorf("%s has no %q:\n%s", name, says, files[name])
		}
	}
	if got := files["kernel/cmdline.txt"]; got != "intel_iommu=on\nvfio-pci.ids=1:2\npci=noaer\n" {
		t.Errorf("cmdline %q", got)
	}
	all := fmt.Sprint(files)
	for _, secret := range []string{"hunter2", "secretfs", hex32(p.mr.RKey()), hex32(p.to.RKey())} {
		if strings.Contains(all, secret) {
			t.Errorf("%q is in the archive", secret)
		}
	}
	again := filepath.Join(t.TempDir(), "again.tar.gz")
	r := on(t, m, "report", "-o", again).well(t)
	if names2, _ := unpack(t, again); cmp.Diff(names, names2) != "" || !strings.Contains(r.out, "without limits.txt") {
		t.Errorf("another layout: %v\n%s", names2, r.out)
	}
	if s, err := os.Stat(file); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", s.Mode(), err)
	}
	if r := on(t, m, "report", "-o", "/nowhere/at/all", "--json"); r.code != exitUsage {
		t.Errorf("exit %d", r.code)
	}
}
