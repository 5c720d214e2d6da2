package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"rnic/hw"
	"rnic/vfio"
)

// Causes, for errors.Is. Those that package vfio has too are the same values.
var (
	ErrNotFound     = vfio.ErrNotFound     // no such device, register or object
	ErrBusy         = vfio.ErrBusy         // another process holds the device; the error names its pid
	ErrPermission   = vfio.ErrPermission   // not permitted to open the device
	ErrNotSupported = vfio.ErrNotSupported // this card or this driver lacks it
	ErrDeviceGone   = vfio.ErrGone         // the card, or the process that offers it, has gone away
	ErrClosed       = vfio.ErrClosed       // the object was closed
	ErrTimeout      = vfio.ErrTimeout      // no answer within the deadline
	ErrInvalid      = vfio.ErrInvalid      // an argument that can never work
	ErrInUse        = vfio.ErrInUse        // others use the object, or the number is taken
	ErrAlignment    = vfio.ErrAlignment    // memory that is not whole pages; use PD.AllocMR

	ErrContractVersion = errors.New("card contract version not supported")
	ErrLimit           = errors.New("limit of the card reached")
	ErrQueueFull       = errors.New("queue is full; poll its completions first")
	ErrState           = errors.New("not possible in this state of the queue pair")
	ErrTooManySGEs     = errors.New("too many scatter-gather entries")
	ErrInline          = errors.New("inline payload not possible")
	ErrOverrun         = errors.New("completion queue overflowed; its queue pairs are in error")
	ErrNoRoute         = errors.New("no way to that peer")
)

// DeviceError is the error of an operation on a device. It unwraps to its
// cause.
type DeviceError struct {
	Addr   string // the device's address
	Op     string // what was attempted
	Object string // "QP 0x11", "MR 0x8000112" …, or ""
	Err    error
}

// Error gives "rnic: ADDR: op object: cause". Address and operation stand there once, where the cause is package
// vfio's and has the same.
func (e *DeviceError) Error() string {
	s := "rnic: " + e.Addr + ": " + e.Op
	if e.Object != "" {
		s += " " + e.Object
	}
	cause := e.Err.Error()
	if v, ok := e.Err.(*vfio.Error); ok && v.Addr == e.Addr {
		if v.Op == e.Op && v.Object == "" {
			cause = v.Err.Error()
		} else {
			bare := *v
			bare.Addr = ""
			cause = bare.Error()
		}
	}
	return s + ": " + cause
}

// Unwrap gives the cause.
func (e *DeviceError) Unwrap() error { return e.Err }

// CommandError is a command that the card refused. errors.Is maps its status
// to the sentinels: ErrState, ErrInUse, ErrLimit, ErrNotSupported,
// ErrNotFound, ErrInvalid.
type CommandError struct {
	Command  hw.Command
	Object   uint32 // number of the object
	Status   hw.CommandStatus
	Syndrome hw.CommandSyndrome // which parameter, with CommandStatusBadParam
}

// Error names command, object, status and parameter.
func (e *CommandError) Error() string {
	s := fmt.Sprintf("card refused %v of %#x: %v", e.Command, e.Object, e.Status)
	if e.Syndrome != hw.CommandSyndromeNone {
		s += fmt.Sprintf(" (%v)", e.Syndrome)
	}
	return s
}

// Is maps the status to a sentinel.
func (e *CommandError) Is(target error) bool {
	switch e.Status {
	case hw.CommandStatusInUse:
		return target == ErrInUse
	case hw.CommandStatusBadState:
		return target == ErrState
	case hw.CommandStatusNoResource:
		return target == ErrLimit
	case hw.CommandStatusUnsupported, hw.CommandStatusBadOpcode:
		return target == ErrNotSupported
	case hw.CommandStatusBadObject:
		return target == ErrNotFound
	case hw.CommandStatusBadParam:
		return target == ErrInvalid || target == ErrState && e.Syndrome == hw.CommandSyndromeTransition
	case hw.CommandStatusReservedNotZero:
		return target == ErrInvalid
	}
	return false
}

// DeadlineError is a call that ended by its deadline or by cancellation. It is
// ErrTimeout and the context's error, and shows the registers that explain it.
type DeadlineError struct {
	Waited    string          // what for
	Registers []RegisterValue // as they stood then, where the card was asked and answered
	Cause     error           // the context's error
}

// Error names what was waited for and the registers.
func (e *DeadlineError) Error() string {
	var b strings.Builder
	if errors.Is(e.Cause, context.Canceled) {
		fmt.Fprintf(&b, "cancelled: waited for %s (%v)", e.Waited, e.Cause)
	} else {
		fmt.Fprintf(&b, "%v: waited for %s (%v)", ErrTimeout, e.Waited, e.Cause)
	}
	for i, r := range e.Registers {
		b.WriteString([]string{"; ", ", "}[min(i, 1)] + r.String())
	}
	return b.String()
}

// Unwrap gives ErrTimeout and the context's error.
func (e *DeadlineError) Unwrap() []error { return []error{ErrTimeout, e.Cause} }

// CompletionError is a work request that failed: the first cause, as the card
// reported it. Opcode is that of the request, for a receive Recv.
type CompletionError struct {
	Status  Status
	WRID    uint64
	QPN     uint32
	Opcode  Opcode
	Segment int    // data segment that failed, from 0; -1: not a fault of one segment
	Key     uint32 // its key
	Offset  uint64 // byte offset in it
	Reason  Reason // vendor syndrome
	AETH    uint8  // AETH syndrome of the far end, with ReasonRemoteNAK or ReasonRNR
}

// Is makes a completion that verification spoiled ErrVerify; QP.VerifyError has the
// rest.
func (e *CompletionError) Is(target error) bool {
	return target == ErrVerify && e.Reason == ReasonVerify
}

// Error names request, status, reason and, where there is one, the segment.
func (e *CompletionError) Error() string {
	s := fmt.Sprintf("rnic: QP %#x: %v work request %#x: %v (%v)", e.QPN, e.Opcode, e.WRID, e.Status, e.Reason)
	if e.Segment >= 0 {
		s += fmt.Sprintf(": segment %d, key %#x, offset %d", e.Segment, e.Key, e.Offset)
	}
	if e.Reason == ReasonRemoteNAK || e.Reason == ReasonRNR {
		s += fmt.Sprintf(": AETH syndrome %#02x", e.AETH)
	}
	return s
}
