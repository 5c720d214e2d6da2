package driver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/softcard"
)

func openErr(t *testing.T, what, addr string, want error, opts ...driver.Option) error {
	t.Helper()
	d, err := driver.Open(testCtx(t), addr, append(opts, driver.WithStatusSocket(""))...)
	if err == nil {
		d.Close()
	}
	wantErr(t, what, err, want)
	return err
}

func TestOpenRefuses(t *testing.T) {
	openErr(t, "a scheme that is none", "hard:1", driver.ErrNotSupported)
	openErr(t, "a socket that is none", "vfio-user:/nonexistent/rnic.sock", driver.ErrNotFound)
	d := open(t, "soft:twice")
	if err := openErr(t, "a card that is held", "soft:twice", driver.ErrBusy); !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("%v does not name the pid", err)
	}
	d.Close()

	h := newHarness(t, softcard.Config{})
	h.set(hw.RegIdentVersion, 7<<16|3)
	if err := openErr(t, "contract version 7.3", h.addr, driver.ErrContractVersion); !strings.Contains(err.Error(), "7.3") || !strings.Contains(err.Error(), fmt.Sprintf("%d.", hw.ContractMajor)) {
		t.Errorf("%v does not name both versions", err)
	}
	h.set(hw.RegIdentVersion, hw.ContractMajor<<16|0xffff)
	d, err := driver.Open(testCtx(t), h.addr, driver.WithStatusSocket(""))
	if err != nil {
		t.Fatalf("another minor version: %v", err)
	}
	d.Close()
	h.set(hw.RegIdentMagic, 0x1234)
	openErr(t, "another magic", h.addr, driver.ErrContractVersion)
	h.set(hw.RegIdentMagic, 0xffffffff)
	openErr(t, "all ones", h.addr, driver.ErrDeviceGone)
	h.set(hw.RegIdentMagic, hw.ContractMagic)
	for off, v := range map[uint64]uint32{hw.RegIdentKeyIndexBits: 33, hw.RegIdentMaxSendSegments: 64, hw.RegIdentMaxMTU: 1500, hw.RegIdentDoorbellPages: 1 << 30, hw.RegIdentDoorbellStride: 100} {
		h.set(off, v)
		openErr(t, fmt.Sprintf("register %#x of %d", off, v), h.addr, driver.ErrInvalid)
		h.mu.Lock()
		delete(h.patch, off)
		h.mu.Unlock()
	}
	h.set(hw.RegControlStatus, 0) // never ready
	_, err = driver.Open(short(t), h.addr, driver.WithStatusSocket(""))
	wantErr(t, "a card that does not come up", err, driver.ErrTimeout)
	if err == nil || !strings.Contains(err.Error(), "CONTROL.STATUS") {
		t.Errorf("%v does not name the register", err)
	}
	<-h.served // the last session must not hang
	defer h.hang()()
	_, err = driver.Open(short(t), h.addr, driver.WithStatusSocket(""))
	wantErr(t, "a card whose registers do not answer", err, driver.ErrTimeout)
}

// A card that is not stepped answers registers and no commands: every control
// call ends by its context, naming the registers, and works when repeated.
func TestCommandDeadline(t *testing.T) {
	h := newHarness(t, softcard.Config{})
	s := newSide(t, h.addr, 16, smallQP)
	m, err := s.pd.AllocMR(testCtx(t), 1<<20, driver.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	h.paused.Store(true)
	explained := func(what string, err error) {
		t.Helper()
		wantErr(t, what, err, driver.ErrTimeout)
		var e *driver.DeadlineError
		if !errors.As(err, &e) || len(e.Registers) == 0 || e.Registers[0].Name != "CONTROL.STATUS" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v names no registers", what, err)
		}
	}
	explained("Dereg", m.Dereg(short(t)))
	if len(m.Bytes()) != 1<<20 {
		t.Fatal("the memory went before its fence")
	}
	m.Bytes()[1<<20-1] = 1 // still mapped
	_, err = s.qp.Query(short(t))
	explained("Query", err)
	_, err = s.d.CreateCQ(short(t), 16)
	explained("CreateCQ", err)
	explained("Modify", s.qp.Modify(short(t), driver.QPAttr{State: driver.StateErr}, driver.AttrState))
	_, err = s.d.Snapshot(short(t))
	explained("Snapshot", err)
	// More callers than the queue has slots.
	errs := make(chan error)
	for range 40 {
		go func() {
			_, err := s.qp.Query(short(t))
			errs <- err
		}()
	}
	for range 40 {
		if err := <-errs; !errors.Is(err, driver.ErrTimeout) {
			t.Errorf("Query: %v", err)
		}
	}
	h.paused.Store(false) // late replies free the slots that were given up
	for range 100 {
		if _, err := s.qp.Query(testCtx(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Dereg(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	if m.Bytes() != nil {
		t.Error("bytes after Dereg")
	}
	// A card whose registers do not answer either.
	h.paused.Store(true)
	resume := h.hang()
	_, err = s.qp.Query(short(t))
	wantErr(t, "Query of a card that hangs", err, driver.ErrTimeout)
	resume()
	h.paused.Store(false)
}

// A card that was pulled out reads as all ones, and nothing else tells of it: a command that is not answered finds it, and everyone who
// waits is told.
func TestDeviceReadsAsOnes(t *testing.T) {
	h := newHarness(t, softcard.Config{})
	s := newSide(t, h.addr, 16, smallQP)
	waited := make(chan error, 1)
	go func() {
		var wc [1]driver.WC
		_, err := s.cq.Wait(testCtx(t), wc[:])
		waited <- err
	}()
	h.paused.Store(true)
	h.set(hw.RegControlStatus, ^uint32(0))
	err := error(driver.ErrTimeout)
	for range 50 { // on a busy machine the registers may be read late
		if _, err = s.qp.Query(short(t)); !errors.Is(err, driver.ErrTimeout) {
			break
		}
	}
	wantErr(t, "Query", err, driver.ErrDeviceGone)
	wantErr(t, "Wait", <-waited, driver.ErrDeviceGone)
	if e, err := s.d.NextEvent(testCtx(t)); err != nil || e.Type != driver.EventDeviceGone {
		t.Errorf("%v, %v", e, err)
	}
	wantErr(t, "PostRecv", s.qp.PostRecv(&driver.RecvWR{}), driver.ErrDeviceGone)
	h.paused.Store(false)
}

// The server dies: every call ends in a device-gone error, those that wait too.
func TestDeviceGone(t *testing.T) {
	h := newHarness(t, softcard.Config{})
	s := newSide(t, h.addr, 16, smallQP)
	ctx := testCtx(t)
	m, err := s.pd.AllocMR(ctx, 1<<20, driver.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		what string
		err  error
	}
	results := make(chan result)
	for range 3 {
		go func() {
			var wc [1]driver.WC
			_, err := s.cq.Wait(ctx, wc[:])
			results <- result{"Wait", err}
		}()
	}
	go func() {
		for {
			e, err := s.d.NextEvent(ctx)
			if err == nil && e.Type == driver.EventDeviceGone {
				_, err = s.d.NextEvent(ctx)
			}
			if err != nil {
				results <- result{"NextEvent", err}
				return
			}
		}
	}()
	stop := make(chan struct{})
	go func() { // someone posts all the while
		for {
			if err := s.qp.PostRecv(&driver.RecvWR{}); errors.Is(err, driver.ErrDeviceGone) {
				results <- result{"PostRecv", err}
				return
			}
			select {
			case <-stop:
				results <- result{"PostRecv", errTest}
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	tr, err := s.d.Trace(ctx, driver.TraceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := tr.Next(ctx)
		results <- result{"Next of a trace", err}
	}()
	h.paused.Store(true)
	go func() {
		_, err := s.qp.Query(ctx) // no reply will come
		results <- result{"Query", err}
	}()
	time.Sleep(20 * time.Millisecond) // let them get to where they wait; the result does not depend on it
	h.kill()
	for range 7 {
		select {
		case r := <-results:
			wantErr(t, r.what, r.err, driver.ErrDeviceGone)
		case <-ctx.Done():
			t.Fatal("a call did not end")
		}
	}
	close(stop)
	<-s.d.Done()
	wantErr(t, "PostSend", s.qp.PostSend(&driver.SendWR{Opcode: driver.Send}), driver.ErrDeviceGone)
	_, err = s.cq.Poll(make([]driver.WC, 1))
	wantErr(t, "Poll", err, driver.ErrDeviceGone)
	wantErr(t, "Arm", s.cq.Arm(false), driver.ErrDeviceGone)
	_, err = s.d.AllocPD(ctx)
	wantErr(t, "AllocPD", err, driver.ErrDeviceGone)
	_, err = s.pd.AllocMR(ctx, 10, 0)
	wantErr(t, "AllocMR", err, driver.ErrDeviceGone)
	_, err = s.d.CreateCQ(ctx, 10)
	wantErr(t, "CreateCQ", err, driver.ErrDeviceGone)
	_, err = s.pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: s.cq, RecvCQ: s.cq})
	wantErr(t, "CreateQP", err, driver.ErrDeviceGone)
	wantErr(t, "Modify", s.qp.Modify(ctx, driver.QPAttr{State: driver.StateErr}, driver.AttrState), driver.ErrDeviceGone)
	wantErr(t, "Connect", s.qp.Connect(ctx, s.qp.Endpoint()), driver.ErrDeviceGone)
	wantErr(t, "SetRate", s.qp.SetRate(ctx, 1<<20, 1<<20), driver.ErrDeviceGone)
	wantErr(t, "Drain", s.qp.Drain(ctx), driver.ErrDeviceGone)
	_, err = s.d.Snapshot(ctx)
	wantErr(t, "Snapshot", err, driver.ErrDeviceGone)
	_, err = s.d.Registers(ctx)
	wantErr(t, "Registers", err, driver.ErrDeviceGone)
	_, err = s.d.Capture(ctx, driver.CaptureOptions{})
	wantErr(t, "Capture", err, driver.ErrDeviceGone)
	_, err = s.d.Debug()
	wantErr(t, "Debug", err, driver.ErrDeviceGone)
	wantErr(t, "ModifyPort", s.d.ModifyPort(ctx, s.d.Port().Config()), driver.ErrDeviceGone)
	wantErr(t, "Dereg", m.Dereg(ctx), driver.ErrDeviceGone)
	if m.Bytes() != nil {
		t.Error("Dereg left the memory")
	}
	wantErr(t, "QP Close", s.qp.Close(), driver.ErrDeviceGone)
	wantErr(t, "CQ Close", s.cq.Close(), driver.ErrDeviceGone)
	if err := s.d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// The function is wanted back: the device gives it up by itself, though the
// program has not closed it, and its calls end.
func TestReleaseRequest(t *testing.T) {
	h := newHarness(t, softcard.Config{})
	s := newSide(t, h.addr, 16, smallQP)
	ended := make(chan error)
	go func() {
		_, err := s.cq.Wait(testCtx(t), make([]driver.WC, 1))
		ended <- err
	}()
	h.mu.Lock()
	host := h.host
	h.mu.Unlock()
	host.RequestRelease()
	err := <-ended
	wantErr(t, "Wait", err, driver.ErrDeviceGone)
	if err == nil || !strings.Contains(err.Error(), "asked back") {
		t.Errorf("%v does not say why", err)
	}
	select {
	case <-h.served: // the server's session has ended
	case <-testCtx(t).Done():
		t.Fatal("the function was not given back")
	}
	wantErr(t, "PostRecv", s.qp.PostRecv(&driver.RecvWR{}), driver.ErrDeviceGone)
	fill(s.mr.Bytes(), 1) // memory stays until Close
}

// A child in use is not closed, and its users are named; Close of the device
// takes all along, and can be repeated; what waits ends.
func TestCloseOrder(t *testing.T) {
	s := newSide(t, "soft:order", 16, smallQP)
	err := s.pd.Close()
	wantErr(t, "PD in use", err, driver.ErrInUse)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("QP %#x", s.qp.Number())) || !strings.Contains(err.Error(), fmt.Sprintf("MR %#x", s.mr.LKey())) {
		t.Errorf("%v does not name the users", err)
	}
	err = s.cq.Close()
	wantErr(t, "CQ in use", err, driver.ErrInUse)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("QP %#x", s.qp.Number())) {
		t.Errorf("%v does not name the user", err)
	}
	ended := make(chan error)
	go func() {
		_, err := s.cq.Wait(context.Background(), make([]driver.WC, 1))
		ended <- err
	}()
	go func() {
		for { // an event of the port may come before
			if _, err := s.d.NextEvent(context.Background()); err != nil {
				ended <- err
				return
			}
		}
	}()
	if err := s.d.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantErr(t, "a call that waited", <-ended, driver.ErrClosed)
	}
	if err := s.d.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	wantErr(t, "PostRecv", s.qp.PostRecv(&driver.RecvWR{}), driver.ErrClosed)
	_, err = s.cq.Poll(make([]driver.WC, 1))
	wantErr(t, "Poll", err, driver.ErrClosed)
	if s.mr.Bytes() != nil {
		t.Error("a region's bytes after Close")
	}

	// The way back, child by child.
	s = newSide(t, "soft:order", 16, smallQP)
	for _, f := range []func() error{s.qp.Close, s.cq.Close, func() error { return s.mr.Dereg(context.Background()) }, s.pd.Close} {
		for range 2 {
			if err := f(); err != nil {
				t.Errorf("%v", err)
			}
		}
	}
	snap, err := s.d.Snapshot(testCtx(t))
	if err != nil || len(snap.QPs)+len(snap.CQs)+len(snap.Keys) != 0 {
		t.Errorf("left: %+v, %v", snap, err)
	}
}

// resources counts what this process holds.
func resources(t *testing.T) (fds, maps, goroutines int) {
	t.Helper()
	runtime.GC()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	m, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(m), "\n") {
		if strings.Contains(line, "/memfd:rnic") {
			maps++
		}
	}
	return len(l), maps, runtime.NumGoroutine()
}

// Opening and closing leaves nothing behind: after the last as after the
// tenth. RNIC_OPENS sets how often.
// TestOpenCancelled: an Open whose context ends says so, wherever it was, and not that the
// card had gone.
func TestOpenCancelled(t *testing.T) {
	why := errors.New("the test's own")
	for i := range 40 {
		ctx, cancel := context.WithCancelCause(context.Background())
		end := time.AfterFunc(time.Duration(i-1)*100*time.Microsecond, func() { cancel(why) })
		if i == 0 {
			cancel(why)
		}
		d, err := driver.Open(ctx, "soft:cancelled", driver.WithStatusSocket(""))
		end.Stop()
		if err == nil {
			d.Close()
			continue
		}
		var e *driver.DeadlineError
		if !errors.As(err, &e) || !errors.Is(err, why) || errors.Is(err, driver.ErrDeviceGone) {
			t.Errorf("cancelled after %d: %v", i, err)
		}
		cancel(nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := driver.Open(ctx, "soft:cancelled")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("cancelled: %v", err)
	}
}

func TestOpenCloseLeavesNothing(t *testing.T) {
	rounds := 60
	if v := os.Getenv("RNIC_OPENS"); v != "" {
		if _, err := fmt.Sscan(v, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	round := func() {
		d, err := driver.Open(testCtx(t), "soft:leak?wire=leak")
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		pd, err := d.AllocPD(testCtx(t))
		if err != nil {
			t.Fatal(err)
		}
		cq, err := d.CreateCQ(testCtx(t), 10)
		if err != nil {
			t.Fatal(err)
		}
		if cq.FD() < 0 {
			t.Fatal("no eventfd")
		}
		for _, n := range []int{100, 1 << 20} {
			if _, err := pd.AllocMR(testCtx(t), n, driver.LocalWrite); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pd.CreateQP(testCtx(t), driver.QPInit{Type: driver.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Trace(testCtx(t), driver.TraceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		round()
	}
	fds, maps, gos := resources(t)
	for range rounds - 10 {
		round()
	}
	var f, m, g int
	for range 100 { // goroutines of other packages may take a moment to end
		if f, m, g = resources(t); f <= fds && m <= maps && g <= gos {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("fds %d → %d, mappings %d → %d, goroutines %d → %d", fds, f, maps, m, gos, g)
}
