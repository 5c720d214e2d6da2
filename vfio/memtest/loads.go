// Package memtest helps tests of code that shares memory with a device or a
// peer: such memory may have another value at each load.
package memtest

import (
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Loads counts how often f, on this thread, touches the byte at b, by a
// breakpoint of the processor (linux/perf_event.h). Where the process may not
// set one, the test is skipped.
func Loads(tb testing.TB, b *byte, f func()) int {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_BREAKPOINT, Size: unix.PERF_ATTR_SIZE_VER1,
		Bp_type: 3, // HW_BREAKPOINT_RW; amd64 has none for loads alone
		Ext1:    uint64(reflect.ValueOf(b).Pointer()),
		Ext2:    1, // bytes
		Bits:    unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	fd, err := unix.PerfEventOpen(&a, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	for _, none := range []error{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.ENOENT, unix.EOPNOTSUPP} {
		if errors.Is(err, none) {
			tb.Skipf("missing: the processor's breakpoints for this process (perf_event_open: %v; see kernel.perf_event_paranoid, or run as root)", err)
		}
	}
	if err != nil {
		tb.Fatalf("perf_event_open: %v", err)
	}
	defer unix.Close(fd)
	f()
	var n [8]byte
	if _, err := unix.Read(fd, n[:]); err != nil {
		tb.Fatal(err)
	}
	return int(binary.NativeEndian.Uint64(n[:]))
}

// Least is Loads of what make gives, the least of a few runs where it is over
// limit: an interrupted load may be counted again, and a load that is there is
// there in each run.
func Least(tb testing.TB, b *byte, limit int, make func() func()) int {
	tb.Helper()
	n := Loads(tb, b, make())
	for range 5 {
		if n <= limit {
			break
		}
		n = min(n, Loads(tb, b, make()))
	}
	return n
}
