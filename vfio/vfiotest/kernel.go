// Package vfiotest is a scripted kernel for tests of programs that open PCI
// functions: it answers what package vfiopci asks of VFIO and iommufd as Linux
// does, keeps groups, mappings and interrupts, and fails where it is told to.
// It needs no privilege and no hardware.
//
//	k := vfiotest.New(t, vfiotest.Machine{})
//	f := k.Add(vfiotest.Function{Addr: "0000:03:00.0"})
//	d, err := vfiopci.Open(ctx, "0000:03:00.0", vfiopci.WithSystem(k))
//	f.WriteDMA(iova, data) // as the function would
//
// The rules are those of drivers/vfio and drivers/iommu/iommufd of Linux 6.12.
package vfiotest

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
	"rnic/vfio/vfiopci"
)

// Machine is the machine that the kernel runs on. The zero value has all of
// VFIO, a 39-bit IOMMU with interrupt remapping, and no limits.
type Machine struct {
	NoType1   bool // no /dev/vfio/vfio
	NoV2      bool // /dev/vfio/vfio without a type 1 v2 driver
	NoIOMMUFD bool // no /dev/iommu
	NoCdev    bool // no /dev/vfio/devices
	NoRemap   bool // interrupts are not remapped
	NoCaps    bool // GET_INFO without capabilities, as before Linux 5.4

	Ranges        []vfio.IOVARange // nil: those of a 39-bit IOMMU
	PageSizes     uint64           // 0: 4 KiB, 2 MiB, 1 GiB
	DMAEntryLimit int              // mappings of a container; 0: 65,535
	Memlock       uint64           // RLIMIT_MEMLOCK in bytes; 0: unlimited
	Locked        uint64           // bytes that the process has locked already
}

// Kernel is the scripted kernel. All methods are safe for concurrent use.
type Kernel struct {
	t testing.TB
	m Machine

	mu        sync.Mutex
	functions map[string]*Function
	groups    map[int]*group
	fds       map[int]*file
	files     tree
	scripts   []*Script
	calls     []string
	locked    uint64
	cdevs     int
	ioases    uint32
}

var _ vfiopci.System = (*Kernel)(nil)

// file is what a descriptor is of: one of its pointers is set.
type file struct {
	container *container
	group     *group
	iommufd   *iommufd // also a container
	device    *device
}

// PID is the process in the kernel's /proc that the program under test is.
const PID = 4711

// New makes a machine without functions. At the test's end, descriptors that
// are still open are an error.
func New(t testing.TB, m Machine) *Kernel {
	if m.Ranges == nil {
		m.Ranges = []vfio.IOVARange{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: 1<<39 - 1}}
	}
	if m.PageSizes == 0 {
		m.PageSizes = 1<<12 | 1<<21 | 1<<30
	}
	if m.DMAEntryLimit == 0 {
		m.DMAEntryLimit = 65535
	}
	k := &Kernel{t: t, m: m, functions: map[string]*Function{}, groups: map[int]*group{}, fds: map[int]*file{}, locked: m.Locked}
	k.files.init()
	if !m.NoType1 {
		k.files.node("dev/vfio/vfio")
	}
	if !m.NoIOMMUFD {
		k.files.node("dev/iommu")
	}
	k.files.link("proc/self", strconv.Itoa(PID))
	k.files.link("proc/thread-self", strconv.Itoa(PID))
	k.files.put("sys/module/vfio_iommu_type1/parameters/dma_entry_limit", fmt.Sprintln(m.DMAEntryLimit))
	limit := "unlimited"
	if m.Memlock > 0 {
		limit = strconv.FormatUint(m.Memlock, 10)
	}
	k.files.put(fmt.Sprintf("proc/%d/limits", PID), fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         %-20s %-20s bytes     \n", limit, limit))
	k.accountLocked(0)
	t.Cleanup(func() {
		if n := k.OpenFiles(); n > 0 {
			t.Errorf("vfiotest: %d descriptors are still open at the test's end", n)
		}
	})
	return k
}

// Script changes what the kernel does with one kind of call.
type Script struct {
	// Call is "open PATH", "eventfd", "map", "pread", "pwrite", or a request's
	// name such as "VFIO_IOMMU_MAP_DMA".
	Call  string
	Skip  int // so many calls are done as usual first
	Times int // then so many are changed; 0: all
	Err   error
	// Result, where not nil, is what the call returns instead of being done.
	Result *int
	// Edit changes what the kernel answered: the bytes of the structure and of
	// what follows it.
	Edit func(answer []byte)
	// Before is run before the call, without a lock held: it may block.
	Before func()
}

// Do adds a script.
func (k *Kernel) Do(s Script) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scripts = append(k.scripts, &s)
}

// Fail has every call of that name fail.
func (k *Kernel) Fail(call string, err error) { k.Do(Script{Call: call, Err: err}) }

// Forget ends all scripts.
func (k *Kernel) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scripts = nil
}

// Calls are the calls so far, by the names of Script, in order; those that
// failed too. Accesses of files are not among them.
func (k *Kernel) Calls() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

// FileReads is how many files of /sys and /proc were looked at so far.
func (k *Kernel) FileReads() int { return k.files.count() }

// OpenFiles is the number of open descriptors.
func (k *Kernel) OpenFiles() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.fds)
}

// enter notes a call and finds its script.
func (k *Kernel) enter(call string) *Script {
	k.mu.Lock()
	k.calls = append(k.calls, call)
	var hit *Script
	for _, s := range k.scripts {
		if s.Call != call {
			continue
		}
		if s.Skip > 0 {
			s.Skip--
			continue
		}
		if s.Times < 0 {
			continue // used up
		}
		if s.Times > 0 {
			if s.Times--; s.Times == 0 {
				s.Times = -1
			}
		}
		hit = s
		break
	}
	k.mu.Unlock()
	if hit != nil && hit.Before != nil {
		hit.Before()
	}
	return hit
}

// scripted does f unless the script says otherwise.
func (k *Kernel) scripted(call string, f func() (int, error)) (int, error) {
	s := k.enter(call)
	if s != nil && s.Err != nil {
		return -1, s.Err
	}
	if s != nil && s.Result != nil {
		return *s.Result, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return f()
}

// descriptor makes one for a file. It is a real one, so that it is a number
// that nothing else has, and that a mapping can be made of.
func (k *Kernel) descriptor(f *file) (int, error) {
	fd, err := unix.MemfdCreate("vfiotest", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	k.fds[fd] = f
	return fd, nil
}

// Files implements vfiopci.System.
func (k *Kernel) Files() fs.ReadLinkFS { return &k.files }

// Put makes a file of /sys or /proc; the path has no leading slash.
func (k *Kernel) Put(path, text string) { k.files.put(path, text) }

// Link makes a symbolic link, such as the descriptor of another process:
// "proc/17/fd/5" to "/dev/vfio/7".
func (k *Kernel) Link(path, to string) { k.files.link(path, to) }

// Remove removes a file, a link or a node.
func (k *Kernel) Remove(path string) { k.files.remove(path) }

// Open implements vfiopci.System.
func (k *Kernel) Open(path string) (int, error) {
	return k.scripted("open "+path, func() (int, error) {
		if !k.files.has(path[1:]) {
			return -1, unix.ENOENT
		}
		if path == "/dev/vfio/vfio" {
			return k.descriptor(&file{container: &container{k: k, groups: map[*group]bool{}}})
		}
		if path == "/dev/iommu" {
			return k.descriptor(&file{iommufd: &iommufd{k: k, spaces: map[uint32]*space{}, container: &container{k: k, compat: true, groups: map[*group]bool{}}}})
		}
		if name, ok := strings.CutPrefix(path, "/dev/vfio/devices/"); ok {
			for _, f := range k.functions {
				if f.cdev == name {
					d := &device{f: f}
					fd, err := k.descriptor(&file{device: d})
					if err == nil {
						err = d.back(fd)
					}
					return fd, err
				}
			}
		}
		if n, err := strconv.Atoi(strings.TrimPrefix(path, "/dev/vfio/")); err == nil && k.groups[n] != nil {
			g := k.groups[n]
			if g.opened || g.byCdev() {
				return -1, unix.EBUSY
			}
			g.opened = true
			return k.descriptor(&file{group: g})
		}
		return -1, unix.ENODEV
	})
}

// Close implements vfiopci.System.
func (k *Kernel) Close(fd int) error {
	_, err := k.scripted("close", func() (int, error) {
		f := k.fds[fd]
		if f == nil {
			k.t.Errorf("vfiotest: close of descriptor %d, which is not open", fd)
			return -1, unix.EBADF
		}
		delete(k.fds, fd)
		switch {
		case f.device != nil:
			f.device.close()
		case f.group != nil:
			f.group.opened = false
			if c := f.group.container; c != nil {
				delete(c.groups, f.group)
				f.group.container = nil
				c.drop()
			}
		case f.container != nil:
			f.container.end()
		case f.iommufd != nil:
			f.iommufd.container.end()
			for _, s := range f.iommufd.spaces {
				s.end()
			}
		}
		return 0, unix.Close(fd)
	})
	return err
}

// Eventfd implements vfiopci.System.
func (k *Kernel) Eventfd() (int, error) {
	return k.scripted("eventfd", func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK) })
}

// Pread implements vfiopci.System.
func (k *Kernel) Pread(fd int, p []byte, off int64) (int, error) {
	return k.scripted("pread", func() (int, error) { return k.transfer(fd, p, off, false) })
}

// Pwrite implements vfiopci.System.
func (k *Kernel) Pwrite(fd int, p []byte, off int64) (int, error) {
	return k.scripted("pwrite", func() (int, error) { return k.transfer(fd, p, off, true) })
}

func (k *Kernel) transfer(fd int, p []byte, off int64, write bool) (int, error) {
	f := k.fds[fd]
	if f == nil || f.device == nil {
		return -1, unix.EBADF
	}
	if !f.device.ready() {
		return -1, unix.EINVAL
	}
	return f.device.transfer(p, off, write)
}

// Map implements vfiopci.System.
func (k *Kernel) Map(fd int, size uint64, areas []vfio.Area, off uint64, writable bool) (*vfio.Mapping, error) {
	var m *vfio.Mapping
	_, err := k.scripted("map", func() (int, error) {
		f := k.fds[fd]
		if f == nil || f.device == nil {
			return -1, unix.EBADF
		}
		for _, a := range areas {
			if !f.device.f.mayMap(int(off>>regionShift), a) {
				return -1, unix.EINVAL
			}
		}
		var err error
		m, err = vfio.NewMapping(size, areas, fd, off, writable)
		return 0, err
	})
	return m, err
}

// IoctlInt implements vfiopci.System.
func (k *Kernel) IoctlInt(fd int, req uint, arg int) (int, error) {
	return k.ioctl(fd, req, nil, arg)
}

// Ioctl implements vfiopci.System.
func (k *Kernel) Ioctl(fd int, req uint, arg unsafe.Pointer) (int, error) {
	if arg == nil {
		return -1, unix.EFAULT
	}
	return k.ioctl(fd, req, arg, 0)
}

// requests are the names of requests. A number may mean another thing to a
// device than to a container.
var requests = map[uint]string{
	uapi.VFIO_GET_API_VERSION: "VFIO_GET_API_VERSION", uapi.VFIO_CHECK_EXTENSION: "VFIO_CHECK_EXTENSION", uapi.VFIO_SET_IOMMU: "VFIO_SET_IOMMU",
	uapi.VFIO_IOMMU_GET_INFO: "VFIO_IOMMU_GET_INFO", uapi.VFIO_IOMMU_MAP_DMA: "VFIO_IOMMU_MAP_DMA", uapi.VFIO_IOMMU_UNMAP_DMA: "VFIO_IOMMU_UNMAP_DMA",
	uapi.VFIO_GROUP_GET_STATUS: "VFIO_GROUP_GET_STATUS", uapi.VFIO_GROUP_SET_CONTAINER: "VFIO_GROUP_SET_CONTAINER", uapi.VFIO_GROUP_GET_DEVICE_FD: "VFIO_GROUP_GET_DEVICE_FD",
	uapi.VFIO_DEVICE_GET_INFO: "VFIO_DEVICE_GET_INFO", uapi.VFIO_DEVICE_GET_REGION_INFO: "VFIO_DEVICE_GET_REGION_INFO", uapi.VFIO_DEVICE_GET_IRQ_INFO: "VFIO_DEVICE_GET_IRQ_INFO",
	uapi.VFIO_DEVICE_SET_IRQS: "VFIO_DEVICE_SET_IRQS", uapi.VFIO_DEVICE_RESET: "VFIO_DEVICE_RESET",
	uapi.VFIO_DEVICE_BIND_IOMMUFD: "VFIO_DEVICE_BIND_IOMMUFD", uapi.VFIO_DEVICE_ATTACH_IOMMUFD_PT: "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
	uapi.IOMMU_IOAS_ALLOC: "IOMMU_IOAS_ALLOC", uapi.IOMMU_IOAS_IOVA_RANGES: "IOMMU_IOAS_IOVA_RANGES", uapi.IOMMU_IOAS_MAP: "IOMMU_IOAS_MAP", uapi.IOMMU_IOAS_UNMAP: "IOMMU_IOAS_UNMAP",
}

func (k *Kernel) ioctl(fd int, req uint, arg unsafe.Pointer, n int) (int, error) {
	k.mu.Lock()
	f := k.fds[fd]
	k.mu.Unlock()
	if f == nil {
		return -1, unix.EBADF
	}
	name := requests[req]
	if name == "" {
		name = fmt.Sprintf("ioctl %#x", req)
	}
	s := k.enter(name)
	if s != nil && s.Err != nil {
		return -1, s.Err
	}
	if s != nil && s.Result != nil {
		return *s.Result, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if s == nil || s.Edit == nil || arg == nil {
		return f.ioctl(k, req, arg, n)
	}
	room := *(*uint32)(arg) // argsz, with which the structures begin
	v, err := f.ioctl(k, req, arg, n)
	if err == nil {
		s.Edit(unsafe.Slice((*byte)(arg), room))
	}
	return v, err
}

func (f *file) ioctl(k *Kernel, req uint, arg unsafe.Pointer, n int) (int, error) {
	switch {
	case f.device != nil:
		return f.device.ioctl(k, req, arg)
	case f.group != nil:
		return f.group.ioctl(k, req, arg)
	case f.iommufd != nil:
		return f.iommufd.ioctl(req, arg, n)
	}
	return f.container.ioctl(req, arg, n)
}

// accountLocked changes the process's locked memory. The lock is held, or nobody
// else has the kernel yet.
func (k *Kernel) accountLocked(delta int64) {
	k.locked = uint64(int64(k.locked) + delta)
	caps := "000001ffffffffff"
	if k.m.Memlock > 0 {
		caps = "0000000000000000"
	}
	k.files.put(fmt.Sprintf("proc/%d/status", PID), fmt.Sprintf("Name:\ttest\nVmLck:\t%8d kB\nCapEff:\t%s\n", k.locked>>10, caps))
}
