// Package oracle states the gather path's rules a second time, as plainly and
// slowly as they can be written: one byte after the other, in maps, slices
// and words. It is what tests of the walk, of a card or of gateware take
// their expected values from, so it shares no code, type or constant with
// package gather, and must never come to.
//
// It is written from the text of the gather path's rules, G1 to G22. What the
// text leaves to a card, the key cache's geometry, is stated in [World].
package oracle

// Segment is one data segment of a request.
type Segment struct {
	Addr   uint64
	Length uint32
	Key    uint32 // lkey or rkey: index << 8 | tag
}

// Region is an entry of the key table. Rights are the bits of
// ibv_access_flags: 1 local write, 2 remote write, 4 remote read, 8 remote
// atomic. A window is a memory window of type 2B, bound to QP.
type Region struct {
	Valid  bool
	Tag    uint8
	PD     uint32
	Rights uint8
	Base   uint64
	Length uint64
	IOVA   uint64
	Window bool
	QP     uint32
}

// World is what a walk happens in: key table, memory, and a key cache in
// which the entry of index i lies in set i mod Sets, each set holding the
// Ways entries used last. Sets 0 is no cache: each lookup misses.
type World struct {
	Regions map[uint32]Region // by key index; missing: beyond the table
	Read    func(iova uint64) (byte, bool)
	Write   func(iova uint64, b byte) bool
	Sets    int
	Ways    int

	// Before, if set, is called before each packet (counted from 0), and may
	// change Regions or call Invalidate.
	Before func(packet int)

	cache map[uint32][]uint32 // by set: indices, the one used last in front
}

// Request is a message to walk.
type Request struct {
	Op       string // send, write, read-response, read-request, atomic
	Reliable bool   // RC; else UC or UD
	MTU      uint32
	PD, QPN  uint32
	Segments []Segment
	Inline   []byte // not nil: the payload was copied into the WQE
	AckEvery uint32 // AckReq interval, 0: the last packet only
}

// Cursor is where the next packet resumes (G8).
type Cursor struct {
	Segment int
	Offset  uint32
	Left    uint32
}

// Packet is a packet that was handed over whole.
type Packet struct {
	Payload []byte
	AckReq  bool
	Cursor  Cursor // after it
}

// Step is a step of the walk, in its order (G22): kind packet, lookup, read
// (of a scatter: write), handover or fault. Reason is "" where nothing failed.
type Step struct {
	Kind    string
	Packet  int
	Segment int
	Offset  uint32
	Bytes   uint32
	Hit     bool
	Reason  string
}

// Fault is why a walk ended early, by the contract's names: KEY_INDEX, KEY_TAG,
// PD, ACCESS, BOUNDS, DMA_READ, DMA_WRITE, LENGTH, MALFORMED.
type Fault struct {
	Segment int
	Key     uint32
	Offset  uint32
	Reason  string
}

// Walk is all that happened.
type Walk struct {
	Packets []Packet
	Steps   []Step
	Fault   *Fault
}

// place is one byte of a message: which segment, which offset in it.
type place struct {
	segment int32
	offset  uint32
}

// Gather walks a request, packet by packet, to its end or to its fault.
func (w *World) Gather(r Request) Walk {
	var out Walk
	gathers := r.Op == "send" || r.Op == "write" || r.Op == "read-response" // G1, G2
	if !gathers {
		w.before(0)
		out.Packets = []Packet{{AckReq: r.Reliable, Cursor: Cursor{}}} // G13
		out.Steps = []Step{{Kind: "packet"}, {Kind: "handover"}}
		return out
	}

	segments := r.Segments
	if r.Inline != nil { // G3: no segment, no key
		segments = []Segment{{Length: uint32(len(r.Inline))}}
	}
	message, fault := flatten(segments)
	if fault != nil {
		out.Fault = fault
		out.Steps = []Step{{Kind: "fault", Segment: fault.Segment, Reason: fault.Reason}}
		return out
	}
	needs := uint8(0)
	if r.Op == "read-response" {
		needs = 4 // G4: the wire named it, so it must be granted to the wire
	}

	first := 0
	for number := 0; ; number++ {
		w.before(number)
		bytes := message[first:]
		if uint32(len(bytes)) > r.MTU { // G7
			bytes = bytes[:r.MTU]
		}
		out.Steps = append(out.Steps, Step{Kind: "packet", Packet: number, Bytes: uint32(len(bytes))})
		payload := make([]byte, 0, len(bytes))
		if r.Inline != nil {
			payload = append(payload, r.Inline[first:first+len(bytes)]...)
		} else {
			for _, piece := range pieces(bytes) {
				f := w.visit(&out, number, segments, piece, r.PD, r.QPN, needs, "read", "DMA_READ", func(iova uint64, _ int) bool {
					b, ok := w.Read(iova)
					payload = append(payload, b)
					return ok
				})
				if f != nil { // G17: the packet is dropped whole
					out.Fault = f
					out.Steps = append(out.Steps, Step{Kind: "fault", Packet: number, Segment: f.Segment, Offset: f.Offset, Reason: f.Reason})
					return out
				}
			}
		}
		first += len(bytes)
		last := first == len(message)
		ack := false
		if r.Reliable && r.Op != "read-response" { // G13
			ack = last || r.AckEvery != 0 && uint32(number+1)%r.AckEvery == 0
		}
		out.Packets = append(out.Packets, Packet{Payload: payload, AckReq: ack, Cursor: cursor(segments, message, first)})
		out.Steps = append(out.Steps, Step{Kind: "handover", Packet: number, Bytes: uint32(len(bytes))})
		if last {
			return out
		}
	}
}

// Scatter places the payloads of a message's packets through segments, for
// the rights given (1 for a receive, a READ response or an atomic's result, 2
// for a WRITE at its responder). The walk's packets carry cursors only.
func (w *World) Scatter(segments []Segment, payloads [][]byte, pd, qpn uint32, rights uint8) Walk {
	var out Walk
	message, fault := flatten(segments)
	if fault != nil {
		out.Fault = fault
		return out
	}
	first := 0
	for number, payload := range payloads {
		w.before(number)
		if len(payload) > len(message)-first {
			at := cursor(segments, message, first)
			out.Fault = &Fault{Segment: at.Segment, Offset: at.Offset, Reason: "LENGTH"}
			return out
		}
		bytes := message[first : first+len(payload)]
		placed := 0
		for _, piece := range pieces(bytes) {
			f := w.visit(&out, number, segments, piece, pd, qpn, rights, "write", "DMA_WRITE", func(iova uint64, i int) bool {
				return w.Write(iova, payload[placed+i])
			})
			if f != nil {
				out.Fault = f
				return out
			}
			placed += len(piece)
		}
		first += len(bytes)
		out.Packets = append(out.Packets, Packet{Cursor: cursor(segments, message, first)})
	}
	return out
}

// Invalidate drops the cached copy of a key index (G11).
func (w *World) Invalidate(index uint32) {
	for set, held := range w.cache {
		var kept []uint32
		for _, h := range held {
			if h != index {
				kept = append(kept, h)
			}
		}
		w.cache[set] = kept
	}
}

// Cached returns the indices that a set holds, the one used last in front.
func (w *World) Cached(set uint32) []uint32 { return w.cache[set] }

func (w *World) before(packet int) {
	if w.Before != nil {
		w.Before(packet)
	}
}

// flatten lists the bytes of a message one by one. An empty segment has none,
// so nothing of it is ever visited (G12).
func flatten(segments []Segment) ([]place, *Fault) {
	if len(segments) > 63 { // G6
		return nil, &Fault{Segment: 63, Key: segments[63].Key, Reason: "MALFORMED"}
	}
	sum := uint64(0)
	for i, s := range segments { // G18
		sum += uint64(s.Length)
		if sum > 1<<31 {
			return nil, &Fault{Segment: i, Key: s.Key, Reason: "LENGTH"}
		}
	}
	message := make([]place, 0, sum)
	for i, s := range segments {
		for o := range s.Length {
			message = append(message, place{int32(i), o})
		}
	}
	return message, nil
}

// pieces cuts a packet's bytes where the segment changes.
func pieces(bytes []place) [][]place {
	var out [][]place
	begin := 0
	for i := range bytes {
		if i+1 == len(bytes) || bytes[i+1].segment != bytes[i].segment {
			out = append(out, bytes[begin:i+1])
			begin = i + 1
		}
	}
	return out
}

// visit is one segment visited for one packet: its lookup (G9), then each of
// its bytes moved.
func (w *World) visit(out *Walk, packet int, segments []Segment, piece []place, pd, qpn uint32, needs uint8, verb, dma string, move func(iova uint64, i int) bool) *Fault {
	s := segments[piece[0].segment]
	step := Step{Packet: packet, Segment: int(piece[0].segment), Offset: piece[0].offset, Bytes: uint32(len(piece))}
	failed := &Fault{Segment: int(piece[0].segment), Key: s.Key, Offset: piece[0].offset}

	hit := w.touch(s.Key >> 8)
	region, reason := w.translate(s, piece, pd, qpn, needs)
	step.Kind, step.Hit, step.Reason = "lookup", hit, reason
	out.Steps = append(out.Steps, step)
	if reason != "" {
		failed.Reason = reason
		return failed
	}

	for i, b := range piece {
		address := s.Addr + uint64(b.offset)
		if !move(region.IOVA+(address-region.Base), i) {
			reason = dma
			break
		}
	}
	step.Kind, step.Hit, step.Reason = verb, false, reason
	out.Steps = append(out.Steps, step)
	if reason != "" {
		failed.Reason = reason
		return failed
	}
	return nil
}

// touch asks the key cache for an index, and fills it from the table.
func (w *World) touch(index uint32) (hit bool) {
	if w.Sets == 0 {
		return false
	}
	if w.cache == nil {
		w.cache = map[uint32][]uint32{}
	}
	set := index % uint32(w.Sets)
	held := []uint32{}
	for _, h := range w.cache[set] {
		if h == index {
			hit = true
		} else {
			held = append(held, h)
		}
	}
	if !hit && !w.Regions[index].Valid {
		return false // what does not exist is not held
	}
	held = append([]uint32{index}, held...)
	if len(held) > w.Ways {
		held = held[:w.Ways]
	}
	w.cache[set] = held
	return hit
}

// translate is G10, in its order.
func (w *World) translate(s Segment, piece []place, pd, qpn uint32, needs uint8) (region Region, reason string) {
	region, exists := w.Regions[s.Key>>8]
	if !exists || !region.Valid {
		return region, "KEY_INDEX"
	}
	if region.Tag != uint8(s.Key&0xff) {
		return region, "KEY_TAG"
	}
	if region.PD != pd || (region.Window && region.QP != qpn) {
		return region, "PD"
	}
	for bit := uint8(1); bit <= 8; bit *= 2 {
		if needs&bit != 0 && region.Rights&bit == 0 {
			return region, "ACCESS"
		}
	}
	if region.Window && needs&(2|4|8) == 0 {
		return region, "ACCESS" // a window is for the remote side
	}
	for _, b := range piece {
		address := s.Addr + uint64(b.offset)
		if address < s.Addr { // wrapped around
			return region, "BOUNDS"
		}
		if address < region.Base || address-region.Base >= region.Length {
			return region, "BOUNDS"
		}
	}
	return region, ""
}

// cursor is G8's normal form: where the first byte not taken lies.
func cursor(segments []Segment, message []place, taken int) Cursor {
	if taken == len(message) {
		return Cursor{Segment: len(segments)}
	}
	return Cursor{Segment: int(message[taken].segment), Offset: message[taken].offset, Left: uint32(len(message) - taken)}
}
