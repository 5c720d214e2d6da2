package walkview

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Report is the JSON object of a walk. Packets are counted from 1, as the
// text form names them, segments from 0.
type Report struct {
	Schema   string          `json:"schema"`
	Opcode   string          `json:"opcode"`
	MTU      uint32          `json:"mtu"`
	Length   uint64          `json:"length"`
	Gather   string          `json:"gather"`
	Segments []SegmentReport `json:"segments"`
	Steps    []StepReport    `json:"steps"`
	Packets  []PacketReport  `json:"packets"`
	Fault    *FaultReport    `json:"fault"`
}

// SegmentReport is a data segment of the request.
type SegmentReport struct {
	Segment int    `json:"segment"`
	MR      string `json:"mr"`
	Length  uint32 `json:"length"`
}

// StepReport is a trace record. What its kind does not have is null. Step is
// the number in the text form; several records can make one step.
type StepReport struct {
	Step    int     `json:"step"`
	Kind    Kind    `json:"kind"`
	Packet  *uint32 `json:"packet"`
	Segment *int    `json:"segment"`
	Offset  *uint32 `json:"offset"`
	Bytes   *uint32 `json:"bytes"`
	Lookup  *string `json:"lookup"`
	Reason  string  `json:"reason,omitempty"`
}

// PacketReport is a packet that was handed over whole, computed from the records.
type PacketReport struct {
	Packet   uint32        `json:"packet"`
	PSN      uint32        `json:"psn"`
	Bytes    uint32        `json:"bytes"`
	AckReq   bool          `json:"ack_req"`
	Sent     bool          `json:"sent"`
	Segments []PieceReport `json:"segments"`
}

// PieceReport is a segment that a packet visited.
type PieceReport struct {
	Segment int    `json:"segment"`
	Offset  uint32 `json:"offset"`
	Bytes   uint32 `json:"bytes"`
	Lookup  string `json:"lookup"`
}

// FaultReport is why the walk ended early. Segment is null where no segment
// is to blame.
type FaultReport struct {
	Packet  uint32 `json:"packet"`
	Segment *int   `json:"segment"`
	Key     string `json:"key"`
	Offset  uint32 `json:"offset"`
	Reason  string `json:"reason"`
}

func hitOrMiss(hit bool) string {
	if hit {
		return "hit"
	}
	return "miss"
}

// Report returns the walk's JSON object.
func (w *Walk) Report() *Report {
	r := &Report{
		Schema: Schema, Opcode: w.in.Opcode, MTU: w.in.MTU, Length: w.length, Gather: w.in.Gather,
		Segments: []SegmentReport{}, Steps: []StepReport{}, Packets: []PacketReport{},
	}
	for i, s := range w.in.Segments {
		r.Segments = append(r.Segments, SegmentReport{i, s.MR, s.Length})
	}
	for i := range w.in.Steps {
		r.Steps = append(r.Steps, w.step(i))
	}
	for _, p := range w.packets {
		if !p.whole {
			continue
		}
		q := PacketReport{Packet: p.number + 1, PSN: p.psn, Bytes: p.bytes, AckReq: p.ackReq, Sent: p.sent, Segments: []PieceReport{}}
		for _, s := range p.pieces {
			q.Segments = append(q.Segments, PieceReport{s.segment, s.offset, s.bytes, hitOrMiss(s.hit)})
		}
		r.Packets = append(r.Packets, q)
	}
	if f := w.fault; f != nil {
		r.Fault = &FaultReport{Packet: f.Packet + 1, Key: fmt.Sprintf("0x%08x", f.Key), Offset: f.Offset, Reason: strings.ToLower(f.Reason)}
		if f.Segment >= 0 {
			r.Fault.Segment = &f.Segment
		}
	}
	return r
}

func (w *Walk) step(i int) StepReport {
	s := w.in.Steps[i]
	r := StepReport{Step: w.numbers[i], Kind: s.Kind, Reason: strings.ToLower(s.Reason)}
	number, bytes := s.Packet+1, s.Bytes
	if s.Kind != WQE {
		r.Packet = &number
	}
	if s.Kind != Fault {
		r.Bytes = &bytes
	}
	switch s.Kind {
	case Lookup, Read, Fault:
		if s.Segment >= 0 {
			segment, offset := s.Segment, s.Offset
			r.Segment, r.Offset = &segment, &offset
		}
	}
	if s.Kind == Lookup {
		how := hitOrMiss(s.Hit)
		r.Lookup = &how
	}
	return r
}

// JSON writes the walk's JSON object, indented, and a newline.
func (w *Walk) JSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(w.Report())
}
