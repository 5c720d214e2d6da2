package softcard

import (
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// build puts the QP's headers in front of the n bytes of payload in the frame,
// and pad and ICRC behind. The caller has set what differs from packet to
// packet in c.qps.hdr.
func (c *Card) build(q *qp, f *frame, n int) {
	if c.rtl != nil && n == 0 && !f.built {
		c.rtl.plain(q, f)
	}
	h := &c.qps.hdr
	h.IPID = uint16(c.ipID)
	c.setIPID(c.ipID + 1)
	if !f.built {
		f.start, f.end = q.flow.Frame(f.buf, headroom, n, h)
	}
	f.built = false
	q.stats.TXPackets++
	q.stats.TXBytes += uint64(f.end - f.start)
}

// setIPID sets the IP identification of the next frame.
func (c *Card) setIPID(n uint32) {
	c.ipID = n
	c.regs.tests.ipID.Store(uint64(n))
}

// requestOpcode is the BTH's opcode of packet i of the n of a SEND or WRITE.
func requestOpcode(write, imm bool, i, n uint32) roce.Opcode {
	op := roce.RCSendFirst
	if write {
		op = roce.RCWriteFirst
	}
	// The opcodes of both stand in the same order.
	const first, middle, last, lastImm, only, onlyImm = 0, 1, 2, 3, 4, 5
	switch {
	case n == 1 && imm:
		return op + onlyImm
	case n == 1:
		return op + only
	case i == 0:
		return op + first
	case i+1 < n:
		return op + middle
	case imm:
		return op + lastImm
	}
	return op + last
}

// responseOpcode is the BTH's opcode of packet i of the n of a READ response.
func responseOpcode(i, n uint32) roce.Opcode {
	switch {
	case n == 1:
		return roce.RCReadResponseOnly
	case i == 0:
		return roce.RCReadResponseFirst
	case i+1 < n:
		return roce.RCReadResponseMiddle
	}
	return roce.RCReadResponseLast
}

// ackReq decides rule G13 for packet i of n.
func (c *Card) ackReq(op gather.Op, i, n uint32) bool {
	return gather.AckReq(op, true, i, n, c.live.debug.ackReqInterval)
}
