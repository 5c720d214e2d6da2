package walkview

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"rnic/hw/gather/oracle"
)

// chapter is the chapter's walk as a card reports it: packet 1 leaves before
// packet 2 is begun.
func chapter() Input {
	return Input{
		Opcode: "send", MTU: 4096, Gather: "card",
		Segments: []Segment{{"MR 1", 1024}, {"MR 2", 6144}, {"MR 1", 512}},
		Steps: []Step{
			{Kind: WQE, Bytes: 7680},
			{Kind: Packet, Packet: 0, Bytes: 4096},
			{Kind: Lookup, Packet: 0, Segment: 0, Offset: 0, Bytes: 1024},
			{Kind: Read, Packet: 0, Segment: 0, Offset: 0, Bytes: 1024},
			{Kind: Lookup, Packet: 0, Segment: 1, Offset: 0, Bytes: 3072},
			{Kind: Read, Packet: 0, Segment: 1, Offset: 0, Bytes: 3072},
			{Kind: Handover, Packet: 0, Bytes: 4096, PSN: 100},
			{Kind: Sent, Packet: 0, Bytes: 4154, PSN: 100},
			{Kind: Packet, Packet: 1, Bytes: 3584},
			{Kind: Lookup, Packet: 1, Segment: 1, Offset: 3072, Bytes: 3072, Hit: true},
			{Kind: Read, Packet: 1, Segment: 1, Offset: 3072, Bytes: 3072},
			{Kind: Lookup, Packet: 1, Segment: 2, Offset: 0, Bytes: 512, Hit: true},
			{Kind: Read, Packet: 1, Segment: 2, Offset: 0, Bytes: 512},
			{Kind: Handover, Packet: 1, Bytes: 3584, PSN: 101, AckReq: true},
			{Kind: Sent, Packet: 1, Bytes: 3642, PSN: 101},
		},
	}
}

// inline is 400 bytes in the WQE at an MTU of 256.
func inline() Input {
	return Input{
		Opcode: "send", MTU: 256, Gather: "inline", Inline: 400,
		Steps: []Step{
			{Kind: WQE, Bytes: 400},
			{Kind: Packet, Bytes: 256}, {Kind: Handover, Bytes: 256, PSN: 7}, {Kind: Sent, Bytes: 314, PSN: 7},
			{Kind: Packet, Packet: 1, Bytes: 144}, {Kind: Handover, Packet: 1, Bytes: 144, PSN: 8, AckReq: true}, {Kind: Sent, Packet: 1, Bytes: 202, PSN: 8},
		},
	}
}

// empty is a message without bytes.
func empty() Input {
	return Input{
		Opcode: "write", MTU: 1024, Gather: "card", Segments: []Segment{{"MR 1", 0}},
		Steps: []Step{{Kind: WQE}, {Kind: Packet}, {Kind: Handover, PSN: 9, AckReq: true}, {Kind: Sent, Bytes: 74, PSN: 9}},
	}
}

// faulted is the chapter's walk with MR 1 gone before packet 2 reaches it.
func faulted() Input {
	in := chapter()
	in.Steps[11].Hit, in.Steps[11].Reason = false, "KEY_INDEX"
	in.Steps = append(in.Steps[:12:12], Step{Kind: Fault, Packet: 1, Segment: 2, Key: 0x111, Reason: "KEY_INDEX"})
	return in
}

// tooLong has no packet: the request itself is at fault.
func tooLong() Input {
	return Input{
		Opcode: "send", MTU: 1024, Gather: "card", Segments: []Segment{{"A", 1 << 31}, {"B", 1}},
		Steps: []Step{{Kind: WQE, Bytes: 1<<31 + 1}, {Kind: Fault, Segment: 1, Key: 0x203, Reason: "LENGTH"}},
	}
}

// response is a READ response of one segment in three packets; the responder
// fetches no WQE.
func response() Input {
	in := Input{Opcode: "read-response", MTU: 1024, Gather: "card", Segments: []Segment{{"MR 1", 2500}}}
	for i, n := range []uint32{1024, 1024, 452} {
		p := uint32(i)
		in.Steps = append(in.Steps, Step{Kind: Packet, Packet: p, Bytes: n},
			Step{Kind: Lookup, Packet: p, Offset: p * 1024, Bytes: n, Hit: i > 0}, Step{Kind: Read, Packet: p, Offset: p * 1024, Bytes: n},
			Step{Kind: Handover, Packet: p, Bytes: n, PSN: 0xffffff + p&0xffffff}, Step{Kind: Sent, Packet: p, Bytes: n + 58, PSN: 0xffffff + p&0xffffff})
	}
	for i := range in.Steps {
		in.Steps[i].PSN &= 0xffffff
	}
	return in
}

var examples = map[string]func() Input{
	"chapter": chapter, "inline": inline, "empty": empty, "faulted": faulted, "too long": tooLong, "response": response,
}

func mustNew(t testing.TB, in Input) *Walk {
	t.Helper()
	w, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func text(t testing.TB, w *Walk, o TextOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := w.Text(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// numbered returns the lines of the text form that begin with a step's number.
func numbered(s string) (lines []string) {
	for l := range strings.Lines(s) {
		f := strings.Fields(l)
		if len(f) == 0 {
			continue
		}
		if n, err := strconv.Atoi(f[0]); err == nil && n == len(lines)+1 {
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	return lines
}

// TestChapterText holds the twelve steps against the chapter's own list.
func TestChapterText(t *testing.T) {
	steps := numbered(text(t, mustNew(t, chapter()), TextOptions{}))
	want := [][]string{ // what the chapter says in each step
		{"WQE", "SEND", "7,680", "1,024 in MR 1", "6,144 in MR 2", "512 in MR 1"},
		{"2:", "4,096", "3,584", "3,072 bytes into segment 1"},
		{"packet 1", "lookup", "segment 0", "MR 1", "1,024"},
		{"read", "all 1,024", "moves to segment 1"},
		{"lookup", "segment 1", "MR 2", "3,072 bytes at offset 0"},
		{"read", "3,072 bytes of segment 1", "stays", "offset 3,072"},
		{"hand-over", "packet 1", "4,096", "TX packet build"},
		{"packet 2", "lookup of segment 1", "again", "offset 3,072", "hit"},
		{"read", "other 3,072", "moves to segment 2"},
		{"lookup", "read", "segment 2", "512", "nothing is left"},
		{"hand-over", "packet 2", "3,584", "AckReq"},
		{"both packets leave"},
	}
	if len(steps) != len(want) {
		t.Fatalf("%d steps, the chapter has %d:\n%s", len(steps), len(want), strings.Join(steps, "\n"))
	}
	for i, words := range want {
		for _, word := range words {
			if !strings.Contains(steps[i], word) {
				t.Errorf("step %d does not say %q: %s", i+1, word, steps[i])
			}
		}
	}
	if strings.Contains(steps[6], "AckReq") {
		t.Errorf("AckReq on packet 1: %s", steps[6])
	}
	// A card that sends both packets at the end reports the same steps.
	in := chapter()
	in.Steps = append(slices.Delete(in.Steps, 7, 8), in.Steps[7])
	in.Steps[13], in.Steps[14] = Step{Kind: Sent, Packet: 0, Bytes: 4154, PSN: 100}, Step{Kind: Sent, Packet: 1, Bytes: 3642, PSN: 101}
	if again := numbered(text(t, mustNew(t, in), TextOptions{})); !slices.Equal(again, steps) {
		t.Errorf("the order of sent records changed the text:\n%s", strings.Join(again, "\n"))
	}
}

func TestChapterJSON(t *testing.T) {
	var b bytes.Buffer
	if err := mustNew(t, chapter()).JSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Opcode, Gather string
		MTU, Length    int
		Steps          []struct {
			Step                           int
			Kind                           string
			Packet, Segment, Offset, Bytes any
			Lookup                         any
		}
		Packets []struct {
			PSN, Bytes int
			AckReq     bool `json:"ack_req"`
			Segments   []struct {
				Segment, Offset, Bytes int
				Lookup                 string
			}
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Opcode != "send" || got.Gather != "card" || got.MTU != 4096 || got.Length != 7680 {
		t.Errorf("head: %+v", got)
	}
	var lines []string
	for _, s := range got.Steps {
		lines = append(lines, fmt.Sprint(s.Step, s.Kind, s.Packet, s.Segment, s.Offset, s.Bytes, s.Lookup))
	}
	want := []string{
		"1 wqe <nil> <nil> <nil> 7680 <nil>",
		"2 packet 1 <nil> <nil> 4096 <nil>",
		"3 lookup 1 0 0 1024 miss", "4 read 1 0 0 1024 <nil>",
		"5 lookup 1 1 0 3072 miss", "6 read 1 1 0 3072 <nil>",
		"7 handover 1 <nil> <nil> 4096 <nil>", "12 sent 1 <nil> <nil> 4154 <nil>",
		"8 packet 2 <nil> <nil> 3584 <nil>",
		"8 lookup 2 1 3072 3072 hit", "9 read 2 1 3072 3072 <nil>",
		"10 lookup 2 2 0 512 hit", "10 read 2 2 0 512 <nil>",
		"11 handover 2 <nil> <nil> 3584 <nil>", "12 sent 2 <nil> <nil> 3642 <nil>",
	}
	for i := range want { // Sprint puts spaces only between non-strings
		want[i] = strings.ReplaceAll(want[i], " ", "")
		if i < len(lines) {
			lines[i] = strings.ReplaceAll(lines[i], " ", "")
		}
	}
	if !slices.Equal(lines, want) {
		t.Errorf("steps\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	const packets = "[{100 4096 false [{0 0 1024 miss} {1 0 3072 miss}]} {101 3584 true [{1 3072 3072 hit} {2 0 512 hit}]}]"
	if s := fmt.Sprint(got.Packets); s != packets {
		t.Errorf("packets %s, want %s", s, packets)
	}
}

func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("../../../../docs/json/walk.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func valid(t testing.TB, s *jsonschema.Schema, w *Walk) error {
	t.Helper()
	var b bytes.Buffer
	if err := w.JSON(&b); err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(&b)
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestSchema(t *testing.T) {
	s := schema(t)
	for name, in := range examples {
		if err := valid(t, s, mustNew(t, in())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The schema tells: what it should refuse, it refuses.
	for name, spoil := range map[string]func(v map[string]any){
		"no gather":         func(v map[string]any) { delete(v, "gather") },
		"opcode":            func(v map[string]any) { v["opcode"] = "SEND" },
		"kind":              func(v map[string]any) { v["steps"].([]any)[3].(map[string]any)["kind"] = "write" },
		"lookup missing":    func(v map[string]any) { v["steps"].([]any)[2].(map[string]any)["lookup"] = nil },
		"lookup of a read":  func(v map[string]any) { v["steps"].([]any)[3].(map[string]any)["lookup"] = "hit" },
		"no ack_req":        func(v map[string]any) { delete(v["packets"].([]any)[0].(map[string]any), "ack_req") },
		"unknown key":       func(v map[string]any) { v["Packets"] = 1 },
		"segment not there": func(v map[string]any) { v["steps"].([]any)[2].(map[string]any)["segment"] = nil },
	} {
		raw, _ := json.Marshal(mustNew(t, chapter()).Report())
		var v map[string]any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		spoil(v)
		if err := s.Validate(v); err == nil {
			t.Errorf("%s: the schema takes it", name)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Input){
		"records were lost":       func(in *Input) { in.Steps[4].Lost = 2 },
		"no MTU":                  func(in *Input) { in.MTU = 0 },
		"inline with segments":    func(in *Input) { in.Gather = "inline" },
		"WQE of another length":   func(in *Input) { in.Steps[0].Bytes-- },
		"packet not next":         func(in *Input) { in.Steps[1].Packet = 1 },
		"packet of another size":  func(in *Input) { in.Steps[1].Bytes-- },
		"segment not there":       func(in *Input) { in.Steps[2].Segment = 3 },
		"segment below 0":         func(in *Input) { in.Steps[2].Segment = -1 },
		"outside the segment":     func(in *Input) { in.Steps[2].Offset = 1 },
		"offset wraps":            func(in *Input) { in.Steps[2].Offset = 0xffff_ffff },
		"read without lookup":     func(in *Input) { in.Steps = slices.Delete(in.Steps, 2, 3) },
		"read of another piece":   func(in *Input) { in.Steps[5].Bytes-- },
		"read after a failure":    func(in *Input) { in.Steps[4].Reason = "PD" },
		"read missing":            func(in *Input) { in.Steps = slices.Delete(in.Steps, 5, 6) },
		"hand-over of less":       func(in *Input) { in.Steps[6].Bytes-- },
		"hand-over missing":       func(in *Input) { in.Steps = slices.Delete(in.Steps, 6, 8) },
		"sent before hand-over":   func(in *Input) { in.Steps[6], in.Steps[7] = in.Steps[7], in.Steps[6] },
		"sent with another PSN":   func(in *Input) { in.Steps[7].PSN++ },
		"sent of no packet":       func(in *Input) { in.Steps[7].Packet = 9 },
		"record of an old packet": func(in *Input) { in.Steps[9].Packet = 0 },
		"lookup before a packet":  func(in *Input) { in.Steps = in.Steps[2:] },
		"two WQEs":                func(in *Input) { in.Steps = append(in.Steps, in.Steps[0]) },
		"unknown kind":            func(in *Input) { in.Steps[3].Kind = "write" },
		"a step after the fault": func(in *Input) {
			*in = faulted()
			in.Steps = append(in.Steps, Step{Kind: Lookup, Packet: 1, Segment: 2, Bytes: 512})
		},
		"fault in no segment": func(in *Input) { *in = faulted(); in.Steps[len(in.Steps)-1].Segment = 3 },
	} {
		in := chapter()
		spoil(&in)
		if _, err := New(in); !errors.Is(err, ErrTrace) {
			t.Errorf("%s: %v, want ErrTrace", name, err)
		}
	}
	// Cut off anywhere, a walk is one that is not over.
	for n := range chapter().Steps {
		in := chapter()
		in.Steps = in.Steps[:n]
		w, err := New(in)
		if err != nil {
			t.Errorf("the first %d records: %v", n, err)
			continue
		}
		text(t, w, TextOptions{})
		if err := w.SVG(io.Discard); err != nil {
			t.Error(err)
		}
	}
}

func TestOtherWalksText(t *testing.T) {
	for name, want := range map[string][]string{
		"inline":   {"inline", "2: 256 and 144", "hand-over packet 1: 256 bytes", "packet 2 144 bytes, from byte 256", "hand-over packet 2: 144 bytes|AckReq", "both packets leave, PSN 7 and 8"},
		"empty":    {"RDMA WRITE of 0 bytes", "without payload", "hand-over packet 1: 0 bytes|AckReq", "the packet leaves, PSN 9"},
		"faulted":  {"WQE", "packets", "lookup", "read", "lookup", "read", "hand-over", "packet 2, lookup", "read", "lookup segment 2|refused (KEY_INDEX)", "fault packet 2 is dropped whole: segment 2, key 0x00000111, offset 0: KEY_INDEX", "only 1 of 2 packets leaves the port, PSN 100"},
		"too long": {"SEND of 2,147,483,649 bytes", "fault the request is refused: segment 1, key 0x00000203|LENGTH"},
		"response": {"3: 2 of 1,024 and the last of 452", "packet 1, lookup", "read", "hand-over", "packet 2, lookup|again", "read", "hand-over", "packet 3, lookup|hit", "read|nothing is left", "hand-over", "all 3 packets leave, PSN 16777215 to 1"},
	} {
		got := numbered(text(t, mustNew(t, examples[name]()), TextOptions{}))
		if len(got) != len(want) {
			t.Errorf("%s: %d steps, want %d:\n%s", name, len(got), len(want), strings.Join(got, "\n"))
			continue
		}
		for i := range want {
			for part := range strings.SplitSeq(want[i], "|") {
				if line := strings.Join(strings.Fields(got[i]), " "); !strings.Contains(line, part) {
					t.Errorf("%s, step %d does not say %q: %s", name, i+1, part, line)
				}
			}
		}
	}
}

// TestDrawingToScale measures the chapter's drawing: edges stand at their
// bytes' columns.
func TestDrawingToScale(t *testing.T) {
	lines := strings.Split(text(t, mustNew(t, chapter()), TextOptions{Width: 131}), "\n")[2:]
	// 120 columns for 7,680 bytes: 64 bytes each.
	columns := func(line, of string) (at []int) {
		for i, r := range []rune(line) {
			if strings.ContainsRune(of, r) {
				at = append(at, i-10)
			}
		}
		return at
	}
	for _, tc := range []struct {
		line int
		of   string
		want []int
	}{
		{0, "┌┬┐", []int{0, 16, 112, 120}}, // 1,024 and 7,168 of 7,680
		{2, "└┴┬┘", []int{0, 16, 64, 112, 120}},
		{3, "┆", []int{64}}, // the cut, at 4,096
		{3, "●", []int{5, 37}},
		{3, "○", []int{86, 114}},
		{5, "┌┼┐", []int{0, 64, 120}},
		{7, "└┴┘", []int{0, 64, 120}},
	} {
		if got := columns(lines[tc.line], tc.of); !slices.Equal(got, tc.want) {
			t.Errorf("line %d, %s: columns %v, want %v\n%s", tc.line, tc.of, got, tc.want, strings.Join(lines[:8], "\n"))
		}
	}
	if plain, colored := text(t, mustNew(t, chapter()), TextOptions{}), text(t, mustNew(t, chapter()), TextOptions{Color: true}); strings.Contains(plain, "\x1b") || !strings.Contains(colored, "\x1b[36m") {
		t.Error("colours where none were asked for, or none where they were")
	}
}

// element is an SVG element with its attributes.
type element struct {
	name  string
	attrs map[string]string
}

func elements(t testing.TB, w *Walk) (out []element, chars string) {
	t.Helper()
	var b bytes.Buffer
	if err := w.SVG(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(&b)
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return out, chars
		}
		if err != nil {
			t.Fatal(err)
		}
		switch k := tok.(type) {
		case xml.StartElement:
			e := element{k.Name.Local, map[string]string{}}
			for _, a := range k.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			out = append(out, e)
		case xml.CharData:
			chars += string(k)
		}
	}
}

func TestSVGToScale(t *testing.T) {
	all, _ := elements(t, mustNew(t, chapter()))
	number := func(e element, k string) float64 {
		f, err := strconv.ParseFloat(e.attrs[k], 64)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	count := map[string]int{}
	var segments, packets []float64
	for _, e := range all {
		if e.name == "svg" && e.attrs["viewBox"] == "" {
			t.Error("no viewBox")
		}
		if e.attrs["href"] != "" || e.name == "image" || e.name == "script" || e.name == "link" {
			t.Errorf("not self-contained: %v", e)
		}
		class := e.attrs["class"]
		count[class+" "+e.name]++
		switch {
		case class == "segment":
			segments = append(segments, number(e, "width")+1)
		case class == "packet":
			packets = append(packets, number(e, "width")+2)
		}
	}
	unit := (svgRight - svgLeft) / 7680
	near := func(got []float64, want ...float64) bool {
		return len(got) == len(want) && !slices.ContainsFunc([]int{0, 1, 2}[:len(got)], func(i int) bool {
			return got[i] < want[i]*unit-.02 || got[i] > want[i]*unit+.02
		})
	}
	if !near(segments, 1024, 6144, 512) || !near(packets, 4096, 3584) {
		t.Errorf("widths of segments %v, packets %v are not to scale", segments, packets)
	}
	// Two misses and two hits, and one of each in the legend; one cut and its legend.
	for what, n := range map[string]int{"miss circle": 3, "hit circle": 3, "failed circle": 1, "piece rect": 4, "cut path": 1, "cut line": 1} {
		if count[what] != n {
			t.Errorf("%d × %s, want %d", count[what], what, n)
		}
	}
}

func TestSVGEscapesNames(t *testing.T) {
	in := chapter()
	for i := range in.Segments {
		in.Segments[i].MR = `</svg><script>"&`
	}
	all, chars := elements(t, mustNew(t, in))
	for _, e := range all {
		if e.name == "script" {
			t.Error("a region's name became an element")
		}
	}
	if !strings.Contains(chars, in.Segments[0].MR) {
		t.Error("the region's name is not in the picture")
	}
}

// TestRandomWalks takes walks from the oracle of the rules and wants the same
// packets back, in every form, at every size of list.
func TestRandomWalks(t *testing.T) {
	s := schema(t)
	for i := range 100 {
		rng := rand.New(rand.NewPCG(77, uint64(i)))
		mtu := uint32(256 << rng.IntN(5))
		req := oracle.Request{Op: "send", Reliable: true, MTU: mtu, AckEvery: uint32(rng.IntN(3))}
		in := Input{Opcode: "send", MTU: mtu, Gather: "card"}
		world := oracle.World{
			Regions: map[uint32]oracle.Region{1: {Valid: true, Length: 1 << 20}, 2: {Valid: true, Length: 1 << 20}},
			Read:    func(iova uint64) (byte, bool) { return 0, true }, Sets: 1, Ways: 1,
		}
		for range rng.IntN(64) {
			n := uint32(rng.IntN(1 << rng.IntN(15)))
			key := uint32(1 + rng.IntN(2))
			if rng.IntN(400) == 0 {
				key = 3
			}
			req.Segments = append(req.Segments, oracle.Segment{Length: n, Key: key << 8})
			in.Segments = append(in.Segments, Segment{fmt.Sprintf("MR %d", key), n})
		}
		walk := world.Gather(req)
		total := uint32(0)
		for _, g := range req.Segments {
			total += g.Length
		}
		in.Steps = append(in.Steps, Step{Kind: WQE, Bytes: total})
		for _, k := range walk.Steps {
			step := Step{Kind: Kind(k.Kind), Packet: uint32(k.Packet), Segment: k.Segment, Offset: k.Offset, Bytes: k.Bytes, Hit: k.Hit, Reason: k.Reason, PSN: uint32(k.Packet)}
			if k.Kind == "handover" {
				step.AckReq = walk.Packets[k.Packet].AckReq
			}
			in.Steps = append(in.Steps, step)
			if k.Kind == "handover" {
				in.Steps = append(in.Steps, Step{Kind: Sent, Packet: uint32(k.Packet), PSN: uint32(k.Packet)})
			}
		}
		w, err := New(in)
		if err != nil {
			t.Fatalf("walk %d: %v", i, err)
		}
		r := w.Report()
		if len(r.Packets) != len(walk.Packets) || (r.Fault == nil) != (walk.Fault == nil) {
			t.Fatalf("walk %d: %d packets, fault %v; the rules say %d, %v", i, len(r.Packets), r.Fault, len(walk.Packets), walk.Fault)
		}
		for n, p := range walk.Packets {
			var pieces []PieceReport
			for _, k := range walk.Steps {
				if k.Kind == "lookup" && k.Packet == n {
					pieces = append(pieces, PieceReport{k.Segment, k.Offset, k.Bytes, hitOrMiss(k.Hit)})
				}
			}
			q := r.Packets[n]
			if int(q.Bytes) != len(p.Payload) || q.AckReq != p.AckReq || !reflect.DeepEqual(append([]PieceReport{}, pieces...), q.Segments) {
				t.Fatalf("walk %d, packet %d: %+v, the rules say %d bytes, ackreq %v, %+v", i, n+1, q, len(p.Payload), p.AckReq, pieces)
			}
		}
		if err := valid(t, s, w); err != nil {
			t.Fatalf("walk %d: %v", i, err)
		}
		for _, line := range strings.Split(text(t, w, TextOptions{Width: 40 + i}), "\n\n")[1:2] {
			for l := range strings.Lines(line) {
				if n := len([]rune(strings.TrimRight(l, "\n"))); n > max(40+i, 50) {
					t.Fatalf("walk %d: a line of %d columns in a drawing of %d", i, n, 40+i)
				}
			}
		}
		elements(t, w)
	}
}
