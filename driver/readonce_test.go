package driver

import (
	"testing"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
	"rnic/vfio/memtest"
)

// TestH01_ReadOnce: of what a card writes into this program's memory, each byte is loaded
// once at most. The owner word alone is polled: at each look, and with the copy.
func TestH01_ReadOnce(t *testing.T) {
	ring := make([]byte, 8<<10)
	words := make([]uint32, 16)
	owned := func(size int, b []byte) []byte {
		clear(ring)
		copy(ring, b)
		ring[size-4] |= 1
		return ring
	}
	d, qp := fuzzDevice(t)
	for _, c := range []struct {
		name  string
		size  int // of the entry, owner word last
		whole int // of what is looked at, where more follows
		make  func() func()
	}{
		{"CQE", hw.CQESize, 0, func() func() {
			e := hw.CQE{QPN: 2, WQEIndex: 0, FaultSegment: hw.NoSegment}
			cq := &CQ{d: d, qps: map[uint32]*QP{2: qp}, last: &QP{n: 9}}
			q, err := queues.NewCQ(owned(hw.CQESize, e.AsBytes())[:2*hw.CQESize], &words[0], &words[1], &d.domain)
			if err != nil {
				t.Fatal(err)
			}
			cq.q, qp.init.SendCQ, qp.sqDone = q, cq, 0
			return func() {
				if n, _ := cq.Poll(make([]WC, 1)); n != 1 {
					t.Fatal("no completion")
				}
			}
		}},
		{"CQE, verified", hw.CQESize, 0, func() func() {
			e := hw.CQE{QPN: 2, WQEIndex: 0, FaultSegment: hw.NoSegment}
			dv := &Device{addr: "fuzz", log: zap.NewNop(), qps: d.qps, shadow: shadow{limit: 1, keys: map[uint32]*shadowKey{}}}
			dv.verify = &verifier{d: dv, open: map[walkOf]*tracedPacket{}}
			cq := &CQ{d: dv, qps: map[uint32]*QP{2: qp}}
			q, err := queues.NewCQ(owned(hw.CQESize, e.AsBytes())[:2*hw.CQESize], &words[0], &words[1], &d.domain)
			if err != nil {
				t.Fatal(err)
			}
			cq.q, qp.init.SendCQ, qp.sqDone = q, cq, 0
			qp.mismatch.Store(&VerifyError{WQEIndex: 0})
			return func() {
				var wc [1]WC
				if n, _ := cq.Poll(wc[:]); n != 1 || wc[0].Reason != ReasonVerify {
					t.Fatal("no completion")
				}
				qp.mismatch.Store(nil)
			}
		}},
		{"EQE", hw.EQESize, 0, func() func() {
			e := hw.EQE{Type: hw.EventTypeCommEst, Object: 2}
			q, err := queues.NewEQ(owned(hw.EQESize, e.AsBytes())[:2*hw.EQESize], &words[0], &d.domain)
			if err != nil {
				t.Fatal(err)
			}
			v := &vector{d: d, eq: q}
			return func() {
				if v.drain(); q.Consumer() != 1 {
					t.Fatal("no event")
				}
			}
		}},
		{"command reply", hw.CommandReplySize, 0, func() func() {
			r := hw.CommandReply{Token: 1 << commandLogEntries}
			q, err := queues.NewCommand(make([]byte, 8<<10)[:2*hw.CommandEntrySize], owned(hw.CommandReplySize, r.AsBytes())[:2*hw.CommandReplySize])
			if err != nil {
				t.Fatal(err)
			}
			x := &commands{d: d, q: q, slots: []commandSlot{{token: r.Token, busy: true, reply: make(chan hw.CommandReply, 1)}}}
			return func() {
				if x.poll(); len(x.slots[0].reply) != 1 {
					t.Fatal("no reply")
				}
			}
		}},
		{"trace record", hw.TraceRecordSize, 0, func() func() {
			r := hw.TraceRecord{QPN: 2, Kind: hw.TraceKindPacket}
			q, err := queues.NewTrace(owned(hw.TraceRecordSize, r.AsBytes())[:2*hw.TraceRecordSize], &words[0])
			if err != nil {
				t.Fatal(err)
			}
			tr := &traceRing{d: d, q: q, packets: map[uint32]hostedPacket{}}
			return func() {
				if _, ok := tr.next(); !ok {
					t.Fatal("no record")
				}
			}
		}},
		{"captured frame", hw.CaptureHeader, hw.CaptureHeader + 128, func() func() {
			r := hw.CaptureRecord{Captured: 128, Length: 128}
			q, err := queues.NewCapture(owned(hw.CaptureHeader, r.AsBytes())[:512], 8, &words[0])
			if err != nil {
				t.Fatal(err)
			}
			c := &captureRing{q: q}
			return func() {
				if f, ok := c.next(); !ok || len(f.Data) != 128 {
					t.Fatal("no frame")
				}
			}
		}},
		{"host gather request", hw.HostGatherRequestSize, hw.HostGatherRequestSize + 2*hw.DataSegmentSize, func() func() {
			r := hw.HostGatherRequest{QPN: 2, PD: 5, Bytes: 100, CursorLeft: 200, Segments: 2}
			b := owned(hw.HostGatherRequestSize, r.AsBytes())
			for i := range 2 {
				copy(b[hw.HostGatherRequestSize+i*hw.DataSegmentSize:], (&hw.DataSegment{Addr: 0x1000, Length: 100, LKey: 0x107}).AsBytes())
			}
			q, err := queues.NewGather(b[:2*queues.GatherSlot], make([]byte, 8<<10)[:2*hw.HostGatherReplySize], &words[0], &words[1], &d.domain)
			if err != nil {
				t.Fatal(err)
			}
			g := &hostGather{d: d, q: q, w: walker{s: &d.shadow}, mem: [3]vfio.Block{{}, {}, {Bytes: make([]byte, 1<<gatherLogEntries<<stagingLogStride)}}}
			return func() {
				if !g.serve() {
					t.Fatal("no request")
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			polled := 2
			if c.name == "CQE, verified" {
				polled = 3 // CQ.Ready looks as well
			}
			for i := range max(c.size, c.whole) {
				limit := 1
				if i == 0 {
					limit = 2 // the compiler's check for nil touches it
				}
				if i >= c.size-4 && i < c.size {
					limit = polled
				}
				n := memtest.Least(t, &ring[i], limit, c.make)
				if n > limit {
					t.Errorf("byte %d is loaded %d times", i, n)
				}
			}
		})
	}
}
