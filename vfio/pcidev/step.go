package pcidev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// A step is one thing that a change does. One of attr, file, remove, argv and verify is set.
type step struct {
	attr   string   // attribute of sysfs that text is written to
	file   string   // file that gets text, whole or not at all
	remove string   // file that is removed
	argv   []string // program that is run
	verify *want    // what must hold now
	text   string
	unless string // driver with which the step is not needed any more
}

// want is the driver that a function must have, or one that it must not have.
type want struct{ driver, not string }

// String gives the step as a shell would do it.
func (s *step) String() string {
	switch {
	case s.attr != "":
		return fmt.Sprintf("echo %s > %s", quoted(s.text), s.attr)
	case s.file != "":
		return "write " + s.file
	case s.remove != "":
		return "rm " + s.remove
	}
	return strings.Join(s.argv, " ")
}

func quoted(s string) string {
	if s == "" {
		return `""`
	}
	return s
}

// run does a change's steps. The first that fails is the error.
func (t Tree) run(ctx context.Context, c *Change, steps []step) error {
	for i := range steps {
		s := &steps[i]
		if s.unless != "" && t.driver(c.Address) == s.unless {
			continue
		}
		var err error
		object := "(" + s.String() + ")"
		switch {
		case s.attr != "":
			err = t.write(ctx, s.attr, s.text+"\n")
		case s.file != "":
			err = replace(s.file, []byte(s.text))
		case s.remove != "":
			err = remove(s.remove)
		case s.verify != nil:
			object, err = t.verify(ctx, c, s.verify)
		default:
			err = t.Command(ctx, s.argv[0], s.argv[1:]...)
		}
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w: this wants root: %w", vfio.ErrPermission, err)
		}
		if err != nil {
			return &vfio.Error{Addr: c.Address, Op: fmt.Sprintf("change its driver from %s to %s", none(c.Before), none(c.After)), Object: object, Err: err}
		}
	}
	return nil
}

// settle is how long a driver may take to appear after its probe was asked for; the kernel probes some of them
// in the background.
const settle = 2 * time.Second

// verify holds the function's driver to what is wanted.
func (t Tree) verify(ctx context.Context, c *Change, w *want) (object string, err error) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		now := t.driver(c.Address)
		switch {
		case w.not == "" && now == w.driver, w.not != "" && now != w.not:
			return "", nil
		case ctx.Err() != nil && w.not != "":
			return "verify", fmt.Errorf("%s took it again: its ID was given to new_id; take it away: echo %04x %04x > %s",
				now, c.function.Vendor, c.function.Device, filepath.Join(t.drivers(), now, "remove_id"))
		case ctx.Err() != nil:
			return "verify", fmt.Errorf("its driver is %s; the kernel's log says why %s did not take it", none(now), none(w.driver))
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// lock keeps two changes apart, of two processes too. A dry run takes none, and leaves nothing behind.
func (t Tree) lock(ctx context.Context, dry bool) (unlock func(), err error) {
	if dry {
		return func() {}, nil
	}
	path := filepath.Join(t.Run, "setup.lock")
	fail := func(err error) error {
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w: this wants root: %w", vfio.ErrPermission, err)
		}
		return &vfio.Error{Op: "lock", Object: path, Err: err}
	}
	if err := os.MkdirAll(t.Run, 0o755); err != nil {
		return nil, fail(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fail(err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fail(err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fail(fmt.Errorf("%w: another rnicctl is changing drivers; wait for it: %w", vfio.ErrTimeout, context.Cause(ctx)))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// encode gives a record's file.
func (r Record) encode() (string, error) {
	b, err := json.Marshal(r)
	return string(b) + "\n", err
}

// none names a driver for people.
func none(driver string) string {
	if driver == "" {
		return "no driver"
	}
	return driver
}

func join(list []string) string { return strings.Join(list, ", ") }
