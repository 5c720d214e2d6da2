package driver_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"rnic/driver"
	_ "rnic/hw/softcard/soft" // soft cards in this process
)

// talk opens a card, connects to a peer over conn and receives a message, or
// sends one that is gathered from three buffers.
func talk(ctx context.Context, addr string, conn net.Conn, send bool) (string, error) {
	dev, err := driver.Open(ctx, addr)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	pd, err := dev.AllocPD(ctx)
	if err != nil {
		return "", err
	}
	mr, err := pd.AllocMR(ctx, 16384, driver.LocalWrite)
	if err != nil {
		return "", err
	}
	cq, err := dev.CreateCQ(ctx, 16)
	if err != nil {
		return "", err
	}
	qp, err := pd.CreateQP(ctx, driver.QPInit{
		Type: driver.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 3, MaxRecvSGE: 1,
	})
	if err != nil {
		return "", err
	}
	if err := qp.PostRecv(&driver.RecvWR{WRID: 1, SGEs: []driver.SGE{mr.SGE(0, 4096)}}); err != nil {
		return "", err
	}
	if _, err := qp.ConnectVia(ctx, conn, nil); err != nil {
		return "", err
	}
	if send {
		n := copy(mr.Bytes()[4096:], "gathered ")
		m := copy(mr.Bytes()[12000:], "from three ")
		k := copy(mr.Bytes()[8192:], "buffers")
		wr := driver.SendWR{WRID: 2, Opcode: driver.Send, Flags: driver.Signaled,
			SGEs: []driver.SGE{mr.SGE(4096, n), mr.SGE(12000, m), mr.SGE(8192, k)}}
		if err := qp.PostSend(&wr); err != nil {
			return "", err
		}
	}
	var wc [1]driver.WC
	if _, err := cq.Wait(ctx, wc[:]); err != nil {
		return "", err
	}
	return string(mr.Bytes()[:wc[0].ByteLen]), wc[0].Err()
}

// The first program: a message gathered from three buffers goes from one soft
// card to another. Between two programs, conn is a TCP connection and the
// address "vfio-user:PATH" or that of a board.
func Example() {
	ctx := context.Background()
	here, there := net.Pipe()
	go func() {
		if _, err := talk(ctx, "soft:a", there, true); err != nil {
			log.Fatal(err)
		}
	}()
	message, err := talk(ctx, "soft:b", here, false)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(message)
	// Output: gathered from three buffers
}

// A posted payload can be inline: it is copied at the post, so its buffer
// needs no registration and is free at once. RDMA needs the peer's region,
// which travels here as private data of the connection.
func Example_rdma() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	setUp := func(addr string) (*driver.Device, *driver.MR, *driver.CQ, *driver.QP) {
		dev, err := driver.Open(ctx, addr)
		check(err)
		pd, err := dev.AllocPD(ctx)
		check(err)
		mr, err := pd.AllocMR(ctx, 4096, driver.LocalWrite|driver.RemoteWrite|driver.RemoteRead|driver.RemoteAtomic)
		check(err)
		cq, err := dev.CreateCQ(ctx, 16)
		check(err)
		qp, err := pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxSendSGE: 1, MaxInline: 64})
		check(err)
		return dev, mr, cq, qp
	}
	here, there := net.Pipe()
	passive := make(chan *driver.Device)
	go func() { // the passive side: its region is all that it gives
		dev, mr, _, qp := setUp("soft:far")
		b, err := mr.Remote().MarshalBinary()
		check(err)
		_, err = qp.ConnectVia(ctx, there, b)
		check(err)
		passive <- dev
	}()
	dev, mr, cq, qp := setUp("soft:near")
	defer dev.Close()
	peer, err := qp.ConnectVia(ctx, here, nil)
	check(err)
	far := <-passive
	defer far.Close()
	var remote driver.RemoteMR
	check(remote.UnmarshalBinary(peer.Private))

	n, err := qp.PostSendBatch([]driver.SendWR{
		{WRID: 1, Opcode: driver.Write, Remote: remote.At(8), Inline: [][]byte{[]byte("written by "), []byte("a peer")}},
		{WRID: 2, Opcode: driver.FetchAdd, CompareAdd: 42, Remote: remote, SGEs: []driver.SGE{mr.SGE(0, 8)}},
		{WRID: 3, Opcode: driver.Read, Flags: driver.Signaled | driver.Fence, Remote: remote, SGEs: []driver.SGE{mr.SGE(0, 25)}},
	})
	check(err)
	var wc [1]driver.WC
	_, err = cq.Wait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Printf("%d posted, %v of request %d: %d and %q\n", n, wc[0].Opcode, wc[0].WRID, mr.Bytes()[0], mr.Bytes()[8:25])
	// Output: 3 posted, RDMA_READ of request 3: 42 and "written by a peer"
}
