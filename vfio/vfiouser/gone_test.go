package vfiouser

import (
	"errors"
	"io"
	"testing"
	"time"

	"rnic/vfio"
)

// An unmap that meets the end of the connection returns when nothing uses the
// memory any more: a copy that is under way is waited for, and the memory can
// be freed at once.
func TestUnmapAtTheEnd(t *testing.T) {
	r := newRig(t)
	m := alloc(t, 0x4000)
	if err := r.MapDMA(0x100000, m, 0, 0x4000, vfio.ProtReadWrite); err != nil {
		t.Fatal(err)
	}
	r.dma.mu.RLock() // as a copy does
	r.c.fail(io.EOF)
	res := make(chan error, 1)
	go func() { res <- r.UnmapDMA(0x100000, 0x4000) }()
	select {
	case err := <-res:
		r.dma.mu.RUnlock()
		t.Fatalf("it returned %v while the memory was in use", err)
	case <-time.After(20 * time.Millisecond):
	}
	r.dma.mu.RUnlock()
	if err := <-res; !errors.Is(err, vfio.ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
