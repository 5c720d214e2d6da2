package vfiouser

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestQEMUMessages makes each kind of message that QEMU's trace shows, as bytes, and wants it to be answered as a success of its command.
func TestQEMUMessages(t *testing.T) {
	text, err := os.ReadFile("testdata/qemu-messages.txt")
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	r, _ := rawClient(t, e) // which is the first: version
	m := alloc(t, 0x2000)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	id := uint16(1)
	// do sends a command with a payload of little-endian words, and gives the payload of its answer.
	do := func(command uint16, fds []int, payload ...any) []byte {
		t.Helper()
		id++
		b := make([]byte, 16)
		for _, v := range payload {
			b, _ = binary.Append(b, binary.LittleEndian, v)
		}
		binary.LittleEndian.PutUint16(b, id)
		binary.LittleEndian.PutUint16(b[2:], command)
		binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
		r.sendBytes(b, fds...)
		a, err := r.recv()
		if err != nil {
			t.Fatal(err)
		}
		if h := binary.LittleEndian; h.Uint16(a) != id || h.Uint16(a[2:]) != command || h.Uint32(a[8:]) != 1 {
			t.Errorf("command %d was answered with %x", command, a)
		}
		return a[16:]
	}
	do(10, nil, uint64(4), uint32(7), uint32(2), uint16(4)) // bus mastering on
	mapped := uint64(0x100000)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		number := func(i int) (n uint32) {
			if f[i] == "more" {
				return 3
			}
			if _, err := fmt.Sscan(f[i], &n); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			return n
		}
		ok := true
		switch f[0] {
		case "version":
		case "device-info":
			ok = len(do(4, nil, uint32(16), uint32(0), uint32(0), uint32(0))) == 16
		case "region-info":
			a := do(5, nil, uint32(32), uint32(0), number(1), uint32(0), uint64(0), uint64(0))
			ok = binary.LittleEndian.Uint32(a[8:]) == number(1)
		case "irq-info":
			a := do(7, nil, uint32(16), uint32(0), number(1), uint32(0))
			ok = binary.LittleEndian.Uint32(a[8:]) == number(1) && binary.LittleEndian.Uint32(a[12:]) > 0
		case "set-irqs":
			var fds []int
			for range number(4) {
				fds = append(fds, fd)
			}
			do(8, fds, uint32(20), number(2), number(1), number(3), number(4))
		case "dma-map":
			mapped += 0x1000
			do(2, []int{m.FD()}, uint32(32), number(1), uint64(0x1000), mapped, uint64(0x1000))
		case "dma-unmap":
			do(3, nil, uint32(24), number(1), mapped, uint64(0x1000))
		case "read", "write":
			n := uint32(256)
			if f[2] != "all" {
				n = number(2)
			}
			off := uint64(0x3c) // the interrupt line, in configuration space
			if n == 256 {
				off = 0
			}
			if f[0] == "read" {
				ok = uint32(len(do(9, nil, off, number(1), n))) == 16+n
			} else {
				ok = len(do(10, nil, off, number(1), n, make([]byte, n))) == 16
			}
		case "reset":
			do(13, nil)
			do(10, nil, uint64(4), uint32(7), uint32(2), uint16(4))
		case "dma-read", "dma-write":
			// Where no file is, the server asks.
			const at = 0x900000
			if f[0] == "dma-read" {
				do(2, nil, uint32(32), uint32(3), uint64(0), uint64(at), uint64(0x1000))
			}
			res, got := make(chan error, 1), []byte{1, 2, 3, 4}
			e.work <- func(h Host) {
				h.Enter()
				defer h.Exit()
				if f[0] == "dma-read" {
					res <- h.Read(at, got)
				} else {
					res <- h.Write(at, got)
				}
			}
			q, err := r.recv()
			if err != nil {
				t.Fatal(err)
			}
			le := binary.LittleEndian
			command := map[string]uint16{"dma-read": 11, "dma-write": 12}[f[0]]
			if le.Uint16(q[2:]) != command || le.Uint32(q[8:]) != 0 || le.Uint64(q[16:]) != at || le.Uint64(q[24:]) != 4 {
				t.Errorf("%s: %x", f[0], q)
			}
			a := q[:32:32]
			if f[0] == "dma-read" {
				a = append(a, 9, 8, 7, 6)
			}
			le.PutUint32(a[4:], uint32(len(a)))
			le.PutUint32(a[8:], 1)
			r.sendBytes(a)
			if err := <-res; err != nil || f[0] == "dma-read" && string(got) != "\x09\x08\x07\x06" {
				t.Errorf("%s: %x, %v", f[0], got, err)
			}
		default:
			t.Fatalf("no kind of message: %s", line)
		}
		if !ok {
			t.Errorf("%s: another answer", strings.TrimSpace(line))
		}
	}
}
