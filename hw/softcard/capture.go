package softcard

import (
	"rnic/hw"
	"rnic/hw/mmio"
)

func (c *Card) setCapture(cmd *command) result {
	r := c.setRing(cmd, &c.capt, 7, 14)
	c.clearWord(r, hw.DomainCaptureCI)
	return r
}

// capture puts a frame that was sent or received on the capture ring, if it
// watches its QP. It never waits: what does not fit is counted.
func (c *Card) capture(b []byte, d hw.Direction, qpn uint32, flags hw.CaptureFlag) {
	q := &c.capt
	if !q.wants(qpn) {
		return
	}
	iova, free := c.place(q, hw.DomainCaptureCI)
	if !free {
		c.count[cntCaptureLost]++
		return
	}
	n := min(len(b), 1<<q.ctx.LogStride-hw.CaptureHeader)
	if n < len(b) {
		flags |= hw.CaptureFlagTruncated
	}
	r := &c.out.capture
	*r = hw.CaptureRecord{
		Time: uint64(c.now()), Length: uint32(len(b)), Captured: uint32(n), QPN: qpn, Direction: d, Flags: flags,
		Lost: q.lost, Owner: phase(q.producer, q.ctx.LogEntries),
	}
	if c.dmaWrite(iova+hw.CaptureHeader, b[:n]) != hw.ReasonNone {
		c.capt = ring{}
		return
	}
	mmio.ToDevice()
	if c.writeOwned(iova, r.AsBytes()) != hw.ReasonNone {
		c.capt = ring{}
		return
	}
	q.lost = 0
	q.producer++
	c.count[cntCaptureFrames]++
}
