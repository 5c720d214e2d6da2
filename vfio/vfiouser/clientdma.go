package vfiouser

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// clientDMA is what the client has mapped. It answers the server's DMA by
// message from it.
type clientDMA struct {
	mu   sync.RWMutex // read-held while a message's bytes are copied
	maps []clientMap  // ascending, not overlapping
}

type clientMap struct {
	first, last uint64 // addresses, both included
	prot        vfio.Prot
	m           *vfio.Memory
	b           []byte // the mapped part of m
}

func (t *clientDMA) init() { t.maps = nil }

// find gives the index of the mapping that holds iova, or where it would be.
func (t *clientDMA) find(iova uint64) (int, bool) {
	return slices.BinarySearchFunc(t.maps, iova, func(m clientMap, iova uint64) int {
		switch {
		case m.last < iova:
			return -1
		case m.first > iova:
			return 1
		}
		return 0
	})
}

func (t *clientDMA) add(m clientMap, limit int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.find(m.first)
	switch {
	case ok || i < len(t.maps) && t.maps[i].first <= m.last:
		return vfio.ErrExists
	case len(t.maps) >= limit:
		return fmt.Errorf("%w: the device keeps %d mappings", vfio.ErrExhausted, limit)
	}
	if err := m.m.Retain(); err != nil {
		return err
	}
	t.maps = slices.Insert(t.maps, i, m)
	return nil
}

// has says whether there is a mapping of exactly that range.
func (t *clientDMA) has(first, last uint64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i, ok := t.find(first)
	return ok && t.maps[i].first == first && t.maps[i].last == last
}

// remove waits for copies under way.
func (t *clientDMA) remove(first uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.find(first); ok {
		t.maps[i].m.Unretain()
		t.maps = slices.Delete(t.maps, i, i+1)
	}
}

func (t *clientDMA) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.maps {
		m.m.Unretain()
	}
	t.maps = nil
}

// access copies between p and the mapped memory, all or nothing. It is the
// IOMMU of a function whose DMA comes by message.
func (t *clientDMA) access(iova uint64, p []byte, write bool) error {
	right := vfio.ProtRead
	if write {
		right = vfio.ProtWrite
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for copying := range 2 { // all is checked before anything is copied
		at, rest := iova, p
		for len(rest) > 0 {
			i, ok := t.find(at)
			if !ok {
				return unix.EFAULT
			}
			m := &t.maps[i]
			if m.prot&right == 0 {
				return unix.EACCES
			}
			n := len(rest)
			if uint64(n)-1 > m.last-at {
				n = int(m.last - at + 1)
			}
			if copying == 1 {
				mem := m.b[at-m.first:][:n]
				if write {
					dmaCopy(mem, rest[:n])
				} else {
					dmaCopy(rest[:n], mem)
				}
			}
			if at += uint64(n); at == 0 && n < len(rest) {
				return unix.EFAULT // over the end of the address space
			}
			rest = rest[n:]
		}
	}
	return nil
}

// handle performs a command of the server, on the handler's goroutine.
func (d *Device) handle(m *message) {
	defer m.closeFDs()
	body, err := d.perform(m)
	d.c.answer(m, body, nil, err)
}

func (d *Device) perform(m *message) ([]byte, error) {
	b := m.body
	if m.cmd != cmdDMARead && m.cmd != cmdDMAWrite || len(b) < dmaRWSize || len(m.fds) > 0 {
		return nil, unix.EINVAL
	}
	iova, n := le.Uint64(b), le.Uint64(b[8:])
	if m.cmd == cmdDMAWrite {
		if n != uint64(len(b)-dmaRWSize) {
			return nil, unix.EINVAL
		}
		return b[:dmaRWSize], d.dma.access(iova, b[dmaRWSize:], true)
	}
	if n > uint64(min(maxTransfer, d.lim.transfer)) || len(b) != dmaRWSize {
		return nil, unix.EINVAL
	}
	out := append(make([]byte, 0, dmaRWSize+n), b...)[:dmaRWSize+n]
	return out, d.dma.access(iova, out[dmaRWSize:], false)
}

// IOVARanges implements vfio.Device. The protocol does not say which addresses
// work; these are those of a common IOMMU without its interrupt window.
func (d *Device) IOVARanges() []vfio.IOVARange { return vfio.FallbackIOVARanges() }

// PageSizes implements vfio.Device.
func (d *Device) PageSizes() uint64 { return d.lim.pageSizes }

// MaxMappings implements vfio.Device.
func (d *Device) MaxMappings() int { return d.lim.maps }

// MapDMA implements vfio.Device.
func (d *Device) MapDMA(iova uint64, m *vfio.Memory, off, n uint64, prot vfio.Prot) error {
	fail := func(err error) error {
		return d.fail("map DMA", fmt.Sprintf("%#x+%#x %v", iova, n, prot), err)
	}
	page := d.lim.pageSizes & -d.lim.pageSizes
	switch {
	case prot == 0 || prot&^vfio.ProtReadWrite != 0:
		return fail(fmt.Errorf("%w: rights", vfio.ErrInvalid))
	case n == 0 || (iova|off|n)%page != 0:
		return fail(fmt.Errorf("%w of %#x bytes", vfio.ErrAlignment, page))
	case off > m.Size() || n > m.Size()-off:
		return fail(fmt.Errorf("%w: the memory has %#x bytes, %#x at %#x are wanted", vfio.ErrInvalid, m.Size(), n, off))
	case iova+(n-1) < iova:
		return fail(fmt.Errorf("%w: over the end of the address space", vfio.ErrInvalid))
	}
	if err := d.alive("map DMA", ""); err != nil {
		return err
	}
	if err := d.dma.add(clientMap{first: iova, last: iova + (n - 1), prot: prot, m: m, b: m.Bytes()[off : off+n]}, d.lim.maps); err != nil {
		return fail(err)
	}
	var fds []int
	fileOffset := uint64(0)
	if m.FD() >= 0 && d.lim.fds > 0 {
		fds, fileOffset = []int{m.FD()}, off
	}
	reply, err := d.call(cmdDMAMap, dwords(words(nil, dmaMapSize, uint32(prot)), fileOffset, iova, n), fds...)
	if err != nil {
		d.dma.remove(iova)
		return fail(err)
	}
	reply.closeFDs()
	return nil
}

// UnmapDMA implements vfio.Device.
func (d *Device) UnmapDMA(iova, n uint64) error {
	fail := func(err error) error { return d.fail("unmap DMA", fmt.Sprintf("%#x+%#x", iova, n), err) }
	if n == 0 || !d.dma.has(iova, iova+(n-1)) {
		return fail(vfio.ErrNotMapped)
	}
	reply, err := d.call(cmdDMAUnmap, dwords(words(nil, dmaUnmapSize, 0), iova, n))
	if err != nil {
		if d.c.cause() != nil { // no reply will come: the end has unmapped it
			<-d.done
		}
		return fail(err)
	}
	reply.closeFDs()
	if b := reply.body; len(b) != dmaUnmapSize || le.Uint64(b[8:]) != iova || le.Uint64(b[16:]) != n {
		err := protocolError("reply of %d bytes to an unmap", len(b))
		d.c.fail(err)
		return fail(err)
	}
	d.dma.remove(iova)
	return nil
}

func (d *Device) irq(ctx context.Context, i int) (vfio.IRQInfo, error) {
	m, err := d.callCtx(ctx, cmdGetIRQInfo, words(nil, irqInfoSize, 0, uint32(i), 0))
	if err != nil {
		return vfio.IRQInfo{}, err
	}
	m.closeFDs()
	if len(m.body) < irqInfoSize || le.Uint32(m.body[8:]) != uint32(i) || le.Uint32(m.body[12:]) > maxVectors {
		return vfio.IRQInfo{}, protocolError("interrupt info of %d bytes", len(m.body))
	}
	return vfio.IRQInfo{Index: i, Flags: vfio.IRQFlags(le.Uint32(m.body[4:])), Count: int(le.Uint32(m.body[12:]))}, nil
}

// IRQ implements vfio.Device.
func (d *Device) IRQ(i int) (vfio.IRQInfo, error) {
	fail := func(err error) (vfio.IRQInfo, error) {
		return vfio.IRQInfo{}, d.fail("describe interrupt", fmt.Sprint(i), err)
	}
	if i < 0 || i >= d.info.NumIRQs {
		return fail(fmt.Errorf("%w: it has %d interrupt indices", vfio.ErrNotFound, d.info.NumIRQs))
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	q, err := d.irq(ctx, i)
	if err != nil {
		return fail(err)
	}
	return q, nil
}

// setIRQs connects eventfds in messages of as many as the server takes, and
// disconnects in others: a message holds descriptors for all of its vectors or
// for none.
func (d *Device) setIRQs(ctx context.Context, i, start int, fds []int) error {
	for len(fds) > 0 {
		n := 1
		for n < len(fds) && (fds[n] < 0) == (fds[0] < 0) && (fds[0] < 0 || n < d.lim.fds) {
			n++
		}
		send := fds[:n]
		if fds[0] < 0 {
			send = nil
		} else if d.lim.fds == 0 {
			return fmt.Errorf("%w: the server takes no descriptors", vfio.ErrNotSupported)
		}
		m, err := d.callCtx(ctx, cmdSetIRQs, words(nil, irqSetSize, irqDataEventFD|irqTrigger, uint32(i), uint32(start), uint32(n)), send...)
		if err != nil {
			return err
		}
		m.closeFDs()
		start, fds = start+n, fds[n:]
	}
	return nil
}

// SetIRQs implements vfio.Device.
func (d *Device) SetIRQs(i, start int, fds []int) error {
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	err := error(vfio.ErrInvalid)
	if i >= 0 && start >= 0 {
		err = d.setIRQs(ctx, i, start, fds)
	}
	if err != nil {
		return d.fail("connect interrupts", fmt.Sprintf("index %d vectors %d+%d", i, start, len(fds)), err)
	}
	return nil
}

// irqAction does an action without data.
func (d *Device) irqAction(op string, action uint32, i, start, n int) error {
	fail := func(err error) error { return d.fail(op, fmt.Sprintf("index %d vectors %d+%d", i, start, n), err) }
	if i < 0 || start < 0 || n < 0 {
		return fail(vfio.ErrInvalid)
	}
	m, err := d.call(cmdSetIRQs, words(nil, irqSetSize, irqDataNone|action, uint32(i), uint32(start), uint32(n)))
	if err != nil {
		return fail(err)
	}
	m.closeFDs()
	return nil
}

// DisableIRQs implements vfio.Device.
func (d *Device) DisableIRQs(i int) error {
	return d.irqAction("disable interrupts", irqTrigger, i, 0, 0)
}

// TriggerIRQs implements vfio.Device.
func (d *Device) TriggerIRQs(i, start, n int) error {
	if n == 0 {
		return nil // on the wire it would disable the index
	}
	return d.irqAction("trigger interrupts", irqTrigger, i, start, n)
}

// MaskIRQs implements vfio.Device.
func (d *Device) MaskIRQs(i, start, n int, mask bool) error {
	if mask {
		return d.irqAction("mask interrupts", irqMask, i, start, n)
	}
	return d.irqAction("unmask interrupts", irqUnmask, i, start, n)
}
