package pcidev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree builds a sysfs and a procfs by hand.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree {
	return tree{t, t.TempDir()}
}

func (r tree) tree() Tree {
	return Tree{Sys: filepath.Join(r.root, "sys"), Proc: filepath.Join(r.root, "proc")}
}

func (r tree) write(path, content string) {
	r.t.Helper()
	path = filepath.Join(r.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r tree) link(path, target string) {
	r.t.Helper()
	path = filepath.Join(r.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		r.t.Fatal(err)
	}
}

// function makes the files that a Linux 6 kernel gives every PCI function.
func (r tree) function(addr, vendor, device, driver, config string) string {
	dir := "sys/bus/pci/devices/" + addr + "/"
	r.write(dir+"vendor", vendor+"\n")
	r.write(dir+"device", device+"\n")
	r.write(dir+"class", "0x020000\n")
	r.write(dir+"irq", "11\n")
	r.write(dir+"resource", "0x00000000fe800000 0x00000000fe80ffff 0x0000000000140204\n")
	r.write(dir+"config", config)
	r.write(dir+"numa_node", "1\n")
	if driver != "" {
		r.link(dir+"driver", "../../../bus/pci/drivers/"+driver)
	}
	return dir
}

const alive = "\xee\x10\x64\x72\x00\x00\x10\x00"

func TestFunctions(t *testing.T) {
	r := newTree(t)
	d := r.function("0000:03:00.0", "0x10ee", "0x7264", "vfio-pci", alive)
	r.link(d+"iommu_group", "../../../kernel/iommu_groups/17")
	r.write(d+"current_link_speed", "2.5 GT/s PCIe\n")
	r.write(d+"max_link_speed", "8.0 GT/s PCIe\n")
	r.write(d+"current_link_width", "8\n")
	r.write(d+"max_link_width", "8\n")
	d = r.function("0000:04:00.0", "0x10ee", "0x7264", "vfio-pci", alive)
	r.write(d+"vfio-dev/vfio3/dev", "1:2\n")
	r.function("0000:05:00.0", "0x10ee", "0x7264", "", alive)
	r.function("0000:06:00.0", "0x10ee", "0x7264", "xdma", alive)
	r.function("0000:07:00.0", "0x10ee", "0x7264", "vfio-pci", "\xff\xff\xff\xff\xff\xff")
	r.function("0000:00:1f.0", "0x8086", "0x2918", "lpc_ich", alive)
	r.write("proc/4711/comm", "pump\n")
	r.link("proc/4711/fd/9", "/dev/vfio/devices/vfio3")
	r.link("proc/4711/fd/10", "/dev/vfio/vfio")

	ours := func(v, d uint16) bool { return v == 0x10ee && d == 0x7264 }
	got, err := r.tree().Functions(ours)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		addr   string
		driver string
		group  int
		state  State
		pid    int
		link   string
	}{
		{"0000:03:00.0", "vfio-pci", 17, Ready, 0, "2.5 GT/s x8 of 8.0 GT/s x8"},
		{"0000:04:00.0", "vfio-pci", -1, Held, 4711, ""},
		{"0000:05:00.0", "", -1, Unbound, 0, ""},
		{"0000:06:00.0", "xdma", -1, Kernel, 0, ""},
		{"0000:07:00.0", "vfio-pci", -1, Broken, 0, ""},
	}
	if len(got) != len(want) {
		t.Fatalf("%d functions, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		g := got[i]
		if g.Address != w.addr || g.Driver != w.driver || g.Group != w.group || g.State != w.state || g.PID != w.pid || g.Link.String() != w.link {
			t.Errorf("function %d: got %+v (link %q), want %+v", i, g, g.Link, w)
		}
		if g.NUMANode != 1 || g.Class != 0x020000 || !strings.HasPrefix(g.Name, "Xilinx") {
			t.Errorf("function %s: node %d, class %#x, name %q", g.Address, g.NUMANode, g.Class, g.Name)
		}
	}
	if p := r.tree().Program(4711); p != "pump" {
		t.Errorf("program %q", p)
	}
	all, err := r.tree().Functions(func(uint16, uint16) bool { return true })
	if err != nil || len(all) != 6 || all[0].Address != "0000:00:1f.0" {
		t.Errorf("all: %v, %d functions", err, len(all))
	}
}

// TestNoPCI: a machine without PCI has no functions; that is no error.
func TestNoPCI(t *testing.T) {
	got, err := newTree(t).tree().Functions(func(uint16, uint16) bool { return true })
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestBadFile: sysfs that cannot be read is said, with the function's name.
func TestBadFile(t *testing.T) {
	r := newTree(t)
	d := r.function("0000:03:00.0", "0x10ee", "0x7264", "vfio-pci", alive)
	r.write(d+"vendor", "not a number\n")
	_, err := r.tree().Functions(func(uint16, uint16) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "0000:03:00.0") {
		t.Errorf("error %v does not name the function", err)
	}
}
