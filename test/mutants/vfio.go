package main

// Where the kernel's VFIO is spoken.
const (
	vfiopci     = "./vfio/vfiopci"
	containerGo = "vfio/vfiopci/container.go"
	iommufdGo   = "vfio/vfiopci/iommufd.go"
	pciOpenGo   = "vfio/vfiopci/open.go"
	pciDeviceGo = "vfio/vfiopci/device.go"
	pciDMAGo    = "vfio/vfiopci/dma.go"
	pciIRQGo    = "vfio/vfiopci/irq.go"
	pciLifeGo   = "vfio/vfiopci/life.go"
	sysfsGo     = "vfio/vfiopci/sysfs.go"
	capsGo      = "vfio/uapi/caps.go"
)

func init() { mutants = append(mutants, vfioMutants...) }

// vfioMutants are what such layers have got wrong: the table of docs/vfio.md.
var vfioMutants = []mutant{
	{rule: "VFIO", what: "a bridge makes a group not viable", file: sysfsGo, pkg: vfiopci, test: "TestVFIO_GroupNotViable",
		old: `driver == "pcieport" || onVFIO(driver) || strings.HasPrefix(class, "0x0604") ||`, new: `onVFIO(driver) ||`},
	{rule: "VFIO", what: "the group's flag is not looked at", file: containerGo, pkg: vfiopci, test: "TestVFIO_GroupNotViable",
		old: "if st.Flags&uapi.VFIO_GROUP_FLAGS_VIABLE == 0 {\n\t\treturn c, -1, notViable(sys.Files(), f.group, vfio.ErrBusy)", new: "if st.Flags&uapi.VFIO_GROUP_FLAGS_VIABLE == 0 {\n\t\treturn c, -1, vfio.ErrBusy"},
	{rule: "VFIO", what: "type 1 v1 is asked for", file: containerGo, pkg: vfiopci, test: "TestVFIO_Order",
		old: "uapi.VFIO_SET_IOMMU, uapi.VFIO_TYPE1v2_IOMMU", new: "uapi.VFIO_SET_IOMMU, 1"},
	{rule: "VFIO", what: "the interrupts' window is allocated from", file: containerGo, pkg: vfiopci, test: "TestVFIO_IOVARanges",
		old: "if r.Last < msiFirst || r.First > msiLast {", new: "if r.Last < msiFirst || r.First <= msiLast {"},
	{rule: "VFIO", what: "the last page of 64 bits is used by type 1", file: containerGo, pkg: vfiopci, test: "TestVFIO_IOVARanges",
		old: "withoutEnd(withoutMSI(lim.ranges))", new: "withoutMSI(lim.ranges)"},
	{rule: "VFIO", what: "Open does not take the time that its context gives", file: pciOpenGo, pkg: vfiopci, test: "TestVFIO_OpenTakesItsTime",
		old: "if _, ok := ctx.Deadline(); !ok {", new: "{"},
	{rule: "VFIO", what: "EMSGSIZE is not tried again", file: iommufdGo, pkg: vfiopci, test: "TestVFIO_IOVARanges",
		old: "errors.Is(err, unix.EMSGSIZE) &&", new: "errors.Is(err, unix.E2BIG) &&"},
	{rule: "VFIO", what: "a capability may be outside", file: capsGo, pkg: vfiopci, test: "TestVFIO_HostileIOMMUInfo",
		old: "off+header > uint64(len(b)):", new: "off > uint64(len(b)):"},
	{rule: "VFIO", what: "a capability chain may be a cycle", file: capsGo, pkg: vfiopci, test: "TestVFIO_HostileIOMMUInfo",
		old: "case len(list) == maxCapabilities:\n\t\t\treturn nil, fmt.Errorf(\"capability chain without end\")", new: "case len(list) == maxCapabilities:\n\t\t\treturn list, nil"},
	{rule: "VFIO", what: "an unmap of nothing is a success", file: pciDMAGo, pkg: vfiopci, test: "TestVFIO_Unmap",
		old: "if err == nil && got != n {", new: "if err == nil && got > n {"},
	{rule: "VFIO", what: "a failed map keeps the memory", file: pciDMAGo, pkg: vfiopci, test: "TestVFIO_MapErrors",
		old: "		m.Unretain()\n		return fail(d.mapError(n, err))", new: "		return fail(d.mapError(n, err))"},
	{rule: "VFIO", what: "locked memory is taken for bytes", file: pciDMAGo, pkg: vfiopci, test: "TestVFIO_Memlock",
		old: "m.locked = v << 10", new: "m.locked = v"},
	{rule: "VFIO", what: "bus mastering stays on after Close", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_BusMaster",
		old: "	d.masterOff()\n		left", new: "	left"},
	{rule: "VFIO", what: "bus mastering is written bare", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_BusMaster",
		old: "binary.LittleEndian.PutUint16(b[:], v&^vfio.CommandBusMaster)", new: "binary.LittleEndian.PutUint16(b[:], vfio.CommandMemory)"},
	{rule: "VFIO", what: "the hole of the MSI-X table is not rounded to pages", file: pciDeviceGo, pkg: vfiopci, test: "TestVFIO_BARAreas",
		old: "first := d.msix.offset &^ (page - 1)\n", new: "first := (d.msix.offset + page - 1) &^ (page - 1)\n"},
	{rule: "VFIO", what: "a mappable MSI-X table is cut out", file: pciDeviceGo, pkg: vfiopci, test: "TestVFIO_BARAreas",
		old: " || c.ID == uapi.VFIO_REGION_INFO_CAP_MSIX_MAPPABLE", new: ""},
	{rule: "VFIO", what: "a short write is a success", file: pciDeviceGo, pkg: vfiopci, test: "TestVFIO_Transfers",
		old: "		case n <= 0:\n			return d.fail(op, object, fmt.Errorf(\"%w: the kernel moved %d of %d bytes\", vfio.ErrRange, done, len(p)))", new: "		case n <= 0:\n			return nil"},
	{rule: "VFIO", what: "fewer vectors than were asked for is a success", file: pciIRQGo, pkg: vfiopci, test: "TestVFIO_VectorBudget",
		old: "case n > 0: // fewer", new: "case n > 1<<20: // fewer"},
	{rule: "VFIO", what: "a trigger of nothing disables the index", file: pciIRQGo, pkg: vfiopci, test: "TestVFIO_MSIX",
		old: "	if n == 0 {\n		return nil // for the kernel it would disable the index\n	}\n", new: ""},
	{rule: "VFIO", what: "BARs are not replaced before the descriptor is closed", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_Request",
		old: "			_ = m.Revoke() // what", new: "			_ = m // what"},
	{rule: "VFIO", what: "a function that is gone is kept until Close", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_Unplug",
		old: "			<-d.hold.idle\n", new: "			<-d.hold.idle\n			if cause != vfio.ErrClosed {\n				return\n			}\n"},
	{rule: "VFIO", what: "EIO is the end of a function that answers", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_MemorySpaceOff",
		old: "	if d.answers() {\n", new: "	if d.answers() && false {\n"},
	{rule: "VFIO", what: "vendor and device, which the kernel makes up, tell that a function is there", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_Unplug",
		old: "int64(r.offset)+vfio.ConfigRevision)", new: "int64(r.offset)+vfio.ConfigVendorID)"},
	{rule: "VFIO", what: "descriptors are closed under a call", file: pciLifeGo, pkg: vfiopci, test: "TestVFIO_CloseIsBounded",
		old: "			<-d.hold.idle\n			_ = d.sys.Close(d.fd)", new: "			_ = d.sys.Close(d.fd)"},
	{rule: "VFIO", what: "a failed opening leaves the group open", file: containerGo, pkg: vfiopci, test: "TestVFIO_EachStepFails",
		old: "		if err != nil {\n			c.close()\n", new: "		if err != nil {\n"},
	{rule: "VFIO", what: "no-IOMMU mode is opened", file: sysfsGo, pkg: vfiopci, test: "TestVFIO_NoIOMMUIsRefused",
		old: "	case noIOMMU(files, f):", new: "	case noIOMMU(files, f) && f.driver == \"\":"},
	{rule: "VFIO", what: "a token is passed where none was given", file: containerGo, pkg: vfiopci, test: "TestVFIO_VFToken",
		old: "	if token != \"\" {\n		name += ", new: "	if true {\n		name += "},
	{rule: "VFIO", what: "the holder is not named", file: sysfsGo, pkg: vfiopci, test: "TestVFIO_BusyNamesTheHolder",
		old: "slices.Contains(nodes, to)", new: "slices.Contains(nodes, to+\"0\")"},
	{rule: "VFIO", what: "what this user may not open ends the search", file: pciOpenGo, pkg: vfiopci, test: "TestVFIO_Choice",
		old: "e.Check != vfio.CheckNoPermission && e.Check", new: "e.Check"},
}
