package main

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
)

// TestRefusedRead is what a user's own test looks like: memory refuses a read in the
// middle of a message, and the program under test sees the request fail.
func TestRefusedRead(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, b := must(driver.Open(ctx, "soft:left?wire=faults")), must(driver.Open(ctx, "soft:right?wire=faults"))
	defer a.Close()
	defer b.Close()
	var ends [2]*driver.QP
	var cqs [2]*driver.CQ
	var mrs [2]*driver.MR
	for i, d := range []*driver.Device{a, b} {
		pd := must(d.AllocPD(ctx))
		mrs[i] = must(pd.AllocMR(ctx, 1<<16, driver.LocalWrite|driver.RemoteWrite))
		cqs[i] = must(d.CreateCQ(ctx, 8))
		ends[i] = must(pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: cqs[i], RecvCQ: cqs[i], MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 1}))
	}
	here, there := net.Pipe()
	peer := make(chan error)
	go func() { _, err := ends[1].ConnectVia(ctx, there, nil); peer <- err }()
	must(ends[0].ConnectVia(ctx, here, nil))
	check(<-peer)

	card := must(drivertest.On(a))
	check(card.FailRead(ctx, 3))
	check(ends[0].PostSend(&driver.SendWR{WRID: 7, Opcode: driver.Write, Remote: mrs[1].Remote(), SGEs: []driver.SGE{mrs[0].SGE(0, 5000), mrs[0].SGE(9000, 700)}}))
	var wc [1]driver.WC
	must(cqs[0].Wait(ctx, wc[:]))
	var e *driver.CompletionError
	if !errors.As(wc[0].Err(), &e) || e.Reason != driver.ReasonDMARead || e.WRID != 7 || e.Segment != 1 {
		t.Errorf("%v", wc[0].Err())
	}
}
