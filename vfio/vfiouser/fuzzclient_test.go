package vfiouser

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// goodAnswer is the body of the answer that an honest server gives to a request.
func goodAnswer(h header, b []byte) []byte {
	switch h.cmd {
	case cmdVersion:
		return append(words(nil, 0), `{"capabilities":{"max_msg_fds":8,"write_multiple":true}}`+"\x00"...)
	case cmdGetInfo:
		return words(nil, deviceInfoSize, deviceReset|devicePCI, 9, 5)
	case cmdGetRegionInfo:
		return vfio.AppendRegionInfo(nil, vfio.RegionInfo{Index: int(le.Uint32(b[8:])), Size: 0x4000, Flags: vfio.RegionRead | vfio.RegionWrite,
			Areas: []vfio.Area{{Offset: 0x1000, Size: 0x1000}, {Offset: 0x3000, Size: 0x1000}}}, 0)
	case cmdGetIOFDs:
		out := words(nil, ioFDsSize+ioFDSize, 0, le.Uint32(b[8:]), 1)
		return dwords(words(dwords(out, 0x1000, 4), 0, 0, 0, 0), 0)
	case cmdGetIRQInfo:
		return words(nil, irqInfoSize, uint32(vfio.IRQEventFD), le.Uint32(b[8:]), 4)
	case cmdRegionRead:
		return append(append([]byte{}, b...), make([]byte, le.Uint32(b[12:]))...)
	case cmdRegionWrite:
		return append([]byte{}, b[:regionRWSize]...)
	case cmdDMAUnmap:
		return append([]byte{}, b...)
	case cmdWriteMulti:
		return dwords(nil, le.Uint64(b))
	}
	return nil
}

// FuzzAnswers is a server that answers each request of a client as the input says: 6 bytes a
// turn, for how, with which descriptors, and what is changed; DMA requests come in between. Each
// of the client's calls ends, and nothing is left behind.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	all := func(fd byte) (b []byte) {
		for range 24 {
			b = append(b, 0, fd, 0, 0, 0, 0)
		}
		return b
	}
	for fd := range byte(12) {
		f.Add(all(fd))
	}
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 255, 0, 2, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0})
	s := newSpares(f)
	mem := alloc(f, 0x4000)
	f.Fuzz(func(t *testing.T, in []byte) {
		before := resting(t)
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		var server sync.WaitGroup
		server.Go(func() { lie(t, sc, s, in) })
		began := time.Now()
		d, err := Client(context.Background(), cc, "test:fuzz", WithTimeout(100*time.Millisecond))
		if err == nil {
			var fds []int
			for i := range 2 {
				if r, err := d.Region(i); err == nil && r.Size >= 4 {
					_ = d.ReadRegion(i, 0, make([]byte, 4))
				}
				if m, err := d.MapRegion(i); err == nil {
					for _, a := range m.Areas() {
						if b := m.Bytes(a.Offset, a.Size); b != nil {
							_ = b[len(b)-1]
						}
					}
					_ = m.Release()
				}
				if io, err := d.RegionIOFDs(i); err == nil {
					for _, x := range io {
						fds = append(fds, x.FD)
					}
				}
				_, _ = d.IRQ(i)
			}
			_ = d.SetIRQs(2, 0, []int{s.eventfd, -1, s.eventfd})
			_ = d.MapDMA(0x10000, mem, 0, 0x4000, vfio.ProtReadWrite)
			_ = d.WriteRegion(0, 0, []byte{1, 2, 3, 4})
			_, _ = d.WriteMulti([]RegionWrite{{Region: 0, Offset: 8, Data: []byte{1}}, {Region: 0, Offset: 16, Data: []byte{1, 2}}})
			_ = d.UnmapDMA(0x10000, 0x4000)
			_ = d.MaskIRQs(2, 0, 1, true)
			_ = d.Reset(context.Background())
			_ = d.Close()
			if d.Err() == nil {
				t.Error("closed without a cause")
			}
			seen := map[int]bool{}
			for _, fd := range fds {
				if !seen[fd] {
					seen[fd] = true
					_ = unix.Close(fd)
				}
			}
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the calls took %v", took)
		}
		_ = sc.Close()
		server.Wait()
		before.again(t)
	})
}

// lie answers a client's requests until the client's end.
func lie(t testing.TB, c *net.UnixConn, s *spares, in []byte) {
	r := &raw{t: t, UnixConn: c}
	defer func() { closeFDs(r.fds) }()
	dma := uint16(100)
	for {
		b, err := r.recv()
		if err != nil {
			return
		}
		h, err := parseHeader(b)
		if err != nil {
			t.Errorf("the client sent %x: %v", b, err)
			return
		}
		if h.reply() || h.flags&flagNoReply != 0 {
			continue
		}
		var x [6]byte
		if len(in) >= 6 {
			copy(x[:], in)
			in = in[6:]
		}
		how, fds := x[0], s.pick(x[1])
		body := goodAnswer(h, b[headerSize:])
		if h.cmd == cmdVersion && how%8 != 0 {
			how = 1 // else nothing of the rest is reached
		}
		a := header{id: h.id, cmd: h.cmd, flags: flagReply}
		switch how % 8 {
		case 1: // one byte is another
			if len(body) > 0 {
				body[int(x[2])%len(body)] ^= x[3]
			}
		case 2: // shorter
			body = body[:len(body)*int(x[2])/256]
		case 3: // longer
			body = append(body, make([]byte, int(x[2])<<(x[3]%8))...)
		case 4: // refused
			a.flags, a.errno, body = a.flags|flagError, uint32(x[2]), nil
		case 5: // as an answer to something else
			a.id, a.cmd = a.id+uint16(x[2]), a.cmd+command(x[3])
		case 6: // DMA comes first
			dma++
			q := header{id: dma, cmd: cmdDMARead + command(x[2]%2), flags: uint32(x[3] & 0x1f), size: headerSize + dmaRWSize}
			d := dwords(nil, 0x10000+uint64(x[4])<<8, uint64(x[5])<<4)
			if q.cmd == cmdDMAWrite {
				d = append(d, make([]byte, int(x[5])<<4)...)
				q.size = uint32(headerSize + len(d))
			}
			_, _ = c.Write(append(q.append(nil), d...))
		case 7: // the end, in the midst of it
			a.size = uint32(headerSize + len(body))
			_, _ = c.Write(append(a.append(nil), body...)[:(headerSize+len(body))*int(x[2])/256])
			_ = c.CloseWrite()
			continue
		}
		a.size = uint32(headerSize + len(body))
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		if n, _, err := c.WriteMsgUnix(append(a.append(nil), body...), oob, nil); err != nil || n < headerSize+len(body) {
			return
		}
	}
}
