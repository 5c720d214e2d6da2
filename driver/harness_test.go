package driver_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rnic/hw"
	"rnic/hw/softcard"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

// A harness is a soft card behind the vfio-user protocol whose pace, registers
// and end are the test's.
type harness struct {
	*softcard.Card
	addr   string
	server *net.UnixConn
	served chan struct{} // closed when the server has ended
	paused atomic.Bool   // nobody steps the card
	hung   chan struct{}

	mu    sync.Mutex
	patch map[uint64]uint32 // register offset → what a load gives
	host  vfiouser.Host     // of the client that is attached
}

// Attach is of vfiouser.Function.
func (h *harness) Attach(host vfiouser.Host) {
	h.mu.Lock()
	h.host = host
	h.mu.Unlock()
	h.Card.Attach(host)
}

var harnesses sync.Map // by name

func init() {
	vfio.Register("test", func(ctx context.Context, rest string) (vfio.Device, error) {
		h, ok := harnesses.Load(rest)
		if !ok {
			return nil, &vfio.Error{Addr: "test:" + rest, Op: "open", Err: vfio.ErrNotFound}
		}
		return h.(*harness).open(ctx)
	})
}

func newHarness(t testing.TB, cfg softcard.Config) *harness {
	t.Helper()
	cfg.Name = t.Name()
	if len(cfg.Name) > 32 {
		cfg.Name = cfg.Name[:32]
	}
	cfg.Engine = hw.EngineGo
	c, err := softcard.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{Card: c, addr: "test:" + t.Name(), patch: map[uint64]uint32{}, hung: make(chan struct{})}
	close(h.hung)
	harnesses.Store(t.Name(), h)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		start := time.Now()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if h.paused.Load() || !c.Step(int64(time.Since(start)), 1000) {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		harnesses.Delete(t.Name())
		if h.server != nil {
			h.server.Close()
		}
	})
	return h
}

func (h *harness) open(ctx context.Context) (vfio.Device, error) {
	client, server, err := vfiouser.Pair()
	if err != nil {
		return nil, err
	}
	if h.served != nil {
		<-h.served // one client at a time
	}
	h.server, h.served = server, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		_ = vfiouser.Serve(context.Background(), server, h)
	}(h.served)
	return vfiouser.Client(ctx, client, h.addr)
}

// kill ends the server as a SIGKILL of its process does.
func (h *harness) kill() { h.server.Close() }

// hang keeps register accesses unanswered until the returned function is
// called, as a stopped process does.
func (h *harness) hang() (resume func()) {
	c := make(chan struct{})
	h.mu.Lock()
	h.hung = c
	h.mu.Unlock()
	return sync.OnceFunc(func() { close(c) })
}

func (h *harness) await() {
	h.mu.Lock()
	c := h.hung
	h.mu.Unlock()
	<-c
}

// ReadRegion is of vfiouser.Function: the card's, with what is patched.
func (h *harness) ReadRegion(i int, off uint64, p []byte) error {
	h.await()
	if err := h.Card.ReadRegion(i, off, p); err != nil || i != hw.BARCtrl {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.patch[off]; ok && len(p) == 4 {
		p[0], p[1], p[2], p[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
	return nil
}

// WriteRegion is of vfiouser.Function.
func (h *harness) WriteRegion(i int, off uint64, p []byte) error {
	h.await()
	return h.Card.WriteRegion(i, off, p)
}

func (h *harness) set(off uint64, v uint32) {
	h.mu.Lock()
	h.patch[off] = v
	h.mu.Unlock()
}

var errTest = errors.New("test")

var _ vfiouser.Function = (*harness)(nil)

func short(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
