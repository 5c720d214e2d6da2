package softcard

import (
	"math"
	"math/bits"

	"rnic/hw"
	"rnic/hw/roce"
)

// The gate stands between a scheduled WQE and its gather (G15): a packet passes
// when its whole frame's bytes are in the token bucket of its QP's rate-limit
// entry (G16). The bucket is filled by card time.
//
// A bucket counts in nanobytes: rate × ns is then a whole number, so nothing is
// rounded and no window lets more pass than rate·t + burst.
const nano = 1_000_000_000

type rateLimit struct {
	rate   uint64 // bytes a second; 0: not limited
	burst  uint32 // bytes
	tokens uint64 // nanobytes, at most burst × nano
	at     int64  // card time of tokens
}

// fullFrame is the longest frame with a payload of mtu bytes.
func fullFrame(mtu uint32) uint32 { return roce.MaxHeaderLen + mtu + roce.ICRCLen }

// setRate is SET_RATE. Entry 0 is not limited and stays so.
func (c *Card) setRate(cmd *command) result {
	var in hw.RateLimit
	if r := c.mailbox(cmd, in.AsBytes()); r != ok {
		return r
	}
	i := cmd.Object
	if i == 0 || i >= uint32(len(c.qps.rates)) {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeRate)
	}
	if !in.ReservedZero() {
		return bad(hw.CommandStatusReservedNotZero, hw.CommandSyndromeNone)
	}
	if in.Rate != 0 && in.Burst < c.leastBurst(i) {
		return param(hw.CommandSyndromeRate)
	}
	// A new limit starts with a full bucket. One that is changed while it is used keeps
	// what is in the bucket: else each change would let a burst pass.
	r := &c.qps.rates[i]
	r.fill(c.now())
	tokens := uint64(in.Burst) * nano
	for _, q := range c.qps.live {
		if uint32(q.ctx.RateIndex) == i && r.rate != 0 {
			tokens = min(tokens, r.tokens)
		}
	}
	*r = rateLimit{rate: in.Rate, burst: in.Burst, tokens: tokens, at: c.now()}
	for _, q := range c.qps.live {
		if uint32(q.ctx.RateIndex) == i && q.gateAt != 0 {
			q.gateAt = 0
			c.wake(q)
		}
	}
	return ok
}

// leastBurst is one full packet: of the port's MTU, or of a QP's that uses the
// entry and was given its path MTU while the port's was larger.
func (c *Card) leastBurst(i uint32) uint32 {
	mtu := mtuBytes(c.net.ctx.ActiveMTU)
	for _, q := range c.qps.live {
		if uint32(q.ctx.RateIndex) == i {
			mtu = max(mtu, q.mtu)
		}
	}
	return fullFrame(mtu)
}

// queryRate is QUERY_RATE.
func (c *Card) queryRate(cmd *command) result {
	i := cmd.Object
	if i >= uint32(len(c.qps.rates)) {
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeRate)
	}
	r := &c.qps.rates[i]
	r.fill(c.now())
	out := hw.RateLimit{Rate: r.rate, Burst: r.burst, Tokens: uint32(r.tokens / nano)}
	return c.answerAt(cmd, 0, out.AsBytes())
}

// rateFits reports whether a QP of that path MTU may use the entry: a full
// packet must fit its bucket.
func (c *Card) rateFits(i uint16, mtu uint32) bool {
	if int(i) >= len(c.qps.rates) {
		return false
	}
	r := &c.qps.rates[i]
	return r.rate == 0 || r.burst >= fullFrame(mtu)
}

// fill adds what the time since the last call is worth.
func (r *rateLimit) fill(now int64) {
	if r.rate == 0 || now <= r.at {
		return
	}
	full := uint64(r.burst) * nano
	hi, lo := bits.Mul64(r.rate, uint64(now-r.at))
	if sum, carry := bits.Add64(r.tokens, lo, 0); hi != 0 || carry != 0 || sum > full {
		r.tokens = full
	} else {
		r.tokens = sum
	}
	r.at = now
}

// gate decides whether a frame of n bytes of the QP may go. If not, the QP is
// held until the bucket has them.
func (c *Card) gate(q *qp, n int) bool {
	r := &c.qps.rates[q.ctx.RateIndex]
	if r.rate == 0 || c.live.debug.rateIgnored {
		return true
	}
	r.fill(c.now())
	need := uint64(n) * nano
	if need <= r.tokens {
		return true
	}
	wait := (need - r.tokens + r.rate - 1) / r.rate
	q.gateAt = c.now() + int64(min(wait, math.MaxInt64/2))
	c.arm(q)
	c.count[cntGateHolds]++
	q.stats.GateHolds++
	return false
}

// gateTake takes the bytes of a frame that passed the gate.
func (c *Card) gateTake(q *qp, n int) {
	if r := &c.qps.rates[q.ctx.RateIndex]; r.rate != 0 && !c.live.debug.rateIgnored {
		r.tokens -= uint64(n) * nano
	}
}
