package kerneltrace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Options say of what to tell.
type Options struct {
	// PID takes only what this process does; 0 takes all. Interrupts, resets and faults are of no process.
	PID int
	// Device is the PCI address, as 0000:03:00.0, of the card whose interrupts, resets and faults are told; "" tells those of all.
	Device string
}

// Lack is something that could not be attached, so that what it would show is not shown.
type Lack struct {
	// What is in the words of a user: "mappings", "interrupts", "pins", "resets", "releases", "faults".
	What string
	// Err is why.
	Err error
}

// Trace is a running look at the kernel. Its methods may be called from several goroutines.
type Trace struct {
	o      Options
	page   uint64
	set    *ebpf.Collection
	links  []link.Link
	ring   *ringbuf.Reader
	log    *os.File
	lacks  []Lack
	events chan Event
	stop   chan struct{}
	once   sync.Once
	wait   sync.WaitGroup
	failed chan error
	told   uint64 // lost events that Next has told of
	mu     sync.Mutex
}

// Open attaches to the kernel. It fails if nothing at all could be attached, with what is missing; what only in part could be is in
// Missing. Close ends it.
func Open(o Options) (*Trace, error) {
	if o.PID < 0 || o.PID > 1<<22 {
		return nil, fmt.Errorf("process %d: a process has a number from 1 to %d", o.PID, 1<<22)
	}
	t := &Trace{o: o, page: uint64(os.Getpagesize()), events: make(chan Event, 64), stop: make(chan struct{}), failed: make(chan error, 2)}
	if err := t.openPrograms(); err != nil {
		t.lacks = append(t.lacks, Lack{"mappings, interrupts, pins, resets, releases", err})
	}
	if err := t.openLog(); err != nil {
		t.lacks = append(t.lacks, Lack{"faults", err})
	}
	if len(t.links) == 0 && t.log == nil {
		var all []error
		for _, l := range t.lacks {
			all = append(all, fmt.Errorf("%s: %w", l.What, l.Err))
		}
		t.Close()
		return nil, fmt.Errorf("nothing of the kernel can be traced: %w", errors.Join(all...))
	}
	if t.ring != nil {
		t.wait.Go(t.readRing)
	}
	if t.log != nil {
		t.wait.Go(t.readLog)
	}
	return t, nil
}

// openPrograms loads the programs and attaches what can be attached.
func (t *Trace) openPrograms() error {
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps against it
		return fmt.Errorf("the limit of locked memory: %w", err)
	}
	names, err := findPCIName()
	if err != nil {
		t.lacks = append(t.lacks, Lack{"the function of a reset", err})
	}
	set, err := ebpf.NewCollection(spec(uint32(t.o.PID), names))
	if err != nil {
		return fmt.Errorf("loading programs of BPF (root, or CAP_BPF with CAP_PERFMON): %w", err)
	}
	t.set = set
	attach := func(what string, all ...func() (link.Link, error)) {
		for _, a := range all {
			l, err := a()
			if err != nil {
				t.lacks = append(t.lacks, Lack{what, err})
				return
			}
			t.links = append(t.links, l)
		}
	}
	point := func(group, name, program string) func() (link.Link, error) {
		return func() (link.Link, error) {
			l, err := link.Tracepoint(group, name, set.Programs[program], nil)
			if err != nil {
				return nil, fmt.Errorf("tracepoint %s:%s: %w", group, name, err)
			}
			return l, nil
		}
	}
	enter := func(symbol, program string) func() (link.Link, error) {
		return func() (link.Link, error) {
			l, err := link.Kprobe(symbol, set.Programs[program], nil)
			if err != nil {
				return nil, fmt.Errorf("kprobe %s: %w", symbol, err)
			}
			return l, nil
		}
	}
	leave := func(symbol, program string) func() (link.Link, error) {
		return func() (link.Link, error) {
			l, err := link.Kretprobe(symbol, set.Programs[program], nil)
			if err != nil {
				return nil, fmt.Errorf("kretprobe %s: %w", symbol, err)
			}
			return l, nil
		}
	}
	// The exit comes first: an entry without its exit would stay in its map.
	attach("mappings", point("syscalls", "sys_exit_ioctl", "ioctl_exit"), point("syscalls", "sys_enter_ioctl", "ioctl_enter"))
	attach("interrupts", point("irq", "irq_handler_entry", "interrupt"))
	attach("pins", leave("pin_user_pages_remote", "pin_exit"), enter("pin_user_pages_remote", "pin_enter"),
		leave("pin_user_pages_fast", "pin_exit"), enter("pin_user_pages_fast", "pin_fast_enter"))
	attach("resets", leave("__pci_reset_function_locked", "reset_exit"), enter("__pci_reset_function_locked", "reset_enter"))
	t.attachReleases(leave, enter)
	if len(t.links) == 0 {
		err := t.lacks[len(t.lacks)-1].Err
		t.lacks = nil
		return err
	}
	t.ring, err = ringbuf.NewReader(set.Maps["events"])
	if err != nil {
		return fmt.Errorf("the ring of events: %w", err)
	}
	return nil
}

// attachReleases attaches to the ends of containers and of iommufds: a machine has one of them, or both.
func (t *Trace) attachReleases(leave, enter func(symbol, program string) func() (link.Link, error)) {
	var why []error
	for _, symbol := range []string{"vfio_iommu_type1_release", "iommufd_fops_release"} {
		back, err := leave(symbol, "release_exit")()
		if err != nil {
			why = append(why, err)
			continue
		}
		t.links = append(t.links, back)
		in, err := enter(symbol, "release_enter")()
		if err != nil {
			why = append(why, err)
			continue
		}
		t.links = append(t.links, in)
	}
	if len(why) == 2 {
		t.lacks = append(t.lacks, Lack{"releases", errors.Join(why...)})
	}
}

// openLog opens the kernel's log at its end.
func (t *Trace) openLog() error {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the kernel's log (root, or CAP_SYSLOG): %w", err)
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		f.Close()
		return fmt.Errorf("the kernel's log: %w", err)
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		f.Close()
		return fmt.Errorf("waiting for the kernel's log: %w", err)
	}
	t.log = f
	return nil
}

// Missing is what could not be attached, and why.
func (t *Trace) Missing() []Lack { return t.lacks }

// Next gives the next event. It waits until there is one, ctx ends, or Close is called (io.EOF). Events of the kernel's log come beside the
// others: their order is by Time.
func (t *Trace) Next(ctx context.Context) (Event, error) {
	select {
	case e := <-t.events:
		t.mu.Lock()
		defer t.mu.Unlock()
		if lost, err := t.lost(); err == nil && lost > t.told {
			e.Lost, t.told = lost-t.told, lost
		}
		return e, nil
	case err := <-t.failed:
		return Event{}, err
	case <-t.stop:
		return Event{}, io.EOF
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// lost counts the events for which there was no room, since Open.
func (t *Trace) lost() (uint64, error) {
	if t.set == nil {
		return 0, nil
	}
	var n uint64
	err := t.set.Maps["lost"].Lookup(uint32(0), &n)
	return n, err
}

// Close detaches from the kernel. It may be called more than once.
func (t *Trace) Close() error {
	var all []error
	t.once.Do(func() {
		close(t.stop)
		for _, l := range t.links {
			all = append(all, l.Close())
		}
		if t.ring != nil {
			all = append(all, t.ring.Close())
		}
		if t.log != nil {
			all = append(all, t.log.Close())
		}
		t.wait.Wait()
		if t.set != nil {
			t.set.Close()
		}
	})
	return errors.Join(all...)
}

func (t *Trace) readRing() {
	for {
		r, err := t.ring.Read()
		switch {
		case errors.Is(err, ringbuf.ErrClosed):
			return
		case err != nil:
			t.fail(fmt.Errorf("the ring of events: %w", err))
			return
		}
		e, ok, err := decode(r.RawSample, t.page)
		if err != nil {
			t.fail(err)
			return
		}
		if ok && !t.give(e) {
			return
		}
	}
}

func (t *Trace) readLog() {
	b := make([]byte, 8192) // a record has at most about 2 KiB
	for {
		n, err := t.log.Read(b)
		switch {
		case errors.Is(err, unix.EPIPE): // records were overwritten before they were read; the next read goes on behind them
			continue
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			t.fail(fmt.Errorf("the kernel's log: %w", err))
			return
		}
		if e, ok := parseLog(string(b[:n])); ok && !t.give(e) {
			return
		}
	}
}

// give hands an event on, if it is one of the card's. It is false when the trace is closed.
func (t *Trace) give(e Event) bool {
	if t.o.Device != "" && e.Device != "" && e.Device != t.o.Device {
		return true
	}
	select {
	case t.events <- e:
		return true
	case <-t.stop:
		return false
	}
}

func (t *Trace) fail(err error) {
	select {
	case t.failed <- err:
	default:
	}
}
