package driver_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

// side is one end of a pair of soft cards on a wire.
type side struct {
	d  *driver.Device
	pd *driver.PD
	mr *driver.MR
	cq *driver.CQ
	qp *driver.QP
}

const allAccess = driver.LocalWrite | driver.RemoteWrite | driver.RemoteRead | driver.RemoteAtomic

var smallQP = driver.QPInit{Type: driver.RC, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 63, MaxRecvSGE: 63, MaxInline: 400}

func open(t testing.TB, addr string, opts ...driver.Option) *driver.Device {
	t.Helper()
	d, err := driver.Open(context.Background(), addr, append(opts, driver.WithStatusSocket(""))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newSide(t testing.TB, addr string, cqe int, init driver.QPInit, opts ...driver.Option) *side {
	t.Helper()
	ctx := context.Background()
	s := &side{d: open(t, addr, opts...)}
	var err error
	if s.pd, err = s.d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
	if s.mr, err = s.pd.AllocMR(ctx, 1<<20, allAccess); err != nil {
		t.Fatal(err)
	}
	if s.cq, err = s.d.CreateCQ(ctx, cqe); err != nil {
		t.Fatal(err)
	}
	init.SendCQ, init.RecvCQ = s.cq, s.cq
	if s.qp, err = s.pd.CreateQP(ctx, init); err != nil {
		t.Fatal(err)
	}
	return s
}

var wires atomic.Int32

// newPair makes two connected sides on a wire of their own.
func newPair(t testing.TB, init driver.QPInit) (a, b *side) {
	t.Helper()
	w := wires.Add(1)
	a = newSide(t, fmt.Sprintf("soft:a%d?wire=w%d", w, w), 256, init)
	b = newSide(t, fmt.Sprintf("soft:b%d?wire=w%d", w, w), 256, init)
	connect(t, a.qp, b.qp)
	return a, b
}

func connect(t testing.TB, a, b *driver.QP) {
	t.Helper()
	ctx := testCtx(t)
	ea, eb := a.Endpoint(), b.Endpoint()
	if err := a.Connect(ctx, eb); err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(ctx, ea); err != nil {
		t.Fatal(err)
	}
}

// testCtx ends long after anything here should take.
func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// wait takes n completions.
func wait(t testing.TB, cq *driver.CQ, n int) []driver.WC {
	t.Helper()
	all := make([]driver.WC, 0, n)
	ctx := testCtx(t)
	for len(all) < n {
		wc := make([]driver.WC, n-len(all))
		k, err := cq.Wait(ctx, wc)
		if err != nil {
			t.Fatalf("after %d of %d completions: %v", len(all), n, err)
		}
		all = append(all, wc[:k]...)
	}
	return all
}

// good takes a completion and wants it to be a success of that request.
func good(t testing.TB, cq *driver.CQ, wrid uint64) driver.WC {
	t.Helper()
	wc := wait(t, cq, 1)[0]
	if err := wc.Err(); err != nil || wc.WRID != wrid {
		t.Fatalf("completion of %d: %v; want %d", wc.WRID, err, wrid)
	}
	return wc
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*131>>3) ^ byte(i) + seed
	}
}

func wantErr(t testing.TB, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
		return
	}
	var e *driver.DeviceError
	if !errors.As(err, &e) || e.Addr == "" {
		t.Errorf("%s: %v is no *DeviceError with an address", what, err)
	}
}
