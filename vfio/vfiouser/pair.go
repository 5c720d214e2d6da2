package vfiouser

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes two connected sockets, for a client and a server in one process.
// Serve and Client each own theirs.
func Pair() (client, server *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("vfio-user: socketpair: %w", err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "vfio-user")
		c, e := net.FileConn(f) // has a descriptor of its own
		_ = f.Close()
		if e != nil {
			err = e
			continue
		}
		conns[i] = c.(*net.UnixConn)
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, fmt.Errorf("vfio-user: socketpair: %w", err)
	}
	return conns[0], conns[1], nil
}
