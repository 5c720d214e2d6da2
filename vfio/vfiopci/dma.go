package vfiopci

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// dmaTable is what is mapped, by first address.
type dmaTable struct {
	mu   sync.Mutex // held across the kernel's calls: mapping is not a hot path
	maps map[uint64]dmaMap
}

type dmaMap struct {
	n uint64
	m *vfio.Memory
}

// IOVARanges implements vfio.Device. The window of message-signalled
// interrupts is not among them.
func (d *Device) IOVARanges() []vfio.IOVARange { return slices.Clone(d.iommu.limits().ranges) }

// PageSizes implements vfio.Device.
func (d *Device) PageSizes() uint64 { return d.iommu.limits().pageSizes }

// MaxMappings implements vfio.Device.
func (d *Device) MaxMappings() int { return d.iommu.limits().mappings }

// MapDMA implements vfio.Device. The kernel pins the memory, which counts
// against RLIMIT_MEMLOCK.
func (d *Device) MapDMA(iova uint64, m *vfio.Memory, off, n uint64, prot vfio.Prot) error {
	const op = "map DMA"
	object := fmt.Sprintf("%#x+%#x %v", iova, n, prot)
	fail := func(err error) error { return d.fail(op, object, err) }
	lim := d.iommu.limits()
	page := lim.pageSizes & -lim.pageSizes
	switch {
	case prot == 0 || prot&^vfio.ProtReadWrite != 0:
		return fail(fmt.Errorf("%w: rights", vfio.ErrInvalid))
	case n == 0 || (iova|off|n)%page != 0:
		return fail(fmt.Errorf("%w of %#x bytes", vfio.ErrAlignment, page))
	case off > m.Size() || n > m.Size()-off:
		return fail(fmt.Errorf("%w: the memory has %#x bytes, %#x at %#x are wanted", vfio.ErrInvalid, m.Size(), n, off))
	case iova+(n-1) < iova:
		return fail(fmt.Errorf("%w: over the end of the address space: %w", vfio.ErrInvalid, unix.EOVERFLOW))
	case !slices.ContainsFunc(lim.ranges, func(r vfio.IOVARange) bool { return r.First <= iova && iova+(n-1) <= r.Last }):
		return fail(outside(iova, n, lim.ranges))
	}
	if err := d.use(op, object); err != nil {
		return err
	}
	defer d.hold.exit()
	d.dma.mu.Lock()
	defer d.dma.mu.Unlock()
	if d.dma.maps == nil { // the device ended meanwhile
		return fail(vfio.ErrGone)
	}
	if err := m.Retain(); err != nil {
		return fail(err)
	}
	if err := d.iommu.mapDMA(iova, unsafe.Pointer(unsafe.SliceData(m.Bytes()[off:])), n, prot); err != nil {
		m.Unretain()
		return fail(d.mapError(n, err))
	}
	d.dma.maps[iova] = dmaMap{n: n, m: m}
	return nil
}

// outside explains a mapping that the IOMMU has no addresses for: beyond its width, or in a window that the machine keeps, as that of
// interrupts (MSI) is.
func outside(iova, n uint64, ranges []vfio.IOVARange) error {
	last := uint64(0)
	for _, r := range ranges {
		last = max(last, r.Last)
	}
	e := &vfio.SetupError{Check: vfio.CheckMSIWindow, Object: fmt.Sprintf("DMA addresses %#x-%#x", iova, iova+(n-1)), Value: "in a window that the machine keeps, for interrupts or itself",
		Limit: fmt.Sprintf("within %v", ranges), Fix: "let vfio.Space choose the address", Err: vfio.ErrInvalid}
	if iova+(n-1) > last {
		e.Check, e.Value = vfio.CheckIOVAWidth, fmt.Sprintf("the IOMMU translates %d bits", bits.Len64(last))
	}
	return e
}

// mapError says what an errno of a mapping means. The table's lock is held.
func (d *Device) mapError(n uint64, err error) error {
	files := d.sys.Files()
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", vfio.ErrExists, err)
	case errors.Is(err, unix.EFAULT):
		return fmt.Errorf("%w: the memory is not there, or the device may write and this program may not: map it with vfio.ProtRead: %w", vfio.ErrInvalid, err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: the IOMMU translates %v in pages of %#x: %w", vfio.ErrInvalid, d.iommu.limits().ranges, d.iommu.limits().pageSizes, err)
	case errors.Is(err, unix.ENOSPC):
		const param = "sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
		return &vfio.SetupError{Check: vfio.CheckMappingLimit, Object: "/" + param, Value: fmt.Sprintf("%d mappings are in use", len(d.dma.maps)),
			Limit: fmt.Sprintf("fewer than %d", d.iommu.limits().mappings), Fix: "register fewer and larger regions; or, before the card is opened: echo 65535 > /" + param + " (now " + text(files, param) + ")",
			Err: fmt.Errorf("%w: %w", vfio.ErrExhausted, err)}
	case errors.Is(err, unix.ENOMEM):
		return memlockError(files, n, d.iommu.limits().perUser, err)
	}
	return iommufdCause(err)
}

// memlockError explains ENOMEM by the limit of locked memory, where that can be
// the cause: the kernel gives the numbers to its log only.
func memlockError(files fs.ReadLinkFS, need uint64, perUser bool, err error) error {
	lock := readMemlock(files)
	if lock.exempt || lock.limit == unlimited {
		return fmt.Errorf("the kernel has no memory to pin %d bytes: %w", need, err)
	}
	value := fmt.Sprintf("%d bytes, of which this process has %d locked", lock.limit, lock.locked)
	if perUser {
		value += " (iommufd counts all processes of the user together)"
	}
	return &vfio.SetupError{Check: vfio.CheckMemlockLow, Object: "RLIMIT_MEMLOCK", Value: value, Limit: fmt.Sprintf("at least %d bytes, for %d more", lock.locked+need, need),
		Fix: "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; a memlock line in /etc/security/limits.conf", Err: fmt.Errorf("%w: %w", vfio.ErrPermission, err)}
}

const unlimited = ^uint64(0)

type memlock struct {
	limit  uint64 // bytes; unlimited
	locked uint64 // bytes of this process
	exempt bool   // CAP_IPC_LOCK
}

// readMemlock reads what counts against locked memory from /proc.
func readMemlock(files fs.ReadLinkFS) memlock {
	m := memlock{limit: unlimited}
	for line := range strings.Lines(text(files, "proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				if v, err := strconv.ParseUint(f[0], 10, 64); err == nil {
					m.limit = v
				}
			}
		}
	}
	for line := range strings.Lines(text(files, "proc/thread-self/status")) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "VmLck:": // KiB
			if v, err := strconv.ParseUint(f[1], 10, 54); err == nil {
				m.locked = v << 10
			}
		case "CapEff:":
			const capIPCLock = 14 // linux/capability.h
			v, err := strconv.ParseUint(f[1], 16, 64)
			m.exempt = err == nil && v>>capIPCLock&1 != 0
		}
	}
	return m
}

// UnmapDMA implements vfio.Device.
func (d *Device) UnmapDMA(iova, n uint64) error {
	const op = "unmap DMA"
	object := fmt.Sprintf("%#x+%#x", iova, n)
	if err := d.use(op, object); err != nil {
		<-d.done // the end has unmapped it
		return err
	}
	defer d.hold.exit()
	d.dma.mu.Lock()
	defer d.dma.mu.Unlock()
	m, ok := d.dma.maps[iova]
	switch {
	case d.dma.maps == nil:
		return d.fail(op, object, vfio.ErrGone)
	case !ok || m.n != n || n == 0:
		return d.fail(op, object, vfio.ErrNotMapped)
	}
	// Nothing unmapped is a success of 0 bytes for the kernel.
	got, err := d.iommu.unmapDMA(iova, n)
	if err == nil && got != n {
		err = fmt.Errorf("%w: the kernel unmapped %#x bytes", vfio.ErrProtocol, got)
	}
	if err != nil {
		return d.fail(op, object, err)
	}
	delete(d.dma.maps, iova)
	m.m.Unretain()
	return nil
}

// endDMA unmaps all, and gives what the kernel refuses to unmap: the caller
// releases it once the address space is closed.
func (d *Device) endDMA() (left []*vfio.Memory) {
	d.dma.mu.Lock()
	defer d.dma.mu.Unlock()
	for iova, m := range d.dma.maps {
		if got, err := d.iommu.unmapDMA(iova, m.n); err != nil || got != m.n {
			left = append(left, m.m)
			continue
		}
		m.m.Unretain()
	}
	d.dma.maps = nil
	return left
}
