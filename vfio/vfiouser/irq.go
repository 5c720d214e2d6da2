package vfiouser

import (
	"sync"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

var errTooManyMaps = unix.ENOSPC

// vector is one interrupt with what the client has connected to it; -1: nothing.
type vector struct {
	fd, onMask, onUnmask int
	masked, pending      bool
}

// irqTable is the interrupts of a session.
type irqTable struct {
	mu      sync.Mutex
	indices map[int]*irqIndex
}

type irqIndex struct {
	spec IRQSpec
	v    []vector
}

func (t *irqTable) init(specs []IRQSpec) {
	t.indices = make(map[int]*irqIndex)
	for _, s := range specs {
		x := &irqIndex{spec: s, v: make([]vector, s.Count)}
		for i := range x.v {
			x.v[i] = vector{fd: -1, onMask: -1, onUnmask: -1}
		}
		t.indices[s.Index] = x
	}
}

// set performs SET_IRQS on [start, start+count) of an index. On success the
// descriptors are the table's.
func (t *irqTable) set(flags uint32, index, start, count uint64, bools []byte, fds []int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.indices[int(index)]
	data, action := flags&irqDataMask, flags&irqActionMask
	switch {
	case x == nil, flags&^(irqDataMask|irqActionMask) != 0,
		data != irqDataNone && data != irqDataBool && data != irqDataEventFD,
		action != irqMask && action != irqUnmask && action != irqTrigger,
		start > uint64(len(x.v)), count > uint64(len(x.v))-start,
		data == irqDataBool && uint64(len(bools)) != count,
		data != irqDataBool && len(bools) != 0,
		data != irqDataEventFD && len(fds) != 0,
		data == irqDataEventFD && len(fds) != 0 && uint64(len(fds)) != count,
		action != irqTrigger && x.spec.Flags&vfio.IRQMaskable == 0:
		return vfio.ErrInvalid
	}
	if data == irqDataNone && action == irqTrigger && start == 0 && count == 0 {
		x.disable()
		return nil
	}
	for _, fd := range fds {
		if err := checkEventFD(fd); err != nil {
			return err
		}
	}
	for i := range x.v[start : start+count] {
		v := &x.v[start+uint64(i)]
		if data == irqDataEventFD {
			slot := map[uint32]*int{irqTrigger: &v.fd, irqMask: &v.onMask, irqUnmask: &v.onUnmask}[action]
			if *slot >= 0 {
				_ = unix.Close(*slot)
			}
			*slot = -1
			if len(fds) > 0 {
				*slot = fds[i]
			}
			continue
		}
		if data == irqDataBool && bools[i] == 0 {
			continue
		}
		switch action {
		case irqTrigger:
			x.fire(v)
		case irqMask:
			v.masked = true
			signal(v.onMask)
		case irqUnmask:
			v.masked = false
			signal(v.onUnmask)
			if v.pending {
				v.pending = false
				x.fire(v)
			}
		}
	}
	return nil
}

// trigger fires a vector of the function's.
func (t *irqTable) trigger(index, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.indices[index]; x != nil && n >= 0 && n < len(x.v) {
		x.fire(&x.v[n])
	}
}

func (x *irqIndex) fire(v *vector) {
	if v.masked {
		v.pending = true
		return
	}
	signal(v.fd)
	if v.fd >= 0 && x.spec.Flags&vfio.IRQAutomasked != 0 {
		v.masked = true
	}
}

func (x *irqIndex) disable() {
	for i := range x.v {
		v := &x.v[i]
		for _, fd := range []int{v.fd, v.onMask, v.onUnmask} {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		*v = vector{fd: -1, onMask: -1, onUnmask: -1}
	}
}

func (t *irqTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.indices {
		x.disable()
	}
}
