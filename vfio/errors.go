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
	ErrExhausted    = errors.New("no more to be had")
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

// Checks of a machine by their stable names: SetupError has them, and so has
// rnicctl doctor, which looks beforehand.
const (
	CheckIOMMUOff       = "iommu-off"
	CheckNoIOMMU        = "noiommu"
	CheckNoModule       = "vfio-module-missing"
	CheckNotBound       = "not-bound"
	CheckGroupNotViable = "group-not-viable"
	CheckNoPermission   = "no-permission"
	CheckMSINoRemap     = "msi-no-remap"
	CheckVFToken        = "vf-token"
	CheckMemlockLow     = "memlock-low"
	CheckMappingLimit   = "mapping-limit"
	CheckBusy           = "busy"
	CheckIOVAWidth      = "iova-width"
	CheckMSIWindow      = "msi-window"
)

// SetupError is what this machine has to change before a device can be used
// as asked. It unwraps to its cause: a sentinel, and the errno where there was
// one.
type SetupError struct {
	Check  string // a Check* name
	Object string // what it is about: a function, a group, a node, a limit
	Value  string // how it is now
	Limit  string // how it must be
	Fix    string // what to do: a command, or words
	Err    error
}

// Error names the check, the object, its value, the limit and the remedy.
func (e *SetupError) Error() string {
	return fmt.Sprintf("%s: %s: %s; must be: %s; fix: %s (%v)", e.Check, e.Object, e.Value, e.Limit, e.Fix, e.Err)
}

// Unwrap gives the cause.
func (e *SetupError) Unwrap() error { return e.Err }

// VectorsError is a function for which the machine has fewer interrupt vectors
// than were asked for; nothing was connected. Ask again for Available. It is
// ErrExhausted.
type VectorsError struct{ Asked, Available int }

// Error gives both numbers.
func (e *VectorsError) Error() string {
	return fmt.Sprintf("%d interrupt vectors were asked for, and the machine has %d", e.Asked, e.Available)
}

// Is makes errors.Is(err, ErrExhausted) true.
func (e *VectorsError) Is(target error) bool { return target == ErrExhausted }
