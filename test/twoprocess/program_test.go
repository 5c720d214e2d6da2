package twoprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"rnic/driver"
)

// made is what the program says that it has made, on its one line of output.
type made struct {
	QPNs [2]uint32 // of card A and card B
	Key  uint32    // of the region on card A, which is sent from
	Base uint64
}

// The region's length, and the pieces of it that each message is made of: 7,680 bytes, two packets.
const regionBytes = 16384

var pieces = [][2]int{{0, 1024}, {4096, 6144}, {1024, 512}}

// program is a user's program: it opens cards A and B, connects a queue pair of each and writes from A to B for as
// long as it lives.
func program(addrs []string) error {
	ctx := context.Background()
	var qps [2]*driver.QP
	var cqs [2]*driver.CQ
	var mrs [2]*driver.MR
	var m made
	for i, addr := range addrs {
		dev, err := driver.Open(ctx, addr)
		if err != nil {
			return err
		}
		pd, err := dev.AllocPD(ctx)
		if err != nil {
			return err
		}
		if mrs[i], err = pd.AllocMR(ctx, regionBytes, driver.LocalWrite|driver.RemoteWrite); err != nil {
			return err
		}
		if cqs[i], err = dev.CreateCQ(ctx, 64); err != nil {
			return err
		}
		qps[i], err = pd.CreateQP(ctx, driver.QPInit{
			Type: driver.RC, SendCQ: cqs[i], RecvCQ: cqs[i], MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 3, MaxRecvSGE: 1,
		})
		if err != nil {
			return err
		}
		m.QPNs[i] = qps[i].Number()
	}
	for i := range qps {
		if err := qps[i].Connect(ctx, qps[1-i].Endpoint()); err != nil {
			return err
		}
	}
	m.Key, m.Base = mrs[0].LKey(), mrs[0].Addr()
	if err := json.NewEncoder(os.Stdout).Encode(m); err != nil {
		return err
	}
	wr := driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, Remote: mrs[1].Remote()}
	for _, p := range pieces {
		wr.SGEs = append(wr.SGEs, mrs[0].SGE(p[0], p[1]))
	}
	wc := make([]driver.WC, 16)
	for inFlight := 0; ; {
		for inFlight < 8 {
			wr.WRID++
			if err := qps[0].PostSend(&wr); err != nil {
				return err
			}
			inFlight++
		}
		n, err := cqs[0].Wait(ctx, wc)
		if err != nil {
			return err
		}
		for i := range wc[:n] {
			err = errors.Join(err, wc[i].Err())
		}
		if err != nil {
			return fmt.Errorf("traffic: %w", err)
		}
		inFlight -= n
	}
}
