package softcard

import (
	"fmt"
	"testing"

	"rnic/hw"
)

// pump keeps a QP busy: n work requests, each as large as size, with a receive
// for each where it is a SEND.
type pump struct {
	*pair
	a, b     *tQP
	src, dst *tMR
	wr       tWR
	recv     bool
	wqe      []byte
}

func newPump(tb testing.TB, op hw.Opcode, size uint32) *pump {
	p := &pump{pair: newPair(tb, 64)}
	p.a, p.b = p.connected(17, defaultLink())
	p.src = p.pair.a.newMR(0x1000_0000, 1<<20, 0x250, allAccess)
	p.dst = p.pair.b.newMR(0x2000_0000, 1<<20, 0x28e, allAccess)
	p.wr = tWR{op: op, flags: hw.WQEFlagSignaled, remote: p.dst.base, rkey: p.dst.key, sges: []hw.DataSegment{p.src.sge(0, size)}}
	p.recv = op == hw.OpcodeSend
	p.wqe = p.wr.wqe(0)
	return p
}

// step posts n work requests, runs until they are done, and takes the completions.
func (p *pump) step(n int) {
	for range n {
		if p.recv {
			ctl := hw.RecvControl{Segments: 1, Index: p.b.rqPI}
			s := p.dst.sge(0, 1<<20)
			at := p.b.rq[p.b.rqPI<<p.b.ctx.RQLogStride%uint32(len(p.b.rq)):]
			copy(at, ctl.AsBytes())
			copy(at[16:], s.AsBytes())
			p.b.rqPI++
		}
		hw.ViewControlSegment(p.wqe).Index = p.a.sqPI
		p.a.put(p.wqe)
	}
	if p.recv {
		p.b.n.ring(p.b.ctx.RQDoorbell, p.b.rqPI)
	}
	p.a.ringSQ()
	p.run()
	for done := 0; ; done++ {
		e, ok := p.a.sendCQ.poll()
		if !ok {
			if done != n {
				p.tb.Fatalf("%d of %d completed", done, n)
			}
			break
		}
		if e.Status != hw.StatusSuccess {
			p.tb.Fatalf("%v %v", e.Status, e.Reason)
		}
	}
	for p.recv {
		if _, ok := p.b.recvCQ.poll(); !ok {
			break
		}
	}
}

func BenchmarkData(b *testing.B) {
	for _, k := range []struct {
		name string
		op   hw.Opcode
		size uint32
	}{{"send64", hw.OpcodeSend, 64}, {"write64", hw.OpcodeRDMAWrite, 64}, {"write64K", hw.OpcodeRDMAWrite, 64 << 10}, {"read64K", hw.OpcodeRDMARead, 64 << 10}} {
		b.Run(k.name, func(b *testing.B) {
			p := newPump(b, k.op, k.size)
			p.step(16)
			b.SetBytes(int64(k.size))
			b.ReportAllocs()
			for n := 0; n < b.N; n += 16 {
				p.step(16)
			}
		})
	}
}

// TestDataAllocatesNothing: in the steady state a message costs no allocation,
// at either card.
func TestDataAllocatesNothing(t *testing.T) {
	if testEngine == hw.EngineRTL {
		t.Skip("a simulation allocates")
	}
	for _, op := range []hw.Opcode{hw.OpcodeSend, hw.OpcodeRDMAWrite, hw.OpcodeRDMARead} {
		p := newPump(t, op, 10_000)
		p.step(16)
		if n := testing.AllocsPerRun(20, func() { p.step(16) }); n != 0 {
			t.Errorf("%v: %v allocations for 16 messages", op, n)
		}
	}
}

// BenchmarkManyQPs spreads 64-byte SENDs over so many QPs.
func BenchmarkManyQPs(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPairOf(b, 64, Limits{}, 256<<20)
			src := p.a.newMR(0x1000_0000, 1<<20, 0x250, allAccess)
			dst := p.b.newMR(0x2000_0000, 1<<20, 0x28e, allAccess)
			const batch = 512
			k := qpConfig{sqLog: 10, rqLog: 1, sendCQ: p.a.newCQ(12), recvCQ: p.a.newCQ(12)}
			far := qpConfig{sqLog: 5, rqLog: 1, sendCQ: p.b.newCQ(12), recvCQ: p.b.newCQ(12)}
			var as, bs []*tQP
			for i := range n {
				k.number, far.number = uint32(100+i), uint32(100+i)
				as, bs = append(as, p.a.newQP(k)), append(bs, p.b.newQP(far))
				connect(as[i], bs[i], defaultLink(), 1, 2)
			}
			wqe := (&tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: dst.base, rkey: dst.key, sges: []hw.DataSegment{src.sge(0, 64)}}).wqe(0)
			next := 0
			round := func() {
				for range batch {
					q := as[next%n]
					hw.ViewControlSegment(wqe).Index = q.sqPI
					q.put(wqe)
					q.ringSQ()
					next++
				}
				p.run()
				for range batch {
					if _, ok := k.sendCQ.poll(); !ok {
						b.Fatal("a completion is missing")
					}
				}
			}
			round()
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += batch {
				round()
			}
		})
	}
}
