package driver_test

import (
	"testing"

	"rnic/driver"
	"rnic/hw/softcard"
)

// Posting and polling allocate nothing: 1, 3 and 63 segments, inline,
// receives, batches, a full queue, and an empty one.
func TestNoAllocation(t *testing.T) {
	h := newHarness(t, softcard.Config{})
	s := newSide(t, h.addr, 4096, driver.QPInit{Type: driver.RC, MaxSendWR: 2000, MaxRecvWR: 2000, MaxSendSGE: 63, MaxRecvSGE: 63, MaxInline: 400})
	if err := s.qp.Connect(testCtx(t), s.qp.Endpoint()); err != nil {
		t.Fatal(err)
	}
	h.paused.Store(true) // the queues fill, and the card is quiet
	defer h.paused.Store(false)
	sges := make([]driver.SGE, 63)
	for i := range sges {
		sges[i] = s.mr.SGE(i, i)
	}
	const runs = 100
	zero := func(what string, f func() error) {
		t.Helper()
		var err error
		if n := testing.AllocsPerRun(runs, func() { err = f() }); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	post := func(wr *driver.SendWR) func() error { return func() error { return s.qp.PostSend(wr) } }
	zero("1 segment", post(&driver.SendWR{Opcode: driver.Send, SGEs: sges[:1]}))
	zero("3 segments", post(&driver.SendWR{Opcode: driver.Write, Remote: s.mr.Remote(), SGEs: sges[:3]}))
	zero("63 segments", post(&driver.SendWR{Opcode: driver.Send, SGEs: sges}))
	zero("atomic", post(&driver.SendWR{Opcode: driver.FetchAdd, Remote: s.mr.Remote(), SGEs: sges[8:9]}))
	zero("inline", post(&driver.SendWR{Opcode: driver.Send, Inline: [][]byte{make([]byte, 64), make([]byte, 300)}}))
	batch := []driver.SendWR{{Opcode: driver.Send, SGEs: sges[:2]}, {Opcode: driver.Read, Remote: s.mr.Remote(), SGEs: sges[:1]}}
	zero("batch", func() error { _, err := s.qp.PostSendBatch(batch); return err })
	recv := &driver.RecvWR{SGEs: sges}
	zero("receive", func() error { return s.qp.PostRecv(recv) })
	recvs := []driver.RecvWR{{SGEs: sges[:1]}, {}}
	zero("receive batch", func() error { _, err := s.qp.PostRecvBatch(recvs); return err })
	wc := make([]driver.WC, 1)
	zero("poll of none", func() error { _, err := s.cq.Poll(wc); return err })
	full := &driver.SendWR{Opcode: driver.Send}
	for s.qp.PostSend(full) == nil {
	}
	zero("a full queue", func() error {
		if err := s.qp.PostSend(full); err == nil {
			return errTest
		}
		return nil
	})

	// Polling: everything is flushed into the queue first.
	h.paused.Store(false)
	if err := s.qp.Drain(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	h.paused.Store(true)
	took := 0
	zero("poll", func() error {
		n, err := s.cq.Poll(wc)
		took += n
		return err
	})
	if took != runs+1 { // AllocsPerRun runs once more to warm up
		t.Errorf("%d completions in %d polls", took, runs+1)
	}
}
