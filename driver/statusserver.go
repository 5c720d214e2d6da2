package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"go.uber.org/zap"
)

// The status socket: one JSON object a line each way. A request is a
// StatusRequest; the answer to trace and capture is a StatusReply with a
// record a line until one with End or Error, to the others one StatusReply.
// It changes nothing that a program can see but the trace and capture rings.

// StatusRequest is a request to a status socket.
type StatusRequest struct {
	Op    string `json:"op"` // holder, snapshot, registers, scrub, trace, capture, events
	QPN   uint32 `json:"qpn,omitempty"`
	Count int    `json:"count,omitempty"`
}

// StatusReply is an answer of a status socket.
type StatusReply struct {
	Holder    *Holder         `json:"holder,omitempty"`
	Snapshot  *Snapshot       `json:"snapshot,omitempty"`
	Registers []RegisterValue `json:"registers,omitempty"`
	Scrub     *ScrubReport    `json:"scrub,omitempty"`
	Events    []Event         `json:"events,omitempty"`
	Trace     *TraceRecord    `json:"trace,omitempty"`
	Frame     *CaptureFrame   `json:"frame,omitempty"`
	Started   bool            `json:"started,omitempty"` // a stream's first line
	End       bool            `json:"end,omitempty"`     // a stream's last line
	Error     *StatusError    `json:"error,omitempty"`
}

// Holder is the process that holds a card.
type Holder struct {
	Addr string // the card's address
	PID  int
	Attr DeviceAttr
}

// StatusError is a failure. Code is one of StatusCodes.
type StatusError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// StatusCodes are the codes of StatusError and the causes that they stand for.
var StatusCodes = map[string]error{
	"gone": ErrDeviceGone, "closed": ErrClosed, "timeout": ErrTimeout, "not-supported": ErrNotSupported, "invalid": ErrInvalid, "busy": ErrBusy,
}

// Bounds of a status socket, so that a hostile client costs little.
const (
	statusConns   = 16               // at a time; further ones are told to come later
	statusLine    = 4096             // bytes of a request
	statusIdle    = 30 * time.Second // between requests
	statusWrite   = 5 * time.Second  // for a client to take a line
	statusPathMax = 107              // bytes of a UNIX socket's path (unix(7))
)

// StatusDir is where status sockets are by default.
func StatusDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "rnic")
	}
	return "/run/rnic"
}

// StatusName is how the names of the sockets of a device in StatusDir begin:
// its address, made fit for a file name and told from others by a hash. The
// holder's pid and ".sock" follow.
func StatusName(addr string) string {
	h := fnv.New32a()
	h.Write([]byte(addr))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, addr)
	return fmt.Sprintf("%.40s-%08x.", strings.TrimLeft(name, "."), h.Sum32())
}

// defaultStatusPath is the device's socket in StatusDir. Sockets of it that
// killed processes left behind go.
func defaultStatusPath(addr string) string {
	dir, name := StatusDir(), StatusName(addr)
	old, _ := filepath.Glob(filepath.Join(dir, name+"*.sock"))
	for _, path := range old {
		p, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), name), ".sock"))
		if err == nil && p > 0 && p != pid && errors.Is(unix.Kill(p, 0), unix.ESRCH) {
			_ = os.Remove(path)
		}
	}
	return filepath.Join(dir, fmt.Sprintf("%s%d.sock", name, pid))
}

var pid = os.Getpid()

// statusServer serves a device's status socket.
type statusServer struct {
	d   *Device
	l   net.Listener
	ctx context.Context
	end context.CancelFunc
	wg  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// serveStatus starts the status socket at path.
func (d *Device) serveStatus(path string) error {
	fail := func(err error) error { return fmt.Errorf("status socket %s: %w", path, err) }
	if len(path) > statusPathMax {
		return fail(fmt.Errorf("path of %d bytes, at most %d: %w", len(path), statusPathMax, ErrInvalid))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fail(err)
	}
	// The mode given before bind is the socket's, less the umask: at no time
	// may others connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if errors.Is(err, unix.EADDRINUSE) {
		// What a killed process left behind answers nobody.
		c, e := net.DialTimeout("unix", path, time.Second)
		if e == nil {
			c.Close()
			return fail(ErrInUse)
		}
		if !errors.Is(e, unix.ECONNREFUSED) {
			return fail(e)
		}
		if e := os.Remove(path); e != nil {
			return fail(e)
		}
		l, err = lc.Listen(context.Background(), "unix", path)
	}
	if err != nil {
		return fail(err)
	}
	s := &statusServer{d: d, l: l, conns: map[net.Conn]bool{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	d.status = s
	s.wg.Add(1)
	go s.accept()
	return nil
}

// StatusPath is where the device's status socket is, or "".
func (d *Device) StatusPath() string {
	if d.status == nil {
		return ""
	}
	return d.status.l.Addr().String()
}

func (s *statusServer) close() {
	s.end()
	s.l.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *statusServer) accept() {
	defer s.wg.Done()
	for {
		c, err := s.l.Accept()
		if err != nil {
			if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			s.d.log.Warn("status socket", zap.Error(err))
			time.Sleep(100 * time.Millisecond) // out of file descriptors, perhaps for a while
			continue
		}
		s.mu.Lock()
		full := len(s.conns) >= statusConns
		if !full && s.ctx.Err() == nil {
			s.conns[c] = true
			s.wg.Add(1)
			go s.serve(c)
			c = nil
		}
		s.mu.Unlock()
		if c != nil {
			if full {
				_ = writeReply(c, &StatusReply{Error: &StatusError{Code: "busy", Message: "too many clients; come later"}})
			}
			c.Close()
		}
	}
}

// serve answers one client's requests until it leaves or breaks a bound.
func (s *statusServer) serve(c net.Conn) {
	defer s.wg.Done()
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	r := bufio.NewReaderSize(c, statusLine)
	for s.ctx.Err() == nil {
		if err := c.SetReadDeadline(time.Now().Add(statusIdle)); err != nil {
			return
		}
		line, err := r.ReadSlice('\n')
		if err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				_ = writeReply(c, &StatusReply{Error: &StatusError{Code: "invalid", Message: fmt.Sprintf("request of more than %d bytes", statusLine)}})
			}
			return
		}
		var q StatusRequest
		if err := json.Unmarshal(line, &q); err != nil {
			_ = writeReply(c, &StatusReply{Error: &StatusError{Code: "invalid", Message: "request: " + err.Error()}})
			return
		}
		if err := s.answer(c, &q); err != nil {
			return
		}
	}
}

func (s *statusServer) answer(c net.Conn, q *StatusRequest) error {
	ctx, cancel := bound(s.ctx)
	defer cancel()
	var p StatusReply
	var err error
	switch q.Op {
	case "holder":
		p.Holder = &Holder{Addr: s.d.addr, PID: pid, Attr: s.d.attr}
	case "snapshot":
		p.Snapshot, err = s.d.Snapshot(ctx)
	case "registers":
		p.Registers, err = s.d.Registers(ctx)
	case "scrub":
		var r ScrubReport
		r, err = s.d.Scrub(ctx)
		p.Scrub = &r
	case "events":
		p.Events = s.d.events.recent()
	case "trace":
		t, e := s.d.Trace(ctx, TraceOptions{QPN: q.QPN, Count: q.Count})
		if err = e; err == nil {
			return serveStream(s, c, t, func(p *StatusReply, v *TraceRecord) { p.Trace = v })
		}
	case "capture":
		t, e := s.d.Capture(ctx, CaptureOptions{QPN: q.QPN, Count: q.Count})
		if err = e; err == nil {
			return serveStream(s, c, t, func(p *StatusReply, v *CaptureFrame) { p.Frame = v })
		}
	default:
		err = fmt.Errorf("operation %.40q: %w", q.Op, ErrInvalid)
	}
	if err != nil {
		p = StatusReply{Error: statusError(err)}
	}
	return writeReply(c, &p)
}

// serveStream writes a stream's records until it ends or the client leaves:
// anything that the client sends, and its end, is a wish to stop.
func serveStream[T any](s *statusServer, c net.Conn, t Stream[T], put func(*StatusReply, *T)) error {
	defer t.Close()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = c.Read(make([]byte, 1))
		cancel()
	}()
	defer func() {
		c.Close() // a stream is a connection's last request
		<-left
	}()
	if err := writeReply(c, &StatusReply{Started: true}); err != nil {
		return err
	}
	for {
		v, err := t.Next(ctx)
		if err != nil && s.ctx.Err() != nil {
			err = s.d.fail("serve stream", "", ErrClosed)
		}
		var p StatusReply
		switch {
		case errors.Is(err, io.EOF):
			p.End = true
		case err != nil:
			p.Error = statusError(err)
		default:
			put(&p, &v)
		}
		if e := writeReply(c, &p); e != nil || err != nil {
			return errors.Join(io.EOF, e)
		}
	}
}

func statusError(err error) *StatusError {
	for code, cause := range StatusCodes {
		if errors.Is(err, cause) {
			return &StatusError{Code: code, Message: err.Error()}
		}
	}
	return &StatusError{Code: "failed", Message: err.Error()}
}

func writeReply(c net.Conn, p *StatusReply) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(statusWrite)); err != nil {
		return err
	}
	_, err = c.Write(append(b, '\n'))
	return err
}
