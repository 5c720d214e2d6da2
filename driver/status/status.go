// Package status asks the process that holds a card about it, over its status
// socket. A Client shows the same as the device itself: it is a
// driver.Inspector. It cannot change anything.
package status

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/driver"
)

// maxLine bounds an answer in bytes: some KiB for each object of a card.
const maxLine = 64 << 20

// callTime bounds a call whose context has no deadline.
const callTime = 5 * time.Second

// Client asks one status socket. Each call has a connection of its own, so a
// Client holds nothing and is safe for concurrent use.
type Client struct {
	path   string
	holder driver.Holder
}

var _ driver.Inspector = (*Client)(nil)

// Dial asks the socket at path who holds which card. errors.Is:
// driver.ErrNotFound where nobody serves it, driver.ErrPermission.
func Dial(ctx context.Context, path string) (*Client, error) {
	c := &Client{path: path}
	p, err := c.ask(ctx, driver.StatusRequest{Op: "holder"})
	if err != nil {
		return nil, err
	}
	if p.Holder == nil {
		return nil, c.fail("holder", errors.New("the answer has no holder"))
	}
	c.holder = *p.Holder
	return c, nil
}

// Find gives the client of the process that holds the card of that address.
// Where there is none it is driver.ErrNotFound: nobody holds the card, or a
// process that serves no status socket, or another user's.
func Find(ctx context.Context, addr string) (*Client, error) {
	paths, err := filepath.Glob(filepath.Join(driver.StatusDir(), driver.StatusName(addr)+"*.sock"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range paths {
		c, err := Dial(ctx, path)
		if err == nil && c.holder.Addr == addr {
			return c, nil
		}
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, &driver.DeviceError{Addr: addr, Op: "find holder", Object: "in " + driver.StatusDir(), Err: driver.ErrNotFound}
}

// List gives the clients of all status sockets in driver.StatusDir that
// answer.
func List(ctx context.Context) ([]*Client, error) {
	paths, err := filepath.Glob(filepath.Join(driver.StatusDir(), "*.sock"))
	if err != nil {
		return nil, err
	}
	var all []*Client
	for _, path := range paths {
		if c, err := Dial(ctx, path); err == nil {
			all = append(all, c)
		}
	}
	return all, ctx.Err()
}

// Path is the socket's path.
func (c *Client) Path() string { return c.path }

// Holder is the process that answers, and its card.
func (c *Client) Holder() driver.Holder { return c.holder }

func (c *Client) fail(op string, err error) error {
	return &driver.DeviceError{Addr: c.path, Op: "ask holder for", Object: op, Err: err}
}

// session is one connection.
type session struct {
	c net.Conn
	r *bufio.Reader
}

// dial connects and sends a request. The context ends the session.
func (c *Client) dial(ctx context.Context, q driver.StatusRequest) (*session, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		switch {
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
			err = fmt.Errorf("%w: nobody serves it: %w", driver.ErrNotFound, err)
		case errors.Is(err, os.ErrPermission):
			err = fmt.Errorf("%w: %w", driver.ErrPermission, err)
		}
		return nil, c.fail(q.Op, err)
	}
	b, err := json.Marshal(q)
	if err == nil {
		_, err = conn.Write(append(b, '\n'))
		err = ended(err)
	}
	if err != nil {
		conn.Close()
		return nil, c.fail(q.Op, err)
	}
	return &session{c: conn, r: bufio.NewReaderSize(conn, 64<<10)}, nil
}

// ended makes what a socket gives after its other end has gone, read or
// written, into driver.ErrDeviceGone. A holder that is killed with a request
// unread resets the connection.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		// The cause is not wrapped: io.EOF is how a stream ends well.
		return fmt.Errorf("%w: the holder ended the connection: %v", driver.ErrDeviceGone, err)
	}
	return err
}

// reply reads one line.
func (s *session) reply(p *driver.StatusReply) error {
	var line []byte
	for {
		b, err := s.r.ReadSlice('\n')
		line = append(line, b...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return ended(err)
		}
		if len(line) > maxLine {
			return fmt.Errorf("an answer of more than %d bytes", maxLine)
		}
	}
	if err := json.Unmarshal(line, p); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if e := p.Error; e != nil {
		return &HolderError{Code: e.Code, Message: e.Message}
	}
	return nil
}

// HolderError is what the holder answered. errors.Is maps its code to the
// sentinel of package driver that the holder's own error was.
type HolderError struct{ Code, Message string }

// Error is the holder's message.
func (e *HolderError) Error() string { return e.Message }

// Is maps the code.
func (e *HolderError) Is(target error) bool {
	cause, ok := driver.StatusCodes[e.Code]
	return ok && target == cause
}

// ask sends a request and reads its one answer.
func (c *Client) ask(ctx context.Context, q driver.StatusRequest) (*driver.StatusReply, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTime)
		defer cancel()
	}
	s, err := c.dial(ctx, q)
	if err != nil {
		return nil, err
	}
	defer s.c.Close()
	defer context.AfterFunc(ctx, func() { s.c.Close() })()
	var p driver.StatusReply
	if err := s.reply(&p); err != nil {
		if ctx.Err() != nil {
			err = &driver.DeadlineError{Waited: "the holder's answer", Cause: context.Cause(ctx)}
		}
		return nil, c.fail(q.Op, err)
	}
	return &p, nil
}

// Snapshot is of driver.Inspector.
func (c *Client) Snapshot(ctx context.Context) (*driver.Snapshot, error) {
	p, err := c.ask(ctx, driver.StatusRequest{Op: "snapshot"})
	if err != nil {
		return nil, err
	}
	if p.Snapshot == nil {
		return nil, c.fail("snapshot", errors.New("the answer has none"))
	}
	return p.Snapshot, nil
}

// Registers is of driver.Inspector.
func (c *Client) Registers(ctx context.Context) ([]driver.RegisterValue, error) {
	p, err := c.ask(ctx, driver.StatusRequest{Op: "registers"})
	if err != nil {
		return nil, err
	}
	return p.Registers, nil
}

// Scrub is of driver.Inspector.
func (c *Client) Scrub(ctx context.Context) (driver.ScrubReport, error) {
	p, err := c.ask(ctx, driver.StatusRequest{Op: "scrub"})
	if err != nil {
		return driver.ScrubReport{}, err
	}
	if p.Scrub == nil {
		return driver.ScrubReport{}, c.fail("scrub", errors.New("the answer has none"))
	}
	return *p.Scrub, nil
}

// Events gives the holder's newest asynchronous events, oldest first.
func (c *Client) Events(ctx context.Context) ([]driver.Event, error) {
	p, err := c.ask(ctx, driver.StatusRequest{Op: "events"})
	if err != nil {
		return nil, err
	}
	return p.Events, nil
}

// Trace is of driver.Inspector.
func (c *Client) Trace(ctx context.Context, o driver.TraceOptions) (driver.Stream[driver.TraceRecord], error) {
	return open(ctx, c, driver.StatusRequest{Op: "trace", QPN: o.QPN, Count: o.Count}, func(p *driver.StatusReply) *driver.TraceRecord { return p.Trace })
}

// Capture is of driver.Inspector.
func (c *Client) Capture(ctx context.Context, o driver.CaptureOptions) (driver.Stream[driver.CaptureFrame], error) {
	return open(ctx, c, driver.StatusRequest{Op: "capture", QPN: o.QPN, Count: o.Count}, func(p *driver.StatusReply) *driver.CaptureFrame { return p.Frame })
}

// stream reads records from a session.
type stream[T any] struct {
	c   *Client
	s   *session
	op  string
	get func(*driver.StatusReply) *T

	mu  sync.Mutex // one reader at a time
	err error      // once it has ended
}

func open[T any](ctx context.Context, c *Client, q driver.StatusRequest, get func(*driver.StatusReply) *T) (driver.Stream[T], error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTime)
		defer cancel()
	}
	s, err := c.dial(ctx, q)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.c.Close() })
	var p driver.StatusReply
	err = s.reply(&p)
	if err == nil && !p.Started {
		err = errors.New("the answer does not start a stream")
	}
	if !stop() {
		err = &driver.DeadlineError{Waited: "the stream to start", Cause: context.Cause(ctx)}
	}
	if err != nil {
		s.c.Close()
		return nil, c.fail(q.Op, err)
	}
	return &stream[T]{c: c, s: s, op: q.Op, get: get}, nil
}

// Next is of driver.Stream. A context that ends while a record is half read
// ends the stream.
func (t *stream[T]) Next(ctx context.Context) (v T, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return v, t.err
	}
	// Wait for the line's beginning, which may be given up, then read it.
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = t.s.c.SetReadDeadline(time.Unix(1, 0))
		close(fired)
	})
	_, err = t.s.r.Peek(1)
	if !stop() {
		<-fired
		if e := t.s.c.SetReadDeadline(time.Time{}); e != nil && err == nil {
			err = e
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return v, t.c.fail(t.op, &driver.DeadlineError{Waited: "a record", Cause: context.Cause(ctx)})
		}
	}
	var p driver.StatusReply
	if err == nil {
		err = t.s.reply(&p)
	} else {
		err = ended(err)
	}
	switch r := t.get(&p); {
	case err != nil:
		t.err = t.c.fail(t.op, err)
	case p.End:
		t.err = io.EOF
	case r == nil:
		t.err = t.c.fail(t.op, errors.New("an answer without a record"))
	default:
		return *r, nil
	}
	return v, t.err
}

// Close is of driver.Stream.
func (t *stream[T]) Close() error { return t.s.c.Close() }
