// Command probe is a payload that looks at what a guest was given, without VFIO's calls: that each function is there,
// translated by an IOMMU, bound to vfio-pci, and has the nodes of the interface that was asked for.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	functions := strings.FieldsFunc(os.Getenv("RNIC_VM_CARDS")+","+os.Getenv("RNIC_VM_DEVICES"), func(r rune) bool { return r == ',' })
	err := errors.New("RNIC_VM_CARDS and RNIC_VM_DEVICES name no function")
	if len(functions) > 0 {
		err = nil
	}
	for _, bdf := range functions {
		if e := look(bdf, os.Getenv("RNIC_VM_VFIO")); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", bdf, e))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func look(bdf, vfio string) error {
	dev := "/sys/bus/pci/devices/" + bdf
	ids, err := os.ReadFile(dev + "/config")
	if err != nil {
		return err
	}
	driver, err := os.Readlink(dev + "/driver")
	if err != nil {
		return err
	}
	if filepath.Base(driver) != "vfio-pci" {
		return fmt.Errorf("its driver is %s", filepath.Base(driver))
	}
	group, err := os.Readlink(dev + "/iommu_group")
	if err != nil {
		return fmt.Errorf("no IOMMU translates for it: %w", err)
	}
	kind, err := os.ReadFile(dev + "/iommu_group/type")
	if err != nil {
		return err
	}
	nodes := []string{"/dev/vfio/vfio", "/dev/vfio/" + filepath.Base(group)}
	if vfio != "type1" {
		nodes = []string{"/dev/iommu"}
		names, err := filepath.Glob(dev + "/vfio-dev/vfio*")
		if err != nil || len(names) != 1 {
			return fmt.Errorf("%d names under vfio-dev, want one", len(names))
		}
		nodes = append(nodes, "/dev/vfio/devices/"+filepath.Base(names[0]))
	}
	for _, n := range nodes {
		info, err := os.Stat(n)
		if err != nil {
			return err
		}
		if info.Mode()&os.ModeCharDevice == 0 {
			return fmt.Errorf("%s is no character device", n)
		}
	}
	fmt.Printf("%s %02x%02x:%02x%02x group %s %s\n", bdf, ids[1], ids[0], ids[3], ids[2], filepath.Base(group), strings.TrimSpace(string(kind)))
	return nil
}
