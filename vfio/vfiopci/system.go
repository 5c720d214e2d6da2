package vfiopci

import (
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// System is what this package needs of the kernel. Kernel is the running one;
// package vfio/vfiotest has another for tests. All methods are safe for
// concurrent use. Errors of the calls are errnos, wrapped or not.
type System interface {
	// Files is the file system from its root, for /sys and /proc. Paths have no
	// leading slash.
	Files() fs.ReadLinkFS
	// Open opens a device node, by its absolute path, for reading and writing,
	// close-on-exec.
	Open(path string) (int, error)
	Close(fd int) error
	// Ioctl does a request whose argument is a pointer.
	Ioctl(fd int, req uint, arg unsafe.Pointer) (int, error)
	// IoctlInt does a request whose argument is a number.
	IoctlInt(fd int, req uint, arg int) (int, error)
	Pread(fd int, p []byte, off int64) (int, error)
	Pwrite(fd int, p []byte, off int64) (int, error)
	// Map maps areas of a device's region that begins at off of its file.
	Map(fd int, size uint64, areas []vfio.Area, off uint64, writable bool) (*vfio.Mapping, error)
	// Eventfd makes an eventfd, close-on-exec and non-blocking. Its reader may
	// be Go's poller, so it is a real descriptor.
	Eventfd() (int, error)
}

// Kernel is the running kernel.
func Kernel() System { return kernel{} }

type kernel struct{}

func (kernel) Files() fs.ReadLinkFS { return os.DirFS("/").(fs.ReadLinkFS) }

func (kernel) Open(path string) (int, error) {
	return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
}

func (kernel) Close(fd int) error { return unix.Close(fd) }

func (kernel) Ioctl(fd int, req uint, arg unsafe.Pointer) (int, error) {
	for {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		if e == 0 {
			return int(r), nil
		}
		if e != unix.EINTR {
			return -1, e
		}
	}
}

func (kernel) IoctlInt(fd int, req uint, arg int) (int, error) {
	for {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		if e == 0 {
			return int(r), nil
		}
		if e != unix.EINTR {
			return -1, e
		}
	}
}

func (kernel) Pread(fd int, p []byte, off int64) (int, error)  { return unix.Pread(fd, p, off) }
func (kernel) Pwrite(fd int, p []byte, off int64) (int, error) { return unix.Pwrite(fd, p, off) }

func (kernel) Map(fd int, size uint64, areas []vfio.Area, off uint64, writable bool) (*vfio.Mapping, error) {
	return vfio.NewMapping(size, areas, fd, off, writable)
}

func (kernel) Eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	return fd, nil
}
