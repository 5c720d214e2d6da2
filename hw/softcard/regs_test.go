package softcard

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"testing"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/vfio"
)

// Each register of the contract reads as its reset value says, at every width.
func TestResetValues(t *testing.T) {
	r := newRig(t, Config{})
	for _, g := range hw.Registers {
		if g.Reset == 0 || g.Access == hw.WO {
			continue
		}
		got := uint64(r.load(g.Offset))
		if g.Width == 64 {
			got = r.load64(g.Offset)
		}
		if got != g.Reset {
			t.Errorf("%s reads %#x, want %#x", g.FullName(), got, g.Reset)
		}
	}
}

// Loads may have any width at any offset. What they give is the same bytes.
func TestLoadWidths(t *testing.T) {
	r := newRig(t, Config{Name: "widths"})
	whole := make([]byte, 0x100)
	for i := 0; i < len(whole); i += 4 {
		le.PutUint32(whole[i:], r.load(uint64(i)))
	}
	if want := []byte("RNIC"); !bytes.Equal(whole[:4], want) {
		t.Errorf("magic % x", whole[:4])
	}
	if !bytes.HasPrefix(whole[hw.RegIdentCardName:], []byte("widths\x00")) {
		t.Errorf("name % x", whole[hw.RegIdentCardName:])
	}
	for off := range 64 {
		for n := 1; n <= 40; n++ {
			p := make([]byte, n)
			r.must(r.dev.ReadRegion(hw.BARCtrl, uint64(off), p))
			if !bytes.Equal(p, whole[off:off+n]) {
				t.Fatalf("%d bytes at %d: % x, want % x", n, off, p, whole[off:off+n])
			}
		}
	}
	all := make([]byte, hw.BARCtrlSize)
	r.must(r.dev.ReadRegion(hw.BARCtrl, 0, all))
	if !bytes.Equal(all[:0x20], whole[:0x20]) {
		t.Error("a load of the whole BAR differs")
	}
}

// Stores are whole, aligned words; a read-only register and a hole take none.
func TestStores(t *testing.T) {
	r := newRig(t, Config{})
	r.store(hw.RegControlScratch, 0x12345678)
	r.store64(hw.RegControlScratchWide, 0x1122334455667788)
	if v := r.load(hw.RegControlScratch); v != 0x12345678 {
		t.Errorf("SCRATCH %#x", v)
	}
	if v := r.load64(hw.RegControlScratchWide); v != 0x1122334455667788 {
		t.Errorf("SCRATCH_WIDE %#x", v)
	}
	r.store(hw.RegControlScratchWide+4, 0xaabbccdd)
	if v := r.load64(hw.RegControlScratchWide); v != 0xaabbccdd55667788 {
		t.Errorf("half of SCRATCH_WIDE: %#x", v)
	}
	for _, c := range []struct {
		off uint64
		n   int
	}{{hw.RegControlScratch, 1}, {hw.RegControlScratch, 2}, {hw.RegControlScratch + 1, 4}, {hw.RegControlScratch + 2, 2}, {hw.RegControlScratch, 6}} {
		if err := r.dev.WriteRegion(hw.BARCtrl, c.off, make([]byte, c.n)); err == nil {
			t.Errorf("a store of %d bytes at %#x is taken", c.n, c.off)
		}
	}
	if v := r.load(hw.RegControlScratch); v != 0x12345678 {
		t.Errorf("SCRATCH %#x after refused stores", v)
	}
	for _, off := range []uint64{hw.RegIdentMagic, hw.RegControlStatus, hw.RegCountersCQEs, 0x0ffc, 0x3000, 0x7ffc, 0xbffc, 0xfffc} {
		before := r.load(off)
		r.store(off, ^before)
		if after := r.load(off); after != before {
			t.Errorf("offset %#x: %#x, after a store %#x", off, before, after)
		}
	}
	if v := r.load(hw.RegKickKick); v != 0 {
		t.Errorf("a write-only register reads %#x", v)
	}
}

// Reading the low half of a counter latches the high one.
func TestCounterLatch(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	set := func(v uint64) {
		r.inside(func() { r.card.count[cntTXBytes] = v })
	}
	set(0x1_ffff_ffff)
	low := r.load(hw.RegCountersTXBytes)
	set(0x2_0000_0003)
	if high := r.load(hw.RegCountersTXBytes + 4); low != 0xffffffff || high != 1 {
		t.Errorf("%#x %#x", high, low)
	}
	if v := r.load64(hw.RegCountersTXBytes); v != 0x2_0000_0003 {
		t.Errorf("%#x", v)
	}
}

// DMA_TEST reads and writes the client's memory and tells how it went.
func TestDMATest(t *testing.T) {
	r := newRig(t, Config{})
	src, dst := r.alloc(8192), r.alloc(8192)
	data := r.bytes(src+100, 4096)
	for i := range data {
		data[i] = byte(i * 7)
	}
	test := func(op uint32, iova uint64, n uint32) uint32 {
		t.Helper()
		r.store64(hw.RegControlDMATestIOVA, iova)
		r.store(hw.RegControlDMATestLength, n)
		r.store(hw.RegControlDMATest, op)
		if v := r.load(hw.RegControlDMATest); v != op {
			t.Errorf("DMA_TEST reads %#x before it is done", v)
		}
		r.run()
		return r.load(hw.RegControlDMATest)
	}
	const fault = 0x80000000
	if v := test(dmaTestRead, src+100, 4096); v != fault|uint32(hw.ReasonDMARead) {
		t.Errorf("read with bus mastering off: %#x", v)
	}
	r.master(true)
	if v := test(dmaTestRead, src+100, 4096); v != 0 {
		t.Errorf("read: %#x", v)
	}
	if v, want := r.load(hw.RegControlDMATestCRC), crc32.ChecksumIEEE(data); v != want {
		t.Errorf("CRC %#x, want %#x", v, want)
	}
	if v := test(dmaTestWrite, dst+4, 1000); v != 0 {
		t.Errorf("write: %#x", v)
	}
	if got := r.bytes(dst, 8192); !bytes.Equal(got[4:1004], data[:1000]) || got[3] != 0 || got[1004] != 0 {
		t.Error("what was written is not what was read")
	}
	for _, c := range []struct {
		op   uint32
		iova uint64
		n    uint32
		want hw.Reason
	}{
		{dmaTestRead, 0x5555_0000, 16, hw.ReasonDMARead}, {dmaTestWrite, 0x5555_0000, 16, hw.ReasonDMAWrite},
		{dmaTestRead, memBase + memBytes - 8, 16, hw.ReasonDMARead}, {dmaTestWrite, ^uint64(0) - 3, 16, hw.ReasonDMAWrite},
		{dmaTestRead, src, 0, hw.ReasonLength}, {dmaTestRead, src, 4097, hw.ReasonLength},
	} {
		if v := test(c.op, c.iova, c.n); v != fault|uint32(c.want) {
			t.Errorf("test %d of %d bytes at %#x: %#x, want %v", c.op, c.n, c.iova, v, c.want)
		}
	}
	if err := r.ctrl.Write32(hw.RegControlDMATest, 3); err == nil {
		t.Error("DMA_TEST of 3")
	}
	if n := r.load64(hw.RegDebugDMASequence); n == 0 {
		t.Error("DMA_SEQUENCE stands still")
	}
}

// Memory without a file is reached by message, and counted.
func TestDMAByMessage(t *testing.T) {
	r := newRig(t, Config{})
	r.master(true)
	m, err := vfio.WrapMemory(pages(t, 4096))
	r.must(err)
	r.must(r.dev.MapDMA(0x4000_0000, m, 0, 4096, vfio.ProtReadWrite))
	copy(m.Bytes()[8:], "by message")
	r.store64(hw.RegControlDMATestIOVA, 0x4000_0008)
	r.store(hw.RegControlDMATestLength, 10)
	r.store(hw.RegControlDMATest, dmaTestRead)
	r.until("DMA_TEST", func() bool { return r.load(hw.RegControlDMATest) == 0 })
	if v, want := r.load(hw.RegControlDMATestCRC), crc32.ChecksumIEEE([]byte("by message")); v != want {
		t.Errorf("CRC %#x, want %#x", v, want)
	}
	r.run()
	if n := r.counter(hw.RegCountersDMAByMessage); n != 1 {
		t.Errorf("DMA_BY_MESSAGE %d", n)
	}
	r.must(r.dev.UnmapDMA(0x4000_0000, 4096))
}

// FAIL_DMA_READ and FAIL_DMA_WRITE fail the Nth payload access and no other; the
// card's own rings are not payload.
func TestFailDMA(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	at := r.alloc(4096)
	r.store(hw.RegDebugFailDMARead, 3)
	r.store(hw.RegDebugFailDMAWrite, 2)
	r.do(hw.CommandNop, 0, 0, nil, 0)
	var b [8]byte
	for i := 1; i <= 5; i++ {
		r.inside(func() {
			if got, want := r.card.payloadRead(at, b[:], use{}), i == 3; got == hw.ReasonDMARead != want {
				t.Errorf("read %d: %v", i, got)
			}
			if got, want := r.card.payloadWrite(at, b[:], use{}), i == 2; got == hw.ReasonDMAWrite != want {
				t.Errorf("write %d: %v", i, got)
			}
		})
		if v, want := r.load(hw.RegDebugFailDMARead), uint32(max(3-i, 0)); v != want {
			t.Errorf("after read %d: FAIL_DMA_READ %d, want %d", i, v, want)
		}
	}
	if n := r.counter(hw.RegCountersDMAFaults); n != 2 {
		t.Errorf("DMA_FAULTS %d", n)
	}
}

// dirty leaves something in every part of the card.
func (r *rig) dirty() {
	r.t.Helper()
	r.start(4)
	r.createEQ(0, 4, 1, true)
	r.createCQ(1, 4, 0)
	r.register(77, 1, 0, 4096, memBase)
	r.lookup(77<<8|1, 0)
	r.store(hw.RegControlScratch, 1)
	r.store(hw.RegDebugACKReqInterval, 66)
	r.store(hw.RegDebugIPID, 5)
	r.store(hw.RegDebugFailDMARead, 5)
	r.store(hw.RegDebugClockMode, uint32(hw.ClockModeStepped))
	r.store(hw.RegDebugRunMode, uint32(hw.RunModeStepped))
	r.store(hw.RegDebugPortMode, uint32(hw.DebugPortMode(0).WithHold(true)))
	x := r.card.net.ctx
	x.MAC = [6]byte{2, 9, 9, 9, 9, 9}
	r.do(hw.CommandModifyPort, 1, 0, x.AsBytes(), 0)
	ring := hw.RingContext{IOVA: r.alloc(1 << 16), LogEntries: 4, LogStride: 11, All: 1}
	r.do(hw.CommandSetCapture, 0, 0, ring.AsBytes(), 0)
	ring = hw.RingContext{IOVA: r.alloc(1 << 16), LogEntries: 4, LogStride: 6, All: 1}
	r.do(hw.CommandSetTrace, 0, 0, ring.AsBytes(), 0)
	r.doorbell(r.page(40)+8, 99)
	r.doorbell(hw.DomainTraceCI, 3)
}

// clean checks that nothing of dirty is left.
func (r *rig) clean() {
	t := r.t
	t.Helper()
	for _, g := range hw.Registers {
		if g.Access == hw.RO || g.Access == hw.WO {
			continue
		}
		got := uint64(r.load(g.Offset))
		if g.Width == 64 {
			got = r.load64(g.Offset)
		}
		if got != g.Reset {
			t.Errorf("%s reads %#x, want %#x", g.FullName(), got, g.Reset)
		}
	}
	for n := range int(numCounters) {
		if v := r.load64(uint64(hw.BlockCounters + 8*n)); v != 0 {
			t.Errorf("counter %d is %d", n, v)
		}
	}
	if v := r.load(hw.RegPortMACLow); v != le.Uint32(r.card.cfg.MAC[:]) {
		t.Errorf("MAC_LOW %#x", v)
	}
	if s := hw.ControlStatus(r.load(hw.RegControlStatus)); s.BusMaster() || s.CommandEnabled() || s.Fatal() {
		t.Errorf("status %#x", s)
	}
	if v := mmio.Load32(r.bell.Word32(uint64(r.page(40) + 8))); v != 0 {
		t.Errorf("a doorbell holds %d", v)
	}
	if v := mmio.Load32(r.bell.Word32(hw.DomainTraceCI)); v != 0 {
		t.Errorf("the domain page holds %d", v)
	}
	if v := mmio.Load32(r.keys.Word32(77*64 + 60)); v != 0 {
		t.Errorf("a key's valid word holds %#x", v)
	}
	r.free = 0
	r.start(4)
	for _, k := range []hw.ListKind{hw.ListKindQP, hw.ListKindCQ, hw.ListKindEQ, hw.ListKindKey} {
		if p, _ := r.command(hw.CommandList, uint32(k), 0, nil, 0); p.Status != hw.CommandStatusOK || p.Value != 0 {
			t.Errorf("%v in use: %d", k, p.Value)
		}
	}
	for line := range r.card.lim.CacheSets * r.card.lim.CacheWays {
		if l := hw.ViewKeyCacheLine(r.do(hw.CommandReadKeyCache, line, 0, nil, hw.KeyCacheLineSize)); l.Present != 0 {
			t.Errorf("line %d of the key cache: %+v", line, *l)
		}
	}
}

// Each kind of reset leaves a card that is as new.
func TestReset(t *testing.T) {
	for _, c := range []struct {
		name  string
		reset func(r *rig)
	}{
		{"DEVICE_RESET", func(r *rig) { r.must(r.dev.Reset(context.Background())) }},
		{"FLR", func(r *rig) { r.must(r.conf.FLR(context.Background())) }},
		{"next client", func(r *rig) { r.detach(); r.attach() }},
		{"next client after a dead one", func(r *rig) {
			r.must(r.dev.Close()) // rings mapped, bus mastering on
			<-r.served
			r.detach()
			r.attach()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{})
			for range 2 {
				r.dirty()
				c.reset(r)
				r.waitReady()
				r.clean()
				r.detachIRQs()
				r.must(r.dev.Reset(context.Background()))
				r.waitReady()
				r.free = 0
			}
		})
	}
}

// A function level reset leaves the command register 0 (PCI Express Base 4.0, 6.6.2). The kernel saves it, resets, and
// writes only what differs from what it saved: a hypervisor between them would go on with memory decoding off.
func TestFLR_ClearsTheCommandRegister(t *testing.T) {
	r := newRig(t, Config{})
	command := func() uint16 {
		v, err := r.conf.Read16(vfio.ConfigCommand)
		r.must(err)
		return v
	}
	if v := command(); v&vfio.CommandMemory == 0 {
		t.Fatalf("command register %#x when the function is handed over, want memory decoding on", v)
	}
	r.must(r.conf.Write16(capPCIe+8, devCtlFLR<<8))
	if v := command(); v != 0 {
		t.Errorf("command register %#x after FLR, want 0", v)
	}
	r.must(r.conf.Write16(vfio.ConfigCommand, vfio.CommandMemory))
	r.must(r.conf.FLR(t.Context()))
	if v := command(); v != vfio.CommandMemory {
		t.Errorf("command register %#x after Config.FLR, want it as it was", v)
	}
}

func (r *rig) detachIRQs() { r.must(r.dev.DisableIRQs(vfio.IRQMSIX)) }

// From the moment that a reset is asked for until Step has done it, READY is 0,
// DMA is cut off and stores are lost.
func TestResetCutsAtOnce(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.store64(hw.RegControlDMATestIOVA, memBase+inAt)
	r.store(hw.RegControlDMATestLength, 8)
	r.post(hw.CommandEntry{Opcode: hw.CommandNop})
	r.store(hw.RegControlCommandDoorbell, 1)
	r.must(r.dev.Reset(context.Background()))
	if s := hw.ControlStatus(r.load(hw.RegControlStatus)); s.Ready() || s.BusMaster() {
		t.Errorf("status %#x", s)
	}
	r.store(hw.RegControlScratch, 5)
	if v := r.load(hw.RegControlScratch); v != 0 {
		t.Errorf("SCRATCH %d was stored in a reset", v)
	}
	before := bytes.Clone(r.mem.Bytes()[repliesAt : repliesAt+64])
	r.run()
	if !bytes.Equal(before, r.mem.Bytes()[repliesAt:repliesAt+64]) {
		t.Error("the card answered a command from before the reset")
	}
	if s := hw.ControlStatus(r.load(hw.RegControlStatus)); !s.Ready() {
		t.Errorf("status %#x", s)
	}
	r.start(4)
	r.do(hw.CommandNop, 0, 0, nil, 0)
}

// Configuration space: identity, sizes, capabilities, what can be written.
func TestConfigSpace(t *testing.T) {
	r := newRig(t, Config{})
	id, err := r.conf.ID()
	r.must(err)
	want := vfio.ID{Vendor: 0x10ee, Device: 0x7264, SubVendor: 0x10ee, Subsystem: 1, Class: 0x020000, Revision: 1}
	if id != want {
		t.Errorf("ID %+v, want %+v", id, want)
	}
	caps, err := r.conf.Capabilities()
	r.must(err)
	if len(caps) != 2 || caps[0].ID != vfio.CapPCIExpress || caps[1].ID != vfio.CapMSIX {
		t.Errorf("capabilities %+v", caps)
	}
	// BAR sizing (PCI Local Bus 3.0, 6.2.5.1): all ones, read back, invert, add one.
	for bar, size := range map[int]uint64{0: 0x10000, 2: 64 << 20, 4: 64 << 20} {
		at := uint64(0x10 + 4*bar)
		r.must(r.conf.Write32(at, ^uint32(0)))
		r.must(r.conf.Write32(at+4, ^uint32(0)))
		low, err := r.conf.Read32(at)
		r.must(err)
		high, err := r.conf.Read32(at + 4)
		r.must(err)
		if low&0xf != 4 {
			t.Errorf("BAR %d: type %#x, want 64-bit memory", bar, low&0xf)
		}
		if got := ^(uint64(high)<<32 | uint64(low&^0xf)) + 1; got != size {
			t.Errorf("BAR %d: %#x bytes, want %#x", bar, got, size)
		}
	}
	v, err := r.conf.Read16(caps[1].Offset + 2)
	r.must(err)
	if n := uint32(v&0x7ff) + 1; n != r.load(hw.RegIdentMSIXVectors) {
		t.Errorf("MSI-X table of %d", n)
	}
	before := make([]byte, 4096)
	r.must(r.dev.ReadRegion(vfio.RegionConfig, 0, before))
	for _, off := range []uint64{0, 2, 8, 0x2c, 0x34, caps[0].Offset, caps[0].Offset + 4, caps[1].Offset + 4, 0x100, 0xffc} {
		r.must(r.conf.Write32(off&^3, ^uint32(0)&^(1<<2))) // but bus mastering
		after := make([]byte, 4096)
		r.must(r.dev.ReadRegion(vfio.RegionConfig, 0, after))
		for i := range after {
			if after[i]&^r.card.cfgs.wmask[i] != before[i]&^r.card.cfgs.wmask[i] {
				t.Fatalf("a store at %#x changed byte %#x", off, i)
			}
		}
	}
}

// What the debug page refuses, it names.
func TestDebugRefusals(t *testing.T) {
	r := newRig(t, Config{})
	for _, c := range []struct {
		off uint64
		v   uint32
	}{
		{hw.RegDebugClockMode, 2}, {hw.RegDebugRunMode, 7}, {hw.RegDebugWalkFault, 99}, {hw.RegDebugRunStep, 1},
		{hw.RegDebugClockStep + 4, 0}, {hw.RegDebugPortTake, 0},
	} {
		err := r.ctrl.Write32(c.off, c.v)
		var ve *vfio.Error
		if !errors.As(err, &ve) {
			t.Errorf("store of %d at %#x: %v", c.v, c.off, err)
		}
	}
	r.store(hw.RegDebugClockMode, 1)
	if err := r.ctrl.Write64(hw.RegDebugClockStep, 1<<63); err == nil {
		t.Error("a step over the end of time")
	}
}

// A card whose debug page is fused off has no such capability and no such page.
func TestFusedDebug(t *testing.T) {
	r := newRig(t, Config{FuseDebug: true})
	if c := hw.Capability(r.load64(hw.RegIdentCapabilities)); c&hw.CapabilityDebug != 0 {
		t.Errorf("capabilities %v", c)
	}
	for _, off := range []uint64{hw.RegDebugFailDMARead, hw.RegDebugClockMode, hw.RegDebugIPID, hw.RegDebugHoldFill} {
		r.store(off, 1)
		if v := r.load(off); v != 0 {
			t.Errorf("offset %#x holds %d", off, v)
		}
	}
	if r.card.regs.tests.failRead.Load() != 0 || r.card.regs.tests.holdFill.Load() != 0 {
		t.Error("the fused page still has effects")
	}
}
