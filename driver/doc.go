// Package driver gives a Go program RDMA verbs on the card: protection
// domains, memory regions, completion queues and queue pairs, without a kernel
// driver and without cgo.
//
// A device is opened by address (package vfio): "vfio-user:PATH" for a soft
// card of another process, "soft:NAME" for one in this process (import
// _ "rnic/hw/softcard/soft"). One process holds a card at a time.
//
// Names and rules are those of the InfiniBand Architecture Specification,
// volume 1, and of rdma-core's verbs. All methods are safe for concurrent use;
// each queue has one lock. Posting and polling allocate nothing and make no
// system call. Control calls end by their context, or in 5 s where it has no
// deadline; CQ.Wait and Device.NextEvent end by their context, by Close, or
// when the device is gone.
//
// Errors are *DeviceError around one of the package's sentinels, for
// errors.Is; a work request that failed is a *CompletionError, for errors.As.
package driver
