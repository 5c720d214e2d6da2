package pcidev

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Group lists the functions of an IOMMU group, by address, bridges among them. Those that the IOMMU cannot tell
// apart are in one group: the topology decides, and a group goes to user space as a whole.
func (t Tree) Group(n int) ([]Function, error) {
	entries, err := os.ReadDir(filepath.Join(t.Sys, "kernel/iommu_groups", strconv.Itoa(n), "devices"))
	if err != nil {
		return nil, err
	}
	var list []Function
	for _, e := range entries {
		f, err := t.function(t.device(e.Name()))
		if err != nil {
			return nil, fmt.Errorf("member %s of IOMMU group %d: %w", e.Name(), n, err)
		}
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Function) int { return strings.Compare(a.Address, b.Address) })
	return list, nil
}

// harmless are kernel drivers that do no DMA of their own, so that a group with them is viable
// (driver_managed_dma in the kernel).
var harmless = []string{VFIODriver, "pci-stub", "pcieport"}

// InTheWay tells whether the function keeps its group from user space: a kernel driver has it, and it is no bridge.
// A driver that is a variant of vfio-pci is none.
func (t Tree) InTheWay(f *Function) bool {
	return f.Driver != "" && !f.Bridge() && !slices.Contains(harmless, f.Driver) && !exists(filepath.Join(t.device(f.Address), "vfio-dev"))
}

// Offenders are the functions of addr's group that keep it from user space once addr itself is bound to vfio-pci.
func (t Tree) Offenders(f *Function) ([]Function, error) {
	members, err := t.Group(f.Group)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(members, func(m Function) bool { return m.Address == f.Address || !t.InTheWay(&m) }), nil
}

// NoIOMMU tells whether the function's group is one that the kernel's no-IOMMU mode made up: there is no IOMMU
// behind it.
func (t Tree) NoIOMMU(f *Function) bool {
	return f.Group >= 0 && text(filepath.Join(t.Sys, "kernel/iommu_groups", strconv.Itoa(f.Group)), "name") == "vfio-noiommu"
}

// names lists functions with their drivers.
func names(list []Function) string {
	var s []string
	for _, f := range list {
		s = append(s, fmt.Sprintf("%s (%s)", f.Address, f.Driver))
	}
	return strings.Join(s, ", ")
}
