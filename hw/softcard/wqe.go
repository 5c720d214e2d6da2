package softcard

import (
	"encoding/binary"

	"rnic/hw"
	"rnic/hw/gather"
)

// wqe is a send work request, parsed from a copy of its blocks. The copy is
// taken once; nothing looks at the ring again for what stands here.
type wqe struct {
	opcode           hw.Opcode
	flags            hw.WQEFlag
	blocks           uint32 // it takes, 0 when that could not be told
	imm              uint32
	remote           uint64 // virtual address at the far end
	rkey             uint32
	swapAdd, compare uint64
	length           uint32           // bytes of the message
	segs             []gather.Segment // data segments, in list
	inline           []byte           // payload in the WQE, in raw; flag INLINE says whether it counts
	mark             uint32           // of its segments, to tell a second fetch from the first

	raw  [hw.WQEMaxBlocks * hw.WQEBlock]byte
	list [hw.MaxSegments]gather.Segment
}

// readSQ copies n blocks of the send ring from the absolute block index on,
// which may wrap at the ring's end, into dst.
func (c *Card) readSQ(q *qp, index, n uint32, dst []byte) hw.Reason {
	for n > 0 {
		at := index & q.sqMask
		run := min(n, q.sqMask+1-at)
		if r := c.dmaRead(q.ctx.SQIOVA+uint64(at)*hw.WQEBlock, dst[:run*hw.WQEBlock]); r != hw.ReasonNone {
			return r
		}
		dst = dst[run*hw.WQEBlock:]
		index += run
		n -= run
	}
	return hw.ReasonNone
}

// fetchWQE copies the WQE whose first block is index, of which avail blocks
// are the card's, and parses the copy. Its first block tells how many follow;
// no byte is read twice. The fault names a segment where the list is at fault.
func (c *Card) fetchWQE(q *qp, w *wqe, index, avail uint32) gather.Fault {
	w.blocks, w.opcode = 0, 0
	if r := c.readSQ(q, index, 1, w.raw[:]); r != hw.ReasonNone {
		return noSegment(r)
	}
	c.count[cntWQEs]++
	w.opcode = hw.Opcode(w.raw[0])
	blocks := (uint32(w.raw[2]) + 3) / 4
	if blocks == 0 || blocks > hw.WQEMaxBlocks || blocks > avail {
		return noSegment(hw.ReasonMalformed)
	}
	w.blocks = blocks
	if r := c.readSQ(q, index+1, blocks-1, w.raw[hw.WQEBlock:]); r != hw.ReasonNone {
		return noSegment(r)
	}
	return w.parse(&q.ctx, index)
}

// noSegment is a fault that no data segment is to blame for.
func noSegment(r hw.Reason) gather.Fault { return gather.Fault{Segment: hw.NoSegment, Reason: r} }

// parse reads the WQE out of its copy in raw. Anything that the contract does
// not define is refused (G18: malformed).
func (w *wqe) parse(ctx *hw.QPContext, index uint32) gather.Fault {
	malformed := noSegment(hw.ReasonMalformed)
	var ctl hw.ControlSegment
	copy(ctl.AsBytes(), w.raw[:])
	w.opcode, w.flags, w.imm = ctl.Opcode, ctl.Flags, ctl.Imm
	segments := int(ctl.Segments)
	w.mark = fingerprint(w.raw[:segments*hw.WQESegment])
	if !ctl.ReservedZero() || !ctl.Flags.Valid() || !ctl.Opcode.Valid() || ctl.Index != index {
		return malformed
	}
	inline := ctl.Flags&hw.WQEFlagInline != 0
	at := 1 // segment that is read next
	switch ctl.Opcode {
	case hw.OpcodeSend, hw.OpcodeSendWithImm:
	case hw.OpcodeRDMAWrite, hw.OpcodeRDMAWriteWithImm, hw.OpcodeRDMARead, hw.OpcodeAtomicCmpAndSwp, hw.OpcodeAtomicFetchAndAdd:
		if at >= segments {
			return malformed
		}
		var remote hw.RemoteSegment
		copy(remote.AsBytes(), w.raw[at*hw.WQESegment:])
		if !remote.ReservedZero() {
			return malformed
		}
		w.remote, w.rkey = remote.Addr, remote.RKey
		at++
	default:
		return noSegment(hw.ReasonUnsupported)
	}
	atomic := isAtomic(ctl.Opcode)
	if atomic {
		if at >= segments {
			return malformed
		}
		var a hw.AtomicSegment
		copy(a.AsBytes(), w.raw[at*hw.WQESegment:])
		w.swapAdd, w.compare = a.SwapAdd, a.Compare
		if ctl.Opcode == hw.OpcodeAtomicFetchAndAdd && a.Compare != 0 {
			return malformed
		}
		at++
	}
	if inline {
		n := int(ctl.InlineLength)
		if atomic || ctl.Opcode == hw.OpcodeRDMARead || n > int(ctx.MaxInline) || segments-at != (n+hw.WQESegment-1)/hw.WQESegment {
			return malformed
		}
		w.segs, w.inline, w.length = nil, w.raw[at*hw.WQESegment:][:n], uint32(n)
		return gather.Fault{}
	}
	n := segments - at
	if ctl.InlineLength != 0 || n > int(ctx.MaxSendSegments) || n > hw.MaxSegments {
		return malformed
	}
	w.segs, w.inline = parseSegments(w.list[:n], w.raw[at*hw.WQESegment:]), nil
	cursor, fault, ok := gather.Start(w.segs)
	switch {
	case !ok:
		return fault
	case atomic && cursor.Left < atomicSize:
		return noSegment(hw.ReasonLength)
	}
	w.length = cursor.Left
	return gather.Fault{}
}

// fingerprint tells the bytes of a WQE, whose segments have 16 each, from others: FNV-1a by words
// of 64 bits (draft-eastlake-fnv), with the upper half of each product folded back.
func fingerprint(b []byte) uint32 {
	h := uint64(0xcbf29ce484222325)
	for ; len(b) >= 8; b = b[8:] {
		h = (h ^ binary.LittleEndian.Uint64(b)) * 0x100000001b3
		h ^= h >> 32
	}
	return uint32(h)
}

// parseSegments reads len(list) data segments from b, which holds them.
func parseSegments(list []gather.Segment, b []byte) []gather.Segment {
	for i := range list {
		s := b[i*hw.WQESegment:][:hw.WQESegment]
		list[i] = gather.Segment{
			Addr:   binary.LittleEndian.Uint64(s),
			Length: binary.LittleEndian.Uint32(s[8:]),
			Key:    binary.LittleEndian.Uint32(s[12:]),
		}
	}
	return list
}

// atomicSize is the bytes an atomic operation exchanges.
const atomicSize = 8

func isAtomic(o hw.Opcode) bool {
	return o == hw.OpcodeAtomicCmpAndSwp || o == hw.OpcodeAtomicFetchAndAdd
}

// isRead reports whether a request of this kind is answered with data, which
// the read limit counts and the requester scatters.
func isRead(o hw.Opcode) bool { return o == hw.OpcodeRDMARead || isAtomic(o) }

// completionOpcode is what a CQE calls a send work request.
func completionOpcode(o hw.Opcode) hw.CQEOpcode {
	switch o {
	case hw.OpcodeRDMAWrite, hw.OpcodeRDMAWriteWithImm:
		return hw.CQEOpcodeRDMAWrite
	case hw.OpcodeRDMARead:
		return hw.CQEOpcodeRDMARead
	case hw.OpcodeAtomicCmpAndSwp:
		return hw.CQEOpcodeCompSwap
	case hw.OpcodeAtomicFetchAndAdd:
		return hw.CQEOpcodeFetchAdd
	case hw.OpcodeLocalInv:
		return hw.CQEOpcodeLocalInv
	case hw.OpcodeBindMW:
		return hw.CQEOpcodeBindMW
	}
	return hw.CQEOpcodeSend
}

// localStatus is the completion status of a local failure (G18).
func localStatus(r hw.Reason) hw.Status {
	switch r {
	case hw.ReasonKeyIndex, hw.ReasonKeyTag, hw.ReasonPD, hw.ReasonAccess, hw.ReasonBounds:
		return hw.StatusLocProtErr
	case hw.ReasonLength:
		return hw.StatusLocLenErr
	}
	return hw.StatusLocQPOpErr
}

// recvWQE is a receive work request, parsed from a copy, and how far it has
// been filled.
type recvWQE struct {
	cursor gather.Cursor
	got    uint32 // bytes placed
	segs   []gather.Segment
	list   [hw.MaxSegments]gather.Segment
}

// fetchRecv copies and parses the receive WQE of absolute number index.
func (c *Card) fetchRecv(q *qp, w *recvWQE, index uint32) gather.Fault {
	stride := uint32(1) << q.ctx.RQLogStride
	raw := c.qps.scratch[:stride]
	w.got = 0
	if r := c.dmaRead(q.ctx.RQIOVA+uint64(index&q.rqMask)<<q.ctx.RQLogStride, raw); r != hw.ReasonNone {
		return noSegment(r)
	}
	var ctl hw.RecvControl
	copy(ctl.AsBytes(), raw)
	n := int(ctl.Segments)
	if !ctl.ReservedZero() || ctl.Next != 0 || ctl.Index != index || n > int(q.ctx.MaxRecvSegments) || n > int(stride)/hw.WQESegment-1 {
		return noSegment(hw.ReasonMalformed)
	}
	w.segs = parseSegments(w.list[:n], raw[hw.WQESegment:])
	cursor, fault, ok := gather.Start(w.segs)
	if !ok {
		return fault
	}
	w.cursor = cursor
	return gather.Fault{}
}
