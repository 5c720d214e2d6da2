package mmio

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
)

// Each access touches its own bytes and no neighbour.
func TestWidth(t *testing.T) {
	var a [4]uint32
	for i := range a {
		a[i] = 0xa5a5a5a5
	}
	Store32(&a[1], 0x11223344)
	if want := [4]uint32{0xa5a5a5a5, 0x11223344, 0xa5a5a5a5, 0xa5a5a5a5}; a != want {
		t.Fatalf("Store32: %#x, want %#x", a, want)
	}
	if v := Load32(&a[1]); v != 0x11223344 {
		t.Fatalf("Load32 = %#x", v)
	}
	b := [3]uint64{^uint64(0), 0, ^uint64(0)}
	Store64(&b[1], 0x1122334455667788)
	if want := [3]uint64{^uint64(0), 0x1122334455667788, ^uint64(0)}; b != want {
		t.Fatalf("Store64: %#x, want %#x", b, want)
	}
	if v := Load64(&b[1]); v != 0x1122334455667788 {
		t.Fatalf("Load64 = %#x", v)
	}
	ToDevice()
	FromDevice()
	WriteCombineFlush()
}

// The store-buffer litmus test (SB, Intel SDM vol. 3A, 9.2.3.4): two
// processors each store their own word and load the other's. Without a full
// barrier both may load the old value; with StoreLoad between, never.
func TestStoreLoadForbidsBothOld(t *testing.T) {
	storeBuffering(t, func(own, other *uint32, v uint32) uint32 {
		Store32(own, v)
		StoreLoad()
		return Load32(other)
	})
}

// Doorbell has that barrier in it.
func TestP02_DoorbellForbidsBothOld(t *testing.T) {
	storeBuffering(t, func(own, other *uint32, v uint32) uint32 { return Doorbell(own, v, other) })
}

// storeBuffering runs the litmus test with a step that stores to the own word and
// then loads the other's.
func storeBuffering(t *testing.T, step func(own, other *uint32, v uint32) uint32) {
	if runtime.GOMAXPROCS(0) < 2 {
		if os.Getenv("CI") != "" {
			t.Fatal("GOMAXPROCS is 1: this test needs two processors")
		}
		t.Skip("GOMAXPROCS is 1: this test needs two processors")
	}
	const rounds = 10_000
	type word struct {
		v uint32
		_ [31]uint32 // a cache line of its own, and its neighbour's
	}
	var w, got [2]word
	var arrived atomic.Int64
	meet := func(n int) {
		arrived.Add(1)
		for spin := 0; arrived.Load() < int64(2*n); spin++ {
			if spin%100 == 99 {
				runtime.Gosched()
			}
		}
	}
	bad := -1
	run := func(me int) {
		for i := range rounds {
			meet(3*i + 1)
			got[me].v = step(&w[me].v, &w[1-me].v, uint32(i+1))
			meet(3*i + 2)
			if me == 0 && bad < 0 && got[0].v == uint32(i) && got[1].v == uint32(i) {
				bad = i
			}
			meet(3*i + 3)
		}
	}
	done := make(chan bool)
	go func() { run(1); done <- true }()
	run(0)
	<-done
	if bad >= 0 {
		t.Fatalf("round %d: both loads came before the other's store", bad)
	}
}

// A release store hands on what was written before it: the reader that sees
// the number sees the message of that number.
func TestReleaseHandsOn(t *testing.T) {
	const rounds = 20_000
	var message uint64
	var number, taken uint32
	done := make(chan bool)
	go func() {
		defer close(done)
		for i := range uint32(rounds) {
			for spin := 0; atomic.LoadUint32(&number) != i+1; spin++ {
				if spin%100 == 99 {
					runtime.Gosched()
				}
			}
			if message != uint64(i)*3 {
				t.Errorf("number %d came before its message", i)
				return
			}
			Release32(&taken, i+1)
		}
	}()
	for i := range uint32(rounds) {
		message = uint64(i) * 3
		Release32(&number, i+1)
		for spin := 0; atomic.LoadUint32(&taken) != i+1; spin++ {
			if spin%100 == 99 {
				runtime.Gosched()
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}
	<-done
}

// The doorbell's store and the flag's load, in one call.
func TestDoorbell(t *testing.T) {
	w := [3]uint32{7, 7, 7}
	f := [3]uint32{1, 0xdeadbeef, 2}
	if v := Doorbell(&w[1], 0x11223344, &f[1]); v != 0xdeadbeef || w != [3]uint32{7, 0x11223344, 7} {
		t.Fatalf("flag %#x, words %#x", v, w)
	}
}

// What the data path calls in place of two: the word next to the one that is meant stays.
func TestOwnerAndConsumed(t *testing.T) {
	w := [3]uint32{7, 0xdeadbeef, 7}
	if v := Owner32(&w[1]); v != 0xdeadbeef {
		t.Fatalf("Owner32 = %#x", v)
	}
	if Consumed32(&w[1], 0x11223344); w != [3]uint32{7, 0x11223344, 7} {
		t.Fatalf("words %#x", w)
	}
}
