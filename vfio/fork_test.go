package vfio

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What a device reads and writes, and mapped regions, are not in a child of a
// fork: the kernel says "dc" of them (proc_pid_smaps(5)).
func TestNotInherited(t *testing.T) {
	m := mustAlloc(t, 0x4000)
	fd, err := unix.MemfdCreate("bar", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 0x4000); err != nil {
		t.Fatal(err)
	}
	r, err := NewMapping(0x4000, []Area{{0, 0x4000}}, fd, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	for what, first := range map[string]uintptr{"DMA memory": addr(m.Bytes()), "a region": addr(r.Bytes(0, 1))} {
		_, rest, ok := bytes.Cut(smaps, fmt.Appendf(nil, "%x-", first))
		_, flags, _ := bytes.Cut(rest, []byte("VmFlags:"))
		flags, _, _ = bytes.Cut(flags, []byte("\n"))
		if !ok || !bytes.Contains(append(flags, ' '), []byte(" dc ")) {
			t.Errorf("%s has the flags %q (found: %v)", what, flags, ok)
		}
	}
	for _, f := range []func() error{r.Release, m.Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
}
