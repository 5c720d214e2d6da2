package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rnic/vfio/pcidev"
)

// Group is the group of users that the udev rule gives cards to.
const Group = "rnic"

const (
	// NeedLocked is the locked memory (bytes) below which doctor warns that programs will fail: rings and tables of a
	// card take some MiB, and the regions of a small program the rest.
	NeedLocked = 64 << 20
	// NeedMappings is the same for DMA mappings: one a memory region, and some for rings.
	NeedMappings = 1024
	// kernelMappings is the kernel's own default of dma_entry_limit (drivers/vfio/vfio_iommu_type1.c).
	kernelMappings = 65535
)

// machine makes the checks that are about no card.
func (d *Doctor) machine() []Finding {
	return []Finding{d.iommu(), d.noIOMMU(), d.module(), d.memlock(), d.mappings(), d.remapping(), d.udevRule()}
}

// read gives a small file's text without the newline, "" where it cannot be read.
func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (d *Doctor) iommu() Finding {
	groups, _ := os.ReadDir(d.sys("kernel/iommu_groups"))
	n := 0
	for _, g := range groups {
		if read(d.sys("kernel/iommu_groups", g.Name(), "name")) != "vfio-noiommu" {
			n++
		}
	}
	f := well(IOMMUOff, Machine, fmt.Sprintf("%d IOMMU groups", n), "at least 1")
	if n > 0 {
		return f
	}
	f.Result = Fail
	param := "intel_iommu=on, or amd_iommu=on"
	switch cpu := read(filepath.Join(d.Tree.Proc, "cpuinfo")); {
	case strings.Contains(cpu, "GenuineIntel"):
		param = "intel_iommu=on"
	case strings.Contains(cpu, "AuthenticAMD"):
		param = "amd_iommu=on"
	}
	f.Fix = "turn the IOMMU on in the firmware (VT-d, AMD-Vi, SMMU), and boot with " + param
	return f
}

func (d *Doctor) noIOMMU() Finding {
	path := d.sys("module/vfio/parameters/enable_unsafe_noiommu_mode")
	v := read(path)
	if v == "" {
		v = "not there"
	}
	f := well(NoIOMMU, Machine, "enable_unsafe_noiommu_mode is "+v, "N")
	if v == "Y" || v == "1" {
		f.Result, f.Fix = Fail, "echo N > "+path+"; without an IOMMU a card may write anywhere, and this driver refuses it"
	}
	return f
}

func (d *Doctor) module() Finding {
	f := well(NoModule, Machine, "vfio-pci is loaded", "vfio-pci, and /dev/vfio/vfio or /dev/iommu")
	load := func(modules ...string) {
		f.Result = Fail
		f.Repair = &Repair{do: func(ctx context.Context) error {
			for _, m := range modules {
				if err := d.Tree.Command(ctx, "modprobe", m); err != nil {
					return err
				}
			}
			return nil
		}}
		for _, m := range modules {
			f.Repair.Commands = append(f.Repair.Commands, "modprobe "+m)
		}
		f.Fix = strings.Join(f.Repair.Commands, "; ")
	}
	_, noContainer := os.Stat(filepath.Join(d.Tree.Dev, "vfio/vfio"))
	_, noIOMMUFD := os.Stat(filepath.Join(d.Tree.Dev, "iommu"))
	switch _, err := os.Stat(d.sys("bus/pci/drivers", pcidev.VFIODriver)); {
	case err != nil:
		f.Value = "vfio-pci is not loaded"
		load(pcidev.VFIODriver)
	case noContainer != nil && noIOMMUFD != nil:
		f.Value = "vfio-pci is loaded; there is neither /dev/vfio/vfio nor /dev/iommu"
		load("vfio_iommu_type1")
	}
	return f
}

// limits of a process, from proc_pid_limits(5) and proc_pid_status(5).
const capIPCLock = 14 // CAP_IPC_LOCK, linux/capability.h

func (d *Doctor) memlock() Finding {
	soft, hard, err := d.lockedLimits()
	if err != nil {
		return skipped(MemlockLow, Machine, err.Error())
	}
	f := well(MemlockLow, Machine, fmt.Sprintf("RLIMIT_MEMLOCK: soft %s, hard %s, a process; with iommufd all of a user's together", bytes(soft), bytes(hard)), "at least "+bytes(NeedLocked))
	caps, err := strconv.ParseUint(d.status("CapEff"), 16, 64)
	switch {
	case err == nil && caps>>capIPCLock&1 == 1:
		f.Value += "; waived by CAP_IPC_LOCK"
	case soft >= NeedLocked:
	case hard >= NeedLocked:
		f.Result = Fail
		shell, err := strconv.Atoi(d.status("PPid"))
		if err != nil || shell <= 1 {
			f.Fix = "ulimit -l " + strconv.FormatUint(hard>>10, 10)
			break
		}
		f.Repair = &Repair{
			Commands: []string{fmt.Sprintf("prlimit --pid %d --memlock=%s:%s", shell, limit(hard), limit(hard))},
			do:       func(context.Context) error { return d.Memlock(shell, hard, hard) },
		}
		f.Fix = f.Repair.Commands[0] + " (the shell that called), or: ulimit -l " + kib(hard)
	default:
		f.Result = Fail
		f.Fix = "as root: echo '@" + Group + " - memlock unlimited' > /etc/security/limits.d/rnic.conf, and log in again; in a systemd unit: LimitMEMLOCK=infinity"
	}
	return f
}

const unlimited = ^uint64(0)

// lockedLimits reads the line "Max locked memory".
func (d *Doctor) lockedLimits() (soft, hard uint64, err error) {
	path := filepath.Join(d.Tree.Proc, "self/limits")
	for line := range strings.Lines(read(path)) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if f := strings.Fields(rest); ok && len(f) >= 2 {
			var list [2]uint64
			for i := range list {
				if list[i] = unlimited; f[i] == "unlimited" {
					continue
				}
				if list[i], err = strconv.ParseUint(f[i], 10, 64); err != nil {
					return 0, 0, fmt.Errorf("%s: %w", path, err)
				}
			}
			return list[0], list[1], nil
		}
	}
	return 0, 0, fmt.Errorf("%s does not say the limit of locked memory", path)
}

// status is a field of the process's status.
func (d *Doctor) status(field string) string {
	for line := range strings.Lines(read(filepath.Join(d.Tree.Proc, "self/status"))) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// bytes is a limit for people.
func bytes(n uint64) string {
	switch {
	case n == unlimited:
		return "unlimited"
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// limit is a limit for prlimit(1), kib for the shell's ulimit.
func limit(n uint64) string {
	if n == unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

func kib(n uint64) string {
	if n == unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(n>>10, 10)
}

func (d *Doctor) mappings() Finding {
	path := d.sys("module/vfio_iommu_type1/parameters/dma_entry_limit")
	n, err := strconv.ParseUint(read(path), 10, 32)
	if err != nil {
		return skipped(MappingLimit, Machine, "dma_entry_limit is not there: type1 is not loaded; iommufd has no such limit")
	}
	f := well(MappingLimit, Machine, fmt.Sprintf("dma_entry_limit of vfio_iommu_type1: %d DMA mappings a container", n), fmt.Sprintf("at least %d", NeedMappings))
	if n >= NeedMappings {
		return f
	}
	f.Result = Fail
	f.Repair = &Repair{
		Commands: []string{fmt.Sprintf("echo %d > %s", kernelMappings, path)},
		do:       func(ctx context.Context) error { return d.Tree.SetAttribute(ctx, path, strconv.Itoa(kernelMappings)) },
	}
	f.Fix = f.Repair.Commands[0] + " (for programs that start after it), and see /etc/modprobe.d for who lowered it"
	return f
}

// remapping tells whether the IOMMU checks interrupts too: otherwise a card could raise any interrupt of the machine by
// a DMA write, and VFIO refuses it (EPERM).
func (d *Doctor) remapping() Finding {
	const isolated = "interrupts of a device are its own"
	chips := read(filepath.Join(d.Tree.Proc, "interrupts"))
	f := well(MSINoRemap, Machine, "interrupt remapping is on", isolated)
	switch {
	case strings.Contains(chips, "IR-"): // the kernel's names of remapped chips: IR-IO-APIC, IR-PCI-MSI
		return f
	case strings.Contains(chips, "ITS-"):
		f.Value = "the interrupt controller (ITS) keeps devices apart"
		return f
	case !strings.Contains(chips, "IO-APIC"):
		return skipped(MSINoRemap, Machine, "this platform's /proc/interrupts does not tell")
	}
	f.Value, f.Result = "interrupt remapping is off", Fail
	f.Fix = "turn it on in the firmware, and boot without intremap=off; where every user of the card is trusted with the machine:"
	for _, m := range []string{"vfio_iommu_type1", "iommufd"} { // each its own
		path := d.sys("module", m, "parameters/allow_unsafe_interrupts")
		switch v := read(path); v {
		case "Y", "1":
			f.Result, f.Value = Warn, f.Value+", and "+m+".allow_unsafe_interrupts lets VFIO go on: a card can raise any interrupt"
		case "":
		default:
			f.Fix += " echo Y > " + path + ";"
		}
	}
	return f
}

// rulePaths are where the udev rule may be: the administrator's, or a package's.
func (d *Doctor) rulePaths() []string {
	root := filepath.Dir(d.Tree.Etc)
	return []string{filepath.Join(root, pcidev.RulePath), filepath.Join(root, "usr/lib/udev/rules.d", filepath.Base(pcidev.RulePath)),
		filepath.Join(root, "lib/udev/rules.d", filepath.Base(pcidev.RulePath))}
}

func (d *Doctor) udevRule() Finding {
	for _, path := range d.rulePaths() {
		if _, err := os.Stat(path); err == nil {
			return well(NoUdevRule, Machine, path, "there, for use without root")
		}
	}
	f := Finding{Check: NoUdevRule, Object: Machine, Result: Warn, Value: pcidev.RulePath + " is not there: root alone can open cards", Limit: "there, for use without root",
		Fix: "as root: rnicctl doctor --fix; then put users into the group: usermod -aG " + Group + " USER"}
	if d.UID != 0 {
		return f
	}
	path := d.rulePaths()[0]
	f.Repair = &Repair{do: func(ctx context.Context) error { return d.installRule(ctx, path) }}
	if !d.haveGroup() {
		f.Repair.Commands = append(f.Repair.Commands, "groupadd --system "+Group)
	}
	f.Repair.Commands = append(f.Repair.Commands, "write "+path, "udevadm control --reload", "udevadm trigger --action=add --subsystem-match=vfio --subsystem-match=vfio-dev --subsystem-match=misc")
	return f
}

// haveGroup tells whether the group is in group(5). One from elsewhere (NSS) is found by groupadd, which then fails.
func (d *Doctor) haveGroup() bool {
	for line := range strings.Lines(read(filepath.Join(d.Tree.Etc, "group"))) {
		if strings.HasPrefix(line, Group+":") {
			return true
		}
	}
	return false
}

func (d *Doctor) installRule(ctx context.Context, path string) error {
	if !d.haveGroup() {
		if err := d.Tree.Command(ctx, "groupadd", "--system", Group); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(pcidev.Rule(d.IDs, Group)), 0o644); err != nil {
		return err
	}
	if err := d.Tree.Command(ctx, "udevadm", "control", "--reload"); err != nil {
		return err
	}
	return d.Tree.Command(ctx, "udevadm", "trigger", "--action=add", "--subsystem-match=vfio", "--subsystem-match=vfio-dev", "--subsystem-match=misc")
}
