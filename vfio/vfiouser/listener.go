package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// A new client has greetTime to say VERSION, and so many may be about to: one
// that says nothing holds no function and keeps nobody out for long.
const (
	greetTime = time.Second
	greetings = 64
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
// report, if set, is told how each session ended, from its goroutine.
func (l *Listener) Serve(ctx context.Context, f Function, report func(error)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.l.Close() })
	defer stop()
	h := &holding{free: make(chan struct{}, 1)}
	h.free <- struct{}{}
	greeting := make(chan struct{}, greetings)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for {
		uc, err := l.l.AcceptUnix()
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
		select {
		case greeting <- struct{}{}:
		default:
			_ = uc.Close()
			continue
		}
		sessions.Go(func() {
			served, err := l.session(ctx, uc, f, h, func() { <-greeting })
			if served && report != nil {
				report(err)
			}
		})
	}
}

// session greets a client, and serves it if the function is free.
func (l *Listener) session(ctx context.Context, uc *net.UnixConn, f Function, h *holding, greeted func()) (served bool, err error) {
	o := buildOptions(l.opts)
	c := newConn(uc, o.timeout)
	defer c.fail(vfio.ErrClosed)
	defer context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })()
	m, err := greet(c, min(greetTime, o.timeout))
	if err == nil && !h.take(uc, o.timeout) {
		refuse(c, m, h.pid())
		err = vfio.ErrBusy
	}
	greeted()
	if err != nil {
		return false, err
	}
	defer func() { h.free <- struct{}{} }()
	return true, attend(c, m, f, o)
}

// holding says which client has the function.
type holding struct {
	free chan struct{} // holds a token while no client is attached
	mu   sync.Mutex
	uc   *net.UnixConn
}

func (h *holding) pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return peerPID(h.uc)
}

// leaving says whether the holder has hung up and is about to let go.
func (h *holding) leaving() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uc == nil || hungUp(h.uc)
}

// take makes uc the holder if there is none. One that has hung up is waited
// for, so that who closes a function can open it again at once.
func (h *holding) take(uc *net.UnixConn, timeout time.Duration) bool {
	select {
	case <-h.free:
	default:
		limit, look := time.NewTimer(timeout), time.NewTicker(20*time.Millisecond)
		defer limit.Stop()
		defer look.Stop()
		for took := false; !took; {
			if !h.leaving() { // nor may another have been quicker
				return false
			}
			select {
			case <-h.free:
				took = true
			case <-look.C:
			case <-limit.C:
				return false
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uc = uc
	return true
}

// hungUp says whether the other end of c is closed, or this one.
func hungUp(c *net.UnixConn) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = rc.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n == 1
	})
	return gone || err != nil
}

// refuse tells a client that the function is held.
func refuse(c *conn, m *message, pid int) {
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
