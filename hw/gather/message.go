package gather

import "rnic/hw"

// Op is what a packet is for, as far as the walk's rules tell one from
// another. The byte mover never sees it (G5).
type Op uint8

// Kinds of message.
const (
	Send         Op = iota // SEND, with or without immediate or invalidation
	Write                  // RDMA WRITE, with or without immediate
	ReadResponse           // the responder's construction of an RDMA READ response
	ReadRequest            // RDMA READ, the requester's packet
	Atomic                 // compare and swap, fetch and add: the requester's packet
	Response               // ACK, NAK, atomic response
)

// Gathers reports whether a message of this kind has a payload to gather
// (G1). A READ request has none, and an atomic's operand is in its request
// packet (G2): neither is looked up before it leaves.
func (o Op) Gathers() bool { return o == Send || o == Write || o == ReadResponse }

// Access is what the gather of such a message needs of the memory it reads:
// SEND and WRITE read memory that their own software named, a READ response
// what the wire named (G4).
func (o Op) Access() hw.Access {
	if o == ReadResponse {
		return hw.AccessRemoteRead
	}
	return LocalRead
}

// AckReq decides whether a packet asks for an acknowledgement (G13). reliable
// is true on an RC QP. packet counts the packets of the message from 0, of
// packets in all. every is the card's AckReq interval: in a long SEND or WRITE
// each every-th packet asks as well; 0 is the last only.
func AckReq(o Op, reliable bool, packet, packets, every uint32) bool {
	if !reliable {
		return false
	}
	switch o {
	case Send, Write:
		return packet+1 == packets || every != 0 && (packet+1)%every == 0
	case ReadRequest, Atomic:
		return true
	}
	return false
}

// WireSegments returns the segment list of a READ response: one segment, as
// the request's RETH names it (G4, G5). It is written into buf, so that
// nothing is allocated.
func WireSegments(buf *[1]Segment, va uint64, rkey, length uint32) []Segment {
	buf[0] = Segment{Addr: va, Length: length, Key: rkey}
	return buf[:]
}
