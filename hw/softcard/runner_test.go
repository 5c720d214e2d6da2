package softcard

import (
	"bytes"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"rnic/hw"
	"rnic/hw/mmio"
)

// createQP makes a QP of the rig on a doorbell page and brings it to RTS toward a
// peer. Only its send queue is used.
func (r *rig) createQP(qpn, cqn, page uint32, sq uint64, timeout uint8, mac [6]byte, gid [16]byte) hw.QPContext {
	r.t.Helper()
	x := hw.QPContext{
		Type: hw.QPTypeRC, PD: 3, SendCQN: cqn, RecvCQN: cqn, SQIOVA: sq, RQIOVA: sq, SQLogBlocks: 5, RQLogEntries: 1, RQLogStride: 6,
		MaxSendSegments: 1, MaxInline: 64, SQDoorbell: r.page(page) + 64*(page%16), RQDoorbell: r.page(page) + 64*(page%16) + 1024,
	}
	r.do(hw.CommandCreateQP, qpn, 0, x.AsBytes(), 0)
	to := hw.QPContext{
		MTU: hw.MTU1024, DestQPN: 9, Timeout: timeout, RetryCnt: 1, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
		AV: hw.AddressVector{DGID: gid, DMAC: mac},
	}
	for _, m := range []struct {
		state hw.QPState
		mask  hw.QPAttr
	}{{hw.QPStateInit, toInit}, {hw.QPStateRTR, toRTR}, {hw.QPStateRTS, toRTS}} {
		to.State = m.state
		r.do(hw.CommandModifyQP, qpn, uint32(m.mask), to.AsBytes(), 0)
	}
	return x
}

// inlineSend is the WQE of a signaled inline SEND.
func inlineSend(index uint32, payload []byte) []byte {
	w := hw.ControlSegment{Opcode: hw.OpcodeSend, Flags: hw.WQEFlagSignaled | hw.WQEFlagInline, Index: index, InlineLength: uint16(len(payload))}
	w.Segments = uint8(1 + (len(payload)+15)/16)
	return append(bytes.Clone(w.AsBytes()), payload...)
}

// A timer of a card wakes its sleeping worker: a SEND that nobody answers ends in
// RETRY_EXC, with nothing else to wake the card.
func TestRunnerServesTimers(t *testing.T) {
	start := time.Now()
	r := newRig(t, Config{Clock: func() int64 { return int64(time.Since(start)) }})
	r.start(4)
	w, err := NewWire(4)
	r.must(err)
	r.must(w.Join(r.card))
	r.createEQ(0, 4, 0, true)
	cq := r.createCQ(1, 4, 0)
	sq := r.alloc(4096)
	gid, _ := r.card.net.gid(0)
	gid[15] ^= 1
	x := r.createQP(20, 1, 300, sq, 12, [6]byte{2, 0xee, 0, 0, 0, 1}, gid) // 16.8 ms, twice
	r.onRunner()
	r.until("sleep", func() bool { return mmio.Load32(r.bell.Word32(hw.DomainSleep)) == 1 })
	copy(r.bytes(sq, 64), inlineSend(0, []byte("is anybody there")))
	r.ringAndKick(x.SQDoorbell, 1)
	var e hw.CQE
	r.until("RETRY_EXC", func() (is bool) { e, is = cq.next(); return is })
	if e.Status != hw.StatusRetryExcErr || e.QPN != 20 || e.Reason != hw.ReasonTimeout {
		t.Errorf("%+v", e)
	}
	if n := r.counter(hw.RegCountersSleeps); n < 2 {
		t.Errorf("SLEEPS %d: it did not sleep while it waited", n)
	}
}

// As many QPs and CQs as the card says, each on its own pages, and each works: the
// doorbell of every one is seen.
func TestThousandsOfQPs(t *testing.T) {
	r := newRig(t, Config{})
	r.start(8)
	w, err := NewWire(64)
	r.must(err)
	r.must(w.Join(r.card))
	r.createEQ(0, 12, 0, true)
	n := r.load(hw.RegIdentMaxQPs)
	if n < 1024 {
		t.Fatalf("%d QPs", n)
	}
	if os.Getenv("RNIC_FULL") != "1" {
		n = 1024
	}
	gid, _ := r.card.net.gid(0)
	rings := r.alloc(4096)
	cqes := r.alloc(4096)
	var qps []hw.QPContext
	for i := range n {
		cq := hw.CQContext{IOVA: cqes, Doorbell: r.page(100+i) + 64*(i%16), LogEntries: 6}
		r.do(hw.CommandCreateCQ, i, 0, cq.AsBytes(), 0)
		qps = append(qps, r.createQP(1<<23+i*3, i, 100+n+i, rings, 0, [6]byte{2, 0xee, 0, 0, 0, 1}, gid))
	}
	if n == r.load(hw.RegIdentMaxQPs) {
		x := qps[0]
		x.SQDoorbell, x.RQDoorbell = r.page(99), r.page(99)+64
		r.refused(hw.CommandCreateQP, 5, 0, x.AsBytes(), hw.CommandStatusNoResource, 0)
	}
	copy(r.bytes(rings, 64), inlineSend(0, []byte("one of thousands")))
	frames := r.counter(hw.RegCountersTXFrames)
	for _, x := range qps {
		r.doorbell(x.SQDoorbell, 1)
	}
	r.run()
	if got := r.counter(hw.RegCountersTXFrames) - frames; got != uint64(n) {
		t.Errorf("%d frames of %d QPs", got, n)
	}
	p, b := r.command(hw.CommandList, uint32(hw.ListKindQP), 0, nil, 4*int(n))
	if p.Value != uint64(n) || uint32(len(b)) != 4*n || le.Uint32(b[len(b)-4:]) != 1<<23+(n-1)*3 {
		t.Errorf("LIST: %d, %d bytes", p.Value, len(b))
	}
	r.refused(hw.CommandDestroyCQ, 0, 0, nil, hw.CommandStatusInUse, hw.CommandSyndromeCQN)
	for i := range n {
		r.do(hw.CommandDestroyQP, 1<<23+i*3, 0, nil, 0)
	}
	r.do(hw.CommandDestroyCQ, 0, 0, nil, 0)
}

// The two ends of a wire on two workers: every frame arrives whole and in order,
// in both directions at once, over a wire of any size.
func TestWireBetweenWorkers(t *testing.T) {
	for _, slots := range []int{2, 3, 64} {
		c := joined(t, slots, 2)
		frames := min(5000, 100*slots) // a small wire takes turns for each
		var all sync.WaitGroup
		for i, self := range c {
			peer := c[1-i]
			all.Go(func() {
				moved := time.Now()
				sent, got, owed, answers := 0, 0, 0, 0
				l := self.route(macNumber(peer.cfg.MAC))
				for got < frames || sent < frames || owed > 0 || answers < frames {
					if sent < frames && trySend(self, frameTo(peer, byte(sent)), laneRequests) {
						sent++
					}
					for owed > 0 {
						f := self.txAnswer(l)
						if f == nil {
							t.Error("no room for a promised answer")
							return
						}
						b := frameTo(peer, byte(got-owed))
						f.start, f.end = headroom, headroom+len(b)
						copy(f.bytes(), b)
						self.send(f, 0)
						owed--
					}
					f := self.rxNext()
					if f == nil {
						if time.Since(moved) > 20*time.Second {
							t.Errorf("%d slots: stopped: %d sent, %d received, %d answers", slots, sent, got, answers)
							return
						}
						runtime.Gosched()
						continue
					}
					n := &answers
					if f.answers != nil {
						n = &got
						owed++
					}
					if !bytes.Equal(f.bytes(), frameTo(self, byte(*n))) {
						t.Errorf("%d slots: frame %d (lane %d) is not what was sent", slots, *n, f.lane)
						return
					}
					*n++
					moved = time.Now()
					self.rxDone(f, 0, false)
				}
			})
		}
		all.Wait()
	}
}
