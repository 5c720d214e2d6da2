package vfio

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// EventFD is an eventfd that one goroutine waits for and a device signals. Who serves the device
// has its open file too, and may be hostile: it can clear O_NONBLOCK, so that a plain read, and
// with it Close, would wait for it.
type EventFD struct {
	fd   int
	f    *os.File
	conn syscall.RawConn
	buf  [1][]byte
	err  error
	take func(fd uintptr) bool
}

// NewEventFD makes an eventfd that is not signalled. name is what errors call it.
func NewEventFD(name string) (*EventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	e := &EventFD{fd: fd, f: os.NewFile(uintptr(fd), name), buf: [1][]byte{make([]byte, 8)}}
	if e.conn, err = e.f.SyscallConn(); err != nil {
		_ = e.f.Close()
		return nil, err
	}
	e.take = func(fd uintptr) bool {
		_, e.err = unix.Preadv2(int(fd), e.buf[:], -1, unix.RWF_NOWAIT)
		if e.err == unix.EOPNOTSUPP { // before Linux 5.8 the file's flags decide
			_, e.err = unix.Read(int(fd), e.buf[0])
		}
		return e.err != unix.EAGAIN && e.err != unix.EINTR
	}
	return e, nil
}

// FD is the descriptor, for SetIRQs. It stays the EventFD's.
func (e *EventFD) FD() int { return e.fd }

// Wait waits until the eventfd is signalled, and takes its count. It ends with ErrClosed when
// Close is called. One goroutine waits at a time.
func (e *EventFD) Wait() error {
	if err := e.conn.Read(e.take); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return e.err
}

// Close ends Wait and closes the descriptor.
func (e *EventFD) Close() error { return e.f.Close() }
