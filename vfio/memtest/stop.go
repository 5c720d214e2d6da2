package memtest

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stop is a word of memory whose loads stop: whoever loads it, without knowing of it,
// stands still in that very instruction until Go, and finds the value that Go gives. It is
// a page that userfaultfd(2) keeps missing. A test runs the other side's steps meanwhile: what the
// stopped side stored before is visible, since a fault ends with its stores done.
type Stop struct {
	tb   testing.TB
	fd   int
	page []byte
}

// linux/userfaultfd.h
type (
	uffdAPI      struct{ api, features, ioctls uint64 }
	uffdRange    struct{ start, length uint64 }
	uffdRegister struct {
		uffdRange
		mode, ioctls uint64
	}
	uffdCopy struct {
		dst, src, length, mode uint64
		copied                 int64
	}
)

const (
	uffdUserModeOnly    = 1
	uffdAPIVersion      = 0xaa
	uffdRegisterMissing = 1

	uffdioAPI      = 0xc018aa3f
	uffdioRegister = 0xc020aa00
	uffdioCopy     = 0xc028aa03
)

// NewStop makes a word that stops who loads it. Where the kernel has no userfaultfd for
// this process, the test is skipped. Who is stopped holds one of GOMAXPROCS: there must
// be another.
func NewStop(tb testing.TB) *Stop {
	tb.Helper()
	r, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserModeOnly, 0, 0)
	for _, none := range []error{unix.ENOSYS, unix.EPERM, unix.EINVAL} {
		if errno != 0 && errors.Is(errno, none) {
			tb.Skipf("missing: page faults for this process to answer (userfaultfd, Linux 5.11: %v; a container's seccomp filter may forbid it)", errno)
		}
	}
	if errno != 0 {
		tb.Fatalf("userfaultfd: %v", errno)
	}
	s := &Stop{tb: tb, fd: int(r)}
	tb.Cleanup(func() { _ = unix.Close(s.fd) }) // lets go who is stopped
	api := uffdAPI{api: uffdAPIVersion}
	s.ioctl(uffdioAPI, unsafe.Pointer(&api))
	var err error
	if s.page, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(s.page) })
	reg := uffdRegister{uffdRange{s.address(), uint64(len(s.page))}, uffdRegisterMissing, 0}
	s.ioctl(uffdioRegister, unsafe.Pointer(&reg))
	return s
}

func (s *Stop) address() uint64 { return uint64(uintptr(unsafe.Pointer(&s.page[0]))) }

func (s *Stop) ioctl(request uintptr, arg unsafe.Pointer) {
	s.tb.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), request, uintptr(arg)); errno != 0 {
		s.tb.Fatalf("userfaultfd ioctl %#x: %v", request, errno)
	}
}

// Word is the word.
func (s *Stop) Word() *uint32 { return (*uint32)(unsafe.Pointer(&s.page[0])) }

// Wait waits until somebody stands at the word; false: nobody came within the time.
func (s *Stop) Wait(most time.Duration) bool {
	s.tb.Helper()
	for end := time.Now().Add(most); ; {
		var message [32]byte // struct uffd_msg: a fault is all that was asked for
		switch n, err := unix.Read(s.fd, message[:]); {
		case n == len(message):
			return true
		case err != nil && err != unix.EAGAIN && err != unix.EINTR:
			s.tb.Fatalf("userfaultfd: %v", err)
		case time.Now().After(end):
			return false
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// Go gives the word its value and lets go who stands at it. Until Shut nobody stops.
func (s *Stop) Go(v uint32) {
	s.tb.Helper()
	value := make([]byte, len(s.page))
	*(*uint32)(unsafe.Pointer(&value[0])) = v
	c := uffdCopy{dst: s.address(), src: uint64(uintptr(unsafe.Pointer(&value[0]))), length: uint64(len(value))}
	s.ioctl(uffdioCopy, unsafe.Pointer(&c))
}

// Shut has the next who loads the word stop again.
func (s *Stop) Shut() {
	s.tb.Helper()
	if err := unix.Madvise(s.page, unix.MADV_DONTNEED); err != nil {
		s.tb.Fatal(err)
	}
}
