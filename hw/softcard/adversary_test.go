package softcard

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/hw"
)

// memorySpan is a part of a client's memory.
type memorySpan struct {
	iova uint64
	n    int
}

func (s memorySpan) has(iova uint64) bool { return iova >= s.iova && iova < s.iova+uint64(s.n) }

// TestH03_MemoryGoesMeanwhile: each queue, the payload and the card's records are in memory that
// the client unmaps in the midst of the work: at the first access, at the second, and so on. The
// QP fails as the contract says, nothing else is accessed, and the QP beside goes on.
func TestH03_MemoryGoesMeanwhile(t *testing.T) {
	const gone = hw.QPStateErr
	for _, c := range []struct {
		name string
		mem  func(v *victim) (*flatHost, memorySpan)
		// The state of the sender and of the receiver when the memory is never there; else
		// they may have got through.
		a, b hw.QPState
	}{
		{"send queue", func(v *victim) (*flatHost, memorySpan) { return v.pair.a.host, memorySpan{v.a.ctx.SQIOVA, len(v.a.sq)} }, gone, hw.QPStateRTS},
		{"receive queue", func(v *victim) (*flatHost, memorySpan) { return v.pair.b.host, memorySpan{v.b.ctx.RQIOVA, len(v.b.rq)} }, gone, gone},
		{"sender's CQ", func(v *victim) (*flatHost, memorySpan) {
			return v.pair.a.host, memorySpan{v.a.sendCQ.iova, len(v.a.sendCQ.mem)}
		}, gone, hw.QPStateRTS},
		{"receiver's CQ", func(v *victim) (*flatHost, memorySpan) {
			return v.pair.b.host, memorySpan{v.b.recvCQ.iova, len(v.b.recvCQ.mem)}
		}, gone, gone},
		{"payload", func(v *victim) (*flatHost, memorySpan) { return v.pair.a.host, memorySpan{v.src.iova + 4096, 4096} }, gone, hw.QPStateRTS},
		{"receive's memory", func(v *victim) (*flatHost, memorySpan) { return v.pair.b.host, memorySpan{v.dst.iova + 4096, 4096} }, gone, gone},
		{"trace ring", func(v *victim) (*flatHost, memorySpan) {
			n := v.pair.a
			x := hw.RingContext{LogEntries: 4, LogStride: 6, All: 1}
			x.IOVA, _ = n.host.alloc(n.tb, 4096)
			n.must(hw.CommandSetTrace, 0, 0, x.AsBytes())
			return n.host, memorySpan{x.IOVA, 4096}
		}, hw.QPStateRTS, hw.QPStateRTS},
		{"capture ring", func(v *victim) (*flatHost, memorySpan) {
			n := v.pair.a
			x := hw.RingContext{LogEntries: 4, LogStride: 8, All: 1}
			x.IOVA, _ = n.host.alloc(n.tb, 4096)
			n.must(hw.CommandSetCapture, 0, 0, x.AsBytes())
			return n.host, memorySpan{x.IOVA, 4096}
		}, hw.QPStateRTS, hw.QPStateRTS},
		{"event queue", func(v *victim) (*flatHost, memorySpan) {
			return v.pair.a.host, memorySpan{v.pair.a.eq.iova, len(v.pair.a.eq.mem)}
		}, hw.QPStateRTS, hw.QPStateRTS},
	} {
		for at := range 6 {
			t.Run(fmt.Sprintf("%s, at access %d", c.name, at), func(t *testing.T) {
				v := newVictim(t)
				v.again()
				h, span := c.mem(v)
				seen := 0
				h.fail = func(iova uint64, n int, write bool) bool {
					if !span.has(iova) {
						return false
					}
					seen++
					return seen > at
				}
				for i := range 2 {
					v.b.recv(v.dst.sge(uint32(i)*16384, 16384))
					v.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{v.src.sge(0, 9000), v.src.sge(9000, 700)}})
				}
				v.a.post(tWR{op: hw.OpcodeRDMARead, flags: hw.WQEFlagSignaled, remote: v.dst.base, rkey: v.dst.key, sges: []hw.DataSegment{v.src.sge(40<<10, 200)}})
				v.settle()
				for _, s := range []struct {
					who  string
					q    *tQP
					want hw.QPState
				}{{"sender", v.a, c.a}, {"receiver", v.b, c.b}} {
					if got := s.q.state(); got != s.want && (at == 0 || got != hw.QPStateRTS && got != hw.QPStateErr) {
						t.Errorf("%s is %v, want %v", s.who, got, s.want)
					}
				}
				if at == 0 && seen == 0 && c.name != "event queue" {
					t.Error("the memory was not accessed: nothing was tested")
				}
				span.n = 0 // mapped again, for the QP beside
				v.pair.a.eq.ci, v.pair.b.eq.ci = 0, 0
				v.unharmed()
			})
		}
	}
}

// TestH03_IndicesThatJump: a producer index that runs back, past the ring or over the end of its
// 32 bits ends its QP, or is what was posted; a consumer index that cannot be is not believed.
func TestH03_IndicesThatJump(t *testing.T) {
	v := newVictim(t)
	const ring, back = 1 << 6, uint32(0xffffffff)
	for _, pi := range []uint32{ring + 1, 1 << 31, 1<<31 - 1, back, back - ring} {
		for _, c := range []struct {
			name string
			bell uint32
		}{{"send queue", v.a.ctx.SQDoorbell}, {"receive queue", v.a.ctx.RQDoorbell}} {
			v.again()
			v.pair.a.ring(c.bell, 1)
			v.pair.a.ring(c.bell, pi)
			if c.name == "receive queue" { // it is looked at when a message comes
				v.b.post(tWR{op: hw.OpcodeSend, sges: []hw.DataSegment{v.dst.sge(0, 100)}})
			}
			v.settle()
			if s := v.a.state(); s != hw.QPStateErr {
				t.Errorf("%s: producer index %#x: state %v", c.name, pi, s)
			}
			if es := v.a.sendCQ.all(); len(es) > ring {
				t.Errorf("%s: producer index %#x: %d completions", c.name, pi, len(es))
			}
			v.unharmed()
		}
	}
	// The CQ's consumer index in the future gives the card no room that is not there.
	v.again()
	v.pair.a.ring(v.a.sendCQ.doorbell+hw.CQDoorbellCI, 1<<30)
	for range 1<<v.a.sendCQ.log + 1 {
		v.a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: v.dst.base, rkey: v.dst.key})
		v.run()
	}
	v.settle()
	if s := v.a.state(); s != hw.QPStateErr {
		t.Errorf("a CQ whose consumer index lies took more CQEs than it has: state %v", s)
	}
	v.unharmed()
}

// TestH03_ContextsOfOnes: every command with mailboxes of ones, zeroes and halves, for objects
// that are there and that are not: refused or done, and the card lives on.
func TestH03_ContextsOfOnes(t *testing.T) {
	v := newVictim(t)
	v.again()
	n := v.pair.a
	for op := range hw.Command(255) {
		if op == hw.CommandSetHostGather { // of zeroes it is: none
			continue
		}
		for _, object := range []uint32{0, 1, 17, 19, 1 << 23, 1<<32 - 1} {
			for _, size := range []int{0, 4, hw.EQContextSize, hw.CQContextSize, hw.KeyEntrySize, hw.QPContextSize, hw.PortContextSize, hw.RingContextSize, hw.RateLimitSize, hw.HostGatherContextSize} {
				for _, fill := range []byte{0xff, 0x55, 0x80} {
					r, _ := n.command(op, object, 1<<32-1, bytes.Repeat([]byte{fill}, size), 64)
					if !r.status.Valid() || !r.syndrome.Valid() {
						t.Fatalf("%v of %#x with %d bytes of %#x: %+v", op, object, size, fill, r)
					}
				}
			}
		}
	}
	for _, q := range []*tQP{v.a, v.c} {
		if r, _ := n.command(hw.CommandQueryQP, q.number, 0, nil, hw.QPContextSize); q == v.c && r != ok {
			t.Fatalf("the QP beside is gone: %+v", r)
		}
	}
	v.unharmed()
}
