package vfiouser

import (
	"context"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// quiet is a function without state, for fuzzing.
type quiet struct{ attached, detached int }

func (q *quiet) Regions() []RegionSpec {
	rw := vfio.RegionRead | vfio.RegionWrite
	return []RegionSpec{{Index: 0, Size: 0x2000, Flags: rw}, {Index: vfio.RegionConfig, Size: 256, Flags: rw}}
}

func (q *quiet) IRQs() []IRQSpec {
	return []IRQSpec{{Index: vfio.IRQINTx, Count: 1, Flags: vfio.IRQEventFD | vfio.IRQMaskable}, {Index: vfio.IRQMSIX, Count: 8, Flags: vfio.IRQEventFD}}
}

func (q *quiet) ReadRegion(i int, off uint64, p []byte) error {
	if i != 0 && i != vfio.RegionConfig || off+uint64(len(p)) > 0x2000 {
		panic("access outside a region")
	}
	return nil
}
func (q *quiet) WriteRegion(i int, off uint64, p []byte) error { return q.ReadRegion(i, off, p) }
func (q *quiet) Reset()                                        {}
func (q *quiet) Attach(Host)                                   { q.attached++ }
func (q *quiet) Detach()                                       { q.detached++ }

// fuzzHello is a VERSION that a server accepts, with all that it offers.
func fuzzHello() []byte {
	body := append(words(nil, 0), `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"write_multiple":true}}`+"\x00"...)
	return append(header{id: 1, cmd: cmdVersion, size: uint32(headerSize + len(body))}.append(nil), body...)
}

// Any bytes at all, with or without a good VERSION before them and a
// descriptor beside them, end in an orderly session.
func FuzzServer(f *testing.F) {
	hello := string(fuzzHello())
	for _, s := range []string{
		`0200 0400 2000 0000 0000 0000 0000 0000  1000 0000 0000 0000 0000 0000 0000 0000`,
		`0300 0500 3000 0000 0000 0000 0000 0000 2000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000`,
		`0800 0800 2400 0000 0000 0000 0000 0000  1400 0000 2400 0000 0200 0000 0500 0000 0100 0000`,
		`0a00 0800 2700 0000 0000 0000 0000 0000  1700 0000 2200 0000 0200 0000 0400 0000 0300 0000 00 01 00`,
		`0e00 0a00 2400 0000 0000 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000  dead beef`,
		`0f00 0900 2000 0000 0000 0000 0000 0000  0800 0000 0000 0000 0000 0000 0400 0000`,
		`1300 0f00 3000 0000 0000 0000 0000 0000  0100 0000 0000 0000 1000 0000 0000 0000 0000 0000 0400 0000 1112 1314 0000 0000`,
		`0200 0200 3000 0000 0000 0000 0000 0000 2000 0000 0300 0000 0010 0000 0000 0000 0000 0100 0000 0000 0010 0000 0000 0000`,
		`0700 0300 2800 0000 0000 0000 0000 0000  1800 0000 0000 0000 0000 0100 0000 0000 0000 0200 0000 0000`,
		`1500 0d00 1000 0000 0000 0000 0000 0000`,
	} {
		f.Add(true, true, unhex(s))
		f.Add(true, false, append(unhex(s), unhex(s)...))
		f.Add(false, false, unhex(s))
	}
	mem, err := vfio.AllocMemory(0x4000, vfio.MemoryOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, greet, fd bool, data []byte) {
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		q := &quiet{}
		res := make(chan error, 1)
		go func() { res <- Serve(context.Background(), sc, q, WithTimeout(5*time.Second)) }()
		go func() { _, _ = io.Copy(io.Discard, cc) }()
		if greet {
			_, _ = cc.Write([]byte(hello))
		}
		var oob []byte
		if fd {
			oob = unix.UnixRights(mem.FD())
		}
		if len(data) > 0 {
			if n, _, err := cc.WriteMsgUnix(data, oob, nil); err == nil {
				_, _ = cc.Write(data[n:])
			}
		}
		_ = cc.CloseWrite()
		<-res
		_ = cc.Close()
		if q.attached != q.detached || q.attached > 1 || greet && q.attached == 0 {
			t.Errorf("attached %d, detached %d", q.attached, q.detached)
		}
	})
}

// Whatever a server says, a client opens or fails, and closes.
func FuzzClient(f *testing.F) {
	version := unhex(`0000 0100 1400 0000 0100 0000 0000 0000  0000 0000`)
	info := unhex(`0000 0400 2000 0000 0100 0000 0000 0000  1000 0000 0300 0000 0900 0000 0300 0000`)
	region := unhex(`0100 0500 3000 0000 0100 0000 0000 0000 2000 0000 0300 0000 0000 0000 0000 0000 0010 0000 0000 0000 0000 0000 0000 0000`)
	read := unhex(`0200 0900 2400 0000 0100 0000 0000 0000  0000 0000 0000 0000 0000 0000 0400 0000  0102 0304`)
	dma := unhex(`0800 0c00 2100 0000 0000 0000 0000 0000  0800 0100 0000 0000 0100 0000 0000 0000  ff`)
	all := func(p ...[]byte) (b []byte) {
		for _, x := range p {
			b = append(b, x...)
		}
		return b
	}
	f.Add(all(version))
	f.Add(all(version, info))
	f.Add(all(version, info, region, read))
	f.Add(all(version, info, dma, region, dma, read))
	f.Fuzz(func(t *testing.T, data []byte) {
		cc, sc, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = sc.Write(data)
			_ = sc.CloseWrite()
		}()
		go func() { _, _ = io.Copy(io.Discard, sc) }()
		d, err := Client(context.Background(), cc, "test:fuzz", WithTimeout(time.Second)) // else one input takes as long as the fuzzer believes in
		if err == nil {
			if r, err := d.Region(0); err == nil {
				_ = d.ReadRegion(0, 0, make([]byte, min(r.Size, 4)))
			}
			if m, err := d.MapRegion(0); err == nil {
				_ = m.Release()
			}
			_, _ = d.RegionIOFDs(0)
			_ = d.Close()
			if d.Err() == nil {
				t.Error("closed without a cause")
			}
		}
		_ = sc.Close()
	})
}

// A proposal is refused, or its answer is one that the client's side takes and
// that has no capability beyond those proposed.
func FuzzVersion(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x00" + clientVersion))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x00" + `{"capabilities":{"max_msg_fds":8,"twin_socket":{"supported":true}}}` + "\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, l, err := accept(b)
		if err != nil {
			return
		}
		if l.transfer <= 0 || l.transfer > maxTransfer || l.maps < 0 || l.maps > maxMaps || l.fds < 0 || l.fds > maxSCMFDs {
			t.Errorf("limits %+v", l)
		}
		if _, err := agree(answer); err != nil {
			t.Errorf("answer %q: %v", answer, err)
		}
		_, minor, proposed, _ := decodeVersion(b)
		_, m, given, _ := decodeVersion(answer)
		if m > minor || given.MaxMsgFDs != nil && proposed.MaxMsgFDs == nil || given.MaxDMAMaps != nil && proposed.MaxDMAMaps == nil ||
			given.MaxDataXfer != nil && proposed.MaxDataXfer == nil || given.PageSizes != nil && proposed.PageSizes == nil ||
			given.WriteMultiple != nil && proposed.WriteMultiple == nil || given.TwinSocket != nil || given.Holder != nil {
			t.Errorf("%q answered by %q", b, answer)
		}
	})
}
