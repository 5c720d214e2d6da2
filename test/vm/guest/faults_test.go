package guest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"rnic/driver"
	"rnic/driver/drivertest"
)

// end is a card of the test, with a region and two queue pairs.
type end struct {
	t   *testing.T
	dev *driver.Device
	pd  *driver.PD
	mr  *driver.MR
	cq  *driver.CQ
	qp  [2]*driver.QP
}

func openEnd(t *testing.T, addr string) *end {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e := &end{t: t}
	var err error
	// A busy host is slow to bring a card up.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	e.dev, err = driver.Open(ctx, addr, driver.WithStatusSocket(""))
	must(err)
	t.Cleanup(func() { _ = e.dev.Close() })
	e.pd, err = e.dev.AllocPD(ctx)
	must(err)
	e.mr, err = e.pd.AllocMR(ctx, 1<<16, driver.LocalWrite|driver.RemoteWrite|driver.RemoteRead)
	must(err)
	e.cq, err = e.dev.CreateCQ(ctx, 256)
	must(err)
	for i := range e.qp {
		e.qp[i], err = e.pd.CreateQP(ctx, driver.QPInit{
			Type: driver.RC, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 1,
		})
		must(err)
	}
	return e
}

// openPair gives both cards, with two connections.
func openPair(t *testing.T) (a, b *end) {
	t.Helper()
	first, second := pair(t)
	a, b = openEnd(t, first), openEnd(t, second)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i := range a.qp {
		if err := errors.Join(a.qp[i].Connect(ctx, b.qp[i].Endpoint()), b.qp[i].Connect(ctx, a.qp[i].Endpoint())); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// do posts a request and gives its completion's error.
func (e *end) do(qp int, wr driver.SendWR) error {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 30*time.Second)
	defer cancel()
	wr.Flags |= driver.Signaled
	if err := e.qp[qp].PostSend(&wr); err != nil {
		e.t.Fatal(err)
	}
	var wc [1]driver.WC
	if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
		e.t.Fatal(err)
	}
	return wc[0].Err()
}

// refused wants a gather or scatter fault.
func refused(t *testing.T, err error, segment int, key uint32, why driver.Reason) {
	t.Helper()
	var e *driver.CompletionError
	if !errors.As(err, &e) || e.Segment != segment || e.Key != key || e.Reason != why {
		t.Fatalf("completed with %v; want segment %d, key %#x, %v", err, segment, key, why)
	}
}

// Bits of a key's entry (docs/card.md, KeyEntry): of its IOVA, and its right of local write.
const (
	iovaBit       = 16 * 8
	localWriteBit = 60*8 + 16
)

// faulted wants a fault at the IOVA's page.
func faulted(t *testing.T, told <-chan kernelEvent, iova uint64) {
	t.Helper()
	tells(t, told, fmt.Sprintf("a fault at %#x", iova), func(k kernelEvent) bool {
		at, err := strconv.ParseUint(k.Address, 0, 64)
		return k.Event == "fault" && err == nil && at&^0xfff == iova&^0xfff
	})
}

// iova is where the card's key table says that a key begins.
func (e *end) iova(key uint32) uint64 {
	e.t.Helper()
	s, err := e.dev.Snapshot(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	for _, k := range s.Keys {
		if k.Key == key {
			return k.IOVA
		}
	}
	e.t.Fatalf("no key %#x in %v", key, s.Keys)
	return 0
}

// TestFaultsRead: a key whose entry points to where nothing is mapped. Its request fails at its segment, the kernel reports the IOMMU's
// fault, rnicctl trace kernel shows the address, and the other queue pair goes on.
func TestFaultsRead(t *testing.T) {
	first, _ := pair(t)
	a, b := openPair(t)
	told := a.watched(first)
	card, err := drivertest.On(a.dev)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := a.pd.AllocMR(t.Context(), 8192, 0)
	if err != nil {
		t.Fatal(err)
	}
	const bit = 36
	at := a.iova(bad.LKey()) ^ 1<<bit
	if err := card.FlipKey(t.Context(), bad.LKey(), iovaBit+bit); err != nil {
		t.Fatal(err)
	}
	write := driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{a.mr.SGE(0, 1000), bad.SGE(100, 2000)}, Remote: b.mr.Remote()}
	refused(t, a.do(0, write), 1, bad.LKey(), driver.ReasonDMARead)
	faulted(t, told, at+100)
	write.SGEs = write.SGEs[:1]
	if err := a.do(1, write); err != nil {
		t.Errorf("the other queue pair: %v", err)
	}
}

// TestFaultsReadOnly: memory that is mapped for reading alone, and a key that says otherwise. What arrives for it is refused by the IOMMU; the
// soft card can tell.
func TestFaultsReadOnly(t *testing.T) {
	first, _ := pair(t)
	a, b := openPair(t)
	told := a.watched(first)
	card, err := drivertest.On(a.dev)
	if err != nil {
		t.Fatal(err)
	}
	mem := pages(t, 1)
	ro, err := a.pd.RegMR(t.Context(), mem, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := a.iova(ro.LKey())
	if err := card.FlipKey(t.Context(), ro.LKey(), localWriteBit); err != nil {
		t.Fatal(err)
	}
	copy(b.mr.Bytes(), "not for you")
	read := driver.SendWR{Opcode: driver.Read, SGEs: []driver.SGE{ro.SGE(0, 64)}, Remote: b.mr.Remote()}
	refused(t, a.do(0, read), 0, ro.LKey(), driver.ReasonDMAWrite)
	faulted(t, told, at)
	if mem[0] != 0 {
		t.Errorf("memory that the card may only read has %q", mem[:11])
	}
	read.SGEs = []driver.SGE{a.mr.SGE(0, 64)}
	if err := a.do(1, read); err != nil || string(a.mr.Bytes()[:11]) != "not for you" {
		t.Errorf("the other queue pair: %v, %q", err, a.mr.Bytes()[:11])
	}
}

// TestFaultsReopen: a function is reset and opened, again and again, and each time it works.
func TestFaultsReopen(t *testing.T) {
	times := 5
	if full() {
		times = 100
	}
	for range times {
		a, b := openPair(t)
		if err := a.do(0, driver.SendWR{Opcode: driver.Write, SGEs: []driver.SGE{a.mr.SGE(0, 5000)}, Remote: b.mr.Remote()}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.dev.Close(), b.dev.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFaultsInterrupts: completions under load, waited for by interrupt: none is missed, and none is later than its deadline.
func TestFaultsInterrupts(t *testing.T) {
	count := 500
	if full() {
		count = 20_000
	}
	a, b := openPair(t)
	var wc [16]driver.WC
	for done := 0; done < count; {
		burst := done%16 + 1
		for i := range burst {
			wr := driver.SendWR{WRID: uint64(done + i), Opcode: driver.Write, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 64)}, Remote: b.mr.Remote()}
			if err := a.qp[i%2].PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[uint64]bool{}
		for len(seen) < burst {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			n, err := a.cq.Wait(ctx, wc[:])
			cancel()
			if err != nil {
				t.Fatalf("after %d completions: %v", done+len(seen), err)
			}
			for _, c := range wc[:n] {
				if err := c.Err(); err != nil || c.WRID < uint64(done) || c.WRID >= uint64(done+burst) || seen[c.WRID] {
					t.Fatalf("completion of %d in the burst from %d on, %v", c.WRID, done, err)
				}
				seen[c.WRID] = true
			}
		}
		done += burst
	}
}
