// Package pcifn finds PCI functions in sysfs and says who drives and who holds each.
package pcifn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/u-root/u-root/pkg/pci"
)

// State says what can be done with a function.
type State string

// The states of a function. Quarantined is a card that a failed reset put aside.
const (
	Unbound     State = "unbound"     // no driver has it
	Kernel      State = "kernel"      // a kernel driver other than vfio-pci has it
	Ready       State = "ready"       // bound to vfio-pci and free
	Held        State = "held"        // a process has it open
	Broken      State = "broken"      // configuration space answers with all ones, or not at all
	Quarantined State = "quarantined" // put aside
)

// VFIODriver is the kernel driver that gives a function to user space.
const VFIODriver = "vfio-pci"

// Function is a PCI function as sysfs shows it.
type Function struct {
	Address  string // 0000:03:00.0
	Vendor   uint16
	Device   uint16
	Class    uint32
	Name     string // vendor and device by the PCI ID table
	Driver   string // "" where there is none
	Group    int    // IOMMU group, -1 where there is none
	NUMANode int    // -1 where the platform does not say
	Link     Link
	State    State
	PID      int // of the holder, 0 where it is not known
}

// Link is a PCI Express link. A function that is no PCI Express endpoint has none (zero).
type Link struct {
	Speed, MaxSpeed string // as the kernel writes them: "8.0 GT/s PCIe"
	Width, MaxWidth int    // lanes
}

// String gives "8.0 GT/s x8", with what the link could be where it runs below that.
func (l Link) String() string {
	if l.Width == 0 {
		return ""
	}
	s := fmt.Sprintf("%s x%d", speed(l.Speed), l.Width)
	if l.Degraded() {
		s += fmt.Sprintf(" of %s x%d", speed(l.MaxSpeed), l.MaxWidth)
	}
	return s
}

// Degraded tells whether the link runs slower or narrower than both ends could.
func (l Link) Degraded() bool {
	return l.MaxWidth > l.Width || l.MaxSpeed != "" && speed(l.MaxSpeed) != speed(l.Speed)
}

func speed(s string) string { return strings.TrimSuffix(s, " PCIe") }

// A Tree is where sysfs and procfs are mounted.
type Tree struct{ Sys, Proc string }

// Host is the running kernel's tree.
var Host = Tree{Sys: "/sys", Proc: "/proc"}

// Functions lists the functions that want accepts, by address. A function that vanishes while it is
// looked at is left out; one whose files cannot be read is broken. A machine without PCI has none.
func (t Tree) Functions(want func(vendor, device uint16) bool) ([]Function, error) {
	dir := filepath.Join(t.Sys, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Function
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		f, err := t.function(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("PCI function %s: %w", e.Name(), err)
		}
		if want(f.Vendor, f.Device) {
			list = append(list, f)
		}
	}
	if err := t.holders(list); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b Function) int { return strings.Compare(a.Address, b.Address) })
	return list, nil
}

func (t Tree) function(path string) (Function, error) {
	p, err := pci.OnePCI(path)
	if err != nil {
		return Function{}, err
	}
	p.SetVendorDeviceName(pci.IDs)
	f := Function{
		Address: p.Addr, Vendor: p.Vendor, Device: p.Device, Class: p.Class,
		Name:   p.VendorName + " " + p.DeviceName,
		Driver: base(path, "driver"), Group: -1, NUMANode: -1,
		Link: Link{
			Speed: text(path, "current_link_speed"), MaxSpeed: text(path, "max_link_speed"),
			Width: number(path, "current_link_width", 0), MaxWidth: number(path, "max_link_width", 0),
		},
	}
	if g, err := strconv.Atoi(base(path, "iommu_group")); err == nil {
		f.Group = g
	}
	f.NUMANode = number(path, "numa_node", -1)
	switch f.Driver {
	case "":
		f.State = Unbound
	case VFIODriver:
		f.State = Ready
	default:
		f.State = Kernel
	}
	if dead(path) {
		f.State = Broken
	}
	return f, nil
}

// dead tells whether the function's configuration space answers with all ones: it fell off the bus.
// A file that may not be read tells nothing.
func dead(path string) bool {
	c, err := os.Open(filepath.Join(path, "config"))
	if err != nil {
		return false
	}
	defer c.Close()
	var id [4]byte
	if _, err := c.ReadAt(id[:], 0); err != nil {
		return !errors.Is(err, fs.ErrPermission)
	}
	return id == [4]byte{0xff, 0xff, 0xff, 0xff}
}

// holders finds the processes that have the functions' VFIO files open. Without the right to look
// at other users' processes, only this user's are seen.
func (t Tree) holders(list []Function) error {
	files := map[string][]int{} // VFIO file: places in list
	for i, f := range list {
		if f.Driver != VFIODriver {
			continue
		}
		if f.Group >= 0 {
			name := "/dev/vfio/" + strconv.Itoa(f.Group)
			files[name] = append(files[name], i)
		}
		cdevs, err := os.ReadDir(filepath.Join(t.Sys, "bus/pci/devices", f.Address, "vfio-dev"))
		if err == nil {
			for _, c := range cdevs {
				name := "/dev/vfio/devices/" + c.Name()
				files[name] = append(files[name], i)
			}
		}
	}
	if len(files) == 0 {
		return nil
	}
	procs, err := os.ReadDir(t.Proc)
	if err != nil {
		return err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		fds := filepath.Join(t.Proc, p.Name(), "fd")
		open, err := os.ReadDir(fds)
		if err != nil {
			continue // it ended, or is another user's
		}
		for _, fd := range open {
			target, err := os.Readlink(filepath.Join(fds, fd.Name()))
			if err != nil {
				continue
			}
			for _, i := range files[target] {
				list[i].PID = pid
				if list[i].State == Ready {
					list[i].State = Held
				}
			}
		}
	}
	return nil
}

// Program is the name of a process, "" where it is not known.
func (t Tree) Program(pid int) string {
	return text(filepath.Join(t.Proc, strconv.Itoa(pid)), "comm")
}

// base is the last part of where a link points, "" where there is none.
func base(dir, link string) string {
	target, err := os.Readlink(filepath.Join(dir, link))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

func text(dir, file string) string {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func number(dir, file string, none int) int {
	n, err := strconv.Atoi(text(dir, file))
	if err != nil {
		return none
	}
	return n
}
