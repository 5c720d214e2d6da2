package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"rnic/vfio/kerneltrace"
)

// told is a trace that tells what it is given.
type told struct {
	events []kerneltrace.Event
	opts   kerneltrace.Options
}

func (s *told) Next(context.Context) (kerneltrace.Event, error) {
	if len(s.events) == 0 {
		return kerneltrace.Event{}, io.EOF
	}
	e := s.events[0]
	s.events = s.events[1:]
	return e, nil
}

func (s *told) Close() error { return nil }

func (s *told) Missing() []kerneltrace.Lack {
	return []kerneltrace.Lack{{What: "pins", Err: errors.New("no\nkprobes")}}
}

// tell replaces the kernel.
func tell(t *testing.T, err error, events ...kerneltrace.Event) *told {
	t.Helper()
	s := &told{events: events}
	old := openKernelTrace
	t.Cleanup(func() { openKernelTrace = old })
	openKernelTrace = func(o kerneltrace.Options) (kernelTrace, error) { s.opts = o; return s, err }
	return s
}

var kernelEvents = []kerneltrace.Event{
	{Time: 12*time.Second + 345678*time.Nanosecond, PID: 77, Kind: kerneltrace.Map, Address: 0x100000, Size: 0x200000, Duration: 28300},
	{Time: 13 * time.Second, PID: 77, Kind: kerneltrace.Map, Address: 0x400000, Size: 4096, Duration: 900, Err: syscall.ENOMEM},
	{Time: 14 * time.Second, Kind: kerneltrace.Interrupt, Device: "0000:03:00.0", Detail: "IRQ 31 vfio-msix[0](0000:03:00.0)"},
	{Time: 15 * time.Second, PID: 78, Kind: kerneltrace.Release, Duration: 2500},
	{Time: 16 * time.Second, Kind: kerneltrace.Fault, Device: "0000:03:00.0", Address: 0x120000000, Detail: "DMAR: fault", Lost: 3},
}

// TestTraceKernel: the columns, the lines of JSON, and what is not shown.
func TestTraceKernel(t *testing.T) {
	sockets(t)
	s := tell(t, nil, kernelEvents...)
	r := rnicctl(t, "trace", "kernel", "--pid", "77").well(t)
	want := []string{
		"TIME PID EVENT ADDRESS SIZE DURATION NOTE",
		"12.000345 77 map 0x100000 2 MiB 28.3 µs",
		"13.000000 77 map 0x400000 4 KiB 0.9 µs refused: cannot allocate memory",
		"14.000000 - interrupt - - - 0000:03:00.0, IRQ 31 vfio-msix[0](0000:03:00.0)",
		"15.000000 78 release - - 2.5 µs",
		"16.000000 - fault 0x120000000 - - 0000:03:00.0, DMAR: fault, 3 events before it were lost",
	}
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), r.out)
	}
	for i, l := range lines {
		if got := strings.Join(strings.Fields(l), " "); got != want[i] || strings.TrimRight(l, " ") != l {
			t.Errorf("line %d: %q, want %q", i, l, want[i])
		}
	}
	if s.opts.PID != 77 || s.opts.Device != "" || !strings.Contains(r.err, "# not shown: pins: no; kprobes\n") {
		t.Errorf("options %+v, stderr %q", s.opts, r.err)
	}
	tell(t, nil, kernelEvents...)
	o := rnicctl(t, "trace", "kernel", "--json", "--count", "4").well(t).objects(t, "kernel-event")
	if len(o) != 4 || o[0]["address"] != "0x100000" || o[0]["size_bytes"] != 2097152.0 || o[1]["errno"] != "ENOMEM" || o[2]["pid"] != nil || o[2]["address"] != nil {
		t.Errorf("%v", o)
	}
}

// TestTraceKernelRefusals: what cannot be traced says so.
func TestTraceKernelRefusals(t *testing.T) {
	sockets(t)
	for _, c := range []struct {
		args string
		exit int
		says string
	}{
		{"trace kernel -d soft:x", exitLacks, "no PCI function"},
		{"trace kernel -d 0000:03:00.0", exitNoCard, "0000:03:00.0"},
		{"trace kernel --pid -1", exitUsage, "--pid -1"},
		{"trace kernel --count -1", exitUsage, "--count -1"},
		{"trace kernel", exitLacks, "operation not permitted"},
	} {
		tell(t, syscall.EPERM)
		r := rnicctl(t, strings.Fields(c.args)...)
		if r.code != c.exit || !strings.Contains(r.err, c.says) || !strings.Contains(r.err, "fix: ") {
			t.Errorf("%s: exit %d, %q", c.args, r.code, r.err)
		}
	}
}
