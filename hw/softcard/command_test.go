package softcard

import (
	"slices"
	"testing"

	"rnic/hw"
	"rnic/vfio"
)

// The ring of commands wraps, its replies carry the phase of their turn, and
// several commands that one doorbell announces are answered in order.
func TestCommandRingWraps(t *testing.T) {
	r := newRig(t, Config{})
	r.start(2)
	for turn := range 5 {
		first := r.sent
		for i := range 4 {
			r.post(hw.CommandEntry{Opcode: hw.CommandNop, Token: uint32(100*turn + i)})
		}
		r.store(hw.RegControlCommandDoorbell, r.sent)
		for i := range 4 {
			if p := r.reply(first + uint32(i)); p.Token != uint32(100*turn+i) || p.Status != hw.CommandStatusOK {
				t.Fatalf("turn %d: reply %d is %+v", turn, i, p)
			}
		}
	}
	r.run()
	if n := r.counter(hw.RegCountersCommands); n != 20 {
		t.Errorf("COMMANDS %d, want 20", n)
	}
}

func TestCommandVector(t *testing.T) {
	r := newRig(t, Config{})
	r.vector(3)
	r.store(hw.RegControlCommandVector, 3)
	r.start(2)
	r.do(hw.CommandNop, 0, 0, nil, 0)
	if n := r.fired(3); n != 1 {
		t.Fatalf("vector fired %d times", n)
	}
}

// What stops the queue: parameters, a doorbell that runs ahead of the ring,
// memory that cannot be reached.
func TestCommandQueueStops(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(r *rig)
		want  hw.CommandStatus
	}{
		{"size 0", func(r *rig) { r.store(hw.RegControlCommandSize, 0) }, hw.CommandStatusBadParam},
		{"size over the limit", func(r *rig) { r.store(hw.RegControlCommandSize, 9) }, hw.CommandStatusBadParam},
		{"size of 33", func(r *rig) { r.store(hw.RegControlCommandSize, 33) }, hw.CommandStatusBadParam},
		{"ring unaligned", func(r *rig) { r.store64(hw.RegControlCommandRing, memBase+64) }, hw.CommandStatusBadParam},
		{"replies unaligned", func(r *rig) { r.store64(hw.RegControlReplyRing, memBase+64) }, hw.CommandStatusBadParam},
		{"ring wraps", func(r *rig) { r.store(hw.RegControlCommandSize, 8); r.store64(hw.RegControlCommandRing, ^uint64(4095)) }, hw.CommandStatusBadParam},
		{"vector", func(r *rig) { r.store(hw.RegControlCommandVector, 34) }, hw.CommandStatusBadParam},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{})
			r.start(2)
			r.store(hw.RegControlCommandEnable, 0)
			c.spoil(r)
			r.store(hw.RegControlCommandEnable, 1)
			r.run()
			if s := hw.ControlStatus(r.load(hw.RegControlStatus)); s.CommandEnabled() {
				t.Error("the queue runs")
			}
			if e := hw.CommandStatus(r.load(hw.RegControlCommandError)); e != c.want {
				t.Errorf("COMMAND_ERROR %v, want %v", e, c.want)
			}
		})
	}
	for _, c := range []struct {
		name  string
		spoil func(r *rig)
		want  hw.CommandStatus
	}{
		{"doorbell ahead", func(r *rig) { r.store(hw.RegControlCommandDoorbell, 5) }, hw.CommandStatusBadParam},
		{"doorbell behind", func(r *rig) { r.store(hw.RegControlCommandDoorbell, ^uint32(0)) }, hw.CommandStatusBadParam},
		{"ring not mapped", func(r *rig) {
			r.must(r.dev.UnmapDMA(memBase, memBytes))
			r.store(hw.RegControlCommandDoorbell, 1)
		}, hw.CommandStatusDMAError},
		{"bus mastering off", func(r *rig) { r.master(false); r.store(hw.RegControlCommandDoorbell, 1) }, hw.CommandStatusDMAError},
		{"replies read-only", func(r *rig) {
			r.must(r.dev.UnmapDMA(memBase, memBytes))
			r.must(r.dev.MapDMA(memBase, r.mem, 0, repliesAt, vfio.ProtReadWrite))
			r.must(r.dev.MapDMA(memBase+repliesAt, r.mem, repliesAt, 4096, vfio.ProtRead))
			r.store(hw.RegControlCommandDoorbell, 1)
		}, hw.CommandStatusDMAError},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{})
			r.start(2)
			c.spoil(r)
			r.run()
			if s := hw.ControlStatus(r.load(hw.RegControlStatus)); s.CommandEnabled() {
				t.Error("the queue runs")
			}
			if e := hw.CommandStatus(r.load(hw.RegControlCommandError)); e != c.want {
				t.Errorf("COMMAND_ERROR %v, want %v", e, c.want)
			}
		})
	}
}

// A queue that stopped, or was stopped, begins at index 0 when it starts again.
func TestCommandQueueRestarts(t *testing.T) {
	r := newRig(t, Config{})
	r.start(3)
	for range 3 {
		r.do(hw.CommandNop, 0, 0, nil, 0)
	}
	r.store(hw.RegControlCommandEnable, 0)
	r.run()
	if s := hw.ControlStatus(r.load(hw.RegControlStatus)); s.CommandEnabled() {
		t.Fatal("the queue runs")
	}
	r.store(hw.RegControlCommandDoorbell, 4) // to a queue that stands: nothing
	r.run()
	r.start(4)
	r.do(hw.CommandNop, 0, 0, nil, 0)
}

// Every refusal has its status and its syndrome, and leaves nothing behind.
func TestCommandRefusals(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	r.createEQ(0, 4, 1, true)
	r.createCQ(0, 4, 0)
	ring := r.alloc(1 << 16)
	eq := func(f func(x *hw.EQContext)) []byte {
		x := hw.EQContext{IOVA: ring, Doorbell: r.page(100), Vector: 1, LogEntries: 4}
		f(&x)
		return x.AsBytes()
	}
	cq := func(f func(x *hw.CQContext)) []byte {
		x := hw.CQContext{IOVA: ring, Doorbell: r.page(100), LogEntries: 4}
		f(&x)
		return x.AsBytes()
	}
	key := func(f func(x *hw.KeyEntry)) []byte {
		x := hw.KeyEntry{Base: 0x1000, Length: 0x1000, IOVA: memBase, PD: 1}
		x.SetState(hw.KeyStateValid)
		f(&x)
		return x.AsBytes()
	}
	port := func(f func(x *hw.PortContext)) []byte {
		x := r.card.net.ctx
		f(&x)
		return x.AsBytes()
	}
	traceRing := func(f func(x *hw.RingContext)) []byte {
		x := hw.RingContext{IOVA: ring, LogEntries: 4, LogStride: 6}
		f(&x)
		return x.AsBytes()
	}
	const (
		badParam  = hw.CommandStatusBadParam
		badObject = hw.CommandStatusBadObject
		inUse     = hw.CommandStatusInUse
		reserved  = hw.CommandStatusReservedNotZero
		none      = hw.CommandSyndromeNone
	)
	for _, c := range []struct {
		name     string
		op       hw.Command
		object   uint32
		in       []byte
		status   hw.CommandStatus
		syndrome hw.CommandSyndrome
	}{
		{"opcode", 0x7777, 0, nil, hw.CommandStatusBadOpcode, none},
		{"SRQ", hw.CommandCreateSRQ, 0, nil, hw.CommandStatusUnsupported, none},
		{"host gather length", hw.CommandSetHostGather, 0, nil, badParam, hw.CommandSyndromeLength},
		{"host gather entries", hw.CommandSetHostGather, 0, hostRings(func(x *hw.HostGatherContext) { x.LogEntries = 13 }), badParam, hw.CommandSyndromeRingSize},
		{"host gather slots", hw.CommandSetHostGather, 0, hostRings(func(x *hw.HostGatherContext) { x.StagingLogStride = 11 }), badParam, hw.CommandSyndromeRingSize},
		{"host gather alignment", hw.CommandSetHostGather, 0, hostRings(func(x *hw.HostGatherContext) { x.StagingIOVA += 64 }), badParam, hw.CommandSyndromeRingAlign},
		{"host gather wraps", hw.CommandSetHostGather, 0, hostRings(func(x *hw.HostGatherContext) { x.ReplyIOVA, x.LogEntries = ^uint64(4095), 7 }), badParam, hw.CommandSyndromeRingAlign},
		{"host gather vector", hw.CommandSetHostGather, 0, hostRings(func(x *hw.HostGatherContext) { x.Vector = 34 }), badParam, hw.CommandSyndromeVector},

		{"EQ length", hw.CommandCreateEQ, 1, make([]byte, 63), badParam, hw.CommandSyndromeLength},
		{"EQ no mailbox", hw.CommandCreateEQ, 1, nil, badParam, hw.CommandSyndromeLength},
		{"EQ number", hw.CommandCreateEQ, 32, eq(func(x *hw.EQContext) {}), badObject, hw.CommandSyndromeEQN},
		{"EQ huge number", hw.CommandCreateEQ, ^uint32(0), eq(func(x *hw.EQContext) {}), badObject, hw.CommandSyndromeEQN},
		{"EQ taken", hw.CommandCreateEQ, 0, eq(func(x *hw.EQContext) {}), inUse, hw.CommandSyndromeEQN},
		{"EQ size 0", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.LogEntries = 0 }), badParam, hw.CommandSyndromeRingSize},
		{"EQ size", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.LogEntries = 15 }), badParam, hw.CommandSyndromeRingSize},
		{"EQ size 200", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.LogEntries = 200 }), badParam, hw.CommandSyndromeRingSize},
		{"EQ alignment", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.IOVA += 64 }), badParam, hw.CommandSyndromeRingAlign},
		{"EQ wraps", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.IOVA, x.LogEntries = ^uint64(4095), 14 }), badParam, hw.CommandSyndromeRingAlign},
		{"EQ vector", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Vector = 34 }), badParam, hw.CommandSyndromeVector},
		{"EQ doorbell page 0", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Doorbell = 64 }), badParam, hw.CommandSyndromeDoorbell},
		{"EQ doorbell unaligned", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Doorbell += 2 }), badParam, hw.CommandSyndromeDoorbell},
		{"EQ doorbell range", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Doorbell = hw.BARDoorbellSize }), badParam, hw.CommandSyndromeDoorbell},
		{"EQ doorbell end", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Doorbell = ^uint32(3) }), badParam, hw.CommandSyndromeDoorbell},
		{"EQ doorbell of another", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Doorbell = r.page(1) + 512 }), badParam, hw.CommandSyndromeDoorbell},
		{"EQ second async", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Async = 1 }), inUse, none},
		{"EQ async 2", hw.CommandCreateEQ, 1, eq(func(x *hw.EQContext) { x.Async = 2 }), badParam, none},
		{"EQ destroy none", hw.CommandDestroyEQ, 5, nil, badObject, hw.CommandSyndromeEQN},
		{"EQ destroy used", hw.CommandDestroyEQ, 0, nil, inUse, hw.CommandSyndromeEQN},
		{"EQ query none", hw.CommandQueryEQ, 99, nil, badObject, hw.CommandSyndromeEQN},

		{"CQ length", hw.CommandCreateCQ, 1, make([]byte, 128), badParam, hw.CommandSyndromeLength},
		{"CQ number", hw.CommandCreateCQ, 4096, cq(func(x *hw.CQContext) {}), badObject, hw.CommandSyndromeCQN},
		{"CQ taken", hw.CommandCreateCQ, 0, cq(func(x *hw.CQContext) {}), inUse, hw.CommandSyndromeCQN},
		{"CQ size", hw.CommandCreateCQ, 1, cq(func(x *hw.CQContext) { x.LogEntries = 18 }), badParam, hw.CommandSyndromeRingSize},
		{"CQ alignment", hw.CommandCreateCQ, 1, cq(func(x *hw.CQContext) { x.IOVA++ }), badParam, hw.CommandSyndromeRingAlign},
		{"CQ EQN", hw.CommandCreateCQ, 1, cq(func(x *hw.CQContext) { x.EQN = 7 }), badParam, hw.CommandSyndromeEQN},
		{"CQ EQN reserved bits", hw.CommandCreateCQ, 1, cq(func(x *hw.CQContext) { x.EQN = 1 << 24 }), reserved, none},
		{"CQ doorbell at 4", hw.CommandCreateCQ, 1, cq(func(x *hw.CQContext) { x.Doorbell += 4 }), badParam, hw.CommandSyndromeDoorbell},
		{"CQ doorbell of another", hw.CommandCreateCQ, 1, cq(func(x *hw.CQContext) { x.Doorbell = r.page(40) + 256 }), badParam, hw.CommandSyndromeDoorbell},
		{"CQ destroy none", hw.CommandDestroyCQ, 17, nil, badObject, hw.CommandSyndromeCQN},
		{"CQ query none", hw.CommandQueryCQ, 1 << 30, nil, badObject, hw.CommandSyndromeCQN},

		{"key index", hw.CommandWriteKey, 1 << 20, key(func(x *hw.KeyEntry) {}), badObject, hw.CommandSyndromeKey},
		{"key length", hw.CommandWriteKey, 1, make([]byte, 60), badParam, hw.CommandSyndromeLength},
		{"key base wraps", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.Base = ^uint64(0) }), badParam, hw.CommandSyndromeKey},
		{"key IOVA wraps", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.IOVA = ^uint64(0xffe) }), badParam, hw.CommandSyndromeKey},
		{"key state", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.Valid |= 3 << 8 }), badParam, hw.CommandSyndromeKey},
		{"key type", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.Valid |= 3 << 12 }), badParam, hw.CommandSyndromeKey},
		{"key access", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.Valid |= 0x80 << 16 }), badParam, hw.CommandSyndromeKey},
		{"key reserved", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.Valid |= 1 << 31 }), reserved, none},
		{"key PD", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.PD = 1 << 24 }), reserved, none},
		{"key address space", hw.CommandWriteKey, 1, key(func(x *hw.KeyEntry) { x.AddressSpace = 1 }), reserved, none},
		{"read key", hw.CommandReadKey, 1 << 20, nil, badObject, hw.CommandSyndromeKey},
		{"fence key", hw.CommandFenceKey, 1 << 31, nil, badObject, hw.CommandSyndromeKey},
		{"cache line", hw.CommandReadKeyCache, 256, nil, badObject, hw.CommandSyndromeKey},

		{"port number", hw.CommandModifyPort, 2, port(func(x *hw.PortContext) {}), badObject, none},
		{"port query", hw.CommandQueryPort, 0, nil, badObject, none},
		{"port MTU", hw.CommandModifyPort, 1, port(func(x *hw.PortContext) { x.ActiveMTU = 6 }), badParam, hw.CommandSyndromeMTU},
		{"port no MAC", hw.CommandModifyPort, 1, port(func(x *hw.PortContext) { x.MAC = [6]byte{} }), badParam, none},
		{"port group MAC", hw.CommandModifyPort, 1, port(func(x *hw.PortContext) { x.MAC[0] |= 1 }), badParam, none},
		{"port P_Keys", hw.CommandModifyPort, 1, port(func(x *hw.PortContext) { x.PKeyCount = 17 }), badParam, hw.CommandSyndromePKey},
		{"port GID of zeros", hw.CommandModifyPort, 1, port(func(x *hw.PortContext) { x.GIDValid |= 1 << 9 }), badParam, hw.CommandSyndromeGID},

		{"trace size", hw.CommandSetTrace, 0, traceRing(func(x *hw.RingContext) { x.LogEntries = 0 }), badParam, hw.CommandSyndromeRingSize},
		{"trace stride", hw.CommandSetTrace, 0, traceRing(func(x *hw.RingContext) { x.LogStride = 7 }), badParam, hw.CommandSyndromeRingSize},
		{"trace alignment", hw.CommandSetTrace, 0, traceRing(func(x *hw.RingContext) { x.IOVA += 64 }), badParam, hw.CommandSyndromeRingAlign},
		{"trace all", hw.CommandSetTrace, 0, traceRing(func(x *hw.RingContext) { x.All = 2 }), badParam, none},
		{"trace QPN", hw.CommandSetTrace, 0, traceRing(func(x *hw.RingContext) { x.QPN = 1 << 24 }), reserved, none},
		{"capture stride", hw.CommandSetCapture, 0, traceRing(func(x *hw.RingContext) { x.LogStride = 15 }), badParam, hw.CommandSyndromeRingSize},
		{"list kind", hw.CommandList, 5, nil, badObject, none},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			r.refused(c.op, c.object, 0, c.in, c.status, c.syndrome)
		})
	}
	r.t = t
	// A refused command's doorbell page is free.
	r.do(hw.CommandCreateEQ, 1, 0, eq(func(x *hw.EQContext) {}), 0)

	// A command whose reserved bytes hold something, and one whose mailbox cannot be read.
	e := hw.CommandEntry{Opcode: hw.CommandNop}
	e.AsBytes()[63] = 1
	i := r.post(e)
	r.store(hw.RegControlCommandDoorbell, r.sent)
	if p := r.reply(i); p.Status != hw.CommandStatusReservedNotZero {
		t.Errorf("reserved byte: %v", p.Status)
	}
	i = r.post(hw.CommandEntry{Opcode: hw.CommandCreateCQ, Object: 9, InIOVA: 0x7777_0000, InLength: 64})
	r.store(hw.RegControlCommandDoorbell, r.sent)
	if p := r.reply(i); p.Status != hw.CommandStatusDMAError {
		t.Errorf("mailbox not mapped: %v", p.Status)
	}
	i = r.post(hw.CommandEntry{Opcode: hw.CommandQueryCQ, Object: 0, OutIOVA: ^uint64(0), OutLength: 64})
	r.store(hw.RegControlCommandDoorbell, r.sent)
	if p := r.reply(i); p.Status != hw.CommandStatusDMAError {
		t.Errorf("output not mapped: %v", p.Status)
	}
}

// Contexts come back as they were given, with what the card has seen.
func TestQueryContexts(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	eq := r.createEQ(3, 5, 7, false)
	cq := r.createCQ(9, 6, 3)
	cq.complete(hw.CQE{QPN: 5}, false)
	cq.complete(hw.CQE{QPN: 6}, false)
	cq.next()
	cq.told()
	x := hw.ViewCQContext(r.do(hw.CommandQueryCQ, 9, 0, nil, 64))
	want := hw.CQContext{IOVA: cq.iova, Doorbell: cq.bell, EQN: 3, LogEntries: 6, Producer: 2, Consumer: 1}
	if *x != want {
		t.Errorf("CQ %+v, want %+v", *x, want)
	}
	e := hw.ViewEQContext(r.do(hw.CommandQueryEQ, 3, 0, nil, 64))
	if w := (hw.EQContext{IOVA: eq.iova, Doorbell: eq.bell, Vector: 7, LogEntries: 5}); *e != w {
		t.Errorf("EQ %+v, want %+v", *e, w)
	}
	// Less room: less is written, and the reply says how much.
	if b := r.do(hw.CommandQueryEQ, 3, 0, nil, 10); len(b) != 10 {
		t.Errorf("%d bytes into room for 10", len(b))
	}
	r.do(hw.CommandDestroyCQ, 9, 0, nil, 0)
	r.do(hw.CommandDestroyEQ, 3, 0, nil, 0)
	r.refused(hw.CommandQueryCQ, 9, 0, nil, hw.CommandStatusBadObject, hw.CommandSyndromeCQN)
	r.createEQ(3, 5, 7, false) // its page is free again
	r.createCQ(9, 6, 3)
}

// LIST names the numbers in use from one on, as many as there is room for, and
// counts them all.
func TestList(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	for _, n := range []uint32{0, 3, 31} {
		r.createEQ(n, 1, 0, false)
	}
	for _, n := range []uint32{4095, 7, 1000} {
		x := hw.CQContext{IOVA: memBase, Doorbell: r.page(100 + n), LogEntries: 1}
		r.do(hw.CommandCreateCQ, n, 0, x.AsBytes(), 0)
	}
	list := func(kind hw.ListKind, first uint32, room int) (uint64, []uint32) {
		t.Helper()
		p, b := r.command(hw.CommandList, uint32(kind), first, nil, 4*room)
		if p.Status != hw.CommandStatusOK {
			t.Fatalf("LIST %v: %v", kind, p.Status)
		}
		var n []uint32
		for ; len(b) > 0; b = b[4:] {
			n = append(n, le.Uint32(b))
		}
		return p.Value, n
	}
	for _, c := range []struct {
		kind  hw.ListKind
		first uint32
		room  int
		count uint64
		want  []uint32
	}{
		{hw.ListKindEQ, 0, 10, 3, []uint32{0, 3, 31}},
		{hw.ListKindEQ, 1, 10, 2, []uint32{3, 31}},
		{hw.ListKindEQ, 0, 2, 3, []uint32{0, 3}},
		{hw.ListKindEQ, 0, 0, 3, nil},
		{hw.ListKindEQ, 32, 10, 0, nil},
		{hw.ListKindCQ, 0, 10, 3, []uint32{7, 1000, 4095}},
		{hw.ListKindQP, 0, 10, 0, nil},
		{hw.ListKindSRQ, 0, 10, 0, nil},
		{hw.ListKindKey, 0, 10, 0, nil},
	} {
		if n, got := list(c.kind, c.first, c.room); n != c.count || !slices.Equal(got, c.want) {
			t.Errorf("LIST %v from %d, room %d: %d, %v; want %d, %v", c.kind, c.first, c.room, n, got, c.count, c.want)
		}
	}
	// Keys, at both ends of 2^20 and across a buffer's border.
	want := []uint32{}
	for i := uint32(0); i < 300; i++ {
		want = append(want, i*3)
	}
	want = append(want, 1<<19, 1<<20-1)
	var e hw.KeyEntry
	e.SetState(hw.KeyStateInvalid)
	for _, i := range want {
		r.do(hw.CommandWriteKey, i, 0, e.AsBytes(), 0)
	}
	if n, got := list(hw.ListKindKey, 0, 4096); n != 302 || !slices.Equal(got, want) {
		t.Errorf("keys: %d, %v", n, got)
	}
	if n, got := list(hw.ListKindKey, 898, 4096); n != 2 || !slices.Equal(got, want[300:]) {
		t.Errorf("keys from 898: %d, %v", n, got)
	}
	if n, got := list(hw.ListKindKey, 1<<20-1, 4096); n != 1 || !slices.Equal(got, []uint32{1<<20 - 1}) {
		t.Errorf("the last key: %d, %v", n, got)
	}
	if n, _ := list(hw.ListKindKey, ^uint32(0), 4096); n != 0 {
		t.Errorf("keys beyond the end: %d", n)
	}
}

// As many objects as the card says, and not one more.
func TestThousandsOfCQs(t *testing.T) {
	r := newRig(t, Config{})
	r.start(8)
	r.createEQ(0, 4, 0, false)
	n := r.load(hw.RegIdentMaxCQs)
	if n < 1024 {
		t.Fatalf("%d CQs", n)
	}
	for i := range n {
		x := hw.CQContext{IOVA: memBase, Doorbell: r.page(40+i) + 64*(i%64), LogEntries: 1}
		r.do(hw.CommandCreateCQ, i, 0, x.AsBytes(), 0)
	}
	for i := range n {
		r.do(hw.CommandDestroyCQ, (i*2741+5)%n, 0, nil, 0) // in some order
	}
	if p, _ := r.command(hw.CommandList, uint32(hw.ListKindCQ), 0, nil, 0); p.Value != 0 {
		t.Errorf("%d CQs are left", p.Value)
	}
}
