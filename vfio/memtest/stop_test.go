package memtest

import (
	"runtime"
	"testing"
	"time"

	"rnic/hw/mmio"
)

// Who loads the word stands there, with what it stored before visible, and finds the value given.
func TestStop(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	}
	s := NewStop(t)
	if s.Wait(time.Millisecond) {
		t.Fatal("somebody stands at a word that nobody loads")
	}
	var before uint32
	for i := uint32(1); i < 20; i++ {
		got := make(chan uint32, 1)
		go func() {
			mmio.Store32(&before, i)
			got <- mmio.Load32(s.Word())
		}()
		if !s.Wait(5 * time.Second) {
			t.Fatal("the load does not stop")
		}
		if v := mmio.Load32(&before); v != i {
			t.Errorf("the store before the load is %d, not %d", v, i)
		}
		select {
		case v := <-got:
			t.Fatalf("the load gave %d before it was let go", v)
		default:
		}
		s.Go(i * 3)
		if v := <-got; v != i*3 {
			t.Errorf("loaded %d, not %d", v, i*3)
		}
		if v := mmio.Load32(s.Word()); v != i*3 {
			t.Errorf("loaded again %d, not %d", v, i*3)
		}
		s.Shut()
	}
}
