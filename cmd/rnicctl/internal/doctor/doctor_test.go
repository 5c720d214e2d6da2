package doctor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/cmd/rnicctl/internal/doctor"
	"rnic/hw"
	_ "rnic/hw/softcard/soft"
	"rnic/vfio"
	"rnic/vfio/pcidev"
	"rnic/vfio/pcidev/pcitest"
)

const card = "0000:03:00.0"

// patient is a machine on which nothing is wrong, with a card that is free, and the doctor that looks at it as an
// ordinary user.
type patient struct {
	m *pcitest.Machine
	doctor.Doctor
	denied []string // files that the user may not open
	raised string   // what Memlock was asked for
}

func healthy(t *testing.T) *patient {
	m := pcitest.New(t)
	m.Driver("xdma", "10ee:7264")
	m.Add(pcitest.Function{Addr: card, Port: "0000:00:02.0", Vendor: hw.PCIVendorID, Device: hw.PCIDeviceID, Group: 17, ResetMethods: "flr"})
	m.File("proc/cpuinfo", "vendor_id\t: GenuineIntel\n")
	m.File("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         67108864             unlimited            bytes     \n")
	m.File("proc/self/status", "Name:\trnicctl\nPPid:\t812\nCapEff:\t0000000000000000\n")
	m.File("proc/interrupts", "           CPU0\n  0:         41   IR-IO-APIC    2-edge      timer\n 24:          0   IR-PCI-MSI-0000:00:02.0    0-edge\n")
	m.File("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n")
	m.File("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "65535\n")
	m.File("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N\n")
	m.File("dev/vfio/vfio", "")
	m.File("dev/vfio/17", "")
	m.File("etc/udev/rules.d/60-rnic.rules", "")
	m.File("etc/group", "root:x:0:\n")
	for name, text := range map[string]string{"current_link_speed": "8.0 GT/s PCIe", "max_link_speed": "8.0 GT/s PCIe", "current_link_width": "8", "max_link_width": "8"} {
		m.File("sys/devices/pci0000:00/0000:00:02.0/"+card+"/"+name, text+"\n")
	}
	p := &patient{m: m}
	if _, err := m.Tree().Bind(t.Context(), []string{card}, pcidev.Options{}); err != nil {
		t.Fatal(err)
	}
	p.Doctor = doctor.Doctor{
		Tree: m.Tree(), IDs: []pcidev.ID{{Vendor: hw.PCIVendorID, Device: hw.PCIDeviceID}}, UID: 1000, Timeout: 5 * time.Second,
		Open: func(ctx context.Context, addr string) (vfio.Device, error) { return vfio.Open(ctx, "soft:doctor") },
		Access: func(path string) error {
			for _, d := range p.denied {
				if path == m.Path(d) {
					return unix.EACCES
				}
			}
			_, err := os.Stat(path)
			return err
		},
		Memlock: func(pid int, soft, hard uint64) error {
			p.raised = fmt.Sprint(pid, soft, hard)
			return nil
		},
	}
	return p
}

// look gives the findings by check.
func (p *patient) look(t *testing.T) map[string]doctor.Finding {
	t.Helper()
	found, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]doctor.Finding{}
	for _, f := range found {
		if f.Value == "" || f.Object == "" {
			t.Errorf("%+v", f)
		}
		if _, twice := by[f.Check]; twice {
			t.Errorf("%s is there twice", f.Check)
		}
		by[f.Check] = f
	}
	return by
}

// TestHealthy: where nothing is wrong nothing is found, and every check was made: none that a healthy machine does
// not have is skipped.
func TestHealthy(t *testing.T) {
	p := healthy(t)
	p.Open = func(ctx context.Context, addr string) (vfio.Device, error) {
		dev, err := vfio.Open(ctx, "soft:healthy")
		return ranges{dev, []vfio.IOVARange{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: 1<<48 - 1}}}, err
	}
	by := p.look(t)
	for _, check := range doctor.Checks {
		f, ok := by[check]
		if wrong := check == doctor.NoCard || check == doctor.OpenFailed || check == doctor.VFToken; ok == wrong || ok && (f.Result != doctor.OK || f.Fix != "" || f.Repair != nil) {
			t.Errorf("%s: %+v", check, f)
		}
	}
	p.Addrs = []string{"soft:alone"} // which needs nothing of the kernel's
	if by := p.look(t); len(by) != 3 || by[doctor.Contract].Result != doctor.OK {
		t.Errorf("%v", by)
	}
}

// ranges is a card behind an IOMMU with these ranges.
type ranges struct {
	vfio.Device
	list []vfio.IOVARange
}

func (r ranges) IOVARanges() []vfio.IOVARange { return r.list }

// registers is a card whose registers read as told.
type registers struct {
	vfio.Device
	values map[uint64]uint32 // by offset in BAR CTRL; nil is all ones everywhere
}

func (r registers) ReadRegion(i int, off uint64, p []byte) error {
	v, told := r.values[off]
	if i == hw.BARCtrl && len(p) == 4 && (told || r.values == nil) {
		if r.values == nil {
			v = ^uint32(0)
		}
		binary.LittleEndian.PutUint32(p, v)
		return nil
	}
	return r.Device.ReadRegion(i, off, p)
}

// TestSET_Checks provokes each fault, and wants it found under its name, with object, present value, limit and remedy;
// and that nothing is called safe but what is.
func TestSET_Checks(t *testing.T) {
	soft := func(wrap func(vfio.Device) vfio.Device) func(*patient) {
		return func(p *patient) {
			open := p.Open
			p.Open = func(ctx context.Context, addr string) (vfio.Device, error) {
				d, err := open(ctx, addr)
				if err != nil {
					return nil, err
				}
				return wrap(d), nil
			}
		}
	}
	refuses := func(err error) func(*patient) {
		return func(p *patient) {
			p.Open = func(context.Context, string) (vfio.Device, error) {
				return nil, &vfio.Error{Addr: card, Op: "open", Err: err}
			}
		}
	}
	for _, c := range []struct {
		check, name string
		provoke     func(*patient)
		result      doctor.Result
		object      string
		value       string // parts, divided by |
		limit       string
		fix         string
		safe        bool
	}{
		{doctor.IOMMUOff, "no groups", func(p *patient) { remove(p, "sys/kernel/iommu_groups/17") }, doctor.Fail, "machine", "0 IOMMU groups", "at least 1", "intel_iommu=on", false},
		{doctor.IOMMUOff, "AMD", func(p *patient) {
			remove(p, "sys/kernel/iommu_groups/17")
			p.m.File("proc/cpuinfo", "vendor_id : AuthenticAMD\n")
		}, doctor.Fail, "machine", "0", "1", "amd_iommu=on", false},
		{doctor.IOMMUOff, "groups of no-IOMMU mode", func(p *patient) { p.m.File("sys/kernel/iommu_groups/17/name", "vfio-noiommu\n") }, doctor.Fail, "machine", "0", "1", "intel_iommu", false},
		{doctor.NoIOMMU, "mode", func(p *patient) { p.m.File("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n") }, doctor.Fail, "machine", "enable_unsafe_noiommu_mode is Y", "N", "echo N", false},
		{doctor.NoModule, "vfio-pci", func(p *patient) { p.m.Unload("vfio-pci") }, doctor.Fail, "machine", "vfio-pci is not loaded", "vfio-pci", "modprobe vfio-pci", true},
		{doctor.NoModule, "container", func(p *patient) { remove(p, "dev/vfio/vfio") }, doctor.Fail, "machine", "neither /dev/vfio/vfio nor /dev/iommu", "/dev/iommu", "modprobe vfio_iommu_type1", true},
		{doctor.MemlockLow, "soft", func(p *patient) { p.m.File("proc/self/limits", "Max locked memory 65536 134217728 bytes\n") }, doctor.Fail, "machine", "RLIMIT_MEMLOCK|soft 64 KiB|hard 128 MiB", "64 MiB", "prlimit --pid 812 --memlock=134217728:134217728|ulimit -l 131072", true},
		{doctor.MemlockLow, "hard", func(p *patient) { p.m.File("proc/self/limits", "Max locked memory 8388608 8388608 bytes\n") }, doctor.Fail, "machine", "soft 8 MiB, hard 8 MiB", "64 MiB", "limits.d/rnic.conf|LimitMEMLOCK", false},
		{doctor.MappingLimit, "64", func(p *patient) { p.m.File("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "64\n") }, doctor.Fail, "machine", "dma_entry_limit|64 DMA mappings", "1024", "echo 65535 >", true},
		{doctor.MSINoRemap, "off", func(p *patient) { p.m.File("proc/interrupts", "  0: 41   IO-APIC    2-edge      timer\n") }, doctor.Fail, "machine", "remapping is off", "a device", "intremap|allow_unsafe_interrupts", false},
		{doctor.MSINoRemap, "off, and allowed", func(p *patient) {
			p.m.File("proc/interrupts", "  0: 41   IO-APIC    2-edge      timer\n")
			p.m.File("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n")
		}, doctor.Warn, "machine", "vfio_iommu_type1.allow_unsafe_interrupts", "a device", "firmware", false},
		{doctor.NoUdevRule, "user", func(p *patient) { remove(p, "etc/udev/rules.d/60-rnic.rules") }, doctor.Warn, "machine", "60-rnic.rules is not there", "there", "rnicctl doctor --fix", false},
		{doctor.NoUdevRule, "root", func(p *patient) { remove(p, "etc/udev/rules.d/60-rnic.rules"); p.UID = 0 }, doctor.Warn, "machine", "60-rnic.rules", "there", "doctor --fix", true},
		{doctor.NoCard, "other IDs", func(p *patient) { p.IDs = []pcidev.ID{{Vendor: 0x1234, Device: 0x5678}} }, doctor.Fail, "machine", "no PCI function", "1234:5678", "rescan|/etc/rnic/pci.ids", false},
		{doctor.Quarantined, "", func(p *patient) {
			_ = p.Tree.SetQuarantine(card, &pcidev.Quarantine{Reason: "no reset works", By: "hil"})
		}, doctor.Fail, card, "no reset works|hil", "no", "rm |quarantine/" + card, false},
		{doctor.VFsEnabled, "", func(p *patient) {
			unbind(p)
			p.m.File("sys/devices/pci0000:00/0000:00:02.0/"+card+"/sriov_numvfs", "3\n")
		}, doctor.Fail, card, "3 virtual functions", "0", "echo 0 >", false},
		{doctor.NotBound, "no driver", unbind, doctor.Fail, card, "no driver", "vfio-pci", "rnicctl bind " + card, true},
		{doctor.NotBound, "a driver", func(p *patient) { unbind(p); write(p, "sys/bus/pci/drivers_probe", card) }, doctor.Fail, card, "driver xdma", "vfio-pci", "rnicctl bind " + card, false},
		{doctor.GroupNotReady, "", func(p *patient) {
			p.m.Add(pcitest.Function{Addr: "0000:03:00.1", Driver: "xdma", Group: 17})
		}, doctor.Fail, card, "group 17|0000:03:00.1 (xdma)", "no kernel driver", "bind --group " + card, false},
		{doctor.GroupNotReady, "no-IOMMU", func(p *patient) { p.m.File("sys/kernel/iommu_groups/17/name", "vfio-noiommu\n") }, doctor.Fail, card, "group 17", "an IOMMU", "iommu-off", false},
		{doctor.Busy, "", func(p *patient) { p.m.Hold(4711, "pump", "/dev/vfio/17") }, doctor.Fail, card, "pid 4711 (pump)", "free", "kill 4711", false},
		{doctor.Busy, "seen by opening", refuses(&vfio.BusyError{PID: 99}), doctor.Fail, card, "pid 99", "free", "end the process", false},
		{doctor.NoPermission, "group's file", func(p *patient) { p.denied = []string{"dev/vfio/17"} }, doctor.Fail, card, "dev/vfio/17", "readable and writable", "udev rule|usermod -aG rnic", false},
		{doctor.NoPermission, "both ways", func(p *patient) {
			p.m.File("dev/iommu", "")
			p.m.File("dev/vfio/devices/vfio17", "")
			p.denied = []string{"dev/vfio/17", "dev/iommu"}
		}, doctor.Fail, card, "dev/vfio/17|dev/iommu", "readable and writable", "usermod", false},
		{doctor.NoPermission, "no files", func(p *patient) { remove(p, "dev/vfio/17") }, doctor.Fail, card, "there is no |dev/vfio/17", "readable and writable", "dmesg", false},
		{doctor.NoPermission, "seen by opening", refuses(vfio.ErrPermission), doctor.Fail, card, "permission denied", "readable", "udev rule", false},
		{doctor.VFToken, "seen by opening", refuses(&vfio.SetupError{Check: vfio.CheckVFToken, Object: "its physical function", Value: "is on vfio-pci", Limit: "a token", Fix: "give it", Err: vfio.ErrPermission}),
			doctor.Fail, card, "its physical function: is on vfio-pci", "a token", "give it", false},
		{doctor.LinkDegraded, "width", func(p *patient) {
			p.m.File("sys/devices/pci0000:00/0000:00:02.0/"+card+"/current_link_width", "4\n")
		}, doctor.Fail, card, "8.0 GT/s x4", "8.0 GT/s x8", "seat the card", false},
		{doctor.LinkDegraded, "speed", func(p *patient) {
			p.m.File("sys/devices/pci0000:00/0000:00:02.0/"+card+"/current_link_speed", "2.5 GT/s PCIe\n")
		}, doctor.Fail, card, "2.5 GT/s x8", "8.0 GT/s x8", "seat", false},
		{doctor.AllOnes, "configuration space", func(p *patient) {
			p.m.File("sys/devices/pci0000:00/0000:00:02.0/"+card+"/config", "\xff\xff\xff\xff")
		}, doctor.Fail, card, "ffff:ffff", "10ee:7264", "rnicctl reset " + card, false},
		{doctor.AllOnes, "registers", soft(func(d vfio.Device) vfio.Device { return registers{d, nil} }), doctor.Fail, card, "BAR 0|0xffffffff", "0x43494e52", "rnicctl reset " + card, false},
		{doctor.GroupNotReady, "seen by opening", refuses(&vfio.SetupError{Check: vfio.CheckGroupNotViable, Object: card, Value: "e1000e has one", Limit: "nobody else", Fix: "rnicctl bind", Err: vfio.ErrBusy}),
			doctor.Fail, card, "e1000e has one", "nobody else", "rnicctl bind", false},
		{doctor.OpenFailed, "no remapping", refuses(&vfio.SetupError{Check: vfio.CheckMSINoRemap, Object: card, Value: "not remapped", Limit: "remapping on", Fix: "firmware", Err: vfio.ErrNotSupported}),
			doctor.Fail, card, "not remapped", "remapping on", "firmware", false},
		{doctor.OpenFailed, "", refuses(errors.New("something else")), doctor.Fail, card, "something else", "can be opened", "dmesg", false},
		{doctor.Contract, "magic", soft(func(d vfio.Device) vfio.Device {
			return registers{d, map[uint64]uint32{hw.RegIdentMagic: 0x1234}}
		}), doctor.Fail, card, "IDENT.MAGIC is 0x1234", "0x43494e52", "image", false},
		{doctor.Contract, "version", soft(func(d vfio.Device) vfio.Device {
			return registers{d, map[uint64]uint32{hw.RegIdentVersion: uint32(hw.IdentVersion(0).WithMajor(9))}}
		}), doctor.Fail, card, "contract 9.0", "contract 1.x", "image of this contract", false},
		{doctor.IOVAWidth, "39 bits", soft(func(d vfio.Device) vfio.Device {
			return ranges{d, []vfio.IOVARange{{First: 0, Last: 1<<39 - 1}}}
		}), doctor.Warn, card, "39 bits|0x0-0x7fffffffff", "48 bits", "0x8000000000", false},
		{doctor.IOVAWidth, "too little", soft(func(d vfio.Device) vfio.Device {
			return registers{ranges{d, []vfio.IOVARange{{First: 1 << 32, Last: 1<<48 - 1}}}, map[uint64]uint32{hw.RegIdentDMABits: 32}}
		}), doctor.Fail, card, "the card has 32", "1024 MiB", "more address bits", false},
		{doctor.MSIWindow, "can be mapped", soft(func(d vfio.Device) vfio.Device {
			return ranges{d, []vfio.IOVARange{{First: 0, Last: 0xfee00fff}, {First: 0xfef00000, Last: 1<<48 - 1}}}
		}), doctor.Fail, card, "0xfee00000-0xfeefffff", "none of them", "MapDMA", false},
	} {
		t.Run(c.check+"/"+c.name, func(t *testing.T) {
			p := healthy(t)
			c.provoke(p)
			f, ok := p.look(t)[c.check]
			if !ok || f.Result != c.result || f.Object != c.object || (f.Repair != nil) != c.safe {
				t.Fatalf("found %+v", f)
			}
			for what, pair := range map[string][2]string{"value": {f.Value, c.value}, "limit": {f.Limit, c.limit}, "fix": {f.Fix, c.fix}} {
				for _, part := range strings.Split(pair[1], "|") {
					if pair[0] == "" || !strings.Contains(pair[0], part) {
						t.Errorf("the %s %q does not say %q", what, pair[0], part)
					}
				}
			}
		})
	}
}

// late is a card whose registers read as zero at first, as in a reset.
type late struct {
	vfio.Device
	zeros *int
}

func (l late) ReadRegion(i int, off uint64, p []byte) error {
	if *l.zeros > 0 && i == hw.BARCtrl {
		*l.zeros--
		clear(p)
		return nil
	}
	return l.Device.ReadRegion(i, off, p)
}

// TestResetIsWaitedFor: a card that is still in the reset of its opening is no other card.
func TestResetIsWaitedFor(t *testing.T) {
	p := healthy(t)
	open, zeros := p.Open, 5
	p.Open = func(ctx context.Context, addr string) (vfio.Device, error) {
		d, err := open(ctx, addr)
		return late{d, &zeros}, err
	}
	if f := p.look(t)[doctor.Contract]; f.Result != doctor.OK || zeros != 0 {
		t.Errorf("%+v", f)
	}
}

// TestSET_Waived: what looks wrong and is not.
func TestSET_Waived(t *testing.T) {
	for name, c := range map[string]struct {
		check   string
		provoke func(*patient)
		result  doctor.Result
	}{
		"CAP_IPC_LOCK": {doctor.MemlockLow, func(p *patient) {
			p.m.File("proc/self/limits", "Max locked memory 65536 65536 bytes\n")
			p.m.File("proc/self/status", "CapEff:\t0000000000004000\n")
		}, doctor.OK},
		"a slower slot": {doctor.LinkDegraded, func(p *patient) {
			p.m.File("sys/devices/pci0000:00/0000:00:02.0/"+card+"/current_link_speed", "2.5 GT/s PCIe\n")
			p.m.File("sys/devices/pci0000:00/0000:00:02.0/max_link_speed", "2.5 GT/s PCIe\n")
		}, doctor.OK},
		"the other way is open": {doctor.NoPermission, func(p *patient) {
			p.denied = []string{"dev/vfio/17"}
			p.m.File("dev/iommu", "")
			p.m.File("dev/vfio/devices/vfio17", "")
		}, doctor.OK},
		"iommufd alone": {doctor.NoModule, func(p *patient) { remove(p, "dev/vfio/vfio"); p.m.File("dev/iommu", "") }, doctor.OK},
		"arm64":         {doctor.MSINoRemap, func(p *patient) { p.m.File("proc/interrupts", " 48: 0 ITS-MSI 16384 Edge\n") }, doctor.OK},
		"unknown":       {doctor.MSINoRemap, func(p *patient) { p.m.File("proc/interrupts", "\n") }, doctor.Skip},
		"a package's rule": {doctor.NoUdevRule, func(p *patient) {
			remove(p, "etc/udev/rules.d/60-rnic.rules")
			p.m.File("usr/lib/udev/rules.d/60-rnic.rules", "")
		}, doctor.OK},
		"a bridge in the group": {doctor.GroupNotReady, func(p *patient) {
			p.m.Driver("pcieport")
			p.m.Add(pcitest.Function{Addr: "0000:00:03.0", Class: 0x060400, Driver: "pcieport", Group: 17})
		}, doctor.OK},
		"no type1":     {doctor.MappingLimit, func(p *patient) { remove(p, "sys/module/vfio_iommu_type1") }, doctor.Skip},
		"no limits":    {doctor.MemlockLow, func(p *patient) { p.m.File("proc/self/limits", "") }, doctor.Skip},
		"no link":      {doctor.LinkDegraded, func(p *patient) { remove(p, "sys/devices/pci0000:00/0000:00:02.0/"+card+"/current_link_width") }, doctor.Skip},
		"no window":    {doctor.MSIWindow, func(p *patient) { remove(p, "sys/kernel/iommu_groups/17/reserved_regions") }, doctor.Skip},
		"held, not in": {doctor.IOVAWidth, func(p *patient) { p.m.Hold(4711, "pump", "/dev/vfio/17") }, doctor.Skip},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			c.provoke(p)
			if f := p.look(t)[c.check]; f.Result != c.result {
				t.Errorf("%+v, want %s", f, c.result)
			}
		})
	}
}

// TestRepairs: each safe remedy does away with what it is for.
func TestRepairs(t *testing.T) {
	for _, c := range []struct {
		check   string
		provoke func(*patient)
		mended  func(*patient) bool
	}{
		{doctor.NoModule, func(p *patient) { p.m.Unload("vfio-pci") }, nil},
		{doctor.MappingLimit, func(p *patient) { p.m.File("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "64\n") }, nil},
		{doctor.NotBound, unbind, func(p *patient) bool { return p.m.Bound(card) == "vfio-pci" }},
		{doctor.MemlockLow, func(p *patient) { p.m.File("proc/self/limits", "Max locked memory 65536 134217728 bytes\n") }, func(p *patient) bool {
			return p.raised == "812 134217728 134217728"
		}},
		{doctor.NoUdevRule, func(p *patient) { remove(p, "etc/udev/rules.d/60-rnic.rules"); p.UID = 0 }, func(p *patient) bool {
			return p.m.Read("etc/udev/rules.d/60-rnic.rules") == strings.TrimSuffix(pcidev.Rule(p.IDs, "rnic"), "\n") &&
				strings.HasPrefix(strings.Join(p.m.Ran, "; "), "groupadd --system rnic; udevadm control --reload; udevadm trigger ")
		}},
	} {
		t.Run(c.check, func(t *testing.T) {
			p := healthy(t)
			c.provoke(p)
			f := p.look(t)[c.check]
			if f.Repair == nil || len(f.Repair.Commands) == 0 {
				t.Fatalf("%+v", f)
			}
			if err := f.Repair.Do(t.Context()); err != nil {
				t.Fatal(err)
			}
			again := p.look(t)[c.check]
			if c.mended != nil && !c.mended(p) || c.mended == nil && again.Result != doctor.OK {
				t.Errorf("afterwards: %+v", again)
			}
		})
	}
	// One that fails says so.
	p := healthy(t)
	p.m.Unload("vfio-pci")
	p.m.Fail = func(path, _ string) error {
		if path == "modprobe" {
			return fs.ErrPermission
		}
		return nil
	}
	if err := p.look(t)[doctor.NoModule].Repair.Do(t.Context()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error %v", err)
	}
}

func remove(p *patient, path string) {
	if err := os.RemoveAll(p.m.Path(path)); err != nil {
		panic(err)
	}
}

func write(p *patient, path, text string) {
	if err := p.Tree.Write(p.m.Path(path), text); err != nil {
		panic(err)
	}
}

func unbind(p *patient) {
	if _, err := p.Tree.Unbind(context.Background(), []string{card}, pcidev.Options{}); err != nil {
		panic(err)
	}
}
