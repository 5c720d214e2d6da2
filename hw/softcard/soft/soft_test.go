package soft_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"rnic/hw"
	_ "rnic/hw/softcard/soft"
	"rnic/vfio"
)

func open(t *testing.T, addr string) vfio.Device {
	t.Helper()
	d, err := vfio.Open(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// ready waits for the card's reset to end.
func ready(t *testing.T, d vfio.Device) *vfio.BAR {
	t.Helper()
	b, err := vfio.NewBAR(d, hw.BARCtrl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Release() })
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		v, err := b.Read32(hw.RegControlStatus)
		if err != nil {
			t.Fatal(err)
		}
		if hw.ControlStatus(v).Ready() {
			return b
		}
		if time.Now().After(end) {
			t.Fatalf("status %#x: not ready", v)
		}
	}
}

func TestIdentity(t *testing.T) {
	d := open(t, "soft:alpha?mac=02:00:00:00:00:0a&ip=10.1.2.3/24&ip=fd00::1/64&wire=identity")
	b := ready(t, d)
	if v := b.Load32(hw.RegIdentMagic); v != 0x43494e52 {
		t.Errorf("magic %#x", v)
	}
	if v := b.Load32(hw.RegIdentVersion); v != 0x00010000 {
		t.Errorf("version %#x", v)
	}
	if v := b.Load32(hw.RegPortMACLow); v != 0x00000002 {
		t.Errorf("MAC_LOW %#x", v)
	}
	if v := b.Load32(hw.RegPortMACHigh); v != 0x0a00 {
		t.Errorf("MAC_HIGH %#x", v)
	}
	// ::ffff:10.1.2.3, first byte lowest
	for i, want := range []uint32{0, 0, 0xffff0000, 0x0302010a} {
		if v := b.Load32(hw.RegPortGID0 + 4*uint64(i)); v != want {
			t.Errorf("GID0[%d] %#x, want %#x", i, v, want)
		}
	}
	if v := b.Load32(hw.RegPortLink); v != uint32(hw.LinkStateActive) {
		t.Errorf("link %d", v)
	}
	if err := b.Err(); err != nil {
		t.Error(err)
	}
	c, err := vfio.NewConfig(d)
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.ID()
	if err != nil || id.Vendor != 0x10ee || id.Device != 0x7264 || id.Class != 0x020000 {
		t.Errorf("ID %+v, %v", id, err)
	}
	if d.Addr() != "soft:alpha?mac=02:00:00:00:00:0a&ip=10.1.2.3/24&ip=fd00::1/64&wire=identity" {
		t.Errorf("address %q", d.Addr())
	}
}

func TestNameIsBusy(t *testing.T) {
	d := open(t, "soft:beta")
	_, err := vfio.Open(t.Context(), "soft:beta")
	var busy *vfio.BusyError
	if !errors.Is(err, vfio.ErrBusy) || !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Fatalf("second open: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	_ = open(t, "soft:beta")
}

func TestAddresses(t *testing.T) {
	for _, a := range []struct {
		rest string
		want string // in the error; "": it opens
	}{
		{"", ""}, {"x?seed=0x10", ""}, {"x?engine=none", ""}, {"x?ip=10.0.0.1", ""}, {"a%20b", ""},
		{"x?slots=2&wire=two", ""},
		{"x?mac=02:00", "mac=02:00"}, {"x?mac=03:00:00:00:00:00", "single station"},
		{"x?ip=10.0.0", "ip=10.0.0"}, {"x?engine=vhdl", "want go, rtl or none"}, {"x?engine=rtl", "simulation"},
		{"x?seed=-1", "seed=-1"}, {"x?color=red", "no parameter \"color\""}, {"x?wire=a&wire=b", "2 times"},
		{"x?slots=1", "1 slots"}, {"x?slots=two", "slots=two"}, {"a/b", "no slash"}, {strings.Repeat("n", 33), "33 bytes"}, {"%zz", "zz"},
	} {
		d, err := vfio.Open(t.Context(), "soft:"+a.rest)
		switch {
		case err == nil && a.want == "":
			if err := d.Close(); err != nil {
				t.Errorf("soft:%s: close: %v", a.rest, err)
			}
		case err == nil:
			_ = d.Close()
			t.Errorf("soft:%s opened; want an error with %q", a.rest, a.want)
		case a.want == "" || !strings.Contains(err.Error(), a.want):
			t.Errorf("soft:%s: %v; want %q", a.rest, err, a.want)
		case !errors.Is(err, vfio.ErrInvalid) && !errors.Is(err, vfio.ErrNotSupported):
			t.Errorf("soft:%s: %v is no typed error", a.rest, err)
		}
	}
}

// What a thousand cards leave behind: nothing.
func TestOpenCloseLeaksNothing(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	count := func() (fds, maps, routines int) {
		fd, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		m, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		// Only what has a file behind it: the Go heap comes and goes.
		return len(fd), strings.Count(string(m), "rnic-"), runtime.NumGoroutine()
	}
	var fds, maps, routines int
	for i := range rounds {
		d, err := vfio.Open(context.Background(), "soft:leak?wire=leak")
		if err != nil {
			t.Fatal(err)
		}
		b, err := vfio.NewBAR(d, hw.BARDoorbell)
		if err != nil {
			t.Fatal(err)
		}
		if w := b.Word32(4096); w == nil {
			t.Fatal("doorbells are not mapped")
		}
		if err := b.Release(); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 9 {
			fds, maps, routines = count()
		}
	}
	time.Sleep(10 * time.Millisecond) // goroutines that are at their end
	f, m, r := count()
	if f > fds || m > maps || r > routines {
		t.Errorf("after the tenth: %d fds, %d mappings, %d goroutines; now %d, %d, %d", fds, maps, routines, f, m, r)
	}
}
