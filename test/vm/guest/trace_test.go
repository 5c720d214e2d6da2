package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/driver"
	"rnic/vfio"
)

// kernelEvent is what tests want of an event of rnicctl trace kernel (docs/json/kernel-event.schema.json).
type kernelEvent struct {
	Event    string `json:"event"`
	PID      int    `json:"pid"`
	Device   string `json:"device"`
	Address  string `json:"address"`
	Size     uint64 `json:"size_bytes"`
	Duration int64  `json:"duration_ns"`
	Errno    string `json:"errno"`
	Detail   string `json:"detail"`
}

// watched runs rnicctl trace kernel for the card, until the test ends, and gives what it tells from its begin on.
func (e *end) watched(addr string) <-chan kernelEvent {
	t := e.t
	t.Helper()
	bdf, _, _ := strings.Cut(addr, "?")
	cmd := exec.CommandContext(t.Context(), tool, "trace", "kernel", "-d", bdf, "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	lacks := &strings.Builder{}
	cmd.Stderr = lacks
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Logf("rnicctl trace kernel: %s", lacks)
		if strings.Contains(lacks.String(), "not shown") {
			t.Error("rnicctl trace kernel could not attach to all")
		}
	})
	told, began := make(chan kernelEvent, 4096), make(chan bool, 1)
	go func() {
		defer close(told)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var k kernelEvent
			if err := json.Unmarshal(lines.Bytes(), &k); err != nil {
				continue
			}
			select {
			case began <- true:
			default:
			}
			told <- k
		}
	}()
	// It has begun when it tells of a mapping that is made for this.
	for range 300 {
		m, err := e.pd.RegMR(t.Context(), pages(t, 1), 0)
		if err == nil {
			err = m.Dereg(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-began:
			return told
		case <-time.After(200 * time.Millisecond):
		}
	}
	t.Fatal("rnicctl trace kernel tells of nothing")
	return nil
}

// tells waits for an event, and passes by others.
func tells(t *testing.T, told <-chan kernelEvent, what string, is func(kernelEvent) bool) kernelEvent {
	t.Helper()
	late := time.After(30 * time.Second)
	var others []kernelEvent
	for {
		select {
		case k, ok := <-told:
			if !ok {
				t.Fatalf("rnicctl trace kernel ended; it does not tell of %s, but of %+v", what, others)
			}
			if is(k) {
				t.Logf("%s: %+v", what, k)
				return k
			}
			others = append(others, k)
		case <-late:
			t.Fatalf("rnicctl trace kernel does not tell of %s, but of %+v", what, others)
		}
	}
}

// TestFaultsTraced: rnicctl trace kernel tells of each thing that the kernel does for a card, of the process that had it done,
// with address, size and time. Faults are in the tests before this one.
func TestFaultsTraced(t *testing.T) {
	first, second := pair(t)
	bdf, _, _ := strings.Cut(first, "?")
	a := openEnd(t, first)
	told := a.watched(first)
	next := func(what string, is func(kernelEvent) bool) kernelEvent {
		t.Helper()
		return tells(t, told, what, is)
	}
	mine := func(k kernelEvent, event string) bool {
		return k.Event == event && k.PID == os.Getpid() && k.Duration > 0 && k.Errno == ""
	}

	// A region: its pages are pinned inside of the mapping, and told as they are done, so before it.
	const n = 37
	mem := pages(t, n)
	size := uint64(len(mem))
	m, err := a.pd.RegMR(t.Context(), mem, driver.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	iova := a.iova(m.LKey())
	start, err := strconv.ParseUint(fmt.Sprintf("%p", mem), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	pinned := uint64(0)
	mapped := next("the mapping of the region", func(k kernelEvent) bool {
		at, _ := strconv.ParseUint(k.Address, 0, 64)
		if mine(k, "pin") && at >= start && at < start+size {
			pinned += k.Size
		}
		return mine(k, "map") && at == iova
	})
	if mapped.Size != size {
		t.Errorf("a mapping of %d bytes, want %d", mapped.Size, size)
	}
	if pinned != size {
		t.Errorf("pins of %d bytes of the region's memory, want %d", pinned, size)
	}
	if err := m.Dereg(t.Context()); err != nil {
		t.Fatal(err)
	}
	unmapped := next("the end of the mapping", func(k kernelEvent) bool {
		return mine(k, "unmap") && k.Address == mapped.Address
	})
	if unmapped.Size != size {
		t.Errorf("%d bytes unmapped, want %d", unmapped.Size, size)
	}

	// A command's reply is an interrupt of the card's.
	if _, err := a.qp[0].Query(t.Context()); err != nil {
		t.Fatal(err)
	}
	next("an interrupt", func(k kernelEvent) bool {
		return k.Event == "interrupt" && k.Device == bdf && strings.Contains(k.Detail, "vfio-msix[") && strings.Contains(k.Detail, bdf)
	})

	// The same process has the other card refused a mapping, and reset.
	d, err := opened(t, second)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	page, err := vfio.AllocMemory(os.Getpagesize(), vfio.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	const at = 0x100000
	for _, want := range []error{nil, vfio.ErrExists} {
		if err := d.MapDMA(at, page, 0, page.Size(), vfio.ProtRead); !errors.Is(err, want) {
			t.Errorf("mapping a page: %v, want %v", err, want)
		}
	}
	next("a mapping that is refused", func(k kernelEvent) bool {
		return k.Event == "map" && k.PID == os.Getpid() && k.Errno == "EEXIST" && k.Address == fmt.Sprintf("%#x", at)
	})
	if err := d.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	next("the program's reset", func(k kernelEvent) bool { return mine(k, "device-reset") })

	// What is still mapped at the end is undone, and the kernel resets the function.
	if err := a.dev.Close(); err != nil {
		t.Fatal(err)
	}
	ended := map[string]bool{}
	next("the end of the container and the kernel's reset", func(k kernelEvent) bool {
		ended["release"] = ended["release"] || mine(k, "release")
		ended["reset"] = ended["reset"] || k.Event == "reset" && k.Device == bdf && k.Duration > 0 && k.Errno == ""
		return ended["release"] && ended["reset"]
	})
}

// pages is memory outside of the Go heap.
func pages(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}
