package vfiouser

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// TestOwner_WordComesLast: of an entry whose body faults the owner word is not written, in shared
// memory; of one whose owner word faults the body is. What may not be written is not.
func TestOwner_WordComesLast(t *testing.T) {
	e := newEngine(t)
	d, _ := open(t, e)
	m := alloc(t, 0x4000)
	if err := d.MapDMA(0x100000, m, 0, 0x3000, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	if err := d.MapDMA(0x200000, m, 0x3000, 0x1000, vfio.ProtRead); err != nil {
		t.Fatal(err)
	}
	entry := bytes.Repeat([]byte{0x5a}, 64)
	e.do(func(host Host) {
		h := host.(*host_)
		h.SetBusMaster(true)
		h.Enter()
		defer h.Exit()
		if err := h.WriteOwned(0x100100, entry); err != nil || !bytes.Equal(m.Bytes()[0x100:0x140], entry) {
			t.Errorf("an entry: %v, %x", err, m.Bytes()[0x100:0x140])
		}
		if st := h.counts; st.WriteBytes != 64 {
			t.Errorf("%d bytes are counted, want 64", st.WriteBytes)
		}
		if err := h.WriteOwned(0x200100, entry); reasonOf(err) != DMAPermission || m.Bytes()[0x3100] != 0 {
			t.Errorf("an entry in memory to be read: %v", err)
		}
		// The second page goes away.
		fd, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = unix.Close(fd) }()
		b := h.maps[0].file.b
		if _, err := unix.MmapPtr(fd, 0, ptr(b[0x1000:]), 0x1000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			t.Error(err)
			return
		}
		if err := h.WriteOwned(0x102000-60, entry); reasonOf(err) != DMAFault || !bytes.Equal(m.Bytes()[0x2000:0x2004], make([]byte, 4)) {
			t.Errorf("the body faults: %v, the owner word is %x", err, m.Bytes()[0x2000:0x2004])
		}
		if err := h.WriteOwned(0x101000-60, entry); reasonOf(err) != DMAFault || !bytes.Equal(m.Bytes()[0xfc4:0x1000], entry[:60]) {
			t.Errorf("the owner word faults: %v, the body is %x", err, m.Bytes()[0xfc4:0x1000])
		}
	})
}

// TestOwner_WordComesLastByMessage: there it is a message of its own, sent when the first is answered.
func TestOwner_WordComesLastByMessage(t *testing.T) {
	e := newEngine(t)
	r, _ := rawClient(t, e)
	r.send(`0200 0200 3000 0000 0000 0000 0000 0000  2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
	r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
	e.host().SetBusMaster(true)
	res := make(chan error, 1)
	e.work <- func(h Host) {
		h.Enter()
		defer h.Exit()
		res <- h.WriteOwned(0x10100, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	}
	for i, want := range [][]byte{{0, 1, 1, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6}, {6, 1, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7, 8, 9, 10}} {
		b, err := r.recv()
		if err != nil || len(b) < 16 || b[2] != 0x0c || !bytes.Equal(b[16:], want) {
			t.Fatalf("message %d: %x, %v", i, b, err)
		}
		answer := append([]byte{}, b[:32]...)
		answer[4], answer[8] = 32, 1
		r.sendBytes(answer)
	}
	if err := <-res; err != nil {
		t.Error(err)
	}
}
