package driver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"rnic/driver"
)

var sample = driver.Endpoint{
	GID: driver.GID{10: 0xff, 11: 0xff, 12: 10, 13: 0, 14: 0, 15: 1}, MAC: driver.MAC{2, 0, 0, 0, 0, 1}, QPN: 0x11, PSN: 1000, MTU: driver.MTU4096, Private: []byte{0, 0xff},
}

// The two forms, written by hand.
func TestEndpointForms(t *testing.T) {
	text, err := sample.MarshalText()
	if want := "gid=10.0.0.1,mac=02:00:00:00:00:01,qpn=0x11,psn=0x3e8,mtu=4096,private=00ff"; err != nil || string(text) != want {
		t.Errorf("text %q, %v; want %q", text, err, want)
	}
	bin, err := sample.MarshalBinary()
	want := append([]byte("RNE1"), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0x11, 0, 0, 3, 0xe8, 5, 0, 2, 0, 0xff)
	if err != nil || !bytes.Equal(bin, want) {
		t.Errorf("binary % x, %v\nwant   % x", bin, err, want)
	}
	for _, s := range []string{
		"gid=10.0.0.1,mac=02:00:00:00:00:01,qpn=17,psn=1000,mtu=4096,private=00ff",
		" mtu=4096,psn=0x3e8,private=00ff,qpn=0x11,mac=02-00-00-00-00-01,gid=::ffff:10.0.0.1\n",
	} {
		var e driver.Endpoint
		if err := e.UnmarshalText([]byte(s)); err != nil || e.String() != sample.String() {
			t.Errorf("%q: %v, %v", s, e, err)
		}
	}
	for _, s := range []string{
		"", "gid=10.0.0.1", "gid=10.0.0.1,qpn=17,psn=1000", "gid=x,qpn=17,psn=1,mtu=256", "gid=fe80::1%eth0,qpn=17,psn=1,mtu=256",
		"gid=10.0.0.1,qpn=1,psn=1,mtu=256", "gid=10.0.0.1,qpn=0xffffff,psn=1,mtu=256", "gid=10.0.0.1,qpn=17,psn=0x1000000,mtu=256",
		"gid=10.0.0.1,qpn=17,psn=1,mtu=1500", "gid=10.0.0.1,qpn=17,psn=1,mtu=256,mtu=256", "gid=10.0.0.1,qpn=17,psn=1,mtu=256,mac=1",
		"gid=10.0.0.1,qpn=17,psn=1,mtu=256,private=0", "gid=10.0.0.1,qpn=17,psn=1,mtu=256,who=me", "gid=::,qpn=17,psn=1,mtu=256",
		"gid=10.0.0.1,qpn=17,psn=1,mtu=256,private=" + strings.Repeat("00", driver.MaxPrivate+1),
	} {
		var e driver.Endpoint
		if err := e.UnmarshalText([]byte(s)); !errors.Is(err, driver.ErrInvalid) || e.QPN != 0 {
			t.Errorf("%.60q: %v, %v; want a refusal that changes nothing", s, e, err)
		}
	}
	for _, b := range [][]byte{nil, bin[:len(bin)-1], append(bytes.Clone(bin), 0), append([]byte("RNE2"), bin[4:]...)} {
		var e driver.Endpoint
		if err := e.UnmarshalBinary(b); !errors.Is(err, driver.ErrInvalid) || e.QPN != 0 {
			t.Errorf("% x: %v, %v", b, e, err)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	text, _ := sample.MarshalText()
	bin, _ := sample.MarshalBinary()
	f.Add(text)
	f.Add(bin)
	f.Add([]byte("gid=fe80::1,qpn=2,psn=0,mtu=256"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, e2 driver.Endpoint
		if e.UnmarshalText(b) == nil {
			s, err := e.MarshalText()
			if err != nil || e2.UnmarshalText(s) != nil || e2.String() != e.String() {
				t.Errorf("text %q: %v, back %v, %v", b, e, e2, err)
			}
		}
		if e.UnmarshalBinary(b) == nil {
			s, err := e.MarshalBinary()
			if err != nil || !bytes.Equal(s, b) {
				t.Errorf("binary % x: back % x, %v", b, s, err)
			}
		}
	})
}

// Both ways of bringing two sides together: an unbuffered pipe and TCP, with
// private data both ways, and sends as soon as either returns.
func TestConnectVia(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, kind := range []string{"pipe", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			a := newSide(t, "soft:ca?wire=via", 16, smallQP)
			b := newSide(t, "soft:cb?wire=via", 16, smallQP)
			ca, cb := net.Pipe()
			if kind == "tcp" {
				if ca, err = net.Dial("tcp", l.Addr().String()); err != nil {
					t.Fatal(err)
				}
				if cb, err = l.Accept(); err != nil {
					t.Fatal(err)
				}
			}
			defer ca.Close()
			defer cb.Close()
			if err := b.qp.PostRecv(&driver.RecvWR{WRID: 4}); err != nil {
				t.Fatal(err)
			}
			type result struct {
				e   driver.Endpoint
				err error
			}
			done := make(chan result)
			go func() {
				e, err := b.qp.ConnectVia(testCtx(t), cb, bytes.Repeat([]byte{7}, driver.MaxPrivate))
				if err == nil {
					_, err = cb.Write([]byte("next"))
				}
				done <- result{e, err}
			}()
			e, err := a.qp.ConnectVia(testCtx(t), ca, []byte("hello"))
			if err != nil {
				t.Fatal(err)
			}
			if err := a.qp.PostSend(&driver.SendWR{WRID: 5, Opcode: driver.Send, Flags: driver.Signaled}); err != nil {
				t.Fatal(err)
			}
			var next [4]byte // what follows the exchange is the caller's
			if _, err := io.ReadFull(ca, next[:]); err != nil || string(next[:]) != "next" {
				t.Errorf("after the exchange: %q, %v", next, err)
			}
			r := <-done
			if r.err != nil {
				t.Fatal(r.err)
			}
			good(t, a.cq, 5)
			good(t, b.cq, 4)
			if e.QPN != b.qp.Number() || len(e.Private) != driver.MaxPrivate || r.e.QPN != a.qp.Number() || string(r.e.Private) != "hello" {
				t.Errorf("endpoints %v and %v", e, r.e)
			}
			q, err := a.qp.Query(testCtx(t))
			if err != nil || q.State != driver.StateRTS || q.DestQPN != b.qp.Number() || q.PathMTU != driver.MTU4096 {
				t.Errorf("%+v, %v", q, err)
			}
		})
	}
}

// Peers that lie, stop, or say nothing.
func TestConnectViaHostile(t *testing.T) {
	good, _ := sample.MarshalBinary()
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	for name, c := range map[string]struct {
		say  []byte
		end  bool
		want error
	}{
		"huge":      {[]byte{0xff, 0xff, 0xff, 0xff}, false, driver.ErrInvalid},
		"garbage":   {frame(make([]byte, 100)), false, driver.ErrInvalid},
		"truncated": {frame(good)[:20], true, io.ErrUnexpectedEOF},
		"nothing":   {nil, true, io.EOF},
		"silent":    {frame(good)[:5], false, driver.ErrTimeout},
		"not ready": {frame(good), false, driver.ErrTimeout},
		"failed":    {append(frame(good), 'F'), false, driver.ErrInvalid},
		"left":      {frame(good), true, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSide(t, "soft:hostile?wire=hostile", 16, smallQP)
			ours, theirs := net.Pipe()
			defer ours.Close()
			go func() {
				took := make(chan struct{})
				go func() {
					_, _ = io.CopyN(io.Discard, theirs, 4+37) // our endpoint, without private data
					close(took)
					_, _ = io.Copy(io.Discard, theirs)
				}()
				_, _ = theirs.Write(c.say)
				if c.end {
					<-took
					theirs.Close()
				}
			}()
			defer theirs.Close()
			ctx := testCtx(t)
			if c.want == driver.ErrTimeout {
				ctx = short(t)
			}
			_, err := s.qp.ConnectVia(ctx, ours, nil)
			wantErr(t, name, err, c.want)
		})
	}
	s := newSide(t, "soft:hostile?wire=hostile", 16, smallQP)
	ours, _ := net.Pipe()
	_, err := s.qp.ConnectVia(testCtx(t), ours, make([]byte, driver.MaxPrivate+1))
	wantErr(t, "too much private data", err, driver.ErrInvalid)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = s.qp.ConnectVia(ctx, ours, nil)
	wantErr(t, "a context that has ended", err, driver.ErrTimeout)
}

func TestConnectRoutes(t *testing.T) {
	s := newSide(t, "soft:routes?wire=routes&ip=10.9.0.1/24", 16, smallQP)
	ctx := testCtx(t)
	e := sample
	e.MAC = driver.MAC{}
	wantErr(t, "a peer without MAC", s.qp.Connect(ctx, e), driver.ErrNoRoute)
	e.GID = driver.GID{0: 0x20, 1: 1, 15: 1}
	e.MAC = sample.MAC
	wantErr(t, "an IPv6 peer of an IPv4 port", s.qp.Connect(ctx, e), driver.ErrNoRoute)
	// Itself: its own address needs no MAC.
	own := s.qp.Endpoint()
	own.MAC = driver.MAC{}
	if err := s.qp.Connect(ctx, own); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "a QP that is connected", s.qp.Connect(ctx, own), driver.ErrState)
}
