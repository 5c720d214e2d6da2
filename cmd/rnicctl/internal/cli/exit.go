package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"rnic/driver"
	"rnic/vfio"
)

// Exit codes that scripts can use. docs/rnicctl.md has the table.
const (
	exitOK          = 0
	exitFound       = 1   // it ran and found something wrong
	exitUsage       = 2   // bad usage or file
	exitNoCard      = 3   // no such card
	exitHeld        = 4   // held by another process
	exitPermission  = 5   // not permitted
	exitLacks       = 6   // this machine or card lacks it
	exitGone        = 7   // device gone or deadline passed
	exitInterrupted = 130 // interrupted
)

// failure is an error with the exit code, the stable code of its JSON form and what to do about it.
type failure struct {
	exit int
	code string
	fix  string
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// usagef is a failure of bad usage or a bad file.
func usagef(fix, format string, a ...any) error {
	return &failure{exit: exitUsage, code: "usage", fix: fix, err: fmt.Errorf(format, a...)}
}

// errFound ends a command that ran, has reported, and found something wrong.
var errFound = &failure{exit: exitFound, code: "found", err: errors.New("something is wrong, see above")}

// classes maps causes to codes, the first match winning: a card that is gone often also shows as a deadline.
var classes = []struct {
	is   error
	exit int
	code string
	fix  string
}{
	{driver.ErrDeviceGone, exitGone, "device-gone", "see why the card went away, then start again"},
	{driver.ErrBusy, exitHeld, "held", "end the process that holds the card; what only looks, as info, qp or stats, asks it at its status socket"},
	{driver.ErrPermission, exitPermission, "not-permitted", "run as a user who may open the device"},
	{fs.ErrPermission, exitPermission, "not-permitted", "run as a user who may open it"},
	{driver.ErrNotFound, exitNoCard, "no-card", "`rnicctl list` shows the cards there are; `-d soft:` needs none"},
	{driver.ErrContractVersion, exitLacks, "contract-version", "use the release of rnicctl that matches the card's bitstream"},
	{driver.ErrImage, exitFound, "image-mismatch", "take the image that was built for this card and this release, with its own manifest: `rnicctl bitstream load`"},
	{driver.ErrNotSupported, exitLacks, "not-supported", "`rnicctl info` names what this card and driver can do"},
	{driver.ErrTimeout, exitGone, "deadline", "give more time with --timeout, or see if the card still answers: rnicctl selftest"},
	{context.DeadlineExceeded, exitGone, "deadline", "give more time with --timeout, or see if the card still answers: rnicctl selftest"},
	{driver.ErrInvalid, exitUsage, "usage", "correct what it names; `rnicctl --help` shows how a card is named"},
	{fs.ErrNotExist, exitUsage, "usage", "name a file that exists"},
}

// classify gives an error its exit code, stable code and remedy.
func classify(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	for _, c := range classes {
		if errors.Is(err, c.is) {
			fix := c.fix
			if s := (*vfio.SetupError)(nil); errors.As(err, &s) {
				fix = s.Fix // of this machine, and so better than any of ours
			}
			return &failure{exit: c.exit, code: c.code, fix: fix, err: err}
		}
	}
	return &failure{exit: exitFound, code: "failed", err: err}
}

// report writes a failure: text with the fix on stderr, and with --json an object on stdout too.
func (f *failure) report(a *app) {
	if f == errFound {
		return // the command's own report says it
	}
	fmt.Fprintln(a.err, "rnicctl:", printable(f.err.Error()))
	if f.fix != "" {
		fmt.Fprintln(a.err, "  fix:", printable(f.fix))
	}
	if a.json {
		_ = a.printJSON(failureJSON{Schema: "rnic.error.v1", Error: errorJSON{f.code, f.err.Error(), f.fix}})
	}
}

// failureJSON is what --json prints of a failure.
type failureJSON struct {
	Schema string    `json:"schema"`
	Error  errorJSON `json:"error"`
}

type errorJSON struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Fix     string `json:"fix"`
}
