package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/driver"
)

// traffic posts WRITEs from a's queue pairs and waits for them, until the card is gone, and gives how each call of the program
// ended: of posting, of waiting for completions, for events, and of a command.
func traffic(a *end, remote driver.RemoteMR, running chan<- bool) map[string]error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var (
		mu    sync.Mutex
		ended = map[string]error{}
		wait  sync.WaitGroup
	)
	until := func(name string, step func() error) {
		wait.Go(func() {
			for {
				if err := step(); err != nil {
					mu.Lock()
					defer mu.Unlock()
					ended[name] = err
					return
				}
			}
		})
	}
	for i, q := range a.qp {
		until(fmt.Sprintf("post %d", i), func() error {
			err := q.PostSend(&driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 10000)}, Remote: remote})
			if errors.Is(err, driver.ErrQueueFull) {
				time.Sleep(time.Millisecond)
				return ctx.Err()
			}
			return err
		})
	}
	sum := 0
	until("wait", func() error {
		var wc [32]driver.WC
		n, err := a.cq.Wait(ctx, wc[:])
		for _, c := range wc[:n] {
			if err := c.Err(); err != nil {
				return err
			}
		}
		if sum += n; sum > 100 {
			select {
			case running <- true:
			default:
			}
		}
		return err
	})
	until("event", func() error { _, err := a.dev.NextEvent(ctx); return err })
	until("command", func() error {
		time.Sleep(5 * time.Millisecond)
		_, err := a.qp[0].Query(context.Background()) // which is 5 s
		return err
	})
	wait.Wait()
	return ended
}

// gone wants each call of a program to have ended because its card was gone. A completion in error may come before that.
func gone(t *testing.T, ended map[string]error) {
	t.Helper()
	if len(ended) != 5 {
		t.Errorf("%d calls ended", len(ended))
	}
	for name, err := range ended {
		var completion *driver.CompletionError
		if !errors.Is(err, driver.ErrDeviceGone) && !(name == "wait" && errors.As(err, &completion)) && !(strings.HasPrefix(name, "post") && errors.Is(err, driver.ErrState)) {
			t.Errorf("%s ended with %v", name, err)
		}
	}
}

// taken runs a program's traffic, takes the card away by a write to a file of sysfs, and wants that the writer is not held up and
// that each call ends. It gives the card's PCI address.
func taken(t *testing.T, file, text string) (bdf string) {
	first, _ := pair(t)
	bdf, _, _ = strings.Cut(first, "?")
	a, b := openPair(t)
	running, ended := make(chan bool, 1), make(chan map[string]error, 1)
	go func() { ended <- traffic(a, b.mr.Remote(), running) }()
	select {
	case <-running:
	case e := <-ended:
		t.Fatalf("no traffic: %v", e)
	}
	began := time.Now()
	written := make(chan error, 1)
	go func() {
		written <- os.WriteFile(strings.ReplaceAll(file, "BDF", bdf), []byte(strings.ReplaceAll(text, "BDF", bdf)), 0)
	}()
	late := time.After(time.Minute)
	for range 2 {
		select {
		case err := <-written:
			t.Logf("%s written after %v: %v", file, time.Since(began), err)
			if err != nil {
				t.Error(err)
			}
		case e := <-ended:
			t.Logf("the program's calls ended after %v: %v", time.Since(began), e)
			gone(t, e)
		case <-late:
			t.Fatalf("a minute after the card was taken, the writer or the program still waits")
		}
	}
	if err := a.dev.Close(); err != nil {
		t.Errorf("close of a card that is gone: %v", err)
	}
	if err := b.dev.Close(); err != nil {
		t.Error(err)
	}
	return bdf
}

// works wants both cards to be there again, and to work.
func works(t *testing.T) {
	t.Helper()
	a, b := openPair(t)
	if err := a.do(0, driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{a.mr.SGE(0, 5000)}, Remote: b.mr.Remote()}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := errors.Join(a.dev.Close(), b.dev.Close()); err != nil {
		t.Error(err)
	}
}

// TestLifeUnbound: the driver is unbound while a program uses the card.
func TestLifeUnbound(t *testing.T) {
	first := taken(t, "/sys/bus/pci/drivers/vfio-pci/unbind", "BDF")
	if err := os.WriteFile("/sys/bus/pci/drivers/vfio-pci/bind", []byte(first), 0); err != nil {
		t.Fatal(err)
	}
	works(t)
}

// TestLifeRemoved: the function is taken out of the kernel's tree while a program uses the card.
func TestLifeRemoved(t *testing.T) {
	first := taken(t, "/sys/bus/pci/devices/BDF/remove", "1")
	if err := os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct{ file, text string }{
		{"/sys/bus/pci/devices/" + first + "/driver_override", "vfio-pci"}, {"/sys/bus/pci/drivers_probe", first},
	} {
		if err := os.WriteFile(w.file, []byte(w.text), 0); err != nil {
			t.Fatal(err)
		}
	}
	works(t)
}

// TestLifeTaken runs until the host has taken the card away, by QEMU's device_del.
func TestLifeTaken(t *testing.T) {
	if os.Getenv("RNIC_VM_TAKEN") == "" {
		t.Skip("not asked for: the host takes no card away")
	}
	a, b := openPair(t)
	held := holdFunctions(t)
	running, ended := make(chan bool, 1), make(chan map[string]error, 1)
	go func() { ended <- traffic(a, b.mr.Remote(), running) }()
	select {
	case <-running:
		fmt.Println("READY")
	case e := <-ended:
		t.Fatalf("no traffic: %v", e)
	}
	e := <-ended
	t.Logf("the program's calls ended: %v", e)
	gone(t, e)
	if !t.Failed() {
		fmt.Println("ENDED WELL")
	}
	time.Sleep(10 * time.Second) // the host ends the guest before
	for _, fd := range held {
		_ = unix.Close(fd)
	}
	if err := a.dev.Close(); err != nil {
		t.Errorf("close of a card that is gone: %v", err)
	}
	_ = b.dev.Close()
}

// holdFunctions keeps the functions that are open, by more descriptors: a kernel that takes one away waits for them. Without, QEMU would eject the card, and
// abort over it, before what the program says got out of the guest.
func holdFunctions(t *testing.T) (held []int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil || to != "anon_inode:[vfio-device]" && !strings.HasPrefix(to, "/dev/vfio/devices/") {
			continue
		}
		n, err := strconv.Atoi(fd.Name())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, n)
	}
	for i, fd := range held {
		if held[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(held) != 2 {
		t.Fatalf("%d functions are open, want 2", len(held))
	}
	return held
}

// TestLifeServer runs until the host has killed the process that serves the cards, while no request of QEMU's is under way to it.
func TestLifeServer(t *testing.T) {
	if os.Getenv("RNIC_VM_TAKEN") == "" {
		t.Skip("not asked for: the host kills no server")
	}
	a, b := openPair(t)
	if err := a.do(0, driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{a.mr.SGE(0, 5000)}, Remote: b.mr.Remote()}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("READY")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // when it is done
		t.Fatal(err)
	}
	for _, e := range []*end{a, b} {
		// Its registers read as all ones. QEMU may be slow to say so.
		var err error
		for range 5 {
			if _, err = e.qp[0].Query(t.Context()); !errors.Is(err, driver.ErrTimeout) {
				break
			}
		}
		if !errors.Is(err, driver.ErrDeviceGone) {
			t.Fatalf("a command: %v", err)
		}
		if v, err := e.dev.NextEvent(t.Context()); err != nil || v.Type != driver.EventDeviceGone {
			t.Errorf("an event: %v, %v", v, err)
		}
		if err := e.qp[0].PostSend(&driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{e.mr.SGE(0, 1)}}); !errors.Is(err, driver.ErrDeviceGone) {
			t.Errorf("a post: %v", err)
		}
		var wc [1]driver.WC
		if _, err := e.cq.Wait(t.Context(), wc[:]); !errors.Is(err, driver.ErrDeviceGone) {
			t.Errorf("waiting: %v", err)
		}
		if err := e.dev.Close(); err != nil {
			t.Errorf("close of a card that is gone: %v", err)
		}
	}
	if !t.Failed() {
		fmt.Println("ENDED WELL")
	}
}

// TestLifeKilled: SIGKILL of a program in mid-traffic. Not a frame comes from its card afterwards, nothing that it wrote to changes any more, and the
// next program opens it clean.
func TestLifeKilled(t *testing.T) {
	first, second := pair(t)
	b := openEnd(t, second)
	child := exec.Command(os.Args[0], "-test.run=^TestLifeChild$")
	child.Env = append(os.Environ(), "RNIC_VM_CHILD="+first, "RNIC_VM_PEER="+b.qp[0].Endpoint().String(),
		fmt.Sprintf("RNIC_VM_REMOTE=%#x %#x %#x", b.mr.Remote().Addr, b.mr.Remote().Length, b.mr.Remote().RKey))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "ENDPOINT ") {
		t.Log(lines.Text())
	}
	var peer driver.Endpoint
	if err := peer.UnmarshalText([]byte(strings.TrimPrefix(lines.Text(), "ENDPOINT "))); err != nil {
		t.Fatal(err)
	}
	if err := b.qp[0].Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	received := func() uint64 {
		counters, err := b.dev.Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range counters {
			if c.Name == "RX_FRAMES" {
				return c.Value
			}
		}
		t.Fatal("no counter RX_FRAMES")
		return 0
	}
	for began := time.Now(); received() < 200; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the child sends nothing")
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = child.Wait()
	before := received()
	clear(b.mr.Bytes())
	time.Sleep(500 * time.Millisecond)
	if after := received(); after != before {
		t.Errorf("%d frames came from the card of a program that was dead", after-before)
	}
	for i, v := range b.mr.Bytes() {
		if v != 0 {
			t.Fatalf("byte %d was written for a program that was dead", i)
		}
	}
	if err := b.dev.Close(); err != nil {
		t.Error(err)
	}
	works(t)
}

// TestLifeChild is the program that is killed.
func TestLifeChild(t *testing.T) {
	addr := os.Getenv("RNIC_VM_CHILD")
	if addr == "" {
		t.Skip("not asked for: TestLifeKilled runs it")
	}
	a := openEnd(t, addr)
	var r driver.RemoteMR
	if _, err := fmt.Sscanf(os.Getenv("RNIC_VM_REMOTE"), "%v %v %v", &r.Addr, &r.Length, &r.RKey); err != nil {
		t.Fatal(err)
	}
	var peer driver.Endpoint
	if err := peer.UnmarshalText([]byte(os.Getenv("RNIC_VM_PEER"))); err != nil {
		t.Fatal(err)
	}
	if err := a.qp[0].Connect(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("ENDPOINT %v\n", a.qp[0].Endpoint())
	for i := range a.mr.Bytes() {
		a.mr.Bytes()[i] = 0xa5
	}
	for {
		if err := a.do(0, driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{a.mr.SGE(0, 20000)}, Remote: r}); err != nil {
			t.Fatal(err)
		}
	}
}
