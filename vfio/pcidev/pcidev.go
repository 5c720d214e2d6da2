// Package pcidev is what Linux knows of PCI functions, and how a function is given to vfio-pci, given back
// and reset: sysfs, and small files under /run/rnic. A function is opened by package vfio.
package pcidev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/u-root/u-root/pkg/pci"

	"rnic/vfio"
)

// State says what can be done with a function.
type State string

// The states of a function. What a function is in quarantine for is in its file, see Quarantine.
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
	PID      int    // of the holder, 0 where it is not known
	Override string // driver_override, "" where there is none
	VFs      int    // virtual functions that are enabled
	Physical string // of a virtual function, its physical function
	// ResetMethods are the kernel's ways to reset the function, in its order (sysfs, reset_method);
	// nil where it has none or does not say.
	ResetMethods []string
}

// Bridge tells whether the function is a bridge to another bus: those stay the kernel's, and do not count in an
// IOMMU group. (A bridge to ISA has the header of an endpoint, and counts.)
func (f *Function) Bridge() bool { return slices.Contains(bridges, f.Class>>8) }

// bridges are the PCI classes of bridges to another PCI bus: PCI, CardBus, semi-transparent PCI (PCI Code and ID
// Assignment Specification 1.11, 1.7).
var bridges = []uint32{0x0604, 0x0607, 0x0609}

// Link is a PCI Express link. A function that is no PCI Express endpoint has none (zero).
type Link struct {
	Speed, MaxSpeed string // as the kernel writes them: "8.0 GT/s PCIe"; the maximum is that of the slower end
	Width, MaxWidth int    // lanes; the maximum is that of the narrower end
}

// String gives "8.0 GT/s x8", with what the link could be where it runs below that.
func (l Link) String() string {
	if l.Width == 0 {
		return ""
	}
	if l.Degraded() {
		return l.Now() + " of " + l.Most()
	}
	return l.Now()
}

// Now is the link as it runs, "8.0 GT/s x8", and Most as it could.
func (l Link) Now() string { return fmt.Sprintf("%s x%d", speed(l.Speed), l.Width) }

// Most is the link as it could run by what both ends can.
func (l Link) Most() string { return fmt.Sprintf("%s x%d", speed(l.MaxSpeed), l.MaxWidth) }

// Degraded tells whether the link runs slower or narrower than both ends could.
func (l Link) Degraded() bool {
	return l.Width != 0 && (l.MaxWidth > l.Width || rate(l.MaxSpeed) > rate(l.Speed) && rate(l.Speed) > 0)
}

func speed(s string) string { return strings.TrimSuffix(s, " PCIe") }

// rate is a speed in GT/s, 0 where the kernel does not know it.
func rate(s string) float64 {
	n, _, _ := strings.Cut(s, " ")
	f, err := strconv.ParseFloat(n, 64)
	if err != nil {
		return 0
	}
	return f
}

// link reads a function's link. What it could be, the port above it decides too.
func link(path string) Link {
	l := Link{
		Speed: text(path, "current_link_speed"), MaxSpeed: text(path, "max_link_speed"),
		Width: number(path, "current_link_width", 0), MaxWidth: number(path, "max_link_width", 0),
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		port := filepath.Dir(real)
		if s := text(port, "max_link_speed"); rate(s) > 0 && rate(s) < rate(l.MaxSpeed) {
			l.MaxSpeed = s
		}
		if w := number(port, "max_link_width", 0); w > 0 && w < l.MaxWidth {
			l.MaxWidth = w
		}
	}
	return l
}

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

// Function describes one function. One that is not there is vfio.ErrNotFound.
func (t Tree) Function(addr string) (Function, error) {
	f, err := t.function(t.device(addr))
	if errors.Is(err, fs.ErrNotExist) {
		return f, &vfio.Error{Addr: addr, Op: "look for it", Object: "in " + filepath.Join(t.Sys, "bus/pci/devices"), Err: vfio.ErrNotFound}
	}
	if err != nil {
		return f, &vfio.Error{Addr: addr, Op: "read sysfs", Err: err}
	}
	list := []Function{f}
	err = t.holders(list)
	return list[0], err
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
		Link: link(path),
	}
	if g, err := strconv.Atoi(base(path, "iommu_group")); err == nil {
		f.Group = g
	}
	f.NUMANode = number(path, "numa_node", -1)
	f.Override = t.override(f.Address)
	f.VFs, f.Physical = number(path, "sriov_numvfs", 0), base(path, "physfn")
	f.ResetMethods = strings.Fields(text(path, "reset_method"))
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
	if t.quarantined(f.Address) {
		f.State = Quarantined
	}
	return f, nil
}

// dead tells whether the function's configuration space answers with all ones: it fell off the bus.
// A file that may not be read tells nothing.
func dead(path string) bool {
	v, d, err := configID(path)
	if err != nil {
		return !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist)
	}
	return v == 0xffff && d == 0xffff
}

// configID reads vendor and device from configuration space: what the function says now, where the attributes of
// sysfs hold what it said when it was found.
func configID(path string) (vendor, device uint16, err error) {
	c, err := os.Open(filepath.Join(path, "config"))
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	var id [4]byte
	if _, err := c.ReadAt(id[:], 0); err != nil {
		return 0, 0, err
	}
	return binary.LittleEndian.Uint16(id[:]), binary.LittleEndian.Uint16(id[2:]), nil
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
