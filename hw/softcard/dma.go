package softcard

import (
	"hash/crc32"

	"rnic/hw"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

// Host is the client's memory and interrupts, as the vfio-user server offers them.
type Host = vfiouser.Host

// Values of DMA_TEST.
const (
	dmaTestRead  = 1
	dmaTestWrite = 2
)

// dmaState is what DMA keeps between Steps.
type dmaState struct {
	sequence uint64     // DMA_SEQUENCE
	test     [4096]byte // the buffer of DMA_TEST
	messages uint64     // counted from the host so far
}

// nextDMA is the number of the DMA access that begins.
func (c *Card) nextDMA() uint64 {
	c.dma.sequence++
	c.regs.tests.dmaSequence.Store(c.dma.sequence)
	return c.dma.sequence
}

// dmaRead reads len(p) bytes of the client's memory. It is hw.ReasonNone or
// hw.ReasonDMARead.
func (c *Card) dmaRead(iova uint64, p []byte) hw.Reason { return c.read(iova, p, use{}) }

func (c *Card) read(iova uint64, p []byte, u use) (r hw.Reason) {
	c.count[cntDMAReads]++
	n := c.nextDMA()
	if c.host == nil || c.host.Read(iova, p) != nil {
		c.count[cntDMAFaults]++
		r = hw.ReasonDMARead
	} else {
		c.count[cntDMAReadBytes] += uint64(len(p))
	}
	if c.dlog.ctx.IOVA != 0 {
		c.logDMA(n, iova, len(p), hw.DMADirectionRead, r, u)
	}
	return r
}

// dmaWrite writes len(p) bytes of the client's memory. It is hw.ReasonNone or
// hw.ReasonDMAWrite.
func (c *Card) dmaWrite(iova uint64, p []byte) hw.Reason { return c.write(iova, p, use{}) }

func (c *Card) write(iova uint64, p []byte, u use) hw.Reason {
	n := c.nextDMA()
	return c.wrote(n, iova, p, c.host != nil && c.host.Write(iova, p) == nil, u)
}

// wrote counts a write of the client's memory, number n, and logs it.
func (c *Card) wrote(n, iova uint64, p []byte, well bool, u use) (r hw.Reason) {
	c.count[cntDMAWrites]++
	if !well {
		c.count[cntDMAFaults]++
		r = hw.ReasonDMAWrite
	} else {
		c.count[cntDMAWriteBytes] += uint64(len(p))
	}
	if c.dlog.ctx.IOVA != 0 {
		c.logDMA(n, iova, len(p), hw.DMADirectionWrite, r, u)
	}
	return r
}

// payloadRead is dmaRead of payload: FAIL_DMA_READ counts it.
func (c *Card) payloadRead(iova uint64, p []byte, u use) hw.Reason {
	if strike(&c.regs.tests.failRead) {
		c.count[cntDMAFaults]++
		return hw.ReasonDMARead
	}
	return c.read(iova, p, u)
}

// payloadWrite is dmaWrite of payload: FAIL_DMA_WRITE counts it.
func (c *Card) payloadWrite(iova uint64, p []byte, u use) hw.Reason {
	if strike(&c.regs.tests.failWrite) {
		c.count[cntDMAFaults]++
		return hw.ReasonDMAWrite
	}
	return c.write(iova, p, u)
}

// scratch holds the entries that the card is writing to the client's rings: DMA
// takes slices, and these are not to be allocated for each.
type scratch struct {
	cqe     hw.CQE
	eqe     hw.EQE
	reply   hw.CommandReply
	command hw.CommandEntry
	trace   hw.TraceRecord
	capture hw.CaptureRecord
	dma     hw.DMARecord
}

// writeOwned writes an entry of a ring whose last 32-bit word says whose it is:
// the word comes after the rest, for a reader that polls it.
func (c *Card) writeOwned(iova uint64, p []byte) hw.Reason {
	n := c.nextDMA()
	return c.wrote(n, iova, p, c.host != nil && c.host.WriteOwned(iova, p) == nil, use{})
}

// readHostStats brings the counters up to date that the host keeps.
func (c *Card) readHostStats() {
	if c.host == nil {
		return
	}
	n := c.host.Stats().Messages
	c.count[cntDMAByMessage] += n - c.dma.messages
	c.dma.messages = n
}

// runTests does what DMA_TEST and INTERRUPT_TEST ask for.
func (c *Card) runTests() (worked bool) {
	if v := c.live.interrupts; v != 0 {
		c.live.interrupts = 0
		for i := range c.lim.Vectors {
			if v>>i&1 != 0 {
				c.interrupt(i)
			}
		}
		worked = true
	}
	if op := c.live.dmaTest; op != 0 {
		c.live.dmaTest = 0
		c.dmaTest(op)
		worked = true
	}
	return worked
}

func (c *Card) dmaTest(op uint32) {
	r := &c.regs
	r.mu.Lock()
	iova := uint64(r.word[hw.RegControlDMATestIOVA/4]) | uint64(r.word[hw.RegControlDMATestIOVA/4+1])<<32
	n := r.word[hw.RegControlDMATestLength/4]
	r.mu.Unlock()
	reason := hw.ReasonLength
	if n != 0 && n <= uint32(len(c.dma.test)) {
		b := c.dma.test[:n]
		if op == dmaTestWrite {
			reason = c.dmaWrite(iova, b)
		} else if reason = c.dmaRead(iova, b); reason == hw.ReasonNone {
			r.set(hw.RegControlDMATestCRC, crc32.ChecksumIEEE(b))
		}
	}
	result := uint32(0)
	if reason != hw.ReasonNone {
		result = 0x80000000 | uint32(reason)
	}
	r.mu.Lock()
	if r.resets == c.live.resets && r.post.dmaTest == 0 { // else a newer one is waiting
		r.word[hw.RegControlDMATest/4] = result
	}
	r.mu.Unlock()
}

// interrupt raises an MSI-X vector, or notes that it is held back.
func (c *Card) interrupt(vector uint32) {
	if vector >= c.lim.Vectors {
		return
	}
	if vector < 32 && c.regs.tests.holdInterrupts.Load()>>vector&1 != 0 {
		c.regs.tests.pending.Or(1 << vector)
		return
	}
	c.count[cntInterrupts]++
	if c.host != nil {
		c.host.Trigger(vfio.IRQMSIX, int(vector))
	}
}

// releaseInterrupts raises the vectors that were held back and no longer are.
func (c *Card) releaseInterrupts() {
	t := &c.regs.tests
	free := t.pending.Load() &^ uint64(t.holdInterrupts.Load())
	if free == 0 {
		return
	}
	t.pending.And(^free)
	for i := range c.lim.Vectors {
		if free>>i&1 != 0 {
			c.interrupt(i)
		}
	}
}
