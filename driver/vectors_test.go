package driver_test

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"rnic/driver"
	"rnic/vfio"
)

// fewVectors is a card on a machine that has so many interrupt vectors left.
type fewVectors struct {
	vfio.Device
	left int
}

func (d *fewVectors) SetIRQs(i, start int, fds []int) error {
	if i == vfio.IRQMSIX && start+len(fds) > d.left {
		return &vfio.Error{Addr: d.Addr(), Op: "connect interrupts", Err: &vfio.VectorsError{Asked: len(fds), Available: d.left}}
	}
	return d.Device.SetIRQs(i, start, fds)
}

func init() {
	vfio.Register("few", func(ctx context.Context, rest string) (vfio.Device, error) { // few:VECTORS:ADDRESS
		n, addr, _ := strings.Cut(rest, ":")
		left, err := strconv.Atoi(n)
		if err != nil {
			return nil, err
		}
		d, err := vfio.Open(ctx, addr)
		return &fewVectors{d, left}, err
	})
}

// A card works with as many vectors as the machine has: a sleeping Wait is woken
// though completions share the vector of commands.
func TestFewVectors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0)))) // so that more would be asked for
	for _, left := range []string{"1", "2"} {
		a := newSide(t, "few:"+left+":soft:few-a"+left+"?wire=few"+left, 64, smallQP)
		b := newSide(t, "few:"+left+":soft:few-b"+left+"?wire=few"+left, 64, smallQP)
		connect(t, a.qp, b.qp)
		for i := range uint64(3) {
			if err := b.qp.PostRecv(&driver.RecvWR{WRID: i, SGEs: []driver.SGE{b.mr.SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
			woken := make(chan error, 1)
			go func() {
				var wc [1]driver.WC
				_, err := b.cq.Wait(testCtx(t), wc[:])
				woken <- err
			}()
			time.Sleep(5 * time.Millisecond) // the waiter sleeps; that it does is not what is tested
			if err := a.qp.PostSend(&driver.SendWR{WRID: i, Opcode: driver.Send, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
			if err := <-woken; err != nil {
				t.Fatalf("%s vectors: %v", left, err)
			}
			good(t, a.cq, i)
		}
	}
	openErr(t, "no vector at all", "few:0:soft:few-none", vfio.ErrExhausted)
}
