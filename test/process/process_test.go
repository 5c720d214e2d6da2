// Package process shows over real processes what a program, the cards' process
// and their neighbours owe each other when one of them is killed, stopped or
// idle. Programs use the public API only, over vfio-user.
package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

// bin is a folder for the programs under test and for status sockets.
var bin string

func TestMain(m *testing.M) {
	var err error
	if bin, err = os.MkdirTemp("", "rnic"); err == nil {
		err = os.Setenv("XDG_RUNTIME_DIR", bin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(bin)
	os.Exit(code)
}

// build builds the programs, once, as users build them.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-o", bin+"/", "rnic/cmd/rnicsim", "rnic/test/process/peer", "rnic/test/process/opens")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
})

// program is the path of a program that was built.
func program(t *testing.T, name string) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, name)
}

// full says that the tests run at the scale of the acceptance list.
func full() bool { return os.Getenv("RNIC_FULL") == "1" }

// said is a line of a program's output: peer's, and what of rnicsim's is used.
type said struct {
	Event string `json:"event"`
	Card  string `json:"card"`
	QPN   uint32 `json:"qpn"`
	Key   uint32 `json:"key"`
	Addr  uint64 `json:"addr"`
	Done  int    `json:"done"`
	Error string `json:"error"`
	Gone  bool   `json:"gone"`
	Typed bool   `json:"typed"`
}

// process is a program that runs, and what it says.
type process struct {
	*exec.Cmd
	name  string
	lines chan said // closed at the end of its output
}

// start starts a program that was built. It ends with the test.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program(t, name), args...), name: name, lines: make(chan said, 1024)}
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			l := said{Event: "unreadable"}
			if err := json.Unmarshal(s.Bytes(), &l); err != nil {
				l.Error = fmt.Sprintf("%q: %v", s.Text(), err)
			}
			select {
			case p.lines <- l:
			default: // nobody listens: the program is not to wait
			}
		}
	}()
	t.Cleanup(func() { p.kill() })
	return p
}

// kill ends the program by SIGKILL and waits for its end.
func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// await reads until an event of a kind.
func (p *process) await(t *testing.T, kind string) said {
	t.Helper()
	for l := range p.lines {
		if l.Event == kind {
			return l
		}
		if l.Error != "" {
			t.Fatalf("%s: %s (waiting for %q)", p.name, l.Error, kind)
		}
	}
	t.Fatalf("%s ended before %q", p.name, kind)
	return said{}
}

// progress reads until the program has done n rounds more than when it said so
// last.
func (p *process) progress(t *testing.T, n int) {
	t.Helper()
	for first := -1; ; {
		l := p.await(t, "progress")
		if first < 0 {
			first = l.Done
		}
		if l.Done-first >= n {
			return
		}
	}
}

// drop forgets what the program has said so far.
func (p *process) drop() {
	for {
		select {
		case _, ok := <-p.lines:
			if !ok {
				return
			}
		default:
			return
		}
	}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// wires are the cards of an rnicsim, by name, and where sockets of the test go.
type wires struct {
	*process
	dir string
}

// simulate starts rnicsim with cards of these names.
func simulate(t *testing.T, names ...string) *wires {
	t.Helper()
	w := &wires{dir: t.TempDir()}
	args := []string{"--json"}
	for _, n := range names {
		args = append(args, "--card", n+"="+w.path(n))
	}
	w.process = start(t, "rnicsim", args...)
	w.await(t, "ready")
	return w
}

func (w *wires) path(name string) string { return filepath.Join(w.dir, name) }
func (w *wires) addr(name string) string { return "vfio-user:" + w.path(name) }

// listen starts a peer that serves at a socket of the card's name.
func (w *wires) listen(t *testing.T, card string, args ...string) *process {
	t.Helper()
	_ = os.Remove(w.path(card + ".peer")) // of one that was killed
	p := start(t, "peer", append(args, "-listen", w.path(card+".peer"), w.addr(card))...)
	p.await(t, "listening")
	return p
}

// connect starts a peer that sends to the one on another card.
func (w *wires) connect(t *testing.T, card, to string, args ...string) *process {
	t.Helper()
	return start(t, "peer", append(args, "-connect", w.path(to+".peer"), w.addr(card))...)
}

// deadline is longer than any call takes; whoever comes to it has failed.
const deadline = 30 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, addr string) *driver.Device {
	t.Helper()
	d, err := driver.Open(within(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// lines counts a process's open files and mappings.
func (p *process) holds(t *testing.T) (fds, mappings int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", p.Process.Pid)
	names, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(dir + "maps")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(maps)) {
		if mapped(l) {
			mappings++
		}
	}
	return len(names), mappings
}

// mapped says whether a line of /proc/PID/maps is of a file, of shared memory
// or of a device: Go's heap and stacks are none of them.
func mapped(line string) bool {
	f := strings.Fields(line)
	return f[1][3] == 's' || len(f) > 5 && !strings.HasPrefix(f[5], "[")
}
