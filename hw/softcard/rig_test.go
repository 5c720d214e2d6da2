package softcard

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/hw/roce"
	"rnic/vfio/vfiouser"
)

// flatHost is a client's memory as plainly as it can be: one block, and IOVAs are
// its offsets plus base.
type flatHost struct {
	base     uint64
	mem      []byte
	next     uint64 // allocator
	fail     func(iova uint64, n int, write bool) bool
	onRead   func(iova uint64, p []byte) // after the copy was made
	triggers map[int]int
}

var errFlat = errors.New("refused")

func newFlatHost(size int) *flatHost {
	return &flatHost{base: 0x10_0000_0000, mem: make([]byte, size), triggers: map[int]int{}}
}

func (h *flatHost) at(iova uint64, n int, write bool) ([]byte, error) {
	off := iova - h.base
	if iova < h.base || off > uint64(len(h.mem)) || uint64(n) > uint64(len(h.mem))-off || h.fail != nil && h.fail(iova, n, write) {
		return nil, errFlat
	}
	return h.mem[off : off+uint64(n)], nil
}

func (h *flatHost) Enter() {}
func (h *flatHost) Exit()  {}
func (h *flatHost) Read(iova uint64, p []byte) error {
	b, err := h.at(iova, len(p), false)
	if err != nil {
		return err
	}
	copy(p, b)
	if h.onRead != nil {
		h.onRead(iova, p)
	}
	return nil
}
func (h *flatHost) Write(iova uint64, p []byte) error {
	b, err := h.at(iova, len(p), true)
	if err != nil {
		return err
	}
	copy(b, p)
	return nil
}
func (h *flatHost) WriteOwned(iova uint64, p []byte) error {
	b, err := h.at(iova, len(p), true)
	if err != nil {
		return err
	}
	copy(b, p)
	return nil
}
func (h *flatHost) Slice(uint64, uint64, bool) []byte { return nil }
func (h *flatHost) SetBusMaster(bool)                 {}
func (h *flatHost) Trigger(_, vector int)             { h.triggers[vector]++ }
func (h *flatHost) RequestRelease()                   {}
func (h *flatHost) Stats() vfiouser.DMAStats          { return vfiouser.DMAStats{} }

// alloc gives n bytes on pages of their own.
func (h *flatHost) alloc(tb testing.TB, n int) (iova uint64, b []byte) {
	tb.Helper()
	off := (h.next + 4095) &^ 4095
	if h.next = off + uint64(n); h.next > uint64(len(h.mem)) {
		tb.Fatalf("test host: out of its %d bytes", len(h.mem))
	}
	return h.base + off, h.mem[off:h.next:h.next]
}

// node is a card, its client, and what the client made on it.
type node struct {
	tb   testing.TB
	card *Card
	host *flatHost
	page uint32 // next doorbell page
	eq   *tEQ
	cqs  uint32
}

type nodeConfig struct {
	name   string
	mac    [6]byte
	ip     string
	limits Limits
	memory int
	clock  func() int64
}

// testEngine is the engine of the tests' cards; with the build tag rtl it is that one.
var testEngine = hw.EngineGo

func newNode(tb testing.TB, k nodeConfig) *node {
	tb.Helper()
	cfg := Config{Name: k.name, MAC: k.mac, Engine: testEngine, Limits: k.limits, Clock: k.clock}
	if k.ip != "" {
		cfg.IPs = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(k.ip), 24)}
	}
	c, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	if k.memory == 0 {
		k.memory = 8 << 20
	}
	n := &node{tb: tb, card: c, host: newFlatHost(k.memory), page: 1}
	c.Attach(n.host)
	c.Step(k.clock(), 1)
	n.eq = n.newEQ()
	return n
}

// command has the card execute a command, with in and out as its mailboxes.
func (n *node) command(op hw.Command, object, modifier uint32, in []byte, out int) (result, []byte) {
	n.tb.Helper()
	keep := n.host.next
	inIOVA, b := n.host.alloc(n.tb, len(in))
	copy(b, in)
	outIOVA, answer := n.host.alloc(n.tb, out)
	n.host.next = keep
	cmd := command{CommandEntry: hw.CommandEntry{Opcode: op, Object: object, Modifier: modifier, InIOVA: inIOVA, InLength: uint32(len(in)), OutIOVA: outIOVA, OutLength: uint32(out)}}
	r := n.card.execute(&cmd)
	return r, answer[:cmd.outLen]
}

// must is command, which has to succeed.
func (n *node) must(op hw.Command, object, modifier uint32, in []byte) {
	n.tb.Helper()
	if r, _ := n.command(op, object, modifier, in, 0); r != ok {
		n.tb.Fatalf("%v %#x: %v %v", op, object, r.status, r.syndrome)
	}
}

// doorbell is a place in a doorbell page of its own, coloured by its number.
func (n *node) doorbell() uint32 {
	off := n.page*n.card.mem.stride + n.page%32*128
	n.page++
	return off
}

func (n *node) ring(off, v uint32) { mmio.Store32(n.card.mem.word(off), v) }

// tEQ is an event queue of the client.
type tEQ struct {
	n        *node
	iova     uint64
	mem      []byte
	doorbell uint32
	log      uint8
	ci       uint32
}

func (n *node) newEQ() *tEQ {
	q := &tEQ{n: n, log: 8, doorbell: n.doorbell()}
	q.iova, q.mem = n.host.alloc(n.tb, hw.EQESize<<q.log)
	x := hw.EQContext{IOVA: q.iova, Doorbell: q.doorbell, LogEntries: q.log, Async: 1}
	n.must(hw.CommandCreateEQ, 0, 0, x.AsBytes())
	return q
}

// poll takes the next event, if there is one.
func (q *tEQ) poll() (e hw.EQE, ok bool) {
	copy(e.AsBytes(), q.mem[q.ci%(1<<q.log)*hw.EQESize:])
	if e.Phase() != (q.ci>>q.log&1 == 0) {
		return e, false
	}
	q.ci++
	q.n.ring(q.doorbell, q.ci)
	return e, true
}

// tCQ is a completion queue of the client.
type tCQ struct {
	n        *node
	number   uint32
	iova     uint64
	mem      []byte
	doorbell uint32
	log      uint8
	ci       uint32
}

func (n *node) newCQ(log uint8) *tCQ {
	q := &tCQ{n: n, number: n.cqs, log: log, doorbell: n.doorbell()}
	n.cqs++
	q.iova, q.mem = n.host.alloc(n.tb, hw.CQESize<<log)
	x := hw.CQContext{IOVA: q.iova, Doorbell: q.doorbell, LogEntries: log}
	n.must(hw.CommandCreateCQ, q.number, 0, x.AsBytes())
	return q
}

func (q *tCQ) poll() (e hw.CQE, ok bool) {
	copy(e.AsBytes(), q.mem[q.ci%(1<<q.log)*hw.CQESize:])
	if e.Phase() != (q.ci>>q.log&1 == 0) {
		return e, false
	}
	q.ci++
	q.n.ring(q.doorbell+hw.CQDoorbellCI, q.ci)
	return e, true
}

// all takes every completion that is there.
func (q *tCQ) all() (es []hw.CQE) {
	for e, ok := q.poll(); ok; e, ok = q.poll() {
		es = append(es, e)
	}
	return es
}

// tMR is memory of the client with a key.
type tMR struct {
	base uint64
	key  uint32
	iova uint64
	mem  []byte
}

const testPD = 7

// sge names a part of the region.
func (m *tMR) sge(off, n uint32) hw.DataSegment {
	return hw.DataSegment{Addr: m.base + uint64(off), Length: n, LKey: m.key}
}

const allAccess = hw.AccessLocalWrite | hw.AccessRemoteWrite | hw.AccessRemoteRead | hw.AccessRemoteAtomic

func (n *node) newMR(base uint64, size int, key uint32, access hw.Access) *tMR {
	m := &tMR{base: base, key: key}
	m.iova, m.mem = n.host.alloc(n.tb, size)
	n.writeKey(m, testPD, access, hw.KeyStateValid)
	return m
}

func (n *node) writeKey(m *tMR, pd uint32, access hw.Access, state hw.KeyState) {
	n.tb.Helper()
	e := hw.KeyEntry{Base: m.base, Length: uint64(len(m.mem)), IOVA: m.iova, PD: pd}
	e.SetTag(uint8(m.key))
	e.SetState(state)
	e.SetAccess(access)
	n.must(hw.CommandWriteKey, m.key>>8, 0, e.AsBytes())
	n.must(hw.CommandFenceKey, m.key>>8, 0, nil)
}

// tQP is a queue pair of the client: its rings, built by hand.
type tQP struct {
	n              *node
	number         uint32
	ctx            hw.QPContext
	sq, rq         []byte
	sqPI, rqPI     uint32 // as the client counts
	sendCQ, recvCQ *tCQ
}

type qpConfig struct {
	number         uint32
	sendCQ, recvCQ *tCQ
	sqLog, rqLog   uint8 // 0: 8 and 8
	segments       uint8 // 0: 63
	signalAll      bool
}

func (n *node) newQP(k qpConfig) *tQP {
	n.tb.Helper()
	if k.sqLog == 0 {
		k.sqLog = 8
	}
	if k.rqLog == 0 {
		k.rqLog = 8
	}
	if k.segments == 0 {
		k.segments = hw.MaxSegments
	}
	if k.sendCQ == nil {
		k.sendCQ = n.newCQ(10)
	}
	if k.recvCQ == nil {
		k.recvCQ = n.newCQ(10)
	}
	q := &tQP{n: n, number: k.number, sendCQ: k.sendCQ, recvCQ: k.recvCQ}
	db := n.doorbell()
	q.ctx = hw.QPContext{
		Type: hw.QPTypeRC, PD: testPD, SendCQN: k.sendCQ.number, RecvCQN: k.recvCQ.number,
		SQLogBlocks: k.sqLog, RQLogEntries: k.rqLog, RQLogStride: 10, MaxSendSegments: k.segments, MaxRecvSegments: k.segments, MaxInline: 960,
		SQDoorbell: db, RQDoorbell: db + 64,
	}
	if k.signalAll {
		q.ctx.SignalAll = 1
	}
	q.ctx.SQIOVA, q.sq = n.host.alloc(n.tb, hw.WQEBlock<<k.sqLog)
	q.ctx.RQIOVA, q.rq = n.host.alloc(n.tb, 1024<<k.rqLog)
	n.must(hw.CommandCreateQP, k.number, 0, q.ctx.AsBytes())
	return q
}

// linkAttrs are the attributes of a connection, the same on both sides.
type linkAttrs struct {
	mtu                         hw.MTU
	access                      hw.Access
	timeout, retry, rnr, minRNR uint8
	rdAtomic, destRDAtomic      uint8
	flowLabel                   uint32
	trafficClass                uint8
	rateIndex                   uint16
}

func defaultLink() linkAttrs {
	return linkAttrs{mtu: hw.MTU4096, access: allAccess, timeout: 18, retry: 7, rnr: 7, minRNR: 12, rdAtomic: 16, destRDAtomic: 16}
}

const (
	toInit = hw.QPAttrState | hw.QPAttrPKeyIndex | hw.QPAttrAccess
	toRTR  = hw.QPAttrState | hw.QPAttrAV | hw.QPAttrPathMTU | hw.QPAttrDestQPN | hw.QPAttrRQPSN | hw.QPAttrMaxDestRDAtomic | hw.QPAttrMinRNRTimer
	toRTS  = hw.QPAttrState | hw.QPAttrTimeout | hw.QPAttrRetryCnt | hw.QPAttrRNRRetry | hw.QPAttrSQPSN | hw.QPAttrMaxQPRDAtomic
)

func (q *tQP) modify(mask hw.QPAttr, x hw.QPContext) {
	q.n.tb.Helper()
	q.n.must(hw.CommandModifyQP, q.number, uint32(mask), x.AsBytes())
}

// toward is the context with which q is connected to peer.
func (q *tQP) toward(peer *tQP, k linkAttrs, sqPSN, rqPSN uint32) hw.QPContext {
	gid, _ := peer.n.card.net.gid(0)
	return hw.QPContext{
		Access: k.access, MTU: k.mtu, DestQPN: peer.number, SQPSN: sqPSN, RQPSN: rqPSN,
		Timeout: k.timeout, RetryCnt: k.retry, RNRRetry: k.rnr, MinRNRTimer: k.minRNR, MaxRDAtomic: k.rdAtomic, MaxDestRDAtomic: k.destRDAtomic,
		AV:        hw.AddressVector{DGID: gid, DMAC: peer.n.card.net.ctx.MAC, FlowLabel: k.flowLabel, TrafficClass: k.trafficClass},
		RateIndex: k.rateIndex,
	}
}

// connect brings two QPs to RTS.
func connect(a, b *tQP, k linkAttrs, aPSN, bPSN uint32) {
	for _, x := range []struct {
		q  *tQP
		to hw.QPContext
	}{{a, a.toward(b, k, aPSN, bPSN)}, {b, b.toward(a, k, bPSN, aPSN)}} {
		x.to.State = hw.QPStateInit
		x.q.modify(toInit, x.to)
		x.to.State = hw.QPStateRTR
		x.q.modify(toRTR, x.to)
		x.to.State = hw.QPStateRTS
		mask := toRTS
		if k.rateIndex != 0 {
			mask |= hw.QPAttrRateLimit
		}
		x.q.modify(mask, x.to)
	}
}

func (q *tQP) query() (x hw.QPContext, s hw.QPStats) {
	q.n.tb.Helper()
	r, out := q.n.command(hw.CommandQueryQP, q.number, 0, nil, hw.QPContextSize+hw.QPStatsSize)
	if r != ok || len(out) != hw.QPContextSize+hw.QPStatsSize {
		q.n.tb.Fatalf("QUERY_QP: %v, %d bytes", r, len(out))
	}
	copy(x.AsBytes(), out)
	copy(s.AsBytes(), out[hw.QPContextSize:])
	return x, s
}

func (q *tQP) state() hw.QPState { x, _ := q.query(); return x.State }

// tWR is a send work request as a test writes it.
type tWR struct {
	op       hw.Opcode
	flags    hw.WQEFlag
	imm      uint32
	remote   uint64
	rkey     uint32
	swapAdd  uint64
	compare  uint64
	sges     []hw.DataSegment
	inline   []byte
	isInline bool
}

// wqe is the work request's bytes, for the ring's block index.
func (w *tWR) wqe(index uint32) []byte {
	ctl := hw.ControlSegment{Opcode: w.op, Flags: w.flags, Imm: w.imm, Index: index}
	b := make([]byte, hw.WQESegment)
	if w.op != hw.OpcodeSend && w.op != hw.OpcodeSendWithImm {
		b = append(b, (&hw.RemoteSegment{Addr: w.remote, RKey: w.rkey}).AsBytes()...)
	}
	if w.op == hw.OpcodeAtomicCmpAndSwp || w.op == hw.OpcodeAtomicFetchAndAdd {
		b = append(b, (&hw.AtomicSegment{SwapAdd: w.swapAdd, Compare: w.compare}).AsBytes()...)
	}
	if w.isInline {
		ctl.Flags |= hw.WQEFlagInline
		ctl.InlineLength = uint16(len(w.inline))
		b = append(b, w.inline...)
		b = append(b, make([]byte, -len(b)&15)...)
	}
	for i := range w.sges {
		b = append(b, w.sges[i].AsBytes()...)
	}
	ctl.Segments = uint8(len(b) / hw.WQESegment)
	copy(b, ctl.AsBytes())
	return append(b, make([]byte, -len(b)&63)...)
}

// put writes a WQE at the producer index, without the doorbell, and returns its
// index.
func (q *tQP) put(b []byte) uint32 {
	index := q.sqPI
	for len(b) > 0 {
		copy(q.sq[q.sqPI*hw.WQEBlock%uint32(len(q.sq)):], b[:hw.WQEBlock])
		b = b[hw.WQEBlock:]
		q.sqPI++
	}
	return index
}

func (q *tQP) ringSQ() { q.n.ring(q.ctx.SQDoorbell, q.sqPI) }

// post posts a work request and gives its index.
func (q *tQP) post(w tWR) uint32 {
	index := q.put(w.wqe(q.sqPI))
	q.ringSQ()
	return index
}

// recv posts a receive.
func (q *tQP) recv(sges ...hw.DataSegment) uint32 {
	index := q.rqPI
	ctl := hw.RecvControl{Segments: uint8(len(sges)), Index: index}
	b := append([]byte{}, ctl.AsBytes()...)
	for i := range sges {
		b = append(b, sges[i].AsBytes()...)
	}
	copy(q.rq[index<<q.ctx.RQLogStride%uint32(len(q.rq)):], b)
	q.rqPI++
	q.n.ring(q.ctx.RQDoorbell, q.rqPI)
	return index
}

// pair is two nodes on a wire, with a clock that the test moves.
type pair struct {
	tb   testing.TB
	now  int64
	a, b *node

	// onWire, if set, is called once with each frame on the wire, in the order of
	// its direction ("A>B", "B>A"), before the receiver sees it. It may change it.
	onWire func(dir string, f *frame)
	tapped [2]uint64 // sequence numbers from which on it was not called yet
}

func newPair(tb testing.TB, slots int) *pair { return newPairOf(tb, slots, Limits{}, 0) }

func newPairOf(tb testing.TB, slots int, lim Limits, memory int) *pair {
	p := &pair{tb: tb, now: 1}
	clock := func() int64 { return p.now }
	p.a = newNode(tb, nodeConfig{name: "a", mac: [6]byte{0x52, 0x54, 0, 0, 0, 0x0a}, ip: "10.0.0.1", limits: lim, memory: memory, clock: clock})
	p.b = newNode(tb, nodeConfig{name: "b", mac: [6]byte{0x52, 0x54, 0, 0, 0, 0x0b}, ip: "10.0.0.2", limits: lim, memory: memory, clock: clock})
	p.join(slots)
	return p
}

func (p *pair) join(slots int) {
	w, err := NewWire(slots)
	if err != nil {
		p.tb.Fatal(err)
	}
	for _, n := range []*node{p.a, p.b} {
		if err := w.Join(n.card); err != nil {
			p.tb.Fatal(err)
		}
	}
}

// run steps the cards in turns, each until it finds nothing to do, until both do.
// Time stands.
func (p *pair) run() {
	p.tb.Helper()
	for range 100_000 {
		worked := false
		for i, n := range []*node{p.a, p.b} {
			for steps := 0; n.card.Step(p.now, 64); steps++ {
				worked = true
				if steps == 100_000 {
					p.tb.Fatal("a card does not come to rest")
				}
			}
			p.tap(i, n)
		}
		if !worked {
			return
		}
	}
	p.tb.Fatal("the cards do not come to rest")
}

// tap shows the frames that node i put on the wire to onWire.
func (p *pair) tap(i int, n *node) {
	if p.onWire == nil {
		return
	}
	l := n.card.port.links.Load().out[1]
	var batch []*frame
	for lane := range l.lanes {
		for k := l.lanes[lane].head.Load(); k != l.lanes[lane].tail.Load(); k++ {
			f := l.lanes[lane].slot(k)
			if f.seq < p.tapped[i] {
				continue
			}
			at := len(batch)
			for at > 0 && batch[at-1].seq > f.seq {
				at--
			}
			batch = append(batch[:at], append([]*frame{f}, batch[at:]...)...)
		}
	}
	p.tapped[i] = l.seq
	for _, f := range batch {
		p.onWire([]string{"A>B", "B>A"}[i], f)
	}
}

// spoil makes a frame one that the receiver drops for its ICRC: it is lost.
func spoil(f *frame) { f.buf[f.end-1] ^= 0xff }

// record keeps a copy of the frames of each direction.
func (p *pair) record() map[string][][]byte {
	sent := map[string][][]byte{}
	p.onWire = func(dir string, f *frame) { sent[dir] = append(sent[dir], append([]byte{}, f.bytes()...)) }
	return sent
}

// parsed is a frame as a roce.Packet.
func parsed(tb testing.TB, b []byte) *roce.Packet {
	tb.Helper()
	p := &roce.Packet{}
	if err := roce.Parse(b, p); err != nil {
		tb.Fatal(err)
	}
	return p
}

// tick moves the clock to the next timer, and runs. false: there is no timer.
func (p *pair) tick() bool {
	p.tb.Helper()
	next := min(p.a.card.nextTimer(), p.b.card.nextTimer())
	if next == noTimer {
		return false
	}
	p.now = max(p.now, next)
	p.run()
	return true
}

// connected makes a QP on each side, of the same number, and connects them.
func (p *pair) connected(number uint32, k linkAttrs) (a, b *tQP) {
	p.tb.Helper()
	a, b = p.a.newQP(qpConfig{number: number}), p.b.newQP(qpConfig{number: number})
	connect(a, b, k, 1000, 2000)
	return a, b
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed + 7*i + 13*(i>>8))
	}
}

var be = binary.BigEndian
