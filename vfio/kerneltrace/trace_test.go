package kerneltrace

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio/uapi"
)

// open starts a trace of this process, or says what this machine lacks.
func open(t *testing.T) *Trace {
	t.Helper()
	tr, err := Open(Options{PID: os.Getpid()})
	if err != nil {
		t.Skipf("this machine lets nothing be traced: %v", err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, l := range tr.Missing() {
		if strings.HasPrefix(l.What, "mappings") {
			t.Skipf("this machine lets no mappings be traced: %v", l.Err)
		}
	}
	return tr
}

// TestLive: the real kernel sees ioctls with VFIO's numbers, whatever file they go to; /dev/null refuses them with ENOTTY.
func TestLive(t *testing.T) {
	tr := open(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	call := func(cmd uintptr, arg unsafe.Pointer) {
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, null.Fd(), cmd, uintptr(arg)); err != unix.ENOTTY {
			t.Fatalf("ioctl %#x: %v", cmd, err)
		}
	}
	dma := uapi.DMAMap{Argsz: 32, Flags: uapi.VFIO_DMA_MAP_FLAG_READ, Vaddr: 0x1000, Iova: 0x20000, Size: 0x3000}
	ioas := uapi.IoasMap{Size: 40, Flags: uapi.IOMMU_IOAS_MAP_READABLE, Length: 0x5000, Iova: 0x70000}
	call(uapi.VFIO_IOMMU_MAP_DMA, unsafe.Pointer(&dma))
	call(unix.TIOCGWINSZ, nil) // another's: not told
	call(uapi.IOMMU_IOAS_MAP, unsafe.Pointer(&ioas))
	call(uapi.VFIO_DEVICE_RESET, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, want := range []Event{
		{Kind: Map, Address: 0x20000, Size: 0x3000}, {Kind: Map, Address: 0x70000, Size: 0x5000}, {Kind: DeviceReset},
	} {
		e, err := tr.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != want.Kind || e.Address != want.Address || e.Size != want.Size || e.Err != syscall.ENOTTY || e.PID != os.Getpid() || e.Time <= 0 || e.Lost != 0 {
			t.Errorf("%+v, want %+v", e, want)
		}
	}
}

// TestEnd: a wait ends by its context, and by Close.
func TestEnd(t *testing.T) {
	tr := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tr.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context: %v", err)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if _, err := tr.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after Close: %v", err)
	}
}

// TestNoSuchProcess: a number that is no process is refused before anything is loaded.
func TestNoSuchProcess(t *testing.T) {
	for _, pid := range []int{-1, 1<<22 + 1} {
		if tr, err := Open(Options{PID: pid}); err == nil {
			tr.Close()
			t.Errorf("process %d was taken", pid)
		}
	}
}
