package vfio

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"rnic/hw/mmio"
)

// windows are the address ranges in which a fault is an error of the memory's
// owner and not a bug of this program: shared memory and mapped regions.
var windows struct {
	sync.Mutex
	m map[uintptr]uintptr // first address → size
}

// AddWindow says that a fault in these n bytes is for Guard to catch. Device
// implementations call it for the memory that they map.
func AddWindow(first, n uintptr) {
	windows.Lock()
	defer windows.Unlock()
	if windows.m == nil {
		windows.m = make(map[uintptr]uintptr)
	}
	windows.m[first] = n
}

// RemoveWindow ends AddWindow.
func RemoveWindow(first uintptr) {
	windows.Lock()
	defer windows.Unlock()
	delete(windows.m, first)
}

func inWindow(addr uintptr) bool {
	windows.Lock()
	defer windows.Unlock()
	for first, n := range windows.m {
		if addr >= first && addr-first < n {
			return true
		}
	}
	return false
}

// Guard runs f. A memory fault of f in shared or mapped device memory (a page
// that the other side has taken away, a device that is gone) becomes an error;
// every other panic goes on. What f locked without defer stays locked.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer catch(old, &err)
	f()
	return nil
}

// GuardCopy is Guard of a copy, for the data path.
func GuardCopy(dst, src []byte) (err error) {
	old := debug.SetPanicOnFault(true)
	defer catch(old, &err)
	copy(dst, src)
	return nil
}

// GuardCopyOwned is GuardCopy of an entry of a ring: its last four bytes, which say whose it is,
// are stored after the rest, for a reader that polls them.
func GuardCopyOwned(dst, src []byte) (err error) {
	old := debug.SetPanicOnFault(true)
	defer catch(old, &err)
	owner := len(src) - 4
	copy(dst, src[:owner])
	mmio.ToDevice()
	copy(dst[owner:], src[owner:])
	return nil
}

// catch ends a guarded call, as the function that it defers.
func catch(old bool, err *error) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		e, ok := r.(interface {
			runtime.Error
			Addr() uintptr
		})
		if !ok || !inWindow(e.Addr()) {
			panic(r)
		}
		*err = &Error{Op: "access device memory", Object: fmt.Sprintf("at %#x", e.Addr()), Err: ErrGone}
	}
}
