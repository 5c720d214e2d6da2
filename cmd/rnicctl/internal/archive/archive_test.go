package archive

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio/pcidev"
)

// TestSameBytes: the same files give the same archive, in whatever order they were added; what is long is cut.
func TestSameBytes(t *testing.T) {
	make := func(order []int) []byte {
		a := New("x")
		for _, i := range order {
			switch i {
			case 0:
				a.Add("b", "two", []byte("2"))
			case 1:
				a.Add("a", "one", bytes.Repeat([]byte("1"), maxData+1))
			case 2:
				a.Missing("c", "no luck")
			}
		}
		var out bytes.Buffer
		n, err := a.Write(&out)
		if err != nil || n != int64(out.Len()) {
			t.Fatalf("%d bytes of %d, %v", n, out.Len(), err)
		}
		if f := a.Files()[0]; len(f.Data) != maxData || !strings.Contains(f.What, "the first") {
			t.Errorf("%d bytes, %q", len(f.Data), f.What)
		}
		return out.Bytes()
	}
	if !bytes.Equal(make([]int{0, 1, 2}), make([]int{2, 1, 0})) {
		t.Error("another order gives other bytes")
	}
}

// TestKernelLogIsNotWaitedFor: a log without another record ends the reading, as /dev/kmsg does by EAGAIN; one
// that may not be read is missing, with the reason.
func TestKernelLogIsNotWaitedFor(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "kmsg")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(fifo, os.O_RDWR, 0) // a writer that stays: reading gives EAGAIN at the end
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString("6,1,7,-;vfio-pci 0000:03:00.0: enabled\n6,2,8,-;else\nno record\n"); err != nil {
		t.Fatal(err)
	}
	a := New("x")
	kernelLog(a, fifo, nil)
	if f := a.Files()[0]; string(f.Data) != "[7 µs] vfio-pci 0000:03:00.0: enabled\n" || f.Why != "" {
		t.Errorf("%+v", f)
	}
	a = New("x")
	kernelLog(a, fifo+"2", nil)
	if f := a.Files()[0]; !strings.Contains(f.Why, "no such file") || !strings.Contains(f.Why, "dmesg_restrict") {
		t.Errorf("%+v", f)
	}
	a = New("x")
	System(a, pcidev.Under(t.TempDir()), nil) // a machine with nothing
	for _, f := range a.Files() {
		if f.Why == "" && f.Name != "kernel/parameters.txt" {
			t.Errorf("%+v", f)
		}
	}
}
