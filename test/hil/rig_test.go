package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMain: this binary is the test, and what the tests start as processes of their own: a runner, and a stand-in for
// rnicctl that does what a file says.
func TestMain(m *testing.M) {
	switch os.Getenv("HIL_TEST_AS") {
	case "hil":
		main()
	case "rnicctl":
		standIn()
	}
	os.Exit(m.Run())
}

// programs are the card's and the operator's, as users build them.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hil")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "rnic/cmd/rnicsim", "rnic/cmd/rnicctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

// lab is a folder with an inventory of two cards on one wire: soft cards of another process, and in a virtual machine
// (test/vm/legs) PCI functions of its kernel's VFIO.
type lab struct {
	t           *testing.T
	dir, bin    string
	golden      string
	inventory   string
	left, right string // addresses
	sim         *exec.Cmd
}

// guestCards are the cards' addresses in a virtual machine, nil outside.
func guestCards() []string {
	if os.Getenv("RNIC_VM") == "" {
		return nil
	}
	return strings.Split(os.Getenv("RNIC_VM_CARDS"), ",")
}

// newLab has the cards ready. more goes into the card named left.
func newLab(t *testing.T, more string) *lab {
	t.Helper()
	l := &lab{t: t}
	var err error
	if l.dir, err = os.MkdirTemp("", "hil"); err != nil { // short: it is in sockets' paths
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(l.dir) })
	t.Setenv("XDG_RUNTIME_DIR", l.dir)
	restore := ""
	if at := guestCards(); at != nil {
		l.left, l.right, l.bin, l.golden = at[0], at[1], "/bin", "/golden"
		restore = "restore: none" // init leaves them without a driver
		t.Cleanup(func() { os.RemoveAll(filepath.Join(host.Run, "quarantine")) })
	} else {
		l.soft()
	}
	l.write(fmt.Sprintf(`
state: %s/state
lease_time: 6s
cards:
  left:
    address: %s
    peer: right
    identity: {bitstream: none, engine: go, contract: "1.0"}
    %s
    %s
  right:
    address: %s
    peer: left
    identity: {bitstream: none, engine: go, contract: "1.0"}
    %s
`, l.dir, l.left, restore, more, l.right, restore))
	return l
}

// soft starts two soft cards.
func (l *lab) soft() {
	t := l.t
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	l.bin, l.golden = bin, "../golden/a_walk"
	l.left, l.right = "vfio-user:"+l.dir+"/a.sock", "vfio-user:"+l.dir+"/b.sock"
	l.sim = exec.Command(filepath.Join(bin, "rnicsim"), "--json", "--card", "a="+l.dir+"/a.sock", "--card", "b="+l.dir+"/b.sock")
	l.sim.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := l.sim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.sim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.sim.Process.Kill(); _ = l.sim.Wait() })
	if _, err := out.Read(make([]byte, 4096)); err != nil { // it says that it is ready
		t.Fatal(err)
	}
}

func (l *lab) write(inventory string) {
	l.inventory = filepath.Join(l.dir, "cards.yaml")
	if err := os.WriteFile(l.inventory, []byte(inventory), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// hil is a runner as a process of its own.
func (l *lab) hil(args ...string) *runnerProcess {
	l.t.Helper()
	args = append([]string{args[0], "--inventory", l.inventory}, args[1:]...)
	if args[0] == "run" {
		if !slices.Contains(args, "--artefacts") {
			args = append(args, "--artefacts", filepath.Join(l.dir, "unread"))
		}
		args = append(args, "--rnicctl", filepath.Join(l.bin, "rnicctl"), "--golden", l.golden)
	}
	p := &runnerProcess{t: l.t, Cmd: exec.Command(os.Args[0], args...)}
	p.Env = append(os.Environ(), "HIL_TEST_AS=hil")
	p.Stdout, p.Stderr = &p.out, &p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	return p
}

// rnicctl runs a command to its end, well.
func (l *lab) rnicctl(args ...string) {
	l.t.Helper()
	if out, err := exec.Command(filepath.Join(l.bin, "rnicctl"), args...).CombinedOutput(); err != nil {
		l.t.Fatalf("rnicctl %q: %v\n%s", args, err, out)
	}
}

// stop stops a runner that does not have the lock of the leases' folder just then.
func (l *lab) stop(p *runnerProcess) {
	l.t.Helper()
	lock, err := os.Open(filepath.Join(l.dir, "state/leases/lock"))
	if err != nil {
		l.t.Fatal(err)
	}
	defer lock.Close()
	for {
		if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
			l.t.Fatal(err)
		}
		for state := ""; !strings.Contains(state, ") T "); { // it is stopped when proc(5) says so
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
			if err != nil {
				l.t.Fatal(err)
			}
			state = string(stat)
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return
		}
		if err := p.Process.Signal(syscall.SIGCONT); err != nil {
			l.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// runnerProcess is a runner and what it says.
type runnerProcess struct {
	*exec.Cmd
	t        *testing.T
	out, log lockedBuffer
}

// ends waits for the end and wants an exit code.
func (p *runnerProcess) ends(code int) *runnerProcess {
	p.t.Helper()
	_ = p.Wait()
	if got := p.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("exit %d, want %d\n%s%s", got, code, p.out.String(), p.log.String())
	}
	return p
}

// says waits until the runner has said something on stderr.
func (p *runnerProcess) says(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(p.log.String(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("does not say %q:\n%s%s", text, p.out.String(), p.log.String())
		}
	}
}

// lockedBuffer is what a process wrote, also while it does.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// results reads what a run left.
func results(t *testing.T, dir string) *report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	validate(t, text)
	xml, err := os.ReadFile(filepath.Join(dir, "junit.xml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range junitRules(xml) {
		t.Errorf("junit.xml: %s", wrong)
	}
	return &r
}

// A rule says what the stand-in for rnicctl does when its arguments begin so.
type rule struct {
	Args  string   // the command and what follows it
	Times int      // how often; 0 for ever
	Out   string   // on stdout
	Exit  int      // code
	Link  []string // a symbolic link that it makes first: name, target
	Touch string   // a file of sysfs that it writes first, as the kernel would: name=content
	Sleep bool     // until it is ended
}

// standIn is rnicctl as a test wants it: it logs its arguments, and does what the first rule says that fits.
func standIn() {
	dir := os.Getenv("HIL_TEST_RULES")
	args := strings.Join(os.Args[1:], " ")
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(log, args)
	text, err := os.ReadFile(filepath.Join(dir, "rules.json"))
	if err != nil {
		panic(err)
	}
	var rules []rule
	if err := json.Unmarshal(text, &rules); err != nil {
		panic(err)
	}
	for i, r := range rules {
		used := filepath.Join(dir, fmt.Sprintf("used-%d", i))
		before, _ := os.ReadFile(used)
		if !strings.HasPrefix(args, r.Args) || r.Times > 0 && len(before) >= r.Times {
			continue
		}
		_ = os.WriteFile(used, append(before, '.'), 0o644)
		if r.Link != nil {
			_ = os.Remove(r.Link[0])
			_ = os.Symlink(r.Link[1], r.Link[0])
		}
		if name, content, ok := strings.Cut(r.Touch, "="); ok {
			_ = os.WriteFile(filepath.Join(os.Getenv("HIL_TEST_SYS"), name), []byte(content), 0o644)
		}
		if r.Sleep {
			time.Sleep(time.Hour)
		}
		fmt.Print(r.Out)
		os.Exit(r.Exit)
	}
	fmt.Fprintln(os.Stderr, "no rule for", args)
	os.Exit(2)
}

// scripted is a runner in this process whose rnicctl does what the rules say.
type scripted struct {
	t   *testing.T
	dir string
	inv *inventory
	log bytes.Buffer
}

func newScripted(t *testing.T, inventory string, rules ...rule) *scripted {
	t.Helper()
	s := &scripted{t: t, dir: t.TempDir()}
	text, err := json.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "rules.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HIL_TEST_AS", "rnicctl")
	t.Setenv("HIL_TEST_RULES", s.dir)
	if s.inv, err = parseInventory([]byte("state: " + s.dir + "\n" + inventory)); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs all cards and gives the report and the exit code.
func (s *scripted) run(ctx context.Context, suites ...string) (*report, int) {
	s.t.Helper()
	o := &runOptions{artefacts: filepath.Join(s.dir, "artefacts"), rnicctl: os.Args[0], golden: "golden", seed: 7, out: &s.log, log: &s.log, suites: suites}
	var err error
	if o.cards, err = s.inv.choose(""); err != nil {
		s.t.Fatal(err)
	}
	code, err := runCards(ctx, s.inv, o)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log.String())
	}
	return results(s.t, o.artefacts), code
}

// called are the commands that were run, in order, without the options that each has.
func (s *scripted) called() []string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return nil // nothing was run yet
	}
	var list []string
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		line, _, _ = strings.Cut(line, " --json")
		list = append(list, line)
	}
	return list
}
