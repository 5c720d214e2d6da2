//go:build rtl

package rtl

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/gather/oracle"
	"rnic/hw/roce"
)

// eachWidth runs a test at each width of the data path.
func eachWidth(t *testing.T, f func(t *testing.T, width int)) {
	for _, width := range widths {
		t.Run(fmt.Sprint(width), func(t *testing.T) { f(t, width) })
	}
}

// one is a message of one segment in a region of its own.
func (r *rig) one(kind Kind, index uint32, length, mtu uint32) *message {
	g := oracle.Region{Valid: true, Tag: 5, PD: 3, Rights: 4, Base: uint64(index) << 32, Length: 1 << 20, IOVA: uint64(index) << 40}
	r.region(index, g)
	m := &message{kind: kind, request: oracle.Request{Op: [...]string{Send: "send", Write: "write", ReadResponse: "read-response"}[kind], Reliable: true, MTU: mtu, PD: 3,
		Segments: []oracle.Segment{{Addr: g.Base + 1, Length: length, Key: index<<8 | 5}}}}
	m.header = randomHeader(rand.New(rand.NewPCG(1, uint64(index))))
	w := &oracle.World{Regions: map[uint32]oracle.Region{index: g}, Read: r.read}
	m.walk = w.Gather(m.request)
	return m
}

// settle runs so many cycles.
func (r *rig) settle(cycles uint32) { r.e.Run(cycles, r, func() bool { return false }) }

func (r *rig) wantFrames(c int, want ...[]byte) {
	r.t.Helper()
	if len(r.frames[c]) != len(want) {
		r.t.Fatalf("context %d: %d frames, want %d", c, len(r.frames[c]), len(want))
	}
	for i := range want {
		if err := same(r.frames[c][i], want[i]); err != nil {
			r.t.Fatalf("context %d: frame %d: %v", c, i, err)
		}
	}
}

// TestG02_Plain: READ requests, atomics, acknowledgements and what else has no payload pass as they
// are, without a lookup and without a read (rule G2), with every header of hw/roce.
func TestG02_Plain(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		r := newRig(t, width, 1)
		rng := rand.New(rand.NewPCG(2, 2))
		r.stalls(rng)
		var want [Contexts][][]byte
		n := 0
		for range 20 {
			for _, op := range []roce.Opcode{roce.RCReadRequest, roce.RCCompareSwap, roce.RCFetchAdd, roce.RCAcknowledge,
				roce.RCAtomicAcknowledge, roce.RCReadResponseOnly, roce.UDSendOnly, roce.UDSendOnlyImm, roce.RCSendOnly, roce.RCWriteOnlyImm, roce.RCSendOnlyInv, roce.CNP} {
				h := randomHeader(rng)
				h.Opcode, h.SE, h.AckReq = op, rng.IntN(2) == 0, rng.IntN(2) == 0
				h.PSN, h.IPID = rng.Uint32()&roce.PSNMask, uint16(rng.Uint32())
				c := rng.IntN(Contexts)
				r.e.Submit(c, &Job{Kind: Plain, Header: h, MTU: 256})
				if op.Has(roce.ExtAtomicETH) {
					h.RETH.VA, h.RETH.RKey = h.Atomic.VA, h.Atomic.RKey
				}
				want[c] = append(want[c], h.Append(nil, nil))
				n++
			}
		}
		r.run(n)
		for c := range want {
			r.wantFrames(c, want[c]...)
		}
		if l, reads := r.e.Count(Lookups), r.e.Count(Reads); l != 0 || reads != 0 {
			t.Errorf("%d lookups and %d reads, want none", l, reads)
		}
	})
}

// TestG15_Gate: a limited job takes no lookup and no read while it is held, and another context does not
// wait for it. Then ticks let its frames out, never more than the bucket has.
func TestG15_Gate(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		r := newRig(t, width, 1)
		m := r.one(Write, 9, 10000, 1024)
		size := uint64(len(m.frame(1))) // of a middle packet
		burst := uint32(size) + 64
		r.e.SetRate(3, size*1_000_000_000/4, burst)
		j := m.job(0, 0)
		j.Rate = 3
		r.e.Submit(1, j)
		r.settle(2000)
		if len(r.frames[1]) != 1 {
			t.Fatalf("%d frames out of a full bucket of %d bytes, want 1", len(r.frames[1]), burst)
		}
		lookups, reads := r.e.Count(Lookups), r.e.Count(Reads)
		free := r.one(Send, 10, 3000, 1024)
		r.e.Submit(2, free.job(0, 0))
		r.run(1)
		r.wantFrames(2, free.frame(0), free.frame(1), free.frame(2))
		if got := r.e.Count(Lookups) - lookups; got != 3 {
			t.Errorf("%d lookups while one job was held, want the 3 of the other", got)
		}
		if r.e.Count(GateHolds) == 0 {
			t.Error("no hold was counted")
		}
		// A bucket of tokens, tick by tick, by the words of rule G16.
		tokens := uint64(burst)*4 - 4*uint64(len(r.frames[1][0])) // in quarters of bytes
		for tick := 0; len(r.results[1]) == 0 && tick < 100; tick++ {
			had := len(r.frames[1])
			r.e.Tick(1)
			r.settle(1500)
			tokens = min(tokens+size, uint64(burst)*4)
			for _, f := range r.frames[1][had:] {
				if uint64(len(f))*4 > tokens {
					t.Fatalf("tick %d: a frame of %d bytes left, the bucket had %d quarters", tick, len(f), tokens)
				}
				tokens -= uint64(len(f)) * 4
			}
			if next := len(r.frames[1]); next < len(m.walk.Packets) && uint64(len(m.frame(next)))*4 <= tokens {
				t.Fatalf("tick %d: a frame of %d bytes is held, the bucket has %d quarters", tick, len(m.frame(next)), tokens)
			}
		}
		var want [][]byte
		for i := range m.walk.Packets {
			want = append(want, m.frame(i))
		}
		r.wantFrames(1, want...)
		if got := r.e.Count(Reads) - reads; got == 0 {
			t.Error("no read was counted")
		}
	})
}

// TestG11_Fence: keys are invalidated and fenced while messages that use them are under way, a fill
// racing now and then. After the acknowledgement no read goes to the region; what was sent is right.
func TestG11_Fence(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		rng := rand.New(rand.NewPCG(seed(t), uint64(width)))
		discarded, ended := uint64(0), 0
		for trial := range (walks(t) + 9) / 10 {
			r := newRig(t, width, rng.Uint64())
			r.stalls(rng)
			var ms [Contexts]*message
			for c := range ms {
				ms[c] = r.one(Send, uint32(64*(c+1)), uint32(20000+rng.IntN(40000)), 1024)
				r.e.Submit(c, ms[c].job(0, 0))
			}
			victim := rng.IntN(Contexts)
			index := uint32(64 * (victim + 1))
			r.settle(uint32(rng.IntN(600)))
			r.keys[index].Valid = 0
			r.e.Fence(index)
			r.e.Run(1_000_000, r, func() bool { return len(r.fenced) == 1 })
			if len(r.fenced) != 1 {
				t.Fatalf("trial %d: the fence was not acknowledged", trial)
			}
			r.seen = func(iova uint64, n uint32) {
				if iova>>40 == uint64(index) {
					t.Errorf("trial %d: a read of %d bytes at %#x after the fence", trial, n, iova)
				}
			}
			r.run(Contexts)
			for c, m := range ms {
				got := r.results[c][0]
				want := len(m.walk.Packets)
				if c == victim && got.Fault.Reason != hw.ReasonNone {
					ended++
					if got.Fault != (gather.Fault{Segment: 0, Key: index<<8 | 5, Offset: got.PSNs * 1024, Reason: hw.ReasonKeyIndex}) {
						t.Fatalf("trial %d: fault %+v", trial, got.Fault)
					}
					want = int(got.PSNs)
				}
				var frames [][]byte
				for i := range want {
					frames = append(frames, m.frame(i))
				}
				r.wantFrames(c, frames...)
			}
			discarded += r.e.Count(FillsDiscarded)
		}
		if ended == 0 {
			t.Error("no fence came in the middle of a message")
		}
		t.Logf("%d of the messages ended by their fence, %d fills discarded", ended, discarded)
	})
}

// TestFillRace: the fence comes while the fill is under way; the entry that was read is discarded and
// read again, so that the lookup finds what the table says after the fence (rule G11).
func TestFillRace(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		r := newRig(t, width, 1)
		r.e.SetOption(LatencyMin, 500)
		r.e.SetOption(LatencyMax, 500)
		m := r.one(Send, 77, 3000, 1024)
		r.e.Submit(0, m.job(0, 0))
		r.settle(100) // the fill is asked for, its answer on the way
		r.keys[77].Valid = 0
		r.e.Fence(77)
		r.run(1)
		if got := r.results[0][0]; got.PSNs != 0 || got.Fault.Reason != hw.ReasonKeyIndex {
			t.Errorf("result %+v, want a fault by the entry that the table has after the fence", got)
		}
		if n := r.e.Count(FillsDiscarded); n != 1 {
			t.Errorf("%d fills discarded, want 1", n)
		}
		if len(r.fenced) != 1 || r.reads != 0 {
			t.Errorf("%d fences, %d reads", len(r.fenced), r.reads)
		}
	})
}

// TestMissAlone: a context that waits for its fill does not keep another from going on.
func TestMissAlone(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		r := newRig(t, width, 1)
		warm := r.one(Send, 20, 2000, 1024)
		r.e.Submit(1, warm.job(0, 0))
		r.run(1)
		r.e.SetOption(LatencyMin, 100000)
		r.e.SetOption(LatencyMax, 100000)
		cold := r.one(Send, 21, 2000, 1024)
		r.e.Submit(0, cold.job(0, 0))
		r.settle(100)
		r.e.SetOption(LatencyMin, 10)
		r.e.SetOption(LatencyMax, 10)
		before := len(r.results[1])
		r.e.Submit(1, warm.job(0, 0))
		r.settle(2000)
		if len(r.results[1]) != before+1 || len(r.results[0]) != 0 {
			t.Errorf("results %v: the other context waits for the miss", r.results)
		}
		r.run(3)
		r.wantFrames(0, cold.frame(0), cold.frame(1))
	})
}

// TestTimeout: a read that is never answered fails its packet as a DMA error, with nothing of it sent; its
// completion, when it comes after all, is ignored, and the tag is of use again.
func TestTimeout(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		r := newRig(t, width, 1)
		m := r.one(Write, 30, 5000, 1024)
		type read struct {
			tag  uint32
			iova uint64
			n    uint32
		}
		var silent []read
		r.silent = func(tag uint32, iova uint64, n uint32) bool {
			if len(silent) == 0 && iova&(1<<40-1) > 2100 { // of the third packet
				silent = append(silent, read{tag, iova, n})
				return true
			}
			return false
		}
		r.e.Submit(0, m.job(0, 0))
		other := r.one(Send, 31, 900, 1024)
		for range 20 {
			r.e.Submit(3, other.job(0, 0))
		}
		r.run(21)
		got := r.results[0][0]
		if got.PSNs != 2 || got.Fault.Reason != hw.ReasonDMARead || got.Fault.Offset != 2048 {
			t.Errorf("result %+v, want 2 packets and a DMA error at offset 2048", got)
		}
		r.wantFrames(0, m.frame(0), m.frame(1))
		if len(silent) != 1 || r.e.Count(Timeouts) != 1 {
			t.Fatalf("%d reads held back, %d timeouts", len(silent), r.e.Count(Timeouts))
		}
		late := make([]byte, silent[0].n) // zeros, which no pattern has
		r.e.Complete(silent[0].tag, silent[0].iova, late)
		for range 100 {
			r.e.Submit(0, other.job(0, 0))
		}
		r.frames[0] = nil
		r.run(121)
		if len(r.frames[0]) != 100 {
			t.Fatalf("%d frames after the late completion, want 100", len(r.frames[0]))
		}
		for _, f := range r.frames[0] {
			if err := same(f, other.frame(0)); err != nil {
				t.Fatal(err)
			}
		}
		if r.e.Count(Late) == 0 {
			t.Error("the late completion was not counted")
		}
	})
}

// TestReset: a reset at any cycle leaves an engine that works, whatever was under way.
func TestReset(t *testing.T) {
	eachWidth(t, func(t *testing.T, width int) {
		rng := rand.New(rand.NewPCG(seed(t), uint64(width)))
		r := newRig(t, width, 1)
		for trial := range 40 {
			r.stalls(rng)
			m := r.one(Send, uint32(1+rng.IntN(200)), uint32(rng.IntN(9000)), 1024)
			for c := range Contexts {
				r.e.Submit(c, m.job(0, 0))
			}
			r.settle(uint32(rng.IntN(300)))
			r.e.Reset()
			r.frames, r.results = [Contexts][][]byte{}, [Contexts][]Result{}
			c := rng.IntN(Contexts)
			r.e.Submit(c, m.job(0, 0))
			r.run(1)
			var want [][]byte
			for i := range m.walk.Packets {
				want = append(want, m.frame(i))
			}
			r.wantFrames(c, want...)
			if t.Failed() {
				t.Fatalf("trial %d", trial)
			}
		}
	})
}
