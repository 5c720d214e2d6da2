package driver

import (
	"context"
	"errors"
	"time"
)

// callTime bounds a control call whose context has no deadline.
const callTime = 5 * time.Second

// bound gives a context that ends: with ctx's deadline, or in callTime.
func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, callTime)
}

// ctlLock serializes the control calls on an object; a context bounds the
// wait.
type ctlLock chan struct{}

func newCtlLock() ctlLock { return make(ctlLock, 1) }

func (l ctlLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &DeadlineError{Waited: "another call on the same object", Cause: ctx.Err()}
	}
}

func (l ctlLock) unlock() { <-l }

// isGone reports whether the device can no longer be reached.
func isGone(err error) bool { return errors.Is(err, ErrDeviceGone) || errors.Is(err, ErrClosed) }
