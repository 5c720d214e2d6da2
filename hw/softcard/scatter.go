package softcard

import (
	"rnic/hw"
	"rnic/hw/gather"
)

// scatter places the payload of one packet: of a SEND in a receive's segments, of
// a WRITE where its RETH says, of a response in the request's. Each segment
// visited is looked up once for this packet.
func (c *Card) scatter(q *qp, segs []gather.Segment, access hw.Access, at *gather.Cursor, payload []byte) (gather.Fault, bool) {
	w := &c.qps.walk
	w.q, w.gather, w.held = q, false, false
	return gather.Scatter(w, w, nil, segs, q.who(access), at, payload)
}
