package process

import (
	"context"
	"errors"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"rnic/driver"
)

// A verb is a call of the driver, or of a few in a row of which each may be the
// one that meets the end of the device.
type verb struct {
	calls string // the methods, "Type.Method", those that end well excepted
	do    func(ctx context.Context) error
	waits bool // it does not return while the device lives
	local bool // it costs so little that it is not repeated at once
}

// local are the methods that answer from what the program has: they do not
// reach for the card, alive or not.
const local = `Device.Addr Device.Attr Device.Done Device.Gather Device.Port Device.StatusPath Device.Verification PD.Device PD.Number MR.Addr MR.Bytes MR.LKey MR.Len
	MR.RKey MR.Remote MR.SGE CQ.Entries CQ.FD CQ.Number QP.Caps QP.Endpoint QP.Number QP.VerifyError`

// notBuilt are the methods that are ErrNotSupported on any card.
const notBuilt = "PD.AllocMW PD.CreateAH PD.CreateSRQ"

// The cards' process is killed while calls of every verb are in progress. Each
// ends in a typed device-gone error before its deadline, and so does each call
// that is made afterwards.
func TestProcesses_EveryVerbWhenTheCardsAreKilled(t *testing.T) {
	w := simulate(t, "a", "b")
	a, b := newSide(t, w.addr("a")), newSide(t, w.addr("b"))
	connect(t, a, b)
	verbs := inProgress(t, a, b)
	covers(t, verbs)

	var all sync.WaitGroup
	started := make([]atomic.Int32, len(verbs))
	for i, v := range verbs {
		all.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				if v.waits {
					started[i].Add(1)
				}
				err := v.do(ctx)
				if late := ctx.Err(); late != nil {
					t.Errorf("%s: %v, by its deadline", v.calls, err)
				}
				cancel()
				if err != nil {
					isGone(t, v.calls, err)
					return
				}
				started[i].Add(1)
				if v.local {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	ctx := within(t)
	for i, v := range verbs {
		want := int32(3)
		if v.waits {
			want = 1
		}
		for started[i].Load() < want && ctx.Err() == nil && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
	}
	if ctx.Err() != nil || t.Failed() {
		for i, v := range verbs {
			t.Logf("%s: %d times", v.calls, started[i].Load())
		}
		t.Fatal("not every verb has got going")
	}
	debug, err := a.dev.Debug()
	if err != nil {
		t.Fatal(err)
	}
	w.kill()
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-tooLate(t):
		buf := make([]byte, 1<<20)
		t.Fatalf("a call hangs:\n%s", buf[:runtime.Stack(buf, true)])
	}
	<-a.dev.Done()
	for _, v := range verbs {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		isGone(t, v.calls+", afterwards", v.do(ctx))
		cancel()
	}
	debugAfterwards(t, debug)
	closesAfterwards(t, a)
}

// tooLate is closed when twice the calls' deadline has passed: a call without a
// context has its own.
func tooLate(t *testing.T) <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.Background(), 2*deadline)
	t.Cleanup(cancel)
	return ctx.Done()
}

func isGone(t *testing.T, call string, err error) {
	t.Helper()
	var typed *driver.DeviceError
	switch {
	case !errors.Is(err, driver.ErrDeviceGone):
		t.Errorf("%s: %v, want ErrDeviceGone", call, err)
	case errors.Is(err, driver.ErrTimeout):
		t.Errorf("%s: %v: it waited for a dead card", call, err)
	case !errors.As(err, &typed):
		t.Errorf("%s: %v is a %T, want a *DeviceError", call, err, err)
	case typed.Addr == "" || typed.Op == "":
		t.Errorf("%s: %+v does not say of what", call, typed)
	}
}

// covers checks that the calls and the lists above name every method.
func covers(t *testing.T, verbs []verb) {
	t.Helper()
	named := map[string]bool{}
	for _, v := range verbs {
		for _, c := range strings.Fields(v.calls) {
			named[c] = true
		}
	}
	for _, c := range strings.Fields(local + " " + notBuilt + " Device.Close") {
		named[c] = true
	}
	for _, x := range []any{&driver.Device{}, &driver.PD{}, &driver.MR{}, &driver.CQ{}, &driver.QP{}} {
		typ := reflect.TypeOf(x)
		for i := range typ.NumMethod() {
			if c := typ.Elem().Name() + "." + typ.Method(i).Name; !named[c] {
				t.Errorf("%s is not among the calls of this test", c)
			}
		}
	}
}

// inProgress are the verbs on card a, connected to card b, which receives.
func inProgress(t *testing.T, a, b *side) []verb {
	t.Helper()
	ctx := within(t)
	d, pd := a.dev, a.pd
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	newCQ := func() *driver.CQ {
		t.Helper()
		c, err := d.CreateCQ(ctx, 64)
		must(err)
		return c
	}
	init := func(c *driver.CQ) driver.QPInit {
		return driver.QPInit{Type: driver.RC, SendCQ: c, RecvCQ: c, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 3, MaxRecvSGE: 1, MaxInline: 64}
	}
	newQP := func(c *driver.CQ) *driver.QP {
		t.Helper()
		q, err := pd.CreateQP(ctx, init(c))
		must(err)
		return q
	}
	// pair connects a queue pair of a to a new one of b.
	pair := func(q *driver.QP) *driver.QP {
		t.Helper()
		b.newQP(t)
		must(q.Connect(ctx, b.qp.Endpoint()))
		must(b.qp.Connect(ctx, q.Endpoint()))
		return q
	}
	remote := b.mr.Remote()
	three := []driver.SGE{a.mr.SGE(0, 1024), a.mr.SGE(1024, 6144), a.mr.SGE(7168, 512)}
	write := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, SGEs: three, Remote: remote}
	take := func(ctx context.Context, c *driver.CQ, n int) error {
		var wc [16]driver.WC
		for n > 0 {
			m, err := c.Wait(ctx, wc[:])
			if err != nil {
				return err
			}
			for i := range m {
				if err := wc[i].Err(); err != nil {
					return err
				}
			}
			n -= m
		}
		return nil
	}

	idle, polled, armed := newCQ(), newCQ(), newCQ()
	single, batch, atomics := newCQ(), newCQ(), newCQ()
	singleQP, batchQP, atomicQP := pair(newQP(single)), pair(newQP(batch)), pair(newQP(atomics))
	pollQP := pair(newQP(polled))
	recvQP, recvsQP, modQP, queryQP, rateQP := newQP(newCQ()), newQP(newCQ()), newQP(newCQ()), newQP(newCQ()), pair(newQP(newCQ()))
	own, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	must(err)
	t.Cleanup(func() {
		d.Close() // it holds the memory until then
		_ = syscall.Munmap(own)
	})
	traced, err := d.Trace(ctx, driver.TraceOptions{QPN: recvQP.Number()}) // which sends nothing
	must(err)
	captured, err := d.Capture(ctx, driver.CaptureOptions{})
	must(err)
	config := d.Port().Config()
	region := func(f func(context.Context) (*driver.MR, error)) func(context.Context) error {
		return func(ctx context.Context) error {
			m, err := f(ctx)
			if err != nil {
				return err
			}
			return m.Dereg(ctx)
		}
	}
	return []verb{
		{calls: "Device.AllocPD PD.Close", local: true, do: func(ctx context.Context) error {
			p, err := d.AllocPD(ctx)
			if err != nil {
				return err
			}
			return p.Close()
		}},
		{calls: "Device.CreateCQ CQ.Close", do: func(ctx context.Context) error {
			c, err := d.CreateCQ(ctx, 16)
			if err != nil {
				return err
			}
			return c.Close()
		}},
		{calls: "PD.CreateQP QP.Close", do: func(ctx context.Context) error {
			q, err := pd.CreateQP(ctx, init(idle))
			if err != nil {
				return err
			}
			return q.Close()
		}},
		{calls: "PD.AllocMR MR.Dereg", do: region(func(ctx context.Context) (*driver.MR, error) { return pd.AllocMR(ctx, 4096, driver.LocalWrite) })},
		{calls: "PD.AllocMR MR.Dereg", do: region(func(ctx context.Context) (*driver.MR, error) { return pd.AllocMR(ctx, 1<<20, driver.LocalWrite) })},
		{calls: "PD.RegMR MR.Dereg", do: region(func(ctx context.Context) (*driver.MR, error) { return pd.RegMR(ctx, own, driver.LocalWrite) })},
		{calls: "Device.NextEvent", waits: true, do: func(ctx context.Context) error {
			for {
				e, err := d.NextEvent(ctx)
				if err != nil || e.Type == driver.EventDeviceGone { // the last event, once
					return errors.Join(err, context.Cause(ctx), goneAfter(e, d))
				}
			}
		}},
		{calls: "Device.ReadRegister", do: func(context.Context) error { _, err := d.ReadRegister("CONTROL.STATUS"); return err }},
		{calls: "Device.WriteRegister", do: func(context.Context) error { return d.WriteRegister("CONTROL.SCRATCH", 1) }},
		{calls: "Device.Registers", do: func(ctx context.Context) error { _, err := d.Registers(ctx); return err }},
		{calls: "Device.Counters", do: func(ctx context.Context) error { _, err := d.Counters(ctx); return err }},
		{calls: "Device.Snapshot", do: func(ctx context.Context) error { _, err := d.Snapshot(ctx); return err }},
		{calls: "Device.Scrub", do: func(ctx context.Context) error { _, err := d.Scrub(ctx); return err }},
		{calls: "Device.ModifyPort", do: func(ctx context.Context) error { return d.ModifyPort(ctx, config) }},
		{calls: "Device.Trace", local: true, do: func(ctx context.Context) error {
			s, err := d.Trace(ctx, driver.TraceOptions{})
			if err != nil {
				return err
			}
			return s.Close()
		}},
		{calls: "Device.Capture", do: func(ctx context.Context) error {
			s, err := d.Capture(ctx, driver.CaptureOptions{})
			if err != nil {
				return err
			}
			_, err = s.Next(ctx)
			return errors.Join(err, s.Close())
		}},
		{calls: "Stream.Next", waits: true, do: func(ctx context.Context) error { _, err := traced.Next(ctx); return err }},
		{calls: "Stream.Next", do: func(ctx context.Context) error { _, err := captured.Next(ctx); return err }},
		{calls: "Device.Debug Debug.Clock", do: func(context.Context) error {
			g, err := d.Debug()
			if err == nil {
				_, err = g.Clock()
			}
			return err
		}},
		{calls: "CQ.Wait", waits: true, do: func(ctx context.Context) error { return take(ctx, idle, 1) }},
		{calls: "CQ.Poll", do: func(context.Context) error {
			err := pollQP.PostSend(&write)
			for n := 0; n == 0 && err == nil; runtime.Gosched() {
				var wc [4]driver.WC
				if n, err = polled.Poll(wc[:]); n > 0 {
					err = wc[0].Err()
				}
			}
			return err
		}},
		{calls: "CQ.Arm", local: true, do: func(context.Context) error { return armed.Arm(false) }},
		{calls: "QP.PostSend CQ.Wait", do: func(ctx context.Context) error {
			if err := singleQP.PostSend(&write); err != nil {
				return err
			}
			return take(ctx, single, 1)
		}},
		{calls: "QP.PostSendBatch CQ.Wait", do: func(ctx context.Context) error {
			n, err := batchQP.PostSendBatch([]driver.SendWR{write, {Opcode: driver.Read, Flags: driver.Signaled, SGEs: three, Remote: remote}, write})
			if err != nil {
				return err
			}
			return take(ctx, batch, n)
		}},
		{calls: "QP.PostSend CQ.Wait", do: func(ctx context.Context) error {
			err := atomicQP.PostSend(&driver.SendWR{Opcode: driver.FetchAdd, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(32<<10, 8)}, Remote: remote, CompareAdd: 1})
			if err != nil {
				return err
			}
			return take(ctx, atomics, 1)
		}},
		{calls: "QP.PostRecv", local: true, do: func(context.Context) error { return orFull(recvQP.PostRecv(&driver.RecvWR{SGEs: three[:1]})) }},
		{calls: "QP.PostRecvBatch", local: true, do: func(context.Context) error {
			_, err := recvsQP.PostRecvBatch([]driver.RecvWR{{SGEs: three[:1]}, {SGEs: three[:1]}})
			return orFull(err)
		}},
		{calls: "QP.Modify", do: func(ctx context.Context) error {
			err := modQP.Modify(ctx, driver.QPAttr{State: driver.StateReset}, driver.AttrState)
			if err != nil {
				return err
			}
			return modQP.Modify(ctx, driver.QPAttr{State: driver.StateInit}, driver.AttrState|driver.AttrAccess|driver.AttrPKeyIndex)
		}},
		{calls: "QP.Query", do: func(ctx context.Context) error { _, err := queryQP.Query(ctx); return err }},
		{calls: "QP.SetRate", do: func(ctx context.Context) error { return rateQP.SetRate(ctx, 1<<30, 1<<20) }},
		{calls: "QP.Connect QP.Drain", do: func(ctx context.Context) error {
			q, err := pd.CreateQP(ctx, init(idle))
			if err != nil {
				return err
			}
			if err = q.Connect(ctx, b.qp.Endpoint()); err == nil {
				err = q.Drain(ctx)
			}
			if e := q.Close(); err == nil {
				err = e
			}
			return err
		}},
		{calls: "QP.ConnectVia", waits: true, do: func(ctx context.Context) error {
			// Its peer takes what it says and never answers.
			here, there := net.Pipe()
			defer there.Close()
			go func() { _, _ = there.Read(make([]byte, 4096)) }()
			_, err := queryQP.ConnectVia(ctx, here, nil)
			return err
		}},
	}
}

// goneAfter is the error that follows the last event.
func goneAfter(e driver.Event, d *driver.Device) error {
	if e.Type != driver.EventDeviceGone {
		return nil
	}
	_, err := d.NextEvent(context.Background())
	return err
}

// orFull makes of a full queue a success: nothing takes the receives.
func orFull(err error) error {
	if errors.Is(err, driver.ErrQueueFull) {
		return nil
	}
	return err
}

// debugAfterwards calls every method of the debug page of a dead device that can fail.
func debugAfterwards(t *testing.T, g *driver.Debug) {
	t.Helper()
	v := reflect.ValueOf(g)
	for i := range v.NumMethod() {
		call := v.Method(i)
		if n := call.Type().NumOut(); n == 0 || call.Type().Out(n-1) != reflect.TypeFor[error]() {
			continue // it asks no card, and cannot fail
		}
		var args []reflect.Value
		for j := range call.Type().NumIn() {
			in := call.Type().In(j)
			if in == reflect.TypeFor[context.Context]() {
				args = append(args, reflect.ValueOf(within(t)))
			} else {
				args = append(args, reflect.Zero(in))
			}
		}
		out := call.Call(args)
		err, _ := out[len(out)-1].Interface().(error)
		isGone(t, "Debug."+v.Type().Method(i).Name+", afterwards", err)
	}
}

// closesAfterwards takes a dead device down, child by child.
func closesAfterwards(t *testing.T, a *side) {
	t.Helper()
	ctx := within(t)
	isGone(t, "QP.Close", a.qp.Close())
	isGone(t, "MR.Dereg", a.mr.Dereg(ctx))
	if a.mr.Bytes() != nil {
		t.Error("a region's memory is there after Dereg")
	}
	for _, again := range []error{a.qp.Close(), a.mr.Dereg(ctx), a.dev.Close(), a.dev.Close()} {
		if again != nil {
			t.Errorf("closed twice: %v", again)
		}
	}
	_, err := a.pd.CreateQP(ctx, driver.QPInit{})
	if !errors.Is(err, driver.ErrClosed) {
		t.Errorf("create QP on a closed device: %v", err)
	}
}
