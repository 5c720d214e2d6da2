package vm

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"rnic/test/vm/debian"
)

// qemuCommand is QEMU out of its folder, run by the dynamic linker and with the libraries that were unpacked with it.
func qemuCommand(dir string) []string {
	return []string{dir + "/usr/lib64/ld-linux-x86-64.so.2", "--library-path", dir + "/usr/lib/x86_64-linux-gnu",
		dir + "/usr/bin/qemu-system-x86_64", "-L", dir + "/usr/share/qemu", "-L", dir + "/usr/share/seabios"}
}

// qemuEnv keeps it from modules of a QEMU that is installed.
func qemuEnv(dir string) []string {
	return []string{"QEMU_MODULE_DIR=" + dir + "/usr/lib/x86_64-linux-gnu/qemu"}
}

// machineArgs are QEMU's arguments for processors and memory. A vfio-user device maps the guest's memory: it is a file that both share.
func (c *Config) machineArgs(accel string) []string {
	// TCG: all that it emulates, but for "fast" string instructions, which are slow in it. KVM: interrupts are remapped by QEMU only where
	// it has the IO-APIC.
	cpu, machine := "max,-erms,-fsrm", "q35,memory-backend=mem"
	if accel == accelKVM {
		cpu, machine = "host", "q35,memory-backend=mem,kernel-irqchip=split"
	}
	return []string{"-accel", accel, "-cpu", cpu, "-smp", fmt.Sprint(c.CPUs), "-m", fmt.Sprintf("%dM", c.MemoryMB),
		"-M", machine, "-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", c.MemoryMB)}
}

// intelIOMMU is in caching mode: the guest tells of each mapping that it makes, which QEMU passes on to the card.
const intelIOMMU = "intel-iommu,caching-mode=on"

// vfioUserPCI asks QEMU whether it has the device.
func vfioUserPCI(ctx context.Context, dir string) error {
	out, err := command(ctx, "", qemuEnv(dir), append(qemuCommand(dir), "-device", "vfio-user-pci,help")...)
	if bytes.Contains(out, []byte("not found")) || bytes.Contains(out, []byte("not a valid device")) {
		version, _ := command(ctx, "", qemuEnv(dir), append(qemuCommand(dir), "-version")...)
		return fmt.Errorf("%s has no device vfio-user-pci, which 10.1 brought: %w", bytes.SplitN(version, []byte("\n"), 2)[0], debian.ErrMirrorLacks)
	}
	return err
}

// Slots of the root bus. The lower ones are the IOMMU's.
const (
	firstDevice = 0x08
	firstCard   = 0x10
)

// qemuArgs are QEMU's arguments for a guest whose sockets and files are in dir.
func (c *Config) qemuArgs(dir, kernel, accel string) []string {
	// no_timer_check: on a busy host the emulated timer may come too late for the kernel's test of it, which then panics.
	// tsc=reliable: there, too, it would take the time-stamp counter for unstable, and read a clock that is emulated as a device.
	cmdline := []string{"console=ttyS0", "loglevel=4", "panic=-1", "rdinit=/init", "no_timer_check", "tsc=reliable"}
	args := append(c.machineArgs(accel),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "file,id=console,path="+dir+"/console.log", "-serial", "chardev:console",
		"-chardev", "socket,id=port,server=off,path="+dir+"/port.sock", "-serial", "chardev:port",
		"-chardev", "socket,id=qmp,server=off,path="+dir+"/qmp.sock", "-mon", "chardev=qmp,mode=control",
		"-kernel", kernel+"/vmlinuz", "-initrd", dir+"/initramfs",
	)
	iommu := ""
	switch c.IOMMU {
	case Intel:
		iommu = intelIOMMU
		cmdline = append(cmdline, "intel_iommu=on")
	case Virtio:
		iommu = "virtio-iommu-pci,addr=02.0"
	case AMD:
		iommu = "amd-iommu,dma-remap=on" // without it the IOMMU lets everything through
	}
	if iommu != "" {
		if c.IOMMUOptions != "" {
			iommu += "," + c.IOMMUOptions
		}
		args = append(args, "-device", iommu)
	}
	for i, d := range c.Devices {
		args = append(args, "-device", fmt.Sprintf("%s,id=device%d,addr=%02x.0", d, i, firstDevice+i))
	}
	for i := range c.Cards {
		bus, addr := "pcie.0", fmt.Sprintf("%02x.0", firstCard+i)
		if c.RootPorts {
			args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d,addr=%s", i, i+1, addr))
			bus, addr = fmt.Sprintf("port%d", i), "00.0"
		}
		args = append(args, "-device", fmt.Sprintf(`{"driver":"vfio-user-pci","id":"card%d","bus":"%s","addr":"%s","socket":{"type":"unix","path":"%s"}}`,
			i, bus, addr, cardSocket(dir, i)))
	}
	if c.HugePages > 0 {
		cmdline = append(cmdline, fmt.Sprintf("hugepagesz=2M hugepages=%d", c.HugePages))
	}
	if c.Trace != "" {
		args = append(args, "-trace", "vfio_user_*", "-D", c.Trace)
	}
	return append(args, "-append", strings.Join(append(cmdline, c.KernelArgs...), " "))
}
