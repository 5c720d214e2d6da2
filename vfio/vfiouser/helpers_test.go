package vfiouser

import (
	"bytes"
	"net"
	"os"
	"testing"
	"unsafe"
)

// host_ names the type where a variable is called host.
type host_ = host

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// countFDs is the number of descriptors that this process has open.
func countFDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// countMaps is the number of mappings of this process that are backed by a
// memfd.
func countMaps(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("/memfd:"))
}

type netDialer struct{}

func (*netDialer) dial(path string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}

// loadByte and storeByte access memory that a device writes: the race
// detector must not look.
//
//go:norace
func loadByte(b []byte, i int) byte { return b[i] }

//go:norace
func storeByte(b []byte, i int, v byte) { b[i] = v }

// spare is a descriptor to send along, open until the test's end.
func (r *raw) spare() int {
	r.t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}
