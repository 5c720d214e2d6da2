package vfio

import (
	"errors"
	"fmt"
	"strings"
)

// Causes that callers test for with errors.Is.
var (
	ErrGone         = errors.New("device is gone")
	ErrClosed       = errors.New("device is closed")
	ErrTimeout      = errors.New("no answer within the deadline")
	ErrNotFound     = errors.New("no such device, region or interrupt")
	ErrBusy         = errors.New("device is held by another process")
	ErrPermission   = errors.New("permission denied")
	ErrNotSupported = errors.New("not supported")
	ErrInvalid      = errors.New("invalid argument")
	ErrRange        = errors.New("outside the region")
	ErrExists       = errors.New("overlaps an existing DMA mapping")
	ErrNotMapped    = errors.New("no such DMA mapping")
	ErrAlignment    = errors.New("not made of whole pages")
	ErrExhausted    = errors.New("no free DMA address range")
	ErrInUse        = errors.New("still in use")
	ErrProtocol     = errors.New("peer broke the protocol")
)

// Error is the error of an operation on a device.
type Error struct {
	Addr   string // the device's address, or "" where none is involved
	Op     string // what was attempted
	Object string // region, IOVA range, interrupt … with its value, or ""
	Err    error  // the cause, one of the package's Err* or an errno
}

// Error gives "ADDR: op object: cause".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("vfio: ")
	if e.Addr != "" {
		b.WriteString(e.Addr + ": ")
	}
	b.WriteString(e.Op)
	if e.Object != "" {
		b.WriteString(" " + e.Object)
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// BusyError says who holds a device. It is ErrBusy.
type BusyError struct{ PID int } // PID is 0 where it cannot be known

// Error names the holder and says what to do.
func (e *BusyError) Error() string {
	if e.PID == 0 {
		return ErrBusy.Error() + "; end that process first"
	}
	return fmt.Sprintf("%v (pid %d); end that process first", ErrBusy, e.PID)
}

// Is makes errors.Is(err, ErrBusy) true.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }
