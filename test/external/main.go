// One message between two cards, gathered from three pieces of memory.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"rnic/driver"
	_ "rnic/hw/softcard/soft" // cards in this process: addresses that begin with soft:
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, b := must(driver.Open(ctx, "soft:a")), must(driver.Open(ctx, "soft:b"))
	defer a.Close() // with all that was made on it
	defer b.Close()
	here, there := net.Pipe() // between two hosts, a TCP connection
	var sides sync.WaitGroup
	sides.Go(func() { side(ctx, a, here, true) })
	sides.Go(func() { side(ctx, b, there, false) })
	sides.Wait()
}

func side(ctx context.Context, dev *driver.Device, peer net.Conn, sends bool) {
	pd := must(dev.AllocPD(ctx))
	mr := must(pd.AllocMR(ctx, 8192, driver.LocalWrite))
	cq := must(dev.CreateCQ(ctx, 8))
	qp := must(pd.CreateQP(ctx, driver.QPInit{
		Type: driver.RC, SendCQ: cq, RecvCQ: cq,
		MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 1,
	}))
	check(qp.PostRecv(&driver.RecvWR{WRID: 1, SGEs: []driver.SGE{mr.SGE(0, mr.Len())}}))
	must(qp.ConnectVia(ctx, peer, nil)) // both sides are ready after it
	if sends {
		copy(mr.Bytes(), "gathered ")
		copy(mr.Bytes()[1024:], "from three ")
		copy(mr.Bytes()[5000:], "pieces of memory")
		pieces := []driver.SGE{mr.SGE(0, 9), mr.SGE(1024, 11), mr.SGE(5000, 16)}
		check(qp.PostSend(&driver.SendWR{WRID: 2, Opcode: driver.Send, Flags: driver.Signaled, SGEs: pieces}))
	}
	var wc [1]driver.WC
	must(cq.Wait(ctx, wc[:]))
	check(wc[0].Err())
	if !sends {
		fmt.Printf("%s\n", mr.Bytes()[:wc[0].ByteLen])
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
