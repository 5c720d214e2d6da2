package gather_test

import (
	"hash/crc32"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
)

// counter is a Tracer that keeps nothing.
type counter struct{ lookups, reads int }

func (c *counter) Lookup(int, uint32, uint32, bool, hw.Reason) { c.lookups++ }
func (c *counter) Read(int, uint32, uint32, hw.Reason)         { c.reads++ }

func TestWalksAllocateNothing(t *testing.T) {
	keys, m, segs, who := chapter(t)
	many := make([]gather.Segment, gather.MaxSegments)
	for i := range many {
		many[i] = gather.Segment{Addr: segs[0].Addr + uint64(i*9), Length: uint32(i * 5), Key: segs[i%2].Key}
		if i%2 == 1 {
			many[i].Addr = segs[1].Addr + uint64(i)
		}
	}
	bad := append([]gather.Segment{}, segs...)
	bad[2].Key++
	dst := make([]byte, 4096)
	tr := &counter{}
	for name, list := range map[string][]gather.Segment{"1": segs[:1], "3": segs, "63": many, "fault": bad, "0": nil} {
		if n := testing.AllocsPerRun(100, func() {
			c, _, _ := gather.Start(list)
			for {
				if _, _, ok := gather.Packet(keys, m, tr, list, who, &c, 4096, dst); !ok || c.Done() {
					break
				}
			}
		}); n != 0 {
			t.Errorf("a walk of %s segments allocates %v times", name, n)
		}
	}
	if tr.lookups == 0 || tr.reads == 0 {
		t.Error("the walks took no step")
	}

	// A miss with an eviction, a scatter and an inline packet.
	cold := &gather.Keys{Table: keys.Table, Cache: newCache(t, 1, 1)}
	who.Access = gather.LocalRead
	src := make([]byte, 1500)
	if n := testing.AllocsPerRun(100, func() {
		c, _, _ := gather.Start(segs)
		if f, ok := gather.Scatter(cold, m, tr, segs, who, &c, src); !ok {
			panic(f)
		}
		c = gather.StartInline(100)
		gather.InlinePacket(src[:100], &c, 256, dst)
	}); n != 0 {
		t.Errorf("a scatter allocates %v times", n)
	}
	if cold.Cache.Stats().Evictions == 0 {
		t.Error("the cold cache evicted nothing")
	}
}

// BenchmarkGatherCRC is the software gather of the chapter's SEND with a
// CRC-32 over each packet, as the ICRC takes it. BenchmarkCopyCRC is what it
// is measured against: the same bytes copied from one buffer, then the CRC.
func BenchmarkGatherCRC(b *testing.B) {
	keys, m, segs, who := chapter(b)
	dst := make([]byte, 4096)
	b.SetBytes(7680)
	b.ReportAllocs()
	for b.Loop() {
		c, _, _ := gather.Start(segs)
		for !c.Done() {
			n, f, ok := gather.Packet(keys, m, nil, segs, who, &c, 4096, dst)
			if !ok {
				b.Fatal(f)
			}
			crc32.ChecksumIEEE(dst[:n])
		}
	}
}

func BenchmarkCopyCRC(b *testing.B) {
	_, m, _, _ := chapter(b)
	dst := make([]byte, 4096)
	b.SetBytes(7680)
	for b.Loop() {
		for off := 0; off < 7680; off += 4096 {
			n := copy(dst, m.bytes[off:7680])
			crc32.ChecksumIEEE(dst[:n])
		}
	}
}
