package driver_test

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/roce"
)

// walk sends the chapter's message: 7,680 bytes from three buffers in two
// regions at a path MTU of 4,096.
func walk(t *testing.T, a, b *side) (mr2 *driver.MR) {
	t.Helper()
	mr2, err := a.pd.AllocMR(testCtx(t), 6144, driver.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	fill(a.mr.Bytes()[:2048], 1)
	fill(mr2.Bytes(), 2)
	if err := b.qp.PostRecv(&driver.RecvWR{WRID: 1, SGEs: []driver.SGE{b.mr.SGE(0, 8192)}}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 0xabc, Opcode: driver.Send, Flags: driver.Signaled,
		SGEs: []driver.SGE{a.mr.SGE(0, 1024), mr2.SGE(0, 6144), a.mr.SGE(1024, 512)}}); err != nil {
		t.Fatal(err)
	}
	good(t, b.cq, 1)
	good(t, a.cq, 0xabc)
	return mr2
}

// The walk of the chapter, from the card's trace ring (rule G22).
func TestTrace(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	tr, err := a.d.Trace(ctx, driver.TraceOptions{QPN: a.qp.Number()})
	if err != nil {
		t.Fatal(err)
	}
	mr2 := walk(t, a, b)
	type step struct {
		kind    hw.TraceKind
		packet  uint32
		segment int
		offset  uint32
		bytes   uint32
	}
	want := []step{
		{hw.TraceKindWQE, 0, 0, 0, 7680},
		{hw.TraceKindLookup, 0, 0, 0, 1024}, {hw.TraceKindLookup, 0, 1, 0, 3072},
		{hw.TraceKindLookup, 1, 1, 3072, 3072}, {hw.TraceKindLookup, 1, 2, 0, 512},
	}
	var got []step
	var handed []driver.TraceRecord
	sent := 0
	for sent < 2 {
		r, err := tr.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r.QPN != a.qp.Number() || !r.HasWRID || r.WRID != 0xabc {
			t.Errorf("record of QP %#x, request %#x (%v)", r.QPN, r.WRID, r.HasWRID)
		}
		switch r.Kind {
		case hw.TraceKindWQE, hw.TraceKindLookup:
			got = append(got, step{r.Kind, r.Packet, r.Segment, r.Offset, r.Bytes})
		case hw.TraceKindHandover:
			handed = append(handed, r)
		case hw.TraceKindSent:
			sent++
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	payload := slices.Concat(a.mr.Bytes()[:1024], mr2.Bytes(), a.mr.Bytes()[1024:1536])
	if len(handed) != 2 || handed[0].CRC != crc32.ChecksumIEEE(payload[:4096]) || handed[1].CRC != crc32.ChecksumIEEE(payload[4096:]) ||
		handed[0].Flags&hw.TraceFlagACKReq != 0 || handed[1].Flags&hw.TraceFlagACKReq == 0 {
		t.Errorf("handed over: %+v", handed)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = tr.Next(ctx)
	wantErr(t, "Next of a closed stream", err, driver.ErrClosed)
}

// Two readers share the ring; one wants a QP only and a count; a context ends
// a Next that waits.
func TestCaptureStreams(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	one, err := a.d.Capture(ctx, driver.CaptureOptions{QPN: a.qp.Number(), Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	walk(t, a, b)
	all, err := a.d.Capture(ctx, driver.CaptureOptions{}) // starts the ring anew; one keeps what it has
	if err != nil {
		t.Fatal(err)
	}
	other, err := a.d.Capture(ctx, driver.CaptureOptions{QPN: a.qp.Number() ^ 1})
	if err != nil {
		t.Fatal(err)
	}
	walk(t, a, b)
	frames := func(s driver.Stream[driver.CaptureFrame], n int) (ops []roce.Opcode) {
		t.Helper()
		for range n {
			f, err := s.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var p roce.Packet
			if err := roce.Parse(f.Data, &p); err != nil || int(f.Length) != len(f.Data) || f.Lost != 0 {
				t.Fatalf("frame %+v: %v", f, err)
			}
			if tx := p.BTH().Opcode() != roce.RCAcknowledge; tx != (f.Direction == hw.DirectionTX) {
				t.Errorf("%v in direction %v", p.BTH().Opcode(), f.Direction)
			}
			ops = append(ops, p.BTH().Opcode())
		}
		return ops
	}
	if got := frames(one, 2); !slices.Equal(got, []roce.Opcode{roce.RCSendFirst, roce.RCSendLast}) {
		t.Errorf("first stream: %v", got)
	}
	if _, err := one.Next(ctx); err != io.EOF {
		t.Errorf("after the count: %v", err)
	}
	if got := frames(all, 3); !slices.Equal(got, []roce.Opcode{roce.RCSendFirst, roce.RCSendLast, roce.RCAcknowledge}) {
		t.Errorf("second stream: %v", got)
	}
	_, err = other.Next(short(t))
	wantErr(t, "a frame of another QP", err, driver.ErrTimeout)
	for _, s := range []driver.Stream[driver.CaptureFrame]{one, all, other} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = a.d.Capture(ctx, driver.CaptureOptions{Count: -1})
	wantErr(t, "count -1", err, driver.ErrInvalid)
}

// What Snapshot shows is what was done: numbers from outside, counted by hand.
func TestSnapshot(t *testing.T) {
	a, b := newPair(t, smallQP)
	mr2 := walk(t, a, b)
	s, err := a.d.Snapshot(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.QPs) != 1 || len(s.CQs) != 1 || len(s.Keys) != 2 || len(s.EQs) != 2 || s.Attr.Addr != a.d.Addr() {
		t.Fatalf("%d QPs, %d CQs, %d keys, %d EQs", len(s.QPs), len(s.CQs), len(s.Keys), len(s.EQs))
	}
	q := s.QPs[0]
	// 7,680 bytes in two frames, each with Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4.
	if q.QPN != a.qp.Number() || q.Attr.State != driver.StateRTS || q.Attr.DestQPN != b.qp.Number() || q.Posted != 1 || q.SQProducer != 1 || q.SQConsumer != 1 ||
		q.Stats.TxPackets != 2 || q.Stats.TxBytes != 7680+2*58 || q.Stats.RxPackets != 1 || q.Stats.Lookups != 4 || q.Stats.Gathers != 2 || q.Stats.GathersMulti != 2 || q.Stats.Messages != 1 {
		t.Errorf("QP %+v", q)
	}
	if c := s.CQs[0]; c.CQN != a.cq.Number() || c.Entries != 256 || c.Producer != 1 || c.Consumer != 1 || c.Users != 2 || c.Overflowed || c.Bogus != 0 {
		t.Errorf("CQ %+v", c)
	}
	k := driver.KeyInfo{Key: mr2.LKey(), State: hw.KeyStateValid, PD: a.pd.Number(), Access: driver.LocalWrite, Base: mr2.Addr(), Length: 6144}
	if i := slices.IndexFunc(s.Keys, func(i driver.KeyInfo) bool { return i.Key == k.Key }); i < 0 {
		t.Errorf("keys %+v", s.Keys)
	} else if k.IOVA = s.Keys[i].IOVA; s.Keys[i] != k {
		t.Errorf("key %+v, want %+v", s.Keys[i], k)
	}
	count := map[string]uint64{}
	for _, c := range s.Counters {
		count[c.Name] = c.Value
	}
	if count["TX_FRAMES"] != 2 || count["RX_FRAMES"] != 1 || count["LOOKUPS"] != 4 || count["KEY_CACHE_MISSES"] != 2 || count["KEY_CACHE_HITS"] != 2 || count["CQES"] != 1 {
		t.Errorf("counters %v", count)
	}
}

func TestRegistersByName(t *testing.T) {
	d := open(t, "soft:regs")
	r, err := d.ReadRegister("magic")
	if err != nil || r.Name != "IDENT.MAGIC" || r.Value != 0x43494e52 {
		t.Errorf("%v, %v", r, err)
	}
	if r, err = d.ReadRegister("IDENT.CARD_NAME[0]"); err != nil || r.Value != 0x73676572 || r.Offset != 0xc0 { // "regs"
		t.Errorf("%v, %v", r, err)
	}
	if r, err = d.ReadRegister("CONTROL.STATUS"); err != nil || !strings.Contains(r.String(), "READY=1") {
		t.Errorf("%v, %v", r, err)
	}
	if err := d.WriteRegister("SCRATCH_WIDE", 0x1122334455667788); err != nil {
		t.Error(err)
	}
	if r, err = d.ReadRegister("SCRATCH_WIDE"); err != nil || r.Value != 0x1122334455667788 {
		t.Errorf("%v, %v", r, err)
	}
	for _, bad := range []string{"", "NONE", "IDENT.CARD_NAME", "IDENT.CARD_NAME[8]", "IDENT.CARD_NAME[-1]", "IDENT.CARD_NAME[1]x", "MAGIC[0]"} {
		_, err := d.ReadRegister(bad)
		wantErr(t, bad, err, driver.ErrNotFound)
	}
	wantErr(t, "a store to MAGIC", d.WriteRegister("MAGIC", 1), driver.ErrInvalid)
	wantErr(t, "33 bits in 32", d.WriteRegister("SCRATCH", 1<<32), driver.ErrInvalid)
	all, err := d.Registers(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range hw.Registers {
		n += max(hw.Registers[i].Count, 1)
	}
	if len(all) != n {
		t.Errorf("%d registers, the contract has %d", len(all), n)
	}
}

// Attributes go in and come out; what is too wide, or no transition, is
// refused and changes nothing.
func TestModifyAndQuery(t *testing.T) {
	s := newSide(t, "soft:modify?wire=modify", 16, smallQP)
	ctx := testCtx(t)
	want := driver.QPAttr{
		State: driver.StateRTR, PathMTU: driver.MTU1024, DestQPN: 0x12345, RQPSN: 0xfffffe, MinRNRTimer: 17, MaxDestRDAtomic: 3,
		AV: driver.AddressVector{
			DGID: sample.GID, DMAC: sample.MAC, VLAN: driver.VLAN{Valid: true, VID: 100, PCP: 5}, FlowLabel: 0xabcde, UDPSourcePort: 0xc001, HopLimit: 9, TrafficClass: 0x28,
		},
	}
	const rtr = driver.AttrState | driver.AttrAV | driver.AttrPathMTU | driver.AttrDestQPN | driver.AttrRQPSN | driver.AttrMaxDestRDAtomic | driver.AttrMinRNRTimer
	for what, f := range map[string]func(a *driver.QPAttr, m *driver.QPAttrMask){
		"PSN of 25 bits":   func(a *driver.QPAttr, _ *driver.QPAttrMask) { a.RQPSN = 1 << 24 },
		"VID of 13 bits":   func(a *driver.QPAttr, _ *driver.QPAttrMask) { a.AV.VLAN.VID = 1 << 12 },
		"MTU code 6":       func(a *driver.QPAttr, _ *driver.QPAttrMask) { a.PathMTU = 6 },
		"RNR timer 32":     func(a *driver.QPAttr, _ *driver.QPAttrMask) { a.MinRNRTimer = 32 },
		"mask bit 31":      func(_ *driver.QPAttr, m *driver.QPAttrMask) { *m |= 1 << 31 },
		"a missing one":    func(_ *driver.QPAttr, m *driver.QPAttrMask) { *m &^= driver.AttrDestQPN },
		"RDAtomic of 255":  func(a *driver.QPAttr, _ *driver.QPAttrMask) { a.MaxDestRDAtomic = 255 },
		"SGID index of 15": func(a *driver.QPAttr, _ *driver.QPAttrMask) { a.AV.SGIDIndex = 15 },
	} {
		a, m := want, driver.QPAttrMask(rtr)
		f(&a, &m)
		wantErr(t, what, s.qp.Modify(ctx, a, m), driver.ErrInvalid)
	}
	wantErr(t, "rate by Modify", s.qp.Modify(ctx, want, rtr|driver.AttrRateLimit), driver.ErrNotSupported)
	if q, err := s.qp.Query(ctx); err != nil || q.State != driver.StateInit {
		t.Fatalf("after refusals: %v, %v", q.State, err)
	}
	if err := s.qp.Modify(ctx, want, rtr); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateRTS, SQPSN: 0x123456, Timeout: 13, RetryCnt: 5, RNRRetry: 4, MaxRDAtomic: 2},
		driver.AttrState|driver.AttrSQPSN|driver.AttrTimeout|driver.AttrRetryCnt|driver.AttrRNRRetry|driver.AttrMaxRDAtomic); err != nil {
		t.Fatal(err)
	}
	want.State, want.CurState, want.SQPSN, want.Timeout, want.RetryCnt, want.RNRRetry, want.MaxRDAtomic = driver.StateRTS, driver.StateRTS, 0x123456, 13, 5, 4, 2
	want.Access, want.ErrorSGE = driver.RemoteWrite|driver.RemoteRead|driver.RemoteAtomic, -1
	if q, err := s.qp.Query(ctx); err != nil || q != want {
		t.Errorf("got  %+v, %v\nwant %+v", q, err, want)
	}
	wantErr(t, "the wrong current state", s.qp.Modify(ctx, driver.QPAttr{State: driver.StateRTS, CurState: driver.StateSQD}, driver.AttrState|driver.AttrCurState), driver.ErrState)
}

// Drain flushes what is outstanding; a QP that goes through RESET works again,
// from the start of its rings.
func TestDrainAndReset(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	for i := range uint64(5) {
		if err := a.qp.PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&driver.SendWR{WRID: 10 + i, Opcode: driver.Send}); err != nil { // the peer has no receive
			t.Fatal(err)
		}
	}
	if err := a.qp.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	wc := make([]driver.WC, 16)
	if n, err := a.cq.Poll(wc); n != 10 || err != nil {
		t.Errorf("%d completions after Drain, %v; want 10", n, err)
	}
	for _, w := range wc[:10] {
		if w.Status != driver.StatusWRFlushErr {
			t.Errorf("%+v", w)
		}
	}
	if err := a.qp.Drain(ctx); err != nil {
		t.Errorf("second Drain: %v", err)
	}
	for _, s := range []*side{a, b} {
		if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateReset}, driver.AttrState); err != nil {
			t.Fatal(err)
		}
		if err := s.qp.Drain(ctx); err != nil {
			t.Errorf("Drain in RESET: %v", err)
		}
		if err := s.qp.Modify(ctx, driver.QPAttr{State: driver.StateInit, Access: driver.RemoteWrite}, driver.AttrState|driver.AttrAccess|driver.AttrPKeyIndex); err != nil {
			t.Fatal(err)
		}
	}
	connect(t, a.qp, b.qp)
	for i := range uint64(200) {
		if err := b.qp.PostRecv(&driver.RecvWR{WRID: i}); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
			t.Fatal(err)
		}
		good(t, a.cq, i)
		good(t, b.cq, i)
	}
}

// A rate is set, changed and lifted; a burst below a packet is refused.
func TestSetRate(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	rate := func() (uint64, uint32) {
		t.Helper()
		q, err := a.qp.Query(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return q.Rate, q.Burst
	}
	wantErr(t, "a burst of 100 bytes", a.qp.SetRate(ctx, 1<<20, 100), driver.ErrInvalid)
	for _, r := range []uint64{1 << 30, 2 << 30, 0, 3 << 30} {
		burst := uint32(16384)
		if r == 0 {
			burst = 0
		}
		if err := a.qp.SetRate(ctx, r, burst); err != nil {
			t.Fatal(err)
		}
		if gr, gb := rate(); gr != r || gb != burst {
			t.Errorf("rate %d, burst %d; want %d, %d", gr, gb, r, burst)
		}
		walk(t, a, b)
	}
}

func TestModifyPort(t *testing.T) {
	d := open(t, "soft:port?wire=port&ip=10.8.0.1/24&mac=02:00:00:00:00:08")
	ctx := testCtx(t)
	p := d.Port()
	if p.MAC != (driver.MAC{2, 0, 0, 0, 0, 8}) || len(p.GIDs) == 0 || p.GIDs[0].String() != "10.8.0.1" || p.Link == 0 || p.MaxMTU != driver.MTU4096 {
		t.Errorf("port %+v", p)
	}
	c := p.Config()
	c.MAC = driver.MAC{2, 0, 0, 0, 0, 9}
	c.ActiveMTU = driver.MTU1024
	if err := c.GIDs[1].UnmarshalText([]byte("fe80::9")); err != nil {
		t.Fatal(err)
	}
	if err := d.ModifyPort(ctx, c); err != nil {
		t.Fatal(err)
	}
	if q := d.Port(); q.MAC != c.MAC || q.ActiveMTU != c.ActiveMTU || q.GIDs[1].String() != "fe80::9" || q.GIDs[0] != p.GIDs[0] {
		t.Errorf("port %+v", q)
	}
	c.GIDs = make([]driver.GID, 100)
	wantErr(t, "100 GIDs", d.ModifyPort(ctx, c), driver.ErrLimit)
	c.GIDs, c.ActiveMTU = p.GIDs, 9
	wantErr(t, "MTU code 9", d.ModifyPort(ctx, c), driver.ErrInvalid)
}

// The debug page holds frames at the port and stops the clock.
func TestDebugPage(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	g, err := b.d.Debug()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.HoldPort(true); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.PostRecv(&driver.RecvWR{WRID: 1, SGEs: []driver.SGE{b.mr.SGE(0, 100)}}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 2, Opcode: driver.Send, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 10)}}); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := g.PortWaiting()
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			break
		}
	}
	if n, err := b.cq.Poll(make([]driver.WC, 1)); n != 0 || err != nil {
		t.Errorf("a completion of a frame that waits at the port: %v", err)
	}
	if err := g.TakeFrame(0, true, true, false); err != nil {
		t.Fatal(err)
	}
	good(t, b.cq, 1)
	good(t, a.cq, 2)
	if err := g.SetClockMode(hw.ClockModeStepped); err != nil {
		t.Fatal(err)
	}
	t0, err := g.Clock()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.StepClock(12345); err != nil {
		t.Fatal(err)
	}
	if t1, err := g.Clock(); err != nil || t1 != t0+12345 {
		t.Errorf("clock %d → %d, %v", t0, t1, err)
	}
	if err := g.AwaitQuiescent(ctx); err != nil {
		t.Error(err)
	}
	if err := g.SetRunMode(hw.RunModeStepped); err != nil {
		t.Fatal(err)
	}
	if err := g.Run(ctx, true, true); err != nil {
		t.Error(err)
	}
}

// What befalls a QP comes as an event, which names it and the reason.
func TestEvents(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	r := b.mr.Remote()
	r.RKey ^= 1
	if err := a.qp.PostSend(&driver.SendWR{Opcode: driver.Write, Remote: r, SGEs: []driver.SGE{a.mr.SGE(0, 1)}}); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := b.d.NextEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == driver.EventQPAccessErr {
			if e.Object != b.qp.Number() || e.Reason != driver.ReasonKeyTag {
				t.Errorf("%v, want of QP %#x by its tag", e, b.qp.Number())
			}
			break
		}
	}
	_, err := b.d.NextEvent(short(t))
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrTimeout) {
		t.Errorf("no more events: %v", err)
	}
}
