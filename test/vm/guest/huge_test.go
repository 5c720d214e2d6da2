package guest

import (
	"bytes"
	"testing"

	verbs "rnic/driver"
)

// TestHugePages: regions of 2 MiB pages, written from card to card. Whether the IOMMU's entries are as large shows on the
// host, where QEMU tells the card of each.
func TestHugePages(t *testing.T) {
	first, second := pair(t)
	const size = 4 << 20
	type end struct {
		dev *verbs.Device
		cq  *verbs.CQ
		qp  *verbs.QP
		mr  *verbs.MR
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	var ends [2]end
	for i, addr := range []string{first, second} {
		e := &ends[i]
		var err error
		e.dev, err = verbs.Open(ctx, addr)
		must(err)
		t.Cleanup(func() {
			if err := e.dev.Close(); err != nil {
				t.Error(err)
			}
		})
		pd, err := e.dev.AllocPD(ctx)
		must(err)
		e.cq, err = e.dev.CreateCQ(ctx, 16)
		must(err)
		e.qp, err = pd.CreateQP(ctx, verbs.QPInit{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1})
		must(err)
		e.mr, err = pd.AllocMR(ctx, size, verbs.LocalWrite|verbs.RemoteWrite, verbs.WithHugePages())
		must(err)
	}
	for i := range ends {
		must(ends[i].qp.Connect(ctx, ends[1-i].qp.Endpoint()))
	}
	from, to := &ends[0], &ends[1]
	fill(from.mr.Bytes(), 5)
	must(from.qp.PostSend(&verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Remote: to.mr.Remote(), SGEs: []verbs.SGE{from.mr.SGE(0, size)}}))
	var wc [1]verbs.WC
	_, err := from.cq.Wait(ctx, wc[:])
	must(err)
	must(wc[0].Err())
	if !bytes.Equal(from.mr.Bytes(), to.mr.Bytes()) {
		t.Error("other bytes arrived")
	}
}
