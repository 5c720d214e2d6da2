package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// refusalTime is how long a client that finds the function held has to say
// VERSION, and refusals how many are told so at once.
const (
	refusalTime = time.Second
	refusals    = 4
)

// Listener offers functions at a socket's path.
type Listener struct {
	l    *net.UnixListener
	opts []Option
}

// Listen makes the socket at path, for this user alone. A socket that a dead
// server left is replaced; one that a live server holds is ErrBusy.
func Listen(path string, opts ...Option) (*Listener, error) {
	fail := func(err error) error { return &vfio.Error{Addr: "vfio-user:" + path, Op: "listen", Err: err} }
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		var st os.FileInfo
		if st, err = os.Lstat(path); err != nil {
			return nil, fail(err)
		}
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fail(fmt.Errorf("%w: a file that is no socket is in the way", vfio.ErrExists))
		}
		if c, e := net.DialUnix("unix", nil, addr); e == nil {
			pid := peerPID(c)
			_ = c.Close()
			return nil, fail(&vfio.BusyError{PID: pid})
		} else if !errors.Is(e, unix.ECONNREFUSED) {
			return nil, fail(e)
		}
		if err := os.Remove(path); err != nil {
			return nil, fail(err)
		}
		l, err = net.ListenUnix("unix", addr)
	}
	if err != nil {
		return nil, fail(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fail(err)
	}
	return &Listener{l: l, opts: opts}, nil
}

// Close ends the listener and removes its socket.
func (l *Listener) Close() error { return l.l.Close() }

// Serve offers f to one client after another until the context ends or the
// listener is closed. While one holds the function, others are refused as
// busy; those that speak this package's protocol learn the holder's pid.
// report, if set, is told how each session ended.
func (l *Listener) Serve(ctx context.Context, f Function, report func(error)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.l.Close() })
	defer stop()
	free := make(chan struct{}, 1) // holds a token while no client is attached
	free <- struct{}{}
	refusing := make(chan struct{}, refusals)
	sessions := make(chan struct{})
	running, pid := 0, 0
	defer func() {
		for range running {
			<-sessions
		}
	}()
	for {
		c, err := l.l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) {
				select { // until descriptors are free again
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			return &vfio.Error{Addr: "vfio-user:" + l.l.Addr().String(), Op: "accept", Err: err}
		}
		for drained := false; !drained; {
			select {
			case <-sessions:
				running--
			default:
				drained = true
			}
		}
		select {
		case <-free:
			pid = peerPID(c)
			running++
			go func() {
				err := Serve(ctx, c, f, l.opts...)
				free <- struct{}{}
				if report != nil {
					report(err)
				}
				sessions <- struct{}{}
			}()
		case refusing <- struct{}{}:
			running++
			go func() {
				refuse(c, pid)
				<-refusing
				sessions <- struct{}{}
			}()
		default:
			_ = c.Close()
		}
	}
}

// refuse tells a client that the function is held.
func refuse(uc *net.UnixConn, pid int) {
	c := newConn(uc, refusalTime)
	defer c.fail(vfio.ErrClosed)
	_ = uc.SetReadDeadline(time.Now().Add(refusalTime))
	m, err := c.read()
	if err != nil {
		return
	}
	m.closeFDs()
	if m.cmd != cmdVersion || m.reply() {
		return
	}
	_, minor, caps, err := decodeVersion(m.body)
	if err != nil || caps.Holder == nil {
		c.answer(m, nil, nil, unix.EBUSY)
		return
	}
	body, err := encodeVersion(min(minor, versionMinor), &capabilities{Holder: &holder{PID: pid}})
	c.answer(m, body, nil, err)
}

// peerPID is the process at the other end, or 0.
func peerPID(c *net.UnixConn) int {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = rc.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
