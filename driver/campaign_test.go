package driver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
	"rnic/hw"
	"rnic/hw/softcard"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

// scale is the size of a campaign that has a suite of the gate to itself: that of the acceptance
// list with RNIC_FULL=1, else the gate's; under the race detector, where it runs besides, a tenth of that.
func scale(whole, gate int) int {
	switch {
	case underRace:
		return gate / 10
	case full:
		return whole
	}
	return gate
}

var limitedCards sync.Map // by what follows the scheme

func init() {
	vfio.Register("limited", func(ctx context.Context, rest string) (vfio.Device, error) {
		c, ok := limitedCards.Load(rest)
		if !ok {
			return nil, &vfio.Error{Addr: "limited:" + rest, Op: "open", Err: vfio.ErrNotFound}
		}
		client, server, err := vfiouser.Pair()
		if err != nil {
			return nil, err
		}
		go func() {
			_ = vfiouser.Serve(context.Background(), server, c.(*softcard.Card), vfiouser.WithDMATimeout(time.Minute))
		}()
		return vfiouser.Client(ctx, client, "limited:"+rest)
	})
}

// limited makes two cards of those limits on a wire, with a worker. DMA by message waits for as long as a
// busy machine may stop this process.
func limited(t testing.TB, lim softcard.Limits) (addrs [2]string) {
	t.Helper()
	w, err := softcard.NewWire(512)
	if err != nil {
		t.Fatal(err)
	}
	r := softcard.NewRunner()
	t.Cleanup(r.Close)
	for i := range addrs {
		name := fmt.Sprintf("%s-%d", t.Name(), i)
		c, err := softcard.New(softcard.Config{Name: fmt.Sprintf("limited%d", i), Engine: hw.EngineGo, Limits: lim})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Join(c); err != nil {
			t.Fatal(err)
		}
		r.Add(c)
		limitedCards.Store(name, c)
		t.Cleanup(func() { limitedCards.Delete(name); r.Remove(c) })
		addrs[i] = "limited:" + name
	}
	return addrs
}

// campaign is two verified cards under a random load.
type campaign struct {
	t    *testing.T
	ctx  context.Context
	devs [2]*driver.Device
	pds  [2]*driver.PD
	stop atomic.Bool
	bad  atomic.Pointer[error]
}

func (c *campaign) fail(err error) bool {
	if err != nil {
		c.bad.CompareAndSwap(nil, &err)
		c.stop.Store(true)
	}
	return err != nil
}

const (
	campaignBatch = 8        // requests at a time of each side of a lane
	campaignSlot  = 24 << 10 // bytes that each may bring
	campaignSrc   = 64 << 10
	campaignWhole = 40_000 // packets from which on it must have had everything
)

// laneEnd is one side of a lane: what it sends from, and where it lets others place. What
// is read for sending is written by nobody while it may be read.
type laneEnd struct {
	dev  *driver.Device
	pd   *driver.PD
	cq   *driver.CQ
	qp   *driver.QP
	src  *driver.MR
	read *driver.MR // what the peer READs: under one key, since a request for it may still be about, doubled, when it is done
	sink *driver.MR // slots: of the peer's requests, then of the own READs and atomics
	hits *driver.MR // what the peer's atomics count in
}

// lane is a connected pair of queue pairs of its own path MTU, and its load.
type lane struct {
	c    *campaign
	rnd  *rand.Rand
	mtu  int
	ends [2]*laneEnd
	ops  *[16]atomic.Uint64 // requests by opcode
}

func (c *campaign) newLane(seed uint64, mtu driver.MTU, ops *[16]atomic.Uint64) *lane {
	t := c.t
	t.Helper()
	l := &lane{c: c, rnd: rand.New(rand.NewPCG(seed, 77)), mtu: mtu.Bytes(), ops: ops}
	for i := range l.ends {
		e := &laneEnd{dev: c.devs[i], pd: c.pds[i]}
		var err, err2, err3, err4 error
		e.sink, err = e.pd.AllocMR(c.ctx, 2*campaignBatch*campaignSlot, driver.LocalWrite|driver.RemoteWrite)
		e.hits, err2 = e.pd.AllocMR(c.ctx, 4096, driver.LocalWrite|driver.RemoteAtomic)
		e.read, err4 = e.pd.AllocMR(c.ctx, campaignSrc, driver.RemoteRead)
		e.cq, err3 = e.dev.CreateCQ(c.ctx, 256)
		if err := errors.Join(err, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		randomize(e.read, l.rnd)
		init := smallQP
		init.SendCQ, init.RecvCQ = e.cq, e.cq
		if e.qp, err = e.pd.CreateQP(c.ctx, init); err != nil {
			t.Fatal(err)
		}
		l.ends[i] = e
	}
	for i, e := range l.ends {
		far := l.ends[1-i].qp.Endpoint()
		for _, step := range []struct {
			a driver.QPAttr
			m driver.QPAttrMask
		}{
			{driver.QPAttr{State: driver.StateRTR, PathMTU: mtu, DestQPN: far.QPN, RQPSN: far.PSN, MinRNRTimer: 16, MaxDestRDAtomic: 4, AV: driver.AddressVector{DGID: far.GID, DMAC: far.MAC}},
				driver.AttrState | driver.AttrAV | driver.AttrPathMTU | driver.AttrDestQPN | driver.AttrRQPSN | driver.AttrMaxDestRDAtomic | driver.AttrMinRNRTimer},
			{driver.QPAttr{State: driver.StateRTS, SQPSN: e.qp.Endpoint().PSN, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 4},
				driver.AttrState | driver.AttrSQPSN | driver.AttrTimeout | driver.AttrRetryCnt | driver.AttrRNRRetry | driver.AttrMaxRDAtomic},
		} {
			if err := e.qp.Modify(c.ctx, step.a, step.m); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.register(e); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// register gives an end another source, under another key.
func (l *lane) register(e *laneEnd) error {
	if e.src != nil {
		if err := e.src.Dereg(l.c.ctx); err != nil {
			return err
		}
	}
	m, err := e.pd.AllocMR(l.c.ctx, campaignSrc, 0)
	if err != nil {
		return err
	}
	randomize(m, l.rnd)
	e.src = m
	return nil
}

func randomize(m *driver.MR, rnd *rand.Rand) {
	for b := m.Bytes(); len(b) > 0; b = b[8:] {
		binary.LittleEndian.PutUint64(b, rnd.Uint64())
	}
}

// arrival is what a request is to bring about.
type arrival struct {
	at, want []byte
}

// length is a message's: none, one byte, around packet boundaries, up to five packets.
func (l *lane) length() int {
	n := 0
	switch l.rnd.IntN(6) {
	case 0:
		n = l.rnd.IntN(2)
	case 1:
		n = l.mtu*(1+l.rnd.IntN(3)) + l.rnd.IntN(3) - 1
	default:
		n = l.rnd.IntN(5 * l.mtu)
	}
	return min(n, campaignSlot)
}

// batch is up to so many requests of end i: the requests, the receives that they need at
// the far end, and what arrives.
func (l *lane) batch(i int) (wrs []driver.SendWR, recvs []driver.RecvWR, come []arrival) {
	e, far := l.ends[i], l.ends[1-i]
	rnd := l.rnd
	for n := range 1 + rnd.IntN(campaignBatch) {
		wr := driver.SendWR{WRID: uint64(n), Flags: driver.SendFlags(rnd.IntN(2)) * driver.Signaled, Imm: rnd.Uint32()}
		wr.Opcode = []driver.Opcode{
			driver.Send, driver.SendImm, driver.Write, driver.WriteImm, driver.Send, driver.SendImm, driver.Write, driver.WriteImm, driver.Read, driver.Read,
			driver.FetchAdd, driver.CompareSwap,
		}[rnd.IntN(12)]
		l.ops[wr.Opcode].Add(1)
		if rnd.IntN(8) == 0 {
			wr.Flags |= driver.Fence
		}
		slot, own := n*campaignSlot, (campaignBatch+n)*campaignSlot
		size := l.length()
		switch wr.Opcode {
		case driver.Read:
			off := rnd.IntN(campaignSrc - size + 1)
			wr.Remote = far.read.Remote().At(uint64(off))
			for left := size; left > 0; { // scattered into pieces
				k := min(left, 1+rnd.IntN(campaignSlot))
				wr.SGEs = append(wr.SGEs, e.sink.SGE(own+size-left, k))
				left -= k
			}
			come = append(come, arrival{e.sink.Bytes()[own:][:size], far.read.Bytes()[off:][:size]})
		case driver.FetchAdd, driver.CompareSwap:
			wr.Remote = far.hits.Remote().At(uint64(8 * rnd.IntN(512)))
			wr.CompareAdd, wr.Swap = rnd.Uint64(), rnd.Uint64()
			wr.SGEs = []driver.SGE{e.sink.SGE(own, 8)}
		default:
			var want []byte
			if rnd.IntN(5) == 0 {
				b := make([]byte, min(size, e.qp.Caps().MaxInline))
				for j := range b {
					b[j] = byte(rnd.Uint32())
				}
				cut := rnd.IntN(len(b) + 1)
				wr.Inline, want = [][]byte{b[:cut], b[cut:]}, b
			} else {
				want = make([]byte, 0, size)
				segments := 1 + rnd.IntN(1+rnd.IntN(63))
				for s := segments; s > 0; s-- {
					k := size - len(want)
					if s > 1 {
						k = rnd.IntN(2*k/s + 1) // some are empty
					}
					off := rnd.IntN(campaignSrc - k + 1)
					wr.SGEs = append(wr.SGEs, e.src.SGE(off, k))
					want = append(want, e.src.Bytes()[off:][:k]...)
				}
			}
			if wr.Opcode == driver.Write || wr.Opcode == driver.WriteImm {
				wr.Remote = far.sink.Remote().At(uint64(slot))
			}
			if wr.Opcode != driver.Write {
				recvs = append(recvs, driver.RecvWR{SGEs: []driver.SGE{far.sink.SGE(slot, campaignSlot)}})
			}
			come = append(come, arrival{far.sink.Bytes()[slot:][:len(want)], want})
		}
		wrs = append(wrs, wr)
	}
	wrs[len(wrs)-1].Flags |= driver.Signaled
	return wrs, recvs, come
}

// round posts a batch at each end, and waits until both are done.
func (l *lane) round() error {
	rnd, ctx := l.rnd, l.c.ctx
	if rnd.IntN(10) == 0 { // now and then another rate, or none
		q := l.ends[rnd.IntN(2)].qp
		rate := uint64(rnd.IntN(2)) * uint64(5_000_000+rnd.IntN(100_000_000))
		if err := q.SetRate(ctx, rate, uint32(4300+rnd.IntN(50_000))); err != nil {
			return err
		}
	}
	var expect [2]int // completions
	var come []arrival
	for _, e := range l.ends {
		if rnd.IntN(8) == 0 {
			if err := l.register(e); err != nil {
				return err
			}
		}
		clear(e.sink.Bytes())
	}
	for i, e := range l.ends {
		wrs, recvs, arrivals := l.batch(i)
		far := l.ends[1-i]
		late := rnd.IntN(30) == 0 // receives that come too late have the request sent again
		if !late {
			if _, err := far.qp.PostRecvBatch(recvs); err != nil {
				return err
			}
		}
		if _, err := e.qp.PostSendBatch(wrs); err != nil {
			return err
		}
		if late {
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Microsecond)
			if _, err := far.qp.PostRecvBatch(recvs); err != nil {
				return err
			}
		}
		for j := range wrs {
			if wrs[j].Flags&driver.Signaled != 0 {
				expect[i]++
			}
		}
		expect[1-i] += len(recvs)
		come = append(come, arrivals...)
	}
	var wcs [32]driver.WC
	for i, e := range l.ends {
		for expect[i] > 0 {
			n, err := e.cq.Wait(ctx, wcs[:])
			if err != nil {
				return err
			}
			for j := range n {
				if err := wcs[j].Err(); err != nil {
					if m := e.qp.VerifyError(); m != nil {
						return fmt.Errorf("false alarm: %w", m)
					}
					return fmt.Errorf("%w; %s", err, l.causes())
				}
			}
			expect[i] -= n
		}
	}
	for _, a := range come {
		if !bytes.Equal(a.at, a.want) {
			return fmt.Errorf("path MTU %d: a message of %d bytes arrived changed", l.mtu, len(a.want))
		}
	}
	return nil
}

// causes says why the queue pairs of a lane are in error.
func (l *lane) causes() (s string) {
	for _, e := range l.ends {
		a, err := e.qp.Query(l.c.ctx)
		s += fmt.Sprintf("QP %#x: %v, %v, %v. ", e.qp.Number(), a.State, a.ErrorReason, err)
	}
	return s
}

// trouble loses, doubles, delays and damages frames at a card's port now and then.
func (c *campaign) trouble(side int, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 78))
	card, err := drivertest.On(c.devs[side])
	if err != nil {
		return err
	}
	for !c.stop.Load() {
		time.Sleep(time.Duration(20+rnd.IntN(40)) * time.Millisecond)
		p, err := card.HoldPort(c.ctx)
		if err != nil {
			return err
		}
		for range 100 {
			if n, err := p.Len(); err != nil || n > 8 {
				break
			}
		}
		n, err := p.Len()
		if err != nil {
			return err
		}
		for range min(n, 1+rnd.IntN(3)) {
			i := rnd.IntN(n)
			switch rnd.IntN(4) {
			case 0:
				err = p.Duplicate(i)
				n++
			case 1:
				err = p.Corrupt(i, uint16(rnd.IntN(60)), 1<<rnd.IntN(8))
			case 2:
				err = p.Deliver(i)
			default:
				err = p.Drop(i)
			}
			n--
			if err != nil {
				return err
			}
		}
		if err := p.Release(); err != nil {
			return err
		}
	}
	return nil
}

// churn registers and deregisters regions that nobody uses, so that keys are used again.
func (c *campaign) churn(side int, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 79))
	for !c.stop.Load() {
		m, err := c.pds[side].AllocMR(c.ctx, 1+rnd.IntN(1<<14), driver.LocalWrite)
		if err != nil {
			return err
		}
		if err := m.Dereg(c.ctx); err != nil {
			return err
		}
		time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
	}
	return nil
}

// packets are those that were walked again on both sides.
func (c *campaign) packets() (s driver.VerifyStats) {
	for _, d := range c.devs {
		v := d.Verification()
		s.Packets, s.Mismatches, s.Lost, s.Skipped = s.Packets+v.Packets, s.Mismatches+v.Mismatches, s.Lost+v.Lost, s.Skipped+v.Skipped
	}
	return s
}

// TestG21_VerifyCampaign: correct packets of all operations, path MTUs and lengths, on several
// queue pairs at once, with losses, retransmissions, rate limits, receives that come late,
// and keys that come, go and are used again, whoever gathers: not one false alarm. A million
// of them with RNIC_FULL=1.
func TestG21_VerifyCampaign(t *testing.T) {
	for _, who := range []struct {
		name    string
		opts    []driver.Option
		packets int
	}{
		{"card", nil, scale(1_000_000, 50_000)},
		{"host", []driver.Option{driver.WithGather(driver.Host)}, scale(200_000, 10_000)},
	} {
		t.Run(who.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
			defer cancel()
			c := &campaign{t: t, ctx: ctx}
			dir := filepath.Join(t.TempDir(), "bundles")
			for i, addr := range limited(t, softcard.Limits{KeyIndexBits: 7, CacheSets: 4, CacheWays: 2}) {
				c.devs[i] = open(t, addr, append(who.opts, driver.WithVerify(driver.Always), driver.WithVerifyDir(dir))...)
				var err error
				if c.pds[i], err = c.devs[i].AllocPD(ctx); err != nil {
					t.Fatal(err)
				}
			}
			var ops [16]atomic.Uint64
			var lanes []*lane
			for i := range 10 {
				lanes = append(lanes, c.newLane(uint64(i), driver.MTU(1+i%5), &ops))
			}
			var all sync.WaitGroup
			for _, l := range lanes {
				all.Go(func() {
					for !c.stop.Load() {
						if c.fail(l.round()) {
							return
						}
						if c.packets().Packets >= uint64(who.packets) {
							c.stop.Store(true)
						}
					}
				})
			}
			for side := range c.devs {
				all.Go(func() { c.fail(c.trouble(side, uint64(side))) })
				all.Go(func() { c.fail(c.churn(side, uint64(side))) })
			}
			all.Wait()
			if err := c.bad.Load(); err != nil {
				t.Fatal(*err)
			}
			s := c.packets()
			if s.Mismatches != 0 || s.Lost == 0 && s.Skipped != 0 || s.Packets < uint64(who.packets) {
				t.Errorf("%+v", s)
			}
			for _, op := range []driver.Opcode{driver.Send, driver.SendImm, driver.Write, driver.WriteImm, driver.Read, driver.FetchAdd, driver.CompareSwap} {
				if ops[op].Load() == 0 {
					t.Errorf("no %v was posted", op)
				}
			}
			for _, d := range c.devs {
				for _, name := range []string{"RETRANSMITS", "RX_DROP_ICRC", "RNR_NAKS_SENT", "GATE_HOLDS", "KEY_CACHE_EVICTIONS"} {
					if counter(t, d, name) == 0 && who.packets >= campaignWhole {
						t.Errorf("%s: %s is 0: the campaign had none", d.Addr(), name)
					}
				}
				if n := counter(t, d, "GATHERS_MULTI"); (n == 0) != (who.opts != nil) {
					t.Errorf("%s: %d gathers from several segments by the card's engine", d.Addr(), n)
				}
			}
			t.Logf("%+v; %d keys fenced, %d packets sent again, %d turns held by the gate", s, counter(t, c.devs[0], "KEY_FENCES"), counter(t, c.devs[0], "RETRANSMITS"),
				counter(t, c.devs[0], "GATE_HOLDS"))
		})
	}
}
