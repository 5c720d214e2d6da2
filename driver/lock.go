package driver

import (
	"runtime"
	"sync/atomic"
	"time"

	"rnic/hw/mmio"
)

// lock is a queue's lock. It is held for tens of nanoseconds and never across
// a wait, so a holder is awaited by looking again, then by yielding. (An
// uncontended sync.Mutex costs half as much again.)
type lock struct{ v uint32 }

// Lock takes the lock.
func (l *lock) Lock() {
	if !atomic.CompareAndSwapUint32(&l.v, 0, 1) {
		l.slow()
	}
}

func (l *lock) slow() {
	for n := 0; ; n++ {
		if atomic.LoadUint32(&l.v) == 0 && atomic.CompareAndSwapUint32(&l.v, 0, 1) {
			return
		}
		switch {
		case n < 16:
		case n < 256: // the holder may have been preempted
			runtime.Gosched()
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// Unlock gives it back.
func (l *lock) Unlock() { mmio.Release32(&l.v, 0) }
