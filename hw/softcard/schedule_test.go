package softcard

import (
	"testing"

	"rnic/hw"
)

// A port that takes nothing holds back those who send to it and nobody else,
// however many they are: a packet for another port finds its turn.
func TestFullPortHoldsBackNoOther(t *testing.T) {
	p := newPairOf(t, 2, Limits{}, 64<<20) // b takes nothing: it is not stepped
	third := newNode(t, nodeConfig{name: "c", mac: [6]byte{0x52, 0x54, 0, 0, 0, 0x0c}, ip: "10.0.0.3", memory: 16 << 20, clock: func() int64 { return p.now }})
	if err := p.a.card.port.wire.Join(third.card); err != nil {
		t.Fatal(err)
	}
	const stuck = 70 // more than a Step's budget
	src := p.a.newMR(0x1000_0000, 64<<10, srcKey, allAccess)
	dst := p.b.newMR(0x2000_0000, 64<<10, dstKey, allAccess)
	free := third.newMR(0x2000_0000, 64<<10, dstKey, allAccess)
	post := func(q *tQP) {
		q.post(tWR{op: hw.OpcodeRDMAWrite, flags: hw.WQEFlagSignaled, remote: dst.base, rkey: dst.key, sges: []hw.DataSegment{src.sge(0, 40_000)}})
	}
	for i := range uint32(stuck) {
		q, _ := p.connected(17+i, defaultLink())
		post(q)
	}
	q, far := p.a.newQP(qpConfig{number: 1000}), third.newQP(qpConfig{number: 1000})
	connect(q, far, defaultLink(), 1000, 2000)
	fill(src.mem, 1)
	post(q)
	for worked := true; worked; {
		worked = p.a.card.Step(p.now, 64)
		worked = third.card.Step(p.now, 64) || worked
	}
	if e := q.sendCQ.all(); len(e) != 1 || e[0].Status != hw.StatusSuccess || string(free.mem[:40_000]) != string(src.mem[:40_000]) {
		t.Errorf("the WRITE to the port that takes frames: %+v", e)
	}
	if p.a.card.count[cntWireFull] == 0 {
		t.Error("nobody was held back: the test shows nothing")
	}
	p.run() // now b takes them
	for worked := true; worked; {
		worked = p.a.card.Step(p.now, 64)
		worked = p.b.card.Step(p.now, 64) || worked
	}
	if p.a.card.transmitPending() {
		t.Error("packets still wait")
	}
}

// TestDoorbell_OfAnyIsSeenWhileOthersWork: of many QPs one has packets to send all the time, and the card looks
// at a part of the doorbells in a Step; each of the others is seen within bellParts Steps.
func TestDoorbell_OfAnyIsSeenWhileOthersWork(t *testing.T) {
	const many = 300
	p := newPairOf(t, 64, Limits{}, 64<<20)
	src := p.a.newMR(0x1000_0000, 64<<10, srcKey, allAccess)
	dst := p.b.newMR(0x2000_0000, 64<<10, dstKey, allAccess)
	near := qpConfig{sqLog: 5, rqLog: 1, sendCQ: p.a.newCQ(12), recvCQ: p.a.newCQ(4)}
	far := qpConfig{sqLog: 5, rqLog: 1, sendCQ: p.b.newCQ(4), recvCQ: p.b.newCQ(4)}
	var qs []*tQP
	for i := range uint32(many) {
		near.number, far.number = 100+i, 100+i
		q := p.a.newQP(near)
		connect(q, p.b.newQP(far), defaultLink(), 1, 2)
		qs = append(qs, q)
	}
	post := func(q *tQP, n uint32) {
		q.post(tWR{op: hw.OpcodeRDMAWrite, remote: dst.base, rkey: dst.key, sges: []hw.DataSegment{src.sge(0, n)}})
	}
	c := p.a.card
	for range 10 {
		post(qs[0], 60_000) // more than the wire takes: b is not stepped
	}
	for range bellParts + 1 {
		c.Step(p.now, 1)
	}
	for i := 1; i < many; i++ {
		post(qs[i], 0)
		q := c.qps.table.find(qs[i].number)
		for steps := 1; ; steps++ {
			if !c.transmitPending() {
				t.Fatal("nobody else works: the test shows nothing")
			}
			if c.Step(p.now, 1); q.sqSeen == qs[i].sqPI {
				break
			}
			if steps == bellParts {
				t.Fatalf("QP %d of %d is not seen in %d Steps", i, many, steps)
			}
		}
	}
}
