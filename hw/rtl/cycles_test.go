//go:build rtl

package rtl

import (
	"fmt"
	"strings"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// memoryLatency is the cycles from a read or a fill to its answer.
const memoryLatency = 200

// load is a stream of equal SENDs. Every key is one region's.
type load struct {
	name     string
	segments []gather.Segment
	mtu      uint32
	contexts int
	fetch    bool // their WQEs come over the port of the reads
	// The floors, in percent: of what the bus lets through, and of payload in the data path's width.
	ofLimit, ofWidth float64
}

// counted is what came of a load, or of a part of it: beats of frames, of answers and of WQEs, requests, payload.
type counted struct {
	e     *Engine
	width uint64 // bytes
	entry hw.KeyEntry
	data  [4096]byte

	frames, out, in, requests, payload uint64
	cycle, began                       uint64 // of the last frame's end, and of its first beat
}

func (c *counted) Read(tag uint32, iova uint64, n uint32) {
	c.in += (iova%c.width + uint64(n) + c.width - 1) / c.width
	c.requests++
	c.payload += uint64(n)
	c.e.Complete(tag, iova, c.data[:n])
}
func (c *counted) Fill(context int, index uint32) { c.e.Entry(context, &c.entry, true) }
func (c *counted) Frame(_ int, f []byte) {
	c.frames++
	c.out += (uint64(len(f)) + c.width - 1) / c.width
	c.cycle, c.began = c.e.Cycle(), c.e.Began()
}
func (c *counted) Result(int, Result) {}
func (c *counted) Trace(int, Trace)   {}
func (c *counted) Fenced(uint32)      {}

// count is an engine whose memory answers after memoryLatency, a beat a cycle.
func count(t *testing.T, width int) *counted {
	t.Helper()
	e, err := open(width, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	e.SetOption(LatencyMin, memoryLatency)
	e.SetOption(LatencyMax, memoryLatency)
	c := &counted{e: e, width: uint64(width / 8)}
	c.entry.Length = 1 << 40
	c.entry.SetState(hw.KeyStateValid)
	return c
}

// until runs until so many frames are out.
func (c *counted) until(t *testing.T, frames uint64) {
	t.Helper()
	if !c.e.Run(5_000_000, c, func() bool { return c.frames >= frames }) {
		t.Fatalf("%d frames of %d in 5 million cycles", c.frames, frames)
	}
}

// measure gives cycles and the bus's limit for a message, and how much of the width is payload: of the middle half of the
// stream, while it neither fills the engine nor runs out.
func (l *load) measure(t *testing.T, width int) (cycles, limit, ofWidth float64, bound string) {
	c := count(t, width)
	total := uint32(0)
	for _, s := range l.segments {
		total += s.Length
	}
	jobs := max(60, min(2000, 12000*width/8/int(total))) // some 12,000 cycles
	for i := range jobs {
		j := &Job{Kind: Send, MTU: l.mtu, Segments: l.segments, Cursor: gather.Cursor{Left: total}, Header: roce.Header{HopLimit: 64}}
		if l.fetch {
			c.e.SetOption(FetchAhead, uint32(12+400*width/8/int(total))) // what 400 cycles bring, and some
			c.e.SubmitFetched(i%l.contexts, j, 16+16*len(l.segments))    // control segment, data segments
		} else {
			c.e.Submit(i%l.contexts, j)
		}
	}
	all := uint64(gather.Packets(total, l.mtu)) * uint64(jobs)
	c.until(t, all/4)
	first, frames := c.cycle, c.frames
	c.until(t, all*3/4)
	cycles = float64(c.cycle-first) / float64(c.frames-frames) * float64(all) / float64(jobs)
	c.until(t, all)
	each := func(n uint64) float64 { return float64(n) / float64(jobs) }
	out, in, requests := each(c.out), each(c.in), each(c.requests)
	if l.fetch {
		wqe := uint64(16 + 16*len(l.segments))
		in += float64((wqe + c.width - 1) / c.width)
		requests += float64((wqe + 511) / 512)
	}
	limit, bound = out, "frames"
	if in > limit {
		limit, bound = in, "read beats"
	}
	if requests > limit {
		limit, bound = requests, "read requests"
	}
	return cycles, limit, 100 * each(c.payload) / float64(c.width) / cycles, bound
}

// list is n segments of so many bytes, each at that place of a page of its own.
func list(n, at int, length uint32) (segments []gather.Segment) {
	for i := range n {
		segments = append(segments, gather.Segment{Addr: uint64(0x10000*i + at), Length: length})
	}
	return segments
}

// TestRTL_Cycles prints what goes through the engine, its memory answering after 200 cycles with one beat a cycle, beside what the
// bus itself lets through, and holds it to the floors. A cycle is a simulated one: nothing here depends on the machine.
func TestRTL_Cycles(t *testing.T) {
	walk := func(a, b, c uint64) []gather.Segment {
		return []gather.Segment{{Addr: 0x10000 + a, Length: 1024}, {Addr: 0x20000 + b, Length: 6144}, {Addr: 0x10400 + c, Length: 512}}
	}
	eachWidth(t, func(t *testing.T, width int) {
		var table strings.Builder
		fmt.Fprintf(&table, "%d bits, memory after %d cycles\n%-40s %8s %9s %9s %8s %9s  %s\n", width, memoryLatency, "SENDs of", "contexts", "cycles", "limit", "% of it", "% payload", "bound by")
		row := func(l load) {
			cycles, limit, payload, bound := l.measure(t, width)
			fmt.Fprintf(&table, "%-40s %8d %9.2f %9.2f %8.1f %9.1f  %s\n", l.name, l.contexts, cycles, limit, 100*limit/cycles, payload, bound)
			if 100*limit/cycles < l.ofLimit || payload < l.ofWidth {
				t.Errorf("%s, %d contexts: %.1f %% of the limit and %.1f %% of the width, want at least %v and %v", l.name, l.contexts, 100*limit/cycles, payload, l.ofLimit, l.ofWidth)
			}
		}
		for _, contexts := range []int{1, Contexts} {
			// Each alignment in a beat; the worst is the row.
			worst := load{contexts: contexts, mtu: 4096}
			least := 200.0
			for at := range width / 8 {
				l := worst
				l.segments = list(1, at, 4096)
				if _, _, payload, _ := l.measure(t, width); payload < least {
					least, worst.segments, worst.name = payload, l.segments, fmt.Sprintf("4,096 bytes, at +%d, the worst of %d", at, width/8)
				}
			}
			worst.ofLimit, worst.ofWidth = 98, 98
			row(worst)
			row(load{name: "1,024 + 6,144 + 512, aligned", segments: walk(0, 0, 0), mtu: 4096, contexts: contexts, ofLimit: 96, ofWidth: 96})
			row(load{name: "1,024 + 6,144 + 512, at +0, +3, +1", segments: walk(0, 3, 1), mtu: 4096, contexts: contexts, ofLimit: 96, ofWidth: 96})
			row(load{name: "63 of 64 bytes, aligned", segments: list(63, 0, 64), mtu: 4096, contexts: contexts, ofLimit: 95})
			row(load{name: "63 of 64 bytes, aligned, WQE fetched", segments: list(63, 0, 64), mtu: 4096, contexts: contexts, fetch: true, ofLimit: 95})
			row(load{name: "63 of 64 bytes, at +3", segments: list(63, 3, 64), mtu: 4096, contexts: contexts, ofLimit: 95})
			row(load{name: "63 of 7 bytes", segments: list(63, 0, 7), mtu: 4096, contexts: contexts, ofLimit: 96})
			row(load{name: "64 bytes", segments: list(1, 0, 64), mtu: 4096, contexts: contexts, ofLimit: 95})
			row(load{name: "64 bytes, WQE fetched", segments: list(1, 0, 64), mtu: 4096, contexts: contexts, fetch: true, ofLimit: 75}) // the port is full, and reads wait behind the WQEs
			for _, mtu := range []uint32{1024, 2048, 4096} {
				row(load{name: fmt.Sprintf("16,384 bytes, MTU %d: build and ICRC", mtu), segments: list(1, 0, 16384), mtu: mtu, contexts: contexts, ofLimit: 95})
			}
		}
		for _, hit := range []bool{false, true} {
			c := count(t, width)
			j := &Job{Kind: Send, MTU: 4096, Segments: list(1, 0, 4096), Cursor: gather.Cursor{Left: 4096}, Header: roce.Header{HopLimit: 64}}
			if hit { // the key comes into the cache
				c.e.Submit(0, j)
				c.until(t, 1)
				c.e.Run(1000, c, func() bool { return false })
			}
			for _, length := range []uint32{64, 4096} {
				if !hit && length == 4096 {
					continue
				}
				j.Segments, j.Cursor.Left = list(1, 0, length), length
				start := c.e.Now()
				c.e.Submit(0, j)
				c.until(t, c.frames+1)
				fmt.Fprintf(&table, "from a WQE of %d bytes to the frame's first beat, key %s: %d cycles, %d of them the memory's\n", length,
					map[bool]string{true: "hit", false: "miss"}[hit], c.began-start, map[bool]int{true: memoryLatency, false: 2 * memoryLatency}[hit])
				c.e.Run(1000, c, func() bool { return false })
			}
		}
		for line := range strings.Lines(table.String()) { // make rtl shows what is logged, line by line
			t.Log(strings.TrimSuffix(line, "\n"))
		}
	})
}
