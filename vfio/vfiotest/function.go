package vfiotest

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// BAR is a memory BAR.
type BAR struct {
	Size   uint64 // bytes, a power of two; 0: none
	NoMmap bool   // as a BAR that is smaller than a page, or an I/O BAR
	Sparse []vfio.Area
	// MSIXMappable is the kernel's word, since Linux 4.16, that the pages of the
	// MSI-X table may be mapped.
	MSIXMappable bool
}

// Function is a PCI function of the machine. Only Addr is needed.
type Function struct {
	Addr           string // 0000:03:00.0
	Vendor, Device uint16 // 0: 10ee:7264
	Class          uint32 // 24 bits; 0: an Ethernet controller
	Driver         string // "": vfio-pci; "none" for none
	Group          int    // 0: a group of its own
	BARs           [6]BAR // none at all: BAR 0 of 16 KiB
	MSIX           int    // vectors; 0: 4
	MSIXBAR        int
	MSIXOffset     uint64
	MSI            int  // vectors
	Vectors        int  // interrupt vectors that the machine has left; 0: enough
	NoResize       bool // MSI-X vectors are enabled as one set, as before Linux 6.5
	NotExpress     bool // without ERR
	NoReset        bool
	PhysFn         string // of a virtual function
	VFToken        string // that the kernel demands
	NumVFs         int
	NoIOMMU        bool // in no group
	Command        uint16
	VGA            bool

	k        *Kernel
	group    *group
	cdev     string
	open     *device
	config   [256]byte
	gone     bool
	resets   int
	released chan struct{}
}

// regionShift is where regions begin in the device's file, as in the kernel.
const regionShift = 40

const (
	msixCap = 0x40
	msiCap  = 0x50
	pcieCap = 0x60
)

// Add puts a function into the machine and gives it to drive.
func (k *Kernel) Add(f Function) *Function {
	k.mu.Lock()
	defer k.mu.Unlock()
	f.k = k
	if f.Vendor == 0 {
		f.Vendor, f.Device = 0x10ee, 0x7264
	}
	if f.Class == 0 {
		f.Class = 0x020000
	}
	if f.Driver == "" {
		f.Driver = "vfio-pci"
	}
	if !slices.ContainsFunc(f.BARs[:], func(b BAR) bool { return b.Size > 0 }) {
		f.BARs[0].Size = 16 << 10
	}
	if f.MSIX == 0 {
		f.MSIX = 4
	}
	if f.Group == 0 {
		f.Group = 100 + len(k.functions)
	}
	f.reset()
	k.functions[f.Addr] = &f
	g := k.groups[f.Group]
	if g == nil {
		g = &group{k: k, n: f.Group}
		k.groups[f.Group] = g
	}
	g.members = append(g.members, &f)
	f.group = g
	dir := "sys/bus/pci/devices/" + f.Addr
	k.files.put(dir+"/vendor", fmt.Sprintf("%#04x\n", f.Vendor))
	k.files.put(dir+"/device", fmt.Sprintf("%#04x\n", f.Device))
	k.files.put(dir+"/class", fmt.Sprintf("%#08x\n", f.Class))
	k.files.put(dir+"/sriov_numvfs", fmt.Sprintln(f.NumVFs))
	if f.PhysFn != "" {
		k.files.link(dir+"/physfn", "../"+f.PhysFn)
	}
	if f.Driver != "none" {
		k.files.link(dir+"/driver", "../../../bus/pci/drivers/"+f.Driver)
	}
	if !f.NoIOMMU {
		n := fmt.Sprint(f.Group)
		k.files.link(dir+"/iommu_group", "../../../kernel/iommu_groups/"+n)
		k.files.link("sys/kernel/iommu_groups/"+n+"/devices/"+f.Addr, "../../../../devices/"+f.Addr)
		if f.vfio() {
			k.files.node("dev/vfio/" + n)
		}
	}
	if f.vfio() && !f.NoIOMMU {
		f.cdev = fmt.Sprintf("vfio%d", k.cdevs)
		k.cdevs++
		k.files.put(dir+"/vfio-dev/"+f.cdev+"/dev", "511:0\n")
		if !k.m.NoCdev {
			k.files.node("dev/vfio/devices/" + f.cdev)
		}
	}
	return &f
}

func (f *Function) vfio() bool { return strings.Contains(f.Driver, "vfio") }

// reset fills configuration space as the kernel hands a function over: memory
// space on, bus mastering off.
func (f *Function) reset() {
	le := binary.LittleEndian
	c := f.config[:]
	clear(c)
	le.PutUint16(c[vfio.ConfigVendorID:], f.Vendor)
	le.PutUint16(c[vfio.ConfigDeviceID:], f.Device)
	le.PutUint16(c[vfio.ConfigCommand:], 0x103)
	if f.Command != 0 {
		le.PutUint16(c[vfio.ConfigCommand:], f.Command)
	}
	le.PutUint16(c[vfio.ConfigStatus:], 1<<4)
	le.PutUint32(c[vfio.ConfigRevision:], f.Class<<8|1)
	next := byte(0)
	if !f.NotExpress {
		next = pcieCap
		copy(c[pcieCap:], []byte{vfio.CapPCIExpress, 0, 2, 0})
	}
	if f.MSI > 0 {
		copy(c[msiCap:], []byte{vfio.CapMSI, next})
		next = msiCap
	}
	copy(c[msixCap:], []byte{vfio.CapMSIX, next})
	le.PutUint16(c[msixCap+2:], uint16(f.MSIX-1))
	le.PutUint32(c[msixCap+4:], uint32(f.MSIXOffset)|uint32(f.MSIXBAR))
	c[vfio.ConfigCapPtr] = msixCap
}

// mayMap holds where the kernel lets an area of a BAR be mapped
// (vfio_pci_core_mmap).
func (f *Function) mayMap(bar int, a vfio.Area) bool {
	page := uint64(os.Getpagesize())
	if bar >= len(f.BARs) || f.BARs[bar].NoMmap || a.Size == 0 || (a.Offset|a.Size)%page != 0 || a.Offset+a.Size > f.BARs[bar].Size {
		return false
	}
	if bar == f.MSIXBAR && !f.BARs[bar].MSIXMappable {
		end := f.MSIXOffset + 16*uint64(f.MSIX)
		return a.Offset+a.Size <= f.MSIXOffset&^(page-1) || a.Offset >= (end+page-1)&^(page-1)
	}
	return true
}

// Config reads n bytes of configuration space.
func (f *Function) Config(off, n int) []byte {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	return append([]byte(nil), f.config[off:off+n]...)
}

// BusMaster tells whether the function may do DMA and raise MSI.
func (f *Function) BusMaster() bool {
	return binary.LittleEndian.Uint16(f.Config(vfio.ConfigCommand, 2))&vfio.CommandBusMaster != 0
}

// Resets is how often the function was reset since it was opened.
func (f *Function) Resets() int {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	return f.resets
}

// Released is closed when the program has given the function back: its
// descriptor is closed. Taken before it is opened, it is nil.
func (f *Function) Released() <-chan struct{} {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	return f.released
}

// ReadDMA reads the program's memory as the function does, all or error.
func (f *Function) ReadDMA(iova uint64, p []byte) error { return f.dma(iova, p, false) }

// WriteDMA writes the program's memory as the function does, all or error.
func (f *Function) WriteDMA(iova uint64, p []byte) error { return f.dma(iova, p, true) }

func (f *Function) dma(iova uint64, p []byte, write bool) error {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	d := f.open
	if d == nil || f.gone || binary.LittleEndian.Uint16(f.config[vfio.ConfigCommand:])&vfio.CommandBusMaster == 0 {
		return unix.EIO
	}
	s := d.space
	if c := f.group.container; s == nil && c != nil {
		s = c.space
	}
	if s == nil {
		return unix.EFAULT
	}
	return s.access(iova, p, write)
}

// Raise raises an interrupt of index i, and tells whether somebody takes it.
func (f *Function) Raise(i, vector int) bool {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if f.open == nil || i == vfio.IRQMSIX && binary.LittleEndian.Uint16(f.config[vfio.ConfigCommand:])&vfio.CommandBusMaster == 0 {
		return false
	}
	return f.open.signal(i, vector)
}

// Request asks for the function back, as an unbinder does.
func (f *Function) Request() bool { return f.Raise(vfio.IRQREQ, 0) }

// Unplug takes the function out of its slot: it answers nothing any more.
// Remove is what the kernel does next.
func (f *Function) Unplug() {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	f.gone = true
}

// TakeAway takes the pages of all BARs that are mapped, as the kernel does when
// memory space goes off: an access is answered with SIGBUS.
func (k *Kernel) TakeAway() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.functions {
		if f.open != nil {
			if err := unix.Ftruncate(f.open.file, 0); err != nil {
				k.t.Error("vfiotest: ", err)
			}
		}
	}
}
