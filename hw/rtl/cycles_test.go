//go:build rtl

package rtl

import (
	"fmt"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// counting answers at once and notes the cycles of the frames. Every key is one region's.
type counting struct {
	e      *Engine
	entry  hw.KeyEntry
	data   [4096]byte
	cycles []uint64
	bytes  []int
}

func (c *counting) Read(tag uint32, iova uint64, n uint32) { c.e.Complete(tag, iova, c.data[:n]) }
func (c *counting) Fill(context int, index uint32)         { c.e.Entry(context, &c.entry, true) }
func (c *counting) Frame(_ int, f []byte) {
	c.cycles, c.bytes = append(c.cycles, c.e.Cycle()), append(c.bytes, len(f))
}
func (c *counting) Result(int, Result) {}
func (c *counting) Trace(int, Trace)   {}
func (c *counting) Fenced(uint32)      {}

// BenchmarkCycles measures, at 512 bits, with 200 cycles from a read to its answer and one beat a cycle,
// in how many of the cycles a beat of a frame goes out. The bus limits too: 63 segments of 64 bytes are 63
// beats of reads for 65 beats of frame, 63 of 7 bytes are 63 for 8.
func BenchmarkCycles(b *testing.B) {
	seg := func(n, at, length int) (list []gather.Segment) {
		for i := range n {
			list = append(list, gather.Segment{Addr: uint64(0x10000*i + at), Length: uint32(length), Key: 0})
		}
		return list
	}
	walk := append(append(seg(1, 0, 1024), gather.Segment{Addr: 0x20000, Length: 6144}), gather.Segment{Addr: 0x400, Length: 512})
	for _, k := range []struct {
		name     string
		segments []gather.Segment
	}{
		{"4096", seg(1, 0, 4096)}, {"4096+3", seg(1, 3, 4096)}, {"walk", walk}, {"63x64", seg(63, 0, 64)}, {"63x7", seg(63, 0, 7)}, {"64", seg(1, 0, 64)},
	} {
		for _, contexts := range []int{1, Contexts} {
			b.Run(fmt.Sprintf("%s/contexts=%d", k.name, contexts), func(b *testing.B) {
				for range b.N {
					e, err := open(512, 1)
					if err != nil {
						b.Fatal(err)
					}
					e.SetOption(LatencyMin, 200)
					e.SetOption(LatencyMax, 200)
					c := &counting{e: e}
					c.entry.Length = 1 << 40
					c.entry.SetState(hw.KeyStateValid)
					total := uint32(0)
					for _, s := range k.segments {
						total += s.Length
					}
					const jobs = 400
					for i := range jobs {
						j := &Job{Kind: Send, MTU: 4096, Segments: k.segments, Cursor: gather.Cursor{Left: total}}
						j.Header = roce.Header{HopLimit: 64}
						e.Submit(i%contexts, j)
					}
					want := jobs * int(gather.Packets(total, 4096))
					if !e.Run(5_000_000, c, func() bool { return len(c.cycles) >= want }) {
						b.Fatal("no end")
					}
					// From a quarter on, so that what fills first does not count.
					first, beats := want/4, 0
					for _, n := range c.bytes[first+1:] {
						beats += (n + 63) / 64
					}
					cycles := c.cycles[want-1] - c.cycles[first]
					b.ReportMetric(100*float64(beats)/float64(cycles), "%-of-output")
					b.ReportMetric(float64(want-1-first)/float64(cycles), "packets/cycle")
					e.Close()
				}
			})
		}
	}
}
