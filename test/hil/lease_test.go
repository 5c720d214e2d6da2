package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Leases are tested in a bubble of testing/synctest: hours pass at once, and exactly.

const testAddr = "vfio-user:/run/cards/a.sock"

// machine is some processes that share a folder of leases.
type machine struct {
	dir  string
	dead map[int]bool // by pid
}

func newMachine(t *testing.T) *machine { return &machine{dir: t.TempDir(), dead: map[int]bool{}} }

func (h *machine) process(pid int) *leases {
	return &leases{
		dir: h.dir, ttl: 30 * time.Second, self: process{Who: "mona", Host: "lab", PID: pid},
		alive: func(p process) (bool, bool) { return !h.dead[p.PID], true },
	}
}

func nobodyWaits(t *testing.T) func(*lease) {
	return func(l *lease) { t.Errorf("waits for %v", l.Holder) }
}

// take takes or fails the test.
func take(t *testing.T, l *leases, wait time.Duration, waiting func(*lease)) (context.Context, *held) {
	t.Helper()
	ctx, h, err := l.take(t.Context(), "left", testAddr, wait, waiting)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, h
}

// crash ends a process's renewing without giving anything back, as SIGKILL does.
func crash(h *held) {
	h.stop()
	<-h.done
}

func TestHIL_LeaseIsRenewedAndGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		ctx, h := take(t, at.process(1), 0, nobodyWaits(t))
		time.Sleep(time.Hour) // 120 times as long as it lasts without being renewed
		l, err := at.process(2).look(testAddr)
		if err != nil || l == nil || l.Holder.PID != 1 || l.Card != "left" || l.Address != testAddr {
			t.Fatalf("%+v, %v", l, err)
		}
		if left := time.Until(l.Until); left < 20*time.Second || left > 30*time.Second {
			t.Errorf("%v are left of 30 s that are renewed each 10 s", left)
		}
		if ctx.Err() != nil {
			t.Error(context.Cause(ctx))
		}
		if err := h.release(); err != nil {
			t.Fatal(err)
		}
		if l, err := at.process(2).look(testAddr); l != nil || err != nil {
			t.Errorf("given back and still there: %+v, %v", l, err)
		}
		_, h = take(t, at.process(2), 0, nobodyWaits(t))
		h.release()
	})
}

// TestHIL_LeaseSecondWaits: the second runner waits until the first gives the card back, and no longer.
func TestHIL_LeaseSecondWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		_, first := take(t, at.process(1), 0, nobodyWaits(t))
		go func() {
			time.Sleep(7 * time.Minute)
			if err := first.release(); err != nil {
				t.Error(err)
			}
		}()
		began, told := time.Now(), 0
		_, second := take(t, at.process(2), time.Hour, func(l *lease) {
			told++
			if l.Holder.PID != 1 {
				t.Errorf("waits for %v", l.Holder)
			}
		})
		defer second.release()
		if waited := time.Since(began); waited < 7*time.Minute || waited > 7*time.Minute+5*time.Second {
			t.Errorf("waited %v for a card that was free after 7 min", waited)
		}
		if told != 1 {
			t.Errorf("said %d times for whom it waits", told)
		}
	})
}

func TestHIL_LeaseWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		_, first := take(t, at.process(1), 0, nobodyWaits(t))
		defer first.release()
		began := time.Now()
		_, _, err := at.process(2).take(t.Context(), "left", testAddr, 10*time.Minute, func(*lease) {})
		var held *heldError
		if !errors.As(err, &held) || held.Holder.PID != 1 {
			t.Fatalf("%v", err)
		}
		if waited := time.Since(began); waited < 10*time.Minute || waited > 10*time.Minute+time.Second { // the folder's lock may be taken
			t.Errorf("waited %v of 10 min", waited)
		}
		for _, want := range []string{"left", "mona on lab, pid 1", "10m0s"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
		}
		if codeOf(err) != exitHeld {
			t.Errorf("exit %d", codeOf(err))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := at.process(2).take(ctx, "left", testAddr, time.Hour, func(*lease) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("interrupted: %v", err)
		}
	})
}

// TestHIL_LeaseOfAKilledRunner: it is there after the crash and keeps others away until its time has passed.
func TestHIL_LeaseOfAKilledRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		_, h := take(t, at.process(1), 0, nobodyWaits(t))
		time.Sleep(time.Minute)
		crash(h)
		at.dead[1] = true
		l, err := at.process(2).look(testAddr)
		if err != nil || l == nil {
			t.Fatalf("gone after the crash: %v", err)
		}
		_, h2 := take(t, at.process(2), time.Hour, func(*lease) {})
		defer h2.release()
		if late := time.Since(l.Until); late < 0 || late > 5*time.Second {
			t.Errorf("taken over %v after the lease's end", late)
		}
	})
}

// TestHIL_LeaseOfAStoppedRunner: its time has passed, but the process is there and has the card open. Nobody takes
// it over, until the process has ended.
func TestHIL_LeaseOfAStoppedRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		_, h := take(t, at.process(1), 0, nobodyWaits(t))
		crash(h) // it renews no more, and is not dead
		_, _, err := at.process(2).take(t.Context(), "left", testAddr, 10*time.Minute, func(*lease) {})
		var held *heldError
		if !errors.As(err, &held) || !held.stale || !strings.Contains(err.Error(), "end it") {
			t.Fatalf("%v", err)
		}
		at.dead[1] = true
		_, h2 := take(t, at.process(2), 0, nobodyWaits(t))
		h2.release()
	})
}

// TestHIL_LeaseOfAnotherHost: whether its holder lives cannot be known; its time decides.
func TestHIL_LeaseOfAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		_, h := take(t, at.process(1), 0, nobodyWaits(t))
		crash(h)
		other := at.process(2)
		other.alive = func(process) (bool, bool) { return false, false }
		if _, _, err := other.take(t.Context(), "left", testAddr, 29*time.Second, func(*lease) {}); err == nil {
			t.Fatal("taken before its time")
		}
		_, h2 := take(t, other, 10*time.Second, func(*lease) {})
		h2.release()
	})
}

// TestHIL_LeaseLost: who slept over the end of the lease finds another's, ends, and takes nothing away.
func TestHIL_LeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		ctx, h := take(t, at.process(1), 0, nobodyWaits(t))
		mine := lease{Address: testAddr, Card: "left", Holder: process{PID: 2}, Until: time.Now().Add(time.Hour), Token: "other"}
		if err := at.process(2).write(&mine); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errLeaseLost) {
			t.Errorf("%v", context.Cause(ctx))
		}
		if err := h.release(); err != nil {
			t.Fatal(err)
		}
		if l, err := at.process(3).look(testAddr); err != nil || l == nil || l.Token != "other" {
			t.Errorf("took away what is another's: %+v, %v", l, err)
		}
	})
}

// TestHIL_LeaseThatCannotBeRenewed: a full or vanished folder is borne as long as the lease lasts.
func TestHIL_LeaseThatCannotBeRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		ctx, h := take(t, at.process(1), 0, nobodyWaits(t))
		file := at.process(1).file(testAddr)
		if err := os.WriteFile(file, []byte("{"), 0o644); err != nil { // half a lease
			t.Fatal(err)
		}
		began := time.Now()
		<-ctx.Done()
		if lasted := time.Since(began); lasted < 30*time.Second || lasted > 31*time.Second || !errors.Is(context.Cause(ctx), errLeaseLost) {
			t.Errorf("ended after %v: %v", lasted, context.Cause(ctx))
		}
		crash(h)
		_, _, err := at.process(2).take(t.Context(), "left", testAddr, time.Hour, func(*lease) {})
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("half a lease is taken for none: %v", err)
		}
	})
}

// TestHIL_LeaseFolderLocked: a runner that was stopped while it changed a lease is named, and not waited for.
func TestHIL_LeaseFolderLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		began := time.Now()
		err := at.process(7).locked(func() error {
			_, _, err := at.process(2).take(t.Context(), "left", testAddr, time.Hour, nobodyWaits(t))
			return err
		})
		if codeOf(err) != exitHeld || !strings.Contains(err.Error(), "mona on lab, pid 7 has it") {
			t.Errorf("%v", err)
		}
		if waited := time.Since(began); waited < lockWait || waited > lockWait+time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// TestHIL_LeaseOneWins: of many that find an expired lease at the same moment, one has it.
func TestHIL_LeaseOneWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := newMachine(t)
		old := lease{Address: testAddr, Holder: process{PID: 99}, Until: time.Now().Add(-time.Second), Token: "old"}
		at.dead[99] = true
		if err := at.process(99).write(&old); err != nil {
			t.Fatal(err)
		}
		const n = 16
		won := make(chan *held, n)
		for pid := range n {
			go func() {
				_, h, err := at.process(pid).take(t.Context(), "left", testAddr, 0, func(*lease) {})
				if err != nil {
					h = nil
				}
				won <- h
			}()
		}
		winners := 0
		for range n {
			if h := <-won; h != nil {
				winners++
				defer h.release()
			}
		}
		if winners != 1 {
			t.Errorf("%d have the lease", winners)
		}
	})
}

func TestHIL_LeaseFiles(t *testing.T) {
	l := newMachine(t).process(1)
	seen := map[string]string{}
	for _, addr := range []string{"vfio-user:/a/b", "vfio-user:/a_b", "vfio-user:/a b", "0000:03:00.0", "soft:" + strings.Repeat("x", 900), "soft:.."} {
		f := l.file(addr)
		if filepath.Dir(f) != l.dir || len(filepath.Base(f)) > 200 || seen[f] != "" {
			t.Errorf("%s: file %s, which is %q's", addr, f, seen[f])
		}
		seen[f] = addr
	}
}

func TestAlive(t *testing.T) {
	self, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	later, boot, elsewhere, ended := self, self, self, self
	later.Start++
	boot.Boot = "another"
	elsewhere.Host += "x"
	ended.PID = 1<<22 + 1 // above the kernel's largest pid
	for _, c := range []struct {
		what           string
		p              process
		running, known bool
	}{
		{"this one", self, true, true},
		{"another with its pid", later, false, true},
		{"one before the boot", boot, false, true},
		{"another host's", elsewhere, false, false},
		{"one that ended", ended, false, true},
	} {
		if running, known := alive(c.p); running != c.running || known != c.known {
			t.Errorf("%s: %v, %v", c.what, running, known)
		}
	}
}
