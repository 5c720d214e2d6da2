package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rnic/driver"
	"rnic/hw"
	"rnic/vfio/pcidev"
)

// holderCommands are those that ask a holder, by how their output is shown.
var holderCommands = []string{
	"info", "regs", "qp", "qp --qp 5", "keys", "keys --qp 5", "keys --scrub", "stats", "stats --prometheus", "qp --prometheus", "trace card --count 3", "capture --count 3", "list",
}

// FuzzHolder is a process that holds a card and answers what it likes: a line of the input for
// each request, and what follows for a stream. rnicctl ends with one of its codes, says nothing of
// no card as if it were one, and writes JSON or nothing when JSON was asked for.
func FuzzHolder(f *testing.F) {
	dir, err := os.MkdirTemp("", "rnic")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	f.Setenv("XDG_RUNTIME_DIR", dir)
	const addr = "soft:fuzzed"
	if err := os.MkdirAll(driver.StatusDir(), 0o700); err != nil {
		f.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(driver.StatusDir(), driver.StatusName(addr)+"1.sock"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	holder, err := json.Marshal(driver.StatusReply{Holder: &driver.Holder{Addr: addr, PID: os.Getpid(), Attr: driver.DeviceAttr{Name: "a", MaxQP: 8}}})
	if err != nil {
		f.Fatal(err)
	}
	lines := make(chan []byte, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answers := <-lines
			lines <- answers
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			r := bufio.NewReader(c)
			if line, err := r.ReadString('\n'); err == nil {
				if strings.Contains(line, `"holder"`) {
					answers = append(append([]byte{}, holder...), '\n')
				}
				_, _ = c.Write(answers)
			}
			c.Close()
		}
	}()
	seed := func(i int, ps ...driver.StatusReply) {
		var b []byte
		for _, p := range ps {
			line, err := json.Marshal(p)
			if err != nil {
				f.Fatal(err)
			}
			b = append(append(b, line...), '\n')
		}
		f.Add(byte(i), b)
		f.Add(byte(i)|0x80, b)
	}
	snap := &driver.Snapshot{
		QPs: []driver.QPInfo{{QPN: 5, PD: 7}, {}}, Keys: []driver.KeyInfo{{Key: 0x107, State: hw.KeyStateValid}, {Key: 1 << 31, State: 99, Type: 99, Access: 255}},
		Counters: []driver.Counter{{Name: "COUNTERS.TX_FRAMES", Value: 1<<64 - 1}, {Value: 2}, {Name: "é\x1b[2J", Value: 3}},
	}
	for i := range holderCommands {
		seed(i, driver.StatusReply{Snapshot: snap})
	}
	seed(1, driver.StatusReply{Registers: []driver.RegisterValue{{Name: "IDENT.MAGIC", Value: 7}, {Name: "\x1b[31m"}}})
	seed(6, driver.StatusReply{Scrub: &driver.ScrubReport{}})
	seed(10, driver.StatusReply{Started: true}, driver.StatusReply{Trace: &driver.TraceRecord{Kind: 255, Segment: -5}}, driver.StatusReply{Trace: &driver.TraceRecord{}}, driver.StatusReply{End: true})
	seed(11, driver.StatusReply{Started: true}, driver.StatusReply{Frame: &driver.CaptureFrame{Data: make([]byte, 80)}}, driver.StatusReply{Frame: &driver.CaptureFrame{}}, driver.StatusReply{})
	seed(2, driver.StatusReply{Error: &driver.StatusError{Code: "gone", Message: "x\x1b]0;y\a"}})
	f.Add(byte(0), []byte("{\n"))
	f.Add(byte(2), []byte("null\n"))
	pci := pcidev.Tree{Sys: f.TempDir(), Proc: "/proc"}
	f.Fuzz(func(t *testing.T, how byte, answers []byte) {
		lines <- answers
		defer func() { <-lines }()
		args := strings.Fields(holderCommands[int(how&0x7f)%len(holderCommands)])
		asJSON := how&0x80 != 0 && !strings.Contains(strings.Join(args, " "), "--prometheus")
		if asJSON {
			args = append(args, "--json")
		}
		if args[0] != "list" {
			args = append(args, "-d", addr)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := rnicctlOn(ctx, pci, args...)
		if ctx.Err() != nil {
			t.Fatalf("%v does not end", args)
		}
		if r.code < exitOK || r.code > exitGone {
			t.Errorf("%v: exit %d", args, r.code)
		}
		if asJSON {
			d := json.NewDecoder(bytes.NewReader([]byte(r.out)))
			for d.More() {
				var v any
				if err := d.Decode(&v); err != nil {
					t.Fatalf("%v: %v in %q", args, err, r.out)
				}
			}
		}
		for _, out := range []string{r.out, r.err} {
			if i := strings.IndexFunc(out, func(c rune) bool { return c < ' ' && c != '\n' && c != '\t' || c == 0x7f || c >= 0x80 && c < 0xa0 }); i >= 0 {
				t.Errorf("%v: %q of the holder's reaches the terminal: %.200q", args, out[i], out)
			}
		}
	})
}

// FuzzWalkOptions: what a user asks of `walk` is refused with a reason, or is a message that a
// card can be asked for.
func FuzzWalkOptions(f *testing.F) {
	f.Add(4096, "send", "card", false, "1:1024 2:6144 1:512")
	f.Add(256, "write", "host", false, "a:1MiB b:0")
	f.Add(1024, "send", "card", true, "1:64")
	f.Add(512, "read-response", "card", false, "log.1:4GiB")
	f.Add(0, "", "", true, ":: 1: x:99999999999999999999 1:+1")
	f.Fuzz(func(t *testing.T, mtu int, opcode, gather string, inline bool, sges string) {
		o := walkOptions{mtu: mtu, opcode: opcode, gather: gather, inline: inline, sges: strings.Fields(sges)}
		if err := o.check(); err != nil {
			if err.Error() == "" {
				t.Error("refused without a reason")
			}
			return
		}
		var total uint64
		for _, s := range o.parsed {
			total += uint64(s.length)
		}
		if len(o.parsed) == 0 || len(o.parsed) > hw.MaxSegments || total != o.total || total > maxWalk || o.pathMTU.Bytes() != mtu || o.records() <= 0 || o.records() > 1<<20 {
			t.Errorf("%+v", o)
		}
	})
}
