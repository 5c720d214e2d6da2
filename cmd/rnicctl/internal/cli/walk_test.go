package cli

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"rnic/hw/gather/oracle"
)

// walkOf runs `walk --json` and holds it to its schema.
func walkOf(t *testing.T, args ...string) map[string]any {
	t.Helper()
	return rnicctl(t, append([]string{"walk", "--json"}, args...)...).well(t).object(t, "walk")
}

// TestG22_ChapterWalk: the default is the chapter's walk, number for number.
func TestG22_ChapterWalk(t *testing.T) {
	sockets(t)
	w := walkOf(t)
	if w["opcode"] != "send" || w["mtu"] != 4096.0 || w["length"] != 7680.0 || w["gather"] != "card" || w["fault"] != nil {
		t.Errorf("%v", w)
	}
	// Step of the chapter, kind, packet, segment, offset, bytes.
	want := [][]any{
		{1, "wqe", nil, nil, nil, 7680},
		{2, "packet", 1, nil, nil, 4096},
		{3, "lookup", 1, 0, 0, 1024},
		{4, "read", 1, 0, 0, 1024},
		{5, "lookup", 1, 1, 0, 3072},
		{6, "read", 1, 1, 0, 3072},
		{7, "handover", 1, nil, nil, 4096},
		{8, "packet", 2, nil, nil, 3584},
		{8, "lookup", 2, 1, 3072, 3072},
		{9, "read", 2, 1, 3072, 3072},
		{10, "lookup", 2, 2, 0, 512},
		{10, "read", 2, 2, 0, 512},
		{11, "handover", 2, nil, nil, 3584},
	}
	var steps [][]any
	sent := 0
	for _, s := range w["steps"].([]any) {
		s := s.(map[string]any)
		if s["kind"] == "sent" {
			sent++
			if s["step"] != 12.0 || s["packet"] != float64(sent) {
				t.Errorf("%v", s)
			}
			continue
		}
		steps = append(steps, []any{s["step"], s["kind"], s["packet"], s["segment"], s["offset"], s["bytes"]})
	}
	if fmt.Sprint(steps) != fmt.Sprint(want) || sent != 2 {
		t.Errorf("steps\n%v\nwant\n%v\n%d packets sent", steps, want, sent)
	}
	packets := w["packets"].([]any)
	if len(packets) != 2 {
		t.Fatalf("packets %v", packets)
	}
	first, second := packets[0].(map[string]any), packets[1].(map[string]any)
	if first["bytes"] != 4096.0 || first["ack_req"] != false || second["bytes"] != 3584.0 || second["ack_req"] != true ||
		second["psn"] != float64((int(first["psn"].(float64))+1)&0xffffff) {
		t.Errorf("packets %v", packets)
	}
	for i, want := range []string{"0 0 1024 miss, 1 0 3072 miss", "1 3072 3072 hit, 2 0 512 hit"} {
		var got []string
		for _, s := range packets[i].(map[string]any)["segments"].([]any) {
			s := s.(map[string]any)
			got = append(got, fmt.Sprint(s["segment"], " ", s["offset"], " ", s["bytes"], " ", s["lookup"]))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("packet %d: %v, want %s", i+1, got, want)
		}
	}
}

// TestWalkText: the text form numbers the chapter's twelve steps, and draws.
func TestWalkText(t *testing.T) {
	sockets(t)
	r := rnicctl(t, "walk").well(t)
	numbered := regexp.MustCompile(`(?m)^ *([0-9]+)  [a-zA-Z]`).FindAllStringSubmatch(r.out, -1)
	if len(numbered) != 12 {
		t.Fatalf("%d steps:\n%s", len(numbered), r.out)
	}
	for i, m := range numbered {
		if m[1] != strconv.Itoa(i+1) {
			t.Errorf("step %s at place %d", m[1], i+1)
		}
	}
	for _, drawn := range []string{"segments", "lookups", "packets", "cut"} {
		if !strings.Contains(r.out, drawn) {
			t.Errorf("the drawing lacks %q", drawn)
		}
	}
	if strings.Contains(r.out, "\x1b") {
		t.Error("colour without a terminal")
	}
	if r := rnicctl(t, "walk", "--color", "always").well(t); !strings.Contains(r.out, "\x1b[") {
		t.Error("--color always gives none")
	}
}

// TestWalkAgainstOracle: what the card reports of random requests is what the oracle, written from the rules
// alone, says of them: packets, AckReq, segments visited, offsets, lookups, hit or miss.
func TestWalkAgainstOracle(t *testing.T) {
	sockets(t)
	rng := rand.New(rand.NewPCG(1, 22))
	for n := range 24 {
		mtu := 256 << rng.IntN(5)
		op := []string{"send", "write"}[rng.IntN(2)]
		count := 1 + rng.IntN(63)
		args := []string{"--mtu", strconv.Itoa(mtu), "--opcode", op}
		w := oracle.World{Regions: map[uint32]oracle.Region{}, Sets: 64, Ways: 4, Read: func(uint64) (byte, bool) { return 0, true }}
		req := oracle.Request{Op: op, Reliable: true, MTU: uint32(mtu), PD: 1}
		next := map[int]uint64{}
		for range count {
			mr := 1 + rng.IntN(9)
			length := rng.IntN(1 << rng.IntN(13))
			args = append(args, "--sge", fmt.Sprintf("%d:%d", mr, length))
			req.Segments = append(req.Segments, oracle.Segment{Addr: next[mr], Length: uint32(length), Key: uint32(mr) << 8})
			next[mr] += uint64(length)
		}
		for mr := 1; mr <= 9; mr++ {
			w.Regions[uint32(mr)] = oracle.Region{Valid: true, PD: 1, Length: max(next[mr], 1)}
		}
		want := w.Gather(req)
		got := walkOf(t, args...)
		name := fmt.Sprintf("walk %d: %s", n, strings.Join(args, " "))

		packets := got["packets"].([]any)
		if len(packets) != len(want.Packets) || want.Fault != nil {
			t.Fatalf("%s: %d packets, the oracle has %d", name, len(packets), len(want.Packets))
		}
		for i, p := range packets {
			p := p.(map[string]any)
			if p["bytes"] != float64(len(want.Packets[i].Payload)) || p["ack_req"] != want.Packets[i].AckReq {
				t.Errorf("%s: packet %d: %v bytes, AckReq %v; want %d, %v", name, i, p["bytes"], p["ack_req"], len(want.Packets[i].Payload), want.Packets[i].AckReq)
			}
		}
		var a, b []string
		for _, s := range want.Steps {
			switch s.Kind {
			case "lookup":
				a = append(a, fmt.Sprint("lookup ", s.Packet, s.Segment, s.Offset, s.Bytes, s.Hit))
			case "read":
				a = append(a, fmt.Sprint("read ", s.Packet, s.Segment, s.Offset, s.Bytes))
			}
		}
		for _, s := range got["steps"].([]any) {
			s := s.(map[string]any)
			num := func(k string) int { return int(s[k].(float64)) }
			switch s["kind"] {
			case "lookup":
				b = append(b, fmt.Sprint("lookup ", num("packet")-1, num("segment"), num("offset"), num("bytes"), s["lookup"] == "hit"))
			case "read":
				b = append(b, fmt.Sprint("read ", num("packet")-1, num("segment"), num("offset"), num("bytes")))
			}
		}
		if strings.Join(a, "\n") != strings.Join(b, "\n") {
			t.Fatalf("%s: steps\n%s\nthe oracle has\n%s", name, strings.Join(b, "\n"), strings.Join(a, "\n"))
		}
	}
}

// TestG13_ReadResponseNeverAsks: a READ response is the responder's gather of one segment, and none of its packets
// asks for an acknowledgement.
func TestG13_ReadResponseNeverAsks(t *testing.T) {
	sockets(t)
	w := walkOf(t, "--opcode", "read-response", "--sge", "1:10000", "--mtu", "2048")
	packets := w["packets"].([]any)
	if len(packets) != 5 || w["length"] != 10000.0 {
		t.Fatalf("%v", w)
	}
	offset := 0.0
	for i, p := range packets {
		p := p.(map[string]any)
		segments := p["segments"].([]any)
		s := segments[0].(map[string]any)
		if p["ack_req"] != false || len(segments) != 1 || s["segment"] != 0.0 || s["offset"] != offset || s["bytes"] != p["bytes"] {
			t.Errorf("packet %d: %v", i, p)
		}
		offset += p["bytes"].(float64)
	}
}

// TestG03_InlineLooksNothingUp: an inline payload is in the WQE: no lookup, no read.
func TestG03_InlineLooksNothingUp(t *testing.T) {
	sockets(t)
	for _, op := range []string{"send", "write"} {
		w := walkOf(t, "--inline", "--opcode", op, "--sge", "1:600", "--sge", "2:360", "--mtu", "512")
		if w["gather"] != "inline" || w["length"] != 960.0 || len(w["packets"].([]any)) != 2 {
			t.Errorf("%v", w)
		}
		for _, s := range w["steps"].([]any) {
			if k := s.(map[string]any)["kind"]; k == "lookup" || k == "read" {
				t.Errorf("%s: a %s of an inline payload", op, k)
			}
		}
	}
}

// TestWalkEdges: no bytes at all, empty segments among others, 63 segments, and more packets than the usual trace
// ring holds.
func TestWalkEdges(t *testing.T) {
	sockets(t)
	many := []string{"--mtu", "256"}
	for i := range 63 {
		many = append(many, "--sge", fmt.Sprintf("%d:%d", i, 300))
	}
	for _, c := range []struct {
		args            []string
		packets, length int
	}{
		{[]string{"--sge", "1:0"}, 1, 0},
		{[]string{"--sge", "1:0", "--sge", "2:5", "--sge", "3:0"}, 1, 5},
		{[]string{"--sge", "1:4096", "--sge", "2:1"}, 2, 4097},
		{many, 74, 18900}, // 63 × 300 bytes in packets of 256
		{[]string{"--sge", "1:1MiB", "--mtu", "256"}, 4096, 1 << 20},
	} {
		w := walkOf(t, c.args...)
		if got := len(w["packets"].([]any)); got != c.packets || w["length"] != float64(c.length) {
			t.Errorf("%v: %d packets, length %v; want %d, %d", c.args, got, w["length"], c.packets, c.length)
		}
	}
}

// TestWalkSVG: --svg leaves a file that is XML with an svg at its root.
func TestWalkSVG(t *testing.T) {
	dir := sockets(t)
	file := filepath.Join(dir, "walk.svg")
	rnicctl(t, "walk", "--svg", file).well(t)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := xml.NewDecoder(f)
	root := ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && root == "" {
			root = e.Name.Local
		}
	}
	if root != "svg" {
		t.Errorf("root %q", root)
	}
}

// TestWalkOnALoneCard: a card that is not soft: talks to itself. Here it is a soft one under another scheme.
func TestWalkOnALoneCard(t *testing.T) {
	sockets(t)
	for _, op := range []string{"send", "write", "read-response"} {
		w := walkOf(t, "-d", "lone:a", "--opcode", op, "--sge", "1:5000")
		if len(w["packets"].([]any)) != 2 {
			t.Errorf("%s: %v", op, w)
		}
	}
}
