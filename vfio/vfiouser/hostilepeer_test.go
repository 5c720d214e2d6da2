package vfiouser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// smallest gives both sockets the smallest buffers that the kernel has.
func smallest(t *testing.T, cs ...*net.UnixConn) {
	t.Helper()
	for _, c := range cs {
		if err := errors.Join(c.SetWriteBuffer(1), c.SetReadBuffer(1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestH03_BothWaysAtOnce: 1 MiB of register writes and reads one way and 1 MiB of DMA by message
// the other, at once, through the smallest sockets, while memory is mapped and unmapped: no end
// waits for the other for ever, and each byte is right.
func TestH03_BothWaysAtOnce(t *testing.T) {
	before := resting(t)
	t.Run("run", func(t *testing.T) {
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		smallest(t, cc, sc)
		e := newEngine(t)
		serve(t, sc, e)
		d, err := Client(context.Background(), cc, "test:small")
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		mem, other := wrap(t, 1<<20), wrap(t, 1<<20)
		for i := range mem.Bytes() {
			mem.Bytes()[i] = byte(i * 7)
		}
		if err := d.MapDMA(0x100000, mem, 0, 1<<20, vfio.ProtRead); err != nil {
			t.Fatal(err)
		}
		e.host().SetBusMaster(true)
		done := make(chan struct{})
		e.work <- func(h Host) {
			defer close(done)
			got := make([]byte, 1<<20)
			for range 2 {
				clear(got)
				h.Enter()
				err := h.Read(0x100000, got)
				h.Exit()
				if err != nil || !bytes.Equal(got, mem.Bytes()) {
					t.Errorf("1 MiB of DMA: %v", err)
				}
				// What the client maps and unmaps meanwhile: there or not.
				h.Enter()
				err = h.Write(0x400000, got)
				h.Exit()
				if why := reasonOf(err); err != nil && why != DMAUnmapped && why != DMAAbandoned {
					t.Error(err)
				}
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			b := make([]byte, 1<<10)
			for range 1 << 10 { // 1 MiB each way
				if err := errors.Join(d.WriteRegion(0, 0x100, b), d.ReadRegion(0, 0x100, b)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for mapping := true; mapping; {
			if err := d.MapDMA(0x400000, other, 0, 1<<20, vfio.ProtReadWrite); err != nil {
				t.Fatal(err)
			}
			if err := d.UnmapDMA(0x400000, 1<<20); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
				mapping = false
			default:
			}
		}
		wg.Wait()
	})
	before.again(t)
}

// TestH03_ServerHarmsItself: whatever a server does or leaves undone while its client maps,
// unmaps, reads and waits, each call ends with an error in its time, another device of the
// process goes on, and nothing is left open.
func TestH03_ServerHarmsItself(t *testing.T) {
	const limit = 300 * time.Millisecond
	for _, c := range []struct {
		name string
		play func(r *raw) // after the client has asked for a mapping
		want error
	}{
		{"stops reading", func(r *raw) {}, vfio.ErrTimeout},
		{"closes in the midst of an answer", func(r *raw) {
			r.send(`0100 0200 1000 0000 01`)
			_ = r.CloseWrite()
		}, vfio.ErrGone},
		{"closes in the midst of a DMA request", func(r *raw) {
			r.send(`6400 0c00 2000 1000 0000 0000 0000 0000 0000 0100`)
			_ = r.Close()
		}, vfio.ErrGone},
		{"answers twice", func(r *raw) {
			r.send(`0100 0200 1000 0000 0100 0000 0000 0000`)
			r.send(`0100 0200 1000 0000 0100 0000 0000 0000`)
		}, vfio.ErrProtocol},
		{"answers with descriptors of directories", func(r *raw) {
			fd, err := unix.Open(".", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				r.t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			r.send(`0100 0200 1000 0000 0100 0000 0000 0000`, fd, fd, fd)
		}, vfio.ErrTimeout},
		{"floods with DMA requests", func(r *raw) {
			go func() {
				for {
					if _, err := r.Write(unhex(`0700 0b00 2000 0000 0000 0000 0000 0000  0000 0100 0000 0000 0010 0000 0000 0000`)); err != nil {
						return
					}
				}
			}()
		}, vfio.ErrTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := newRig(t)
			mem := alloc(t, 0x4000)
			before := resting(t)
			r, dev, fail := rawServer(t, WithTimeout(limit))
			r.handshake()
			var d *Device
			select {
			case d = <-dev:
			case err := <-fail:
				t.Fatal(err)
			}
			mapped := make(chan error, 1)
			go func() { mapped <- d.MapDMA(0x10000, mem, 0, 0x4000, vfio.ProtReadWrite) }()
			if _, err := r.recv(); err != nil {
				t.Fatal(err)
			}
			closeFDs(r.fds)
			r.fds = nil
			c.play(r)
			err := <-mapped
			for _, f := range []func() error{
				func() error { return d.ReadRegion(0, 0, make([]byte, 4)) },
				func() error { return d.UnmapDMA(0x10000, 0x4000) },
				func() error { return d.Reset(context.Background()) },
				func() error { return d.SetIRQs(2, 0, []int{-1}) },
			} {
				e := f()
				if e == nil {
					t.Error("a call succeeded without its answer")
				}
				err = errors.Join(err, e)
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if v := good.bar.Load32(0); v != engineMagic {
				t.Errorf("the other device: %#x, %v", v, good.bar.Err())
			}
			_ = d.Close()
			_ = r.Close()
			before.again(t)
		})
	}
}

// TestH03_ClientHarmsItself: the same of a client, while the function does DMA. The session
// ends or goes on; other sessions of the process do not notice, and nothing is left open.
func TestH03_ClientHarmsItself(t *testing.T) {
	mapAt := func(addr string) string {
		return `0200 0200 3000 0000 0000 0000 0000 0000  2000 0000 0300 0000 0000 0000 0000 0000 ` + addr + ` 0010 0000 0000 0000`
	}
	answer := `0000 0b00 2400 0000 0100 0000 0000 0000  0000 0100 0000 0000 0400 0000 0000 0000  01020304`
	for _, c := range []struct {
		name  string
		play  func(r *raw) // after the function has asked for 4 bytes
		why   DMAReason    // of the first DMA; 0: it succeeds
		alive bool         // the session goes on
		spare int          // descriptors of the test's own, open until its end
	}{
		{"never answers", func(r *raw) {}, DMATimeout, true, 0},
		{"answers twice", func(r *raw) { r.send(answer); r.send(answer) }, 0, false, 0},
		{"closes in the midst of its answer", func(r *raw) {
			r.sendBytes(unhex(answer)[:30])
			_ = r.Close()
		}, DMAAbandoned, false, 0},
		{"unmaps instead of answering, and answers then", func(r *raw) {
			r.send(`0300 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
			r.expect("unmap", `0300 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`)
			r.send(answer)
		}, DMAAbandoned, true, 0},
		{"answers with descriptors", func(r *raw) {
			r.sendBytes(unhex(answer), r.spare(), r.spare())
		}, 0, true, 2},
		{"answers with the length of another", func(r *raw) {
			r.send(`0000 0b00 2000 0000 0100 0000 0000 0000  0000 0100 0000 0000 0000 0000 0000 0000`)
		}, DMARejected, false, 0},
		{"sends a pipe as memory, and a directory", func(r *raw) {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				r.t.Fatal(err)
			}
			defer closeFDs(p[:])
			dir, err := unix.Open(".", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				r.t.Fatal(err)
			}
			defer func() { _ = unix.Close(dir) }()
			r.send(mapAt(`0000 0200 0000 0000`), p[0])
			r.expect("a pipe is reached by message", `0200 0200 1000 0000 0100 0000 0000 0000`)
			r.send(mapAt(`0000 0300 0000 0000`), dir)
			r.expect("a directory too", `0200 0200 1000 0000 0100 0000 0000 0000`)
			r.send(answer)
		}, 0, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := newRig(t)
			e := newEngine(t)
			before := resting(t)
			r, served := rawClient(t, e, WithDMATimeout(200*time.Millisecond))
			r.send(mapAt(`0000 0100 0000 0000`))
			r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
			e.host().SetBusMaster(true)
			res := make(chan error, 1)
			e.work <- func(h Host) {
				h.Enter()
				defer h.Exit()
				res <- h.Read(0x10000, make([]byte, 4))
			}
			if b, err := r.recv(); err != nil || b[2] != byte(cmdDMARead) {
				t.Fatalf("%x, %v", b, err)
			}
			c.play(r)
			if err := <-res; (err == nil) != (c.why == 0) || err != nil && reasonOf(err) != c.why {
				t.Errorf("%v, want %v", err, c.why)
			}
			if c.alive {
				r.send(`0400 0d00 1000 0000 0000 0000 0000 0000`)
				r.expect("the session goes on", `0400 0d00 1000 0000 0100 0000 0000 0000`)
			} else if err := <-served; c.why != DMAAbandoned && !errors.Is(err, vfio.ErrProtocol) {
				t.Errorf("the session ended with %v", err)
			} else {
				served = nil
			}
			if v := good.bar.Load32(0); v != engineMagic {
				t.Errorf("the other session: %#x, %v", v, good.bar.Err())
			}
			_ = r.Close()
			if served != nil {
				<-served
			}
			before.fds += c.spare
			before.again(t)
		})
	}
}

// TestH02_UntrustedRegions: a region's file that its server can shrink is not mapped by the
// client; one that is sealed cannot be shrunk; and no more is mapped than a client can spare.
func TestH02_UntrustedRegions(t *testing.T) {
	for _, c := range []struct {
		name   string
		seals  int
		size   int64
		mapped bool
	}{
		{"sealed", unix.F_SEAL_SHRINK, 0x4000, true},
		{"not sealed", 0, 0x4000, false},
		{"sealed against growing only", unix.F_SEAL_GROW, 0x4000, false},
		{"shorter than its area", unix.F_SEAL_SHRINK, 0x1000, false},
		{"of more than a client maps", unix.F_SEAL_SHRINK, 1 << 36, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Ftruncate(fd, c.size); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, c.seals); err != nil {
				t.Fatal(err)
			}
			maps := countMaps(t)
			r, dev, _ := rawServer(t)
			r.handshake()
			d := <-dev
			defer func() { _ = d.Close() }()
			got := make(chan *vfio.Mapping, 1)
			go func() {
				m, err := d.MapRegion(0)
				if err != nil {
					t.Error(err)
				}
				got <- m
			}()
			if _, err := r.recv(); err != nil {
				t.Fatal(err)
			}
			size := max(c.size, 0x4000)
			r.send(fmt.Sprintf(`0100 0500 3000 0000 0100 0000 0000 0000
				2000 0000 0700 0000 0000 0000 0000 0000 %016x 0000 0000 0000 0000`, swap(uint64(size))), fd)
			m := <-got
			if m == nil {
				t.FailNow()
			}
			if n := len(m.Areas()); (n == 1) != c.mapped || countMaps(t)-maps != n {
				t.Errorf("%d areas are mapped", n)
			}
			if c.mapped {
				if err := unix.Ftruncate(fd, 0); !errors.Is(err, unix.EPERM) {
					t.Errorf("the sealed file shrinks: %v", err)
				}
				_ = m.Bytes(0, 0x4000)[0x3fff]
			}
			if err := m.Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

// swap turns a number's bytes around, for hex digits of a little-endian one.
func swap(v uint64) (w uint64) {
	for range 8 {
		w, v = w<<8|v&0xff, v>>8
	}
	return w
}

// TestH03_AddressSpace: a client's files take a bounded part of the server's address space.
// What is beyond is reached by message.
func TestH03_AddressSpace(t *testing.T) {
	e := newEngine(t)
	r, _ := rawClient(t, e)
	for i, size := range []int64{maxFileBytes / 2, maxFileBytes / 2, 0x1000, 1 << 60} {
		fd, err := unix.MemfdCreate("large", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err == nil {
			err = unix.Ftruncate(fd, size)
		}
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.send(fmt.Sprintf(`0200 0200 3000 0000 0000 0000 0000 0000
			2000 0000 0300 0000 0000 0000 0000 0000 0000 %02x00 0000 0000 0010 0000 0000 0000`, i+1), fd)
		_ = unix.Close(fd)
		r.expect("map", `0200 0200 1000 0000 0100 0000 0000 0000`)
		e.do(func(h Host) {
			h.SetBusMaster(true)
			h.Enter()
			defer h.Exit()
			if got := h.Slice(uint64(i+1)<<16, 0x1000, true) != nil; got != (i < 2) {
				t.Errorf("file %d of %#x bytes: mapped %v", i, size, got)
			}
		})
	}
}

// TestH02_ShortFiles: a mapping of more than its file has is refused, whatever its offset.
func TestH02_ShortFiles(t *testing.T) {
	r, _ := rawClient(t, newEngine(t))
	m := alloc(t, 0x2000)
	for _, c := range []struct{ off, n, status string }{
		{"0000 0000 0000 0000", "0020 0000 0000 0000", "0100 0000 0000 0000"},
		{"0000 0000 0000 0000", "0030 0000 0000 0000", "2100 0000 1600 0000"},
		{"0010 0000 0000 0000", "0020 0000 0000 0000", "2100 0000 1600 0000"},
		{"0030 0000 0000 0000", "0010 0000 0000 0000", "2100 0000 1600 0000"},
		{"0010 0000 0000 0000", "00f0 ffff ffff ffff", "2100 0000 1600 0000"},
	} {
		r.send(`0200 0200 3000 0000 0000 0000 0000 0000  2000 0000 0300 0000 `+c.off+` 0000 0100 0000 0000 `+c.n, m.FD())
		r.expect(c.off+" "+c.n, `0200 0200 1000 0000 `+c.status)
		r.send(`0300 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0020 0000 0000 0000`)
		r.expect("unmap", `0300 0300 2800 0000 0100 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0020 0000 0000 0000`)
	}
}
