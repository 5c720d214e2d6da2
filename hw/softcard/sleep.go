package softcard

import (
	"rnic/hw"
	"rnic/hw/mmio"
)

// Sleep and kick, for a card that takes no CPU while it has nothing to do. The
// card stores its flag in the domain page, passes a full barrier, looks at every
// live doorbell again, and sleeps. The driver stores its doorbell, passes a full
// barrier, loads the flag, and if it is set stores to the trapped kick page. Each
// side stores its own word before it loads the other's, so at least one of them
// sees the other: no doorbell is slept through.
//
// The other ways to wake a card are calls of rouse: a register store, a client
// that comes or goes, a frame that was put on the wire or room that was made
// there. They take the same two steps over Runner.asleep, with Go's atomics; tell, which
// comes with each frame, with a fence of its own where the worker is another.

// FallAsleep puts the card to sleep after a Step that found nothing to do, and is
// false if there is something after all. It is for whoever steps the card, as a Runner
// does; before the next Step comes Awaken. between is nil, or a test's: it runs when
// the flag is set and the look has not begun.
func (c *Card) FallAsleep(between func()) bool {
	c.setSleep(1)
	mmio.StoreLoad()
	if between != nil {
		between()
	}
	if c.lastLook() {
		c.setSleep(0)
		return false
	}
	c.sleeps = true
	c.count[cntSleeps]++
	return true
}

// Awaken ends the card's sleep, if it sleeps.
func (c *Card) Awaken() {
	if c.sleeps {
		c.sleeps = false
		c.setSleep(0)
	}
}

func (c *Card) setSleep(v uint32) { c.mem.store(hw.DomainSleep, v) }

func (m *sharedPages) store(off, v uint32) { mmio.Store32(m.word(off), v) }

// lastLook reports whether anything has come that a Step would serve. Room on
// the wire, for a packet that waits for it, the Runner looks for itself: by
// another Step.
func (c *Card) lastLook() bool {
	if c.regs.waiting() || c.regs.runStep() != 0 && c.hosted.waiting == 0 || c.armsPending() || c.hostAnswered() || c.port.arrived(c) {
		return true
	}
	return c.live.runMode == hw.RunModeFree && c.doorbellsPending()
}

// waiting reports whether a register access waits for a Step.
func (r *regs) waiting() bool {
	n := r.quiet.asked.Load()
	return r.dirty.Load() || n != 0 && n != r.quiet.answer.Load()
}

// armsPending reports whether a CQ's arm word has changed, or a full EQ with an
// overflow to tell has room.
func (c *Card) armsPending() bool {
	for _, q := range c.liveCQ {
		if hw.CQArmWord(c.dbLoad(q.ctx.Doorbell+hw.CQDoorbellArm)) != q.arm {
			return true
		}
	}
	for _, q := range c.eqs {
		if q != nil && q.lost != 0 && c.eqRoom(q) {
			return true
		}
	}
	return false
}

// arrived reports whether a frame waits that the card may take, or a change of
// the link that it has not told.
func (p *port) arrived(c *Card) bool {
	if hw.LinkState(p.link.Load()) != c.net.link {
		return true
	}
	queueing := p.queueing.Load()
	for _, l := range p.links.Load().in {
		f := l.oldest()
		switch {
		case f == nil:
		case queueing, f.lane == laneAnswers, l.head(laneAnswers) != nil, l.back.lanes[laneAnswers].free() > l.back.promised:
			return true
		}
	}
	if !queueing {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stepped && len(p.ready) > 0
}
