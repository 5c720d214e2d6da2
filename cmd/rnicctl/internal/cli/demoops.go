package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"rnic/cmd/rnicctl/internal/qppair"
	"rnic/driver"
)

// operation is one of the demo's: what was done and how it was checked at the far end.
type operation struct {
	Operation string `json:"operation"`
	Bytes     int    `json:"bytes"`
	Segments  int    `json:"segments"`
	Result    string `json:"result"` // pass, fail
	Checked   string `json:"checked"`
	Why       string `json:"why"`
}

// demoRun is what the operations share: each side's memory, laid out alike.
type demoRun struct {
	pair qppair.Pair
	mrs  [2]*driver.MR
	wrid uint64
}

// The memory of each side: what it sends, and where things land.
const (
	demoSource = 0
	demoTarget = 64 << 10
	demoMemory = 128 << 10
)

// demoOperations are the five, in order.
var demoOperations = []struct {
	name string
	run  func(*demoRun, context.Context, *operation) error
}{
	{"SEND", (*demoRun).send},
	{"RDMA WRITE", (*demoRun).write},
	{"RDMA READ", (*demoRun).read},
	{"inline SEND", (*demoRun).inline},
	{"atomic fetch-and-add", (*demoRun).atomic},
}

// fill makes bytes that name their place and the operation.
func fill(b []byte, salt uint32) {
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], (salt<<20+uint32(i))*2654435761)
	}
}

func (r *demoRun) next() uint64 { r.wrid++; return r.wrid }

// post posts at A and waits for its completion there.
func (r *demoRun) post(ctx context.Context, wr *driver.SendWR) error {
	wr.WRID, wr.Flags = r.next(), driver.Signaled
	if err := r.pair[0].QP.PostSend(wr); err != nil {
		return err
	}
	wc, err := r.pair[0].Wait(ctx)
	if err == nil && wc.WRID != wr.WRID {
		err = fmt.Errorf("work request %d completed as %d", wr.WRID, wc.WRID)
	}
	return err
}

// receive posts a receive of n bytes at B.
func (r *demoRun) receive(n int) error {
	clear(r.mrs[1].Bytes()[demoTarget:])
	return r.pair[1].QP.PostRecv(&driver.RecvWR{WRID: r.next(), SGEs: []driver.SGE{r.mrs[1].SGE(demoTarget, n)}})
}

// arrived waits for B's receive and compares what it holds, and that nothing lies behind it.
func (r *demoRun) arrived(ctx context.Context, want []byte) error {
	wc, err := r.pair[1].Wait(ctx)
	if err != nil {
		return err
	}
	if int(wc.ByteLen) != len(want) {
		return fmt.Errorf("the receive counts %d bytes of %d", wc.ByteLen, len(want))
	}
	return compare(r.mrs[1].Bytes()[demoTarget:], want)
}

// compare looks for want at the start of got and zeros behind it.
func compare(got, want []byte) error {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is %#02x, sent was %#02x", i, len(want), got[i], want[i])
		}
	}
	if i := slices.IndexFunc(got[len(want):], func(c byte) bool { return c != 0 }); i >= 0 {
		return fmt.Errorf("byte %d behind the message was written", i)
	}
	return nil
}

// gatherList spreads a message over three buffers of A, as in the chapter.
func (r *demoRun) gatherList(salt uint32) (sges []driver.SGE, want []byte) {
	fill(r.mrs[0].Bytes()[:demoTarget], salt)
	for _, s := range [][2]int{{0, 1024}, {16384, 6144}, {1024, 512}} {
		sges = append(sges, r.mrs[0].SGE(demoSource+s[0], s[1]))
		want = append(want, r.mrs[0].Bytes()[demoSource+s[0]:][:s[1]]...)
	}
	return sges, want
}

func (r *demoRun) send(ctx context.Context, op *operation) error {
	sges, want := r.gatherList(1)
	op.Bytes, op.Segments, op.Checked = len(want), len(sges), "B's receive buffer holds A's three segments in order"
	if err := r.receive(len(want)); err != nil {
		return err
	}
	if err := r.post(ctx, &driver.SendWR{Opcode: driver.Send, SGEs: sges}); err != nil {
		return err
	}
	return r.arrived(ctx, want)
}

func (r *demoRun) write(ctx context.Context, op *operation) error {
	sges, want := r.gatherList(2)
	op.Bytes, op.Segments, op.Checked = len(want), len(sges), "B's memory holds A's three segments at the address that A named"
	clear(r.mrs[1].Bytes()[demoTarget:])
	if err := r.post(ctx, &driver.SendWR{Opcode: driver.Write, SGEs: sges, Remote: r.mrs[1].Remote().At(demoTarget)}); err != nil {
		return err
	}
	return compare(r.mrs[1].Bytes()[demoTarget:], want)
}

func (r *demoRun) read(ctx context.Context, op *operation) error {
	const n = 10000
	op.Bytes, op.Segments, op.Checked = n, 1, "A's memory holds what B has at the address that A named"
	fill(r.mrs[1].Bytes()[:demoTarget], 3)
	clear(r.mrs[0].Bytes()[demoTarget:])
	err := r.post(ctx, &driver.SendWR{
		Opcode: driver.Read, SGEs: []driver.SGE{r.mrs[0].SGE(demoTarget, n)}, Remote: r.mrs[1].Remote().At(demoSource + 512),
	})
	if err != nil {
		return err
	}
	return compare(r.mrs[0].Bytes()[demoTarget:], r.mrs[1].Bytes()[demoSource+512:][:n])
}

// inline sends from memory that no region holds, and writes over it as soon as the post is back.
func (r *demoRun) inline(ctx context.Context, op *operation) error {
	buf := make([]byte, 64)
	fill(buf, 4)
	want := bytes.Clone(buf)
	op.Bytes, op.Segments, op.Checked = len(buf), 0, "B's receive buffer holds what A's unregistered buffer held when it was posted"
	if err := r.receive(len(buf)); err != nil {
		return err
	}
	wr := driver.SendWR{WRID: r.next(), Opcode: driver.Send, Flags: driver.Signaled, Inline: [][]byte{buf}}
	if err := r.pair[0].QP.PostSend(&wr); err != nil {
		return err
	}
	clear(buf)
	if _, err := r.pair[0].Wait(ctx); err != nil {
		return err
	}
	return r.arrived(ctx, want)
}

func (r *demoRun) atomic(ctx context.Context, op *operation) error {
	const before, add = 0x1122334455667788, 0x0101010101010101
	op.Bytes, op.Segments, op.Checked = 8, 1, "A has B's old value, B holds the sum"
	le := binary.LittleEndian
	le.PutUint64(r.mrs[1].Bytes()[demoTarget:], before)
	clear(r.mrs[0].Bytes()[demoTarget:])
	err := r.post(ctx, &driver.SendWR{
		Opcode: driver.FetchAdd, SGEs: []driver.SGE{r.mrs[0].SGE(demoTarget, 8)}, Remote: r.mrs[1].Remote().At(demoTarget), CompareAdd: add,
	})
	if err != nil {
		return err
	}
	if old, sum := le.Uint64(r.mrs[0].Bytes()[demoTarget:]), le.Uint64(r.mrs[1].Bytes()[demoTarget:]); old != before || sum != before+add {
		return fmt.Errorf("value at A %#x, at B %#x; should be %#x and %#x", old, sum, uint64(before), uint64(before+add))
	}
	return nil
}
