package vfiouser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// Messages that end the connection, each sent to a server after VERSION.
func TestHostileClientIsCutOff(t *testing.T) {
	for _, c := range []struct{ name, msg, why string }{
		{"size below the header", `0200 0400 0f00 0000 0000 0000 0000 0000`, "message size 15"},
		{"size 0", `0200 0400 0000 0000 0000 0000 0000 0000`, "message size 0"},
		{"4 GiB", `0200 0a00 ffff ffff 0000 0000 0000 0000`, "message size 4294967295"},
		{"a byte more than allowed", `0200 0a00 2100 1000 0000 0000 0000 0000`, "message size 1048609"},
		{"type 2", `0200 0400 1000 0000 0200 0000 0000 0000`, "message type 2"},
		{"command with the error flag", `0200 0400 1000 0000 2000 0000 0000 0000`, "error flag"},
		{"reply that nobody asked for", `0200 0b00 1000 0000 0100 0000 0000 0000`, "nobody sent"},
		{"error reply with payload", `0200 0b00 1400 0000 2100 0000 0000 0000 0000 0000`, "error reply of 20 bytes"},
		{"cut off in the header", `0200 0400`, "inside a message"},
		{"cut off in the body", `0200 0400 2000 0000 0000 0000 0000 0000 1000 0000`, "inside a message"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t)
			r, res := rawClient(t, e)
			r.send(c.msg)
			_ = r.CloseWrite()
			err := <-res
			if !errors.Is(err, vfio.ErrProtocol) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v, want %q", err, c.why)
			}
			if b, err := r.recv(); err == nil {
				t.Errorf("an answer came: %x", b)
			}
			if _, d, _, _ := e.counts(); d != 1 {
				t.Errorf("detached %d times", d)
			}
		})
	}
}

// Commands with bad payloads: an error reply, nothing done, and the
// connection goes on.
func TestHostileCommands(t *testing.T) {
	e := newEngine(t)
	r, _ := rawClient(t, e)
	m := alloc(t, 0x2000)
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(ev) }()
	const inval, acces, exist, notsup = 22, 13, 17, 95
	for _, c := range []struct {
		name  string
		cmd   command
		body  string
		fds   []int
		errno byte
	}{
		{"info, short", cmdGetInfo, `1000 0000`, nil, inval},
		{"info, small argsz", cmdGetInfo, `0f00 0000 0000 0000 0000 0000 0000 0000`, nil, inval},
		{"info with a descriptor", cmdGetInfo, `1000 0000 0000 0000 0000 0000 0000 0000`, []int{ev}, inval},
		{"region info, empty", cmdGetRegionInfo, ``, nil, inval},
		{"region info, small argsz", cmdGetRegionInfo, `1f00 0000` + strings.Repeat("00", 28), nil, inval},
		{"region info, index 2^32-1", cmdGetRegionInfo, `2000 0000 0000 0000 ffff ffff` + strings.Repeat("00", 20), nil, inval},
		{"io fds, flags", cmdGetIOFDs, `1000 0000 0100 0000 0000 0000 0000 0000`, nil, inval},
		{"irq info, index", cmdGetIRQInfo, `1000 0000 0000 0000 0500 0000 0000 0000`, nil, inval},

		{"map, short", cmdDMAMap, `2000 0000`, nil, inval},
		{"map, long", cmdDMAMap, strings.Repeat("00", 40), nil, inval},
		{"map, argsz", cmdDMAMap, `1f00 0000 0300 0000` + strings.Repeat("00", 16) + `0010 0000 0000 0000`, nil, inval},
		{"map, unknown flag", cmdDMAMap, `2000 0000 0700 0000` + strings.Repeat("00", 16) + `0010 0000 0000 0000`, nil, inval},
		{"map, no right", cmdDMAMap, `2000 0000 0000 0000` + strings.Repeat("00", 16) + `0010 0000 0000 0000`, nil, inval},
		{"map, empty", cmdDMAMap, `2000 0000 0300 0000` + strings.Repeat("00", 24), nil, inval},
		{"map, address wraps", cmdDMAMap, `2000 0000 0300 0000 0000 0000 0000 0000 00f0 ffff ffff ffff 0020 0000 0000 0000`, nil, inval},
		{"map, file offset wraps", cmdDMAMap, `2000 0000 0300 0000 00f0 ffff ffff ffff 0000 0100 0000 0000 0020 0000 0000 0000`, []int{m.FD()}, inval},
		{"map, file too small", cmdDMAMap, `2000 0000 0300 0000 0010 0000 0000 0000 0000 0100 0000 0000 0020 0000 0000 0000`, []int{m.FD()}, inval},
		{"map, two descriptors", cmdDMAMap, `2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`, []int{m.FD(), m.FD()}, inval},
		{"map, good", cmdDMAMap, `2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0020 0000 0000 0000`, []int{m.FD()}, 0},
		{"map, the same again", cmdDMAMap, `2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0020 0000 0000 0000`, []int{m.FD()}, exist},
		{"map, around it", cmdDMAMap, `2000 0000 0300 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 1000 0000 0000`, nil, exist},
		{"unmap, short", cmdDMAUnmap, `1800 0000`, nil, inval},
		{"unmap, empty", cmdDMAUnmap, `1800 0000 0000 0000 0000 0100 0000 0000 0000 0000 0000 0000`, nil, inval},
		{"unmap, a part of it", cmdDMAUnmap, `1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`, nil, inval},
		{"unmap, dirty bitmap", cmdDMAUnmap, `1800 0000 0100 0000 0000 0100 0000 0000 0020 0000 0000 0000`, nil, notsup},
		{"unmap, good", cmdDMAUnmap, `1800 0000 0000 0000 0000 0100 0000 0000 0020 0000 0000 0000`, nil, 0},

		{"irqs, short", cmdSetIRQs, `1400 0000`, nil, inval},
		{"irqs, no action", cmdSetIRQs, `1400 0000 0100 0000 0200 0000 0000 0000 0100 0000`, nil, inval},
		{"irqs, two actions", cmdSetIRQs, `1400 0000 3100 0000 0200 0000 0000 0000 0100 0000`, nil, inval},
		{"irqs, two data", cmdSetIRQs, `1400 0000 2300 0000 0200 0000 0000 0000 0100 0000`, nil, inval},
		{"irqs, unknown flag", cmdSetIRQs, `1400 0000 6100 0000 0200 0000 0000 0000 0100 0000`, nil, inval},
		{"irqs, index", cmdSetIRQs, `1400 0000 2100 0000 0900 0000 0000 0000 0100 0000`, nil, inval},
		{"irqs, start wraps", cmdSetIRQs, `1400 0000 2100 0000 0200 0000 ffff ffff 0200 0000`, nil, inval},
		{"irqs, count", cmdSetIRQs, `1400 0000 2100 0000 0200 0000 0000 0000 ffff ffff`, nil, inval},
		{"irqs, bools missing", cmdSetIRQs, `1600 0000 2200 0000 0200 0000 0000 0000 0300 0000 01 01`, nil, inval},
		{"irqs, descriptors missing", cmdSetIRQs, `1400 0000 2400 0000 0200 0000 0000 0000 0200 0000`, []int{ev}, inval},
		{"irqs, descriptor not wanted", cmdSetIRQs, `1400 0000 2100 0000 0200 0000 0000 0000 0100 0000`, []int{ev}, inval},
		{"irqs, memfd as eventfd", cmdSetIRQs, `1400 0000 2400 0000 0200 0000 0000 0000 0100 0000`, []int{m.FD()}, inval},
		{"irqs, mask of MSI-X", cmdSetIRQs, `1400 0000 0900 0000 0200 0000 0000 0000 0100 0000`, nil, inval},

		{"read, short", cmdRegionRead, `0000 0000 0000 0000 0000 0000`, nil, inval},
		{"read, trailing bytes", cmdRegionRead, `0000 0000 0000 0000 0000 0000 0400 0000 00`, nil, inval},
		{"read, region", cmdRegionRead, `0000 0000 0000 0000 0900 0000 0400 0000`, nil, inval},
		{"read, absent region", cmdRegionRead, `0000 0000 0000 0000 0100 0000 0400 0000`, nil, inval},
		{"read, over the end", cmdRegionRead, `fd3f 0000 0000 0000 0000 0000 0400 0000`, nil, inval},
		{"read, offset wraps", cmdRegionRead, `feff ffff ffff ffff 0000 0000 0400 0000`, nil, inval},
		{"read, 4 GiB", cmdRegionRead, `0000 0000 0000 0000 0000 0000 ffff ffff`, nil, inval},
		{"read, nothing", cmdRegionRead, `0000 0000 0000 0000 0000 0000 0000 0000`, nil, 0},
		{"write, count and data differ", cmdRegionWrite, `0800 0000 0000 0000 0000 0000 0400 0000 01`, nil, inval},
		{"write, read-only region", cmdRegionWrite, `0000 0000 0000 0000 0200 0000 0100 0000 01`, nil, acces},
		{"multi, count and data differ", cmdWriteMulti, `0200 0000 0000 0000` + strings.Repeat("00", 24), nil, inval},
		{"multi, nine bytes", cmdWriteMulti, `0100 0000 0000 0000 0800 0000 0000 0000 0000 0000 0900 0000 0000 0000 0000 0000`, nil, inval},
		{"reset with a payload", cmdReset, `00`, nil, inval},
	} {
		body := unhex(c.body)
		_, _, _, before := e.counts()
		r.sendBytes(append(header{id: 7, cmd: c.cmd, size: uint32(16 + len(body))}.append(nil), body...), c.fds...)
		b, err := r.recv()
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if b[0] != 7 || b[2] != byte(c.cmd) || b[8]&1 == 0 || b[12] != c.errno || (b[8]&0x20 != 0) != (c.errno != 0) || c.errno != 0 && len(b) != 16 {
			t.Errorf("%s: %x, want errno %d", c.name, b, c.errno)
		}
		if _, _, _, after := e.counts(); after != before {
			t.Errorf("%s: the function was written to", c.name)
		}
	}
	if _, _, resets, _ := e.counts(); resets != 0 {
		t.Error("the function was reset")
	}
}

func TestHostileVersion(t *testing.T) {
	for _, c := range []struct {
		name, data string
		answered   bool // with an error reply
	}{
		{"no NUL", "0000 0100" + fmt.Sprintf("%x", "{}"), true},
		{"two strings", "0000 0100" + fmt.Sprintf("%x", "{}\x00{}\x00"), true},
		{"not JSON", "0000 0100" + fmt.Sprintf("%x", "{{{\x00"), true},
		{"not UTF-8", "0000 0100" + fmt.Sprintf("%x", "\"\xff\"\x00"), true},
		{"an array", "0000 0100" + fmt.Sprintf("%x", "[1]\x00"), true},
		{"negative", "0000 0100" + fmt.Sprintf("%x", `{"capabilities":{"max_msg_fds":-1}}`+"\x00"), true},
		{"fraction", "0000 0100" + fmt.Sprintf("%x", `{"capabilities":{"max_data_xfer_size":1.5}}`+"\x00"), true},
		{"no transfer", "0000 0100" + fmt.Sprintf("%x", `{"capabilities":{"max_data_xfer_size":0}}`+"\x00"), true},
		{"no page", "0000 0100" + fmt.Sprintf("%x", `{"capabilities":{"pgsizes":0}}`+"\x00"), true},
		{"deep", "0000 0100" + fmt.Sprintf("%x", strings.Repeat("[", 16000)+"\x00"), true},
		{"long", "0000 0100" + fmt.Sprintf("%x", strings.Repeat(" ", 20000)+"{}\x00"), true},
		{"major 1", "0100 0000", true},
		{"two bytes", "0000", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cc, sc, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			e := newEngine(t)
			res := serve(t, sc, e)
			r := newRaw(t, cc)
			body := unhex(c.data)
			r.sendBytes(append(header{id: 1, cmd: cmdVersion, size: uint32(16 + len(body))}.append(nil), body...))
			b, err := r.recv()
			if c.answered && (err != nil || len(b) != 16 || b[8] != 0x21) {
				t.Errorf("%x, %v, want an error reply", b, err)
			}
			if _, err := r.recv(); !errors.Is(err, io.EOF) {
				t.Errorf("the connection goes on: %v", err)
			}
			err = <-res
			if a, _, _, _ := e.counts(); err == nil || a != 0 {
				t.Errorf("%v, attached %d", err, a)
			}
		})
	}
	t.Run("another command first", func(t *testing.T) {
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		e := newEngine(t)
		res := serve(t, sc, e)
		r := newRaw(t, cc)
		r.send(`0200 0400 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0000 0000`)
		if err := <-res; !errors.Is(err, vfio.ErrProtocol) {
			t.Error(err)
		}
	})
	t.Run("silence", func(t *testing.T) {
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		e := newEngine(t)
		res := serve(t, sc, e, WithTimeout(50*time.Millisecond))
		_ = newRaw(t, cc)
		if err := <-res; err == nil {
			t.Error("a client that says nothing keeps the function")
		}
	})
	// Capabilities beyond what is sensible are cut to what is, and unknown ones
	// are ignored; the answer has no more than was proposed.
	t.Run("huge values", func(t *testing.T) {
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		serve(t, sc, newEngine(t))
		r := newRaw(t, cc)
		j := `{"capabilities":{"max_msg_fds":18446744073709551615,"max_dma_maps":18446744073709551615,"x":{}},"y":1}` + "\x00"
		r.sendBytes(append(unhex(fmt.Sprintf("0100 0100 %02x00 0000 0000 0000 0000 0000 0000 0700", 20+len(j))), j...))
		j = `{"capabilities":{"max_msg_fds":16,"max_dma_maps":65535}}` + "\x00"
		r.expect("answer", fmt.Sprintf("0100 0100 %02x00 0000 0100 0000 0000 0000 0000 0100 %x", 20+len(j), j))
	})
}

// A message that takes a byte at a time to come, and to leave, is a message.
func TestShortReadsAndWrites(t *testing.T) {
	e := newEngine(t)
	r, _ := rawClient(t, e)
	m := alloc(t, 0x1000)
	msg := unhex(`0200 0200 3000 0000 0000 0000 0000 0000
		2000 0000 0300 0000 0000 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
	r.sendBytes(msg[:1], m.FD())
	for _, b := range msg[1:] {
		r.sendBytes([]byte{b})
	}
	r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
	e.do(func(h Host) {
		h.SetBusMaster(true)
		h.Enter()
		defer h.Exit()
		if len(h.Slice(0x10000, 0x1000, true)) != 0x1000 {
			t.Error("the descriptor of a slow message was lost")
		}
	})
	// Several messages in one write, with a descriptor that belongs to the last.
	two := append(unhex(`0300 0d00 1000 0000 0000 0000 0000 0000`), unhex(`0400 0300 2800 0000 0000 0000 0000 0000
		1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)...)
	r.sendBytes(two)
	r.expect("first", `0300 0d00 1000 0000 0100 0000 0000 0000`)
	r.expect("second", `0400 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)

	// Sockets too small for a message: writes are short at both ends.
	cc, sc, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*net.UnixConn{cc, sc} {
		if err := errors.Join(c.SetWriteBuffer(4096), c.SetReadBuffer(4096)); err != nil {
			t.Fatal(err)
		}
	}
	big := newEngine(t)
	serve(t, sc, big)
	d, err := Client(context.Background(), cc, "test:small")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	mem := wrap(t, 1<<20)
	for i := range mem.Bytes() {
		mem.Bytes()[i] = byte(i * 7)
	}
	if err := d.MapDMA(0x100000, mem, 0, 1<<20, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	big.do(func(h Host) {
		h.SetBusMaster(true)
		h.Enter()
		defer h.Exit()
		got := make([]byte, 1<<20)
		if err := h.Read(0x100000, got); err != nil || !bytes.Equal(got, mem.Bytes()) {
			t.Errorf("1 MiB read through a small socket: %v", err)
		}
		clear(got)
		if err := h.Write(0x100000, got); err != nil || !bytes.Equal(got, mem.Bytes()) {
			t.Errorf("1 MiB written through a small socket: %v", err)
		}
	})
}

// More descriptors than were agreed: the control data is cut off, which ends
// the connection. None of them stays open.
func TestTooManyDescriptors(t *testing.T) {
	e := newEngine(t)
	r, res := rawClient(t, e)
	m := alloc(t, 0x1000)
	before := countFDs(t)
	fds := make([]int, 200)
	for i := range fds {
		fds[i] = m.FD()
	}
	r.send(`0200 0400 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0000 0000`, fds...)
	if err := <-res; !errors.Is(err, vfio.ErrProtocol) || !strings.Contains(err.Error(), "descriptors") {
		t.Errorf("%v", err)
	}
	// The connection's own descriptor is gone too.
	if after := countFDs(t); after != before-1 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	// In parts: each is within the limit, the message's sum is not.
	r, res = rawClient(t, newEngine(t))
	msg := unhex(`0200 0200 3000 0000 0000 0000 0000 0000` + strings.Repeat("00", 32))
	for i := 0; i < 20; i++ {
		if _, _, err := r.WriteMsgUnix(msg[i:i+1], unix.UnixRights(fds[:4]...), nil); err != nil {
			break // it has hung up
		}
	}
	if err := <-res; !errors.Is(err, vfio.ErrProtocol) {
		t.Errorf("in parts: %v", err)
	}
}

// Files that are not to be trusted are reached by message instead.
func TestH02_UntrustedFiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags int
		seals int
		ro    bool
		prot  uint32
		mapped,
		fails bool
	}{
		{name: "sealed", flags: unix.MFD_ALLOW_SEALING, seals: unix.F_SEAL_SHRINK, prot: 3, mapped: true},
		{name: "not sealed", flags: unix.MFD_ALLOW_SEALING, prot: 3},
		{name: "not sealable", prot: 3},
		{name: "sealed against growing only", flags: unix.MFD_ALLOW_SEALING, seals: unix.F_SEAL_GROW, prot: 3},
		{name: "sealed against writing, for reading", flags: unix.MFD_ALLOW_SEALING, seals: unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE, prot: 1, mapped: true},
		{name: "sealed against writing, for writing", flags: unix.MFD_ALLOW_SEALING, seals: unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE, prot: 2},
		{name: "opened for reading, for reading", flags: unix.MFD_ALLOW_SEALING, seals: unix.F_SEAL_SHRINK, ro: true, prot: 1, mapped: true},
		{name: "opened for reading, for writing", flags: unix.MFD_ALLOW_SEALING, seals: unix.F_SEAL_SHRINK, ro: true, prot: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("test", c.flags|unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Ftruncate(fd, 0x1000); err != nil {
				t.Fatal(err)
			}
			if c.seals != 0 {
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, c.seals); err != nil {
					t.Fatal(err)
				}
			}
			if c.ro {
				ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = unix.Close(ro) }()
				fd = ro
			}
			e := newEngine(t)
			r, _ := rawClient(t, e)
			r.send(fmt.Sprintf(`0200 0200 3000 0000 0000 0000 0000 0000
				2000 0000 %02x00 0000 0000 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`, c.prot), fd)
			r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
			e.do(func(h Host) {
				h.SetBusMaster(true)
				h.Enter()
				defer h.Exit()
				if got := h.Slice(0x10000, 0x1000, c.prot&2 != 0) != nil; got != c.mapped {
					t.Errorf("mapped: %v, want %v", got, c.mapped)
				}
			})
			// Shrinking the file under the server harms nobody.
			if !c.mapped && !c.ro {
				_ = unix.Ftruncate(fd, 0)
				res := make(chan error, 1)
				e.work <- func(h Host) {
					h.Enter()
					defer h.Exit()
					if c.prot&1 != 0 {
						res <- h.Read(0x10000, make([]byte, 8))
					} else {
						res <- h.Write(0x10000, make([]byte, 8))
					}
				}
				if b, err := r.recv(); err != nil || b[2] != 0x0b && b[2] != 0x0c {
					t.Fatalf("%x, %v, want DMA by message", b, err)
				}
				r.send(fmt.Sprintf(`0000 %02x00 1000 0000 2100 0000 0e00 0000`, 11+(c.prot&1^1)))
				if err := <-res; reasonOf(err) != DMARejected {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

// A memfd of huge pages with a page missing faults in the copy: the worker
// survives, by Guard. The same is forced here without huge pages: a mapping
// whose file is shorter than it says.
func TestFaultInSharedMemory(t *testing.T) {
	e := newEngine(t)
	d, _ := open(t, e)
	m := alloc(t, 0x2000)
	if err := d.MapDMA(0x100000, m, 0, 0x2000, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	e.do(func(host Host) {
		h := host.(*host_)
		h.SetBusMaster(true)
		h.Enter()
		defer h.Exit()
		// Put a mapping without its page in the place of the second.
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
		if err := h.Read(0x100000, make([]byte, 0x1000)); err != nil {
			t.Errorf("the page that is there: %v", err)
		}
		if err := h.Read(0x100ff0, make([]byte, 0x20)); reasonOf(err) != DMAFault {
			t.Errorf("read of the missing page: %v", err)
		}
		if err := h.Write(0x101000, make([]byte, 8)); reasonOf(err) != DMAFault {
			t.Errorf("write to the missing page: %v", err)
		}
		s := h.Slice(0x101000, 8, true)
		if err := vfio.Guard(func() { s[0] = 1 }); !errors.Is(err, vfio.ErrGone) {
			t.Errorf("slice of the missing page: %v", err)
		}
	})
}

// A client that maps many files, or many pages, costs the server a bounded
// number of mappings of its own.
func TestManyMaps(t *testing.T) {
	e := newEngine(t)
	d, _ := open(t, e)
	before := countMaps(t)
	m := alloc(t, 4096*1024)
	for i := range uint64(1024) {
		if err := d.MapDMA(0x100000+2*4096*i, m, 4096*i, 4096, vfio.ProtReadWrite); err != nil {
			t.Fatal(err)
		}
	}
	if after := countMaps(t); after > before+8 {
		t.Errorf("1,024 mappings of one file made %d of the process", after-before)
	}
	for range maxFiles + 10 {
		m := alloc(t, 4096)
		if err := d.MapDMA(0x4000000+0x10000*uint64(m.FD()), m, 0, 4096, vfio.ProtReadWrite); err != nil {
			t.Fatal(err)
		}
	}
	e.do(func(host Host) {
		h := host.(*host_)
		h.Enter()
		defer h.Exit()
		if len(h.files) != maxFiles {
			t.Errorf("%d files are mapped, the limit is %d", len(h.files), maxFiles)
		}
	})
}
