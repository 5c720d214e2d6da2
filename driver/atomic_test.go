package driver_test

import (
	"context"
	"errors"
	"testing"

	"rnic/driver"
)

// TestMisalignedAtomic: an atomic that can never work is refused at the post, and
// nothing is queued; its neighbour at the multiple of 8 is taken.
func TestMisalignedAtomic(t *testing.T) {
	a, b := newPair(t, smallQP)
	for _, op := range []driver.Opcode{driver.CompareSwap, driver.FetchAdd} {
		wr := driver.SendWR{Opcode: op, Flags: driver.Signaled, SGEs: []driver.SGE{a.mr.SGE(0, 8)}, Remote: b.mr.Remote().At(65)}
		if err := a.qp.PostSend(&wr); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%v at a remote address of %#x: %v", op, wr.Remote.Addr, err)
		}
		wr.Remote = b.mr.Remote().At(64)
		if err := a.qp.PostSend(&wr); err != nil {
			t.Errorf("%v at %#x: %v", op, wr.Remote.Addr, err)
		}
		var wc [2]driver.WC
		if n, err := a.cq.Wait(context.Background(), wc[:]); err != nil || n != 1 || wc[0].Err() != nil {
			t.Errorf("%v: %d completions, %v, %v; want one", op, n, err, wc[0].Err())
		}
	}
}
