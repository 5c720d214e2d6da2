package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"rnic/hw"
)

// segment is one --sge: bytes of a region that the walk makes.
type segment struct {
	mr     string
	length uint32
}

// walkOptions are what `walk` was asked for.
type walkOptions struct {
	mtu     int
	sges    []string
	opcode  string
	inline  bool
	gather  string
	svg     string
	parsed  []segment // of sges, or the default
	total   uint64    // bytes of the message
	pathMTU hw.MTU
}

// maxWalk bounds a walk's message: each of its steps is kept and shown.
const maxWalk = 16 << 20

// The walk's opcodes.
const (
	opSend         = "send"
	opWrite        = "write"
	opReadResponse = "read-response"
)

// The chapter's request: 1 KiB and 512 bytes in MR 1, 6 KiB in MR 2.
var chapter = []string{"1:1024", "2:6144", "1:512"}

// check parses the options and refuses, with the reason, what no card can do.
func (o *walkOptions) check() error {
	var ok bool
	if o.pathMTU, ok = hw.MTUFor(o.mtu); !ok {
		return usagef("use --mtu 256, 512, 1024, 2048 or 4096", "--mtu %d is no path MTU", o.mtu)
	}
	switch o.opcode {
	case opSend, opWrite, opReadResponse:
	default:
		return usagef("use --opcode send, write or read-response", "--opcode %q: no such operation gathers", o.opcode)
	}
	if o.gather != "card" && o.gather != "host" {
		return usagef("use --gather card or host", "--gather %q is neither card nor host", o.gather)
	}
	if o.inline && o.opcode == opReadResponse {
		return usagef("leave out --inline", "--inline: a READ response is read from the responder's memory, nobody posts it (rule G3)")
	}
	if o.inline && o.gather == "host" {
		return usagef("leave out one of them", "--inline and --gather host: an inline payload is in the WQE, nobody gathers it (rule G3)")
	}
	if o.gather == "host" && o.opcode == opReadResponse {
		return usagef("leave out --gather host", "--gather host: a READ response is one contiguous range, which the card reads itself")
	}
	sges := o.sges
	if len(sges) == 0 {
		switch {
		case o.inline:
			sges = []string{"1:64"}
		case o.opcode == opReadResponse:
			sges = []string{"1:7680"}
		default:
			sges = chapter
		}
	}
	if len(sges) > hw.MaxSegments {
		return usagef(fmt.Sprintf("give at most %d --sge", hw.MaxSegments), "%d segments: a work request has at most %d (rule G6)", len(sges), hw.MaxSegments)
	}
	if o.opcode == opReadResponse && len(sges) != 1 {
		return usagef("give one --sge", "%d segments: a READ response is one segment, named by the request's RETH (rule G4)", len(sges))
	}
	o.parsed, o.total = nil, 0
	for _, s := range sges {
		seg, err := parseSegment(s)
		if err != nil {
			return usagef("write --sge MR:LEN, as --sge 1:1024 or --sge log:4KiB", "--sge %q: %w", s, err)
		}
		o.parsed = append(o.parsed, seg)
		o.total += uint64(seg.length)
	}
	if o.total > maxWalk {
		return usagef("ask for less", "%d bytes: a walk keeps every step and takes at most %d bytes (a message has at most %d)", o.total, maxWalk, uint64(hw.MaxMessage))
	}
	return nil
}

var mrName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,15}$`)

// parseSegment reads MR:LEN. A region's name of digits alone is shown as "MR 1".
func parseSegment(s string) (segment, error) {
	name, length, ok := strings.Cut(s, ":")
	if !ok {
		return segment{}, fmt.Errorf("no colon between region and length")
	}
	if !mrName.MatchString(name) {
		return segment{}, fmt.Errorf("region %q is not made of 1 to 16 letters, digits, '_', '.' and '-'", name)
	}
	n, err := parseSize(length)
	if err != nil {
		return segment{}, err
	}
	if n > hw.MaxMessage {
		return segment{}, fmt.Errorf("%d bytes is more than the longest message, %d", n, uint64(hw.MaxMessage))
	}
	if _, err := strconv.Atoi(name); err == nil {
		name = "MR " + name
	}
	return segment{name, uint32(n)}, nil
}

// parseSize reads a byte count: decimal digits, with KiB, MiB or GiB behind where wanted.
func parseSize(s string) (uint64, error) {
	digits, shift := s, 0
	for _, u := range []struct {
		suffix string
		shift  int
	}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}} {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, shift = d, u.shift
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || digits[0] == '+' {
		return 0, fmt.Errorf("length %q is no byte count", s)
	}
	return n << shift, nil
}

// records bounds how many trace records the walk can make: a WQE or READ, and for each packet its
// begin, its hand-over and its leaving, a lookup and a read for each piece, and one fault.
func (o *walkOptions) records() int {
	packets := max(1, (int(o.total)+o.mtu-1)/o.mtu)
	pieces := packets + len(o.parsed)
	return 2 + 3*packets + 2*pieces
}
