package driver_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/driver"
)

// A completion error names segment, key, offset and reason (rule G18). Each
// fault is made by hand: the card, not the driver, finds it.
func TestCompletionErrorNamesTheFault(t *testing.T) {
	for _, c := range []struct {
		name   string
		bad    func(a *side, other *driver.MR) driver.SGE
		reason driver.Reason
	}{
		{"index", func(a *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: a.mr.Addr(), Length: 10, LKey: 0xfffff00}
		}, driver.ReasonKeyIndex},
		{"tag", func(a *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: a.mr.Addr(), Length: 10, LKey: a.mr.LKey() ^ 1}
		}, driver.ReasonKeyTag},
		{"pd", func(_ *side, other *driver.MR) driver.SGE { return other.SGE(0, 10) }, driver.ReasonPD},
		{"bounds", func(a *side, _ *driver.MR) driver.SGE {
			return driver.SGE{Addr: a.mr.Addr() + uint64(a.mr.Len()) - 9, Length: 10, LKey: a.mr.LKey()}
		}, driver.ReasonBounds},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newPair(t, smallQP)
			ctx := testCtx(t)
			pd, err := a.d.AllocPD(ctx)
			if err != nil {
				t.Fatal(err)
			}
			other, err := pd.AllocMR(ctx, 100, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.qp.PostRecv(&driver.RecvWR{SGEs: []driver.SGE{b.mr.SGE(0, 100)}}); err != nil {
				t.Fatal(err)
			}
			bad := c.bad(a, other)
			if err := a.qp.PostSend(&driver.SendWR{WRID: 0x55, Opcode: driver.Send, SGEs: []driver.SGE{a.mr.SGE(0, 20), bad}}); err != nil {
				t.Fatal(err)
			}
			wc := wait(t, a.cq, 1)[0]
			var e *driver.CompletionError
			if !errors.As(wc.Err(), &e) {
				t.Fatalf("%+v", wc)
			}
			want := driver.CompletionError{
				Status: driver.StatusLocProtErr, WRID: 0x55, QPN: a.qp.Number(), Opcode: driver.Send, Segment: 1, Key: bad.LKey, Offset: 0, Reason: c.reason,
			}
			if *e != want {
				t.Errorf("got  %+v\nwant %+v", *e, want)
			}
			if s := e.Error(); !strings.Contains(s, "segment 1") || !strings.Contains(s, c.reason.String()) {
				t.Errorf("message %q", s)
			}
		})
	}
	// A fault at the far end names no segment here.
	a, b := newPair(t, smallQP)
	r := b.mr.Remote()
	r.RKey ^= 1
	if err := a.qp.PostSend(&driver.SendWR{WRID: 1, Opcode: driver.Write, Remote: r, SGEs: []driver.SGE{a.mr.SGE(0, 8)}}); err != nil {
		t.Fatal(err)
	}
	wc := wait(t, a.cq, 1)[0]
	var e *driver.CompletionError
	if !errors.As(wc.Err(), &e) || e.Status != driver.StatusRemAccessErr || e.Segment != -1 || e.Reason != driver.ReasonRemoteNAK || e.AETH != 0x62 {
		t.Errorf("%v", wc.Err()) // AETH 0x62: NAK, remote access error (InfiniBand specification volume 1, 9.7.5.2.8)
	}
}

func TestRegionOptionsAndErrors(t *testing.T) {
	d := open(t, "soft:regions?wire=regions")
	ctx := testCtx(t)
	pd, err := d.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pd.AllocMR(ctx, 0, 0)
	wantErr(t, "0 bytes", err, driver.ErrInvalid)
	_, err = pd.AllocMR(ctx, 10, driver.RemoteWrite)
	wantErr(t, "remote write without local write", err, driver.ErrInvalid)
	_, err = pd.AllocMR(ctx, 10, driver.MWBind)
	wantErr(t, "memory windows", err, driver.ErrNotSupported)
	_, err = pd.AllocMR(ctx, 10, 0x80)
	wantErr(t, "access 0x80", err, driver.ErrInvalid)
	_, err = pd.RegMR(ctx, make([]byte, 100<<10)[1:], 0)
	wantErr(t, "memory that is not pages", err, driver.ErrAlignment)
	if !strings.Contains(err.Error(), "AllocMR") {
		t.Errorf("%v does not name the remedy", err)
	}
	_, err = pd.AllocMR(ctx, 100, 0, driver.WithIOVA(^uint64(0)-50))
	wantErr(t, "a base that wraps", err, driver.ErrInvalid)
	_, err = pd.AllocMR(ctx, 100, 0, driver.WithKey(0))
	wantErr(t, "key index 0", err, driver.ErrInvalid)

	m, err := pd.AllocMR(ctx, 100, driver.LocalWrite, driver.WithIOVA(0x7fff12345001), driver.WithKey(0x8000142))
	if err != nil {
		t.Fatal(err)
	}
	if s := m.SGE(3, 97); s != (driver.SGE{Addr: 0x7fff12345004, Length: 97, LKey: 0x8000142}) {
		t.Errorf("SGE %+v", s)
	}
	if r := m.Remote(); r != (driver.RemoteMR{Addr: 0x7fff12345001, Length: 100, RKey: 0x8000142}) {
		t.Errorf("remote %+v", r)
	}
	for _, bad := range [][2]int{{-1, 1}, {0, 101}, {100, 1}, {1, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("SGE(%d, %d) of 100 bytes did not panic", bad[0], bad[1])
				}
			}()
			m.SGE(bad[0], bad[1])
		}()
	}
	_, err = pd.AllocMR(ctx, 100, 0, driver.WithKey(0x8000143))
	wantErr(t, "a key index that is taken", err, driver.ErrInUse)
	if err := m.Dereg(ctx); err != nil {
		t.Fatal(err)
	}
	if m.Bytes() != nil {
		t.Error("bytes after Dereg")
	}
	if err := m.Dereg(ctx); err != nil {
		t.Errorf("second Dereg: %v", err)
	}
	m, err = pd.AllocMR(ctx, 1000, driver.LocalWrite, driver.WithKey(0x8000143))
	if err != nil {
		t.Errorf("the freed key index: %v", err)
	} else if !bytes.Equal(m.Bytes(), make([]byte, 1000)) {
		t.Error("memory is not zero")
	}

	r := driver.RemoteMR{Addr: 0x1122334455667788, Length: 0x99, RKey: 0x8000142}
	b, err := r.MarshalBinary()
	if err != nil || !bytes.Equal(b, []byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0, 0x99, 8, 0, 1, 0x42}) {
		t.Errorf("binary form % x, %v", b, err)
	}
	var r2 driver.RemoteMR
	if err := r2.UnmarshalBinary(b); err != nil || r2 != r {
		t.Errorf("back: %+v, %v", r2, err)
	}
	if err := r2.UnmarshalBinary(b[1:]); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("19 bytes: %v", err)
	}
}

// The first tag of an index is random, each use has another, and a freed index
// rests while there are others.
func TestKeysRest(t *testing.T) {
	d := open(t, "soft:keys?wire=keys")
	ctx := testCtx(t)
	pd, err := d.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tags := map[uint8]int{}
	seen := map[uint32]bool{}
	for range 64 {
		m, err := pd.AllocMR(ctx, 64, 0)
		if err != nil {
			t.Fatal(err)
		}
		if seen[m.LKey()>>8] {
			t.Fatalf("index %#x again while fresh ones are left", m.LKey()>>8)
		}
		seen[m.LKey()>>8] = true
		tags[uint8(m.LKey())]++
		if err := m.Dereg(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if len(tags) < 16 {
		t.Errorf("%d different tags of 64", len(tags))
	}
}

// A caller's own pages, and an old key after Dereg: access is refused.
func TestRegMRAndStaleKey(t *testing.T) {
	a, b := newPair(t, smallQP)
	ctx := testCtx(t)
	mem, err := unix.Mmap(-1, 0, 4*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	m, err := b.pd.RegMR(ctx, mem, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	fill(a.mr.Bytes()[:3000], 9)
	old := m.Remote()
	write := func() driver.WC {
		t.Helper()
		if err := a.qp.PostSend(&driver.SendWR{Opcode: driver.Write, Flags: driver.Signaled, Remote: old.At(5), SGEs: []driver.SGE{a.mr.SGE(0, 3000)}}); err != nil {
			t.Fatal(err)
		}
		return wait(t, a.cq, 1)[0]
	}
	if wc := write(); wc.Err() != nil || !bytes.Equal(mem[5:3005], a.mr.Bytes()[:3000]) {
		t.Fatalf("write into a caller's pages: %v", wc.Err())
	}
	if err := m.Dereg(ctx); err != nil {
		t.Fatal(err)
	}
	clear(mem)
	if wc := write(); wc.Status != driver.StatusRemAccessErr {
		t.Errorf("write under a key that was deregistered: %+v", wc)
	}
	if !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Error("the card wrote into memory that was given back")
	}
}
