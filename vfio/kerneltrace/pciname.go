package kerneltrace

import (
	"fmt"

	"github.com/cilium/ebpf/btf"
)

// pciName is where struct pci_dev keeps the pointer to its name, dev.kobj.name, in the running kernel.
type pciName struct {
	offset uint32
	known  bool
}

// findPCIName asks the kernel's own type information: struct pci_dev is no interface, and changes.
func findPCIName() (pciName, error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return pciName{}, fmt.Errorf("type information of the kernel (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	var dev *btf.Struct
	if err := kernel.TypeByName("pci_dev", &dev); err != nil {
		return pciName{}, fmt.Errorf("struct pci_dev in the kernel's type information: %w", err)
	}
	at := uint32(0)
	for _, name := range []string{"dev", "kobj", "name"} {
		m, ok := member(dev, name)
		if !ok {
			return pciName{}, fmt.Errorf("struct %s of the kernel has no %s", dev.Name, name)
		}
		at += m.Offset.Bytes()
		if name == "name" {
			break
		}
		s, ok := btf.As[*btf.Struct](m.Type)
		if !ok {
			return pciName{}, fmt.Errorf("%s of struct %s of the kernel is no structure", name, dev.Name)
		}
		dev = s
	}
	return pciName{offset: at, known: true}, nil
}

func member(s *btf.Struct, name string) (btf.Member, bool) {
	for _, m := range s.Members {
		if m.Name == name {
			return m, true
		}
	}
	return btf.Member{}, false
}
