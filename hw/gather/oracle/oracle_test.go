package oracle_test

import (
	"fmt"
	"slices"
	"testing"

	"rnic/hw/gather/oracle"
)

// TestChapter holds the oracle itself against the chapter's walk: a SEND of
// 7,680 bytes, 1 KiB and 512 B in MR 1, 6 KiB in MR 2, at an MTU of 4,096.
func TestChapter(t *testing.T) {
	w := oracle.World{
		Regions: map[uint32]oracle.Region{
			1: {Valid: true, Base: 0x1000, Length: 2048, IOVA: 0x10000},
			2: {Valid: true, Base: 0x9000, Length: 6144, IOVA: 0x20000},
		},
		Read: func(iova uint64) (byte, bool) { return byte(iova) ^ byte(iova>>8) ^ byte(iova>>16), true },
		Sets: 8, Ways: 1,
	}
	walk := w.Gather(oracle.Request{Op: "send", Reliable: true, MTU: 4096, Segments: []oracle.Segment{
		{Addr: 0x1000, Length: 1024, Key: 0x100}, {Addr: 0x9000, Length: 6144, Key: 0x200}, {Addr: 0x1600, Length: 512, Key: 0x100},
	}})
	var steps []string
	for _, s := range walk.Steps {
		steps = append(steps, fmt.Sprintln(s.Kind, s.Packet, s.Segment, s.Offset, s.Bytes, s.Hit))
	}
	if want := []string{
		"packet 0 0 0 4096 false\n",
		"lookup 0 0 0 1024 false\n", "read 0 0 0 1024 false\n", "lookup 0 1 0 3072 false\n", "read 0 1 0 3072 false\n",
		"handover 0 0 0 4096 false\n",
		"packet 1 0 0 3584 false\n",
		"lookup 1 1 3072 3072 true\n", "read 1 1 3072 3072 false\n", "lookup 1 2 0 512 true\n", "read 1 2 0 512 false\n",
		"handover 1 0 0 3584 false\n",
	}; !slices.Equal(steps, want) {
		t.Errorf("steps\n%v, the chapter has\n%v", steps, want)
	}
	if len(walk.Packets) != 2 || walk.Fault != nil {
		t.Fatalf("%d packets, fault %v", len(walk.Packets), walk.Fault)
	}
	for i, want := range []oracle.Packet{
		{Cursor: oracle.Cursor{Segment: 1, Offset: 3072, Left: 3584}},
		{Cursor: oracle.Cursor{Segment: 3}, AckReq: true},
	} {
		if p := walk.Packets[i]; p.Cursor != want.Cursor || p.AckReq != want.AckReq {
			t.Errorf("packet %d: %+v %v, want %+v %v", i+1, p.Cursor, p.AckReq, want.Cursor, want.AckReq)
		}
	}
	// The first byte, the last of segment 0, the first of segment 1, the last of all.
	first, second := walk.Packets[0].Payload, walk.Packets[1].Payload
	for _, b := range []struct{ got, want byte }{
		{first[0], 0x01}, {first[1023], 0xff ^ 0x03 ^ 0x01}, {first[1024], 0x02}, {second[3583], 0xff ^ 0x07 ^ 0x01},
	} {
		if b.got != b.want {
			t.Errorf("byte %#x, want %#x", b.got, b.want)
		}
	}
}
