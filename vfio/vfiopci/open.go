package vfiopci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

func init() {
	vfio.Register(vfio.SchemePCI, func(ctx context.Context, addr string) (vfio.Device, error) {
		return Open(ctx, addr)
	})
}

// What DeviceInfo.Backend says.
const (
	backendType1   = "type1v2"
	backendIOMMUFD = "iommufd"
	backendCompat  = "iommufd-compat"
)

// defaultTimeout bounds Open and Reset where the context does not.
const defaultTimeout = 5 * time.Second

// Option configures Open.
type Option func(*options)

type options struct {
	sys     System
	timeout time.Duration
}

// WithSystem has the function opened through sys instead of the running kernel.
func WithSystem(sys System) Option { return func(o *options) { o.sys = sys } }

// WithTimeout bounds Open and Reset where the context does not, and how long
// Close waits for calls under way, instead of 5 s.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// Open opens the PCI function at addr, a PCI address with options as the
// package says. The context, or 5 s, bounds it: where the kernel takes longer,
// the function is given back as soon as it was got.
//
// errors.Is: ErrNotFound; ErrBusy, with a *vfio.BusyError that names the holder;
// ErrPermission; ErrNotSupported; ErrInvalid for the address. What the machine
// has to change is a *vfio.SetupError.
func Open(ctx context.Context, addr string, opts ...Option) (*Device, error) {
	o := options{sys: Kernel(), timeout: defaultTimeout}
	for _, f := range opts {
		f(&o)
	}
	fail := func(err error) (*Device, error) { return nil, &vfio.Error{Addr: addr, Op: "open", Err: err} }
	a, err := parseAddress(addr)
	if err != nil {
		return fail(err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	type result struct {
		d   *Device
		err error
	}
	got := make(chan result, 1)
	go func() { // in the kernel it may wait for a lock without end
		d, err := open(&o, a, addr)
		got <- result{d, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			return fail(r.err)
		}
		return r.d, nil
	case <-ctx.Done():
		go func() {
			if r := <-got; r.d != nil {
				_ = r.d.Close()
			}
		}()
		return fail(fmt.Errorf("%w: the kernel is still opening it: %w", vfio.ErrTimeout, context.Cause(ctx)))
	}
}

// open chooses the way to the function and goes it. What this user may not
// open, or the kernel lacks, leads to the next way; any other failure would be
// the same there.
func open(o *options, a address, addr string) (*Device, error) {
	files := o.sys.Files()
	f, err := readFunction(files, a.bdf)
	if err != nil {
		return nil, err
	}
	ways := []string{a.way}
	if a.way == "" {
		ways = present(files, f, a.token != "")
	}
	var failed []error
	for _, w := range ways {
		var mmu iommu
		device := -1
		switch w {
		case WayIOMMUFD:
			mmu, device, err = asIOMMU(openIOMMUFD(o.sys, f))
		case WayCompat:
			mmu, device, err = asIOMMU(openContainer(o.sys, f, iommuNode, backendCompat, a.token))
		default:
			mmu, device, err = asIOMMU(openContainer(o.sys, f, containerNode, backendType1, a.token))
		}
		if err == nil {
			return newDevice(o, addr, f, device, mmu)
		}
		failed = append(failed, fmt.Errorf("vfio=%s: %w", w, err))
		var e *vfio.SetupError
		if !errors.As(err, &e) || e.Check != vfio.CheckNoPermission && e.Check != vfio.CheckNoModule {
			break
		}
	}
	return nil, errors.Join(failed...)
}

func asIOMMU[T iommu](m T, device int, err error) (iommu, int, error) { return m, device, err }

const containerNode = "/dev/vfio/vfio"

// present gives the ways that the machine has nodes for, the preferred first.
// Without any it is the legacy one, whose error then says what is missing.
func present(files fs.ReadLinkFS, f *function, group bool) (ways []string) {
	has := func(node string) bool {
		_, err := files.Lstat(node[1:])
		return err == nil
	}
	if f.cdev != "" && has(iommuNode) && !group {
		ways = append(ways, WayIOMMUFD)
	}
	if has(containerNode) {
		ways = append(ways, WayType1)
	}
	if has(iommuNode) && has("/dev/vfio/"+f.group) {
		ways = append(ways, WayCompat)
	}
	if len(ways) == 0 {
		ways = []string{WayType1}
	}
	return ways
}

// openNode opens a device node and explains what can go wrong with it.
func openNode(sys System, node string, f *function) (int, error) {
	fd, err := sys.Open(node)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.EBUSY):
		return -1, fmt.Errorf("open %s: %w: %w", node, busy(sys, -1, node, f.cdev), err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		value := fmt.Sprintf("this user has uid %d", os.Geteuid())
		if st, e := sys.Files().Lstat(node[1:]); e == nil {
			value = fmt.Sprintf("mode %04o, %s", st.Mode().Perm(), value)
			if o, ok := st.Sys().(*syscall.Stat_t); ok {
				value = fmt.Sprintf("owner %d, group %d, %s", o.Uid, o.Gid, value)
			}
		}
		return -1, &vfio.SetupError{Check: vfio.CheckNoPermission, Object: node, Value: value, Limit: "readable and writable by this user",
			Fix: "as root: rnicctl doctor --fix (the udev rule), and usermod -aG rnic USER; then log in again", Err: fmt.Errorf("%w: %w", vfio.ErrPermission, err)}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, &vfio.SetupError{Check: vfio.CheckNoModule, Object: node, Value: "not there", Limit: "a node of the kernel's VFIO",
			Fix: "modprobe vfio-pci; in a container, give it " + node, Err: fmt.Errorf("%w: %w", vfio.ErrNotSupported, err)}
	}
	return -1, fmt.Errorf("open %s: %w", node, err)
}

// busy names who holds one of the nodes.
func busy(sys System, skip int, nodes ...string) error {
	return busyBy(holders(sys.Files(), skip, nodes...))
}

func busyBy(pids []int) error {
	e := &vfio.BusyError{}
	if len(pids) > 0 {
		e.PID = pids[0]
	}
	return e
}

// againFor is how long a device that another holds locked for a moment is
// waited for: a reset or an unbind under way.
const againFor, againStep = time.Second, 10 * time.Millisecond

// retryAgain repeats what gives EAGAIN.
func retryAgain(f func() (int, error)) (int, error) {
	for left := againFor; ; left -= againStep {
		v, err := f()
		if !errors.Is(err, unix.EAGAIN) || left <= 0 {
			return v, err
		}
		time.Sleep(againStep)
	}
}
