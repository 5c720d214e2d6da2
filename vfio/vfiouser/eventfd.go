package vfiouser

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// A client's eventfd is not written to. Its open file is the client's too, which may fill the
// counter and clear O_NONBLOCK at any moment: the write would wait for the client, and with it
// the worker that interrupts, and the cards that it serves. Instead the kernel signals the
// eventfd, as it does when I/O of Linux AIO completes, and that never waits.

// aioSlots is how many completions a context holds at the least before they are taken out.
const aioSlots = 128

const (
	iocbPread     = 0 // IOCB_CMD_PREAD
	iocbWithResFD = 1 // IOCB_FLAG_RESFD
)

// iocb is struct iocb of linux/aio_abi.h, on a little-endian processor.
// What is not named stays 0.
type iocb struct {
	_            uint64 // data
	_, _         uint32 // key, rw_flags
	opcode       uint16
	_            int16 // reqprio
	fd           uint32
	_, _, _      uint64 // buf, nbytes, offset
	_            uint64
	flags, resFD uint32
}

// ioEvent is struct io_event: data, obj, res, res2.
type ioEvent [4]uint64

// aioContext gives the process's AIO context, which lasts as long as the process.
var aioContext = sync.OnceValues(func() (ctx uintptr, err error) {
	if _, _, e := unix.Syscall(unix.SYS_IO_SETUP, aioSlots, uintptr(unsafe.Pointer(&ctx)), 0); e != 0 {
		return 0, fmt.Errorf("io_setup, for interrupts (raise fs.aio-max-nr, or allow Linux AIO): %w", e)
	}
	return ctx, nil
})

// checkEventFD refuses what is not an eventfd.
func checkEventFD(fd int) error {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	if link != "anon_inode:[eventfd]" {
		return vfio.ErrInvalid
	}
	_, err = aioContext()
	return err
}

// signal adds one to an eventfd, or nothing to a counter that is full. It does not wait. The I/O
// whose completion signals is a read of no bytes of the eventfd itself, which ends at once, in
// EINVAL, and takes nothing.
func signal(fd int) {
	if fd < 0 {
		return
	}
	ctx, _ := aioContext()
	cb := iocb{opcode: iocbPread, fd: uint32(fd), flags: iocbWithResFD, resFD: uint32(fd)}
	p := &cb
	for range aioSlots {
		_, _, e := unix.Syscall(unix.SYS_IO_SUBMIT, ctx, 1, uintptr(unsafe.Pointer(&p)))
		if e != unix.EAGAIN {
			return
		}
		// The context is full of completions, which nobody wants. Another worker may be as quick
		// to use the room, but not so many times.
		var done [aioSlots]ioEvent
		var now unix.Timespec
		_, _, _ = unix.Syscall6(unix.SYS_IO_GETEVENTS, ctx, 0, aioSlots, uintptr(unsafe.Pointer(&done)), uintptr(unsafe.Pointer(&now)), 0)
	}
}
