package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// AccelVariable names the environment variable that says how guests are run, "kvm" or "tcg". Without it that is KVM where a guest's
// kernel is seen to boot by it, and QEMU's interpreter elsewhere.
const AccelVariable = "RNIC_VM_ACCEL"

// How QEMU runs a guest.
const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// triedKVM is what this process has found out.
var triedKVM struct {
	sync.Mutex
	accel string
}

// acceleration says how guests are run here. /dev/kvm says little: it may be there and hang a guest, so that one is tried, once for each
// start of the machine.
func acceleration(ctx context.Context, cache, qemu, kernel string, say func(string)) (string, error) {
	switch forced := os.Getenv(AccelVariable); forced {
	case accelKVM, accelTCG:
		return forced, nil
	case "":
	default:
		return "", fmt.Errorf("%s=%s: want %s or %s", AccelVariable, forced, accelKVM, accelTCG)
	}
	triedKVM.Lock()
	defer triedKVM.Unlock()
	if triedKVM.accel != "" {
		return triedKVM.accel, nil
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		triedKVM.accel = accelTCG
		return accelTCG, nil
	}
	_ = f.Close()
	note := filepath.Join(cache, "accel")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, note+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if text, err := os.ReadFile(note); err == nil {
		if accel, of, _ := strings.Cut(string(text), " "); of == string(boot) && (accel == accelKVM || accel == accelTCG) {
			triedKVM.accel = accel
			return accel, nil
		}
	}
	accel, began := accelTCG, time.Now()
	why := bootsByKVM(ctx, qemu, kernel)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if why == nil {
		accel = accelKVM
	}
	say(fmt.Sprintf("KVM was tried (%.1f s): guests run by %s%s", time.Since(began).Seconds(), accel, because(why)))
	if err := os.WriteFile(note, []byte(accel+" "+string(boot)), 0o644); err != nil {
		return "", err
	}
	triedKVM.accel = accel
	return accel, nil
}

func because(why error) string {
	if why == nil {
		return ""
	}
	return ", since " + why.Error()
}

// kvmTime is what a kernel gets to come to its end without a root by KVM, which takes a second or two.
const kvmTime = 10 * time.Second

// bootsByKVM is nil where a kernel behind an IOMMU came as far as to look for its root, and panicked, as it should.
func bootsByKVM(ctx context.Context, qemu, kernel string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, kvmTime, fmt.Errorf("a guest hung"))
	defer cancel()
	c := Config{IOMMU: Intel, CPUs: 1, MemoryMB: 256}
	line := append(append(qemuCommand(qemu), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"), c.machineArgs(accelKVM)...)
	line = append(line, "-device", intelIOMMU, "-kernel", kernel+"/vmlinuz", "-append", "console=ttyS0 panic=-1 no_timer_check intel_iommu=on")
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), qemuEnv(qemu)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("QEMU ended: %w: %s", err, tail(out.String(), 1))
	case !strings.Contains(out.String(), "Unable to mount root fs"):
		return fmt.Errorf("a guest's kernel came to no end that is known: %s", tail(out.String(), 1))
	}
	return nil
}
