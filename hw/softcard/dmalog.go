package softcard

import "rnic/hw"

// use says what an access of payload is for, as far as it is known.
type use struct{ qpn, key uint32 }

// setDMALog is SET_DMA_LOG. The log is part of the debug page, and goes with it.
func (c *Card) setDMALog(cmd *command) result {
	if c.cfg.FuseDebug {
		return result{status: hw.CommandStatusUnsupported}
	}
	q := ring{}
	r := c.setRing(cmd, &q, 6, 6)
	if r == ok && q.ctx.IOVA != 0 && q.ctx.All != 1 {
		r = param(hw.CommandSyndromeNone)
	}
	if r != ok {
		return r
	}
	if c.dlog = q; q.ctx.IOVA != 0 {
		c.clearWord(ok, hw.DomainDMALogCI)
		c.regs.tests.dmaLogLost.Store(0)
	}
	return ok
}

// logDMA writes an access to the DMA log. Like trace and capture it never waits;
// what it writes itself is no access of the log.
func (c *Card) logDMA(sequence, iova uint64, n int, d hw.DMADirection, r hw.Reason, u use) {
	q := &c.dlog
	if c.host == nil {
		return
	}
	at, free := c.place(q, hw.DomainDMALogCI)
	if !free {
		c.regs.tests.dmaLogLost.Add(1)
		return
	}
	x := &c.out.dma
	*x = hw.DMARecord{
		Time: uint64(c.now()), Sequence: sequence, IOVA: iova, Length: uint32(n), Key: u.key, QPN: u.qpn, Direction: d, Reason: r,
		Lost: q.lost, Owner: phase(q.producer, q.ctx.LogEntries),
	}
	if c.host.WriteOwned(at, x.AsBytes()) != nil {
		c.dlog = ring{} // its memory is gone
		return
	}
	q.lost = 0
	q.producer++
}
