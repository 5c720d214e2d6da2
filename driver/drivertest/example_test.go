package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
	_ "rnic/hw/softcard/soft" // cards in this process: addresses that begin with soft:
)

// end is one side of a connection.
type end struct {
	dev *driver.Device
	mr  *driver.MR
	cq  *driver.CQ
	qp  *driver.QP
}

func newEnd(ctx context.Context, addr string) (*end, error) {
	dev, err := driver.Open(ctx, addr, driver.WithStatusSocket(""))
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD(ctx)
	if err != nil {
		return nil, err
	}
	e := &end{dev: dev}
	if e.mr, err = pd.AllocMR(ctx, 1<<16, driver.LocalWrite|driver.RemoteWrite); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(ctx, 64); err != nil {
		return nil, err
	}
	e.qp, err = pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 1})
	return e, err
}

// newPair makes two cards on a wire, with a connected queue pair on each.
func newPair(ctx context.Context, name string) (a, b *end, err error) {
	if a, err = newEnd(ctx, "soft:"+name+"-a?wire="+name); err != nil {
		return nil, nil, err
	}
	if b, err = newEnd(ctx, "soft:"+name+"-b?wire="+name); err != nil {
		return nil, nil, err
	}
	return a, b, errors.Join(a.qp.Connect(ctx, b.qp.Endpoint()), b.qp.Connect(ctx, a.qp.Endpoint()))
}

// write posts a WRITE of n bytes and waits for its completion.
func (a *end) write(ctx context.Context, to *end, n int) error {
	wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, n)}, Remote: to.mr.Remote()}
	if err := a.qp.PostSend(&wr); err != nil {
		return err
	}
	var wc [1]driver.WC
	if _, err := a.cq.Wait(ctx, wc[:]); err != nil {
		return err
	}
	return wc[0].Err()
}

// Memory refuses a read in the middle of a message: the request fails, and says where.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, b, err := newPair(ctx, "example")
	if err != nil {
		log.Fatal(err)
	}
	defer a.dev.Close()
	defer b.dev.Close()

	c, err := drivertest.On(a.dev)
	if err != nil {
		log.Fatal(err) // driver.ErrNotSupported: the card has no debug page
	}
	if err := c.FailRead(ctx, 2); err != nil {
		log.Fatal(err)
	}
	var fault *driver.CompletionError
	if err := a.write(ctx, b, 10_000); errors.As(err, &fault) {
		fmt.Println(fault.Status, fault.Reason, "segment", fault.Segment)
	}
	// Output: LOC_QP_OP_ERR DMA_READ segment 0
}

// A frame is lost, and the card sends it again: the program does not notice.
func ExampleCard_HoldPort() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, b, err := newPair(ctx, "lost")
	if err != nil {
		log.Fatal(err)
	}
	defer a.dev.Close()
	defer b.dev.Close()

	far, err := drivertest.On(b.dev)
	if err != nil {
		log.Fatal(err)
	}
	port, err := far.HoldPort(ctx)
	if err != nil {
		log.Fatal(err)
	}
	sent := make(chan error)
	go func() { sent <- a.write(ctx, b, 3*4096) }()
	// The message is three frames: the second one is lost.
	if err := errors.Join(port.Wait(ctx, 3), port.Drop(1), port.Release()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("written:", <-sent == nil)
	again, err := a.dev.ReadRegister("COUNTERS.RETRANSMITS")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent again:", again.Value > 0)
	// Output:
	// written: true
	// sent again: true
}

// The device is unplugged while a program waits: the wait ends.
func ExampleCard_Remove() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, b, err := newPair(ctx, "unplugged")
	if err != nil {
		log.Fatal(err)
	}
	defer a.dev.Close()
	defer b.dev.Close()

	c, err := drivertest.On(a.dev)
	if err != nil {
		log.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		_, err := a.cq.Wait(ctx, make([]driver.WC, 1))
		waits <- err
	}()
	if err := c.Remove(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(<-waits, driver.ErrDeviceGone))
	// Output: true
}
