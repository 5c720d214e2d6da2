package queues

import (
	"bytes"
	"encoding/hex"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"rnic/hw"
	"rnic/hw/mmio"
)

// The expected bytes are written by hand from the offsets of hw/card.yaml,
// little-endian, and not through package hw.

func hexBytes(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// page is memory as the rings have it: aligned to 64 bytes.
func page(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, max(n, 64<<10)) // a span of its own, so page-aligned
	if hw.ViewCQE(b) == nil {
		t.Fatal("memory is not aligned")
	}
	return b[:n]
}

func newSQ(t *testing.T, blocks int) (*SQ, []byte, *uint32) {
	t.Helper()
	ring, word := page(t, blocks*64), new(uint32)
	q, err := NewSQ(ring, word, &Domain{})
	if err != nil {
		t.Fatal(err)
	}
	return q, ring, word
}

func TestRecvBytes(t *testing.T) {
	ring, word := page(t, 4*64), new(uint32)
	q, err := NewRQ(ring, RQStride(3), word, &Domain{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range ring {
		ring[i] = 0xee
	}
	q.producer = 1<<32 - 1
	q.seen = q.producer
	q.consumer = q.producer
	if i := q.Put([]SGE{{Addr: 0x1000, Length: 16, LKey: 0x101}, {Addr: 0x2000, Length: 32, LKey: 0x202}, {Addr: 0x3000, Length: 48, LKey: 0x303}}); i != 1<<32-1 {
		t.Fatalf("index %#x", i)
	}
	if i := q.Put(nil); i != 0 {
		t.Fatalf("index %#x after the counter's wrap", i)
	}
	q.Ring()
	if *word != 1 {
		t.Fatalf("doorbell %d, want 1", *word)
	}
	last := hexBytes(t, `
		03 00 0000 ffffffff 00000000 00000000
		0010000000000000 10000000 01010000
		0020000000000000 20000000 02020000
		0030000000000000 30000000 03030000`)
	first := hexBytes(t, "00 00 0000 00000000 00000000 00000000")
	if !bytes.Equal(ring[3*64:], last) || !bytes.Equal(ring[:16], first) || !bytes.Equal(ring[16:3*64], bytes.Repeat([]byte{0xee}, 3*64-16)) {
		t.Fatalf("ring:\n%s", hex.Dump(ring))
	}
	if !q.Room(2, 4) || q.Room(3, 4) || q.Room(1, 2) {
		t.Fatal("room is not that of 2 receives posted")
	}
	q.Release(0)
	if !q.Room(3, 4) || q.Room(4, 4) {
		t.Fatal("room is not that of 1 receive posted")
	}
	q.Reset()
	if *word != 0 || q.Producer() != 0 || q.Consumer() != 0 {
		t.Fatal("Reset left something")
	}
}

func TestRecvStride(t *testing.T) {
	for segs, want := range map[int]uint8{0: 5, 1: 5, 2: 6, 3: 6, 4: 7, 7: 7, 8: 8, 15: 8, 16: 9, 31: 9, 32: 10, 63: 10} {
		if got := RQStride(segs); got != want {
			t.Errorf("RQStride(%d) = %d, want %d", segs, got, want)
		}
	}
}

// card writes a CQE as the card does: body, then the owner word.
func card(ring []byte, n, entries uint32, body func(e []byte)) {
	e := ring[n%entries*64:][:64]
	owner := e[60]
	clear(e)
	e[60] = owner
	body(e)
	e[60] = byte(1 - n/entries%2)
}

func TestCQPhase(t *testing.T) {
	const entries = 8
	ring := page(t, entries*64)
	var ci, arm uint32
	q, err := NewCQ(ring, &ci, &arm, &Domain{})
	if err != nil {
		t.Fatal(err)
	}
	produced, consumed := uint32(0), uint32(0)
	for _, batch := range []uint32{0, 1, 7, 8, 8, 3, 8, 5, 8} {
		if batch > entries-(produced-consumed) {
			t.Fatal("the test overfills the ring")
		}
		for range batch {
			n := produced
			card(ring, n, entries, func(e []byte) { e[0], e[4], e[18] = byte(n), 0x40, 5 })
			produced++
		}
		if n := q.Ready(100); n != int(batch) || q.Ready(2) != min(n, 2) {
			t.Fatalf("%d are ready, want %d", n, batch)
		}
		for q.At(0) != nil {
			e := q.At(0)
			if e.QPN != consumed&0xff || e.WQEIndex != 0x40 || e.Status != hw.StatusWRFlushErr {
				t.Fatalf("CQE %d: %+v", consumed, e)
			}
			if n := int(produced - consumed); q.At(n-1) == nil || n < entries && q.At(n) != nil {
				t.Fatalf("CQE %d: At does not end behind the %d that are there", consumed, n)
			}
			q.Take(1)
			consumed++
		}
		if consumed != produced {
			t.Fatalf("took %d of %d", consumed, produced)
		}
		q.Publish()
		if ci != consumed {
			t.Fatalf("consumer index %d, want %d", ci, consumed)
		}
	}
	// ci 48, sequence 1, then solicited with sequence 2: bits 23:0, 27:24, 28, 31.
	q.Arm(false)
	if arm != 0x81000030 {
		t.Fatalf("arm word %#x, want 0x81000030", arm)
	}
	q.Arm(true)
	if arm != 0x92000030 {
		t.Fatalf("arm word %#x, want 0x92000030", arm)
	}
}

func TestCQPurge(t *testing.T) {
	const entries = 8
	ring := page(t, entries*64)
	var ci, arm uint32
	q, _ := NewCQ(ring, &ci, &arm, &Domain{})
	for n := range uint32(13) { // 5 of the first turn are taken, 8 stay
		if n >= entries {
			q.Take(1)
		}
		card(ring, n, entries, func(e []byte) { e[0] = byte(3 + n%2) })
	}
	if got := q.Purge(4); got != 4 {
		t.Fatalf("dropped %d, want 4", got)
	}
	var got []uint32
	for e := q.At(0); e != nil; e = q.At(0) {
		got = append(got, e.QPN)
		q.Take(1)
	}
	want := []uint32{0, 3, 0, 3, 0, 3, 0, 3} // 5 … 12: odd numbers were QP 4's
	for i := range want {
		if len(got) != len(want) || got[i] != want[i] {
			t.Fatalf("QPNs %v, want %v", got, want)
		}
	}
}

func TestEQ(t *testing.T) {
	ring := page(t, 4*32)
	var word uint32
	q, err := NewEQ(ring, &word, &Domain{})
	if err != nil {
		t.Fatal(err)
	}
	var e hw.EQE
	for n := range uint32(11) {
		if q.Next(&e) {
			t.Fatalf("event %d before it was written", n)
		}
		b := ring[n%4*32:]
		copy(b, []byte{0x11, 4, 0, 0, byte(n), 2, 0, 0, 9})
		b[28] = byte(1 - n/4%2)
		if !q.Next(&e) || e.Type != hw.EventTypeQPFatal || e.Subtype != hw.ReasonAccess || e.Object != 0x200+n || e.Info != 9 {
			t.Fatalf("event %d: %+v", n, e)
		}
		q.Publish()
		if word != n+1 {
			t.Fatalf("consumer index %d, want %d", word, n+1)
		}
	}
}

func TestCommand(t *testing.T) {
	cmd, reply := page(t, 4*64), page(t, 4*64)
	q, err := NewCommand(cmd, reply)
	if err != nil {
		t.Fatal(err)
	}
	var r hw.CommandReply
	for n := range uint32(9) {
		p, ok := q.Post(&hw.CommandEntry{Opcode: hw.CommandModifyQP, Token: 0x01020304, Object: n, Modifier: 5, InIOVA: 0x1000, OutIOVA: 0x2000, InLength: 192, OutLength: 320})
		if !ok || p != n+1 {
			t.Fatalf("command %d: producer %d, %v", n, p, ok)
		}
		want := hexBytes(t, "3200 0000 04030201 00000000 05000000 0010000000000000 0020000000000000 c0000000 40010000")
		want[8] = byte(n)
		if at := cmd[n%4*64:]; !bytes.Equal(at[:len(want)], want) {
			t.Fatalf("command %d:\n%s", n, hex.Dump(at[:64]))
		}
		if q.Next(&r) {
			t.Fatal("a reply before it was written")
		}
		b := reply[n%4*64:]
		copy(b, hexBytes(t, "3200 04 0a 04030201 07000000 00000000 0807060504030201 40010000"))
		b[60] = byte(1 - n/4%2)
		if !q.Next(&r) || r.Opcode != hw.CommandModifyQP || r.Status != hw.CommandStatusBadParam || r.Syndrome != hw.CommandSyndromeTransition ||
			r.Token != 0x01020304 || r.Object != 7 || r.Value != 0x0102030405060708 || r.OutLength != 320 {
			t.Fatalf("reply %d: %+v", n, r)
		}
	}
	for range 4 {
		if _, ok := q.Post(&hw.CommandEntry{}); !ok {
			t.Fatal("no room in an empty ring")
		}
	}
	if _, ok := q.Post(&hw.CommandEntry{}); ok {
		t.Fatal("a fifth command in a ring of four")
	}
}

func TestTraceAndCapture(t *testing.T) {
	var word uint32
	ring := page(t, 2*64)
	q, err := NewTrace(ring, &word)
	if err != nil {
		t.Fatal(err)
	}
	var r hw.TraceRecord
	for n := range uint32(5) {
		b := ring[n%2*64:]
		copy(b[8:], []byte{0x11, 0, 0, 0, byte(n)})
		b[48], b[49] = 2, 1
		b[60] = byte(1 - n/2%2)
		if !q.Next(&r) || r.QPN != 0x11 || r.WQEIndex != n || r.Kind != hw.TraceKindLookup || r.Lookup != hw.LookupHit {
			t.Fatalf("record %d: %+v", n, r)
		}
		if q.Next(&r) {
			t.Fatal("a record twice")
		}
		q.Publish()
		if word != n+1 {
			t.Fatalf("consumer index %d", word)
		}
	}
	ring = page(t, 2*128)
	c, err := NewCapture(ring, 7, &word)
	if err != nil {
		t.Fatal(err)
	}
	var h hw.CaptureRecord
	for n, captured := range []byte{60, 64, 0, 200} { // 200: more than a slot holds
		b := ring[n%2*128:]
		copy(b[8:], []byte{60, 0, 0, 0, captured})
		for i := range 64 {
			b[64+i] = byte(n)
		}
		b[60] = byte(1 - n/2%2)
		f, ok := c.Peek(&h)
		if !ok || len(f) != min(int(captured), 64) || len(f) > 0 && f[len(f)-1] != byte(n) {
			t.Fatalf("slot %d: %d bytes, %v", n, len(f), ok)
		}
		c.Pop()
		c.Publish()
	}
}

// The kick: none while the card is awake or never sleeps, one for a doorbell
// while it sleeps.
func TestWake(t *testing.T) {
	kicks, flag := 0, uint32(0)
	d := &Domain{Sleep: &flag, Kick: func() { kicks++ }}
	var word uint32
	q, err := NewSQ(page(t, 32*64), &word, d)
	if err != nil {
		t.Fatal(err)
	}
	q.Ring()
	if kicks != 0 {
		t.Fatal("kicked an awake card")
	}
	flag = 1
	q.Ring()
	if kicks != 1 {
		t.Fatalf("%d kicks of a sleeping card", kicks)
	}
	d.Sleep = nil
	q.Ring()
	if kicks != 1 {
		t.Fatal("kicked a card that never sleeps")
	}
}

// No wake-up is lost: in each round a doorbell is rung while the card goes to
// sleep. Either the card, which sets its flag and then looks, sees the
// doorbell, or the driver, which rings and then looks, sees the flag.
func TestSleepAndKick(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors")
	}
	const rounds = 20_000
	words := make([]uint32, 64) // the doorbell and the flag in lines of their own
	word, flag := &words[0], &words[32]
	kicked := false
	d := &Domain{Sleep: flag, Kick: func() { kicked = true }}
	q, err := NewSQ(page(t, 32*64), word, d)
	if err != nil {
		t.Fatal(err)
	}
	var arrived atomic.Int64
	meet := func(n int) {
		arrived.Add(1)
		for spin := 0; arrived.Load() < int64(2*n); spin++ {
			if spin%100 == 99 {
				runtime.Gosched()
			}
		}
	}
	linger := func(n int) { // one side or the other is late
		for range n {
			mmio.FromDevice()
		}
	}
	saw := make([]bool, rounds)
	done := make(chan bool)
	go func() {
		for i := range rounds {
			meet(2*i + 1)
			linger(i % 2 * (i * 7 % 4093))
			mmio.Store32(flag, 1)
			mmio.StoreLoad()
			saw[i] = mmio.Load32(word) == uint32(i+1)
			meet(2*i + 2)
		}
		done <- true
	}()
	lost, slept := 0, 0
	for i := range rounds {
		kicked = false
		mmio.Store32(flag, 0)
		q.producer = uint32(i + 1)
		meet(2*i + 1)
		linger((1 - i%2) * (i * 11 % 4093))
		q.Ring()
		meet(2*i + 2)
		if kicked {
			slept++
		}
		if !kicked && !saw[i] {
			lost++
		}
	}
	<-done
	if lost != 0 {
		t.Fatalf("%d wake-ups of %d lost", lost, rounds)
	}
	t.Logf("%d kicks in %d rounds: so often the card was first", slept, rounds)
}

func TestBadRings(t *testing.T) {
	b := page(t, 1<<16)
	if _, err := NewSQ(b[:16*64], nil, nil); err == nil {
		t.Error("a send ring of 16 blocks")
	}
	if _, err := NewSQ(b[:48*64], nil, nil); err == nil {
		t.Error("a send ring of 48 blocks")
	}
	if _, err := NewSQ(b[4:4+32*64], nil, nil); err == nil {
		t.Error("a send ring off by 4 bytes")
	}
	if _, err := NewRQ(b[:3*32], 5, nil, nil); err == nil {
		t.Error("a receive ring of 3")
	}
	if _, err := NewRQ(b[:2048], 11, nil, nil); err == nil {
		t.Error("a stride of 2^11")
	}
	if _, err := NewCQ(b[:3*64], nil, nil, nil); err == nil {
		t.Error("a CQ of 3")
	}
	if _, err := NewEQ(b[:33], nil, nil); err == nil {
		t.Error("an EQ of 33 bytes")
	}
	if _, err := NewCommand(b[:64], b[:128]); err == nil {
		t.Error("command rings of different sizes")
	}
	if _, err := NewCapture(b[:128], 6, nil); err == nil {
		t.Error("a capture stride of 2^6")
	}
}

func TestNoAllocation(t *testing.T) {
	q, _, _ := newSQ(t, 64)
	r, err := NewRQ(page(t, 16*1024), 10, new(uint32), &Domain{})
	if err != nil {
		t.Fatal(err)
	}
	ring := page(t, 8*64)
	var ci, arm uint32
	c, _ := NewCQ(ring, &ci, &arm, &Domain{})
	sges := make([]SGE, 63)
	inline := [][]byte{make([]byte, 400)}
	n := uint32(0)
	if a := testing.AllocsPerRun(100, func() {
		at := q.Control(hw.OpcodeSend, 0, 64, 0, 0)
		q.Data(at, sges)
		q.Commit(Blocks(64))
		at = q.Control(hw.OpcodeSend, hw.WQEFlagInline, 26, 0, 400)
		q.Inline(at, inline)
		q.Commit(Blocks(26))
		q.Release(q.Producer())
		q.Ring()
		r.Put(sges)
		r.Release(r.Producer())
		r.Ring()
		ring[n%8*64+60] = byte(1 - n/8%2)
		n++
		for c.At(0) != nil {
			c.Take(1)
		}
		c.Publish()
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
