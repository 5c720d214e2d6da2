package walkview

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// TextOptions say how the text form looks.
type TextOptions struct {
	Width int  // columns of the drawing; 0: 80. At least 40 are used.
	Color bool // ANSI colours: one for each region
}

// Text writes the walk's text form: a line of what it is, the drawing, and
// the numbered steps.
func (w *Walk) Text(out io.Writer, o TextOptions) error {
	b := bufio.NewWriter(out)
	fmt.Fprintf(b, "%s\n\n", w.title())
	w.draw(b, o)
	b.WriteByte('\n')
	w.steps(b)
	return b.Flush()
}

// title says in one line what the request was.
func (w *Walk) title() string {
	return fmt.Sprintf("%s of %s · %s", w.opcode(), plural(w.length, "byte"), w.subtitle())
}

func (w *Walk) subtitle() string {
	from := plural(uint64(len(w.in.Segments)), "segment") + ", gathered by the " + w.in.Gather
	if w.in.Gather == "inline" {
		from = "inline, nothing gathered"
	}
	return fmt.Sprintf("%s · path MTU %s · %s", from, comma(uint64(w.in.MTU)), plural(w.planned(), "packet"))
}

func (w *Walk) opcode() string {
	switch w.in.Opcode {
	case "send":
		return "SEND"
	case "write":
		return "RDMA WRITE"
	case "read-response":
		return "RDMA READ response"
	}
	return strings.ToUpper(w.in.Opcode)
}

// steps writes the numbered steps, one line for all records of a step.
func (w *Walk) steps(b *bufio.Writer) {
	records := make([][]int, w.last+1)
	for i, n := range w.numbers {
		records[n] = append(records[n], i)
	}
	for n := 1; n <= w.last; n++ {
		name, what := w.describe(records[n])
		fmt.Fprintf(b, "%3d  %-17s %s\n", n, name, what)
	}
}

// describe names a step and says what happened in it.
func (w *Walk) describe(of []int) (name, what string) {
	first := &w.in.Steps[of[0]]
	var told []string
	for _, i := range of {
		if w.in.Steps[i].Kind != Sent {
			told = append(told, w.record(i, len(of) > 1))
		}
	}
	what = strings.Join(told, "; ")
	switch first.Kind {
	case WQE:
		name = "WQE"
		if w.in.Opcode == "read-response" {
			name = "READ request"
		}
	case Packet:
		name = "packets"
		if first.Packet > 0 {
			name = fmt.Sprintf("packet %d", first.Packet+1)
			if len(of) > 1 {
				name += ", lookup"
			}
		}
	case Lookup:
		name = "lookup"
		switch {
		case len(of) > 1:
			name = "lookup, read"
		case w.in.Steps[of[0]-1].Kind == Packet:
			name = "packet 1, lookup"
		}
	case Read:
		name = "read"
	case Handover:
		name = "hand-over"
	case Fault:
		name = "fault"
	case Sent:
		name, what = "sent", w.sent(len(of))
	}
	return name, what
}

// record says what one record reports; more is set where its step has others.
func (w *Walk) record(i int, more bool) string {
	s := &w.in.Steps[i]
	switch s.Kind {
	case WQE:
		return w.request()
	case Packet:
		if s.Packet == 0 {
			return w.plan()
		}
		p := &w.packets[s.Packet]
		if len(p.pieces) == 0 {
			return fmt.Sprintf("%s, from byte %s of the message on", plural(uint64(s.Bytes), "byte"), comma(p.start))
		}
		return fmt.Sprintf("%s, from where the cursor stopped", plural(uint64(s.Bytes), "byte"))
	case Lookup:
		again := ""
		if w.again[i] {
			again = " again"
		}
		at := fmt.Sprintf("segment %d (%s)%s: %s at offset %s", s.Segment, w.in.Segments[s.Segment].MR, again, plural(uint64(s.Bytes), "byte"), comma(uint64(s.Offset)))
		if more {
			at = "lookup of " + at
		}
		if s.Reason != "" {
			return fmt.Sprintf("%s: %s, refused (%s)", at, hitOrMiss(s.Hit), s.Reason)
		}
		return fmt.Sprintf("%s: %s", at, hitOrMiss(s.Hit))
	case Read:
		if more {
			return "read of " + w.read(s)
		}
		return w.read(s)
	case Handover:
		ack := ""
		if s.AckReq {
			ack = ", AckReq set"
		}
		return fmt.Sprintf("packet %d: %s to TX packet build, PSN %d%s", s.Packet+1, plural(uint64(s.Bytes), "byte"), s.PSN, ack)
	case Fault:
		what := "the request is refused"
		if len(w.packets) > 0 {
			what = fmt.Sprintf("packet %d is dropped whole", s.Packet+1)
		}
		if s.Segment >= 0 {
			what += fmt.Sprintf(": segment %d, key 0x%08x, offset %s", s.Segment, s.Key, comma(uint64(s.Offset)))
		}
		return what + ": " + s.Reason
	}
	return ""
}

// request says what was asked for.
func (w *Walk) request() string {
	if w.in.Gather == "inline" {
		return fmt.Sprintf("%s of %s inline: copied into the WQE at the post, no segment, no key", w.opcode(), plural(w.length, "byte"))
	}
	var list []string
	for i, s := range w.in.Segments {
		if i == 6 && len(w.in.Segments) > 8 {
			list = append(list, fmt.Sprintf("and %d more", len(w.in.Segments)-i))
			break
		}
		list = append(list, fmt.Sprintf("%s in %s", comma(uint64(s.Length)), s.MR))
	}
	what := fmt.Sprintf("%s of %s in %s", w.opcode(), plural(w.length, "byte"), plural(uint64(len(w.in.Segments)), "segment"))
	if len(list) > 0 {
		what += ": " + strings.Join(list, ", ")
	}
	return what
}

// plan says how the message is cut into packets (G7).
func (w *Walk) plan() string {
	n := w.planned()
	mtu := uint64(w.in.MTU)
	last := w.length - (n-1)*mtu
	switch {
	case w.length == 0:
		return "1: without payload"
	case n == 1:
		return fmt.Sprintf("1: %s bytes", comma(last))
	case n == 2:
		return fmt.Sprintf("2: %s and %s bytes%s", comma(mtu), comma(last), w.firstCut())
	}
	return fmt.Sprintf("%s: %s of %s and the last of %s bytes%s", comma(n), comma(n-1), comma(mtu), comma(last), w.firstCut())
}

// firstCut says where the first packet ends.
func (w *Walk) firstCut() string {
	if w.in.Gather == "inline" {
		return ""
	}
	end := uint64(w.in.MTU)
	for i, s := range w.in.Segments {
		if end < uint64(s.Length) {
			if end == 0 {
				break
			}
			return fmt.Sprintf("; packet 1 ends %s bytes into segment %d", comma(end), i)
		}
		end -= uint64(s.Length)
	}
	return "; packet 1 ends where a segment ends"
}

// read says what was read and where the cursor is then (G8).
func (w *Walk) read(s *Step) string {
	length := w.in.Segments[s.Segment].Length
	end := s.Offset + s.Bytes
	what := fmt.Sprintf("%s of segment %d", plural(uint64(s.Bytes), "byte"), s.Segment)
	switch {
	case s.Bytes == length:
		what = fmt.Sprintf("all %s of segment %d", plural(uint64(s.Bytes), "byte"), s.Segment)
	case end == length:
		what = fmt.Sprintf("the other %s of segment %d", plural(uint64(s.Bytes), "byte"), s.Segment)
	}
	if end < length {
		return fmt.Sprintf("%s; the cursor stays in it, at offset %s", what, comma(uint64(end)))
	}
	for i := s.Segment + 1; i < len(w.in.Segments); i++ {
		if w.in.Segments[i].Length > 0 {
			return fmt.Sprintf("%s; the cursor moves to segment %d", what, i)
		}
	}
	return what + "; nothing is left"
}

// sent says what left the port.
func (w *Walk) sent(n int) string {
	var psns []string
	for _, p := range w.packets {
		if p.sent {
			psns = append(psns, strconv.FormatUint(uint64(p.psn), 10))
		}
	}
	which := fmt.Sprintf("all %s packets leave", comma(uint64(n)))
	switch {
	case uint64(n) < w.planned():
		which = fmt.Sprintf("only %s of %s leaves the port", comma(uint64(n)), plural(w.planned(), "packet"))
		if n > 1 {
			which = fmt.Sprintf("only %s of %s leave the port", comma(uint64(n)), plural(w.planned(), "packet"))
		}
	case n == 1:
		which = "the packet leaves"
	case n == 2:
		which = "both packets leave"
	}
	if len(psns) > 2 {
		return fmt.Sprintf("%s, PSN %s to %s", which, psns[0], psns[len(psns)-1])
	}
	return fmt.Sprintf("%s, PSN %s", which, strings.Join(psns, " and "))
}

// comma writes a number with a comma at each thousand.
func comma(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n uint64, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return comma(n) + " " + unit + "s"
}
