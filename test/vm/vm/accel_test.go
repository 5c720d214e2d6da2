package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// standIn makes a folder of a QEMU that is a script.
func standIn(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	program := qemuCommand(dir)[0]
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestBootsByKVM: KVM is used where a kernel booted by it, and nowhere else.
func TestBootsByKVM(t *testing.T) {
	for script, why := range map[string]string{
		"echo 'Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)'":       "",
		"echo 'VFS: Unable to mount root fs'; echo 'KVM internal error. Suberror: 1'; exit 1":         "KVM internal error",
		"echo 'Kernel panic - not syncing: IO-APIC + timer does not work'":                            "no end that is known: Kernel panic - not syncing: IO-APIC",
		"case \"$*\" in *'-accel kvm'*kernel-irqchip=split*) echo 'Unable to mount root fs';; esac":   "",
		"case \"$*\" in *'-accel tcg'*) echo 'Unable to mount root fs';; *) echo 'not by TCG';; esac": "not by TCG",
	} {
		err := bootsByKVM(t.Context(), standIn(t, script), t.TempDir())
		if why == "" && err != nil || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %v, want %q", script, err, why)
		}
	}
}

// TestAcceleration: what the environment says goes, and a verdict of this start of the machine is not sought again.
func TestAcceleration(t *testing.T) {
	forget := func() { triedKVM.accel = "" }
	forget()
	t.Cleanup(forget)
	say := func(line string) { t.Error(line) }
	for _, want := range []string{"kvm", "tcg"} {
		t.Setenv(AccelVariable, want)
		if got, err := acceleration(t.Context(), t.TempDir(), "/nowhere", "/nowhere", say); err != nil || got != want {
			t.Errorf("%s: %s, %v", want, got, err)
		}
	}
	t.Setenv(AccelVariable, "xen")
	if _, err := acceleration(t.Context(), t.TempDir(), "/nowhere", "/nowhere", say); err == nil || !strings.Contains(err.Error(), AccelVariable+"=xen") {
		t.Errorf("xen: %v", err)
	}
	t.Setenv(AccelVariable, "")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, noted := range []string{"kvm", "tcg"} {
		forget()
		cache := t.TempDir()
		if err := os.WriteFile(filepath.Join(cache, "accel"), []byte(noted+" "+string(boot)), 0o644); err != nil {
			t.Fatal(err)
		}
		want := noted
		if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
			want = "tcg"
		} else {
			_ = f.Close()
		}
		if got, err := acceleration(t.Context(), cache, "/nowhere", "/nowhere", say); err != nil || got != want {
			t.Errorf("noted %s: %s, %v; want %s", noted, got, err, want)
		}
	}
}
