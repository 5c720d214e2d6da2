package cli

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"rnic/driver"
	"rnic/vfio/kerneltrace"
)

// kernelEventJSON is an event of the kernel.
type kernelEventJSON struct {
	Schema     string  `json:"schema"`
	TimeNS     int64   `json:"time_ns"` // CLOCK_MONOTONIC
	PID        *int    `json:"pid"`
	Event      string  `json:"event"`
	Device     *string `json:"device"`
	Address    *string `json:"address"`
	SizeBytes  *uint64 `json:"size_bytes"`
	DurationNS *int64  `json:"duration_ns"`
	Errno      *string `json:"errno"`
	Detail     string  `json:"detail"`
	Lost       uint64  `json:"lost"`
}

func (a *app) traceKernel() *cobra.Command {
	var (
		o   streamOptions
		pid int
	)
	c := &cobra.Command{
		Use: "kernel", Short: "What the kernel does for a card", Args: cobra.NoArgs,
		Long: `trace kernel shows what the kernel does for cards that VFIO drives, as it happens: mappings made and
undone, memory pinned, interrupts, resets, and the accesses that the IOMMU refused, with their address. With
-d it is that card and the process that holds it, with --pid that process, else all. ADDRESS is the card's (IOVA), of
a pin the program's. It ends after --count events, after --for, or when it is interrupted.

It takes root. What this kernel does not let it attach to is said on stderr, and the rest is shown.`,
		RunE: func(c *cobra.Command, _ []string) error {
			opts, err := a.traced(c.Context(), pid)
			if err != nil {
				return err
			}
			return a.traceKernelRun(c.Context(), &o, opts)
		},
	}
	f := c.Flags()
	f.IntVar(&pid, "pid", 0, "only what this process has done")
	f.IntVar(&o.count, "count", 0, "end after so many events")
	f.DurationVar(&o.span, "for", 0, "end after this time")
	return c
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// traced says of which card and process is to be told.
func (a *app) traced(ctx context.Context, pid int) (kerneltrace.Options, error) {
	o := kerneltrace.Options{PID: pid}
	if pid < 0 || pid > 1<<22 {
		return o, usagef("give a process's number", "--pid %d is no process", pid)
	}
	addr, _, _ := strings.Cut(a.asked(), "?")
	if addr == "" {
		return o, nil
	}
	if !pciAddress.MatchString(addr) {
		return o, &failure{
			exit: exitLacks, code: "not-supported", err: fmt.Errorf("%s: the kernel does nothing for a card that is no PCI function", addr),
			fix: "name a PCI function with -d, or leave -d away; `rnicctl trace card` shows what the card does",
		}
	}
	o.Device = addr
	cards, err := a.cards(ctx, true)
	if err != nil {
		return o, err
	}
	for _, c := range cards {
		if c.Address != addr {
			continue
		}
		if c.Holder != nil && pid == 0 {
			o.PID = c.Holder.PID
			a.notef("%s: its holder is pid %d %s", addr, o.PID, c.Holder.Program)
		}
		return o, nil
	}
	return o, fmt.Errorf("%s: %w", addr, driver.ErrNotFound)
}

// openKernelTrace is replaced by tests.
var openKernelTrace = func(o kerneltrace.Options) (kernelTrace, error) { return kerneltrace.Open(o) }

type kernelTrace interface {
	driver.Stream[kerneltrace.Event]
	Missing() []kerneltrace.Lack
}

func (a *app) traceKernelRun(ctx context.Context, o *streamOptions, opts kerneltrace.Options) error {
	if err := o.check(); err != nil {
		return err
	}
	a.stream = true
	t, err := openKernelTrace(opts)
	if err != nil {
		return &failure{
			exit: exitLacks, code: "not-supported", err: err,
			fix: "run it as root, on a kernel with CONFIG_BPF_SYSCALL, CONFIG_FTRACE_SYSCALLS and CONFIG_KPROBE_EVENTS, with tracefs mounted: mount -t tracefs tracefs /sys/kernel/tracing",
		}
	}
	defer t.Close()
	for _, l := range t.Missing() {
		fmt.Fprintf(a.err, "# not shown: %s: %s\n", l.What, strings.ReplaceAll(l.Err.Error(), "\n", "; "))
	}
	const line = "%-16s %8s %-12s %-18s %10s %10s  %s\n"
	if !a.json {
		fmt.Fprintf(a.out, line, "TIME", "PID", "EVENT", "ADDRESS", "SIZE", "DURATION", "NOTE")
	}
	return each(ctx, o, t, func(e kerneltrace.Event) error {
		if a.json {
			return a.printJSON(describeEvent(&e))
		}
		pid, address, bytes, took := "-", "-", "-", "-"
		if e.PID != 0 {
			pid = fmt.Sprint(e.PID)
		}
		if hasAddress(e.Kind) {
			address = hex64(e.Address)
		}
		if hasSize(e.Kind) {
			bytes = size(e.Size)
		}
		if hasDuration(e.Kind) {
			took = fmt.Sprintf("%.1f µs", float64(e.Duration.Nanoseconds())/1000)
		}
		text := fmt.Sprintf(line, microseconds(e.Time), pid, e.Kind, address, bytes, took, notes(&e))
		_, err := fmt.Fprintln(a.out, strings.TrimRight(text, " \n"))
		return err
	})
}

func hasAddress(k kerneltrace.Kind) bool { return hasSize(k) || k == kerneltrace.Fault }

func hasSize(k kerneltrace.Kind) bool {
	return k == kerneltrace.Map || k == kerneltrace.Unmap || k == kerneltrace.Pin
}

func hasDuration(k kerneltrace.Kind) bool {
	return k != kerneltrace.Interrupt && k != kerneltrace.Fault
}

// microseconds is the kernel's time for people, as the kernel's log has it.
func microseconds(t time.Duration) string {
	return fmt.Sprintf("%d.%06d", t/time.Second, t%time.Second/time.Microsecond)
}

// notes are what an event has besides the columns.
func notes(e *kerneltrace.Event) string {
	var list []string
	if e.Err != 0 {
		list = append(list, "refused: "+e.Err.Error())
	}
	if e.Device != "" {
		list = append(list, e.Device)
	}
	if e.Detail != "" {
		list = append(list, e.Detail)
	}
	if e.Lost != 0 {
		list = append(list, fmt.Sprintf("%d events before it were lost", e.Lost))
	}
	return strings.Join(list, ", ")
}

func describeEvent(e *kerneltrace.Event) kernelEventJSON {
	j := kernelEventJSON{Schema: "rnic.kernel-event.v1", TimeNS: e.Time.Nanoseconds(), Event: string(e.Kind), Detail: e.Detail, Lost: e.Lost}
	if e.PID != 0 {
		j.PID = &e.PID
	}
	if e.Device != "" {
		j.Device = &e.Device
	}
	if hasAddress(e.Kind) {
		s := hex64(e.Address)
		j.Address = &s
	}
	if hasSize(e.Kind) {
		j.SizeBytes = &e.Size
	}
	if hasDuration(e.Kind) {
		n := e.Duration.Nanoseconds()
		j.DurationNS = &n
	}
	if e.Err != 0 {
		s := unix.ErrnoName(e.Err)
		j.Errno = &s
	}
	return j
}
