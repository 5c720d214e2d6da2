// Package pcitest is a machine for tests of programs that set up PCI functions: a sysfs and a procfs in a
// temporary folder, with a kernel behind them that does what Linux does when an attribute of the PCI bus is written
// (drivers/base/bus.c, drivers/pci/pci-driver.c, pci-sysfs.c), and that fails where it is told to.
package pcitest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio/pcidev"
)

// Function is a PCI function of the machine.
type Function struct {
	Addr           string // 0000:03:00.0
	Vendor, Device uint16
	Class          uint32 // 24 bits; 0 is an Ethernet controller
	Driver         string // that has it at first, "" for none
	Group          int    // IOMMU group, -1 for none
	Port           string // address of the root port above, "" for none
	ResetMethods   string // as reset_method has them
	Broken         bool   // configuration space reads all ones
}

// Machine is a machine. Its fields may be changed between calls.
type Machine struct {
	// Fail is asked before an attribute is written or a program is run; an error is what the kernel or the program
	// gives, and nothing is done. nil never fails.
	Fail func(path, text string) error
	// Ran are the programs that were run; modprobe of a driver that was told to Driver loads it.
	Ran []string

	t         testing.TB
	mu        sync.Mutex
	root      string
	drivers   []string          // registered, in the order of their probing
	modules   map[string]string // driver by module, not loaded yet
	knows     map[string][]string
	functions map[string]*Function
}

// New makes a machine without functions. vfio-pci is loaded.
func New(t testing.TB) *Machine {
	m := &Machine{t: t, root: t.TempDir(), modules: map[string]string{}, knows: map[string][]string{}, functions: map[string]*Function{}}
	for _, dir := range []string{"sys/bus/pci/devices", "sys/kernel/iommu_groups", "proc", "dev", "etc/udev/rules.d", "run", "sys/module"} {
		m.mkdir(dir)
	}
	m.File("sys/bus/pci/drivers_probe", "")
	m.File("sys/bus/pci/rescan", "")
	m.Driver(pcidev.VFIODriver)
	return m
}

// Tree is where the machine lies.
func (m *Machine) Tree() pcidev.Tree {
	t := pcidev.Under(m.root)
	t.Write, t.Exec = m.write, m.exec
	return t
}

// Path is a file's place, by its path on the machine.
func (m *Machine) Path(p string) string { return filepath.Join(m.root, p) }

// File makes a file with its folders.
func (m *Machine) File(path, text string) {
	m.t.Helper()
	path = m.Path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// Link makes a symbolic link, and its folders.
func (m *Machine) Link(path, target string) {
	m.t.Helper()
	path = m.Path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		m.t.Fatal(err)
	}
}

// Read gives a file's text without the newline at its end; "" where there is none.
func (m *Machine) Read(path string) string {
	b, _ := os.ReadFile(m.Path(path))
	return strings.TrimSuffix(string(b), "\n")
}

func (m *Machine) mkdir(path string) {
	m.t.Helper()
	if err := os.MkdirAll(m.Path(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// Driver loads a driver that knows these IDs ("8086:10d3").
func (m *Machine) Driver(name string, ids ...string) {
	m.t.Helper()
	m.drivers, m.knows[name] = append(m.drivers, name), ids
	dir := "sys/bus/pci/drivers/" + name
	for _, a := range []string{"bind", "unbind", "new_id", "remove_id"} {
		m.File(dir+"/"+a, "")
	}
	m.Link(dir+"/module", m.Path("sys/module/"+name+"_mod"))
	m.mkdir("sys/module/" + name + "_mod")
}

// Unload takes a driver away; modprobe NAME or NAME_mod loads it again.
func (m *Machine) Unload(name string) {
	m.t.Helper()
	m.drivers = slices.DeleteFunc(m.drivers, func(d string) bool { return d == name })
	m.modules[name], m.modules[name+"_mod"] = name, name
	for _, path := range []string{"sys/bus/pci/drivers/" + name, "sys/module/" + name + "_mod"} {
		if err := os.RemoveAll(m.Path(path)); err != nil {
			m.t.Fatal(err)
		}
	}
}

// Add plugs a function in.
func (m *Machine) Add(f Function) {
	m.t.Helper()
	if f.Class == 0 {
		f.Class = 0x020000
	}
	m.functions[f.Addr] = &f
	m.plug(&f)
	if f.Driver != "" {
		if err := m.attach(&f, f.Driver); err != nil {
			m.t.Fatal(err)
		}
	}
}

// dir is a function's folder in the tree of devices, by its path on the machine.
func (f *Function) dir() string {
	dir := "sys/devices/pci0000:00/"
	if f.Port != "" {
		dir += f.Port + "/"
	}
	return dir + f.Addr
}

// plug makes the files that a Linux 6 kernel gives every PCI function.
func (m *Machine) plug(f *Function) {
	m.t.Helper()
	dir := f.dir() + "/"
	id := []byte{byte(f.Vendor), byte(f.Vendor >> 8), byte(f.Device), byte(f.Device >> 8)}
	if f.Broken {
		id = []byte{0xff, 0xff, 0xff, 0xff}
	}
	for name, text := range map[string]string{
		"vendor": fmt.Sprintf("%#04x\n", f.Vendor), "device": fmt.Sprintf("%#04x\n", f.Device), "class": fmt.Sprintf("%#06x\n", f.Class),
		"irq": "11\n", "resource": "0x00000000fe800000 0x00000000fe80ffff 0x0000000000140204\n", "config": string(id) + "\x00\x00\x10\x00",
		"numa_node": "-1\n", "driver_override": "(null)\n", "remove": "", "modalias": fmt.Sprintf("pci:v%08Xd%08Xsv00000000sd00000000bc02sc00i00\n", f.Vendor, f.Device),
	} {
		m.File(dir+name, text)
	}
	if f.ResetMethods != "" {
		m.File(dir+"reset", "")
		m.File(dir+"reset_method", f.ResetMethods+"\n")
	}
	m.Link("sys/bus/pci/devices/"+f.Addr, m.Path(f.dir()))
	if f.Group >= 0 {
		group := fmt.Sprintf("sys/kernel/iommu_groups/%d/", f.Group)
		m.File(group+"type", "DMA\n")
		m.File(group+"reserved_regions", "0x00000000fee00000 0x00000000feefffff msi\n0x000000fd00000000 0x000000ffffffffff reserved\n")
		m.Link(group+"devices/"+f.Addr, m.Path(f.dir()))
		m.Link(dir+"iommu_group", m.Path(group))
	}
}

// Hold makes a process that has a file open.
func (m *Machine) Hold(pid int, program, file string) {
	m.t.Helper()
	dir := "proc/" + strconv.Itoa(pid)
	m.File(dir+"/comm", program+"\n")
	m.Link(dir+"/fd/7", file)
}

// Bound is the driver that has a function, "" for none.
func (m *Machine) Bound(addr string) string {
	target, err := os.Readlink(m.Path("sys/bus/pci/devices/" + addr + "/driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// exec runs a program: modprobe is known.
func (m *Machine) exec(_ context.Context, name string, args ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	line := strings.Join(append([]string{name}, args...), " ")
	if m.Fail != nil {
		if err := m.Fail(name, line); err != nil {
			return err
		}
	}
	m.Ran = append(m.Ran, line)
	if name != "modprobe" {
		return nil
	}
	driver, ok := m.modules[args[len(args)-1]]
	if !ok {
		return fmt.Errorf("modprobe: FATAL: Module %s not found", args[len(args)-1])
	}
	m.Driver(driver, m.knows[driver]...)
	for _, f := range m.functions {
		m.probe(f)
	}
	return nil
}

// write does what the kernel does when an attribute is written.
func (m *Machine) write(path, text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Fail != nil {
		if err := m.Fail(path, text); err != nil {
			return err
		}
	}
	if _, err := os.Stat(path); err != nil { // sysfs makes no files
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	text = strings.TrimSuffix(text, "\n")
	on := m.functions[filepath.Base(filepath.Dir(real))]
	switch attr, to := filepath.Base(path), m.functions[text]; {
	case attr == "drivers_probe" && to != nil:
		m.probe(to)
		return nil
	case attr == "rescan":
		for _, f := range m.functions {
			if _, err := os.Stat(m.Path(f.dir())); err != nil {
				m.plug(f)
				m.probe(f)
			}
		}
		return nil
	case (attr == "bind" || attr == "unbind" || attr == "drivers_probe") && to == nil:
		return unix.ENODEV
	case attr == "bind":
		driver := filepath.Base(filepath.Dir(real))
		if m.Bound(text) != "" || !m.matches(to, driver) {
			return unix.ENODEV
		}
		return m.attach(to, driver)
	case attr == "unbind":
		if m.Bound(text) != filepath.Base(filepath.Dir(real)) {
			return unix.ENODEV
		}
		return m.detach(to)
	case attr == "driver_override" && on != nil:
		if text == "" {
			text = "(null)"
		}
		return os.WriteFile(real, []byte(text+"\n"), 0o644)
	case attr == "remove" && on != nil:
		return m.unplug(on)
	case attr == "reset" && on != nil:
		return nil
	}
	return os.WriteFile(real, []byte(text+"\n"), 0o644)
}

// matches tells whether a driver is for a function (pci_match_device): with an override, that driver alone.
func (m *Machine) matches(f *Function, driver string) bool {
	if o := m.Read(f.dir() + "/driver_override"); o != "(null)" {
		return o == driver
	}
	return slices.Contains(m.knows[driver], fmt.Sprintf("%04x:%04x", f.Vendor, f.Device)) ||
		strings.Contains(m.Read("sys/bus/pci/drivers/"+driver+"/new_id"), fmt.Sprintf("%04x %04x", f.Vendor, f.Device))
}

// probe gives a function without a driver to the first that matches.
func (m *Machine) probe(f *Function) {
	if m.Bound(f.Addr) != "" {
		return
	}
	for _, d := range m.drivers {
		if m.matches(f, d) {
			_ = m.attach(f, d) // the kernel's probe of a bus does not give a driver's error
			return
		}
	}
}

func (m *Machine) attach(f *Function, driver string) error {
	if driver == pcidev.VFIODriver {
		if f.Group < 0 { // vfio_register_group_dev
			return unix.EINVAL
		}
		m.mkdir(f.dir() + "/vfio-dev/vfio" + strconv.Itoa(f.Group))
	}
	return os.Symlink(m.Path("sys/bus/pci/drivers/"+driver), m.Path(f.dir()+"/driver"))
}

func (m *Machine) detach(f *Function) error {
	if err := os.RemoveAll(m.Path(f.dir() + "/vfio-dev")); err != nil {
		return err
	}
	return os.Remove(m.Path(f.dir() + "/driver"))
}

func (m *Machine) unplug(f *Function) error {
	for _, path := range []string{f.dir(), "sys/bus/pci/devices/" + f.Addr, fmt.Sprintf("sys/kernel/iommu_groups/%d/devices/%s", f.Group, f.Addr)} {
		if err := os.RemoveAll(m.Path(path)); err != nil {
			return err
		}
	}
	return nil
}

// Snapshot gives every file and link of the machine with its content, to see what was changed.
func (m *Machine) Snapshot() map[string]string {
	m.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var content string
		switch {
		case d.Type()&os.ModeSymlink != 0:
			content, err = os.Readlink(path)
		case d.Type().IsRegular():
			var b []byte
			b, err = os.ReadFile(path)
			content = string(b)
		}
		all[strings.TrimPrefix(path, m.root)] = content
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return all
}
