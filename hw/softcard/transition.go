package softcard

import (
	"rnic/hw"
	"rnic/hw/roce"
)

// The transitions of an RC QP with the attributes that each requires and those
// that it allows besides: InfiniBand specification, volume 1, section 11.2.5.2
// (Modify Queue Pair), and ib_modify_qp_is_ok of Linux
// (drivers/infiniband/core/verbs.c, qp_state_table), without the attributes that
// the contract does not have (port, alternate path, migration). RATE_LIMIT is
// ours: it is allowed wherever the QP is or becomes able to send, or will be.

type transition struct{ from, to hw.QPState }

type attrMask struct{ required, optional hw.QPAttr }

const attrsOfRTS = hw.QPAttrCurState | hw.QPAttrAccess | hw.QPAttrMinRNRTimer | hw.QPAttrRateLimit

var transitions = map[transition]attrMask{
	{hw.QPStateReset, hw.QPStateReset}: {},
	{hw.QPStateReset, hw.QPStateInit}:  {required: hw.QPAttrPKeyIndex | hw.QPAttrAccess},
	{hw.QPStateReset, hw.QPStateErr}:   {},

	{hw.QPStateInit, hw.QPStateReset}: {},
	{hw.QPStateInit, hw.QPStateErr}:   {},
	{hw.QPStateInit, hw.QPStateInit}:  {optional: hw.QPAttrPKeyIndex | hw.QPAttrAccess},
	{hw.QPStateInit, hw.QPStateRTR}: {
		required: hw.QPAttrAV | hw.QPAttrPathMTU | hw.QPAttrDestQPN | hw.QPAttrRQPSN | hw.QPAttrMaxDestRDAtomic | hw.QPAttrMinRNRTimer,
		optional: hw.QPAttrPKeyIndex | hw.QPAttrAccess | hw.QPAttrRateLimit,
	},

	{hw.QPStateRTR, hw.QPStateReset}: {},
	{hw.QPStateRTR, hw.QPStateErr}:   {},
	{hw.QPStateRTR, hw.QPStateRTS}: {
		required: hw.QPAttrTimeout | hw.QPAttrRetryCnt | hw.QPAttrRNRRetry | hw.QPAttrSQPSN | hw.QPAttrMaxQPRDAtomic,
		optional: attrsOfRTS,
	},

	{hw.QPStateRTS, hw.QPStateReset}: {},
	{hw.QPStateRTS, hw.QPStateErr}:   {},
	{hw.QPStateRTS, hw.QPStateRTS}:   {optional: attrsOfRTS},
	{hw.QPStateRTS, hw.QPStateSQD}:   {},

	{hw.QPStateSQD, hw.QPStateReset}: {},
	{hw.QPStateSQD, hw.QPStateErr}:   {},
	{hw.QPStateSQD, hw.QPStateRTS}:   {optional: attrsOfRTS},
	{hw.QPStateSQD, hw.QPStateSQD}: {
		optional: hw.QPAttrAV | hw.QPAttrTimeout | hw.QPAttrRetryCnt | hw.QPAttrRNRRetry | hw.QPAttrMaxQPRDAtomic | hw.QPAttrMaxDestRDAtomic |
			hw.QPAttrPKeyIndex | hw.QPAttrAccess | hw.QPAttrMinRNRTimer | hw.QPAttrRateLimit,
	},

	{hw.QPStateErr, hw.QPStateReset}: {},
	{hw.QPStateErr, hw.QPStateErr}:   {},
}

// checkTransition decides whether mask may take a QP from one state to the
// next: OK, TRANSITION or ATTR_MASK.
func checkTransition(from, to hw.QPState, mask hw.QPAttr) hw.CommandSyndrome {
	m, ok := transitions[transition{from, to}]
	if !ok {
		return hw.CommandSyndromeTransition
	}
	if mask&m.required != m.required || mask&^(m.required|m.optional|hw.QPAttrState) != 0 {
		return hw.CommandSyndromeAttrMask
	}
	return hw.CommandSyndromeNone
}

// modifyQP is MODIFY_QP: all of it, or nothing.
func (c *Card) modifyQP(cmd *command) result {
	var ctx hw.QPContext
	if r := c.mailbox(cmd, ctx.AsBytes()); r != ok {
		return r
	}
	q, in, mask := c.qps.table.find(cmd.Object), &ctx, hw.QPAttr(cmd.Modifier)
	if q == nil {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	}
	from := q.ctx.State
	to := from
	if mask&hw.QPAttrState != 0 {
		to = in.State
	}
	if s := checkTransition(from, to, mask); s == hw.CommandSyndromeTransition {
		return bad(hw.CommandStatusBadState, s)
	} else if s != hw.CommandSyndromeNone {
		return param(s)
	}
	if mask&hw.QPAttrCurState != 0 && in.CurState != from {
		return bad(hw.CommandStatusBadState, hw.CommandSyndromeTransition)
	}
	if !in.ReservedZero() || mask&hw.QPAttrAV != 0 && !in.AV.ReservedZero() {
		return bad(hw.CommandStatusReservedNotZero, hw.CommandSyndromeNone)
	}
	if s := c.checkAttrs(q, mask, in); s != hw.CommandSyndromeNone {
		return param(s)
	}
	q.setAttrs(mask, in)
	if mask&(hw.QPAttrAV|hw.QPAttrPKeyIndex) != 0 || to == hw.QPStateRTR && from == hw.QPStateInit {
		c.setPath(q)
	}
	c.moveTo(q, from, to)
	return ok
}

// checkAttrs looks at the values of the attributes in mask.
func (c *Card) checkAttrs(q *qp, mask hw.QPAttr, in *hw.QPContext) hw.CommandSyndrome {
	has := func(a hw.QPAttr) bool { return mask&a != 0 }
	mtu := q.mtu
	if has(hw.QPAttrPathMTU) {
		if !in.MTU.Valid() || mtuBytes(in.MTU) > mtuBytes(c.net.ctx.ActiveMTU) {
			return hw.CommandSyndromeMTU
		}
		mtu = mtuBytes(in.MTU)
	}
	if has(hw.QPAttrAV) {
		gid, ok := c.net.gid(int(in.AV.SGIDIndex))
		if !ok || in.AV.DGID == [16]byte{} || isV4(gid) != isV4(in.AV.DGID) {
			return hw.CommandSyndromeGID
		}
	}
	if has(hw.QPAttrPKeyIndex) && in.PKeyIndex >= uint16(c.net.ctx.PKeyCount) {
		return hw.CommandSyndromePKey
	}
	if has(hw.QPAttrMaxQPRDAtomic) && uint32(in.MaxRDAtomic) > c.lim.RDAtomic ||
		has(hw.QPAttrMaxDestRDAtomic) && uint32(in.MaxDestRDAtomic) > c.lim.RDAtomic {
		return hw.CommandSyndromeRDAtomic
	}
	rate := q.ctx.RateIndex
	if has(hw.QPAttrRateLimit) {
		rate = in.RateIndex
	}
	if mask&(hw.QPAttrRateLimit|hw.QPAttrPathMTU) != 0 && !c.rateFits(rate, mtu) {
		return hw.CommandSyndromeRate
	}
	if has(hw.QPAttrAccess) && !in.Access.Valid() ||
		has(hw.QPAttrTimeout) && in.Timeout > 31 || has(hw.QPAttrRetryCnt) && in.RetryCnt > 7 || has(hw.QPAttrRNRRetry) && in.RNRRetry > 7 ||
		has(hw.QPAttrMinRNRTimer) && in.MinRNRTimer > 31 ||
		has(hw.QPAttrDestQPN) && in.DestQPN > mask24 || has(hw.QPAttrRQPSN) && in.RQPSN > mask24 || has(hw.QPAttrSQPSN) && in.SQPSN > mask24 {
		return hw.CommandSyndromeAttrMask
	}
	return hw.CommandSyndromeNone
}

// setAttrs takes over the attributes in mask, which were checked.
func (q *qp) setAttrs(mask hw.QPAttr, in *hw.QPContext) {
	k := &q.ctx
	set := func(a hw.QPAttr, f func()) {
		if mask&a != 0 {
			f()
		}
	}
	set(hw.QPAttrAccess, func() { k.Access = in.Access })
	set(hw.QPAttrPKeyIndex, func() { k.PKeyIndex = in.PKeyIndex })
	set(hw.QPAttrAV, func() { k.AV = in.AV })
	set(hw.QPAttrPathMTU, func() { k.MTU, q.mtu = in.MTU, mtuBytes(in.MTU) })
	set(hw.QPAttrTimeout, func() { k.Timeout = in.Timeout })
	set(hw.QPAttrRetryCnt, func() { k.RetryCnt, q.send.retries = in.RetryCnt, in.RetryCnt })
	set(hw.QPAttrRNRRetry, func() { k.RNRRetry, q.send.rnrRetries = in.RNRRetry, in.RNRRetry })
	set(hw.QPAttrRQPSN, func() { k.RQPSN, q.recv.psn = in.RQPSN, in.RQPSN })
	set(hw.QPAttrMaxQPRDAtomic, func() { k.MaxRDAtomic = in.MaxRDAtomic })
	set(hw.QPAttrMaxDestRDAtomic, func() { k.MaxDestRDAtomic = in.MaxDestRDAtomic })
	set(hw.QPAttrMinRNRTimer, func() { k.MinRNRTimer = in.MinRNRTimer })
	set(hw.QPAttrSQPSN, func() { k.SQPSN, q.send.una, q.send.psn, q.send.max = in.SQPSN, in.SQPSN, in.SQPSN, in.SQPSN })
	set(hw.QPAttrDestQPN, func() { k.DestQPN = in.DestQPN })
	set(hw.QPAttrRateLimit, func() { k.RateIndex = in.RateIndex })
}

// moveTo does what a change of state brings with it.
func (c *Card) moveTo(q *qp, from, to hw.QPState) {
	switch to {
	case hw.QPStateReset:
		c.dropHost(q)
		q.reset()
		c.watch(q)
		c.mem.store(q.ctx.SQDoorbell, 0)
		c.mem.store(q.ctx.RQDoorbell, 0)
		return
	case hw.QPStateErr:
		if from == hw.QPStateReset {
			q.ctx.State = hw.QPStateErr
			c.watch(q)
			c.wake(q)
			return
		}
		c.enterError(q, hw.ReasonNone, hw.NoSegment, 0)
		return
	case hw.QPStateSQD:
		q.drainAsked = q.drainAsked || from != hw.QPStateSQD
	}
	q.ctx.State = to
	c.watch(q)
	c.wake(q)
	c.drained(q)
}

// setPath fills in what all frames of the QP have in common.
func (c *Card) setPath(q *qp) {
	av := &q.ctx.AV
	gid, _ := c.net.gid(int(av.SGIDIndex))
	q.pkey = c.net.ctx.PKey[q.ctx.PKeyIndex]
	h := roce.Header{
		DstMAC: av.DMAC, SrcMAC: c.net.ctx.MAC,
		IPv6: !isV4(gid), Src: gid, Dst: av.DGID,
		TrafficClass: av.TrafficClass, HopLimit: av.HopLimit,
		UDPSrcPort: av.UDPSourcePort,
		PKey:       q.pkey, DestQP: q.ctx.DestQPN,
	}
	if h.HopLimit == 0 {
		h.HopLimit = defaultHopLimit
	}
	if h.UDPSrcPort == 0 {
		h.UDPSrcPort = roce.SourcePort(av.FlowLabel, q.number, q.ctx.DestQPN)
	}
	if av.VLANValid() {
		h.VLAN = roce.VLANTag{Valid: true, VID: av.VID(), PCP: av.PCP()}
	}
	q.path, q.peer = h, macNumber(h.DstMAC)
	q.flow.Set(&h)
}

const defaultHopLimit = 64

func mtuBytes(m hw.MTU) uint32 { return 128 << m }

// isV4 reports whether a GID is an IPv4 address's.
func isV4(gid [16]byte) bool {
	return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff}
}
