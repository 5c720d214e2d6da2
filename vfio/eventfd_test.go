package vfio

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestH03_EventFDThatBlocks: who signals an eventfd lets reads of it wait. Each signal is taken
// all the same, and Close ends the wait.
func TestH03_EventFDThatBlocks(t *testing.T) {
	e, err := NewEventFD("test")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := unix.Dup(e.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(theirs) }()
	took, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if err := e.Wait(); err != nil {
				ended <- err
				return
			}
			took <- struct{}{}
		}
	}()
	if err := unix.SetNonblock(theirs, false); err != nil {
		t.Fatal(err)
	}
	const limit = 10 * time.Second
	for range 100 {
		if _, err := unix.Write(theirs, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-took:
		case <-time.After(limit):
			t.Fatal("a signal is not taken")
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	for _, c := range []struct {
		what string
		c    chan error
		want error
	}{{"Close", closed, nil}, {"Wait", ended, ErrClosed}} {
		select {
		case err := <-c.c:
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.what, err, c.want)
			}
		case <-time.After(limit):
			_, _ = unix.Write(theirs, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // lets it go
			t.Fatalf("%s waits for who signals", c.what)
		}
	}
}
