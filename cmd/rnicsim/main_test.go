package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/vfio"
)

// The test binary is also the processes that the tests kill.
func TestMain(m *testing.M) {
	switch os.Getenv("RNICSIM_TEST") {
	case "server":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	case "client":
		os.Exit(client(os.Args[1]))
	}
	os.Exit(m.Run())
}

// process starts this binary again; the lines that it prints are read from the
// scanner.
func process(t *testing.T, as string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "RNICSIM_TEST="+as)
	cmd.Stderr = os.Stderr
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

// wait reads events until one of a kind.
func wait(t *testing.T, s *bufio.Scanner, kind string) event {
	t.Helper()
	form, err := jsonschema.NewCompiler().Compile("../../docs/json/sim.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for s.Scan() {
		var e event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("line %q: %v", s.Text(), err)
		}
		object, err := jsonschema.UnmarshalJSON(bytes.NewReader(s.Bytes()))
		if err == nil {
			err = form.Validate(object)
		}
		if err != nil {
			t.Fatalf("line %q: %v", s.Text(), err)
		}
		if e.Event == kind {
			return e
		}
	}
	t.Fatalf("no event %q: %v", kind, s.Err())
	return event{}
}

// simulator starts rnicsim with two cards.
func simulator(t *testing.T) (cmd *exec.Cmd, out *bufio.Scanner, a, b string) {
	t.Helper()
	dir := t.TempDir()
	a, b = filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")
	cmd, out = process(t, "server", "--json", "--card", "a="+a+",mac=02:00:00:00:00:0a,ip=10.0.0.1/24", "--card", "b="+b)
	e := wait(t, out, "ready")
	if len(e.Cards) != 2 || e.Cards[0].Address != "vfio-user:"+a || e.Cards[0].MAC != "02:00:00:00:00:0a" || e.Cards[0].IPs[0] != "10.0.0.1/24" {
		t.Fatalf("ready: %+v", e)
	}
	return cmd, out, a, b
}

// opened is a client's view of a card that is ready.
type opened struct {
	vfio.Device
	ctrl, bell, keys *vfio.BAR
}

func open(path string) (o opened, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if o.Device, err = vfio.Open(ctx, "vfio-user:"+path); err != nil {
		return o, err
	}
	for i, p := range map[int]**vfio.BAR{hw.BARCtrl: &o.ctrl, hw.BARDoorbell: &o.bell, hw.BARKeytable: &o.keys} {
		if *p, err = vfio.NewBAR(o.Device, i); err != nil {
			return o, err
		}
	}
	for !hw.ControlStatus(o.ctrl.Load32(hw.RegControlStatus)).Ready() {
		if err := o.ctrl.Err(); err != nil {
			return o, err
		}
		if ctx.Err() != nil {
			return o, errors.New("the card does not become ready")
		}
		time.Sleep(time.Millisecond)
	}
	return o, nil
}

func (o *opened) close() {
	for _, b := range []*vfio.BAR{o.ctrl, o.bell, o.keys} {
		_ = b.Release()
	}
	_ = o.Device.Close()
}

// client opens a card, leaves traces all over it, says so and stays.
func client(path string) int {
	o, err := open(path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	o.ctrl.Store32(hw.RegControlScratch, 0xdeadbeef)
	mmio.Store32(o.bell.Word32(8192), 77)
	mmio.Store32(o.keys.Word32(64*5+60), 0x2<<8)
	mem, err := vfio.AllocMemory(1<<20, vfio.MemoryOptions{})
	if err == nil {
		err = o.MapDMA(1<<20, mem, 0, 1<<20, vfio.ProtReadWrite)
	}
	cfg, e := vfio.NewConfig(o)
	if err == nil && e == nil {
		e = cfg.SetBusMaster(true)
	}
	fmt.Println("mess made", err, e)
	select {}
}

// A client that is killed leaves a clean card to the next one.
func TestClientKilled(t *testing.T) {
	_, out, a, _ := simulator(t)
	for range 3 {
		cmd, said := process(t, "client", a)
		if !said.Scan() || said.Text() != "mess made <nil> <nil>" {
			t.Fatalf("client says %q", said.Text())
		}
		wait(t, out, "attached")
		var busy *vfio.BusyError
		if _, err := open(a); !errors.As(err, &busy) || busy.PID != cmd.Process.Pid {
			t.Fatalf("open of a card that pid %d holds: %v", cmd.Process.Pid, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		wait(t, out, "detached")
		o, err := open(a)
		if err != nil {
			t.Fatal(err)
		}
		if v := o.ctrl.Load32(hw.RegControlScratch); v != 0 {
			t.Errorf("SCRATCH %#x", v)
		}
		if v := mmio.Load32(o.bell.Word32(8192)); v != 0 {
			t.Errorf("a doorbell holds %d", v)
		}
		if v := mmio.Load32(o.keys.Word32(64*5 + 60)); v != 0 {
			t.Errorf("a key's valid word holds %#x", v)
		}
		if s := hw.ControlStatus(o.ctrl.Load32(hw.RegControlStatus)); s.BusMaster() {
			t.Error("bus mastering is on")
		}
		o.close()
		wait(t, out, "detached")
	}
}

// When rnicsim is killed, every call of its client ends in a typed error.
func TestServerKilled(t *testing.T) {
	cmd, _, a, _ := simulator(t)
	o, err := open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	select {
	case <-o.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the device is not told to be gone")
	}
	if _, err := o.ctrl.Read32(hw.RegControlStatus); !errors.Is(err, vfio.ErrGone) {
		t.Errorf("register: %v", err)
	}
	if err := o.Reset(t.Context()); !errors.Is(err, vfio.ErrGone) {
		t.Errorf("reset: %v", err)
	}
	if v := mmio.Load32(o.bell.Word32(4096)); v != ^uint32(0) {
		t.Errorf("a doorbell reads %#x", v)
	}
}

func TestStops(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd, out, a, b := simulator(t)
		o, err := open(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		wait(t, out, "stopped")
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
		for _, path := range []string{a, b} {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v: the socket is left: %v", sig, err)
			}
		}
		o.close()
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x := filepath.Join(dir, "x")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "at least one --card"},
		{[]string{"--bogus"}, exitUsage, "--bogus"},
		{[]string{"extra"}, exitUsage, "extra"},
		{[]string{"--card", "a"}, exitUsage, "want NAME=PATH"},
		{[]string{"--card", "=" + x}, exitUsage, "want NAME=PATH"},
		{[]string{"--card", "a=" + x + ",mac=7"}, exitUsage, "mac=7"},
		{[]string{"--card", "a=" + x + ",wire=w"}, exitUsage, "not a card's"},
		{[]string{"--card", "a=" + x, "--card", "a=" + x + "2"}, exitUsage, "twice"},
		{[]string{"--card", "a=" + x, "--card", "b=" + x}, exitUsage, "twice"},
		{[]string{"--card", "a=" + x, "--wire-slots", "1"}, exitUsage, "1 slots"},
		{[]string{"--card", "a=" + x, "--wire-slots", "0"}, exitUsage, "--wire-slots 0"},
		{[]string{"--card", "a=" + x, "--engine", "rtl"}, exitUsage, "simulation"},
		{[]string{"--card", "a=" + plain}, exitFailed, "no socket"},
		{[]string{"--card", "a=" + filepath.Join(dir, "no", "x")}, exitFailed, "no such file"},
	} {
		var stderr strings.Builder
		if code := run(t.Context(), c.args, io.Discard, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%q: exit %d, %q; want %d, %q", c.args, code, stderr.String(), c.code, c.want)
		}
	}
}

func TestSocketIsBusy(t *testing.T) {
	_, _, a, _ := simulator(t)
	var stderr strings.Builder
	if code := run(t.Context(), []string{"--card", "a=" + a}, io.Discard, &stderr); code != exitBusy || !strings.Contains(stderr.String(), "pid") {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
}

// What people read.
func TestText(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dir := t.TempDir()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--card", "left=" + filepath.Join(dir, "l") + ",engine=none", "--wire-slots", "2"}, w, io.Discard)
		_ = w.Close()
	}()
	s := bufio.NewScanner(r)
	var got []string
	for s.Scan() {
		got = append(got, s.Text())
		if len(got) == 2 {
			stop()
		}
	}
	text := strings.Join(got, "\n")
	for _, want := range []string{"a wire of 2 slots", "left", "vfio-user:" + filepath.Join(dir, "l"), "engine none", "stopped"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if c := <-code; c != 0 {
		t.Errorf("exit %d", c)
	}
}
