package vfiouser

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"rnic/hw/mmio"
	"rnic/vfio"
)

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// dmaMap is one DMA mapping of the client.
type dmaMap struct {
	first, last uint64 // addresses, both included
	prot        vfio.Prot
	file        *sharedFile // nil: by message
	off         uint64      // in file
}

// messageChunk is how much DMA asks for in one message, if the client takes that
// much: QEMU 11.1 writes a reply in one piece and loses what its socket's
// buffer (some 200 KiB) does not take.
const messageChunk = 64 << 10

// span is a range of addresses, both ends included.
type span struct{ first, last uint64 }

func (s span) overlaps(first, last uint64) bool { return first <= s.last && last >= s.first }

// host is a session's DMA and interrupts: the Host that the function is given.
type host struct {
	c          *conn
	lim        limits
	dmaTimeout time.Duration
	irqs       irqTable
	master     atomic.Bool

	// The bracket. It guards maps, files and last, and is held while shared
	// memory is accessed.
	bracket sync.Mutex
	maps    []dmaMap // ascending, not overlapping
	files   files
	last    int // index of the mapping that was used last

	// DMA by message, which leaves the bracket while it waits.
	mu       sync.Mutex
	under    map[*messageDMA]struct{}
	revoking []span // being unmapped

	// What is counted belongs to the bracket; it is shown when the bracket
	// closes and when anything but a plain copy happens.
	counts DMAStats
	dirty  bool
	shown  struct {
		sync.Mutex
		DMAStats
	}
}

type messageDMA struct {
	span
	cancel context.CancelCauseFunc
}

var errAbandoned = errors.New("abandoned")

func newHost(c *conn, lim limits, dmaTimeout time.Duration) *host {
	return &host{c: c, lim: lim, dmaTimeout: dmaTimeout, files: files{}, under: make(map[*messageDMA]struct{})}
}

func (h *host) Enter() { h.bracket.Lock() }

func (h *host) Exit() {
	h.show()
	h.bracket.Unlock()
}

func (h *host) show() {
	if !h.dirty {
		return
	}
	h.dirty = false
	h.shown.Lock()
	h.shown.DMAStats = h.counts
	h.shown.Unlock()
}

// find gives the index of the mapping that holds iova, or where it would be.
func (h *host) find(iova uint64) (int, bool) {
	if l := h.last; l < len(h.maps) && iova >= h.maps[l].first && iova <= h.maps[l].last {
		return l, true
	}
	lo, hi := 0, len(h.maps)
	for lo < hi {
		if m := int(uint(lo+hi) / 2); h.maps[m].last < iova {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo < len(h.maps) && h.maps[lo].first <= iova {
		h.last = lo
		return lo, true
	}
	return lo, false
}

// check says whether all of [iova, iova+n) is mapped with the right: the
// first address that is not, and why. n is not 0.
func (h *host) check(iova, n uint64, right vfio.Prot) (uint64, DMAReason) {
	if !h.master.Load() {
		return iova, DMABusMaster
	}
	if iova+(n-1) < iova {
		return iova, DMAUnmapped
	}
	for i, ok := h.find(iova); ; i++ {
		if !ok || i >= len(h.maps) || h.maps[i].first > iova {
			return iova, DMAUnmapped
		}
		m := &h.maps[i]
		if m.prot&right == 0 {
			return iova, DMAPermission
		}
		if n-1 <= m.last-iova {
			return 0, 0
		}
		n -= m.last - iova + 1
		iova = m.last + 1
	}
}

// chunk is the most that a message of DMA carries.
func (h *host) chunk() int { return min(h.lim.transfer, messageChunk) }

func (h *host) Read(iova uint64, p []byte) error  { return h.access(iova, p, false) }
func (h *host) Write(iova uint64, p []byte) error { return h.access(iova, p, true) }

func (h *host) WriteOwned(iova uint64, p []byte) error {
	if mem := h.piece(iova, uint64(len(p)), vfio.ProtWrite); mem != nil {
		h.dirty = true
		h.counts.WriteBytes += uint64(len(p))
		if vfio.GuardCopyOwned(mem, p) != nil {
			return h.fault(iova, len(p), true, DMAFault, nil)
		}
		return nil
	}
	owner := len(p) - 4
	if err := h.Write(iova, p[:owner]); err != nil {
		return err
	}
	mmio.ToDevice()
	return h.Write(iova+uint64(owner), p[owner:])
}

func (h *host) access(iova uint64, p []byte, write bool) error {
	if len(p) == 0 {
		return nil
	}
	right := vfio.ProtRead
	if write {
		right = vfio.ProtWrite
	}
	if mem := h.piece(iova, uint64(len(p)), right); mem != nil {
		if h.copy(mem, p, write) != nil {
			return h.fault(iova, len(p), write, DMAFault, nil)
		}
		return nil
	}
	if at, why := h.check(iova, uint64(len(p)), right); why != 0 {
		var cause error
		if why != DMABusMaster && iova+uint64(len(p)-1) >= iova {
			why, cause = h.raise(why, at, p[at-iova:], write)
		}
		return h.fault(at, len(p), write, why, cause)
	}
	for len(p) > 0 {
		// All is looked at again after a message: it may have changed.
		i, ok := h.find(iova)
		if !h.master.Load() {
			return h.fault(iova, len(p), write, DMABusMaster, nil)
		}
		if !ok {
			return h.fault(iova, len(p), write, DMAUnmapped, nil)
		}
		m := h.maps[i]
		if m.prot&right == 0 {
			return h.fault(iova, len(p), write, DMAPermission, nil)
		}
		n := len(p)
		if uint64(n)-1 > m.last-iova {
			n = int(m.last - iova + 1)
		}
		if m.file == nil {
			n = min(n, h.chunk())
			if e := h.message(iova, p[:n], write); e != nil {
				return h.fault(e.IOVA, len(p), write, e.Reason, e.Err)
			}
		} else {
			mem := m.file.b[m.off+(iova-m.first):][:n]
			if h.copy(mem, p[:n], write) != nil {
				return h.fault(iova, len(p), write, DMAFault, nil)
			}
		}
		iova, p = iova+uint64(n), p[n:]
	}
	return nil
}

// piece gives the memory of an access that one shared mapping holds, which
// nearly all are, or nil.
func (h *host) piece(iova, n uint64, right vfio.Prot) []byte {
	i, ok := h.find(iova)
	if !ok || !h.master.Load() {
		return nil
	}
	m := &h.maps[i]
	if m.file == nil || m.prot&right == 0 || n-1 > m.last-iova {
		return nil
	}
	return m.file.b[m.off+(iova-m.first):][:n]
}

// copy copies between shared memory and p, of the same length.
func (h *host) copy(mem, p []byte, write bool) error {
	h.dirty = true
	if write {
		h.counts.WriteBytes += uint64(len(p))
		return vfio.GuardCopy(mem, p)
	}
	h.counts.ReadBytes += uint64(len(p))
	return vfio.GuardCopy(p, mem)
}

// raise asks the client for an address that it has not mapped, or not for this.
// Behind an IOMMU that the client emulates, this makes that IOMMU report the
// fault; the access fails whatever the answer. p is what was to be accessed from
// there.
func (h *host) raise(why DMAReason, iova uint64, p []byte, write bool) (DMAReason, error) {
	p = p[:min(len(p), h.chunk())]
	if !write {
		p = make([]byte, len(p))
	}
	e := h.message(iova, p, write)
	switch {
	case e == nil:
		return why, nil
	case e.Reason == DMARejected:
		return why, e.Err
	}
	return e.Reason, nil
}

func (h *host) fault(iova uint64, n int, write bool, why DMAReason, err error) *DMAError {
	h.dirty = true
	h.counts.Faults++
	if why == DMAAbandoned {
		h.counts.Abandoned++
	}
	h.show()
	return &DMAError{IOVA: iova, N: n, Write: write, Reason: why, Err: err}
}

// message does DMA by message: at most a chunk. It is
// called in the bracket, and leaves it while it waits.
func (h *host) message(iova uint64, p []byte, write bool) *DMAError {
	ctx, cancel := context.WithTimeout(context.Background(), h.dmaTimeout)
	defer cancel()
	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	op := &messageDMA{span: span{iova, iova + uint64(len(p)-1)}, cancel: abandon}
	h.mu.Lock()
	for _, r := range h.revoking {
		if r.overlaps(op.first, op.last) {
			h.mu.Unlock()
			return &DMAError{IOVA: iova, Reason: DMAAbandoned}
		}
	}
	h.under[op] = struct{}{}
	h.mu.Unlock()
	h.bracket.Unlock()

	cmd, body := cmdDMARead, dwords(make([]byte, 0, dmaRWSize+len(p)), iova, uint64(len(p)))
	if write {
		cmd, body = cmdDMAWrite, append(body, p...)
	}
	m, err := h.c.call(ctx, cmd, body)

	h.mu.Lock()
	delete(h.under, op)
	h.mu.Unlock()
	h.bracket.Lock()
	h.counts.Messages++
	h.dirty = true
	defer h.show()
	switch {
	case err == nil:
		m.closeFDs()
		if err := checkDMAReply(m.body, iova, len(p), write); err != nil {
			h.c.fail(err)
			return &DMAError{IOVA: iova, Reason: DMARejected, Err: err}
		}
		if write {
			h.counts.MessageWriteBytes += uint64(len(p))
		} else {
			copy(p, m.body[dmaRWSize:])
			h.counts.MessageReadBytes += uint64(len(p))
		}
		return nil
	case context.Cause(ctx) == errAbandoned || h.c.cause() != nil:
		return &DMAError{IOVA: iova, Reason: DMAAbandoned}
	case errors.Is(err, vfio.ErrTimeout):
		return &DMAError{IOVA: iova, Reason: DMATimeout}
	}
	return &DMAError{IOVA: iova, Reason: DMARejected, Err: err}
}

// checkDMAReply checks the reply to a DMA_READ or DMA_WRITE. The count of a
// DMA_WRITE reply has 4 bytes in the specification's table and 8 in
// implementations: both are taken.
func checkDMAReply(b []byte, iova uint64, n int, write bool) error {
	want := dmaRWSize
	if !write {
		want += n
	}
	if write && len(b) == dmaRWSize-4 {
		b = append(b[:len(b):len(b)], 0, 0, 0, 0)
	}
	if len(b) != want || le.Uint64(b) != iova || le.Uint64(b[8:]) != uint64(n) {
		return protocolError("reply of %d bytes to DMA of %d at %#x", len(b), n, iova)
	}
	return nil
}

func (h *host) Slice(iova, n uint64, write bool) []byte {
	right := vfio.ProtRead
	if write {
		right = vfio.ProtWrite
	}
	if n == 0 || !h.master.Load() || iova+(n-1) < iova {
		return nil
	}
	i, ok := h.find(iova)
	if !ok || h.maps[i].file == nil || h.maps[i].prot&right == 0 {
		return nil
	}
	first := h.maps[i]
	// A guest's pages are mapped one by one, but may be neighbours in the file.
	for m := first; m.last-iova < n-1; {
		if i++; i == len(h.maps) {
			return nil
		}
		next := h.maps[i]
		if next.first != m.last+1 || next.file != m.file || next.prot&right == 0 || next.off != m.off+(m.last-m.first)+1 {
			return nil
		}
		m = next
	}
	off := first.off + (iova - first.first)
	return first.file.b[off : off+n : off+n]
}

func (h *host) SetBusMaster(on bool) { h.master.Store(on) }

// settle waits until no DMA is under way: after bus mastering went off.
func (h *host) settle() {
	h.abandon(0, ^uint64(0))
	h.bracket.Lock()
	defer h.bracket.Unlock()
}

// abandon ends DMA by message that touches the range.
func (h *host) abandon(first, last uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.abandonLocked(first, last)
}

func (h *host) abandonLocked(first, last uint64) {
	for op := range h.under {
		if op.overlaps(first, last) {
			op.cancel(errAbandoned)
		}
	}
}

// mapDMA adds a mapping. fd is -1 where the memory is reached by message; it
// stays the caller's.
func (h *host) mapDMA(first, n uint64, prot vfio.Prot, fd int, off uint64) error {
	last := first + (n - 1)
	switch {
	case n == 0 || last < first || off+n < off:
		return vfio.ErrInvalid
	case prot == 0 || prot&^vfio.ProtReadWrite != 0:
		return vfio.ErrInvalid
	}
	h.bracket.Lock()
	defer h.bracket.Unlock()
	i, ok := h.find(first)
	if ok || i < len(h.maps) && h.maps[i].first <= last {
		return vfio.ErrExists
	}
	if len(h.maps) >= h.lim.maps {
		return errTooManyMaps
	}
	m := dmaMap{first: first, last: last, prot: prot, off: off}
	if fd >= 0 {
		var err error
		if m.file, err = h.files.get(fd, off, n, prot&vfio.ProtWrite != 0); err != nil {
			return err
		}
	}
	h.maps = slices.Insert(h.maps, i, m)
	return nil
}

// unmapDMA removes all mappings in the range; one that lies partly in it is an
// error, and none is removed. An empty range is well: QEMU unmaps everything
// when a guest switches domains. It waits for copies under way and abandons
// DMA by message: the client waits for the answer and may be unable to give its
// own until then.
func (h *host) unmapDMA(first, last uint64) error {
	h.mu.Lock()
	h.revoking = append(h.revoking, span{first, last})
	h.abandonLocked(first, last)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.revoking = slices.DeleteFunc(h.revoking, func(s span) bool { return s == span{first, last} })
		h.mu.Unlock()
	}()
	h.bracket.Lock()
	defer h.bracket.Unlock()
	lo, _ := h.find(first)
	hi := lo
	for hi < len(h.maps) && h.maps[hi].first <= last {
		hi++
	}
	if lo == hi {
		return nil
	}
	if h.maps[lo].first < first || h.maps[hi-1].last > last {
		return vfio.ErrInvalid
	}
	for _, m := range h.maps[lo:hi] {
		if m.file != nil {
			h.files.put(m.file)
		}
	}
	h.maps = slices.Delete(h.maps, lo, hi)
	h.last = 0
	return nil
}

// close ends all DMA and interrupts of the session.
func (h *host) close() {
	h.master.Store(false)
	_ = h.unmapDMA(0, ^uint64(0))
	h.abandon(0, ^uint64(0))
	h.irqs.close()
}

// interrupts by message are memory writes: they need bus mastering.
func (h *host) Trigger(irq, vector int) {
	if (irq == vfio.IRQMSI || irq == vfio.IRQMSIX) && !h.master.Load() {
		return
	}
	h.irqs.trigger(irq, vector)
}

func (h *host) RequestRelease() { h.irqs.trigger(vfio.IRQREQ, 0) }

func (h *host) Stats() DMAStats {
	h.shown.Lock()
	defer h.shown.Unlock()
	return h.shown.DMAStats
}
