package driver_test

import (
	"context"
	"testing"

	"rnic/driver"
	"rnic/hw"
)

// dmaLog starts a DMA log of d, whose reader is asked for what is there by take.
func dmaLog(t testing.TB, d *driver.Device, entries int) (g *driver.Debug, take func() []driver.DMARecord) {
	t.Helper()
	g, err := d.Debug()
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.DMALog(testCtx(t), driver.DMALogOptions{Entries: entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	past, cancel := context.WithCancel(context.Background())
	cancel() // a record that is there is given out all the same
	return g, func() (all []driver.DMARecord) {
		for {
			r, err := s.Next(past)
			if err != nil {
				return all
			}
			all = append(all, r)
		}
	}
}

// TestDMALog: the log of a walk has its reads of payload, as the chapter has them, in
// their order among all accesses.
func TestDMALog(t *testing.T) {
	a, b := newPair(t, smallQP)
	g, take := dmaLog(t, a.d, 0)
	mr2 := walk(t, a, b)
	mr1 := a.mr.LKey()
	base := map[uint32]uint64{}
	snap, err := a.d.Snapshot(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range snap.Keys {
		base[k.Key] = k.IOVA
	}
	last, err := g.DMASequence()
	if err != nil {
		t.Fatal(err)
	}
	type read struct {
		key    uint32
		off    uint64
		length int
	}
	want := []read{{mr1, 0, 1024}, {mr2.LKey(), 0, 3072}, {mr2.LKey(), 3072, 3072}, {mr1, 1024, 512}}
	var got []read
	all := take()
	for i, r := range all {
		if r.Sequence != all[0].Sequence+uint64(i) || r.Lost != 0 || r.Reason != driver.ReasonNone {
			t.Fatalf("record %d: %+v after %+v", i, r, all[max(i, 1)-1])
		}
		if r.Key != 0 && r.Direction == hw.DMADirectionRead && r.QPN == a.qp.Number() {
			got = append(got, read{r.Key, r.IOVA - base[r.Key], r.Length})
		}
	}
	if len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("payload reads %+v, want %+v", got, want)
	}
	if end := all[len(all)-1].Sequence; end < last {
		t.Errorf("the log ends with access %d, there were %d", end, last)
	}
	if n := g.FencedAt(mr2); n != 0 {
		t.Errorf("a live region was fenced at %d", n)
	}
	if err := mr2.Dereg(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	after, err := g.DMASequence()
	if err != nil {
		t.Fatal(err)
	}
	if n := g.FencedAt(mr2); n <= last || n >= after {
		t.Errorf("fenced at access %d; there were %d before and %d after it", n, last, after)
	}
	_, err = g.DMALog(testCtx(t), driver.DMALogOptions{Entries: 1<<20 + 1})
	wantErr(t, "a log of 2^20 + 1", err, driver.ErrInvalid)
}
