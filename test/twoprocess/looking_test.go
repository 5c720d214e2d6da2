// Package twoprocess looks with rnicctl at the card of a program that is running, each in a process of its own.
package twoprocess

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"rnic/hw/roce"
	"rnic/hw/roce/pcapng"
)

var bin string // rnicctl and rnicsim, built as users build them

func TestMain(m *testing.M) {
	if addrs := os.Getenv("RNIC_PROGRAM"); addrs != "" {
		fmt.Fprintln(os.Stderr, "program:", program(strings.Split(addrs, " ")))
		os.Exit(1)
	}
	code, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func testMain(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "rnic")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	bin = dir
	for name, value := range map[string]string{"XDG_RUNTIME_DIR": dir, "RNIC_DEVICE": ""} {
		if err := os.Setenv(name, value); err != nil {
			return 0, err
		}
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "rnic/cmd/rnicctl", "rnic/cmd/rnicsim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// start starts a process that ends with the test, and gives its output.
func start(t *testing.T, env, name string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

// rnicctl runs a command and gives its JSON objects.
func rnicctl(t *testing.T, args ...string) []map[string]any {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "rnicctl"), append(args, "--json")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("rnicctl %s: %v\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	var list []map[string]any
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var o map[string]any
		if err := d.Decode(&o); err != nil {
			t.Fatalf("rnicctl %s: %v in %s", strings.Join(args, " "), err, out)
		}
		list = append(list, o)
	}
	return list
}

// world is two cards in a rnicsim, and a program on them.
type world struct {
	a, b    string // addresses
	program *exec.Cmd
	made    made
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "rnic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	_, said := start(t, "", filepath.Join(bin, "rnicsim"), "--json", "--card", "a="+dir+"/a", "--card", "b="+dir+"/b")
	for said.Scan() && !strings.Contains(said.Text(), `"ready"`) {
	}
	w := &world{a: "vfio-user:" + dir + "/a", b: "vfio-user:" + dir + "/b"}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out *bufio.Scanner
	w.program, out = start(t, "RNIC_PROGRAM="+w.a+" "+w.b, self)
	if !out.Scan() {
		t.Fatal("the program did not come up")
	}
	if err := json.Unmarshal(out.Bytes(), &w.made); err != nil {
		t.Fatalf("%v in %q", err, out.Text())
	}
	return w
}

// asked holds an object to having been answered by the program.
func (w *world) asked(t *testing.T, o map[string]any, addr string) {
	t.Helper()
	h, _ := o["holder"].(map[string]any)
	if o["address"] != addr || o["answered_by"] != "holder" || h == nil || h["pid"] != float64(w.program.Process.Pid) {
		t.Errorf("%v: address %v, answered by %v, holder %v; want pid %d", o["schema"], o["address"], o["answered_by"], h, w.program.Process.Pid)
	}
}

// read hands on the frames of a capture file and counts them.
func read(t *testing.T, file string, take func(pcapng.Frame)) (n int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapng.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for ; ; n++ {
		fr, err := r.Next()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		take(fr)
	}
}

func number(o map[string]any, path ...string) float64 {
	for _, p := range path[:len(path)-1] {
		o, _ = o[p].(map[string]any)
	}
	n, _ := o[path[len(path)-1]].(float64)
	return n
}

// TestProcesses_Looking: while a program runs traffic over vfio-user, rnicctl in another process shows its queue pairs, regions,
// rising counters, steps and frames.
func TestProcesses_Looking(t *testing.T) {
	w := newWorld(t)

	t.Run("list", func(t *testing.T) {
		var held []any
		for _, c := range rnicctl(t, "list")[0]["cards"].([]any) {
			if c := c.(map[string]any); c["state"] == "held" && number(c, "holder", "pid") == float64(w.program.Process.Pid) {
				held = append(held, c["address"])
			}
		}
		if len(held) != 2 {
			t.Errorf("cards that the program holds: %v", held)
		}
	})
	t.Run("info", func(t *testing.T) {
		o := rnicctl(t, "info", "-d", w.a)[0]
		w.asked(t, o, w.a)
		if o["name"] != "a" || number(o, "limits", "send_segments") != 63 {
			t.Errorf("%v", o)
		}
	})
	t.Run("qp", func(t *testing.T) {
		var last float64
		for range 3 {
			o := rnicctl(t, "qp", "-d", w.a)[0]
			w.asked(t, o, w.a)
			qps := o["qps"].([]any)
			if len(qps) != 1 {
				t.Fatalf("QPs %v", qps)
			}
			q := qps[0].(map[string]any)
			if number(q, "qpn") != float64(w.made.QPNs[0]) || number(q, "dest_qpn") != float64(w.made.QPNs[1]) || q["state"] != "RTS" || q["error"] != nil {
				t.Errorf("QP %v, made was %+v", q, w.made)
			}
			if n := number(q, "stats", "tx_packets"); n <= last {
				t.Errorf("tx_packets %v after %v", n, last)
			} else {
				last = n
			}
		}
	})
	t.Run("keys", func(t *testing.T) {
		o := rnicctl(t, "keys", "-d", w.a)[0]
		w.asked(t, o, w.a)
		keys := o["keys"].([]any)
		if len(keys) != 1 {
			t.Fatalf("keys %v", keys)
		}
		k := keys[0].(map[string]any)
		if k["key"] != fmt.Sprintf("0x%08x", w.made.Key) || k["base"] != fmt.Sprintf("%#x", w.made.Base) || number(k, "length_bytes") != regionBytes || k["state"] != "valid" {
			t.Errorf("key %v, made was %+v", k, w.made)
		}
		o = rnicctl(t, "keys", "--scrub", "-d", w.a)[0]
		w.asked(t, o, w.a)
		if len(o["mismatches"].([]any)) != 0 || number(o, "keys") != 1 || number(o, "cached") != 1 {
			t.Errorf("scrub %v", o)
		}
	})
	t.Run("stats", func(t *testing.T) {
		before := rnicctl(t, "stats", "-d", w.a)[0]
		after := rnicctl(t, "stats", "-d", w.a)[0]
		w.asked(t, after, w.a)
		for _, rising := range []string{"tx_frames", "tx_bytes", "rx_frames", "acks_received", "wqes", "lookups", "key_cache_hits", "gathers_multi", "dma_reads", "cqes"} {
			if a, b := number(before, "counters", rising), number(after, "counters", rising); b <= a {
				t.Errorf("%s: %v, then %v", rising, a, b)
			}
		}
		for _, flat := range []string{"rx_drop_malformed", "rx_drop_icrc", "dma_faults", "gather_faults", "naks_sent"} {
			if n := number(after, "counters", flat); n != 0 {
				t.Errorf("%s is %v", flat, n)
			}
		}
	})
	t.Run("trace card", func(t *testing.T) {
		steps := rnicctl(t, "trace", "card", "-d", w.a, "--count", "300")
		if len(steps) != 300 {
			t.Fatalf("%d steps", len(steps))
		}
		whole := 0
		for i, s := range steps {
			if number(s, "qpn") != float64(w.made.QPNs[0]) {
				t.Fatalf("a step of QP %v", s["qpn"])
			}
			// From a WQE on, the chapter's steps follow: two packets, of segments 0, 1 and 1, 2.
			if s["kind"] != "wqe" || len(steps)-i < 15 {
				continue
			}
			var got []string
			lost := 0.0
			for _, s := range steps[i : i+15] {
				lost += number(s, "lost")
				if s["kind"] == "lookup" || s["kind"] == "read" {
					got = append(got, fmt.Sprintf("%v %v:%v+%v", s["kind"], s["segment"], s["offset"], s["bytes"]))
				}
			}
			const want = "lookup 0:0+1024 read 0:0+1024 lookup 1:0+3072 read 1:0+3072 lookup 1:3072+3072 read 1:3072+3072 lookup 2:0+512 read 2:0+512"
			if lost == 0 && strings.Join(got, " ") != want {
				t.Fatalf("steps %v, want %s", got, want)
			}
			if lost == 0 {
				whole++
			}
		}
		if whole == 0 {
			t.Error("no walk was whole")
		}
	})
	t.Run("capture", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "out.pcapng")
		o := rnicctl(t, "capture", "-d", w.a, "-w", file, "--count", "300")[0]
		w.asked(t, o, w.a)
		seen := map[string]int{}
		read(t, file, func(fr pcapng.Frame) {
			var p roce.Packet
			if err := roce.Parse(fr.Data, &p); err != nil {
				t.Fatal(err)
			}
			qpn := w.made.QPNs[1]
			if fr.Direction == pcapng.Inbound {
				qpn = w.made.QPNs[0]
			}
			if p.BTH().DestQP() != qpn {
				t.Fatalf("a frame %v for QP %#x", fr.Direction, p.BTH().DestQP())
			}
			seen[fmt.Sprint(fr.Direction, " ", p.Opcode())]++
		})
		if len(seen) != 3 || number(o, "frames") != 300 { // write first, write last, and the ACK
			t.Errorf("frames %v, %v", seen, o)
		}
	})
	t.Run("both at once", func(t *testing.T) {
		// Readers share the rings: each gets what it asked for.
		done := make(chan int, 3)
		for range 3 {
			go func() {
				cmd := exec.Command(filepath.Join(bin, "rnicctl"), "trace", "card", "-d", w.a, "--count", "100", "--json")
				out, err := cmd.Output()
				if err != nil {
					t.Error(err)
				}
				done <- bytes.Count(out, []byte("\n"))
			}()
		}
		for range 3 {
			if n := <-done; n != 100 {
				t.Errorf("%d steps", n)
			}
		}
	})
}

// TestProcesses_Interrupted: Ctrl-C ends a capture with 130, and the file is sound.
func TestProcesses_Interrupted(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "out.pcapng")
	cmd, out := start(t, "", filepath.Join(bin, "rnicctl"), "capture", "-d", w.a, "-w", file, "--json")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(file); err == nil && st.Size() > 100_000 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is captured")
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	last := ""
	for out.Scan() {
		last += out.Text()
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(last, `"interrupted"`) {
		t.Errorf("exit %d: %s", code, last)
	}
	if frames := read(t, file, func(pcapng.Frame) {}); frames == 0 {
		t.Error("the file holds no frame")
	}
}

// TestProcesses_Held: a command that opens a card which a program holds ends with 4 and names the pid.
func TestProcesses_Held(t *testing.T) {
	w := newWorld(t)
	cmd := exec.Command(filepath.Join(bin, "rnicctl"), "walk", "-d", w.a, "--json")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(string(out), fmt.Sprintf("pid %d", w.program.Process.Pid)) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestProcesses_HolderKilled: a stream of a holder that dies ends with 7, soon.
func TestProcesses_HolderKilled(t *testing.T) {
	w := newWorld(t)
	cmd, out := start(t, "", filepath.Join(bin, "rnicctl"), "stats", "-d", w.a, "--watch", "20ms", "--json", "--timeout", "2s")
	if !out.Scan() {
		t.Fatal("no picture")
	}
	trace, steps := start(t, "", filepath.Join(bin, "rnicctl"), "trace", "card", "-d", w.a, "--json")
	if !steps.Scan() {
		t.Fatal("no step")
	}
	if err := w.program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*struct {
		cmd *exec.Cmd
		out *bufio.Scanner
	}{"stats": {cmd, out}, "trace": {trace, steps}} {
		last := ""
		timer := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
		for p.out.Scan() {
			last = p.out.Text()
		}
		_ = p.cmd.Wait()
		timer.Stop()
		if code := p.cmd.ProcessState.ExitCode(); code != 7 && !(name == "stats" && code == 3) || !strings.Contains(last, `"error"`) {
			t.Errorf("%s: exit %d, %s", name, code, last)
		}
	}
	// Its socket is left; the next command passes it over and opens the card.
	if o := rnicctl(t, "info", "-d", w.a)[0]; o["answered_by"] != "card" {
		t.Errorf("answered by %v", o["answered_by"])
	}
}
