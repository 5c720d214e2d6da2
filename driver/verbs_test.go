package driver_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"rnic/driver"
)

// Each operation of RC, checked at the far end.
func TestOperations(t *testing.T) {
	a, b := newPair(t, smallQP)
	am, bm := a.mr.Bytes(), b.mr.Bytes()
	post := func(wr driver.SendWR) {
		t.Helper()
		wr.Flags |= driver.Signaled
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
	recv := func(id uint64, sges ...driver.SGE) {
		t.Helper()
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: id, SGEs: sges}); err != nil {
			t.Fatal(err)
		}
	}
	same := func(what string, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Errorf("%s: bytes differ", what)
		}
	}

	fill(am[:7680], 1)
	recv(1, b.mr.SGE(0, 100), b.mr.SGE(4096, 8000))
	post(driver.SendWR{WRID: 2, Opcode: driver.Send, SGEs: []driver.SGE{a.mr.SGE(0, 1024), a.mr.SGE(1024, 6144), a.mr.SGE(7168, 512)}})
	if wc := good(t, b.cq, 1); wc.ByteLen != 7680 || wc.Opcode != driver.Recv || wc.QPN != b.qp.Number() || wc.Flags&driver.WCRecv == 0 {
		t.Errorf("receive: %+v", wc)
	}
	if wc := good(t, a.cq, 2); wc.Opcode != driver.Send || wc.QPN != a.qp.Number() || wc.Flags&driver.WCRecv != 0 {
		t.Errorf("send: %+v", wc)
	}
	same("SEND", append(append([]byte(nil), bm[:100]...), bm[4096:4096+7580]...), am[:7680])

	recv(3, b.mr.SGE(0, 64))
	post(driver.SendWR{WRID: 4, Opcode: driver.SendImm, Imm: 0xdeadbeef, Flags: driver.Solicited, SGEs: []driver.SGE{a.mr.SGE(5, 13)}})
	if wc := good(t, b.cq, 3); wc.Imm != 0xdeadbeef || wc.Flags&driver.WCImm == 0 || wc.ByteLen != 13 || wc.Flags&driver.WCSolicited == 0 {
		t.Errorf("receive of SEND with immediate: %+v", wc)
	}
	good(t, a.cq, 4)
	same("SEND with immediate", bm[:13], am[5:18])

	fill(am[:100_000], 2)
	post(driver.SendWR{WRID: 5, Opcode: driver.Write, Remote: b.mr.Remote().At(4097), SGEs: []driver.SGE{a.mr.SGE(0, 1), a.mr.SGE(1, 70_000), a.mr.SGE(70_001, 29_999)}})
	good(t, a.cq, 5)
	same("WRITE", bm[4097:104_097], am[:100_000])

	recv(6)
	post(driver.SendWR{WRID: 7, Opcode: driver.WriteImm, Imm: 7, Remote: b.mr.Remote().At(9), SGEs: []driver.SGE{a.mr.SGE(40, 20)}})
	if wc := good(t, b.cq, 6); wc.Opcode != driver.RecvWriteImm || wc.Imm != 7 || wc.ByteLen != 20 {
		t.Errorf("receive of WRITE with immediate: %+v", wc)
	}
	good(t, a.cq, 7)
	same("WRITE with immediate", bm[9:29], am[40:60])

	fill(bm[:50_000], 3)
	post(driver.SendWR{WRID: 8, Opcode: driver.Read, Remote: b.mr.Remote(), SGEs: []driver.SGE{a.mr.SGE(200_000, 3), a.mr.SGE(300_000, 49_997)}})
	if wc := good(t, a.cq, 8); wc.ByteLen != 50_000 || wc.Opcode != driver.Read {
		t.Errorf("READ: %+v", wc)
	}
	same("READ", append(append([]byte(nil), am[200_000:200_003]...), am[300_000:349_997]...), bm[:50_000])

	binary.LittleEndian.PutUint64(bm[1024:], 1000)
	post(driver.SendWR{WRID: 9, Opcode: driver.FetchAdd, CompareAdd: 23, Remote: b.mr.Remote().At(1024), SGEs: []driver.SGE{a.mr.SGE(64, 8)}})
	good(t, a.cq, 9)
	post(driver.SendWR{WRID: 10, Opcode: driver.CompareSwap, CompareAdd: 1023, Swap: 77, Remote: b.mr.Remote().At(1024), SGEs: []driver.SGE{a.mr.SGE(72, 8)}})
	good(t, a.cq, 10)
	if v, w, x := binary.LittleEndian.Uint64(am[64:]), binary.LittleEndian.Uint64(am[72:]), binary.LittleEndian.Uint64(bm[1024:]); v != 1000 || w != 1023 || x != 77 {
		t.Errorf("atomics: fetched %d and %d, left %d; want 1000, 1023, 77", v, w, x)
	}

	// Inline from the Go heap, changed as soon as it was posted (rule G3).
	heap := []byte("inline payload, not registered")
	want := bytes.Clone(heap)
	recv(11, b.mr.SGE(0, 64))
	post(driver.SendWR{WRID: 12, Opcode: driver.Send, Inline: [][]byte{heap[:6], heap[6:]}})
	clear(heap)
	if wc := good(t, b.cq, 11); wc.ByteLen != uint32(len(want)) {
		t.Errorf("inline: %d bytes", wc.ByteLen)
	}
	good(t, a.cq, 12)
	same("inline", bm[:len(want)], want)

	// No payload, and unsignaled ones before a signaled one.
	recv(13)
	recv(14)
	recv(15)
	for i := range 2 {
		if err := a.qp.PostSend(&driver.SendWR{WRID: 100 + uint64(i), Opcode: driver.Send}); err != nil {
			t.Fatal(err)
		}
	}
	post(driver.SendWR{WRID: 16, Opcode: driver.Send, Flags: driver.Fence})
	good(t, a.cq, 16)
	for id := range uint64(3) {
		if wc := good(t, b.cq, 13+id); wc.ByteLen != 0 {
			t.Errorf("%d bytes of nothing", wc.ByteLen)
		}
	}
	var wc [1]driver.WC
	if n, err := a.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("a completion of an unsignaled send: %+v, %v", wc[0], err)
	}
}

// 63 segments each way, in a batch that wraps the ring inside a WQE.
func TestSixtyThreeSegments(t *testing.T) {
	a, b := newPair(t, driver.QPInit{Type: driver.RC, MaxSendWR: 5, MaxRecvWR: 5, MaxSendSGE: 63, MaxRecvSGE: 63})
	for round := range 20 {
		fill(a.mr.Bytes()[:63*100], byte(round))
		clear(b.mr.Bytes()[:63*128])
		sends, recvs := make([]driver.SendWR, 5), make([]driver.RecvWR, 5)
		for i := range 5 {
			for k := range 63 {
				sends[i].SGEs = append(sends[i].SGEs, a.mr.SGE(k*100, 100))
				recvs[i].SGEs = append(recvs[i].SGEs, b.mr.SGE(k*128, 100))
			}
			sends[i].WRID, sends[i].Opcode, sends[i].Flags = uint64(i), driver.Send, driver.Signaled
			recvs[i].WRID = uint64(i)
		}
		if n, err := b.qp.PostRecvBatch(recvs); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := a.qp.PostSendBatch(sends); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		for i := range uint64(5) {
			good(t, a.cq, i)
			good(t, b.cq, i)
		}
		for k := range 63 {
			if !bytes.Equal(b.mr.Bytes()[k*128:k*128+100], a.mr.Bytes()[k*100:k*100+100]) {
				t.Fatalf("round %d: segment %d differs", round, k)
			}
		}
	}
}

// What a post refuses, it refuses whole: nothing is queued, and the next one
// goes on.
func TestPostRefusals(t *testing.T) {
	init := driver.QPInit{Type: driver.RC, MaxSendWR: 8, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 3, MaxInline: 20}
	a, b := newPair(t, init)
	if got := a.qp.Caps(); got != (driver.QPCaps{MaxSendWR: 8, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 3, MaxInline: 20}) {
		t.Errorf("caps %+v", got)
	}
	s := a.mr.SGE(0, 1)
	send := func(wr driver.SendWR) error { return a.qp.PostSend(&wr) }
	wantErr(t, "3 segments of 2", send(driver.SendWR{Opcode: driver.Send, SGEs: []driver.SGE{s, s, s}}), driver.ErrTooManySGEs)
	wantErr(t, "21 inline bytes of 20", send(driver.SendWR{Opcode: driver.Send, Inline: [][]byte{make([]byte, 21)}}), driver.ErrInline)
	wantErr(t, "inline and segments", send(driver.SendWR{Opcode: driver.Send, SGEs: []driver.SGE{s}, Inline: [][]byte{{1}}}), driver.ErrInline)
	wantErr(t, "inline READ", send(driver.SendWR{Opcode: driver.Read, Inline: [][]byte{{1}}}), driver.ErrInline)
	wantErr(t, "inline atomic", send(driver.SendWR{Opcode: driver.FetchAdd, Inline: [][]byte{{1}}}), driver.ErrInline)
	wantErr(t, "a flag that is none", send(driver.SendWR{Opcode: driver.Send, Flags: 8}), driver.ErrInvalid)
	wantErr(t, "a receive as send", send(driver.SendWR{Opcode: driver.Recv}), driver.ErrInvalid)
	for _, o := range []driver.Opcode{driver.SendInv, driver.LocalInv, driver.BindMW} {
		wantErr(t, o.String(), send(driver.SendWR{Opcode: o}), driver.ErrNotSupported)
	}
	wantErr(t, "4 segments of 3", a.qp.PostRecv(&driver.RecvWR{SGEs: []driver.SGE{s, s, s, s}}), driver.ErrTooManySGEs)

	// Full, of receives: the peer has 4.
	for i := range uint64(4) {
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: i, SGEs: []driver.SGE{b.mr.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, "fifth receive of 4", b.qp.PostRecv(&driver.RecvWR{}), driver.ErrQueueFull)

	// A batch stops at the first that is refused, which its error is about.
	wrs := []driver.SendWR{
		{WRID: 1, Opcode: driver.Send, Inline: [][]byte{make([]byte, 20)}},
		{WRID: 2, Opcode: driver.Send, Flags: driver.Signaled},
		{WRID: 3, Opcode: driver.Send, Inline: [][]byte{make([]byte, 21)}},
		{WRID: 4, Opcode: driver.Send},
	}
	n, err := a.qp.PostSendBatch(wrs)
	if n != 2 {
		t.Errorf("batch: %d accepted, want 2", n)
	}
	wantErr(t, "third of the batch", err, driver.ErrInline)
	good(t, a.cq, 2)

	// Full, of sends: nothing is taken until a completion is polled. Two are
	// left at the peer, so the third waits for a receive.
	for i := range uint64(8) {
		if err := send(driver.SendWR{WRID: 10 + i, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
			t.Fatalf("send %d of 8: %v", i, err)
		}
	}
	wantErr(t, "ninth send of 8", send(driver.SendWR{Opcode: driver.Send}), driver.ErrQueueFull)
	good(t, a.cq, 10)
	if err := send(driver.SendWR{WRID: 18, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "full again", send(driver.SendWR{Opcode: driver.Send}), driver.ErrQueueFull)
	wait(t, b.cq, 3)
	for i := range uint64(3) {
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, b.cq, 4)
	for i := range uint64(4) {
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(8) {
		good(t, a.cq, 11+i)
	}
}

// The state decides what may be posted.
func TestPostStates(t *testing.T) {
	s := newSide(t, "soft:states?wire=states", 16, smallQP)
	ctx := testCtx(t)
	wantErr(t, "send in INIT", s.qp.PostSend(&driver.SendWR{Opcode: driver.Send}), driver.ErrState)
	if err := s.qp.PostRecv(&driver.RecvWR{WRID: 1}); err != nil {
		t.Errorf("receive in INIT: %v", err)
	}
	if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateReset}, driver.AttrState); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "receive in RESET", s.qp.PostRecv(&driver.RecvWR{}), driver.ErrState)
	wantErr(t, "RESET to RTS", s.qp.Modify(ctx, driver.QPAttr{State: driver.StateRTS}, driver.AttrState), driver.ErrState)
	if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateErr}, driver.AttrState); err != nil {
		t.Fatal(err)
	}
	// In ERR both are taken, and flushed.
	if err := s.qp.PostSend(&driver.SendWR{WRID: 7, Opcode: driver.Send}); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.PostRecv(&driver.RecvWR{WRID: 8}); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]driver.Opcode{}
	for _, wc := range wait(t, s.cq, 2) {
		if wc.Status != driver.StatusWRFlushErr {
			t.Errorf("%+v, want a flush", wc)
		}
		seen[wc.WRID] = wc.Opcode
	}
	if seen[7] != driver.Send || seen[8] != driver.Recv || len(seen) != 2 {
		t.Errorf("flushed %v; the receive of before RESET must not be among them", seen)
	}
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "send when closed", s.qp.PostSend(&driver.SendWR{Opcode: driver.Send}), driver.ErrClosed)
	wantErr(t, "receive when closed", s.qp.PostRecv(&driver.RecvWR{}), driver.ErrClosed)
	if err := s.qp.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestNilRequests: no work request is an error, and the queue is as before.
func TestNilRequests(t *testing.T) {
	a, b := newPair(t, smallQP)
	wantErr(t, "PostSend(nil)", a.qp.PostSend(nil), driver.ErrInvalid)
	wantErr(t, "PostRecv(nil)", b.qp.PostRecv(nil), driver.ErrInvalid)
	if err := b.qp.PostRecv(&driver.RecvWR{SGEs: []driver.SGE{b.mr.SGE(0, 8)}}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{Opcode: driver.Send, SGEs: []driver.SGE{a.mr.SGE(0, 8)}}); err != nil {
		t.Fatal(err)
	}
}

// TestQueryClosed: a closed queue pair tells nothing, not even once another has
// its number.
func TestQueryClosed(t *testing.T) {
	ctx := testCtx(t)
	s := newSide(t, "soft:query-closed", 64, smallQP)
	n := s.qp.Number()
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.qp.Query(ctx)
	wantErr(t, "Query", err, driver.ErrClosed)
	init := smallQP
	init.SendCQ, init.RecvCQ = s.cq, s.cq
	next, err := s.pd.CreateQP(ctx, init, driver.WithQPN(n))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.Query(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = s.qp.Query(ctx)
	wantErr(t, "Query, its number another's", err, driver.ErrClosed)
}
