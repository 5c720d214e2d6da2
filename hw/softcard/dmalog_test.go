package softcard

import (
	"testing"

	"rnic/hw"
)

// access is a DMA access as the client's memory saw it.
type access struct {
	iova   uint64
	length int
	write  bool
	failed bool
}

// dmaLog starts a DMA log of 2^log records, and has the host note every access but
// those to it. refuse says which are to fail.
func (n *node) dmaLog(t *testing.T, log uint8, refuse func(access) bool) (ring []hw.DMARecord, seen *[]access) {
	t.Helper()
	iova, b := n.host.alloc(t, hw.DMARecordSize<<log)
	clear(b)
	n.must(hw.CommandSetDMALog, 0, 0, (&hw.RingContext{IOVA: iova, LogEntries: log, LogStride: 6, All: 1}).AsBytes())
	seen = new([]access)
	n.host.fail = func(at uint64, k int, write bool) bool {
		if at-iova < uint64(len(b)) {
			return false
		}
		x := access{iova: at, length: k, write: write}
		x.failed = refuse != nil && refuse(x)
		*seen = append(*seen, x)
		return x.failed
	}
	return hw.SliceDMARecord(b), seen
}

// TestDMALog: the log has each access that the client's memory saw, in their order,
// numbered without a gap, with what became of it; those of payload name key and QP.
func TestDMALog(t *testing.T) {
	p := newTwo(t, defaultLink())
	fault := false
	for _, n := range []*node{p.pair.b, p.pair.a} {
		mr, qp := p.src, p.a
		if n == p.pair.b {
			mr, qp = p.dst, p.b
		}
		payload := func(x access) bool { return x.iova-mr.iova < uint64(len(mr.mem)) }
		before := n.card.regs.tests.dmaSequence.Load() + 2 // 1: the mailbox of SET_DMA_LOG
		ring, seen := n.dmaLog(t, 10, func(x access) bool { return fault && payload(x) })
		p.send(p.src.sge(10, 300), p.src.sge(5000, 6000))
		p.run()
		p.write(p.src.sge(0, 9000))
		p.run()
		p.a.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, 5000)}})
		p.run()
		p.a.post(tWR{op: hw.OpcodeAtomicFetchAndAdd, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, swapAdd: 1, sges: []hw.DataSegment{p.src.sge(0, 8)}})
		p.run()
		if n == p.pair.a {
			fault = true
			p.write(p.src.sge(100, 100))
			p.run()
		}
		reads, writes, faults := 0, 0, 0
		for i, x := range *seen {
			want := hw.DMARecord{Time: ring[i].Time, Sequence: before + uint64(i), IOVA: x.iova, Length: uint32(x.length), Owner: 1}
			if x.write {
				want.Direction = hw.DMADirectionWrite
			}
			if x.failed {
				want.Reason = hw.ReasonDMARead
				faults++
			}
			if payload(x) {
				want.QPN = qp.number
				if testEngine != hw.EngineRTL || x.write {
					want.Key = mr.key
				} else {
					want.QPN = 0
				}
				if x.write {
					writes++
				} else {
					reads++
				}
			}
			if ring[i] != want {
				t.Fatalf("card %v, access %d: %+v, want %+v", n.card.Name(), i, ring[i], want)
			}
		}
		if n := len(*seen); ring[n].Owner != 0 {
			t.Errorf("more than the %d accesses are in the log: %+v", n, ring[n])
		}
		if reads == 0 || writes == 0 || (n == p.pair.a) != (faults > 0) {
			t.Errorf("%d reads and %d writes of payload, %d faults", reads, writes, faults)
		}
		n.host.fail = nil
		n.must(hw.CommandSetDMALog, 0, 0, (&hw.RingContext{}).AsBytes())
	}
}

// TestDMALogFull: what does not fit is counted, in the next record and in
// DMA_LOG_LOST, and the card does not wait.
func TestDMALogFull(t *testing.T) {
	p := newTwo(t, defaultLink())
	n := p.pair.a
	ring, seen := n.dmaLog(t, 2, nil)
	p.write(p.src.sge(0, 2000), p.src.sge(3000, 2000), p.src.sge(6000, 90))
	p.run()
	wantWCs(t, "send queue", p.a.sendCQ, good(0))
	lost := uint64(len(*seen)) - 4
	if got := n.card.regs.tests.dmaLogLost.Load(); len(*seen) < 6 || got != lost {
		t.Fatalf("%d of %d accesses lost", got, len(*seen))
	}
	last := ring[3].Sequence
	n.ring(hw.DomainDMALogCI, 2)
	p.write(p.src.sge(0, 64))
	p.run()
	if ring[0].Lost != uint32(lost) || ring[0].Sequence != last+lost+1 || ring[0].Phase() || ring[1].Lost != 0 || ring[1].Phase() || !ring[2].Phase() {
		t.Errorf("after %d lost: %+v", lost, ring)
	}
}

// TestDMALogCommand: a log needs a ring of whole records of all QPs, and the debug
// page.
func TestDMALogCommand(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	at := r.alloc(8192)
	for name, f := range map[string]func(*hw.RingContext){
		"of one QP": func(x *hw.RingContext) { x.All, x.QPN = 0, 5 },
		"a sample":  func(x *hw.RingContext) { x.Sample = 2 },
	} {
		x := hw.RingContext{IOVA: at, LogEntries: 4, LogStride: 6, All: 1}
		f(&x)
		t.Log(name)
		r.refused(hw.CommandSetDMALog, 0, 0, x.AsBytes(), hw.CommandStatusBadParam, hw.CommandSyndromeNone)
	}
	x := hw.RingContext{IOVA: at, LogEntries: 4, LogStride: 7, All: 1}
	r.refused(hw.CommandSetDMALog, 0, 0, x.AsBytes(), hw.CommandStatusBadParam, hw.CommandSyndromeRingSize)
	fused := newRig(t, Config{FuseDebug: true})
	fused.start(4)
	fused.refused(hw.CommandSetDMALog, 0, 0, (&hw.RingContext{}).AsBytes(), hw.CommandStatusUnsupported, hw.CommandSyndromeNone)
	if p, _ := fused.command(hw.CommandFenceKey, 5, 0, nil, 0); p.Value != 0 {
		t.Errorf("a fence of a card without debug page has the value %d", p.Value)
	}
}

// TestG11_FenceSaysWhen: the fence's reply tells how many accesses were made when it
// was done: those of its own reply come after it.
func TestG11_FenceSaysWhen(t *testing.T) {
	r := newRig(t, Config{})
	r.start(4)
	before := r.load64(hw.RegDebugDMASequence)
	p, _ := r.command(hw.CommandFenceKey, 5, 0, nil, 0)
	if after := r.load64(hw.RegDebugDMASequence); p.Value != before+1 || after != before+2 { // the command; the reply
		t.Errorf("%d accesses before the fence, %d at it, %d after it", before, p.Value, after)
	}
}
