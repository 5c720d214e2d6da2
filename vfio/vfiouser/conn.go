package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

const (
	// queuedCommands is how many commands of the peer wait for the handler.
	// The reader goes on taking replies until they are that many.
	queuedCommands = 64
	// maxCalls is how many commands this end has under way at once: fewer than
	// a peer of ours queues, so that its reader never stops on our account.
	maxCalls = 32
	// maxLate is how many replies to abandoned commands are awaited before no
	// further command is sent.
	maxLate = 1024
)

// conn carries messages both ways over one socket, the same at both ends.
//
// The reader goroutine hands replies to the callers that wait for them and
// commands to the handler goroutine. It never writes and waits for nothing but
// the socket and room in the handler's queue. Callers and the handler write,
// each under a deadline.
type conn struct {
	uc      *net.UnixConn
	timeout time.Duration

	calls chan struct{} // a place for each call under way
	write chan struct{} // holds one token: the right to write

	mu      sync.Mutex
	pending map[uint16]*call
	nextID  uint16
	err     error

	done    chan struct{} // closed by fail
	cmds    chan *message
	running sync.WaitGroup
}

// call is a command whose reply is awaited, or would be had it not been
// abandoned.
type call struct {
	cmd   command
	reply chan *message // capacity 1
	late  bool          // abandoned: the reply is discarded
}

func newConn(uc *net.UnixConn, timeout time.Duration) *conn {
	c := &conn{
		uc: uc, timeout: timeout,
		calls: make(chan struct{}, maxCalls), write: make(chan struct{}, 1),
		pending: make(map[uint16]*call), done: make(chan struct{}),
		cmds: make(chan *message, queuedCommands),
	}
	c.write <- struct{}{}
	return c
}

// run starts the reader and the handler. handle is called for each command in
// order and owns the message and its descriptors; commands that came whole
// before the end are still handled after it.
func (c *conn) run(handle func(*message)) {
	c.running.Go(func() {
		defer close(c.cmds)
		for {
			m, err := c.read()
			if err == nil {
				err = c.dispatch(m)
			}
			if err != nil {
				c.fail(err)
				return
			}
		}
	})
	c.running.Go(func() {
		for m := range c.cmds {
			handle(m)
		}
	})
}

// fail ends the connection; the first cause stays.
func (c *conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
	}
	c.mu.Unlock()
	if first {
		close(c.done)
		_ = c.uc.Close()
	}
}

// cause is why the connection ended.
func (c *conn) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read takes one message from the socket: io.EOF at its orderly end.
func (c *conn) read() (*message, error) {
	m := &message{}
	var h [headerSize]byte
	if err := c.fill(m, h[:], true); err != nil {
		m.closeFDs()
		return nil, err
	}
	var err error
	if m.header, err = parseHeader(h[:]); err == nil {
		m.body = make([]byte, m.size-headerSize)
		err = c.fill(m, m.body, false)
	}
	if err != nil {
		m.closeFDs()
		return nil, err
	}
	return m, nil
}

// fill reads exactly b. Descriptors come with the first byte of the write that
// carried them; since nothing is read beyond a message, they are the message's.
func (c *conn) fill(m *message, b []byte, first bool) error {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for got := 0; got < len(b); {
		n, oobn, flags, _, err := c.uc.ReadMsgUnix(b[got:], oob)
		if oobn > 0 {
			if e := m.takeFDs(oob[:oobn]); err == nil {
				err = e
			}
		}
		switch {
		case flags&unix.MSG_CTRUNC != 0:
			return protocolError("more descriptors than the %d that were agreed, or no room for them (RLIMIT_NOFILE)", maxFDs)
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case n == 0 && first && got == 0 && len(m.fds) == 0:
			return io.EOF
		case n == 0:
			return protocolError("end of stream inside a message")
		}
		got += n
	}
	return nil
}

func (m *message) takeFDs(oob []byte) error {
	cms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return protocolError("control message: %v", err)
	}
	for i := range cms {
		if cms[i].Header.Level != unix.SOL_SOCKET || cms[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&cms[i])
		if err != nil {
			return protocolError("descriptors: %v", err)
		}
		m.fds = append(m.fds, fds...)
	}
	if len(m.fds) > maxFDs {
		return protocolError("%d descriptors in one message, agreed were %d", len(m.fds), maxFDs)
	}
	return nil
}

// dispatch hands a message on, on the reader's goroutine.
func (c *conn) dispatch(m *message) error {
	if !m.reply() {
		select {
		case c.cmds <- m:
			return nil
		default:
		}
		t := time.NewTimer(c.timeout)
		defer t.Stop()
		select {
		case c.cmds <- m:
			return nil
		case <-c.done:
			m.closeFDs()
			return c.cause()
		case <-t.C:
			m.closeFDs()
			return fmt.Errorf("%w: %d commands queued and none finished", vfio.ErrTimeout, queuedCommands)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[m.id]
	delete(c.pending, m.id)
	switch {
	case p == nil || p.cmd != m.cmd:
		m.closeFDs()
		return protocolError("reply to %v, id %d, that nobody sent", m.cmd, m.id)
	case p.late:
		m.closeFDs()
	default:
		p.reply <- m // has room: one reply for each call
	}
	return nil
}

// call sends a command and waits for its reply, which is the caller's with its
// descriptors. An error reply is an error. When ctx ends first, the reply will
// be discarded. The descriptors fds stay the caller's.
func (c *conn) call(ctx context.Context, cmd command, body []byte, fds ...int) (*message, error) {
	select {
	case c.calls <- struct{}{}:
		defer func() { <-c.calls }()
	case <-c.done:
		return nil, c.cause()
	case <-ctx.Done():
		return nil, timeoutOf(ctx)
	}
	p := &call{cmd: cmd, reply: make(chan *message, 1)}
	c.mu.Lock()
	if len(c.pending) >= maxCalls+maxLate {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %d commands are unanswered", vfio.ErrTimeout, maxCalls+maxLate)
	}
	for c.pending[c.nextID] != nil {
		c.nextID++
	}
	id := c.nextID
	c.nextID++
	c.pending[id] = p
	c.mu.Unlock()

	if sent, err := c.send(ctx, header{id: id, cmd: cmd}, body, fds); err != nil {
		if !sent {
			c.mu.Lock()
			delete(c.pending, id)
			c.mu.Unlock()
		}
		return nil, err
	}
	var m *message
	select {
	case m = <-p.reply:
	case <-c.done:
		select {
		case m = <-p.reply: // it came before the end
		default:
			return nil, c.cause()
		}
	case <-ctx.Done():
		c.mu.Lock()
		p.late = true
		c.mu.Unlock()
		select {
		case m = <-p.reply: // it came after all
		default:
			return nil, timeoutOf(ctx)
		}
	}
	if m.flags&flagError != 0 {
		m.closeFDs()
		return nil, errorOf(m.errno)
	}
	return m, nil
}

func timeoutOf(ctx context.Context) error {
	return fmt.Errorf("%w (%w)", vfio.ErrTimeout, context.Cause(ctx))
}

// send writes one message. sent says whether any of it may have left. A
// message that left in part ends the connection.
func (c *conn) send(ctx context.Context, h header, body []byte, fds []int) (sent bool, err error) {
	select {
	case <-c.write:
		defer func() { c.write <- struct{}{} }()
	case <-c.done:
		return false, c.cause()
	case <-ctx.Done():
		return false, timeoutOf(ctx)
	}
	h.size = uint32(headerSize + len(body))
	b := append(h.append(make([]byte, 0, headerSize+len(body))), body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	limit := time.Now().Add(c.timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		limit = d
	}
	_ = c.uc.SetWriteDeadline(limit)
	for off := 0; off < len(b); {
		n, _, err := c.uc.WriteMsgUnix(b[off:], oob, nil)
		if n > 0 {
			off, oob = off+n, nil
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && off == 0:
			return false, fmt.Errorf("%w: the peer does not read", vfio.ErrTimeout)
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.fail(fmt.Errorf("%w: the peer stopped reading inside a message", vfio.ErrTimeout))
			return true, c.cause()
		default:
			c.fail(err)
			return true, c.cause()
		}
	}
	return true, nil
}

// answer sends the reply to command m: an error reply where err is set. The
// peer must take it within the connection's time.
func (c *conn) answer(m *message, body []byte, fds []int, err error) {
	if m.flags&flagNoReply != 0 {
		return
	}
	h := header{id: m.id, cmd: m.cmd, flags: flagReply}
	if err != nil {
		h.flags, h.errno = h.flags|flagError, uint32(errnoOf(err))
		body, fds = nil, nil
	}
	if _, err := c.send(context.Background(), h, body, fds); err != nil {
		c.fail(err)
	}
}
