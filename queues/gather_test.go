package queues

import (
	"bytes"
	"encoding/binary"
	"testing"

	"rnic/hw"
)

// TestGather: requests are taken once each, in order and with no more segments than
// there can be; answers are as the contract has them, byte for byte.
func TestGather(t *testing.T) {
	const entries = 4
	requests, replies := page(t, entries*2048), page(t, entries*64)
	var ci, pi, sleep uint32
	kicks := 0
	g, err := NewGather(requests, replies, &ci, &pi, &Domain{Sleep: &sleep, Kick: func() { kicks++ }})
	if err != nil {
		t.Fatal(err)
	}
	var r hw.HostGatherRequest
	var list [hw.MaxSegments]hw.DataSegment
	if _, ok := g.Next(&r, &list); ok || ci != 0 {
		t.Fatal("a request in an empty ring")
	}
	for n := range uint32(3*entries + 1) {
		slot := requests[n%entries*2048:]
		binary.LittleEndian.PutUint32(slot, 0x1234)                        // qpn
		binary.LittleEndian.PutUint32(slot[36:], 100+n)                    // token
		slot[29] = byte([]int{0, 1, 63, 255}[n%4])                         // segments
		binary.LittleEndian.PutUint64(slot[64+62*16:], 0x1122334455667788) // the last that fits
		binary.LittleEndian.PutUint32(slot[64+62*16+8:], 4096)
		binary.LittleEndian.PutUint32(slot[64+62*16+12:], 0xabcd)
		binary.LittleEndian.PutUint32(slot[60:], ^(n/entries)&1) // phase
		segs, ok := g.Next(&r, &list)
		if !ok || r.QPN != 0x1234 || r.Token != 100+n || ci != n+1 {
			t.Fatalf("request %d: %v, %+v, consumer %d", n, ok, r, ci)
		}
		if want := []int{0, 1, 63, 63}[n%4]; len(segs) != want {
			t.Fatalf("request %d: %d segments, expected %d", n, len(segs), want)
		}
		if len(segs) == 63 && (segs[62].Addr != 0x1122334455667788 || segs[62].Length != 4096 || segs[62].LKey != 0xabcd) {
			t.Fatalf("last segment %+v", segs[62])
		}
		if _, ok := g.Next(&r, &list); ok {
			t.Fatalf("request %d is taken twice", n)
		}
		sleep = n & 1
		g.Reply(&hw.HostGatherReply{Token: 100 + n, Bytes: 7, CursorOffset: 8, CursorLeft: 9, CursorSegment: 10, Reason: 3, FaultSegment: 11, Lookups: 12, FaultKey: 13, FaultOffset: 14})
		want := make([]byte, 64)
		for off, v := range map[int]uint32{0: 100 + n, 4: 7, 8: 8, 12: 9, 20: 13, 24: 14, 60: ^(n / entries) & 1} {
			binary.LittleEndian.PutUint32(want[off:], v)
		}
		want[16], want[17], want[18], want[19] = 10, 3, 11, 12
		if got := replies[n%entries*64:][:64]; !bytes.Equal(got, want) || pi != n+1 {
			t.Fatalf("answer %d, index %d:\n%x\nexpected\n%x", n, pi, got, want)
		}
	}
	if kicks != 3*entries/2 {
		t.Errorf("%d kicks, the card slept %d times", kicks, 3*entries/2)
	}
	if _, err := NewGather(requests, replies[:64], nil, nil, nil); err == nil {
		t.Error("rings of different sizes")
	}
	if _, err := NewGather(requests[:3*2048], replies[:3*64], nil, nil, nil); err == nil {
		t.Error("rings of 3")
	}
}

// TestSQCopy: a WQE that wraps at the ring's end comes in one piece.
func TestSQCopy(t *testing.T) {
	q, ring, _ := newSQ(t, 32)
	for i := range ring {
		ring[i] = byte(i / 64)
	}
	got := q.Copy(32*7+30, 4, make([]byte, 17*64))
	want := append(append([]byte{}, ring[30*64:]...), ring[:2*64]...)
	if !bytes.Equal(got, want) {
		t.Errorf("%x", got)
	}
}
