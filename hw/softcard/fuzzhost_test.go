package softcard

import (
	"testing"

	"rnic/hw"
)

// FuzzHostGather is a host that answers the card's gather requests as it likes: with other
// bytes, cursors, tokens, faults and indices, late, twice, or never. What it answers well is sent;
// the rest fails the packets that wait, and no other. 16 bytes of the input are a turn.
func FuzzHostGather(f *testing.F) {
	turn := func(b ...byte) []byte { return append(b, make([]byte, 16-len(b))...) }
	f.Add(turn())
	f.Add(append(turn(0), turn(1, 1, 200)...))
	f.Add(turn(2, 0, 0, 0, 0, 5))
	f.Add(append(turn(3), turn(4, 0, 7)...))
	f.Add(append(turn(5), turn(6, 0xff, 0xff, 0xff, 0xff)...))
	f.Add(turn(7))
	v := newVictim(f)
	g := v.pair.a.hostGather(2, v.src)
	g.mtu = 4096
	ctx := v.pair.a.card.hosted.ctx
	f.Fuzz(func(t *testing.T, b []byte) {
		v.tb, v.pair.a.tb, v.pair.b.tb, g.n.tb = t, t, t, t
		v.again()
		// The rings anew, after what the turn before did to them.
		clear(g.requests)
		clear(g.replies)
		g.ci, g.pi, g.held = 0, 0, nil
		v.pair.a.must(hw.CommandSetHostGather, 0, 0, ctx.AsBytes())
		v.b.recv(v.dst.sge(0, 20000))
		v.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{v.src.sge(0, 5000), v.src.sge(6000, 3000)}})
		v.a.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: v.dst.base, rkey: v.dst.key, sges: []hw.DataSegment{v.src.sge(1, 300)}})
		g.spoil = func(r *hw.HostGatherReply) bool {
			if len(b) < 16 {
				return false
			}
			x := b[:16]
			b = b[16:]
			switch x[0] % 9 {
			case 1: // some bytes of the answer are others
				for i := 1; i+1 < 16; i += 2 {
					r.AsBytes()[x[i]%hw.HostGatherReplySize] ^= x[i+1]
				}
			case 2:
				*r = hw.HostGatherReply{Token: r.Token, Reason: hw.Reason(x[5]), FaultSegment: x[6], FaultOffset: uint32(x[7]) << (x[8] % 32), FaultKey: uint32(x[9])}
			case 3: // kept back
				return true
			case 4: // an answer twice, or one of long ago
				g.answer(*r)
				if len(g.held) > 0 {
					g.answer(g.held[0])
				}
			case 5:
				g.n.ring(hw.DomainGatherReplyPI, g.pi+uint32(x[1]))
				v.run()
			case 6:
				g.n.ring(hw.DomainGatherReplyPI, le.Uint32(x[1:]))
				v.run()
			case 7:
				g.n.ring(hw.DomainGatherCI, le.Uint32(x[1:]))
			case 8: // the staging slot changes meanwhile
				for i := range g.staging {
					g.staging[i] ^= x[1]
				}
			}
			return false
		}
		v.runHost(g)
		g.spoil = nil
		v.settle() // a host that says nothing ends by the card's time
		clear(g.requests)
		clear(g.replies)
		g.ci, g.pi, g.held = 0, 0, nil
		v.pair.a.must(hw.CommandSetHostGather, 0, 0, ctx.AsBytes())
		v.runHost(g)
		// The QP beside, by the same rings.
		index := v.c.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: v.dst.base, rkey: v.dst.key, sges: []hw.DataSegment{v.src.sge(7, 5000)}})
		v.runHost(g)
		v.settle()
		wantWCs(t, "the QP beside", v.c.sendCQ, good(index))
		if n := v.pair.a.card.hosted.waiting; n != 0 {
			t.Errorf("%d QPs wait for the host still", n)
		}
	})
}
