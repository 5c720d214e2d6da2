package vm

import (
	"errors"
	"os"
	"strings"

	"rnic/test/vm/debian"
)

// ErrUnavailable is a guest that could not be prepared: the error tells what is missing.
var ErrUnavailable = errors.New("no virtual machine")

// TB is what Check needs of a testing.TB.
type TB interface {
	Helper()
	Name() string
	Skip(args ...any)
	Fatal(args ...any)
}

// Skipped begins the line by which a test says that its leg was skipped; make test repeats those lines at its end.
const Skipped = "leg skipped: "

// Check ends a test whose guest gave no verdict. Where the guest could not be prepared that is a skip, by name and reason;
// with CI in the environment it is a failure, unless only the mirror lacks what is needed.
func Check(t TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrUnavailable) && (os.Getenv("CI") == "" || onlyMirror(err)):
		t.Skip(Skipped + t.Name() + ": " + strings.Join(strings.Fields(err.Error()), " "))
	default:
		t.Fatal(err)
	}
}

// onlyMirror says that the mirror's lack is the whole cause: of errors that were joined, of each.
func onlyMirror(err error) bool {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range j.Unwrap() {
			if e == ErrUnavailable || e == debian.ErrMirrorLacks || onlyMirror(e) {
				continue
			}
			return false
		}
		return errors.Is(err, debian.ErrMirrorLacks)
	}
	if e := errors.Unwrap(err); e != nil {
		return onlyMirror(e)
	}
	return err == debian.ErrMirrorLacks
}
