package status_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rnic/driver"
	"rnic/driver/status"
	"rnic/hw"
	"rnic/hw/softcard"
	_ "rnic/hw/softcard/soft"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// holder opens a card with a status socket in a directory of the test's, and a
// QP on it that is connected to itself's wire peer.
type holder struct {
	d      *driver.Device
	mr     *driver.MR
	cq     *driver.CQ
	qp     *driver.QP
	client *status.Client
}

func newHolder(t testing.TB, addr string) *holder {
	t.Helper()
	ctx := testCtx(t)
	h := &holder{}
	var err error
	if h.d, err = driver.Open(ctx, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.d.Close() })
	pd, err := h.d.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if h.mr, err = pd.AllocMR(ctx, 8192, driver.LocalWrite|driver.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if h.cq, err = h.d.CreateCQ(ctx, 64); err != nil {
		t.Fatal(err)
	}
	if h.qp, err = pd.CreateQP(ctx, driver.QPInit{Type: driver.RC, SendCQ: h.cq, RecvCQ: h.cq, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 1}); err != nil {
		t.Fatal(err)
	}
	if h.client, err = status.Find(ctx, addr); err != nil {
		t.Fatal(err)
	}
	return h
}

func pair(t testing.TB) (a, b *holder) {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	w := strings.Map(func(r rune) rune {
		if r == '/' {
			return '_'
		}
		return r
	}, t.Name())
	a, b = newHolder(t, "soft:sa?wire="+w), newHolder(t, "soft:sb?wire="+w)
	if err := a.qp.Connect(testCtx(t), b.qp.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Connect(testCtx(t), a.qp.Endpoint()); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func (h *holder) write(t testing.TB, to *holder) {
	t.Helper()
	if err := h.qp.PostSend(&driver.SendWR{WRID: 77, Opcode: driver.Write, Flags: driver.Signaled, Remote: to.mr.Remote(), SGEs: []driver.SGE{h.mr.SGE(0, 100)}}); err != nil {
		t.Fatal(err)
	}
	var wc [1]driver.WC
	if _, err := h.cq.Wait(testCtx(t), wc[:]); err != nil || wc[0].Err() != nil {
		t.Fatal(err, wc[0].Err())
	}
}

// The client shows what the device shows.
func TestClientIsInspector(t *testing.T) {
	a, b := pair(t)
	ctx := testCtx(t)
	a.write(t, b)
	if h := a.client.Holder(); h.Addr != a.d.Addr() || h.PID != os.Getpid() || !cmp.Equal(h.Attr, a.d.Attr()) {
		t.Errorf("holder %+v", h)
	}
	want, err := a.d.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Time goes on, and the snapshots themselves are commands and interrupts.
	got.Time = want.Time
	moving := map[string]bool{"COMMANDS": true, "INTERRUPTS": true, "SLEEPS": true, "KICKS": true, "DMA_READS": true, "DMA_READ_BYTES": true, "DMA_WRITES": true, "DMA_WRITE_BYTES": true}
	for _, s := range []*driver.Snapshot{got, want} {
		for i := range s.Counters {
			if moving[s.Counters[i].Name] {
				s.Counters[i].Value = 0
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("snapshot (-device +client):\n%s", d)
	}
	regs, err := a.client.Registers(ctx)
	if err != nil || len(regs) == 0 || regs[0].Name != "IDENT.MAGIC" || regs[0].Value != 0x43494e52 {
		t.Errorf("registers: %v, %v", regs[:min(len(regs), 1)], err)
	}
	scrub, err := a.client.Scrub(ctx)
	if err != nil || scrub.Keys != 1 || len(scrub.Mismatches) != 0 {
		t.Errorf("scrub: %+v, %v", scrub, err)
	}
	if _, err := b.client.Events(ctx); err != nil {
		t.Error(err)
	}
	all, err := status.List(ctx)
	if err != nil || len(all) != 2 {
		t.Errorf("%d holders, %v", len(all), err)
	}
}

func TestStreams(t *testing.T) {
	a, b := pair(t)
	ctx := testCtx(t)
	tr, err := a.client.Trace(ctx, driver.TraceOptions{QPN: a.qp.Number(), Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := a.client.Capture(ctx, driver.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := cp.Next(brief); !errors.Is(err, driver.ErrTimeout) {
		t.Errorf("no frame yet: %v", err)
	}
	a.write(t, b) // and the stream goes on
	f, err := cp.Next(ctx)
	if err != nil || len(f.Data) != 14+20+8+12+16+100+4 {
		t.Errorf("frame of %d bytes, %v", len(f.Data), err)
	}
	r, err := tr.Next(ctx)
	if err != nil || r.WRID != 77 || !r.HasWRID || r.QPN != a.qp.Number() {
		t.Errorf("record %+v, %v", r, err)
	}
	for range 2 {
		if _, err := tr.Next(ctx); err != io.EOF {
			t.Errorf("after the count: %v", err)
		}
	}
	if _, err := a.client.Trace(ctx, driver.TraceOptions{Count: -1}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("count -1: %v", err)
	}
	a.d.Close()
	for {
		if _, err = cp.Next(ctx); err != nil {
			break
		}
	}
	if !errors.Is(err, driver.ErrDeviceGone) && !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a holder that is gone: %v", err)
	}
	if err := errors.Join(tr.Close(), cp.Close()); err != nil {
		t.Error(err)
	}
	if _, err := a.client.Snapshot(ctx); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("a socket that is gone: %v", err)
	}
	if _, err := status.Find(ctx, a.d.Addr()); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("nobody holds it: %v", err)
	}
}

// Only the owner may connect; what a killed holder left is taken away; a path
// that is in use, or too long, is refused.
func TestSocketFile(t *testing.T) {
	a, _ := pair(t)
	st, err := os.Stat(a.d.StatusPath())
	if err != nil || st.Mode().Perm() != 0o600 || st.Mode().Type() != os.ModeSocket {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	open := func(path string) (*driver.Device, error) {
		d, err := driver.Open(testCtx(t), "soft:sf", driver.WithStatusSocket(path))
		if err == nil {
			t.Cleanup(func() { d.Close() })
		}
		return d, err
	}
	if _, err := open(a.d.StatusPath()); !errors.Is(err, driver.ErrInUse) {
		t.Errorf("a path in use: %v", err)
	}
	if _, err := open("/tmp/" + strings.Repeat("x", 108)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a path of 113 bytes: %v", err)
	}
	dir := t.TempDir()
	stale := filepath.Join(dir, "sub", "s.sock")
	if err := os.Mkdir(filepath.Dir(stale), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	d, err := open(stale)
	if err != nil {
		t.Fatalf("over a socket that nobody serves: %v", err)
	}
	if _, err := status.Dial(testCtx(t), stale); err != nil {
		t.Error(err)
	}
	d.Close()
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays after Close: %v", err)
	}
	none, err := open("")
	if err != nil || none.StatusPath() != "" {
		t.Errorf("no socket wanted: %v", err)
	}
}

// Clients that are hostile cost a refusal or their connection, and the holder
// goes on.
func TestHostileClients(t *testing.T) {
	a, b := pair(t)
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", a.d.StatusPath())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for name, say := range map[string]string{
		"no JSON":      "hello\n",
		"another type": `{"op":7}` + "\n",
		"unknown":      `{"op":"` + strings.Repeat("x", 1000) + `"}` + "\n",
		"long":         `{"op":"` + strings.Repeat("x", 5000) + `"}` + "\n",
		"bad count":    `{"op":"trace","count":-5}` + "\n",
		"bad QPN":      `{"op":"capture","qpn":4294967295}` + "\n",
	} {
		c := dial()
		if _, err := c.Write([]byte(say)); err != nil {
			t.Fatal(err)
		}
		var p driver.StatusReply
		line, err := bufio.NewReader(c).ReadBytes('\n')
		if err != nil || json.Unmarshal(line, &p) != nil || p.Error == nil || p.Error.Code != "invalid" || len(line) > 1000 {
			t.Errorf("%s: %.200s, %v", name, line, err)
		}
	}
	// One that asks for a stream and leaves, one that never reads, and many.
	c := dial()
	fmt.Fprintln(c, `{"op":"trace"}`)
	c.Close()
	c = dial()
	fmt.Fprintln(c, `{"op":"capture"}`)
	a.write(t, b)
	var busy bool
	for range 40 {
		c := dial()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		line, err := bufio.NewReader(c).ReadBytes('\n')
		if err == nil {
			busy = busy || bytes.Contains(line, []byte("busy"))
		}
		if busy {
			break
		}
	}
	if !busy {
		t.Error("no bound on the number of clients")
	}
	a.write(t, b)
	if err := a.d.Close(); err != nil { // ends them all
		t.Error(err)
	}
}

// A server that lies to the client.
func TestHostileServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, say := range map[string]string{
		"nothing":      "",
		"no JSON":      "hello\n",
		"half":         `{"holder":{"Addr":"x"`,
		"no holder":    "{}\n",
		"another type": `{"holder":7}` + "\n",
		"its own code": `{"error":{"code":"zzz","message":"no"}}` + "\n",
	} {
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadBytes('\n')
			_, _ = c.Write([]byte(say))
			c.Close()
		}()
		if c, err := status.Dial(testCtx(t), path); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, _ = io.Copy(io.Discard, c) // says nothing
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := status.Dial(ctx, path); !errors.Is(err, driver.ErrTimeout) {
		t.Errorf("a silent holder: %v", err)
	}
}

// A holder that dies with the request unread resets the connection.
func TestHolderDies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 1)) // the request is there, and the rest of it stays unread
		c.Close()
	}()
	if _, err := status.Dial(testCtx(t), path); !errors.Is(err, driver.ErrDeviceGone) || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A small: card has few objects to tell of. It lives as long as it is open.
func init() {
	vfio.Register("small", func(ctx context.Context, name string) (vfio.Device, error) {
		lim := softcard.Limits{QPs: 4, CQs: 4, EQs: 2, CacheSets: 1, CacheWays: 2, Vectors: 3, CommandLogEntries: 4}
		card, err := softcard.New(softcard.Config{Name: name, Engine: hw.EngineGo, Limits: lim})
		if err != nil {
			return nil, err
		}
		wire, err := softcard.NewWire(0)
		if err == nil {
			err = wire.Join(card)
		}
		if err != nil {
			return nil, err
		}
		client, server, err := vfiouser.Pair()
		if err != nil {
			return nil, err
		}
		worker := softcard.NewRunner()
		worker.Add(card)
		go func() {
			_ = vfiouser.Serve(context.Background(), server, card)
			worker.Close()
		}()
		return vfiouser.Client(ctx, client, "small:"+name)
	})
}

// FuzzRequests sends bytes to a holder: it answers in whole lines of JSON or
// ends the connection, and serves the next client.
func FuzzRequests(f *testing.F) {
	f.Add([]byte(`{"op":"holder"}` + "\n" + `{"op":"events"}` + "\n"))
	f.Add([]byte(`{"op":"scrub","qpn":1,"count":2}` + "\n\n{"))
	f.Add([]byte("\x00\xff\n"))
	f.Setenv("XDG_RUNTIME_DIR", f.TempDir())
	h := newHolder(f, "small:fuzz") // scrub asks a card for each line of its key cache
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := net.Dial("unix", h.d.StatusPath())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		go func() {
			_, _ = c.Write(b)
			_ = c.(*net.UnixConn).CloseWrite()
		}()
		r := bufio.NewReader(c)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				if len(line) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("ended with %q, %v", line, err)
				}
				break
			}
			var p driver.StatusReply
			if err := json.Unmarshal(line, &p); err != nil {
				t.Errorf("%.100q: %v", line, err)
			}
		}
		if _, err := h.client.Events(testCtx(t)); err != nil {
			t.Error(err)
		}
	})
}
