package archive

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rnic/vfio/pcidev"
)

// attributes are the files of a function's folder in sysfs that a report has.
var attributes = []string{
	"vendor", "device", "subsystem_vendor", "subsystem_device", "class", "revision", "irq", "resource", "numa_node", "enable", "power_state", "d3cold_allowed",
	"dma_mask_bits", "msi_bus", "driver_override", "reset_method", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
	"sriov_numvfs", "sriov_totalvfs", "uevent",
}

// configBytes are read of configuration space: more than that, some devices do not stand.
const configBytes = 256

// Function adds what sysfs knows of a PCI function.
func Function(a *Archive, t pcidev.Tree, name, addr string) {
	dir := filepath.Join(t.Sys, "bus/pci/devices", addr)
	var b strings.Builder
	for _, attr := range attributes {
		text, err := os.ReadFile(filepath.Join(dir, attr))
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			fmt.Fprintf(&b, "%s: %v\n", attr, err)
		default:
			fmt.Fprintf(&b, "%s: %s\n", attr, strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n  "))
		}
	}
	for _, link := range []string{"driver", "iommu_group", "physfn"} {
		if to, err := os.Readlink(filepath.Join(dir, link)); err == nil {
			fmt.Fprintf(&b, "%s: %s\n", link, filepath.Base(to))
		}
	}
	f, err := os.Open(filepath.Join(dir, "config"))
	if err == nil {
		config := make([]byte, configBytes)
		var n int
		if n, err = io.ReadFull(f, config); n > 0 { // an ordinary user is given 64 bytes
			b.WriteString("config:\n" + hex.Dump(config[:n]))
			err = nil
		}
		f.Close()
	}
	if err != nil {
		fmt.Fprintf(&b, "config: %v\n", err)
	}
	a.Add(name, "what sysfs knows of "+addr, []byte(b.String()))
}

// System adds what kernel and files say about VFIO and the IOMMU; of the log, also what names one of the addresses.
func System(a *Archive, t pcidev.Tree, addrs []string) {
	lines(a, "kernel/version.txt", "the kernel", filepath.Join(t.Proc, "version"), nil)
	// The command line may hold a password of somebody else's.
	words(a, "kernel/cmdline.txt", "of the kernel's command line, what is about IOMMU, VFIO, PCI and interrupts", filepath.Join(t.Proc, "cmdline"), regexp.MustCompile(`(?i)^[a-z_.-]*(iommu|vfio|pci|intremap|dmar)[a-z_.-]*(=|$)`))
	lines(a, "kernel/modules.txt", "modules of VFIO and the IOMMU", filepath.Join(t.Proc, "modules"), regexp.MustCompile(`^(vfio|iommu|irqbypass)`))
	lines(a, "kernel/interrupts.txt", "interrupts of VFIO, and how the machine's are delivered", filepath.Join(t.Proc, "interrupts"), regexp.MustCompile(`vfio|IO-APIC|MSI|CPU0`))
	lines(a, "limits.txt", "limits of the process that made this", filepath.Join(t.Proc, "self/limits"), nil)
	var params strings.Builder
	for _, path := range glob(filepath.Join(t.Sys, "module/vfio*/parameters/*"), filepath.Join(t.Sys, "module/iommufd/parameters/*")) {
		text, err := os.ReadFile(path)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&params, "%s: %s\n", strings.TrimPrefix(path, t.Sys), strings.TrimSpace(string(text)))
	}
	a.Add("kernel/parameters.txt", "parameters of those modules", []byte(params.String()))
	kernelLog(a, filepath.Join(t.Dev, "kmsg"), addrs)
	for _, path := range glob(filepath.Join(t.Etc, "rnic/*"), filepath.Join(t.Etc, "udev/rules.d/*rnic*.rules"), filepath.Join(t.Run, "bind/*.json"), filepath.Join(t.Run, "quarantine/*.json")) {
		name := "config/" + strings.TrimPrefix(strings.TrimPrefix(path, filepath.Dir(t.Etc)), "/")
		lines(a, name, "as it is", path, nil)
	}
}

// glob gives the files that fit, sorted.
func glob(patterns ...string) (all []string) {
	for _, p := range patterns {
		list, _ := filepath.Glob(p)
		all = append(all, list...)
	}
	slices.Sort(all)
	return all
}

// lines adds a file, or those of its lines that fit.
func lines(a *Archive, name, what, path string, fits *regexp.Regexp) {
	text, err := readAll(path)
	if err != nil {
		a.Missing(name, err.Error())
		return
	}
	if fits != nil {
		var kept strings.Builder
		for line := range strings.Lines(string(text)) {
			if fits.MatchString(line) {
				kept.WriteString(line)
			}
		}
		text = []byte(kept.String())
	}
	a.Add(name, what, text)
}

// words adds those words of a file that fit.
func words(a *Archive, name, what, path string, fits *regexp.Regexp) {
	text, err := readAll(path)
	if err != nil {
		a.Missing(name, err.Error())
		return
	}
	kept := slices.DeleteFunc(strings.Fields(string(text)), func(w string) bool { return !fits.MatchString(w) })
	a.Add(name, what, []byte(strings.Join(kept, "\n")+"\n"))
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxData))
}

// topic is what a line of the kernel's log must be about.
const topic = `vfio|iommu|dmar|amd-vi|smmu|irqbypass`

// kernelLog adds lines of the kernel's log (/dev/kmsg, a record a read). It is not waited for: the descriptor does
// not block, which Go's files would.
func kernelLog(a *Archive, path string, addrs []string) {
	const name = "kernel/log.txt"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		a.Missing(name, (&os.PathError{Op: "open", Path: path, Err: err}).Error()+"; only root may read it where kernel.dmesg_restrict is 1")
		return
	}
	defer unix.Close(fd)
	var text []byte
	record := make([]byte, 8192) // CONSOLE_EXT_LOG_MAX
	for len(text) < 8*maxData {
		n, err := unix.Read(fd, record)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EPIPE) { // EPIPE: records were overwritten meanwhile
			continue
		}
		if errors.Is(err, unix.EAGAIN) || err == nil && n == 0 {
			err = nil
		}
		if err != nil {
			a.Missing(name, (&os.PathError{Op: "read", Path: path, Err: err}).Error())
			return
		}
		if n <= 0 {
			break
		}
		text = append(text, record[:n]...)
	}
	about := topic
	for _, addr := range addrs {
		about += "|" + regexp.QuoteMeta(addr)
	}
	fits := regexp.MustCompile(`(?i)` + about)
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, " ") { // a record's dictionary
			continue
		}
		// "6,339,5140900,-;message": level, number, µs since boot
		head, message, ok := strings.Cut(line, ";")
		f := strings.Split(head, ",")
		if ok && len(f) >= 3 && fits.MatchString(message) {
			fmt.Fprintf(&kept, "[%s µs] %s", f[2], message)
		}
	}
	a.Add(name, "the kernel's log about VFIO, the IOMMU and the cards", []byte(kept.String()))
}
