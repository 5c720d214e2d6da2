package gather_test

import (
	"encoding/binary"
	"math"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/gather/oracle"
)

// taker hands out bytes of a fuzz input, then zeros.
type taker []byte

func (t *taker) n(n int) uint64 {
	var b [8]byte
	k := copy(b[:n], *t)
	*t = (*t)[k:]
	return binary.LittleEndian.Uint64(b[:])
}

// sized accepts every read and checks only that it stays in dst.
type sized struct{ t *testing.T }

func (s sized) Read(_ uint64, dst []byte) error {
	if len(dst) == 0 {
		s.t.Error("a read of no bytes")
	}
	return nil
}

// FuzzWalk takes segments, keys, table and cursor from the input. Lists of
// moderate length must walk as the oracle walks them; a hostile cursor must
// end in a fault that leaves it where it was, or in a packet of the right size.
func FuzzWalk(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 0, 1, 0, 0, 0, 0, 4, 0, 0, 1, 0, 0, 24, 2, 0, 0, 2})
	f.Add([]byte{0x43, 1, 255, 255, 255, 255, 255, 255, 255, 255, 16, 0, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4})
	f.Fuzz(func(t *testing.T, input []byte) {
		in := taker(input)
		s := &scene{memory: random[:16<<10], sets: 1, ways: 1, bad: map[uint64]bool{}, regions: map[uint32]oracle.Region{}}
		count := int(in.n(1) % 66)
		s.request = oracle.Request{
			Op: []string{"send", "write", "read-response"}[in.n(1)%3], Reliable: true,
			MTU: mtus[in.n(1)%5], PD: domain, QPN: queuePair, AckEvery: uint32(in.n(1) % 4),
		}
		for i := range uint32(4) {
			s.regions[i] = oracle.Region{
				Valid: in.n(1)%8 != 0, Tag: byte(in.n(1) % 2), PD: domain + uint32(in.n(1)/128), Rights: byte(in.n(1)),
				Window: in.n(1) > 200, QP: queuePair,
				Base: []uint64{0, 0x1000, math.MaxUint64 - 0xfff, in.n(8)}[in.n(1)%4], Length: in.n(2), IOVA: memoryAt + in.n(2)%(8<<10),
			}
		}
		for range count {
			r := s.regions[uint32(in.n(1)%5)]
			s.request.Segments = append(s.request.Segments, oracle.Segment{
				Addr: r.Base + in.n(2)%4096, Length: uint32(in.n(2) % 5000), Key: uint32(in.n(1)%5)<<8 | uint32(in.n(1)%2),
			})
		}
		if at := in.n(2); at != 0 {
			s.bad[memoryAt+at] = true
		}
		s.compare(t, "fuzz")

		segs := s.segments()
		for i := range segs {
			if in.n(1) > 250 {
				segs[i].Length = uint32(in.n(4))
			}
		}
		c := gather.Cursor{Segment: int(int8(in.n(1))), Offset: uint32(in.n(4)), Left: uint32(in.n(4))}
		began := c
		mtu := uint32(in.n(2) % 8192)
		n, why, ok := gather.Packet(anywhere(0), sized{t}, nil, segs, local, &c, mtu, make([]byte, mtu))
		switch {
		case !ok && (n != 0 || c != began || why.Reason == hw.ReasonNone):
			t.Errorf("fault %v: %d bytes, cursor %v → %v", why, n, began, c)
		case ok && (uint32(n) != min(mtu, began.Left) || c.Left != began.Left-uint32(n)):
			t.Errorf("cursor %v at mtu %d: %d bytes, then %v", began, mtu, n, c)
		}
		c = began
		if f, ok := gather.Scatter(anywhere(0), sink{s}, nil, segs, local, &c, random[:mtu]); !ok && (c != began || f.Reason == hw.ReasonNone) {
			t.Errorf("scatter fault %v: cursor %v → %v", f, began, c)
		}
	})
}
