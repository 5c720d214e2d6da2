package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rnic/hw/roce"
	"rnic/hw/roce/pcapng"
	"rnic/hw/roce/rocetest"
)

// TestTraceOfHolder: another program's steps, one object a line, with its work request IDs, until the count is
// reached.
func TestTraceOfHolder(t *testing.T) {
	sockets(t)
	p := hold(t, "soft:traced")
	stop := p.traffic(t.Context())
	qpn := p.pair[0].QP.Number()
	r := rnicctl(t, "trace", "card", "-d", "soft:traced", "--qp", fmt.Sprint(qpn), "--count", "200", "--json").well(t)
	text := rnicctl(t, "trace", "card", "-d", "soft:traced", "--count", "30").well(t)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	steps := r.lines(t, "trace")
	if len(steps) != 200 {
		t.Fatalf("%d steps", len(steps))
	}
	seen := map[string]int{}
	known := 0
	for _, s := range steps {
		seen[s["kind"].(string)]++
		if s["qpn"] != float64(qpn) {
			t.Errorf("a step of QP %v", s["qpn"])
		}
		if s["wr_id"] != nil {
			known++
		}
		// 5,000 bytes in two packets, the last of 904: it asks for an acknowledgement.
		if last := s["bytes"] == 904.0; s["kind"] == "handover" && (s["payload_crc32"] == nil || last != (len(s["flags"].([]any)) > 0)) {
			t.Errorf("hand-over %v", s)
		}
	}
	for _, kind := range []string{"wqe", "packet", "lookup", "read", "handover", "sent"} {
		if seen[kind] == 0 {
			t.Errorf("no %s among %v", kind, seen)
		}
	}
	if known == 0 {
		t.Error("no step has its work request's ID")
	}
	lines := strings.Split(strings.TrimSpace(text.out), "\n")
	if head := strings.Join(strings.Fields(lines[0]), " "); head != "TIME QPN WRID PACKET KIND SEGMENT OFFSET BYTES LOOKUP NOTE" || len(lines) != 31 {
		t.Errorf("heading %q, %d lines", head, len(lines))
	}
	blanks(t, text.out)
}

// blanks wants no line to end with one.
func blanks(t *testing.T, out string) {
	t.Helper()
	if trailing := regexp.MustCompile(`(?m)[ \t]+$`).FindString(out); trailing != "" {
		t.Errorf("blanks at the end of a line:\n%s", out)
	}
}

// TestStreamsEnd: --for ends a stream well, also where nothing comes.
func TestStreamsEnd(t *testing.T) {
	dir := sockets(t)
	for _, args := range []string{"trace card", "capture", "capture -w " + dir + "/none.pcapng"} {
		r := rnicctl(t, append(strings.Fields(args), "-d", "soft:quiet", "--for", "50ms")...).well(t)
		if strings.Count(r.out, "\n") > 1 {
			t.Errorf("%s: %s", args, r.out)
		}
	}
}

// TestCapture: frames of another program, decoded, and in a file that another reader takes.
func TestCapture(t *testing.T) {
	dir := sockets(t)
	p := hold(t, "soft:captured")
	stop := p.traffic(t.Context())
	file := filepath.Join(dir, "out.pcapng")
	r := rnicctl(t, "capture", "-d", "soft:captured", "--count", "90", "--json").well(t)
	o := rnicctl(t, "capture", "-d", "soft:captured", "--count", "90", "--json", "-w", file).well(t).object(t, "capture")
	text := rnicctl(t, "capture", "-d", "soft:captured", "--count", "30").well(t).out
	blanks(t, text)
	if head, _, _ := strings.Cut(text, "\n"); !strings.HasSuffix(head, "NOTE") || !strings.Contains(text, " AckReq\n") {
		t.Errorf("%s", text)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	opcodes := map[string]int{}
	for _, f := range r.lines(t, "frame") {
		opcodes[f["direction"].(string)+" "+f["opcode"].(string)]++
		if f["why"] != "" || f["source"] == "" {
			t.Errorf("frame %v", f)
		}
	}
	if len(opcodes) != 6 { // write first, write last and ACK, each sent and received: the card talks to itself
		t.Errorf("frames %v", opcodes)
	}
	if o["frames"] != 90.0 || o["truncated"] != 0.0 || o["answered_by"] != "holder" {
		t.Errorf("%v", o)
	}
	checkCapture(t, file, 90)
}

// checkCapture reads a capture back, with the independent ICRC as witness, and has tshark judge it where it is
// installed.
func checkCapture(t *testing.T, file string, frames int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rd, err := pcapng.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		fr, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		var p roce.Packet
		if err := roce.Parse(fr.Data, &p); err != nil {
			t.Errorf("frame %d: %v", n, err)
			continue
		}
		want, err := rocetest.ICRC(fr.Data)
		if err != nil || p.ICRC() != want {
			t.Errorf("frame %d: ICRC %08x, its bytes' is %08x, %v", n, p.ICRC(), want, err)
		}
		if fr.Direction == pcapng.Unknown {
			t.Errorf("frame %d has no direction", n)
		}
	}
	if n != frames {
		t.Errorf("%d frames in the file, want %d", n, frames)
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("tshark is not installed: the file was read by our own reader alone")
		return
	}
	b, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		if opcode, bad, _ := strings.Cut(line, "\t"); opcode == "" || bad != "" {
			t.Errorf("tshark on frame %d: BTH opcode %q, malformed %q", i+1, opcode, bad)
		}
		n--
	}
	if n != 0 {
		t.Errorf("tshark finds %d frames fewer", n)
	}
}

// TestDemo: five operations pass, and the file holds them.
func TestDemo(t *testing.T) {
	dir := sockets(t)
	file := filepath.Join(dir, "demo.pcapng")
	o := rnicctl(t, "demo", "--pcap", file, "--json").well(t).object(t, "demo")
	var did []string
	for _, op := range o["operations"].([]any) {
		op := op.(map[string]any)
		did = append(did, fmt.Sprint(op["operation"], " ", op["result"]))
	}
	if got := strings.Join(did, ", "); got != "SEND pass, RDMA WRITE pass, RDMA READ pass, inline SEND pass, atomic fetch-and-add pass" {
		t.Error(got)
	}
	frames := int(o["capture"].(map[string]any)["frames"].(float64))
	// Walk 2 + ACK, SEND 2 + ACK, WRITE 2 + ACK, READ request + 3 responses, inline SEND + ACK, atomic + its ACK.
	if frames != 17 {
		t.Errorf("%d frames", frames)
	}
	checkCapture(t, file, frames)
	text := rnicctl(t, "demo", "--pcap", file).well(t).out
	for _, s := range []string{" 12  sent", "Five operations", "17 frames"} {
		if !strings.Contains(text, s) {
			t.Errorf("the text lacks %q", s)
		}
	}
	if o := rnicctl(t, "demo", "--pcap", file, "--json", "-d", "lone:demo").well(t).object(t, "demo"); o["address"] != o["peer"] {
		t.Errorf("a lone card has a peer: %v", o["peer"])
	}
}

// TestDemoFails: a byte that the card changes on its way is found at the far end, with exit 1.
func TestDemoFails(t *testing.T) {
	dir := sockets(t)
	o := rnicctl(t, "demo", "--pcap", filepath.Join(dir, "demo.pcapng"), "--json", "-d", "flipping:demo")
	ops := o.object(t, "demo")["operations"].([]any)
	last := ops[len(ops)-1].(map[string]any)
	if o.code != exitFound || last["operation"] != "RDMA WRITE" || last["result"] != "fail" || !strings.HasPrefix(last["why"].(string), "byte 0 of 7680") {
		t.Errorf("exit %d, %v", o.code, last)
	}
}
