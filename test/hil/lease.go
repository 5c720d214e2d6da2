package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// errLeaseLost is the cause of a run's end whose lease another runner has, or may have, taken over.
var errLeaseLost = errors.New("the card's lease was lost")

// lease says who has a card and until when. It is a file, so that it is there after a crash of who
// wrote it, and on every host that shares the folder.
type lease struct {
	Address string    `json:"address"` // of the card
	Card    string    `json:"card"`    // its name in the holder's inventory
	Holder  process   `json:"holder"`
	Taken   time.Time `json:"taken"`
	Until   time.Time `json:"until"` // renewed by the holder; when it has passed, the card is free unless the holder is known to live
	Token   string    `json:"token"` // of this taking, so that nobody renews or releases another's
}

// heldError says who has the card that this runner waited for.
type heldError struct {
	lease
	waited time.Duration
	stale  bool // it has expired, but its holder is there and may still use the card
}

func (e *heldError) Error() string {
	if e.stale {
		return fmt.Sprintf("%s: waited %v for the lease of %s, which ended at %s and was not given back; the process is there and may use the card: end it",
			e.Card, e.waited, e.Holder, e.Until.Format(time.RFC3339))
	}
	return fmt.Sprintf("%s: waited %v for the lease of %s, which has it since %s", e.Card, e.waited, e.Holder, e.Taken.Format(time.RFC3339))
}

// leases are those of one folder. Changes are made under a lock of the folder that the kernel gives
// up with its holder; what it guards is short, and what was decided is in the files.
type leases struct {
	dir  string
	ttl  time.Duration
	self process
	// alive tells whether a process of this or another host runs; known is false where that cannot be told.
	alive func(process) (running, known bool)
}

// unsafeName is what a file's name does not get from an address.
var unsafeName = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// fileName is a name for an address that is no path. The sum keeps those apart that look alike in it.
func fileName(addr string) string {
	return fmt.Sprintf("%.100s-%.4x", unsafeName.ReplaceAllString(addr, "_"), sha256.Sum256([]byte(addr)))
}

// file is the lease's file.
func (l *leases) file(addr string) string { return filepath.Join(l.dir, fileName(addr)+".lease") }

// leases are those of the inventory's cards, for a process.
func (inv *inventory) leases(self process) *leases {
	return &leases{dir: filepath.Join(inv.State, "leases"), ttl: inv.TTL, self: self, alive: alive}
}

// lockWait bounds the wait for the folder's lock.
const lockWait = 10 * time.Second

// locked runs f while no other process changes leases of the folder.
func (l *leases) locked(f func() error) error {
	if err := os.MkdirAll(l.dir, 0o777); err != nil {
		return fmt.Errorf("folder of leases: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(l.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return fmt.Errorf("folder of leases: %w", err)
	}
	defer lock.Close()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			if err := errors.Join(lock.Truncate(0), writeAt(lock, l.self.String())); err != nil {
				return fmt.Errorf("lock %s: %w", lock.Name(), err)
			}
			return f()
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		case time.Since(began) > lockWait:
			by, _ := os.ReadFile(lock.Name())
			return &cannot{exitHeld, fmt.Errorf("lock %s: %s has it for %v, and no runner that runs takes that long: end that process", lock.Name(), by, lockWait)}
		}
	}
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// look reads the lease of a card; nil where there is none. A file that is no lease, as a full disk
// leaves it, is an error: who may have the card is then for a person to find out.
func (l *leases) look(addr string) (*lease, error) {
	text, err := os.ReadFile(l.file(addr))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var got lease
	if err := json.Unmarshal(text, &got); err != nil || got.Token == "" || got.Until.IsZero() {
		return nil, fmt.Errorf("%s is no lease (%v); see that nobody uses %s and remove it", l.file(addr), err, addr)
	}
	return &got, nil
}

// free tells whether a lease keeps nobody from the card: its time has passed, and its holder is not
// known to be alive. A holder that was stopped has the card open all the same.
func (l *leases) free(at *lease) (free, stale bool) {
	if at == nil {
		return true, false
	}
	if time.Now().Before(at.Until) {
		return false, false
	}
	running, known := l.alive(at.Holder)
	stale = known && running
	return !stale, stale
}

// held is a lease that this process has and renews.
type held struct {
	l     *leases
	mu    sync.Mutex
	lease lease
	stop  context.CancelFunc
	done  chan struct{} // closed when the renewing has ended
}

// take takes the lease of a card, waiting for its holder for at most wait. The context that it gives
// ends, with errLeaseLost as its cause, when the lease can no longer be believed. waiting is told of the
// holder, once for each.
func (l *leases) take(ctx context.Context, name, addr string, wait time.Duration, waiting func(*lease)) (context.Context, *held, error) {
	began := time.Now()
	told := ""
	for {
		now := time.Now()
		mine := lease{Address: addr, Card: name, Holder: l.self, Taken: now, Until: now.Add(l.ttl), Token: rand.Text()}
		var other *lease
		var stale bool
		err := l.locked(func() (err error) {
			if other, err = l.look(addr); err != nil {
				return err
			}
			var free bool
			if free, stale = l.free(other); !free {
				return nil
			}
			other = nil
			return l.write(&mine)
		})
		if err != nil {
			return nil, nil, err
		}
		if other == nil {
			ctx, cancel := context.WithCancelCause(ctx)
			beat, stop := context.WithCancel(context.WithoutCancel(ctx))
			h := &held{l: l, lease: mine, stop: stop, done: make(chan struct{})}
			go func() {
				defer close(h.done)
				cancel(h.renew(beat))
			}()
			return ctx, h, nil
		}
		if other.Token != told {
			told = other.Token
			waiting(other)
		}
		left := wait - time.Since(began)
		if left <= 0 {
			return nil, nil, &heldError{lease: *other, waited: wait, stale: stale}
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(min(left, l.ttl/8)):
		}
	}
}

// write replaces the lease's file as a whole: a reader sees the old one or the new one.
func (l *leases) write(at *lease) error {
	return writeWhole(l.file(at.Address), at)
}

// renew keeps the lease until the context ends, which is nil, or until it is lost.
func (h *held) renew(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(h.l.ttl / 3):
		}
		h.mu.Lock()
		err := h.l.locked(func() error {
			now, err := h.l.look(h.lease.Address)
			switch {
			case err != nil:
				return err
			case now == nil || now.Token != h.lease.Token:
				return errLeaseLost
			}
			next := h.lease
			next.Until = time.Now().Add(h.l.ttl)
			if err := h.l.write(&next); err != nil {
				return err
			}
			h.lease = next
			return nil
		})
		until := h.lease.Until
		h.mu.Unlock()
		// A full disk may be well again before the time is over.
		if errors.Is(err, errLeaseLost) || err != nil && !time.Now().Before(until) {
			return fmt.Errorf("%w: %w", errLeaseLost, err)
		}
	}
}

// release gives the card to the next. A lease that was lost stays its new holder's.
func (h *held) release() error {
	h.stop()
	<-h.done
	return h.l.locked(func() error {
		now, err := h.l.look(h.lease.Address)
		if err != nil || now == nil || now.Token != h.lease.Token {
			return err
		}
		return os.Remove(h.l.file(h.lease.Address))
	})
}

// writeWhole writes v as JSON to a file that is there as a whole or not at all, also after a crash.
func writeWhole(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
