package queues

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"rnic/hw"
	"rnic/hw/mmio"
)

// TestSleep_BothSeeNothing: a driver that rings and a card that falls asleep, on two processors (the store-buffer
// litmus test, Intel SDM vol. 3A, 9.2.3.4): in no round does the driver find no flag and the card no doorbell. For each
// queue that has a doorbell of its own.
func TestSleep_BothSeeNothing(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 || runtime.NumCPU() < 2 {
		if os.Getenv("CI") != "" {
			t.Fatal("missing: a second processor")
		}
		t.Skip("missing: a second processor")
	}
	// Lines of the processors' caches that are far apart: word, flag, the test's own.
	lines := make([]uint32, 512)
	word, flag := &lines[64], &lines[192]
	kicked := false
	d := &Domain{Sleep: flag, Kick: func() { kicked = true }}
	var other uint32
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sq, err := NewSQ(make([]byte, hw.SQMinBlocks*hw.WQEBlock), word, d)
	must(err)
	rq, err := NewRQ(make([]byte, 16<<RQStride(1)), RQStride(1), word, d)
	must(err)
	cq, err := NewCQ(make([]byte, 16*hw.CQESize), &other, word, d)
	must(err)
	for name, ring := range map[string]func(){
		"send queue":    func() { sq.producer++; sq.Ring() },
		"receive queue": func() { rq.producer++; rq.Ring() },
		"arm":           func() { cq.Arm(false) },
	} {
		const rounds = 30_000
		var arrived atomic.Int64
		meet := func(n int64) {
			arrived.Add(1)
			for spin := 1; arrived.Load() < 2*n; spin++ {
				if spin%1000 == 0 {
					runtime.Gosched()
				}
			}
		}
		var seen uint32
		done := make(chan struct{})
		go func() { // the card
			defer close(done)
			for i := range int64(rounds) {
				meet(3*i + 1)
				mmio.Store32(flag, 1)
				mmio.StoreLoad()
				seen = mmio.Load32(word)
				meet(3*i + 2)
				meet(3*i + 3)
			}
		}()
		lost := 0
		for i := range int64(rounds) {
			before := mmio.Load32(word)
			kicked = false
			mmio.Store32(flag, 0)
			mmio.StoreLoad()
			meet(3*i + 1)
			ring()
			meet(3*i + 2)
			if seen == before && !kicked {
				lost++
			}
			meet(3*i + 3)
		}
		<-done
		if lost > 0 {
			t.Errorf("%s: in %d of %d rounds the driver saw no flag and the card no doorbell", name, lost, rounds)
		}
	}
}
