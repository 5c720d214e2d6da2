package gather_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"rnic/hw"
	"rnic/hw/gather"
)

// table is a key table in a map, memory a DMA address space that faults
// outside what was put into it. Both are as plain as can be.
type table map[uint32]gather.Key

func (t table) Entry(index uint32) (gather.Key, bool) { k, ok := t[index]; return k, ok }

type memory struct {
	iova  uint64
	bytes []byte
	bad   func(iova uint64) bool // nil: no byte is bad
}

var errDMA = errors.New("dma refused")

func (m *memory) span(iova uint64, n int) ([]byte, error) {
	if iova < m.iova || iova-m.iova > uint64(len(m.bytes)) || uint64(n) > uint64(len(m.bytes))-(iova-m.iova) {
		return nil, errDMA
	}
	if m.bad != nil {
		for i := range n {
			if m.bad(iova + uint64(i)) {
				return nil, errDMA
			}
		}
	}
	return m.bytes[iova-m.iova:][:n], nil
}

func (m *memory) Read(iova uint64, dst []byte) error {
	s, err := m.span(iova, len(dst))
	copy(dst, s)
	return err
}

func (m *memory) Write(iova uint64, src []byte) error {
	s, err := m.span(iova, len(src))
	copy(s, src)
	return err
}

// steps writes a walk's trace as lines.
type steps []string

func (s *steps) Lookup(seg int, off, n uint32, hit bool, r hw.Reason) {
	how := "miss"
	if hit {
		how = "hit"
	}
	*s = append(*s, fmt.Sprintf("lookup %d+%d %d %s %s", seg, off, n, how, r))
}

func (s *steps) Read(seg int, off, n uint32, r hw.Reason) {
	*s = append(*s, fmt.Sprintf("read %d+%d %d %s", seg, off, n, r))
}

// chapter is the walk of the chapter: 1 KiB and 512 B in MR 1, 6 KiB in MR 2,
// a 7,680-byte SEND at a 4,096-byte path MTU.
func chapter(t testing.TB) (*gather.Keys, *memory, []gather.Segment, gather.Who) {
	t.Helper()
	cache, err := gather.NewCache(gather.Geometry{Sets: 16, Ways: 4})
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{iova: 0x10000, bytes: make([]byte, 0x4000)}
	for i := range m.bytes {
		m.bytes[i] = byte(i*7 + i>>8)
	}
	keys := &gather.Keys{Cache: cache, Table: table{
		1: {State: hw.KeyStateValid, Tag: 0x11, PD: 5, Base: 0x7f0000001000, Length: 0x1000, IOVA: 0x10000},
		2: {State: hw.KeyStateValid, Tag: 0x22, PD: 5, Base: 0x7f0000100000, Length: 0x2000, IOVA: 0x12000},
	}}
	return keys, m, []gather.Segment{
		{Addr: 0x7f0000001000, Length: 1024, Key: 0x111},
		{Addr: 0x7f0000100000, Length: 6144, Key: 0x222},
		{Addr: 0x7f0000001800, Length: 512, Key: 0x111},
	}, gather.Who{PD: 5, QPN: 17}
}

// TestG22_ChapterWalk is the chapter's walk, step by step as its text has it.
func TestG22_ChapterWalk(t *testing.T) {
	keys, m, segs, who := chapter(t)
	c, _, ok := gather.Start(segs)
	if want := (gather.Cursor{Left: 7680}); !ok || c != want {
		t.Fatalf("start: %v %v, want %v", c, ok, want)
	}
	for i, p := range []struct {
		n      int
		cursor gather.Cursor
		steps  []string
		bytes  []byte
	}{
		{4096, gather.Cursor{Segment: 1, Offset: 3072, Left: 3584}, []string{
			"lookup 0+0 1024 miss NONE", "read 0+0 1024 NONE",
			"lookup 1+0 3072 miss NONE", "read 1+0 3072 NONE",
		}, slices.Concat(m.bytes[:1024], m.bytes[0x2000:][:3072])},
		{3584, gather.Cursor{Segment: 3}, []string{
			"lookup 1+3072 3072 hit NONE", "read 1+3072 3072 NONE",
			"lookup 2+0 512 hit NONE", "read 2+0 512 NONE",
		}, slices.Concat(m.bytes[0x2000+3072:][:3072], m.bytes[0x800:][:512])},
	} {
		var tr steps
		dst := make([]byte, 4096)
		n, f, ok := gather.Packet(keys, m, &tr, segs, who, &c, 4096, dst)
		if !ok || n != p.n || c != p.cursor {
			t.Fatalf("packet %d: %d bytes, cursor %v, %v; want %d, %v", i+1, n, c, f, p.n, p.cursor)
		}
		if !slices.Equal(tr, p.steps) {
			t.Fatalf("packet %d steps:\n%q, want\n%q", i+1, tr, p.steps)
		}
		if !bytes.Equal(dst[:n], p.bytes) {
			t.Fatalf("packet %d: wrong bytes", i+1)
		}
	}
	if !c.Done() {
		t.Fatal("bytes left after the last packet")
	}
	if s := keys.Cache.Stats(); s != (gather.CacheStats{Hits: 2, Misses: 2}) {
		t.Fatalf("cache counted %+v, want 2 hits and 2 misses", s)
	}
}
