package softcard

import (
	"strings"
	"testing"

	"rnic/hw"
)

// kernelTable is qp_state_table of Linux v6.1, drivers/infiniband/core/verbs.c, for
// IB_QPT_RC: from, to, required, optional. PORT, ALT_PATH, PATH_MIG_STATE and
// EN_SQD_ASYNC_NOTIFY, which the contract does not have, are left out; RATE_LIMIT,
// which is the contract's own for RC, is added.
const kernelTable = `
RESET RESET - -
RESET INIT PKEY_INDEX,ACCESS -
INIT RESET - -
INIT ERR - -
INIT INIT - PKEY_INDEX,ACCESS
INIT RTR AV,PATH_MTU,DEST_QPN,RQ_PSN,MAX_DEST_RD_ATOMIC,MIN_RNR_TIMER ACCESS,PKEY_INDEX,RATE_LIMIT
RTR RESET - -
RTR ERR - -
RTR RTS TIMEOUT,RETRY_CNT,RNR_RETRY,SQ_PSN,MAX_QP_RD_ATOMIC CUR_STATE,ACCESS,MIN_RNR_TIMER,RATE_LIMIT
RTS RESET - -
RTS ERR - -
RTS RTS - CUR_STATE,ACCESS,MIN_RNR_TIMER,RATE_LIMIT
RTS SQD - -
SQD RESET - -
SQD ERR - -
SQD RTS - CUR_STATE,ACCESS,MIN_RNR_TIMER,RATE_LIMIT
SQD SQD - AV,TIMEOUT,RETRY_CNT,RNR_RETRY,MAX_QP_RD_ATOMIC,MAX_DEST_RD_ATOMIC,ACCESS,PKEY_INDEX,MIN_RNR_TIMER,RATE_LIMIT
ERR RESET - -
ERR ERR - -
RESET ERR - -
`

func allAttrs() (all []hw.QPAttr) {
	for b := range 32 {
		if a := hw.QPAttr(1) << b; a.Valid() && a != hw.QPAttrState {
			all = append(all, a)
		}
	}
	return all
}

func attrsNamed(t *testing.T, s string) (m hw.QPAttr) {
	if s == "-" {
		return 0
	}
	for name := range strings.SplitSeq(s, ",") {
		found := false
		for _, a := range allAttrs() {
			if a.String() == name {
				m |= a
				found = true
			}
		}
		if !found {
			t.Fatalf("no attribute %q", name)
		}
	}
	return m
}

// TestTransitions holds checkTransition to the kernel's table: each pair of states,
// each attribute that is missing, each that is too many.
func TestTransitions(t *testing.T) {
	type pair struct{ from, to string }
	table := map[pair][2]hw.QPAttr{}
	for line := range strings.SplitSeq(strings.TrimSpace(kernelTable), "\n") {
		f := strings.Fields(line)
		table[pair{f[0], f[1]}] = [2]hw.QPAttr{attrsNamed(t, f[2]), attrsNamed(t, f[3])}
	}
	for from := hw.QPStateReset; from <= hw.QPStateErr+1; from++ {
		for to := hw.QPStateReset; to <= hw.QPStateErr+1; to++ {
			m, allowed := table[pair{from.String(), to.String()}]
			if !allowed {
				if s := checkTransition(from, to, 0); s != hw.CommandSyndromeTransition {
					t.Errorf("%v to %v: %v, expected TRANSITION", from, to, s)
				}
				continue
			}
			required, optional := m[0], m[1]
			check := func(mask hw.QPAttr, want hw.CommandSyndrome) {
				t.Helper()
				if s := checkTransition(from, to, mask|hw.QPAttrState); s != want {
					t.Errorf("%v to %v with %v: %v, expected %v", from, to, mask, s, want)
				}
			}
			check(required, hw.CommandSyndromeNone)
			check(required|optional, hw.CommandSyndromeNone)
			for _, a := range allAttrs() {
				switch {
				case required&a != 0:
					check((required|optional)&^a, hw.CommandSyndromeAttrMask)
				case optional&a == 0:
					check(required|a, hw.CommandSyndromeAttrMask)
				}
			}
		}
	}
}

// TestModifyRefusals: values that cannot be, each with its syndrome, and nothing
// changes.
func TestModifyRefusals(t *testing.T) {
	p := newPair(t, 8)
	p.a.card.net.ctx.ActiveMTU = hw.MTU1024
	for _, k := range []struct {
		name string
		bend func(x *hw.QPContext)
		want result
	}{
		{"MTU over the port's", func(x *hw.QPContext) { x.MTU = hw.MTU2048 }, param(hw.CommandSyndromeMTU)},
		{"MTU code 0", func(x *hw.QPContext) { x.MTU = 0 }, param(hw.CommandSyndromeMTU)},
		{"source GID", func(x *hw.QPContext) { x.AV.SGIDIndex = 3 }, param(hw.CommandSyndromeGID)},
		{"source GID out of range", func(x *hw.QPContext) { x.AV.SGIDIndex = 255 }, param(hw.CommandSyndromeGID)},
		{"no destination GID", func(x *hw.QPContext) { x.AV.DGID = [16]byte{} }, param(hw.CommandSyndromeGID)},
		{"IPv6 from IPv4", func(x *hw.QPContext) { x.AV.DGID = [16]byte{0xfd, 15: 1} }, param(hw.CommandSyndromeGID)},
		{"max_dest_rd_atomic", func(x *hw.QPContext) { x.MaxDestRDAtomic = 17 }, param(hw.CommandSyndromeRDAtomic)},
		{"RNR timer", func(x *hw.QPContext) { x.MinRNRTimer = 32 }, param(hw.CommandSyndromeAttrMask)},
		{"destination QPN", func(x *hw.QPContext) { x.DestQPN = 1 << 24 }, bad(hw.CommandStatusReservedNotZero, 0)},
		{"PSN", func(x *hw.QPContext) { x.RQPSN = 1 << 24 }, bad(hw.CommandStatusReservedNotZero, 0)},
		{"reserved", func(x *hw.QPContext) { x.AsBytes()[191] = 1 }, bad(hw.CommandStatusReservedNotZero, 0)},
	} {
		q, far := p.a.newQP(qpConfig{number: uint32(100 + p.a.cqs)}), p.b.newQP(qpConfig{number: uint32(100 + p.a.cqs)})
		link := defaultLink()
		link.mtu = hw.MTU1024
		x := q.toward(far, link, 1, 2)
		x.State = hw.QPStateInit
		q.modify(toInit, x)
		x.State = hw.QPStateRTR
		good := x
		k.bend(&x)
		before, _ := q.query()
		if r, _ := p.a.command(hw.CommandModifyQP, q.number, uint32(toRTR), x.AsBytes(), 0); r != k.want {
			t.Errorf("%s: %v %v, expected %v %v", k.name, r.status, r.syndrome, k.want.status, k.want.syndrome)
		}
		if after, _ := q.query(); after != before {
			t.Errorf("%s: the refused command changed the QP", k.name)
		}
		q.modify(toRTR, good)
	}
	for name, k := range map[string]struct {
		bend func(x *hw.QPContext)
		want hw.CommandSyndrome
	}{
		"timeout": {func(x *hw.QPContext) { x.Timeout = 32 }, hw.CommandSyndromeAttrMask},
		"retries": {func(x *hw.QPContext) { x.RetryCnt = 8 }, hw.CommandSyndromeAttrMask},
		"RNR":     {func(x *hw.QPContext) { x.RNRRetry = 8 }, hw.CommandSyndromeAttrMask},
		"reads":   {func(x *hw.QPContext) { x.MaxRDAtomic = 17 }, hw.CommandSyndromeRDAtomic},
		"rate":    {func(x *hw.QPContext) { x.RateIndex = 1024 }, hw.CommandSyndromeRate},
	} {
		q, far := p.a.newQP(qpConfig{number: uint32(100 + p.a.cqs)}), p.b.newQP(qpConfig{number: uint32(100 + p.a.cqs)})
		link := defaultLink()
		link.mtu = hw.MTU1024
		x := q.toward(far, link, 1, 2)
		x.State = hw.QPStateInit
		q.modify(toInit, x)
		x.State = hw.QPStateRTR
		q.modify(toRTR, x)
		x.State = hw.QPStateRTS
		k.bend(&x)
		if r, _ := p.a.command(hw.CommandModifyQP, q.number, uint32(toRTS|hw.QPAttrRateLimit), x.AsBytes(), 0); r != param(k.want) {
			t.Errorf("%s: %v %v, expected %v", name, r.status, r.syndrome, k.want)
		}
	}
}

// TestCreateRefusals: contexts that cannot be, each with its syndrome.
func TestCreateRefusals(t *testing.T) {
	p := newPair(t, 8)
	q := p.a.newQP(qpConfig{number: 17})
	page := p.a.doorbell()
	for _, k := range []struct {
		name string
		qpn  uint32
		bend func(x *hw.QPContext)
		want result
	}{
		{"number in use", 17, nil, bad(hw.CommandStatusInUse, 0)},
		{"number 1", 1, nil, bad(hw.CommandStatusBadObject, 0)},
		{"number of 25 bits", 1 << 24, nil, bad(hw.CommandStatusBadObject, 0)},
		{"UC", 18, func(x *hw.QPContext) { x.Type = hw.QPTypeUC }, bad(hw.CommandStatusUnsupported, hw.CommandSyndromeQPType)},
		{"type", 18, func(x *hw.QPContext) { x.Type = 9 }, param(hw.CommandSyndromeQPType)},
		{"SRQ", 18, func(x *hw.QPContext) { x.SRQValid = 1 }, bad(hw.CommandStatusUnsupported, hw.CommandSyndromeSRQN)},
		{"state", 18, func(x *hw.QPContext) { x.State = hw.QPStateRTS }, param(hw.CommandSyndromeTransition)},
		{"send CQ", 18, func(x *hw.QPContext) { x.SendCQN = 99 }, param(hw.CommandSyndromeCQN)},
		{"receive CQ", 18, func(x *hw.QPContext) { x.RecvCQN = 1<<24 - 1 }, param(hw.CommandSyndromeCQN)},
		{"small ring", 18, func(x *hw.QPContext) { x.SQLogBlocks = 4 }, param(hw.CommandSyndromeRingSize)},
		{"huge ring", 18, func(x *hw.QPContext) { x.SQLogBlocks = 17 }, param(hw.CommandSyndromeRingSize)},
		{"absurd ring", 18, func(x *hw.QPContext) { x.SQLogBlocks = 255 }, param(hw.CommandSyndromeRingSize)},
		{"absurd receive ring", 18, func(x *hw.QPContext) { x.RQLogEntries = 255 }, param(hw.CommandSyndromeRingSize)},
		{"stride of 16", 18, func(x *hw.QPContext) { x.RQLogStride = 4 }, param(hw.CommandSyndromeRingSize)},
		{"stride of 2048", 18, func(x *hw.QPContext) { x.RQLogStride = 11 }, param(hw.CommandSyndromeRingSize)},
		{"unaligned ring", 18, func(x *hw.QPContext) { x.SQIOVA += 64 }, param(hw.CommandSyndromeRingAlign)},
		{"ring that wraps", 18, func(x *hw.QPContext) { x.RQIOVA = ^uint64(0) &^ 4095 }, param(hw.CommandSyndromeRingAlign)},
		{"64 segments", 18, func(x *hw.QPContext) { x.MaxSendSegments = 64 }, param(hw.CommandSyndromeSegments)},
		{"segments over the stride", 18, func(x *hw.QPContext) { x.RQLogStride = 9 }, param(hw.CommandSyndromeSegments)},
		{"inline", 18, func(x *hw.QPContext) { x.MaxInline = 961 }, param(hw.CommandSyndromeSegments)},
		{"doorbell in page 0", 18, func(x *hw.QPContext) { x.SQDoorbell, x.RQDoorbell = 64, 128 }, param(hw.CommandSyndromeDoorbell)},
		{"unaligned doorbell", 18, func(x *hw.QPContext) { x.SQDoorbell += 2 }, param(hw.CommandSyndromeDoorbell)},
		{"one doorbell for both", 18, func(x *hw.QPContext) { x.RQDoorbell = x.SQDoorbell }, param(hw.CommandSyndromeDoorbell)},
		{"doorbells in two pages", 18, func(x *hw.QPContext) { x.RQDoorbell += p.a.card.mem.stride }, param(hw.CommandSyndromeDoorbell)},
		{"doorbell out of range", 18, func(x *hw.QPContext) { x.SQDoorbell, x.RQDoorbell = 0xfffffff0, 0xfffffff4 }, param(hw.CommandSyndromeDoorbell)},
		{"another queue's doorbell", 18, func(x *hw.QPContext) { x.SQDoorbell, x.RQDoorbell = q.ctx.SQDoorbell+8, q.ctx.SQDoorbell+12 }, param(hw.CommandSyndromeDoorbell)},
		{"reserved", 18, func(x *hw.QPContext) { x.AsBytes()[164] = 1 }, bad(hw.CommandStatusReservedNotZero, 0)},
		{"domain of 25 bits", 18, func(x *hw.QPContext) { x.PD = 1 << 24 }, bad(hw.CommandStatusReservedNotZero, 0)},
	} {
		x := q.ctx
		x.SQDoorbell, x.RQDoorbell = page, page+4
		if k.bend != nil {
			k.bend(&x)
		}
		if r, _ := p.a.command(hw.CommandCreateQP, k.qpn, 0, x.AsBytes(), 0); r != k.want {
			t.Errorf("%s: %v %v, expected %v %v", k.name, r.status, r.syndrome, k.want.status, k.want.syndrome)
		}
	}
	if q.sendCQ.number == q.recvCQ.number || p.a.card.cqs[q.sendCQ.number].users != 1 {
		t.Errorf("%d users of the send CQ", p.a.card.cqs[q.sendCQ.number].users)
	}
	x := q.ctx
	x.SQDoorbell, x.RQDoorbell = page, page+4
	p.a.must(hw.CommandCreateQP, 18, 0, x.AsBytes()) // nothing of the refused ones stayed
	p.a.must(hw.CommandDestroyQP, 18, 0, nil)
	p.a.must(hw.CommandCreateQP, 18, 0, x.AsBytes())
}

// TestResetClearsAQP: after RESET both rings begin at 0 again, and the doorbells say
// nothing.
func TestResetClearsAQP(t *testing.T) {
	p := newTwo(t, defaultLink())
	for range 3 {
		p.send(p.src.sge(0, 5000))
	}
	p.run()
	wantWCs(t, "before", p.a.sendCQ, good(0), good(1), good(2))
	for _, q := range []*tQP{p.a, p.b} {
		q.modify(hw.QPAttrState, hw.QPContext{State: hw.QPStateReset})
		q.sqPI, q.rqPI = 0, 0
		if x, _ := q.query(); x.SQProducer != 0 || x.RQProducer != 0 || x.RQConsumer != 0 || x.State != hw.QPStateReset {
			t.Errorf("after RESET: %+v", x)
		}
	}
	connect(p.a, p.b, defaultLink(), 5, 6)
	p.send(p.src.sge(0, 5000))
	p.run()
	wantWCs(t, "after", p.a.sendCQ, good(0))
}

// TestManyQPsGetTheirTurns: more QPs than a Step's budget are woken with nothing to
// do; the one that has something sends.
func TestManyQPsGetTheirTurns(t *testing.T) {
	p := newPairOf(t, 64, Limits{}, 64<<20)
	dst := p.b.newMR(0x2000_0000, 4096, dstKey, allAccess)
	k, far := qpConfig{sqLog: 5, rqLog: 1, sendCQ: p.a.newCQ(4), recvCQ: p.a.newCQ(4)}, qpConfig{sqLog: 5, rqLog: 1, sendCQ: p.b.newCQ(4), recvCQ: p.b.newCQ(4)}
	var last *tQP
	for i := range uint32(300) {
		k.number, far.number = 100+i, 100+i
		last = p.a.newQP(k)
		connect(last, p.b.newQP(far), defaultLink(), 1, 2)
	}
	last.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: dst.base, rkey: dst.key})
	p.run()
	wantWCs(t, "the last QP", k.sendCQ, good(0))
}
