package softcard

import (
	"slices"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// qpState is what the data path keeps: the QPs, and who of them waits for what.
type qpState struct {
	table  qpTable
	live   []*qp     // all of them
	bells  []bell    // the doorbells that are watched
	bell   int       // the next one to look at
	ready  readyList // those with a turn coming
	timers timerHeap // those that wait for a time
	rates  []rateLimit

	pkt     roce.Packet       // the frame being received
	hdr     roce.Header       // of the frame being built: what differs from frame to frame
	wqes    []*wqe            // free places for WQEs
	recvs   []*recvWQE        // and for receives
	promise *link             // of room for the answer to it
	walk    walk              // the gather or scatter under way
	again   wqe               // a WQE fetched again for a response
	wire    [1]gather.Segment // what a READ's response is gathered from
	scratch [1 << maxRecvLogStride]byte
	result  [atomicSize]byte
}

// qpTable finds a QP by its number, in leaves of 256 numbers.
type qpTable []*[256]*qp

func (t qpTable) find(qpn uint32) *qp {
	if leaf := qpn >> 8; leaf < uint32(len(t)) && t[leaf] != nil {
		return t[leaf][qpn&0xff]
	}
	return nil
}

// put enters q, or nil, which has a number of at most 24 bits.
func (t *qpTable) put(qpn uint32, q *qp) {
	leaf := int(qpn >> 8)
	if leaf >= len(*t) {
		*t = append(*t, make([]*[256]*qp, leaf+1-len(*t))...)
	}
	if (*t)[leaf] == nil {
		(*t)[leaf] = new([256]*qp)
	}
	(*t)[leaf][qpn&0xff] = q
}

// qp is a queue pair: its context, and the state of its requester and responder.
type qp struct {
	// What every packet needs stands side by side, in groups of the caches' lines of 64 bytes: of
	// a thousand QPs it is all that the caches can hold.
	flow        roce.Flow // what its frames have in common
	number, mtu uint32

	sqMask, rqMask uint32 // ring sizes - 1
	sqSeen, rqSeen uint32 // producer indices as they were last looked at
	sendCQ, recvCQ *cq
	peer           uint64 // MAC of the next hop (macNumber)

	// Schedule.
	next      *qp
	deficit   int
	queued    bool // in the list
	woken     bool // since its last turn began
	requested bool // its last turn was a request's

	gone       bool // destroyed; lists that still hold it drop it
	hostListed bool // among those that wait for a staging slot
	estDone    bool // COMM_EST was sent
	drainAsked bool // SQ_DRAINED is owed

	// Timers: card time in ns, 0: not running.
	ackAt, rnrAt, gateAt, hostAt int64

	heapAt    int64
	heapIndex int // place in the heap + 1

	answers answerQueue
	pkey    uint16
	bell    int // place in the table of bells + 1

	errReason  hw.Reason
	errSegment uint8
	errKey     uint32

	unread     bool   // the send ring could not be read to flush it,
	unreadFrom uint32 // from this block on

	host hostPacket

	stats hw.QPStats
	ctx   hw.QPContext // the attributes; the QUERY fields are filled in by context
	send  requester
	recv  responder
	path  roce.Header // what flow was made of
}

const (
	firstQPN         = 2 // 0 and 1 are for management (InfiniBand specification, volume 1, section 3.9)
	maxRecvLogStride = 10
	minRecvLogStride = 5
	ringAlign        = 4096
	mask24           = 1<<24 - 1
)

// dataCapabilities are what the data path can do.
const dataCapabilities = hw.CapabilityRC | hw.CapabilityAtomics | hw.CapabilityRateLimit | hw.CapabilityRetransmit

func (c *Card) initQPs() {
	c.qps = qpState{rates: make([]rateLimit, c.lim.RateLimits)}
	c.qps.walk.c = c
}

// resetQPs forgets every QP and rate limit.
func (c *Card) resetQPs() {
	for _, q := range c.qps.live {
		q.gone = true
	}
	c.qps.table = nil
	clear(c.qps.live)
	clear(c.qps.bells)
	clear(c.qps.rates)
	c.qps.live, c.qps.bells, c.qps.ready = c.qps.live[:0], c.qps.bells[:0], readyList{}
	c.qps.timers.clear()
}

// createQP is CREATE_QP.
func (c *Card) createQP(cmd *command) result {
	var in hw.QPContext
	if r := c.mailbox(cmd, in.AsBytes()); r != ok {
		return r
	}
	qpn := cmd.Object
	if qpn < firstQPN || qpn > mask24 {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	}
	if c.qps.table.find(qpn) != nil {
		return bad(hw.CommandStatusInUse, hw.CommandSyndromeNone)
	}
	if len(c.qps.live) >= int(c.lim.QPs) {
		return bad(hw.CommandStatusNoResource, hw.CommandSyndromeNone)
	}
	if !in.ReservedZero() || !in.AV.ReservedZero() {
		return bad(hw.CommandStatusReservedNotZero, hw.CommandSyndromeNone)
	}
	switch in.Type {
	case hw.QPTypeRC:
	case hw.QPTypeUC, hw.QPTypeUD:
		return bad(hw.CommandStatusUnsupported, hw.CommandSyndromeQPType)
	default:
		return param(hw.CommandSyndromeQPType)
	}
	if in.SRQValid != 0 {
		return bad(hw.CommandStatusUnsupported, hw.CommandSyndromeSRQN)
	}
	if in.State != hw.QPStateReset {
		return param(hw.CommandSyndromeTransition)
	}
	sendCQ, recvCQ := c.findCQ(in.SendCQN), c.findCQ(in.RecvCQN)
	if sendCQ == nil || recvCQ == nil {
		return param(hw.CommandSyndromeCQN)
	}
	if s := c.checkRings(&in); s != hw.CommandSyndromeNone {
		return param(s)
	}
	if !c.claimQPDoorbells(&in, qpn) {
		return param(hw.CommandSyndromeDoorbell)
	}
	q := &qp{number: qpn, sendCQ: sendCQ, recvCQ: recvCQ}
	q.ctx = hw.QPContext{
		Type: in.Type, PD: in.PD, SendCQN: in.SendCQN, RecvCQN: in.RecvCQN,
		SQIOVA: in.SQIOVA, RQIOVA: in.RQIOVA, SQLogBlocks: in.SQLogBlocks, RQLogEntries: in.RQLogEntries, RQLogStride: in.RQLogStride,
		SignalAll: in.SignalAll, MaxSendSegments: in.MaxSendSegments, MaxRecvSegments: in.MaxRecvSegments, MaxInline: in.MaxInline,
		SQDoorbell: in.SQDoorbell, RQDoorbell: in.RQDoorbell,
	}
	q.sqMask, q.rqMask = 1<<in.SQLogBlocks-1, 1<<in.RQLogEntries-1
	q.send.ops = make([]sendOp, firstOps)
	q.reset()
	sendCQ.users++
	recvCQ.users++
	c.qps.table.put(qpn, q)
	c.qps.live = append(c.qps.live, q)
	return ok
}

// checkRings looks at the sizes and places of a QP's rings.
func (c *Card) checkRings(in *hw.QPContext) hw.CommandSyndrome {
	if in.SQLogBlocks > 31 || 1<<in.SQLogBlocks < hw.SQMinBlocks || uint32(in.SQLogBlocks) > c.lim.SQLogBlocks || uint32(in.RQLogEntries) > c.lim.RQLogEntries ||
		in.RQLogStride < minRecvLogStride || in.RQLogStride > maxRecvLogStride || in.SignalAll > 1 {
		return hw.CommandSyndromeRingSize
	}
	if in.SQIOVA%ringAlign != 0 || in.RQIOVA%ringAlign != 0 ||
		wraps(in.SQIOVA, hw.WQEBlock<<in.SQLogBlocks) || wraps(in.RQIOVA, 1<<(in.RQLogEntries+in.RQLogStride)) {
		return hw.CommandSyndromeRingAlign
	}
	if uint32(in.MaxSendSegments) > c.lim.SendSegments || uint32(in.MaxRecvSegments) > c.lim.RecvSegments || uint32(in.MaxInline) > c.lim.Inline ||
		(int(in.MaxRecvSegments)+1)*hw.WQESegment > 1<<in.RQLogStride {
		return hw.CommandSyndromeSegments
	}
	return hw.CommandSyndromeNone
}

// claimQPDoorbells takes the page of both doorbell words for the QP.
func (c *Card) claimQPDoorbells(in *hw.QPContext, qpn uint32) bool {
	by := dbOwner{ownerQP, qpn}
	if in.SQDoorbell == in.RQDoorbell || in.SQDoorbell/c.mem.stride != in.RQDoorbell/c.mem.stride || !c.claimDoorbell(in.SQDoorbell, 4, by) {
		return false
	}
	if !c.claimDoorbell(in.RQDoorbell, 4, by) {
		c.releaseDoorbell(in.SQDoorbell)
		return false
	}
	return true
}

// reset brings the QP to state RESET: nothing in flight, both rings from index
// 0 on, attributes back at zero.
func (q *qp) reset() {
	k := &q.ctx
	k.State, k.MTU, k.Access, k.PKeyIndex, k.DestQPN = hw.QPStateReset, 0, 0, 0, 0
	k.SQPSN, k.RQPSN, k.Timeout, k.RetryCnt, k.RNRRetry, k.MinRNRTimer = 0, 0, 0, 0, 0, 0
	k.MaxRDAtomic, k.MaxDestRDAtomic, k.RateIndex, k.AV = 0, 0, 0, hw.AddressVector{}
	q.sqSeen, q.rqSeen = 0, 0
	q.send = requester{ops: q.send.ops, sinkSegs: q.send.sinkSegs[:0]}
	q.recv = responder{saved: q.recv.saved[:0]}
	q.answers.clear()
	q.stopTimers()
	q.estDone, q.drainAsked = false, false
	q.errReason, q.errSegment, q.errKey = 0, hw.NoSegment, 0
	q.unread, q.unreadFrom = false, 0
}

// destroyQP is DESTROY_QP. A Step leaves no DMA under way, so the answer can be
// given at once.
func (c *Card) destroyQP(cmd *command) result {
	q := c.qps.table.find(cmd.Object)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	}
	q.gone = true
	c.dropHost(q)
	q.stopTimers()
	c.watch(q)
	c.qps.table.put(q.number, nil)
	i := slices.Index(c.qps.live, q)
	last := len(c.qps.live) - 1
	c.qps.live[i], c.qps.live[last] = c.qps.live[last], nil
	c.qps.live = c.qps.live[:last]
	q.sendCQ.users--
	q.recvCQ.users--
	c.releaseDoorbell(q.ctx.SQDoorbell)
	return ok
}

// queryQP is QUERY_QP.
func (c *Card) queryQP(cmd *command) result {
	q := c.qps.table.find(cmd.Object)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	}
	out := q.context()
	if r := c.answerAt(cmd, 0, out.AsBytes()); r != ok {
		return r
	}
	stats := q.stats
	return c.answerAt(cmd, hw.QPContextSize, stats.AsBytes())
}

// context is the QP's context with the QUERY fields filled in.
func (q *qp) context() hw.QPContext {
	out := q.ctx
	out.CurState = q.ctx.State
	out.SQPSN, out.RQPSN = q.send.max, q.recv.psn
	out.SQProducer, out.SQConsumer = q.sqSeen, q.send.consumer()
	out.RQProducer, out.RQConsumer = q.rqSeen, q.recv.head
	out.LastAckedPSN, out.MSN = q.send.una, q.recv.msn
	out.ErrorReason, out.ErrorSegment, out.ErrorKey = q.errReason, q.errSegment, q.errKey
	if q.gateAt != 0 {
		out.Held = 1
	}
	if q.unread {
		out.SQUnread, out.SQUnreadFrom = 1, q.unreadFrom
	}
	return out
}

// eachQPN calls f with the QPNs in use, ascending.
func (c *Card) eachQPN(f func(uint32)) {
	all := make([]uint32, 0, len(c.qps.live))
	for _, q := range c.qps.live {
		all = append(all, q.number)
	}
	slices.Sort(all)
	for _, n := range all {
		f(n)
	}
}

// cqFailed brings the QPs of a CQ that overflowed to ERR.
func (c *Card) cqFailed(cq *cq) {
	for _, q := range c.qps.live {
		if q.sendCQ == cq || q.recvCQ == cq {
			c.qpError(q, hw.ReasonCQOverflow)
		}
	}
}

// who is the QP as one that asks for a translation.
func (q *qp) who(a hw.Access) gather.Who { return gather.Who{PD: q.ctx.PD, QPN: q.number, Access: a} }
