package roce

// PSNs count in 24 bits. Of two of them the later is the one that is less than
// half of the space, 2^23, ahead (IBTA vol. 1, 9.7).

// PSNMask holds the bits of a PSN.
const PSNMask = mask24

// PSNAdd is psn moved by n packets, forward or back.
func PSNAdd(psn uint32, n int32) uint32 { return (psn + uint32(n)) & PSNMask }

// PSNDiff is how many packets a is after b: -2^23 to 2^23-1.
func PSNDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

// PSNLess reports whether a is before b.
func PSNLess(a, b uint32) bool { return PSNDiff(a, b) < 0 }

// The source port of RoCEv2 spreads flows over the paths of a network and has
// no other meaning; annex A17 leaves it to the sender, within the dynamic
// ports. Ours follow Linux, so that captures compare.

const dynamicPort = 0xC000

// SourcePort is the UDP source port of an RC or UC queue pair: of the flow
// label (20 bits) if that is not 0, else of the two queue pair numbers (Linux
// include/rdma/ib_verbs.h, rdma_get_udp_sport).
func SourcePort(flowLabel, lqpn, rqpn uint32) uint16 {
	flowLabel &= 0xFFFFF
	if flowLabel == 0 {
		v := uint64(lqpn) * uint64(rqpn)
		v ^= v >> 20
		v ^= v >> 40
		flowLabel = uint32(v & 0xFFFFF)
	}
	return dynamicPort | uint16(flowLabel&0x3FFF^flowLabel>>14)
}

// SourcePortUD is the UDP source port of a UD queue pair (Linux
// drivers/infiniband/sw/rxe/rxe_qp.c, hash_32 of the QP number to 14 bits).
func SourcePortUD(lqpn uint32) uint16 {
	return dynamicPort + uint16(lqpn*0x61C88647>>18)
}
