package gather

import "rnic/hw"

// Writer writes the bytes of src to iova by DMA. An error fails the whole
// piece; part of it may have been written.
type Writer interface {
	Write(iova uint64, src []byte) error
}

// Scatter is the walk in the other direction: it places the payload src of
// one packet at the cursor, for receives, READ responses and the results of
// atomics (G2; who.Access hw.AccessLocalWrite) and, over a one-segment list, for a
// WRITE at its responder (hw.AccessRemoteWrite). Segments are visited as Packet visits
// them: one lookup per segment and packet, lookup before write, empty ones
// passed over, cursor in normal form behind it.
//
// On a fault the cursor stays where the packet began; pieces of the packet
// that were placed before the one that failed stay in memory, as the message
// has no completion that says otherwise. More bytes than the segments have
// left place nothing (hw.ReasonLength).
func Scatter(t Translator, w Writer, tr Tracer, segs []Segment, who Who, c *Cursor, src []byte) (f Fault, ok bool) {
	if c.Segment < 0 || len(segs) > MaxSegments {
		return Fault{Segment: c.Segment, Offset: c.Offset, Reason: hw.ReasonMalformed}, false
	}
	if uint64(len(src)) > uint64(c.Left) {
		return Fault{Segment: c.Segment, Offset: c.Offset, Reason: hw.ReasonLength}, false
	}
	at := *c
	for len(src) > 0 {
		s, take, valid := at.piece(segs, uint32(len(src)))
		if !valid {
			return Fault{Segment: at.Segment, Offset: at.Offset, Reason: hw.ReasonMalformed}, false
		}
		if take == 0 {
			at.Segment, at.Offset = at.Segment+1, 0
			continue
		}
		iova, hit, r := lookup(t, s, who, at.Offset, take)
		if tr != nil {
			tr.Lookup(at.Segment, at.Offset, take, hit, r)
		}
		if r == hw.ReasonNone {
			if w.Write(iova, src[:take]) != nil {
				r = hw.ReasonDMAWrite
			}
			if tr != nil {
				tr.Read(at.Segment, at.Offset, take, r)
			}
		}
		if r != hw.ReasonNone {
			return Fault{Segment: at.Segment, Key: s.Key, Offset: at.Offset, Reason: r}, false
		}
		src = src[take:]
		at.Offset += take
		at.Left -= take
	}
	*c = at.normal(segs)
	return Fault{}, true
}
