package process

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"rnic/driver"
	"rnic/hw"
	"rnic/vfio"
)

// A program is killed in mid-traffic. Nothing of it is left on its card, its
// peer goes on to serve the next, and the next program opens the card and works.
func TestProcesses_ProgramKilled(t *testing.T) {
	w := simulate(t, "a", "b", "c")
	server := w.listen(t, "b")
	third := newSide(t, w.addr("c"))
	for range 3 {
		p := w.connect(t, "a", "b")
		first := p.await(t, "ready")
		p.progress(t, 20)

		// A second opener is told who holds the card.
		var busy *vfio.BusyError
		if _, err := driver.Open(within(t), w.addr("a")); !errors.Is(err, driver.ErrBusy) || !errors.As(err, &busy) || busy.PID != p.Process.Pid || !strings.Contains(err.Error(), strconv.Itoa(p.Process.Pid)) {
			t.Fatalf("open of a card that pid %d holds: %v", p.Process.Pid, err)
		}
		p.progress(t, 20)
		p.kill()
		server.await(t, "left")

		// Seen without a reset of ours: the driver makes one as it opens.
		isClean(t, w.addr("a"), first.Key>>8)
		next := newSide(t, w.addr("a"))
		s, err := next.dev.Snapshot(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(s.QPs) != 1 || s.QPs[0].QPN != next.qp.Number() || len(s.CQs) != 1 || len(s.Keys) != 1 {
			t.Errorf("the next program's card has %d QPs, %d CQs, %d keys: %+v", len(s.QPs), len(s.CQs), len(s.Keys), s)
		}
		if r, err := next.dev.Scrub(within(t)); err != nil || len(r.Mismatches) != 0 {
			t.Errorf("scrub: %+v, %v", r, err)
		}
		// The killed program's key opens nothing.
		connect(t, third, next)
		third.read(t, driver.RemoteMR{Addr: first.Addr, Length: 64, RKey: first.Key}, driver.StatusRemAccessErr)
		third.again(t)
		next.again(t)
		connect(t, third, next)
		third.read(t, next.mr.Remote(), driver.StatusSuccess)
		third.again(t)
		if err := next.dev.Close(); err != nil {
			t.Fatal(err)
		}
		after := w.connect(t, "a", "b", "-count", "50")
		after.await(t, "done")
		if err := after.Wait(); err != nil {
			t.Fatal(err)
		}
		server.await(t, "left")
	}
}

// isClean looks at a card by its registers alone.
func isClean(t *testing.T, addr string, key uint32) {
	t.Helper()
	d, err := vfio.Open(within(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctrl, err := vfio.NewBAR(d, hw.BARCtrl)
	if err != nil {
		t.Fatal(err)
	}
	defer ctrl.Release()
	ctx := within(t)
	for !hw.ControlStatus(ctrl.Load32(hw.RegControlStatus)).Ready() {
		if ctrl.Err() != nil || ctx.Err() != nil {
			t.Fatalf("the card does not become ready: %v", ctrl.Err())
		}
	}
	if s := hw.ControlStatus(ctrl.Load32(hw.RegControlStatus)); s.BusMaster() || s.CommandEnabled() || s.Fatal() {
		t.Errorf("CONTROL.STATUS %#x after the program was killed", uint32(s))
	}
	for _, b := range []struct {
		name     string
		bar      int
		from, to uint64
	}{
		{"doorbells", hw.BARDoorbell, 4096, 4096 * 64}, // page 0 is the domain's
		{"key table", hw.BARKeytable, uint64(max(key, 256)-256) * hw.KeyEntrySize, uint64(key+256) * hw.KeyEntrySize},
	} {
		r, err := d.Region(b.bar)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, min(b.to, r.Size)-b.from)
		if err := d.ReadRegion(b.bar, b.from, p); err != nil {
			t.Fatal(err)
		}
		for i, v := range p {
			if v != 0 {
				t.Fatalf("%s: byte %#x is %#x after the program was killed", b.name, b.from+uint64(i), v)
			}
		}
	}
}

// side is a queue pair of this process, and what it needs.
type side struct {
	dev *driver.Device
	pd  *driver.PD
	mr  *driver.MR
	cq  *driver.CQ
	qp  *driver.QP
}

func newSide(t *testing.T, addr string) *side {
	t.Helper()
	ctx := within(t)
	s := &side{dev: open(t, addr)}
	var err error
	if s.pd, err = s.dev.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
	if s.mr, err = s.pd.AllocMR(ctx, 64<<10, driver.LocalWrite|driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	if s.cq, err = s.dev.CreateCQ(ctx, 256); err != nil {
		t.Fatal(err)
	}
	s.newQP(t)
	return s
}

func (s *side) newQP(t *testing.T) {
	t.Helper()
	var err error
	s.qp, err = s.pd.CreateQP(within(t), driver.QPInit{Type: driver.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64})
	if err != nil {
		t.Fatal(err)
	}
}

// again makes the queue pair anew.
func (s *side) again(t *testing.T) {
	t.Helper()
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	s.newQP(t)
}

// connect connects two sides of this process.
func connect(t *testing.T, a, b *side) {
	t.Helper()
	ctx := within(t)
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	done := make(chan error, 1)
	go func() {
		_, err := b.qp.ConnectVia(ctx, there, nil)
		done <- err
	}()
	_, err := a.qp.ConnectVia(ctx, here, nil)
	if err = errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
}

// read reads from a peer's memory and wants that status.
func (s *side) read(t *testing.T, r driver.RemoteMR, want driver.Status) {
	t.Helper()
	if err := s.qp.PostSend(&driver.SendWR{WRID: 77, Opcode: driver.Read, Flags: driver.Signaled, SGEs: []driver.SGE{s.mr.SGE(0, 64)}, Remote: r}); err != nil {
		t.Fatal(err)
	}
	if w := s.wait(t); w.WRID != 77 || w.Status != want {
		t.Fatalf("READ of key %#x: %v (%v), want %v", r.RKey, w.Status, w.Reason, want)
	}
}

func (s *side) wait(t *testing.T) driver.WC {
	t.Helper()
	var wc [1]driver.WC
	if _, err := s.cq.Wait(within(t), wc[:]); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}

// The cards' process is killed in mid-traffic: programs that use them end in a
// typed error that says so.
func TestProcesses_CardsKilledUnderPrograms(t *testing.T) {
	w := simulate(t, "a", "b")
	server := w.listen(t, "b")
	client := w.connect(t, "a", "b")
	client.progress(t, 20)
	w.kill()
	for _, p := range []*process{server, client} {
		var last said
		for last = range p.lines {
		}
		if last.Event != "error" || !last.Gone || !last.Typed {
			t.Errorf("%v: %+v, want a typed error that the device is gone", p.Args, last)
		}
		_ = p.Wait()
		if code := p.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%v: %v", p.Args, p.ProcessState)
		}
	}
	// The address is free, and a new process offers cards there.
	if _, err := driver.Open(context.Background(), w.addr("a")); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("open of a card whose process is dead: %v", err)
	}
}
