package driver_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// closing is a connection whose peer closes it as soon as it is ready: a pipe
// takes no deadline then.
type closing struct{ net.Conn }

func (c closing) SetDeadline(t time.Time) error {
	if t.IsZero() {
		return io.ErrClosedPipe
	}
	return c.Conn.SetDeadline(t)
}

// A peer that closes the connection once both are ready does no harm.
func TestConnectViaPeerCloses(t *testing.T) {
	a, b := newSide(t, "soft:a?wire=closes", 16, smallQP), newSide(t, "soft:b?wire=closes", 16, smallQP)
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := b.qp.ConnectVia(context.Background(), closing{there}, nil)
		done <- err
	}()
	if _, err := a.qp.ConnectVia(context.Background(), here, nil); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
