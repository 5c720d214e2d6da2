//go:build rtl

package rtl

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/gather/oracle"
)

// The ECP5's top (bitstream/syn/ecp5.sv): word addresses of its bus, and its memories.
const (
	ecp5Walk, ecp5Head, ecp5Segment = 0x00, 0x20, 0x40
	ecp5Job, ecp5PutSegment         = 0x48, 0x49
	ecp5TakeResult, ecp5Status      = 0x4e, 0x50
	ecp5Result                      = 0x54
	ecp5Keys, ecp5Payload           = 0x400, 0x2000
	ecp5Entries, ecp5Bytes          = 64, 32768
	ecp5Contexts, ecp5Words         = 2, 64
)

// ecp5Bench is the simulated top.
type ecp5Bench struct {
	t      *testing.T
	in     io.Writer
	out    *bufio.Scanner
	frames [][]byte
}

func openECP5(t *testing.T, ready int, seed uint64) *ecp5Bench {
	t.Helper()
	if log, err := exec.Command("make", "-s", "-C", "../../bitstream/syn", "build/bench").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	cmd := exec.CommandContext(t.Context(), "../../bitstream/syn/build/bench", fmt.Sprint(ready), fmt.Sprint(seed))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<16)
	return &ecp5Bench{t: t, in: in, out: s}
}

func (b *ecp5Bench) write(word int, v uint32) { fmt.Fprintf(b.in, "w %x %x\n", word, v) }

// words writes little-endian bytes, filled up with zeros.
func (b *ecp5Bench) words(word int, p []byte) {
	p = append(append([]byte{}, p...), make([]byte, -len(p)&3)...)
	for i := 0; i < len(p); i += 4 {
		b.write(word+i/4, binary.LittleEndian.Uint32(p[i:]))
	}
}

func (b *ecp5Bench) read(word int) uint32 {
	b.t.Helper()
	fmt.Fprintf(b.in, "r %x\n", word)
	for b.out.Scan() {
		kind, value, _ := strings.Cut(b.out.Text(), " ")
		if kind == "frame" {
			f, err := hex.DecodeString(value)
			if err != nil {
				b.t.Fatal(err)
			}
			b.frames = append(b.frames, f)
			continue
		}
		var v uint32
		if _, err := fmt.Sscanf(value, "%x", &v); err != nil {
			b.t.Fatal(err)
		}
		return v
	}
	b.t.Fatal("the simulation ended")
	return 0
}

// submit puts a job and its words in, as a host on the bus would: nothing before there is room.
func (b *ecp5Bench) submit(context int, j *Job) {
	w := j.words()
	walk, head := j.walk(len(w)/16), j.head()
	b.words(ecp5Walk, walk.b[:44])
	b.words(ecp5Head, head.b[:120])
	b.write(ecp5Job, uint32(context))
	for i := 0; i < len(w); i += 16 {
		b.words(ecp5Segment, w[i:i+16])
		b.write(ecp5PutSegment, uint32(context))
		for b.read(ecp5Status)>>3&1 != 0 {
		}
	}
}

// result waits for a job's end.
func (b *ecp5Bench) result() Result {
	b.t.Helper()
	for range 1000 {
		if b.read(ecp5Status)&1 != 0 {
			var p []byte
			for i := range 7 {
				p = binary.LittleEndian.AppendUint32(p, b.read(ecp5Result+i))
			}
			b.write(ecp5TakeResult, 0)
			return result(p)
		}
		fmt.Fprint(b.in, "c 40\n")
	}
	b.t.Fatal("no end in 40,000 cycles")
	return Result{}
}

// TestECP5Top: random messages through the top that is placed and routed, at both contexts: the frames are those of hw/roce, the
// results the walk's. Some name a key that is not there, or bytes that are not in its payload memory.
func TestECP5Top(t *testing.T) {
	const memory = ecp5Bytes
	rng := rand.New(rand.NewPCG(seed(t), 5))
	b := openECP5(t, 70, seed(t))
	mem := make([]byte, memory)
	for i := range mem {
		mem[i] = pattern(uint64(i))
	}
	b.words(ecp5Payload, mem)
	world := &oracle.World{Regions: map[uint32]oracle.Region{}, Sets: 16, Ways: 2, Read: func(iova uint64) (byte, bool) {
		if iova >= memory {
			return 0, false
		}
		return mem[iova], true
	}}
	var keys []uint32
	for index := uint32(1); index < ecp5Entries; index += 3 {
		g := oracle.Region{Valid: true, Tag: uint8(rng.Uint32()), PD: 3, Rights: 4, Base: rng.Uint64N(1 << 40), IOVA: rng.Uint64N(memory - 1000)}
		g.Length = memory - g.IOVA
		if index == 1 {
			g.Length += 4096 // more than there is
		}
		world.Regions[index] = g
		keys = append(keys, index<<8|uint32(g.Tag))
		r := rig{t: t, keys: map[uint32]*hw.KeyEntry{}}
		r.region(index, g)
		b.words(ecp5Keys+16*int(index), r.keys[index].AsBytes())
	}
	faults := 0
	for n := range max(walks(t)/5, 20) {
		q := oracle.Request{Op: "send", Reliable: true, MTU: 256 << rng.IntN(5), PD: 3, QPN: 17}
		for range 1 + rng.IntN(6) {
			key := keys[rng.IntN(len(keys))]
			if rng.IntN(40) == 0 {
				key += 1 << 8 // an entry that is not valid
			}
			g := world.Regions[key>>8]
			length := uint32(rng.IntN(3000))
			if uint64(length) > g.Length {
				length = uint32(g.Length)
			}
			q.Segments = append(q.Segments, oracle.Segment{Addr: g.Base + rng.Uint64N(g.Length-uint64(length)+1), Length: length, Key: key})
		}
		m := &message{kind: Kind(1 + rng.IntN(2)), psn: rng.Uint32() & 0xffffff, ipid: uint16(rng.Uint32()), imm: rng.IntN(2) == 0, request: q, header: randomHeader(rng)}
		m.walk = world.Gather(q)
		j := m.job(0, 0)
		j.Token = uint32(n)
		b.frames = nil
		b.submit(n%ecp5Contexts, j)
		got := b.result()
		b.read(ecp5Status) // what has left meanwhile
		if len(b.frames) != len(m.walk.Packets) || got.PSNs != uint32(len(m.walk.Packets)) || got.Token != uint32(n) {
			t.Fatalf("message %d: %d frames, result %+v, want %d frames", n, len(b.frames), got, len(m.walk.Packets))
		}
		for i, f := range b.frames {
			if err := same(f, m.frame(i)); err != nil {
				t.Fatalf("message %d, packet %d: %v", n, i, err)
			}
		}
		if want := m.walk.Fault; want != nil {
			faults++
			if reasonName(got.Fault.Reason) != want.Reason || int(got.Fault.Segment) != want.Segment {
				t.Fatalf("message %d: fault %+v, want %+v", n, got.Fault, want)
			}
		} else if got.Fault != (gather.Fault{}) {
			t.Fatalf("message %d: fault %+v", n, got.Fault)
		}
	}
	if faults == 0 {
		t.Error("no message failed")
	}
	t.Logf("%d faults", faults)
}
