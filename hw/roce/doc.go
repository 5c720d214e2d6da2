// Package roce reads and writes RoCEv2 frames: Ethernet, 802.1Q, IPv4 or
// IPv6, UDP, the Base Transport Header (BTH), the extended headers of RC, UC
// and UD, pad and ICRC. It knows nothing about queues or memory.
//
// A frame, from its first byte to its last:
//
//	+----------+--------+-----------+-----+-----+----------+---------+-----+------+---------+
//	| Ethernet | 802.1Q | IPv4/IPv6 | UDP | BTH | extended | payload | pad | ICRC | trailer |
//	|    14    | 0 or 4 |  20 / 40  |  8  | 12  |  0 – 28  | 0 – MTU | 0–3 |  4   |   0 –   |
//	+----------+--------+-----------+-----+-----+----------+---------+-----+------+---------+
//
// The Ethernet FCS is not part of a frame here. The trailer is what stands
// behind the IP packet, such as Ethernet padding; nothing of RoCEv2 covers it.
//
// Sending: a [Header] holds every field of the headers; [Header.PutBefore]
// writes them so that they end where the payload begins, and [Finish] puts pad
// and ICRC behind. So the payload can lie at an aligned place from the start:
//
//	copy(buf[roce.Headroom:], payload)
//	start := h.PutBefore(buf, roce.Headroom, len(payload))
//	frame, err := roce.Finish(buf[start:])
//
// A [Flow] does both for the frames of one connection, and works out once what they have
// in common.
//
// Receiving: [Parse] checks a frame whole and gives views of its headers and
// its payload, which are slices of the frame itself.
//
// None of these allocate. Multi-byte fields are in network order on the wire
// and in host order in every argument and result.
//
// Sources: InfiniBand Architecture Specification Volume 1, chapter 9
// (Transport Layer) and annexes A16 (RoCE) and A17 (RoCEv2); IEEE 802.1Q; RFC
// 791, 8200 and 768.
package roce
