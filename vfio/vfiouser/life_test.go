package vfiouser

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// TestMain lets the test binary be the server process of the tests below.
func TestMain(m *testing.M) {
	if path := os.Getenv("VFIOUSER_TEST_SERVER"); path != "" {
		os.Exit(serverProcess(path))
	}
	if path := os.Getenv("VFIOUSER_TEST_CLIENT"); path != "" {
		os.Exit(clientProcess(path))
	}
	os.Exit(m.Run())
}

// clientProcess opens the function, maps memory, and waits to be killed.
func clientProcess(path string) int {
	d, err := Dial(context.Background(), path)
	if err == nil {
		var m *vfio.Memory
		if m, err = vfio.AllocMemory(0x2000, vfio.MemoryOptions{}); err == nil {
			err = d.MapDMA(0x100000, m, 0, 0x2000, vfio.ProtReadWrite)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	<-d.Done()
	return 0
}

func serverProcess(path string) int {
	t := &processT{}
	l, err := Listen(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_ = l.Serve(context.Background(), newEngine(t), nil)
	return 0
}

// processT is the testing.TB of a process that runs no test.
type processT struct{ testing.TB }

func (*processT) Helper()           {}
func (*processT) Cleanup(func())    {}
func (*processT) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// startServer runs a server in another process and gives its socket.
func startServer(t *testing.T) (string, *exec.Cmd) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "card.sock")
	return path, startProcess(t, "VFIOUSER_TEST_SERVER="+path)
}

// startProcess runs this binary in the role that the variable gives it, until
// it is ready.
func startProcess(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if s, err := bufio.NewReader(out).ReadString('\n'); err != nil || s != "ready\n" {
		t.Fatalf("%s: %q, %v", role, s, err)
	}
	return cmd
}

// A client process is killed: its memory is let go, its function reset, and
// the next client finds it free and clean.
func TestClientKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "card.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	reports, ended := make(chan error), make(chan error)
	go func() { ended <- l.Serve(context.Background(), e, func(err error) { reports <- err }) }()
	before := countMaps(t)
	cmd := startProcess(t, "VFIOUSER_TEST_CLIENT="+path)
	if n := countMaps(t); n != before+1 {
		t.Errorf("%d mappings with a client, %d without", n, before)
	}
	_, err = Dial(context.Background(), path)
	var busy *vfio.BusyError
	if !errors.As(err, &busy) || busy.PID != cmd.Process.Pid {
		t.Errorf("%v, want busy with pid %d", err, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	d, err := Dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-reports; err != nil {
		t.Errorf("the killed client's session: %v", err)
	}
	if n := countMaps(t); n != before {
		t.Errorf("%d mappings after the client, %d before", n, before)
	}
	e.do(func(h Host) {
		h.SetBusMaster(true)
		h.Enter()
		defer h.Exit()
		if err := h.Read(0x100000, make([]byte, 4)); reasonOf(err) != DMAUnmapped {
			t.Errorf("the former client's memory: %v", err)
		}
	})
	_ = d.Close()
	<-reports
	_ = l.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The server process is killed under a client in the middle of everything:
// every call ends in a typed error, mappings read as all ones, Done is closed.
func TestServerKilled(t *testing.T) {
	path, cmd := startServer(t)
	dev, err := vfio.Open(context.Background(), "vfio-user:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dev.Close() }()
	bar, err := vfio.NewBAR(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bar.Release() }()
	db := bar.Window(0x1000, 0x1000)
	db[0] = 1
	m := alloc(t, 0x1000)
	if err := dev.MapDMA(0x100000, m, 0, 0x1000, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	// Callers in each kind of call while it dies.
	calls := map[string]func() error{
		"read":  func() error { return dev.ReadRegion(0, 0, make([]byte, 4)) },
		"write": func() error { return dev.WriteRegion(0, 8, make([]byte, 4)) },
		"map": func() error {
			err := dev.MapDMA(0x200000, m, 0, 0x1000, vfio.ProtRead)
			if err == nil {
				err = dev.UnmapDMA(0x200000, 0x1000)
			}
			return err
		},
		"reset": func() error { return dev.Reset(context.Background()) },
		"irq":   func() error { _, err := dev.IRQ(2); return err },
	}
	var wg sync.WaitGroup
	var going atomic.Int32
	for name, f := range calls {
		wg.Go(func() {
			for first := true; ; first = false {
				if err := f(); err != nil {
					if !errors.Is(err, vfio.ErrGone) {
						t.Errorf("%s: %v", name, err)
					}
					return
				}
				if first {
					going.Add(1)
				}
			}
		})
	}
	for int(going.Load()) < len(calls) {
		runtime.Gosched()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	<-dev.Done()
	if !errors.Is(dev.Err(), vfio.ErrGone) {
		t.Errorf("Err: %v", dev.Err())
	}
	for i, b := range db {
		if b != 0xff {
			t.Fatalf("byte %#x of the doorbell page is %#x", i, b)
		}
	}
	db[0] = 0 // a store goes nowhere
	if v := bar.Load32(0); v != ^uint32(0) || !errors.Is(bar.Err(), vfio.ErrGone) {
		t.Errorf("register %#x, %v", v, bar.Err())
	}
	if e := <-dev.Events(); e != vfio.EventGone {
		t.Errorf("event %v", e)
	}
	for name, f := range calls {
		if err := f(); !errors.Is(err, vfio.ErrGone) {
			t.Errorf("%s, afterwards: %v", name, err)
		}
	}
	if _, err := dev.MapRegion(0); !errors.Is(err, vfio.ErrGone) {
		t.Errorf("map region, afterwards: %v", err)
	}
	if err := dev.SetIRQs(2, 0, []int{-1}); !errors.Is(err, vfio.ErrGone) {
		t.Errorf("set irqs, afterwards: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("the memory is held by a dead device: %v", err)
	}
}

// A stopped server is as good as gone: the call ends in its time.
func TestServerStopped(t *testing.T) {
	path, cmd := startServer(t)
	dev, err := Dial(context.Background(), path, WithTimeout(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dev.Close() }()
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for err == nil { // the signal takes its time to arrive
		err = dev.ReadRegion(0, 0, make([]byte, 4))
	}
	if !errors.Is(err, vfio.ErrTimeout) || !errors.Is(err, vfio.ErrGone) {
		t.Errorf("%v", err)
	}
	<-dev.Done()
}

// A client that is killed leaves a function that the next one finds clean.
func TestListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "card.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", st.Mode(), err)
	}
	e := newEngine(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended, reports := make(chan error, 1), make(chan error, 16)
	go func() { ended <- l.Serve(ctx, e, func(err error) { reports <- err }) }()

	d, err := Dial(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	// A second client learns who holds it; one that speaks less, that it is busy.
	_, err = Dial(ctx, path)
	var busy *vfio.BusyError
	if !errors.As(err, &busy) || busy.PID != os.Getpid() || !errors.Is(err, vfio.ErrBusy) {
		t.Errorf("second client: %v", err)
	}
	c, err := (&netDialer{}).dial(path)
	if err != nil {
		t.Fatal(err)
	}
	r := newRaw(t, c)
	r.send(versionRequest)
	r.expect("refusal", `0100 0100 1000 0000 2100 0000 1000 0000`)
	// A second server finds the path taken.
	if _, err := Listen(path); !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Errorf("second server: %v", err)
	}
	// A crowd of silent clients does not keep the next good one out for long.
	for range 20 {
		c, err := (&netDialer{}).dial(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if err := d.SetIRQs(vfio.IRQMSIX, 0, []int{-1}); err != nil {
		t.Errorf("the holder was disturbed: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-reports; err != nil {
		t.Errorf("session: %v", err)
	}
	d, err = Dial(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if a, d, _, _ := e.counts(); a != 2 || d != 1 {
		t.Errorf("attached %d, detached %d", a, d)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	<-d.Done()
	_ = d.Close()
	if _, err := Dial(context.Background(), path); !errors.Is(err, vfio.ErrNotFound) {
		t.Errorf("after the end: %v", err)
	}
	// A socket that a dead server left is replaced; a file is not.
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(s, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(s)
	l, err = Listen(path)
	if err != nil {
		t.Fatalf("over a dead socket: %v", err)
	}
	_ = l.Close()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); !errors.Is(err, vfio.ErrExists) {
		t.Errorf("over a file: %v", err)
	}
}

// slowDetach is a function that takes its time to let go.
type slowDetach struct {
	*engine
	leave chan struct{}
}

func (s *slowDetach) Detach() {
	<-s.leave
	s.engine.Detach()
}

// Who closes a function can open it again at once, however long it takes to
// let go; meanwhile it is not busy but about to be free.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "card.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	e := &slowDetach{newEngine(t), make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- l.Serve(context.Background(), e, nil) }()
	first, err := Dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	// Two at once: one gets it, the other learns that it is taken.
	got, told := make(chan error, 2), make(chan struct{})
	for range 2 {
		go func() {
			d, err := Dial(context.Background(), path)
			if err == nil {
				defer func() { _ = d.Close() }()
				<-told // hold it until the other has its answer
			}
			got <- err
		}()
	}
	select {
	case err := <-got:
		t.Fatalf("%v before the function is free", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(e.leave)
	if err := <-got; !errors.Is(err, vfio.ErrBusy) {
		t.Errorf("the slower one: %v", err)
	}
	close(told)
	if err := <-got; err != nil {
		t.Errorf("the quicker one: %v", err)
	}
	_ = l.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOpenByScheme(t *testing.T) {
	ctx := context.Background()
	if _, err := vfio.Open(ctx, "soft:x"); !errors.Is(err, vfio.ErrNotSupported) || !strings.Contains(err.Error(), `import _ "rnic/hw/softcard/soft"`) {
		t.Errorf("a scheme that is not linked in: %v", err)
	}
	if _, err := vfio.Open(ctx, "nosuch:x"); !errors.Is(err, vfio.ErrNotSupported) || !strings.Contains(err.Error(), "vfio-user") {
		t.Errorf("an unknown scheme: %v", err)
	}
	if _, err := vfio.Open(ctx, "0000:03:00.0"); !errors.Is(err, vfio.ErrNotSupported) {
		t.Errorf("a PCI address: %v", err)
	}
	if _, err := vfio.Open(ctx, "nothing"); !errors.Is(err, vfio.ErrInvalid) {
		t.Errorf("no scheme: %v", err)
	}
	if _, err := vfio.Open(ctx, "vfio-user:/nonexistent"); !errors.Is(err, vfio.ErrNotFound) {
		t.Errorf("no socket: %v", err)
	}
}

// 1,000 sessions leave as much behind as ten do: nothing.
func TestLeaks(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 100
	}
	path := filepath.Join(t.TempDir(), "card.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reports := make(chan error)
	go func() { _ = l.Serve(ctx, e, func(err error) { reports <- err }) }()
	m := alloc(t, 0x1000)
	session := func() {
		d, err := Dial(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		bar, err := vfio.NewBAR(d, 0)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.SetIRQs(2, 3, []int{fd}), d.MapDMA(0x100000, m, 0, 0x1000, vfio.ProtReadWrite)); err != nil {
			t.Fatal(err)
		}
		_ = d.Close()
		_ = unix.Close(fd)
		if err := bar.Release(); err != nil {
			t.Fatal(err)
		}
		if err := <-reports; err != nil {
			t.Fatal(err)
		}
	}
	var fds, maps, goroutines int
	count := func() (int, int, int) { return countFDs(t), countMaps(t), runtime.NumGoroutine() }
	for i := range n {
		session()
		if i == 9 {
			fds, maps, goroutines = count()
		}
	}
	// The last session's goroutine is about to end.
	var f, mm, g int
	for range 1000 {
		if f, mm, g = count(); g <= goroutines {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if f != fds || mm != maps || g > goroutines {
		t.Errorf("after %d sessions: %d descriptors, %d mappings, %d goroutines; after ten: %d, %d, %d", n, f, mm, g, fds, maps, goroutines)
	}
}

// A client that never reads: its own session ends, in time; another's does
// not notice.
func TestPeerThatDoesNotRead(t *testing.T) {
	good := newRig(t)
	e := newEngine(t)
	r, res := rawClient(t, e, WithTimeout(300*time.Millisecond))
	read := unhex(`0f00 0900 2000 0000 0000 0000 0000 0000  0000 0000 0000 0000 0000 0000 0010 0000`)
	_ = r.SetWriteDeadline(time.Time{})
	for { // until the server hangs up
		if _, err := r.Write(read); err != nil {
			break
		}
		if v := good.bar.Load32(0); v != engineMagic {
			t.Fatalf("the other session: %#x, %v", v, good.bar.Err())
		}
	}
	if err := <-res; !errors.Is(err, vfio.ErrTimeout) {
		t.Errorf("%v", err)
	}
	if good.bar.Err() != nil {
		t.Error(good.bar.Err())
	}
}

// A client that asks for more than the socket holds, within the queue, and
// takes none of it: the write ends in its time.
func TestPeerThatTakesNoReply(t *testing.T) {
	r, res := rawClient(t, newEngine(t), WithTimeout(300*time.Millisecond))
	read := unhex(`0f00 0900 2000 0000 0000 0000 0000 0000  0000 0000 0000 0000 0000 0000 0010 0000`)
	for range queuedCommands - 2 { // of 4 KiB each; the socket takes some 200 KiB
		r.sendBytes(read)
	}
	if err := <-res; !errors.Is(err, vfio.ErrTimeout) {
		t.Errorf("%v", err)
	}
}

// The same at the other end: a server that floods a client with DMA requests
// and takes no answers.
func TestServerThatDoesNotRead(t *testing.T) {
	r, dev, _ := rawServer(t, WithTimeout(300*time.Millisecond))
	r.handshake()
	d := <-dev
	defer func() { _ = d.Close() }()
	req := unhex(`0700 0b00 2000 0000 0000 0000 0000 0000  0800 0400 0000 0000 0500 0000 0000 0000`)
	_ = r.SetWriteDeadline(time.Time{})
	for {
		if _, err := r.Write(req); err != nil {
			break
		}
	}
	<-d.Done()
	if err := d.Err(); !errors.Is(err, vfio.ErrGone) || !errors.Is(err, vfio.ErrTimeout) {
		t.Errorf("%v", err)
	}
}
