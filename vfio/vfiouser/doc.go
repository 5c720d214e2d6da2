// Package vfiouser speaks the vfio-user protocol (QEMU,
// docs/interop/vfio-user.rst, version 0.1) on both ends of a UNIX socket: the
// client is a vfio.Device, the server offers a Function.
//
// Each end has a reader that never writes, so that two full sockets cannot
// wait for each other, and a writer with a bounded queue. Everything is
// blocked in a read while nothing happens.
package vfiouser
