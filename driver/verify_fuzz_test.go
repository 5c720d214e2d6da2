package driver

import (
	"encoding/binary"
	"testing"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/queues"
	"rnic/vfio"
)

// fuzzDevice is a device with one queue pair, which has a SEND of two segments in
// its ring, and one key; there is no card.
func fuzzDevice(t *testing.T) (*Device, *QP) {
	t.Helper()
	d := &Device{addr: "fuzz", log: zap.NewNop(), qps: map[uint32]*QP{}, events: newEventQueue(), shadow: shadow{limit: 1 << 8, keys: map[uint32]*shadowKey{}}}
	q := &QP{pd: &PD{d: d, n: 5}, n: 2, init: QPInit{MaxSendWR: 8, MaxSendSGE: 4, MaxInline: 64}, ctl: newCtlLock()}
	word := make([]uint32, 2)
	var err error
	if q.sq, err = queues.NewSQ(make([]byte, 64<<10)[:32*hw.WQEBlock], &word[0], &d.domain); err != nil {
		t.Fatal(err)
	}
	q.sends, q.sendMask, q.sendLimit = make([]sendRecord, 32), 31, 8
	q.mtu.Store(256)
	d.qps[q.n] = q
	d.shadow.keys[1] = &shadowKey{memory: make([]byte, 4096), key: gather.Key{State: hw.KeyStateValid, PD: 5, Tag: 7, Base: 0x1000, Length: 4096, IOVA: 0x9000, Access: hw.AccessRemoteRead}}
	if err := q.PostSend(&SendWR{WRID: 1, Opcode: Send, SGEs: []SGE{{Addr: 0x1000, Length: 300, LKey: 0x107}, {Addr: 0x1200, Length: 100, LKey: 0x107}}}); err != nil {
		t.Fatal(err)
	}
	return d, q
}

// FuzzTraceRecords: what a card reports, whatever it is, is compared or dropped, and
// freezes at most the queue pair that it is about.
func FuzzTraceRecords(f *testing.F) {
	seed := func(records ...hw.TraceRecord) (b []byte) {
		for i := range records {
			records[i].QPN = 2
			b = append(b, records[i].AsBytes()...)
		}
		return b
	}
	f.Add(seed(
		hw.TraceRecord{Kind: hw.TraceKindPacket, Opcode: hw.OpcodeSend, Bytes: 256, CursorLeft: 400},
		hw.TraceRecord{Kind: hw.TraceKindLookup, Bytes: 256, Key: 0x107, CursorLeft: 400},
		hw.TraceRecord{Kind: hw.TraceKindRead, Bytes: 256, Key: 0x107, CursorOffset: 256, CursorLeft: 144},
		hw.TraceRecord{Kind: hw.TraceKindHandover, Bytes: 256, CursorOffset: 256, CursorLeft: 144}))
	f.Add(seed(
		hw.TraceRecord{Kind: hw.TraceKindPacket, Flags: hw.TraceFlagResponse, Packet: 3, CursorOffset: 768, CursorLeft: 4_000_000_000, Key: 0x107},
		hw.TraceRecord{Kind: hw.TraceKindFault, Flags: hw.TraceFlagResponse, Packet: 3, Segment: 200, Reason: 77}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, q := fuzzDevice(t)
		v := &verifier{d: d, dir: t.TempDir(), open: map[walkOf]*tracedPacket{}, wake: make(chan struct{}, 1)}
		v.x.w.s = &d.shadow
		ring := make([]byte, 64<<10)[:64]
		for ; len(b) >= hw.TraceRecordSize; b = b[hw.TraceRecordSize:] {
			// As the ring gives it.
			copy(ring, b)
			ring[60] |= 1
			tr, err := queues.NewTrace(ring, new(uint32))
			if err != nil {
				t.Fatal(err)
			}
			r, ok := (&traceRing{d: d, q: tr, packets: map[uint32]hostedPacket{}}).next()
			if !ok {
				t.Fatal("no record")
			}
			v.take(&r)
		}
		if v.stats.Mismatches > 1 || (v.stats.Mismatches == 1) != (q.mismatch.Load() != nil) {
			t.Fatalf("%+v, %v", v.stats, q.mismatch.Load())
		}
	})
}

// FuzzHostGatherRequest: what a card asks for, whatever it is, gets one answer, and
// nothing but its staging slot is written.
func FuzzHostGatherRequest(f *testing.F) {
	good := hw.HostGatherRequest{QPN: 2, PD: 5, Bytes: 100, CursorLeft: 100, Segments: 1, Slot: 3, Token: 9}
	f.Add(append(append([]byte{}, good.AsBytes()...), (&hw.DataSegment{Addr: 0x1000, Length: 100, LKey: 0x107}).AsBytes()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, _ := fuzzDevice(t)
		const n = 1 << gatherLogEntries
		mem := make([]byte, n*queues.GatherSlot)
		copy(mem[:queues.GatherSlot], b)
		binary.LittleEndian.PutUint32(mem[60:], 1)
		var slot, token uint32 = binary.LittleEndian.Uint32(mem[32:]), binary.LittleEndian.Uint32(mem[36:])
		replies, staging := make([]byte, 64<<10)[:n*hw.HostGatherReplySize], make([]byte, n<<stagingLogStride)
		for i := range staging {
			staging[i] = 0xa5
		}
		var ci, pi uint32
		g := &hostGather{d: d, w: walker{s: &d.shadow}, mem: [3]vfio.Block{{Bytes: mem}, {Bytes: replies}, {Bytes: staging}}}
		var err error
		if g.q, err = queues.NewGather(mem, replies, &ci, &pi, &d.domain); err != nil {
			t.Fatal(err)
		}
		if !g.serve() || ci != 1 || pi != 1 {
			t.Fatalf("%d taken, %d answered", ci, pi)
		}
		r := *hw.ViewHostGatherReply(replies)
		if r.Token != token || !r.ReservedZero() || r.Bytes > 1<<stagingLogStride || r.Bytes != 0 && r.Reason != 0 {
			t.Fatalf("%+v", r)
		}
		for i, v := range staging {
			if v != 0xa5 && i>>stagingLogStride != int(slot) {
				t.Fatalf("staging byte %d was written, the slot is %d", i, slot)
			}
		}
	})
}
