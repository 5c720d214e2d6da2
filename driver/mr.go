package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"rnic/hw"
	"rnic/vfio"
)

// MR is a memory region: bytes that the card may reach, under a key. L_Key and
// R_Key are the same number: key index << 8 | tag.
type MR struct {
	pd     *PD
	key    uint32
	addr   uint64 // virtual address of the first byte, as work requests name it
	length uint64
	access Access
	iova   uint64
	bytes  atomic.Pointer[[]byte] // nil after Dereg

	// One of the two: a piece of an arena, or memory of its own.
	block vfio.Block
	mem   *vfio.Memory
	dma   *vfio.DMA

	ctl   ctlLock
	stage mrStage // under ctl
	// DMA accesses of the card when it answered the region's fence; 0 before, and
	// on a card that does not tell.
	fencedAt atomic.Uint64
}

// mrStage is how far Dereg has come.
type mrStage int

const (
	mrLive mrStage = iota
	mrRevoked
	mrFenced
	mrDone
)

// MROption configures AllocMR and RegMR.
type MROption func(*mrOptions)

type mrOptions struct {
	base            uint64
	key             uint32
	baseSet, keySet bool
	hugePages       bool
}

// WithIOVA chooses the virtual address of the region's first byte, by which
// work requests of this side and of peers name it (ibv_reg_mr_iova).
func WithIOVA(base uint64) MROption {
	return func(o *mrOptions) { o.base, o.baseSet = base, true }
}

// WithKey chooses the region's key: its index, which must be free, and its
// tag. It is for replays and tests: a chosen tag may be one that a peer still
// knows from the index's last use.
func WithKey(key uint32) MROption {
	return func(o *mrOptions) { o.key, o.keySet = key, true }
}

// WithHugePages takes AllocMR's memory from the pool of 2 MiB pages.
func WithHugePages() MROption { return func(o *mrOptions) { o.hugePages = true } }

// smallRegion is the size below which a region is carved from an arena, in
// bytes: a mapping costs tens of microseconds, and the kernel keeps 65,535.
const smallRegion = 256 << 10

const anyAccess = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | MWBind

func (p *PD) checkRegion(ctx context.Context, n int, a Access) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case n <= 0:
		return fmt.Errorf("%d bytes: %w", n, ErrInvalid)
	case a&^anyAccess != 0:
		return fmt.Errorf("access %v: %w", a, ErrInvalid)
	case a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0:
		return fmt.Errorf("access %v: remote write and remote atomic need local write: %w", a, ErrInvalid)
	case a&MWBind != 0 && p.d.attr.Capabilities&hw.CapabilityMW == 0:
		return fmt.Errorf("access %v: memory windows: %w", a, ErrNotSupported)
	}
	return nil
}

// AllocMR allocates n bytes of zeroed memory outside the Go heap and registers
// them. The memory is the region's: it goes with Dereg.
func (p *PD) AllocMR(ctx context.Context, n int, a Access, opts ...MROption) (*MR, error) {
	const op = "allocate MR"
	d := p.d
	var o mrOptions
	for _, f := range opts {
		f(&o)
	}
	obj := fmt.Sprintf("of %d bytes", n)
	if err := errors.Join(d.alive(), p.checkRegion(ctx, n, a)); err != nil {
		return nil, d.fail(op, obj, err)
	}
	m := &MR{pd: p, length: uint64(n), access: a, ctl: newCtlLock()}
	var b []byte
	if n < smallRegion && !o.hugePages {
		align := 64
		if n >= os.Getpagesize() {
			align = os.Getpagesize()
		}
		block, err := d.regions.Alloc(n, align)
		if err != nil {
			return nil, d.fail(op, obj, err)
		}
		m.block, m.iova, b = block, block.IOVA, block.Bytes
	} else {
		mem, err := vfio.AllocMemory(n, vfio.MemoryOptions{Huge: o.hugePages})
		if err != nil {
			return nil, d.fail(op, obj, err)
		}
		m.mem, b = mem, mem.Bytes()[:n:n]
		if err := m.mapOwn(); err != nil {
			return nil, d.fail(op, obj, err)
		}
	}
	m.bytes.Store(&b)
	return d.register(ctx, op, m, &o)
}

// RegMR registers memory of the caller's: whole pages, else ErrAlignment. It
// must hold no Go pointers, and stay until Dereg. A card in another process
// reaches it by messages, slowly; AllocMR's memory is shared with it.
func (p *PD) RegMR(ctx context.Context, b []byte, a Access, opts ...MROption) (*MR, error) {
	const op = "register MR"
	d := p.d
	var o mrOptions
	for _, f := range opts {
		f(&o)
	}
	obj := fmt.Sprintf("of %d bytes", len(b))
	if err := errors.Join(d.alive(), p.checkRegion(ctx, len(b), a)); err != nil {
		return nil, d.fail(op, obj, err)
	}
	mem, err := vfio.WrapMemory(b)
	if err != nil {
		return nil, d.fail(op, obj, fmt.Errorf("%w; or let PD.AllocMR allocate it", err))
	}
	m := &MR{pd: p, length: uint64(len(b)), access: a, mem: mem, ctl: newCtlLock()}
	if err := m.mapOwn(); err != nil {
		return nil, d.fail(op, obj, err)
	}
	m.bytes.Store(&b)
	return d.register(ctx, op, m, &o)
}

// mapOwn maps the region's own memory for the card.
func (m *MR) mapOwn() error {
	prot := vfio.ProtRead
	if m.access&(LocalWrite|RemoteWrite|RemoteAtomic) != 0 {
		prot |= vfio.ProtWrite
	}
	dma, err := m.pd.d.space.Map(m.mem, 0, m.mem.Size(), prot)
	if err != nil {
		return errors.Join(err, m.mem.Close())
	}
	m.dma, m.iova = dma, dma.IOVA()
	return nil
}

// register gives a mapped region its key and its entry in the key table, and
// undoes the mapping when that fails.
func (d *Device) register(ctx context.Context, op string, m *MR, o *mrOptions) (*MR, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	fail := func(err error) (*MR, error) {
		m.unmap()
		return nil, d.fail(op, fmt.Sprintf("of %d bytes", m.length), err)
	}
	m.addr = m.iova
	if o.baseSet {
		m.addr = o.base
	}
	if m.addr > math.MaxUint64-(m.length-1) {
		return fail(fmt.Errorf("virtual address %#x plus length wraps: %w", m.addr, ErrInvalid))
	}
	if o.keySet {
		if err := d.keys.take(o.key >> 8); err != nil {
			return fail(fmt.Errorf("key index of %#x: %w", o.key, err))
		}
		m.key = o.key
		d.keyTags.choose(m.key>>8, uint8(m.key))
	} else {
		i, err := d.keys.alloc()
		if err != nil {
			return fail(fmt.Errorf("key indices: %w", err))
		}
		m.key = i<<8 | uint32(d.keyTags.next(i))
	}
	err := d.add(m, func() {})
	if err == nil {
		d.mu.Lock()
		if err = m.pd.use(m, m.name()); err == nil {
			d.mrs[m.key>>8] = m
		}
		d.mu.Unlock()
	}
	if err == nil {
		d.shadow.set(m)
		if err = d.writeKey(ctx, m.key>>8, m.entry()); err == nil {
			d.settle() // what was looked up before is compared before
			d.shadow.move(m, false)
		}
	}
	if err != nil {
		// The entry may be there: take it back the long way, which is repeated
		// at Close if it fails.
		m.stage = mrLive
		if e := m.Dereg(ctx); e != nil && !isGone(e) {
			err = errors.Join(err, e)
		}
		return nil, d.fail(op, m.name(), err)
	}
	return m, nil
}

// entry is the region's entry in the key table.
func (m *MR) entry() hw.KeyEntry {
	return hw.KeyEntry{
		Base: m.addr, Length: m.length, IOVA: m.iova, PD: m.pd.n,
		Valid: uint32(hw.KeyEntryValid(0).WithTag(uint8(m.key)).WithState(hw.KeyStateValid).WithType(hw.KeyTypeMR).WithAccess(m.access)),
	}
}

func (m *MR) name() string { return fmt.Sprintf("MR %#x", m.key) }

// Bytes is the region's memory. It is nil after Dereg, and a slice taken
// before is invalid then.
func (m *MR) Bytes() []byte {
	if b := m.bytes.Load(); b != nil {
		return *b
	}
	return nil
}

// Len is the region's length in bytes.
func (m *MR) Len() int { return int(m.length) }

// Addr is the virtual address of the region's first byte, by which work
// requests name it.
func (m *MR) Addr() uint64 { return m.addr }

// LKey is the key for this side's work requests.
func (m *MR) LKey() uint32 { return m.key }

// RKey is the key for a peer's work requests. It is the same number.
func (m *MR) RKey() uint32 { return m.key }

// SGE names n bytes of the region at off. It panics outside the region, as a
// slice expression does.
func (m *MR) SGE(off, n int) SGE {
	if off < 0 || n < 0 || n > hw.MaxMessage || uint64(off)+uint64(n) > m.length {
		panic(fmt.Sprintf("rnic: SGE(%d, %d) is outside %s of %d bytes", off, n, m.name(), m.length))
	}
	return SGE{Addr: m.addr + uint64(off), Length: uint32(n), LKey: m.key}
}

// Remote is what a peer needs to reach the region.
func (m *MR) Remote() RemoteMR { return RemoteMR{Addr: m.addr, Length: m.length, RKey: m.key} }

// Dereg takes the region away from the card and frees its memory (rule G11):
// the key is made invalid, the card confirms that no cache holds it and that
// no DMA under it is in flight, then the memory is unmapped. After nil, no DMA
// touches it. On a deadline the memory stays mapped, the key invalid, and the
// call can be repeated. When the device is gone, the memory is freed and the
// error is ErrDeviceGone. After that it is nil.
func (m *MR) Dereg(ctx context.Context) error {
	const op = "deregister"
	d := m.pd.d
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := m.ctl.lock(ctx); err != nil {
		return d.fail(op, m.name(), err)
	}
	defer m.ctl.unlock()
	if m.stage == mrDone {
		return nil
	}
	d.shadow.move(m, true)
	if d.verify == nil {
		d.shadow.clear(m)
	}
	goneErr := d.alive()
	if goneErr == nil && m.stage == mrLive {
		goneErr = d.writeKey(ctx, m.key>>8, hw.KeyEntry{})
		if goneErr != nil && !isGone(goneErr) {
			return d.fail(op, m.name(), goneErr)
		}
		m.stage = mrRevoked
	}
	if goneErr == nil && m.stage == mrRevoked {
		var r hw.CommandReply
		r, goneErr = d.cmd.do(ctx, hw.CommandFenceKey, m.key>>8, 0, nil, nil)
		if goneErr != nil && !isGone(goneErr) {
			return d.fail(op, m.name(), goneErr)
		}
		m.stage = mrFenced
		m.fencedAt.Store(r.Value)
	}
	if err := m.unmap(); err != nil {
		return d.fail(op, m.name(), err)
	}
	m.finish()
	return d.fail(op, m.name(), goneErr)
}

// finish takes the region off its device. The caller holds ctl.
func (m *MR) finish() {
	d := m.pd.d
	m.stage = mrDone
	d.remove(m, func() {
		delete(m.pd.users, m)
		if d.mrs[m.key>>8] == m {
			delete(d.mrs, m.key>>8)
		}
	})
	d.keys.free(m.key >> 8)
}

// unmap frees the region's memory.
func (m *MR) unmap() error {
	m.pd.d.settle() // what the card gathered from it is compared before it goes
	m.pd.d.shadow.clear(m)
	if m.mem == nil {
		m.bytes.Store(nil)
		m.pd.d.regions.Free(m.block)
		m.block = vfio.Block{}
		return nil
	}
	if err := m.dma.Unmap(); err != nil {
		return err
	}
	m.bytes.Store(nil)
	return m.mem.Close()
}

// forceClose is part of Device.Close, which calls release once DMA is over.
func (m *MR) forceClose(error) {}

// release frees the memory of a region that was not deregistered.
func (m *MR) release() {
	m.ctl <- struct{}{}
	defer m.ctl.unlock()
	if m.stage == mrDone {
		return
	}
	if err := m.unmap(); err == nil {
		m.finish()
	}
}
