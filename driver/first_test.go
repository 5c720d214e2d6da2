package driver_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft"
)

type side struct {
	d  *driver.Device
	pd *driver.PD
	mr *driver.MR
	cq *driver.CQ
	qp *driver.QP
}

func open(t testing.TB, addr string) *driver.Device {
	t.Helper()
	d, err := driver.Open(context.Background(), addr, driver.WithStatusSocket(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newSide(t testing.TB, addr string) *side {
	t.Helper()
	ctx := context.Background()
	s := &side{d: open(t, addr)}
	var err error
	if s.pd, err = s.d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
	if s.mr, err = s.pd.AllocMR(ctx, 1<<20, driver.LocalWrite|driver.RemoteWrite|driver.RemoteRead|driver.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	if s.cq, err = s.d.CreateCQ(ctx, 256); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = s.pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 63, MaxRecvSGE: 63, MaxInline: 400}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFirst(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, b := newSide(t, "soft:a?wire=first"), newSide(t, "soft:b?wire=first")
	for i := range 7680 {
		a.mr.Bytes()[i] = byte(i * 7)
	}
	if err := b.qp.PostRecv(&driver.RecvWR{WRID: 9, SGEs: []driver.SGE{b.mr.SGE(0, 8192)}}); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.Connect(ctx, b.qp.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Connect(ctx, a.qp.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostSend(&driver.SendWR{WRID: 5, Opcode: driver.Send, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 1024), a.mr.SGE(1024, 6144), a.mr.SGE(7168, 512)}}); err != nil {
		t.Fatal(err)
	}
	var wc [4]driver.WC
	n, err := b.cq.Wait(ctx, wc[:])
	if err != nil || n != 1 || wc[0].Err() != nil || wc[0].WRID != 9 || wc[0].ByteLen != 7680 {
		t.Fatalf("%d %v %+v", n, err, wc[0])
	}
	if !bytes.Equal(b.mr.Bytes()[:7680], a.mr.Bytes()[:7680]) {
		t.Fatal("payload differs")
	}
	n, err = a.cq.Wait(ctx, wc[:])
	if err != nil || n != 1 || wc[0].Err() != nil || wc[0].WRID != 5 {
		t.Fatalf("%d %v %+v", n, err, wc[0])
	}
}
