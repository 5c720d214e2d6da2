package vfiopci

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"rnic/vfio"
)

// function is what sysfs says about a PCI function. It is read when a function
// is opened and never after: an unbinder holds the device's lock until the
// function is given back, and a read could wait for it.
type function struct {
	bdf    string
	driver string // "" for none
	group  string // number of the IOMMU group
	cdev   string // /dev/vfio/devices/vfioN, or "" where the kernel has none
	physfn string // of a virtual function: its physical one
	sriov  bool   // a physical function with virtual ones
}

const pciDevices = "sys/bus/pci/devices/"

// readFunction looks at a function, and says why it cannot be opened where
// sysfs shows it.
func readFunction(files fs.ReadLinkFS, bdf string) (*function, error) {
	dir := pciDevices + bdf
	if _, err := files.Lstat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: /%s does not exist; rnicctl list --all shows the functions", vfio.ErrNotFound, dir)
		}
		return nil, err
	}
	f := &function{bdf: bdf, driver: linkBase(files, dir+"/driver"), group: linkBase(files, dir+"/iommu_group"), physfn: linkBase(files, dir+"/physfn")}
	if n, err := strconv.Atoi(text(files, dir+"/sriov_numvfs")); err == nil {
		f.sriov = n > 0
	}
	if list, err := fs.ReadDir(files, dir+"/vfio-dev"); err == nil && len(list) > 0 {
		node := "dev/vfio/devices/" + list[0].Name() // the folder in sysfs exists without the node
		if _, err := files.Lstat(node); err == nil {
			f.cdev = "/" + node
		}
	}
	switch {
	case f.group == "":
		return nil, &vfio.SetupError{Check: vfio.CheckIOMMUOff, Object: bdf, Value: "in no IOMMU group", Limit: "behind an IOMMU",
			Fix: "switch the IOMMU on in the firmware, and boot with intel_iommu=on or amd_iommu=on", Err: vfio.ErrNotSupported}
	case noIOMMU(files, f):
		return nil, &vfio.SetupError{Check: vfio.CheckNoIOMMU, Object: bdf + " group " + f.group, Value: "in VFIO's no-IOMMU mode",
			Limit: "behind an IOMMU: without one, any user of the card owns the machine",
			Fix:   "switch the IOMMU on in the firmware, and boot with intel_iommu=on or amd_iommu=on; there is no option to go without", Err: vfio.ErrNotSupported}
	case !onVFIO(f.driver):
		v := "bound to " + f.driver
		if f.driver == "" {
			v = "bound to no driver"
		}
		return nil, &vfio.SetupError{Check: vfio.CheckNotBound, Object: bdf, Value: v, Limit: "bound to vfio-pci", Fix: "rnicctl bind " + bdf, Err: vfio.ErrNotSupported}
	}
	return f, nil
}

func noIOMMU(files fs.ReadLinkFS, f *function) bool {
	if strings.HasPrefix(text(files, "sys/kernel/iommu_groups/"+f.group+"/name"), "vfio-noiommu") {
		return true
	}
	_, err := files.Lstat("dev/vfio/noiommu-" + f.group)
	return err == nil
}

// onVFIO holds for vfio-pci and its variants, such as mlx5_vfio_pci.
func onVFIO(driver string) bool {
	return driver == "vfio-pci" || strings.HasSuffix(driver, "-vfio-pci") || strings.HasSuffix(driver, "_vfio_pci")
}

// offenders are the functions of a group that keep it from being viable:
// endpoints on a driver that is not VFIO's. Bridges do not count.
func offenders(files fs.ReadLinkFS, group string) (list []string) {
	members, err := fs.ReadDir(files, "sys/kernel/iommu_groups/"+group+"/devices")
	if err != nil {
		return nil
	}
	for _, m := range members {
		dir := pciDevices + m.Name()
		driver := linkBase(files, dir+"/driver")
		class := text(files, dir+"/class")
		if _, err := files.Lstat(dir + "/vfio-dev"); err == nil { // a variant of vfio-pci
			continue
		}
		if driver == "" || driver == "pci-stub" || driver == "pcieport" || onVFIO(driver) || strings.HasPrefix(class, "0x0604") || strings.HasPrefix(class, "0x0607") {
			continue
		}
		list = append(list, fmt.Sprintf("%s is bound to %s", m.Name(), driver))
	}
	return list
}

// notViable is the error of a group in which other drivers have functions.
func notViable(files fs.ReadLinkFS, group string, cause error) error {
	bad := offenders(files, group)
	value, fix := strings.Join(bad, ", "), ""
	for _, b := range bad {
		bdf, _, _ := strings.Cut(b, " ")
		fix += " " + bdf
	}
	if len(bad) == 0 {
		value, fix = "the kernel calls it not viable, and sysfs shows no driver but VFIO's", " BDF, with what else is in /sys/kernel/iommu_groups/"+group+"/devices"
	}
	return &vfio.SetupError{Check: vfio.CheckGroupNotViable, Object: "IOMMU group " + group, Value: value,
		Limit: "every function of the group, bridges aside, is on vfio-pci or on no driver", Fix: "rnicctl bind" + fix, Err: cause}
}

var fdName = regexp.MustCompile(`^\d+$`)

// holders are the processes that have one of the nodes open, as far as this
// user may see it. self's descriptor skip is not counted.
func holders(files fs.ReadLinkFS, skip int, nodes ...string) (pids []int) {
	procs, err := fs.ReadDir(files, "proc")
	if err != nil {
		return nil
	}
	self := linkBase(files, "proc/self")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		fds, err := fs.ReadDir(files, "proc/"+p.Name()+"/fd")
		if err != nil {
			continue // ended, or another user's
		}
		for _, fd := range fds {
			if !fdName.MatchString(fd.Name()) || p.Name() == self && fd.Name() == strconv.Itoa(skip) {
				continue
			}
			if to, err := files.ReadLink("proc/" + p.Name() + "/fd/" + fd.Name()); err == nil && slices.Contains(nodes, to) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// text is a file's content without the newline, "" where it cannot be read.
func text(files fs.ReadLinkFS, name string) string {
	b, _ := fs.ReadFile(files, name)
	return strings.TrimSpace(string(b))
}

// linkBase is the last element of what a link points to, or "".
func linkBase(files fs.ReadLinkFS, name string) string {
	to, err := files.ReadLink(name)
	if err != nil {
		return ""
	}
	return path.Base(to)
}
