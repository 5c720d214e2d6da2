// Package walkview shows one gather walk: as a JSON object, as numbered steps,
// and drawn to scale with segments above and packets below, in a terminal or
// as SVG. It computes all of it from the request and the card's trace records
// (rule G22); what the records do not say is not shown.
package walkview

import (
	"errors"
	"fmt"
	"slices"
)

// Schema names the form of the JSON object; docs/json/walk.schema.json
// describes it.
const Schema = "rnic.walk.v1"

// Kind is the kind of a trace record.
type Kind string

// Kinds of trace records, as the JSON object names them.
const (
	WQE      Kind = "wqe"
	Packet   Kind = "packet"
	Lookup   Kind = "lookup"
	Read     Kind = "read"
	Handover Kind = "handover"
	Sent     Kind = "sent"
	Fault    Kind = "fault"
)

// Step is a trace record. Fields that its kind does not have are not looked at.
type Step struct {
	Kind    Kind
	Packet  uint32 // packet of the message, counted from 0; not for WQE
	Segment int    // lookup, read, fault; -1 where a fault has none
	Offset  uint32 // lookup, read, fault: byte offset in the segment
	Bytes   uint32 // WQE: of the message; packet, handover: of the payload; lookup, read: of the piece; sent: of the frame
	Hit     bool   // lookup: the key cache answered
	Reason  string // fault, or a lookup that failed: the contract's name
	Key     uint32 // fault: the segment's key
	PSN     uint32 // handover, sent
	AckReq  bool   // handover
	Lost    uint32 // records that the trace ring had no room for before this one
}

// Segment is a data segment of the request, with the name of its region.
type Segment struct {
	MR     string
	Length uint32
}

// Input is a request and what the card reported of it, in order.
type Input struct {
	Opcode   string // send, write, read-response
	MTU      uint32 // path MTU in bytes
	Gather   string // who gathered: card, host, or inline for a payload in the WQE
	Segments []Segment
	Inline   uint32 // bytes of the payload, with Gather inline
	Steps    []Step
}

// Walk is an Input that was found consistent. It is made by New.
type Walk struct {
	in      Input
	length  uint64
	numbers []int    // of each record: the step of the text form it belongs to
	last    int      // the highest number
	again   []bool   // of each record: a lookup of a segment that was looked up before
	mrs     []string // names of the regions, in the order in which segments name them
	regions []int    // of each segment: its region's place in mrs
	starts  []uint64 // of each segment: its first byte's place in the message
	packets []packet
	fault   *Step
}

// packet is a packet as its records describe it.
type packet struct {
	number uint32 // from 0
	start  uint64 // of its payload in the message
	bytes  uint32
	psn    uint32
	ackReq bool
	whole  bool // handed over
	sent   bool
	pieces []piece
}

// piece is a segment visited by a packet: one lookup, and its read.
type piece struct {
	segment       int
	offset, bytes uint32
	hit           bool
	reason        string // of a failed lookup
	read          bool
}

// ErrTrace is wrapped by New's errors about records that do not make a walk.
var ErrTrace = errors.New("the trace records do not make a walk")

// New checks that the records are those of one walk of the request and
// computes its packets. Records may be missing at the end (the walk was
// faulted, or is not over), not in the middle.
func New(in Input) (*Walk, error) {
	w := &Walk{in: in}
	if in.MTU == 0 {
		return nil, fmt.Errorf("path MTU 0: %w", ErrTrace)
	}
	for _, s := range in.Segments {
		w.starts = append(w.starts, w.length)
		w.length += uint64(s.Length)
	}
	if in.Gather == "inline" {
		if len(in.Segments) != 0 {
			return nil, fmt.Errorf("an inline payload has no segments, %d given: %w", len(in.Segments), ErrTrace)
		}
		w.length = uint64(in.Inline)
	}
	for i := range in.Steps {
		if err := w.take(&in.Steps[i]); err != nil {
			return nil, fmt.Errorf("record %d (%s, packet %d): %w: %w", i+1, in.Steps[i].Kind, in.Steps[i].Packet+1, err, ErrTrace)
		}
	}
	w.number()
	w.again = make([]bool, len(in.Steps))
	seen := make([]bool, len(in.Segments))
	for i, s := range in.Steps {
		if s.Kind == Lookup {
			w.again[i], seen[s.Segment] = seen[s.Segment], true
		}
	}
	w.regions = make([]int, len(in.Segments))
	for i, s := range in.Segments {
		at := slices.Index(w.mrs, s.MR)
		if at < 0 {
			at = len(w.mrs)
			w.mrs = append(w.mrs, s.MR)
		}
		w.regions[i] = at
	}
	return w, nil
}

// take adds a record to what is known of its packet.
func (w *Walk) take(s *Step) error {
	if s.Lost != 0 {
		return fmt.Errorf("%d records before it were lost; a larger trace ring keeps them", s.Lost)
	}
	var p *packet
	if n := len(w.packets); n > 0 {
		p = &w.packets[n-1]
	}
	if w.fault != nil && s.Kind != Sent {
		return errors.New("the walk had ended in a fault")
	}
	switch s.Kind {
	case WQE:
		if p != nil || uint64(s.Bytes) != w.length {
			return fmt.Errorf("a WQE of %d bytes, the request has %d", s.Bytes, w.length)
		}
		return nil
	case Packet:
		var start uint64
		if p != nil {
			if !p.whole {
				return fmt.Errorf("packet %d was not handed over", p.number+1)
			}
			start = p.start + uint64(p.bytes)
		}
		if int64(s.Packet) != int64(len(w.packets)) || uint64(s.Bytes) != min(uint64(w.in.MTU), w.length-start) {
			return fmt.Errorf("%d bytes where packet %d of %d was next", s.Bytes, len(w.packets)+1, min(uint64(w.in.MTU), w.length-start))
		}
		w.packets = append(w.packets, packet{number: s.Packet, start: start, bytes: s.Bytes})
		return nil
	case Sent:
		if int64(s.Packet) >= int64(len(w.packets)) || !w.packets[s.Packet].whole {
			return errors.New("a packet left that was not handed over")
		}
		p = &w.packets[s.Packet]
		if p.psn != s.PSN {
			return fmt.Errorf("handed over with PSN %d, left with %d", p.psn, s.PSN)
		}
		p.sent = true
		return nil
	case Fault:
		w.fault = s
		if p == nil && s.Packet == 0 {
			return nil // the request itself was at fault
		}
	}
	if p == nil || p.number != s.Packet || p.whole {
		return errors.New("not a record of the packet being assembled")
	}
	switch s.Kind {
	case Lookup:
		if err := w.inside(s); err != nil {
			return err
		}
		p.pieces = append(p.pieces, piece{segment: s.Segment, offset: s.Offset, bytes: s.Bytes, hit: s.Hit, reason: s.Reason})
	case Read:
		if err := w.inside(s); err != nil {
			return err
		}
		n := len(p.pieces)
		if n == 0 || p.pieces[n-1].read || p.pieces[n-1] != (piece{segment: s.Segment, offset: s.Offset, bytes: s.Bytes, hit: p.pieces[n-1].hit}) {
			return errors.New("a read without its lookup")
		}
		p.pieces[n-1].read = true
	case Handover:
		var got uint64
		for _, q := range p.pieces {
			if q.read {
				got += uint64(q.bytes)
			}
		}
		if s.Bytes != p.bytes || w.in.Gather != "inline" && got != uint64(p.bytes) {
			return fmt.Errorf("%d bytes handed over and %d read, the packet has %d", s.Bytes, got, p.bytes)
		}
		p.whole, p.psn, p.ackReq = true, s.PSN, s.AckReq
	case Fault:
		if s.Segment >= 0 && s.Segment >= len(w.in.Segments) {
			return fmt.Errorf("segment %d of %d", s.Segment, len(w.in.Segments))
		}
	default:
		return errors.New("no such kind of record")
	}
	return nil
}

func (w *Walk) inside(s *Step) error {
	if s.Segment < 0 || s.Segment >= len(w.in.Segments) {
		return fmt.Errorf("segment %d of %d", s.Segment, len(w.in.Segments))
	}
	if uint64(s.Offset)+uint64(s.Bytes) > uint64(w.in.Segments[s.Segment].Length) {
		return fmt.Errorf("[%d, %d) lies outside segment %d", s.Offset, uint64(s.Offset)+uint64(s.Bytes), s.Segment)
	}
	return nil
}

// number gives each record the step it belongs to. The chapter's own
// counting, made a rule: the request is a step, and so is the cutting into
// packets, at the first packet's record. Of the first packet each lookup and
// each read is a step. A later packet begins with its first lookup in one
// step, has its first read in the next, and then each lookup with its read in
// one. A hand-over is a step, and all packets' leaving is the last one,
// wherever the records stand; a fault is a step before it.
func (w *Walk) number() {
	w.numbers = make([]int, len(w.in.Steps))
	n, pieces, sent := 0, 0, false
	for i, s := range w.in.Steps {
		later := s.Packet > 0
		switch s.Kind {
		case Packet:
			n++
			pieces = 0
		case Lookup:
			if pieces++; !later || pieces > 1 {
				n++
			}
		case Read:
			if !later || pieces == 1 {
				n++
			}
		case Sent:
			sent = true
			continue
		default:
			n++
		}
		w.numbers[i] = n
	}
	if sent {
		n++
		for i, s := range w.in.Steps {
			if s.Kind == Sent {
				w.numbers[i] = n
			}
		}
	}
	w.last = n
}

// planned is how many packets the message takes (G7).
func (w *Walk) planned() uint64 {
	if w.length == 0 {
		return 1
	}
	return (w.length-1)/uint64(w.in.MTU) + 1
}
