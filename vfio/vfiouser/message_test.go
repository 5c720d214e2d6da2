package vfiouser

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rnic/vfio"
)

// An unmap abandons DMA by message in its range, and does not wait for DMA by
// message elsewhere: the client is not able to answer until it has its answer.
func TestUnmapAbandons(t *testing.T) {
	for _, c := range []struct {
		name   string
		at     uint64
		reason DMAReason
	}{{"in the range", 0x10000, DMAAbandoned}, {"elsewhere", 0x30000, 0}} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t)
			r, _ := rawClient(t, e)
			for _, a := range []string{"0000 0100", "0000 0300"} {
				r.send(`0200 0200 3000 0000 0000 0000 0000 0000
					2000 0000 0300 0000 0000 0000 0000 0000 ` + a + ` 0000 0000 0010 0000 0000 0000`)
				r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
			}
			e.host().SetBusMaster(true)
			res := make(chan error, 1)
			got := []byte{1, 2, 3, 4}
			e.work <- func(h Host) {
				h.Enter()
				defer h.Exit()
				res <- h.Read(c.at, got)
			}
			if b, err := r.recv(); err != nil || b[2] != 0x0b {
				t.Fatalf("%x, %v", b, err)
			}
			// The DMA_READ is unanswered; the unmap is answered all the same.
			r.send(`0300 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
			r.expect("unmap", `0300 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
			if c.reason != 0 {
				if err := <-res; reasonOf(err) != c.reason {
					t.Errorf("%v", err)
				}
				if st := e.host().Stats(); st.Abandoned != 1 || st.Faults != 1 {
					t.Errorf("%+v", st)
				}
			}
			// The late answer: of the abandoned one it is discarded.
			open := countFDs(t)
			r.send(fmt.Sprintf(`0000 0b00 2400 0000 0100 0000 0000 0000  0000 %02x00 0000 0000 0400 0000 0000 0000  0a0b 0c0d`, c.at>>16), r.spare())
			if c.reason == 0 {
				if err := <-res; err != nil || got[0] != 0x0a {
					t.Errorf("%x, %v", got, err)
				}
			} else if got[0] != 1 {
				t.Errorf("the late answer was written: %x", got)
			}
			r.send(`0400 0d00 1000 0000 0000 0000 0000 0000`)
			r.expect("the connection goes on", `0400 0d00 1000 0000 0100 0000 0000 0000`)
			if n := countFDs(t); n != open+1 { // the spare one
				t.Errorf("%d descriptors are open, were %d: that of the answer was kept", n, open)
			}
		})
	}
}

// Reset, bus mastering off and the client's end abandon DMA by message too; a
// client that never answers costs its own time only.
func TestMessageDMAEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(r *raw)
		want DMAReason
	}{
		{"reset", func(r *raw) { r.send(`0400 0d00 1000 0000 0000 0000 0000 0000`) }, DMAAbandoned},
		{"bus mastering off", func(r *raw) {
			r.send(`0500 0a00 2200 0000 0000 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000 0000`)
		}, DMAAbandoned},
		{"hang-up", func(r *raw) { _ = r.Close() }, DMAAbandoned},
		{"silence", func(r *raw) {}, DMATimeout},
		{"wrong length", func(r *raw) {
			r.send(`0000 0b00 2300 0000 0100 0000 0000 0000  0000 0100 0000 0000 0300 0000 0000 0000  010203`)
		}, DMARejected},
		{"wrong address", func(r *raw) {
			r.send(`0000 0b00 2400 0000 0100 0000 0000 0000  0001 0100 0000 0000 0400 0000 0000 0000  01020304`)
		}, DMARejected},
		{"wrong command", func(r *raw) { r.send(`0000 0c00 1000 0000 2100 0000 0500 0000`) }, DMAAbandoned},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t)
			r, _ := rawClient(t, e, WithDMATimeout(500*time.Millisecond))
			r.send(`0200 0200 3000 0000 0000 0000 0000 0000
				2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
			r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
			r.send(`0500 0a00 2200 0000 0000 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000 0400`)
			r.expect("config", `0500 0a00 2000 0000 0100 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000`)
			res := make(chan error, 1)
			e.work <- func(h Host) {
				h.Enter()
				defer h.Exit()
				res <- h.Read(0x10000, make([]byte, 4))
			}
			if b, err := r.recv(); err != nil || b[2] != 0x0b {
				t.Fatalf("%x, %v", b, err)
			}
			c.end(r)
			if err := <-res; reasonOf(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// The server's messages come between commands and their replies, under load
// from both sides, and every byte is right.
func TestInterleaving(t *testing.T) {
	r := newRig(t)
	m := wrap(t, 64<<10)
	for i := range m.Bytes() {
		m.Bytes()[i] = byte(i / 256)
	}
	d, err := r.s.Map(m, 0, m.Size(), vfio.ProtReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			var b [4]byte
			for n := uint32(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				off := uint64(0x100 + 8*k)
				if err := r.WriteRegion(0, off, le.AppendUint32(nil, n)); err != nil {
					t.Error(err)
					return
				}
				if err := r.ReadRegion(0, off, b[:]); err != nil || le.Uint32(b[:]) != n {
					t.Errorf("register %#x is %x after writing %#x: %v", off, b, n, err)
					return
				}
			}
		})
	}
	for i := range 200 {
		r.e.do(func(h Host) {
			h.Enter()
			defer h.Exit()
			got := make([]byte, 256)
			if err := h.Read(d.IOVA()+uint64(256*(i%256)), got); err != nil || got[0] != byte(i) || got[255] != byte(i) {
				t.Errorf("read %d: %x, %v", i, got[0], err)
			}
			if err := h.Write(d.IOVA()+uint64(256*(i%256)), got); err != nil {
				t.Error(err)
			}
		})
	}
	close(stop)
	wg.Wait()
}

// Maps and unmaps race with DMA: after an unmap nothing touches the memory.
func TestUnmapRace(t *testing.T) {
	r := newRig(t)
	for _, m := range []*vfio.Memory{alloc(t, 0x4000), wrap(t, 0x4000)} {
		var stop atomic.Bool
		done := make(chan bool)
		r.e.work <- func(h Host) {
			defer close(done)
			one := []byte{1}
			for !stop.Load() {
				h.Enter()
				err := h.Write(0x100123, one)
				h.Exit()
				if why := reasonOf(err); err != nil && why != DMAUnmapped && why != DMAAbandoned {
					t.Errorf("%v", err)
					return
				}
			}
		}
		touched := 0
		for range 300 {
			if err := r.MapDMA(0x100000, m, 0, 0x4000, vfio.ProtReadWrite); err != nil {
				t.Fatal(err)
			}
			var b [4]byte
			_ = r.ReadRegion(0, 0, b[:]) // leave it a while
			if err := r.UnmapDMA(0x100000, 0x4000); err != nil {
				t.Fatal(err)
			}
			touched += int(loadByte(m.Bytes(), 0x123))
			storeByte(m.Bytes(), 0x123, 0)
			_ = r.ReadRegion(0, 0, b[:])
			if loadByte(m.Bytes(), 0x123) != 0 {
				t.Fatal("memory was written after its unmap")
			}
		}
		stop.Store(true)
		<-done
		if touched == 0 {
			t.Error("the writes never landed: nothing was tested")
		}
	}
}

// DMA by message that would begin while its range is being unmapped does not:
// not a message is sent.
func TestNoMessageWhileUnmapping(t *testing.T) {
	e := newEngine(t)
	r, _ := rawClient(t, e)
	r.send(`0200 0200 3000 0000 0000 0000 0000 0000
		2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
	r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
	e.host().SetBusMaster(true)
	inside, res := make(chan struct{}), make(chan error, 1)
	e.work <- func(host Host) {
		h := host.(*host_)
		h.Enter()
		defer h.Exit()
		close(inside)
		for unmapping := false; !unmapping; runtime.Gosched() {
			h.mu.Lock()
			unmapping = len(h.revoking) > 0
			h.mu.Unlock()
		}
		res <- h.Read(0x10000, make([]byte, 4))
	}
	<-inside
	r.send(`0300 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
	r.expect("unmap", `0300 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
	if err := <-res; reasonOf(err) != DMAAbandoned {
		t.Errorf("%v", err)
	}
}
