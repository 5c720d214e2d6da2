// Command init is the first program of a virtual machine's guest: it loads modules, binds functions to vfio-pci, runs the
// payload, and tells the host over the second serial port what became of it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/test/vm/port"
)

func main() {
	host, err := start()
	if err != nil {
		// Without the port only the console is left.
		fmt.Fprintln(os.Stderr, "init:", err)
		off()
	}
	verdict, err := do(host)
	host.kernelLog()
	if err != nil {
		host.send(port.Failed, []byte(err.Error()))
	} else {
		host.send(port.Exit, []byte(verdict))
	}
	_ = unix.IoctlSetInt(int(host.f.Fd()), unix.TCSBRK, 1) // until it is sent
	off()
}

// off ends the machine.
func off() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// host is the port.
type host struct {
	mu sync.Mutex
	f  *os.File
}

func (h *host) send(k port.Kind, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = port.Write(h.f, k, data) // where it fails nobody could be told
}

// writer sends what is written as frames of a kind.
type writer struct {
	h *host
	k port.Kind
}

func (w writer) Write(p []byte) (int, error) {
	w.h.send(w.k, p)
	return len(p), nil
}

// mounts are made in this order.
var mounts = []struct{ kind, target, data string }{
	{"devtmpfs", "/dev", "mode=0755"}, {"proc", "/proc", ""}, {"sysfs", "/sys", ""},
	{"tmpfs", "/tmp", "mode=1777"}, {"tmpfs", "/run", "mode=0755"}, {"tmpfs", "/dev/shm", "mode=1777"},
	{"devpts", "/dev/pts", ""}, {"tracefs", "/sys/kernel/tracing", ""}, {"debugfs", "/sys/kernel/debug", ""},
	{"bpf", "/sys/fs/bpf", ""}, {"cgroup2", "/sys/fs/cgroup", ""}, {"hugetlbfs", "/dev/hugepages", "pagesize=2M"},
}

// start mounts what a program expects, and opens the port.
func start() (*host, error) {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return nil, err
		}
		if err := unix.Mount(m.kind, m.target, m.kind, 0, m.data); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, "/dev/"+name); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(port.Device, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", port.Device, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0 // eight bits, as they are
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8 | unix.CLOCAL | unix.CREAD
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", port.Device, err)
	}
	return &host{f: f}, nil
}

// do does the job, and gives how the payload ended.
func do(h *host) (string, error) {
	text, err := os.ReadFile(port.JobFile)
	if err != nil {
		return "", err
	}
	var job port.Job
	if err := json.Unmarshal(text, &job); err != nil {
		return "", fmt.Errorf("%s: %w", port.JobFile, err)
	}
	if err := loopback(); err != nil {
		return "", fmt.Errorf("loopback interface: %w", err)
	}
	for _, m := range job.Modules {
		if err := load(m); err != nil {
			return "", fmt.Errorf("load %s %s: %w; the kernel's log may say why", m.File, m.Args, err)
		}
	}
	if err := largePages(); err != nil {
		return "", fmt.Errorf("large pages: %w", err)
	}
	if err := muteAMD(); err != nil {
		return "", fmt.Errorf("turn off the interrupts of amd-iommu: %w", err)
	}
	for _, bdf := range job.Bind {
		if err := bind(bdf); err != nil {
			return "", fmt.Errorf("bind %s to vfio-pci: %w", bdf, err)
		}
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "", err
	}
	h.send(port.Ready, []byte(strings.Fields(string(uptime))[0]))
	return h.payload(&job)
}

func load(m port.Module) error {
	f, err := os.Open(m.File)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), m.Args, 0)
}

// bind takes a function from its driver and gives it to vfio-pci.
func bind(bdf string) error {
	dev := "/sys/bus/pci/devices/" + bdf
	if _, err := os.Stat(dev + "/driver"); err == nil {
		if err := write(dev+"/driver/unbind", bdf); err != nil {
			return err
		}
	}
	if err := write(dev+"/driver_override", "vfio-pci"); err != nil {
		return err
	}
	if err := write("/sys/bus/pci/drivers_probe", bdf); err != nil {
		return err
	}
	driver, err := os.Readlink(dev + "/driver")
	if err != nil {
		return fmt.Errorf("no driver took it: %w", err)
	}
	if filepath.Base(driver) != "vfio-pci" {
		return fmt.Errorf("it has the driver %s", filepath.Base(driver))
	}
	return nil
}

// largePages has the kernel take pages of 2 MiB for what is as large, but where a pool of them was asked for. The driver maps 2 MiB at a time for itself: of small pages, QEMU
// would tell the card of 512 mappings, and then of their ends.
func largePages() error {
	pool, err := os.ReadFile("/proc/sys/vm/nr_hugepages")
	if err != nil || strings.TrimSpace(string(pool)) != "0" {
		return err
	}
	return write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "within_size")
}

// muteAMD turns off the interrupt of QEMU's amd-iommu. Its status register takes the two bits of the log of guests' interrupts
// for ordinary ones (of 11.1; amdvi_init has write-1-to-clear for bits 0, 1, 2, 5 and 6), so that the kernel's handler, which
// writes them to clear them, sets them, and never ends: one refused access, and a processor is lost. Without it faults go
// to the IOMMU's log, and nobody reads them.
func muteAMD() error {
	devices, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil {
		return err
	}
	for _, dev := range devices {
		class, err := os.ReadFile(dev + "/class")
		if err != nil {
			return err
		}
		vendor, err := os.ReadFile(dev + "/vendor")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(class)) != "0x080600" || strings.TrimSpace(string(vendor)) != "0x1022" {
			continue
		}
		f, err := os.OpenFile(dev+"/config", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		var cfg [256]byte
		if _, err := f.ReadAt(cfg[:], 0); err != nil {
			return err
		}
		const capMSI, msiEnable = 5, 1
		for at, n := int(cfg[0x34]), 0; at >= 0x40 && n < 48; at, n = int(cfg[at+1]), n+1 {
			if at &^= 3; cfg[at] == capMSI {
				if _, err := f.WriteAt([]byte{cfg[at+2] &^ msiEnable}, int64(at+2)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func write(file, text string) error { return os.WriteFile(file, []byte(text), 0) }

// loopback brings the interface up: a program may use TCP to itself.
func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}

// payload runs the program, its output and input in frames.
func (h *host) payload(job *port.Job) (string, error) {
	cmd := exec.Command(job.Command[0], job.Command[1:]...)
	cmd.Env, cmd.Dir = job.Env, "/tmp"
	cmd.Stdout, cmd.Stderr = writer{h, port.Stdout}, writer{h, port.Stderr}
	// A child that the payload left behind may hold its output.
	cmd.WaitDelay = 2 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("payload: %w", err)
	}
	go func() {
		for r := port.NewReader(h.f); ; {
			k, data, err := r.Read()
			if err != nil {
				return
			}
			if k == port.Stdin {
				_, _ = in.Write(data) // a payload that is gone reads nothing
			}
		}
	}()
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		h.send(port.Stderr, []byte("init: the payload left children behind that held its output\n"))
		err = nil
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", fmt.Errorf("payload: %w", err)
	}
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return "signal: " + status.Signal().String(), nil
	}
	return strconv.Itoa(cmd.ProcessState.ExitCode()), nil
}

// kernelLog sends the kernel's log as dmesg would print it.
func (h *host) kernelLog() {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	var log strings.Builder
	buf := make([]byte, 8<<10) // a record a read
	for {
		n, err := unix.Read(int(f.Fd()), buf)
		switch {
		case errors.Is(err, unix.EPIPE): // overwritten meanwhile
			continue
		case err != nil || n == 0:
			_, _ = io.WriteString(writer{h, port.Log}, log.String())
			return
		}
		// "priority,sequence,microseconds,flags;text\n", then lines of properties that begin with a blank.
		head, text, _ := strings.Cut(string(buf[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		fields := strings.Split(head, ",")
		if len(fields) < 3 {
			continue
		}
		us, _ := strconv.ParseInt(fields[2], 10, 64)
		fmt.Fprintf(&log, "[%5d.%06d] %s\n", us/1e6, us%1e6, text)
	}
}
