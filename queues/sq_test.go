package queues

import (
	"bytes"
	"encoding/hex"
	"testing"

	"rnic/hw"
)

func TestSendBytes(t *testing.T) {
	q, ring, word := newSQ(t, 32)

	// SEND with immediate, signaled and solicited, of two segments.
	at := q.Control(hw.OpcodeSendWithImm, hw.WQEFlagSignaled|hw.WQEFlagSolicited, 3, 0x11223344, 0)
	q.Data(at, []SGE{{Addr: 0x1122334455667788, Length: 0x400, LKey: 0x8000112}, {Addr: 0x2000, Length: 5, LKey: 0x301}})
	if i := q.Commit(Blocks(3)); i != 0 || q.Producer() != 1 {
		t.Fatalf("first WQE: index %d, then %d", i, q.Producer())
	}
	// RDMA WRITE with a fence, of one segment.
	at = q.Control(hw.OpcodeRDMAWrite, hw.WQEFlagFence, 3, 0, 0)
	at = q.Remote(at, 0xdeadbeef00000010, 0xcafe01)
	q.Data(at, []SGE{{Addr: 0x3000, Length: 0x80000000, LKey: 0x302}})
	if i := q.Commit(Blocks(3)); i != 1 || q.Producer() != 2 {
		t.Fatalf("second WQE: index %d, then %d", i, q.Producer())
	}
	// Compare and swap: four segments, a full block.
	at = q.Control(hw.OpcodeAtomicCmpAndSwp, hw.WQEFlagSignaled, 4, 0, 0)
	at = q.Remote(at, 0x40, 0x501)
	at = q.Atomic(at, 0x0102030405060708, 0x1112131415161718)
	q.Data(at, []SGE{{Addr: 0x4000, Length: 8, LKey: 0x303}})
	if i := q.Commit(Blocks(4)); i != 2 || q.Producer() != 3 {
		t.Fatalf("third WQE: index %d, then %d", i, q.Producer())
	}
	want := hexBytes(t, `
		03 03 03 00  44332211  00000000  0000 0000
		8877665544332211 00040000 12010008
		0020000000000000 05000000 01030000
		00000000000000000000000000000000

		00 04 03 00  00000000  01000000  0000 0000
		10000000efbeadde 01feca00 00000000
		0030000000000000 00000080 02030000
		00000000000000000000000000000000

		05 01 04 00  00000000  02000000  0000 0000
		4000000000000000 01050000 00000000
		0807060504030201 1817161514131211
		0040000000000000 08000000 03030000`)
	if !bytes.Equal(ring[:len(want)], want) {
		t.Fatalf("ring:\n%s\nwant:\n%s", hex.Dump(ring[:len(want)]), hex.Dump(want))
	}
	if *word != 0 {
		t.Fatalf("doorbell %d before Ring", *word)
	}
	q.Ring()
	if *word != 3 {
		t.Fatalf("doorbell %d, want 3", *word)
	}
}

// A WQE of 63 data segments and a control segment is 16 blocks; with a remote
// segment, 17 (65 segments).
func TestSend63Segments(t *testing.T) {
	sges := make([]SGE, 63)
	for i := range sges {
		sges[i] = SGE{Addr: uint64(i) << 12, Length: uint32(i), LKey: uint32(i)<<8 | 7}
	}
	check := func(ring []byte, at int) { // at: offset of the first data segment
		for i := range sges {
			o := (at + 16*i) % len(ring)
			want := []byte{0, byte(i << 4), byte(i >> 4), 0, 0, 0, 0, 0, byte(i), 0, 0, 0, 7, byte(i), 0, 0}
			if !bytes.Equal(ring[o:o+16], want) {
				t.Fatalf("segment %d at %#x: %x, want %x", i, o, ring[o:o+16], want)
			}
		}
	}
	q, ring, _ := newSQ(t, 64)
	at := q.Control(hw.OpcodeSend, 0, 64, 0, 0)
	q.Data(at, sges)
	if i := q.Commit(Blocks(64)); i != 0 || q.Producer() != 16 {
		t.Fatalf("SEND: index %d, then %d, want 0, 16", i, q.Producer())
	}
	check(ring, 16)
	at = q.Control(hw.OpcodeRDMAWrite, 0, 65, 0, 0)
	at = q.Remote(at, 1, 2)
	q.Data(at, sges)
	if i := q.Commit(Blocks(65)); i != 16 || q.Producer() != 33 {
		t.Fatalf("WRITE: index %d, then %d, want 16, 33", i, q.Producer())
	}
	check(ring, 16*64+32)
	if ring[16*64+2] != 65 {
		t.Fatalf("segment count %d, want 65", ring[16*64+2])
	}
}

// The ring wraps inside a WQE at every block of it, data segments and inline
// payload alike, and every byte outside the WQE stays.
func TestSendWrap(t *testing.T) {
	sges := make([]SGE, 20) // 21 segments: 6 blocks
	for i := range sges {
		sges[i] = SGE{Addr: uint64(i + 1), Length: uint32(i + 100), LKey: uint32(i + 200)}
	}
	payload := make([]byte, 300) // 16 + 304 bytes: 5 blocks
	for i := range payload {
		payload[i] = byte(i*7 + 1)
	}
	for start := uint32(27); start <= 32; start++ {
		q, ring, word := newSQ(t, 32)
		for i := range ring {
			ring[i] = 0xee
		}
		q.producer = 1<<32 - 32 + start // the absolute index wraps too
		q.consumer = q.producer
		q.seen = q.producer
		at := q.Control(hw.OpcodeSend, 0, 21, 0, 0)
		q.Data(at, sges)
		index := q.Commit(Blocks(21))
		if index != 1<<32-32+start || q.Producer() != index+6 {
			t.Fatalf("start %d: index %#x, then %#x", start, index, q.Producer())
		}
		q.Ring()
		if *word != index+6 {
			t.Fatalf("start %d: doorbell %#x", start, *word)
		}
		want := bytes.Repeat([]byte{0xee}, len(ring))
		put := func(seg int, b ...byte) { copy(want[(int(start)*64+seg*16)%len(want):], b) }
		put(0, 2, 0, 21, 0, 0, 0, 0, 0, byte(index), byte(index>>8), byte(index>>16), byte(index>>24), 0, 0, 0, 0)
		for i := range sges {
			put(1+i, byte(i+1), 0, 0, 0, 0, 0, 0, 0, byte(i+100), 0, 0, 0, byte(i+200), 0, 0, 0)
		}
		if !bytes.Equal(ring, want) {
			t.Fatalf("start %d: segments differ:\n%s", start, hex.Dump(ring))
		}

		// The same with the payload in the WQE, in pieces.
		for i := range ring {
			ring[i] = 0xee
		}
		q.producer = start
		at = q.Control(hw.OpcodeSend, hw.WQEFlagInline, 20, 0, 300)
		q.Inline(at, [][]byte{payload[:1], nil, payload[1:222], payload[222:]})
		if i := q.Commit(Blocks(20)); i != start || q.Producer() != start+5 {
			t.Fatalf("start %d: inline index %d, then %d", start, i, q.Producer())
		}
		want = bytes.Repeat([]byte{0xee}, len(ring))
		put(0, 2, 8, 20, 0, 0, 0, 0, 0, byte(start), 0, 0, 0, 0x2c, 1, 0, 0)
		for i := range 304 {
			b := byte(0)
			if i < 300 {
				b = payload[i]
			}
			want[(int(start)*64+16+i)%len(want)] = b
		}
		if !bytes.Equal(ring, want) {
			t.Fatalf("start %d: inline payload differs:\n%s", start, hex.Dump(ring))
		}
	}
}

// An exact multiple of a segment gets no padding, and a long one in many
// pieces lands whole.
func TestInlineExact(t *testing.T) {
	q, ring, _ := newSQ(t, 32)
	payload := bytes.Repeat([]byte{0xab}, 960)
	for i := range ring {
		ring[i] = 0xee
	}
	at := q.Control(hw.OpcodeSend, hw.WQEFlagInline, 61, 0, 960)
	q.Inline(at, [][]byte{payload})
	if q.Commit(Blocks(61)); q.Producer() != 16 {
		t.Fatalf("%d blocks, want 16 (976 bytes)", q.Producer())
	}
	if !bytes.Equal(ring[16:976], payload) || ring[976] != 0xee {
		t.Fatalf("payload:\n%s", hex.Dump(ring[960:992]))
	}
}

// Full and full minus one, at every offset and across the wrap of the counter.
func TestSendFull(t *testing.T) {
	for _, base := range []uint32{0, 1, 31, 32, 1<<32 - 33, 1<<32 - 1} {
		q, _, _ := newSQ(t, 32)
		q.producer, q.seen = base, base
		q.consumer = base
		for range 31 {
			if !q.Room(1) {
				t.Fatalf("base %#x: no room at %d", base, q.producer-base)
			}
			q.Control(hw.OpcodeSend, 0, 1, 0, 0)
			q.Commit(1)
		}
		if q.Room(2) || !q.Room(1) { // full minus one
			t.Fatalf("base %#x: room for 2: %v, for 1: %v", base, q.Room(2), q.Room(1))
		}
		q.Control(hw.OpcodeSend, 0, 1, 0, 0)
		q.Commit(1)
		if q.Room(1) {
			t.Fatalf("base %#x: room in a full ring", base)
		}
		q.Release(base + 17)
		if !q.Room(17) || q.Room(18) {
			t.Fatalf("base %#x: after 17 released: 17 %v, 18 %v", base, q.Room(17), q.Room(18))
		}
	}
}
