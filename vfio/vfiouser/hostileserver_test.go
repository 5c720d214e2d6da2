package vfiouser

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"rnic/vfio"
)

// Server that lies: each answer ends the client's call in a typed error.
func TestHostileServer(t *testing.T) {
	version := func(r *raw, answer string) {
		if _, err := r.recv(); err != nil {
			t.Error(err)
		}
		r.send(answer)
	}
	for _, c := range []struct {
		name string
		play func(r *raw)
		want error
	}{
		{"hangs up", func(r *raw) { _ = r.Close() }, vfio.ErrGone},
		{"answers another command", func(r *raw) { version(r, `0000 0200 1000 0000 0100 0000 0000 0000`) }, vfio.ErrProtocol},
		{"refuses", func(r *raw) { version(r, `0000 0100 1000 0000 2100 0000 1000 0000`) }, vfio.ErrBusy},
		{"later minor", func(r *raw) { version(r, `0000 0100 1400 0000 0100 0000 0000 0000 0000 0200`) }, vfio.ErrNotSupported},
		{"other major", func(r *raw) { version(r, `0000 0100 1400 0000 0100 0000 0000 0000 0100 0000`) }, vfio.ErrNotSupported},
		{"twin socket", func(r *raw) {
			j := `{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}` + "\x00"
			version(r, fmt.Sprintf(`0000 0100 %02x00 0000 0100 0000 0000 0000 0000 0000 %x`, 20+len(j), j))
		}, vfio.ErrProtocol},
		{"huge pages only", func(r *raw) {
			j := `{"capabilities":{"pgsizes":1073741824}}` + "\x00"
			version(r, fmt.Sprintf(`0000 0100 %02x00 0000 0100 0000 0000 0000 0000 0000 %x`, 20+len(j), j))
		}, vfio.ErrNotSupported},
		{"oversized", func(r *raw) { version(r, `0000 0100 ffff ffff 0100 0000 0000 0000`) }, vfio.ErrProtocol},
		{"garbage", func(r *raw) { version(r, `0000 0100 1600 0000 0100 0000 0000 0000 0000 0000 7b00`) }, vfio.ErrProtocol},
		{"silent", func(r *raw) {}, vfio.ErrTimeout},
		{"billions of regions", func(r *raw) {
			version(r, `0000 0100 1400 0000 0100 0000 0000 0000 0000 0000`)
			version(r, `0000 0400 2000 0000 0100 0000 0000 0000  1000 0000 0300 0000 ffff ffff 0300 0000`)
		}, vfio.ErrProtocol},
		{"short device info", func(r *raw) {
			version(r, `0000 0100 1400 0000 0100 0000 0000 0000 0000 0000`)
			version(r, `0000 0400 1400 0000 0100 0000 0000 0000  1000 0000`)
		}, vfio.ErrProtocol},
		{"answer to a question not asked", func(r *raw) {
			version(r, `0000 0100 1400 0000 0100 0000 0000 0000 0000 0000`)
			version(r, `3000 0400 2000 0000 0100 0000 0000 0000  1000 0000 0300 0000 0900 0000 0300 0000`)
		}, vfio.ErrProtocol},
		{"silent after VERSION", func(r *raw) { version(r, `0000 0100 1400 0000 0100 0000 0000 0000 0000 0000`) }, vfio.ErrTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, dev, fail := rawServer(t, WithTimeout(200*time.Millisecond))
			c.play(r)
			select {
			case <-dev:
				t.Fatal("the device opened")
			case err := <-fail:
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			}
		})
	}
}

// Answers about regions that lie.
func TestHostileRegions(t *testing.T) {
	m := alloc(t, 0x1000)
	for _, c := range []struct {
		name, reply string
		fds         int
		want        error // of Region; nil: it succeeds without areas
	}{
		{"other index", `2000 0000 0300 0000 0100 0000 0000 0000 0010 0000 0000 0000 0000 0000 0000 0000`, 0, vfio.ErrProtocol},
		{"short", `2000 0000 0300 0000`, 0, vfio.ErrProtocol},
		{"argsz over the reply", `4000 0000 0300 0000 0000 0000 0000 0000 0010 0000 0000 0000 0000 0000 0000 0000`, 0, vfio.ErrProtocol},
		{"capability outside", `2000 0000 0f00 0000 0000 0000 ff00 0000 0010 0000 0000 0000 0000 0000 0000 0000`, 1, vfio.ErrProtocol},
		{"capability cycle", `2800 0000 0f00 0000 0000 0000 2000 0000 0010 0000 0000 0000 0000 0000 0000 0000 0900 0100 2000 0000`, 1, vfio.ErrProtocol},
		{"area outside", `4000 0000 0f00 0000 0000 0000 2000 0000 0010 0000 0000 0000 0000 0000 0000 0000
			0100 0100 0000 0000 0100 0000 0000 0000 0010 0000 0000 0000 0010 0000 0000 0000`, 1, vfio.ErrProtocol},
		{"a billion areas", `4000 0000 0f00 0000 0000 0000 2000 0000 0010 0000 0000 0000 0000 0000 0000 0000
			0100 0100 0000 0000 0000 0040 0000 0000 0010 0000 0000 0000 0010 0000 0000 0000`, 1, vfio.ErrProtocol},
		{"two descriptors", `2000 0000 0700 0000 0000 0000 0000 0000 0010 0000 0000 0000 0000 0000 0000 0000`, 2, vfio.ErrProtocol},
		{"mappable without descriptor", `2000 0000 0700 0000 0000 0000 0000 0000 0010 0000 0000 0000 0000 0000 0000 0000`, 0, nil},
		{"file too small", `2000 0000 0700 0000 0000 0000 0000 0000 0020 0000 0000 0000 0000 0000 0000 0000`, 1, nil},
		{"file offset wraps", `2000 0000 0700 0000 0000 0000 0000 0000 0010 0000 0000 0000 00f0 ffff ffff ffff`, 1, nil},
		{"half a page", `2000 0000 0700 0000 0000 0000 0000 0000 0008 0000 0000 0000 0000 0000 0000 0000`, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, dev, fail := rawServer(t)
			r.handshake()
			var d *Device
			select {
			case d = <-dev:
			case err := <-fail:
				t.Fatal(err)
			}
			defer func() { _ = d.Close() }()
			got := make(chan error, 1)
			go func() {
				x, err := d.Region(0)
				if err == nil && len(x.Areas)+int(x.Flags&vfio.RegionMmap) != 0 {
					err = fmt.Errorf("areas %v flags %#x", x.Areas, x.Flags)
				}
				got <- err
			}()
			if _, err := r.recv(); err != nil {
				t.Fatal(err)
			}
			body := unhex(c.reply)
			fds := []int{m.FD(), m.FD()}[:c.fds]
			r.sendBytes(append(header{id: 1, cmd: cmdGetRegionInfo, flags: flagReply, size: uint32(16 + len(body))}.append(nil), body...), fds...)
			if err := <-got; !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// A short region read is an error, never fewer bytes.
func TestShortTransfer(t *testing.T) {
	r, dev, _ := rawServer(t)
	r.handshake()
	d := <-dev
	defer func() { _ = d.Close() }()
	got := make(chan error, 1)
	go func() { got <- d.ReadRegion(0, 0, make([]byte, 4)) }()
	if _, err := r.recv(); err != nil {
		t.Fatal(err)
	}
	r.send(`0100 0500 3000 0000 0100 0000 0000 0000
		2000 0000 0300 0000 0000 0000 0000 0000 0010 0000 0000 0000 0000 0000 0000 0000`)
	if _, err := r.recv(); err != nil {
		t.Fatal(err)
	}
	r.send(`0200 0900 2200 0000 0100 0000 0000 0000  0000 0000 0000 0000 0000 0000 0200 0000  ffff`)
	if err := <-got; !errors.Is(err, vfio.ErrProtocol) {
		t.Errorf("%v", err)
	}
}
