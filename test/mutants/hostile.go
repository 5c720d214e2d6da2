package main

// Where what others may write to is read, and where what they say is bounded.
const (
	postGo      = "driver/post.go"
	recordsGo   = "queues/records.go"
	hostRingsGo = "hw/softcard/hostgather.go"
	vfiouserPkg = "./vfio/vfiouser"
	filesGo     = "vfio/vfiouser/files.go"
	clientGo    = "vfio/vfiouser/client.go"
	connGo      = "vfio/vfiouser/conn.go"
	eventfdGo   = "vfio/vfiouser/eventfd.go"
)

func init() { mutants = append(mutants, hostileMutants...) }

// hostileMutants are defects in the face of memory that changes and of peers that lie.
var hostileMutants = []mutant{
	{rule: "H01", what: "a CQE's QP number is loaded again", file: pollGo, pkg: driverPkg, test: "TestH01_ReadOnce",
		old: "qp = c.qps[qpn]; qp == nil", new: "qp = c.qps[e.QPN]; qp == nil"},
	{rule: "H01", what: "a CQE's index is loaded again", file: postGo, pkg: driverPkg, test: "TestH01_ReadOnce",
		old: "q.sqDone = index + uint32(r.blocks)", new: "q.sqDone = e.WQEIndex + uint32(r.blocks)"},
	{rule: "H01", what: "a captured frame's length is loaded again", file: recordsGo, pkg: driverPkg, test: "TestH01_ReadOnce",
		old: "min(uint64(r.Captured), uint64(len(frame)))", new: "min(uint64(p.Captured), uint64(len(frame)))"},
	{rule: "H01", what: "the first block of a WQE is read with the others again", file: wqeGo, pkg: card, test: "TestH01_ReadOnce",
		old: "c.readSQ(q, index+1, blocks-1, w.raw[hw.WQEBlock:])", new: "c.readSQ(q, index, blocks, w.raw[:])"},
	{rule: "H01", what: "the host's answer is read again when it is taken", file: hostRingsGo, pkg: card, test: "TestH01_ReadOnce",
		old: "		s.asked = false\n", new: "		s.asked = false\n		c.dmaRead(g.ctx.ReplyIOVA+uint64((g.replies-1)&mask)*hw.HostGatherReplySize, r.AsBytes())\n"},
	{rule: "H01", what: "a key is read again after its valid word was looked at", file: keyTableGo, pkg: card, test: "TestH01_ReadOnce",
		old: "e.Valid == before {\n", new: "e.Valid == before {\n			copy(e.AsBytes(), p.AsBytes())\n"},
	{rule: "H02", what: "the server maps a client's file that may shrink", file: filesGo, pkg: vfiouserPkg, test: "TestH02_UntrustedFiles",
		old: "if err != nil || seals&unix.F_SEAL_SHRINK == 0 {", new: "if err != nil {"},
	{rule: "H02", what: "the server maps more of a file than it has", file: filesGo, pkg: vfiouserPkg, test: "TestH02_ShortFiles",
		old: "off > uint64(st.Size) || n > uint64(st.Size)-off {", new: "off > uint64(st.Size) {"},
	{rule: "H03", what: "a client's files take all of the address space", file: filesGo, pkg: vfiouserPkg, test: "TestH03_AddressSpace",
		old: "	if st.Size > left {\n", new: "	if st.Size > left && false {\n"},
	{rule: "H03", what: "a reply to an abandoned command is one that nobody sent", file: connGo, pkg: vfiouserPkg, test: "TestH03_ClientHarmsItself",
		old: "		p.late = true\n", new: "		delete(c.pending, id)\n"},
	{rule: "H03", what: "a reply's descriptors stay open", file: "vfio/vfiouser/host.go", pkg: vfiouserPkg, test: "TestH03_ClientHarmsItself",
		old: "		m.closeFDs()\n		if err := checkDMAReply", new: "		if err := checkDMAReply"},
	{rule: "H03", what: "an eventfd is written to where it has room", file: eventfdGo, pkg: vfiouserPkg, test: "TestH03_FullEventFD",
		old: "	ctx, _ := aioContext()\n", new: `	if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0); n == 1 {
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return
	ctx, _ := aioContext()
`},
	{rule: "H03", what: "completions fill the context that signals", file: eventfdGo, pkg: vfiouserPkg, test: "TestH03_Signal",
		old: "ctx, 0, aioSlots,", new: "ctx, 0, 0,"},
	{rule: "H02", what: "the client maps more than it can spare", file: clientGo, pkg: vfiouserPkg, test: "TestH02_UntrustedRegions",
		old: "		if a.Size > left {\n", new: "		if a.Size > left && false {\n"},
	{rule: "H02", what: "the client maps a region's file that may shrink", file: clientGo, pkg: vfiouserPkg, test: "TestH02_UntrustedRegions",
		old: "err != nil || seals&unix.F_SEAL_SHRINK == 0 || unix.Fstat", new: "err != nil || seals < 0 || unix.Fstat"},
	{rule: "H03", what: "the wait for an eventfd is a plain read", file: "vfio/eventfd.go", pkg: "./vfio", test: "TestH03_EventFDThatBlocks",
		old: "unix.Preadv2(int(fd), e.buf[:], -1, unix.RWF_NOWAIT)", new: "unix.Read(int(fd), e.buf[0])"},
	{rule: "H03", what: "a table has room for as many CQs as a card states", file: "driver/cqtable.go", pkg: driverPkg, test: "TestH03_CardThatStatesMuch",
		old: "make(cqTable, (n+len(cqPage{})-1)/len(cqPage{}))", new: "make(cqTable, n)"},
}
