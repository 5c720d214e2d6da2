package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

// end is one of two soft cards on a wire, with what a test needs on it.
type end struct {
	d   *driver.Device
	pd  *driver.PD
	mr  *driver.MR
	cq  *driver.CQ
	qps []*driver.QP
}

// ends says what both are made with.
type ends struct {
	memory, entries, qps int
	init                 driver.QPInit
	options              []driver.Option // of the first
}

var wires atomic.Uint32

// newPair opens two cards that one worker steps, and connects their queue pairs.
func newPair(ctx context.Context, o ends) (a, b *end, err error) {
	wire := fmt.Sprintf("bench-%d", wires.Add(1))
	if a, err = newEnd(ctx, "soft:"+wire+"-a?wire="+wire, o, o.options...); err != nil {
		return nil, nil, err
	}
	if b, err = newEnd(ctx, "soft:"+wire+"-b?wire="+wire, o); err != nil {
		return nil, nil, errors.Join(err, a.d.Close())
	}
	return a, b, connect(ctx, a, b)
}

// connect connects the queue pairs of both ends, or closes the ends.
func connect(ctx context.Context, a, b *end) error {
	var err error
	for i := range a.qps {
		if err = a.qps[i].Connect(ctx, b.qps[i].Endpoint()); err == nil {
			err = b.qps[i].Connect(ctx, a.qps[i].Endpoint())
		}
		if err != nil {
			return errors.Join(err, closePair(a, b))
		}
	}
	return nil
}

func closePair(a, b *end) error { return errors.Join(a.d.Close(), b.d.Close()) }

func newEnd(ctx context.Context, addr string, o ends, options ...driver.Option) (e *end, err error) {
	e = &end{}
	if e.d, err = driver.Open(ctx, addr, append(options, driver.WithStatusSocket(""))...); err != nil {
		return nil, err
	}
	if e.pd, err = e.d.AllocPD(ctx); err == nil {
		e.mr, err = e.pd.AllocMR(ctx, o.memory, driver.LocalWrite|driver.RemoteWrite)
	}
	if err == nil {
		e.cq, err = e.d.CreateCQ(ctx, o.entries)
	}
	o.init.Type, o.init.SendCQ, o.init.RecvCQ = driver.RC, e.cq, e.cq
	for i := 0; i < o.qps && err == nil; i++ {
		var q *driver.QP
		q, err = e.pd.CreateQP(ctx, o.init, driver.WithQPN(firstQPN+uint32(i)))
		e.qps = append(e.qps, q)
	}
	if err != nil {
		return nil, errors.Join(err, e.d.Close())
	}
	return e, nil
}

// firstQPN is the number of an end's first queue pair; the others follow it.
const firstQPN = 16

// poll polls a CQ, looks for failures, and waits a little where there is nothing.
type poller struct {
	wc   [64]driver.WC
	idle int
}

func (p *poller) poll(c *driver.CQ) (int, error) {
	n, err := c.Poll(p.wc[:])
	if err != nil {
		return 0, err
	}
	for i := range p.wc[:n] {
		if p.wc[i].Status != driver.StatusSuccess {
			return 0, p.wc[i].Err()
		}
	}
	return n, nil
}

// rest is called after a turn in which nothing was there: as CQ.Wait does, it looks 64 times and then yields.
func (p *poller) rest() {
	if p.idle++; p.idle >= 64 {
		runtime.Gosched()
	}
}

// best is the least time of so many runs of f, which gives the time of one.
func best(ctx context.Context, times int, f func() (time.Duration, error)) (least time.Duration, err error) {
	for i := range times {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		t, err := f()
		if err != nil {
			return 0, err
		}
		if i == 0 || t < least {
			least = t
		}
	}
	return least, nil
}

const writeSize = 64 << 10

// writes sends total RDMA WRITEs of 64 KiB, one after the other through the whole of both regions, 16 in flight.
func (a *end) writes(b *end, total int) (time.Duration, error) {
	const depth = 16
	slots := a.mr.Len() / writeSize
	var p poller
	wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{{}}}
	start := time.Now()
	for posted, done := 0, 0; done < total; {
		for ; posted < total && posted-done < depth; posted++ {
			off := posted % slots * writeSize
			wr.SGEs[0] = a.mr.SGE(off, writeSize)
			wr.Remote = b.mr.Remote()
			wr.Remote.Addr += uint64(off)
			if err := a.qps[0].PostSend(&wr); err != nil {
				return 0, err
			}
		}
		n, err := p.poll(a.cq)
		if err != nil {
			return 0, err
		}
		if done += n; n == 0 {
			p.rest()
		} else {
			p.idle = 0
		}
	}
	return time.Since(start), nil
}

// copies is the same bytes copied into a packet's buffer, their CRC there, once for each side, and
// copied out again: what a soft card cannot do without.
func copies(dst, src []byte, total int) time.Duration {
	const mtu = 4096
	var frame [mtu]byte
	start := time.Now()
	for n := range total {
		off := n * writeSize % len(src)
		for end := off + writeSize; off < end; off += mtu {
			copy(frame[:], src[off:off+mtu])
			sent := crc32.ChecksumIEEE(frame[:])
			if received := crc32.ChecksumIEEE(frame[:]); received != sent {
				panic("a CRC is not the same twice")
			}
			copy(dst[off:off+mtu], frame[:])
		}
	}
	return time.Since(start)
}

func measureWrite(ctx context.Context, b *bench) error {
	gbps := func(n int, t time.Duration) float64 { return float64(n) * writeSize / float64(t) }
	for _, set := range []struct{ mib, total int }{{2, b.atScale(2048, 64)}, {32, b.atScale(2048, 64)}} {
		x, y, err := newPair(ctx, ends{memory: set.mib << 20, entries: 64, qps: 1, init: driver.QPInit{MaxSendWR: 16, MaxSendSGE: 1}})
		if err != nil {
			return err
		}
		var plain time.Duration
		cards, err := best(ctx, b.times(), func() (time.Duration, error) {
			if t := copies(y.mr.Bytes(), x.mr.Bytes(), set.total); plain == 0 || t < plain {
				plain = t
			}
			return x.writes(y, set.total)
		})
		if err = errors.Join(err, closePair(x, y)); err != nil {
			return err
		}
		got, ref := gbps(set.total, cards), gbps(set.total, plain)
		beside := absolute{"copy + CRC + CRC + copy on one core", ref, "GB/s"}
		if set.mib == 2 {
			b.add("write64k", "two soft cards, 64 KiB RDMA WRITE, 2 MiB at each side", "GB/s", more, 3, 5, got, "")
			b.add("write64k-copies", "same, of copy + CRC + CRC + copy on one core", "ratio", more, 0.3, 0.45, got/ref, "", beside)
		} else {
			b.add("write64k-32m", "same, 32 MiB at each side", "GB/s", more, none, none, got, "", beside, absolute{"of it", got / ref, "ratio"})
		}
	}
	return nil
}

// stream is 64-byte SENDs from one end to the other, through all queue pairs in turn.
type stream struct {
	a, b     *end
	depth    int // in flight
	batch    int // a doorbell
	sends    []driver.SendWR
	recvs    []driver.RecvWR
	received []int // by queue pair, not posted again
	p        poller
}

const sendSize = 64

func newStream(a, b *end, depth, batch int) (*stream, error) {
	s := &stream{a: a, b: b, depth: depth, batch: batch, received: make([]int, len(a.qps))}
	for i := range batch {
		s.sends = append(s.sends, driver.SendWR{Opcode: driver.Send, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(i*sendSize, sendSize)}})
		s.recvs = append(s.recvs, driver.RecvWR{SGEs: []driver.SGE{b.mr.SGE(i*sendSize, sendSize)}})
	}
	for _, q := range b.qps {
		for range q.Caps().MaxRecvWR / batch {
			if _, err := q.PostRecvBatch(s.recvs); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// run sends total messages, a multiple of the batch, and waits until all are there.
func (s *stream) run(total int) (time.Duration, error) {
	start := time.Now()
	for posted, done, got, at := 0, 0, 0, 0; done < total || got < total; {
		for ; posted < total && posted-done <= s.depth-s.batch && posted-got <= s.depth-s.batch; posted += s.batch {
			if n, err := s.a.qps[at].PostSendBatch(s.sends); n != s.batch {
				return 0, err
			}
			if at++; at == len(s.a.qps) {
				at = 0
			}
		}
		n, err := s.p.poll(s.a.cq)
		if err != nil {
			return 0, err
		}
		done += n
		m, err := s.p.poll(s.b.cq)
		if err != nil {
			return 0, err
		}
		got += m
		for i := range s.p.wc[:m] {
			k := s.p.wc[i].QPN - firstQPN
			if s.received[k]++; s.received[k] == s.batch {
				s.received[k] = 0
				if _, err := s.b.qps[k].PostRecvBatch(s.recvs); err != nil {
					return 0, err
				}
			}
		}
		if n+m == 0 {
			s.p.rest()
		} else {
			s.p.idle = 0
		}
	}
	return time.Since(start), nil
}

// sendEnds is what a stream's ends are made with.
func sendEnds(qps, wrs int) ends {
	return ends{memory: 64 << 10, entries: 8192, qps: qps, init: driver.QPInit{MaxSendWR: wrs, MaxRecvWR: wrs, MaxSendSGE: 1, MaxRecvSGE: 1}}
}

// sendPair makes a stream over so many queue pairs.
func sendPair(ctx context.Context, qps, wrs, depth, batch int) (*stream, func() error, error) {
	a, b, err := newPair(ctx, sendEnds(qps, wrs))
	if err != nil {
		return nil, nil, err
	}
	end := func() error { return closePair(a, b) }
	s, err := newStream(a, b, depth, batch)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return s, end, nil
}

func measureSend(ctx context.Context, b *bench) error {
	s, end, err := sendPair(ctx, 1, 256, 256, 32)
	if err != nil {
		return err
	}
	total := b.atScale(1<<17, 1<<10)
	t, err := best(ctx, b.times(), func() (time.Duration, error) { return s.run(total) })
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	b.add("send64", "two soft cards, 64-byte SEND, 256 in flight", "M/s", more, 1, 2, float64(total)*1e3/float64(t), "")
	return nil
}

// measureRoundTrip sends 8 bytes there and back, one at a time. One goroutine drives both ends; both
// cards are on one worker.
func measureRoundTrip(ctx context.Context, b *bench) error {
	x, y, err := newPair(ctx, ends{memory: 4096, entries: 64, qps: 1, init: driver.QPInit{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return err
	}
	p50, p99 := time.Hour, time.Hour
	trips := make([]time.Duration, b.atScale(20_000, 200))
	for range b.times() {
		if err = roundTrips(ctx, x, y, trips); err != nil {
			break
		}
		slices.Sort(trips)
		p50, p99 = min(p50, trips[len(trips)/2]), min(p99, trips[len(trips)*99/100])
	}
	if err = errors.Join(err, closePair(x, y)); err != nil {
		return err
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	b.add("rtt-p50", "8-byte SEND, round trip, both cards on one worker, p50", "µs", less, 4, 1.5, us(p50), "")
	b.add("rtt-p99", "same, p99", "µs", less, 15, 6, us(p99), "")
	return nil
}

func roundTrips(ctx context.Context, x, y *end, trips []time.Duration) error {
	both := [2]*end{x, y}
	var sends [2]driver.SendWR
	var recvs [2]driver.RecvWR
	for i, e := range both {
		sends[i] = driver.SendWR{Opcode: driver.Send, SGEs: []driver.SGE{e.mr.SGE(0, 8)}}
		recvs[i] = driver.RecvWR{SGEs: []driver.SGE{e.mr.SGE(64, 8)}}
	}
	var p poller
	for t := range trips {
		if t%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		for i, e := range both {
			if err := e.qps[0].PostRecv(&recvs[i]); err != nil {
				return err
			}
		}
		if t%8 == 0 { // a completion now and then gives the ring's room back
			sends[0].Flags, sends[1].Flags = driver.Signaled, driver.Signaled
		} else {
			sends[0].Flags, sends[1].Flags = 0, 0
		}
		start := time.Now()
		for i := range both {
			if err := both[i].qps[0].PostSend(&sends[i]); err != nil {
				return err
			}
			for got := false; !got; {
				n, err := p.poll(both[1-i].cq)
				if err != nil {
					return err
				}
				for k := range p.wc[:n] {
					got = got || p.wc[k].Flags&driver.WCRecv != 0
				}
				if !got {
					p.rest()
				}
			}
			p.idle = 0
		}
		trips[t] = time.Since(start)
	}
	return nil
}

// measureQPs sends the same messages through 1,000 queue pairs in turn and through one. A
// message has its own doorbell in both: the worst that 1,000 can do to the caches.
func measureQPs(ctx context.Context, b *bench) error {
	type load struct {
		qps, wrs, batch int
		*stream
		end  func() error
		best time.Duration
	}
	const depth = 512
	many := b.atScale(1000, 50)
	loads := []*load{{qps: 1, wrs: depth, batch: 1}, {qps: many, wrs: 16, batch: 1}, {qps: 1, wrs: depth, batch: 16}, {qps: many, wrs: 16, batch: 16}}
	total := b.atScale(64_000, 800)
	var err error
	for _, l := range loads {
		if l.stream, l.end, err = sendPair(ctx, l.qps, l.wrs, depth, l.batch); err != nil {
			break
		}
	}
	for range b.times() {
		for _, l := range loads {
			var t time.Duration
			if err == nil {
				t, err = l.run(total)
			}
			if l.best == 0 || t < l.best {
				l.best = t
			}
		}
	}
	for _, l := range loads {
		if l.end != nil {
			err = errors.Join(err, l.end())
		}
	}
	if err != nil {
		return err
	}
	rate := func(l *load) float64 { return float64(total) * 1e3 / float64(l.best) }
	b.add("qps", fmt.Sprintf("%d QPs against 1 QP, 64-byte SENDs a second", many), "ratio", more, 0.8, 0.95, rate(loads[1])/rate(loads[0]), "",
		absolute{"1 QP", rate(loads[0]), "M/s"}, absolute{"many", rate(loads[1]), "M/s"},
		absolute{"16 a doorbell: 1 QP", rate(loads[2]), "M/s"}, absolute{"many", rate(loads[3]), "M/s"}, absolute{"of it", rate(loads[3]) / rate(loads[2]), "ratio"})
	return nil
}
