package vfiouser

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// The bytes in this file are written by hand from the tables of
// docs/interop/vfio-user.rst (QEMU) and linux/vfio.h. No code of the package
// made them.

// raw is one end of a connection, driven byte by byte.
type raw struct {
	t testing.TB
	*net.UnixConn
	fds []int // received and not taken
}

func newRaw(t testing.TB, c *net.UnixConn) *raw {
	r := &raw{t: t, UnixConn: c}
	t.Cleanup(func() { _ = c.Close(); closeFDs(r.fds) })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // a hang is a failure
	return r
}

// unhex reads hex digits, ignoring space and // comments.
func unhex(s string) []byte {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "//")
		b.WriteString(strings.Join(strings.Fields(line), ""))
	}
	p, err := hex.DecodeString(b.String())
	if err != nil {
		panic(err)
	}
	return p
}

func (r *raw) sendBytes(b []byte, fds ...int) {
	r.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := r.WriteMsgUnix(b, oob, nil); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) send(s string, fds ...int) { r.t.Helper(); r.sendBytes(unhex(s), fds...) }

// recv reads one message by the size in its header.
func (r *raw) recv() ([]byte, error) {
	b := make([]byte, 16)
	for got, want := 0, 16; got < want; {
		oob := make([]byte, 1024)
		n, oobn, _, _, err := r.ReadMsgUnix(b[got:want], oob)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return nil, err
		}
		cms, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for _, c := range cms {
			fds, _ := unix.ParseUnixRights(&c)
			r.fds = append(r.fds, fds...)
		}
		if got += n; got == 16 && want == 16 {
			want = int(b[4]) | int(b[5])<<8 | int(b[6])<<16 | int(b[7])<<24
			b = append(b, make([]byte, want-16)...)
		}
	}
	return b, nil
}

func (r *raw) expect(name, s string) {
	r.t.Helper()
	got, err := r.recv()
	if err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
	if want := unhex(s); string(got) != string(want) {
		r.t.Fatalf("%s:\n got %x\nwant %x", name, got, want)
	}
}

// takeFD gives the one descriptor that has come.
func (r *raw) takeFD() int {
	r.t.Helper()
	if len(r.fds) != 1 {
		r.t.Fatalf("%d descriptors came, want 1", len(r.fds))
	}
	fd := r.fds[0]
	r.fds = nil
	return fd
}

const versionRequest = `
	0100 0100 1500 0000 0000 0000 0000 0000 // id 1, VERSION, 21 bytes, command
	0000 0000 00                            // 0.0 and an empty string's NUL`

// rawClient connects raw to a server of e and agrees on the version as QEMU does.
func rawClient(t testing.TB, e Function, opts ...Option) (*raw, <-chan error) {
	t.Helper()
	cc, sc, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	res := serve(t, sc, e, opts...)
	r := newRaw(t, cc)
	j := `{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,"max_data_xfer_size":1048576,` +
		`"migration":{"max_bitmap_size":268435456,"pgsize":4096},"write_multiple":true}}` + "\x00"
	r.send(fmt.Sprintf("0100 0100 %02x00 0000 0000 0000 0000 0000 0000 0000", 16+4+len(j)) + hex.EncodeToString([]byte(j)))
	b, err := r.recv()
	if err != nil {
		t.Fatal(err)
	}
	j = `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096,"write_multiple":true}}` + "\x00"
	want := append(unhex(fmt.Sprintf("0100 0100 %02x00 0000 0100 0000 0000 0000 0000 0000", 16+4+len(j))), j...)
	if string(b) != string(want) {
		t.Fatalf("VERSION:\n got %q\nwant %q", b, want)
	}
	return r, res
}

func TestWireServer(t *testing.T) {
	e := newEngine(t)
	r, res := rawClient(t, e)

	// DEVICE_GET_INFO: RESET|PCI, 9 regions, 5 interrupt indices.
	r.send(`0200 0400 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("device info", `0200 0400 2000 0000 0100 0000 0000 0000  1000 0000 0300 0000 0900 0000 0500 0000`)

	// DEVICE_GET_REGION_INFO of BAR 0 with room for the fixed part only: the
	// needed size (32 + 16 + 16 = 64) comes back, and no descriptor.
	r.send(`0300 0500 3000 0000 0000 0000 0000 0000
		2000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("region info, short", `0300 0500 3000 0000 0100 0000 0000 0000
		4000 0000 0f00 0000 0000 0000 2000 0000  // argsz, READ|WRITE|MMAP|CAPS, index, cap_offset
		0040 0000 0000 0000 0000 0000 0000 0000  // size 0x4000, offset 0`)
	if len(r.fds) != 0 {
		t.Fatal("a descriptor came with the short answer")
	}
	r.send(`0400 0500 3000 0000 0000 0000 0000 0000
		4000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("region info", `0400 0500 5000 0000 0100 0000 0000 0000
		4000 0000 0f00 0000 0000 0000 2000 0000
		0040 0000 0000 0000 0000 0000 0000 0000
		0100 0100 0000 0000                      // SPARSE_MMAP, version 1, no next
		0100 0000 0000 0000                      // one area
		0010 0000 0000 0000 0010 0000 0000 0000  // 0x1000 + 0x1000`)
	bar := r.takeFD()
	defer func() { _ = unix.Close(bar) }()
	m, err := unix.Mmap(bar, 0x1000, 0x1000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	m[4] = 0x5a
	_ = unix.Munmap(m)
	if e.doorbell.Bytes()[0x1004] != 0x5a {
		t.Error("the doorbell page is another one")
	}
	// A region without areas, and one that is not there.
	r.send(`0500 0500 3000 0000 0000 0000 0000 0000
		2000 0000 0000 0000 0700 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("configuration space", `0500 0500 3000 0000 0100 0000 0000 0000
		2000 0000 0300 0000 0700 0000 0000 0000 0001 0000 0000 0000 0000 0000 0000 0000`)
	r.send(`0600 0500 3000 0000 0000 0000 0000 0000
		2000 0000 0000 0000 0900 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("region 9", `0600 0500 1000 0000 2100 0000 1600 0000`) // reply, error, EINVAL

	// DEVICE_GET_IRQ_INFO of MSI-X: EVENTFD, 40 vectors.
	r.send(`0700 0700 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0200 0000 0000 0000`)
	r.expect("interrupt info", `0700 0700 2000 0000 0100 0000 0000 0000  1000 0000 0100 0000 0200 0000 2800 0000`)

	// DEVICE_SET_IRQS: DATA_EVENTFD|ACTION_TRIGGER, MSI-X, vector 5; then loopback.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	r.send(`0800 0800 2400 0000 0000 0000 0000 0000  1400 0000 2400 0000 0200 0000 0500 0000 0100 0000`, fd)
	r.expect("set irqs", `0800 0800 1000 0000 0100 0000 0000 0000`)
	r.send(`0900 0800 2400 0000 0000 0000 0000 0000  1400 0000 2100 0000 0200 0000 0500 0000 0100 0000`)
	r.expect("trigger", `0900 0800 1000 0000 0100 0000 0000 0000`)
	waitEventFD(t, fd)
	// DATA_BOOL: vectors 4 and 6 false, 5 true.
	r.send(`0a00 0800 2700 0000 0000 0000 0000 0000  1700 0000 2200 0000 0200 0000 0400 0000 0300 0000 00 01 00`)
	r.expect("trigger by bool", `0a00 0800 1000 0000 0100 0000 0000 0000`)
	waitEventFD(t, fd)
	// Flags 0x24 without descriptors: detach.
	r.send(`0b00 0800 2400 0000 0000 0000 0000 0000  1400 0000 2400 0000 0200 0000 0500 0000 0100 0000`)
	r.expect("detach", `0b00 0800 1000 0000 0100 0000 0000 0000`)
	r.send(`0c00 0800 2400 0000 0000 0000 0000 0000  1400 0000 2100 0000 0200 0000 0500 0000 0100 0000`)
	r.expect("trigger of nothing", `0c00 0800 1000 0000 0100 0000 0000 0000`)
	if fired(t, fd) {
		t.Error("a detached vector fired")
	}
	// Flags 0x21, count 0: disable all.
	r.send(`0d00 0800 2400 0000 0000 0000 0000 0000  1400 0000 2100 0000 0200 0000 0000 0000 0000 0000`)
	r.expect("disable", `0d00 0800 1000 0000 0100 0000 0000 0000`)

	// REGION_WRITE and REGION_READ of BAR 0 at 8.
	r.send(`0e00 0a00 2400 0000 0000 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000  dead beef`)
	r.expect("write", `0e00 0a00 2000 0000 0100 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000`)
	r.send(`0f00 0900 2000 0000 0000 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000`)
	r.expect("read", `0f00 0900 2400 0000 0100 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000  dead beef`)
	// NO_REPLY, then a read: only the read is answered, with what was written.
	r.send(`1000 0a00 2400 0000 1000 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000  0102 0304`)
	r.send(`1100 0900 2000 0000 0000 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000`)
	r.expect("read after posted write", `1100 0900 2400 0000 0100 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000  0102 0304`)
	// A posted command that fails is not answered either.
	r.send(`1200 0a00 2400 0000 1000 0000 0000 0000  ffff 0000 0000 0000 0000 0000 0400 0000  0102 0304`)
	// REGION_WRITE_MULTI: two writes of 4 and 1 bytes.
	r.send(`1300 0f00 4800 0000 0000 0000 0000 0000  0200 0000 0000 0000
		1000 0000 0000 0000 0000 0000 0400 0000 1112 1314 0000 0000
		1400 0000 0000 0000 0000 0000 0100 0000 1500 0000 0000 0000`)
	r.expect("write multi", `1300 0f00 1800 0000 0100 0000 0000 0000  0200 0000 0000 0000`)
	r.send(`1400 0900 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0800 0000`)
	r.expect("read it", `1400 0900 2800 0000 0100 0000 0000 0000  1000 0000 0000 0000 0000 0000 0800 0000  1112 1314 1500 0000`)

	// DEVICE_RESET has no payload either way.
	r.send(`1500 0d00 1000 0000 0000 0000 0000 0000`)
	r.expect("reset", `1500 0d00 1000 0000 0100 0000 0000 0000`)

	// GET_REGION_IO_FDS of a region without: not supported (95).
	r.send(`1600 0600 2000 0000 0000 0000 0000 0000  0010 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("io fds", `1600 0600 1000 0000 2100 0000 5f00 0000`)
	// DEVICE_FEATURE (GET MIGRATION), MIG_DATA_READ, MIG_DATA_WRITE, DIRTY_PAGES: not supported.
	r.send(`1700 1000 1800 0000 0000 0000 0000 0000  1000 0000 0100 0100`)
	r.expect("feature", `1700 1000 1000 0000 2100 0000 5f00 0000`)
	r.send(`1800 1100 1800 0000 0000 0000 0000 0000  1000 0000 0000 0100`)
	r.expect("migration read", `1800 1100 1000 0000 2100 0000 5f00 0000`)
	r.send(`1900 1200 1800 0000 0000 0000 0000 0000  0800 0000 0000 0000`)
	r.expect("migration write", `1900 1200 1000 0000 2100 0000 5f00 0000`)
	r.send(`1a00 0e00 1800 0000 0000 0000 0000 0000  0800 0000 0100 0000`)
	r.expect("dirty pages", `1a00 0e00 1000 0000 2100 0000 5f00 0000`)
	// Unknown commands and those of the other direction: EINVAL, and the
	// connection goes on.
	for _, c := range []string{"0000", "0100", "0b00", "0c00", "1300", "ffff"} {
		r.send("1b00 " + c + " 1000 0000 0000 0000 0000 0000")
		r.expect("command "+c, "1b00 "+c+" 1000 0000 2100 0000 1600 0000")
	}

	_ = r.Close()
	if err := <-res; err != nil {
		t.Errorf("an orderly end: %v", err)
	}
	if a, d, _, _ := e.counts(); a != 1 || d != 1 {
		t.Errorf("attached %d, detached %d", a, d)
	}
}

func TestWireServerIOFDs(t *testing.T) {
	e := newEngine(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	e.io = []IOFD{{Offset: 0x24, Size: 4, Type: IOEventFD, Flags: 1, Data: 0x0102030405060708, FD: fd}}
	r, _ := rawClient(t, e)
	// Room for the header only: the needed size and the count come back.
	r.send(`0200 0600 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("short", `0200 0600 2000 0000 0100 0000 0000 0000  3800 0000 0000 0000 0000 0000 0100 0000`)
	r.send(`0300 0600 2000 0000 0000 0000 0000 0000  3800 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("io fds", `0300 0600 4800 0000 0100 0000 0000 0000
		3800 0000 0000 0000 0000 0000 0100 0000  // argsz 56, flags, index, count
		2400 0000 0000 0000 0400 0000 0000 0000  // offset, size
		0000 0000 0000 0000 0100 0000 0000 0000  // fd_index, IOEVENTFD, DATAMATCH, padding
		0807 0605 0403 0201`)
	_ = unix.Close(r.takeFD())
}

// DMA on the wire: a map with a memfd, one without, and the server's messages.
func TestWireServerDMA(t *testing.T) {
	e := newEngine(t)
	r, _ := rawClient(t, e)
	m := alloc(t, 0x2000)
	copy(m.Bytes()[0x1000:], "by descriptor")
	// DMA_MAP: argsz 32, R|W, file offset 0x1000, address 0x10000, size 0x1000.
	r.send(`0200 0200 3000 0000 0000 0000 0000 0000
		2000 0000 0300 0000 0010 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`, m.FD())
	r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
	r.send(`0300 0200 3000 0000 0000 0000 0000 0000
		2000 0000 0300 0000 0000 0000 0000 0000 0000 0200 0000 0000 0010 0000 0000 0000`)
	r.expect("map without descriptor", `0300 0200 1000 0000 0100 0000 0000 0000`)
	// Over an existing one: EEXIST (17).
	r.send(`0400 0200 3000 0000 0000 0000 0000 0000
		2000 0000 0300 0000 0000 0000 0000 0000 00f8 0100 0000 0000 0010 0000 0000 0000`)
	r.expect("overlap", `0400 0200 1000 0000 2100 0000 1100 0000`)
	// Bus mastering on: command register 0x04 = 0x0004.
	r.send(`0500 0a00 2200 0000 0000 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000 0400`)
	r.expect("config", `0500 0a00 2000 0000 0100 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000`)

	got := make([]byte, 13)
	e.do(func(h Host) {
		h.Enter()
		defer h.Exit()
		if err := h.Read(0x10000, got); err != nil || string(got) != "by descriptor" {
			t.Errorf("%q, %v", got, err)
		}
	})
	res := make(chan error, 1)
	e.work <- func(h Host) {
		h.Enter()
		defer h.Exit()
		if err := h.Read(0x20010, got[:4]); err != nil {
			res <- err
			return
		}
		res <- h.Write(0x20020, []byte{9, 8, 7})
	}
	// DMA_READ: address 0x20010, count 4; ids are the sender's.
	r.expect("dma read", `0000 0b00 2000 0000 0000 0000 0000 0000  1000 0200 0000 0000 0400 0000 0000 0000`)
	// Between request and reply comes a command of ours: it is answered first.
	r.send(`0600 0900 2000 0000 0000 0000 0000 0000  0000 0000 0000 0000 0000 0000 0400 0000`)
	r.expect("command in between", `0600 0900 2400 0000 0100 0000 0000 0000  0000 0000 0000 0000 0000 0000 0400 0000  6967 6e65`)
	r.send(`0000 0b00 2400 0000 0100 0000 0000 0000  1000 0200 0000 0000 0400 0000 0000 0000  0a0b 0c0d`)
	r.expect("dma write", `0100 0c00 2300 0000 0000 0000 0000 0000  2000 0200 0000 0000 0300 0000 0000 0000  0908 07`)
	// The specification's reply has a count of 4 bytes.
	r.send(`0100 0c00 1c00 0000 0100 0000 0000 0000  2000 0200 0000 0000 0300 0000`)
	if err := <-res; err != nil || string(got[:4]) != "\x0a\x0b\x0c\x0d" {
		t.Errorf("%x, %v", got[:4], err)
	}

	// DMA_UNMAP answers with its entry. One may cover many, empty ones succeed,
	// and QEMU's may run over the end of the address space.
	r.send(`0700 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0000 0200 0000 0000`)
	r.expect("unmap of two", `0700 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0000 0200 0000 0000`)
	r.send(`0800 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 f0fe 0000 0000 0000 1001 ffff ffff`)
	r.expect("unmap of an empty range", `0800 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 f0fe 0000 0000 0000 1001 ffff ffff`)
	r.send(`0800 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 f0fe 0000 0000 0000 ffff ffff ffff`)
	r.expect("unmap over the end", `0800 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 f0fe 0000 0000 0000 ffff ffff ffff`)
	r.send(`0900 0300 2800 0000 0000 0000 0000 0000  1800 0000 0200 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("unmap all", `0900 0300 2800 0000 0100 0000 0000 0000  1800 0000 0200 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	// A miss is asked of the client once, so that its IOMMU can report it; the
	// client's errno (ENODEV, as QEMU gives) is in the error.
	e.work <- func(h Host) {
		h.Enter()
		defer h.Exit()
		res <- h.Read(0x10000, got[:8])
	}
	r.expect("dma read of a miss", `0200 0b00 2000 0000 0000 0000 0000 0000  0000 0100 0000 0000 0800 0000 0000 0000`)
	r.send(`0200 0b00 1000 0000 2100 0000 1300 0000`)
	if err := <-res; reasonOf(err) != DMAUnmapped || errnoOf(err) != unix.ENODEV {
		t.Errorf("%v", err)
	}
}

// rawServer runs a client against a server that the test plays. The client's
// result comes on the channel.
func rawServer(t testing.TB, opts ...Option) (*raw, <-chan *Device, <-chan error) {
	t.Helper()
	cc, sc, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	dev, fail := make(chan *Device, 1), make(chan error, 1)
	go func() {
		d, err := Client(context.Background(), cc, "test:raw", opts...)
		if err != nil {
			fail <- err
			return
		}
		dev <- d
	}()
	return newRaw(t, sc), dev, fail
}

const clientVersion = `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096,"write_multiple":true,"holder":{"pid":0}}}` + "\x00"

// handshake plays the server as far as a device without events goes.
func (r *raw) handshake() {
	r.t.Helper()
	r.expect("VERSION", fmt.Sprintf("0000 0100 %02x00 0000 0000 0000 0000 0000 0000 0100", 16+4+len(clientVersion))+hex.EncodeToString([]byte(clientVersion)))
	r.send(`0000 0100 1400 0000 0100 0000 0000 0000  0000 0000`) // 0.0, defaults
	r.expect("GET_INFO", `0000 0400 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0000 0000`)
	r.send(`0000 0400 2000 0000 0100 0000 0000 0000  1000 0000 0300 0000 0900 0000 0300 0000`)
}

func TestWireClient(t *testing.T) {
	r, dev, fail := rawServer(t)
	r.handshake()
	var d *Device
	select {
	case d = <-dev:
	case err := <-fail:
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	// do runs an operation of the client beside the test.
	do := func(f func() error) <-chan error {
		c := make(chan error, 1)
		go func() { c <- f() }()
		return c
	}
	ok := func(name string, c <-chan error) {
		t.Helper()
		if err := <-c; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}

	// A read of configuration space: region info first, once.
	var b [2]byte
	c := do(func() error { return d.ReadRegion(vfio.RegionConfig, 2, b[:]) })
	r.expect("region info", `0100 0500 3000 0000 0000 0000 0000 0000
		0004 0000 0000 0000 0700 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000`)
	r.send(`0100 0500 3000 0000 0100 0000 0000 0000
		2000 0000 0300 0000 0700 0000 0000 0000 0001 0000 0000 0000 0000 0000 0000 0000`)
	r.expect("read", `0200 0900 2000 0000 0000 0000 0000 0000  0200 0000 0000 0000 0700 0000 0200 0000`)
	r.send(`0200 0900 2200 0000 0100 0000 0000 0000  0200 0000 0000 0000 0700 0000 0200 0000  3412`)
	ok("read", c)
	if b != [2]byte{0x34, 0x12} {
		t.Errorf("%x", b)
	}
	c = do(func() error { return d.WriteRegion(vfio.RegionConfig, 4, []byte{6, 0}) })
	r.expect("write", `0300 0a00 2200 0000 0000 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000  0600`)
	r.send(`0300 0a00 2000 0000 0100 0000 0000 0000  0400 0000 0000 0000 0700 0000 0200 0000`)
	ok("write", c)
	ok("posted write", do(func() error { return d.PostRegion(vfio.RegionConfig, 4, []byte{7}) }))
	r.expect("posted write", `0000 0a00 2100 0000 1000 0000 0000 0000  0400 0000 0000 0000 0700 0000 0100 0000  07`)

	// DMA_MAP: the server takes one descriptor by default.
	m := alloc(t, 0x2000)
	c = do(func() error { return d.MapDMA(0x40000, m, 0x1000, 0x1000, vfio.ProtRead) })
	r.expect("map", `0400 0200 3000 0000 0000 0000 0000 0000
		2000 0000 0100 0000 0010 0000 0000 0000 0000 0400 0000 0000 0010 0000 0000 0000`)
	_ = unix.Close(r.takeFD())
	// Before the answer, the server already reads by message.
	copy(m.Bytes()[0x1008:], "hello")
	r.send(`0700 0b00 2000 0000 0000 0000 0000 0000  0800 0400 0000 0000 0500 0000 0000 0000`)
	r.expect("dma read", `0700 0b00 2500 0000 0100 0000 0000 0000  0800 0400 0000 0000 0500 0000 0000 0000  6865 6c6c 6f`)
	r.send(`0400 0200 1000 0000 0100 0000 0000 0000`)
	ok("map", c)
	// Not writable: EACCES (13). Not mapped: EFAULT (14). Too much: EINVAL.
	r.send(`0800 0c00 2100 0000 0000 0000 0000 0000  0800 0400 0000 0000 0100 0000 0000 0000  ff`)
	r.expect("dma write", `0800 0c00 1000 0000 2100 0000 0d00 0000`)
	r.send(`0800 0b00 2000 0000 0000 0000 0000 0000  ff0f 0400 0000 0000 0200 0000 0000 0000`)
	r.expect("dma read over the end", `0800 0b00 1000 0000 2100 0000 0e00 0000`)
	r.send(`0800 0b00 2000 0000 0000 0000 0000 0000  0000 0400 0000 0000 0000 0000 0100 0000`)
	r.expect("dma read of 4 GiB", `0800 0b00 1000 0000 2100 0000 1600 0000`)
	c = do(func() error { return d.UnmapDMA(0x40000, 0x1000) })
	r.expect("unmap", `0500 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0400 0000 0000 0010 0000 0000 0000`)
	r.send(`0500 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0400 0000 0000 0010 0000 0000 0000`)
	ok("unmap", c)

	// SET_IRQS: one descriptor a message, holes without any.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	c = do(func() error { return d.SetIRQs(vfio.IRQMSIX, 0, []int{fd, -1, -1}) })
	r.expect("set irqs", `0600 0800 2400 0000 0000 0000 0000 0000  1400 0000 2400 0000 0200 0000 0000 0000 0100 0000`)
	_ = unix.Close(r.takeFD())
	r.send(`0600 0800 1000 0000 0100 0000 0000 0000`)
	r.expect("holes", `0700 0800 2400 0000 0000 0000 0000 0000  1400 0000 2400 0000 0200 0000 0100 0000 0200 0000`)
	r.send(`0700 0800 1000 0000 0100 0000 0000 0000`)
	ok("set irqs", c)
	c = do(func() error { return d.DisableIRQs(vfio.IRQMSIX) })
	r.expect("disable", `0800 0800 2400 0000 0000 0000 0000 0000  1400 0000 2100 0000 0200 0000 0000 0000 0000 0000`)
	r.send(`0800 0800 1000 0000 0100 0000 0000 0000`)
	ok("disable", c)

	c = do(func() error { return d.Reset(context.Background()) })
	r.expect("reset", `0900 0d00 1000 0000 0000 0000 0000 0000`)
	r.send(`0900 0d00 1000 0000 0100 0000 0000 0000`)
	ok("reset", c)
	// Multiple writes were not agreed on.
	if _, err := d.WriteMulti(nil); errnoOf(err) != unix.EOPNOTSUPP {
		t.Errorf("multiple writes: %v", err)
	}
}
