package vfiopci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/uapi"
)

// Device is a vfio.Device that the kernel's VFIO drives.
type Device struct {
	addr    string
	sys     System
	fn      *function
	fd      int
	iommu   iommu
	timeout time.Duration
	info    vfio.DeviceInfo
	msix    msixTable
	hold    hold
	dma     dmaTable
	irq     irqState

	mu       sync.Mutex
	regions  map[int]region
	mappings []*vfio.Mapping
	err      error // set before done is closed

	events   chan vfio.Event
	eventFDs []*os.File
	watching sync.WaitGroup
	done     chan struct{}
	released chan struct{} // closed when the descriptors are
	ended    sync.Once
	closed   sync.Once
	closeErr error
}

var _ vfio.Device = (*Device)(nil)

// region is a region and where it begins in the device's file.
type region struct {
	vfio.RegionInfo
	offset uint64
}

// eventBacklog is how many unread events a device keeps. The last place is
// EventGone's; requests and errors beyond it merge with those already there.
const eventBacklog = 16

// newDevice prepares an open function. It owns the descriptor and the IOMMU,
// also when it fails.
func newDevice(o *options, addr string, f *function, fd int, mmu iommu) (*Device, error) {
	d := &Device{
		addr: addr, sys: o.sys, fn: f, fd: fd, iommu: mmu, timeout: o.timeout,
		regions: make(map[int]region), events: make(chan vfio.Event, eventBacklog), done: make(chan struct{}), released: make(chan struct{}), msix: msixTable{bar: -1},
	}
	d.hold.idle = make(chan struct{})
	d.dma.maps = make(map[uint64]dmaMap)
	d.irq.enabled = make(map[int]int)
	if err := d.setup(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// setup asks what the function is, makes sure that it does no DMA, and connects
// its events.
func (d *Device) setup() error {
	info := uapi.DeviceInfo{}
	info.Argsz = uint32(unsafe.Sizeof(info))
	if _, err := d.sys.Ioctl(d.fd, uapi.VFIO_DEVICE_GET_INFO, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("describe function: %w", err)
	}
	d.info = vfio.DeviceInfo{
		Backend: d.iommu.backend(), PCI: info.Flags&uapi.VFIO_DEVICE_FLAGS_PCI != 0, Reset: info.Flags&uapi.VFIO_DEVICE_FLAGS_RESET != 0,
		NumRegions: int(info.NumRegions), NumIRQs: int(info.NumIrqs),
	}
	if !d.info.PCI || d.info.NumRegions <= vfio.RegionConfig || d.info.NumRegions > 1<<16 || d.info.NumIRQs > 1<<16 {
		return fmt.Errorf("%w: a device with %d regions, %d interrupt indices, flags %#x, and no PCI function", vfio.ErrNotSupported, info.NumRegions, info.NumIrqs, info.Flags)
	}
	cfg, err := vfio.NewConfig(d)
	if err != nil {
		return err
	}
	// The kernel opens a function with memory space on and bus mastering off.
	// One that is otherwise is made so.
	cmd, err := cfg.Read16(vfio.ConfigCommand)
	if err != nil {
		return err
	}
	if want := cmd&^vfio.CommandBusMaster | vfio.CommandMemory; want != cmd {
		if err := cfg.Write16(vfio.ConfigCommand, want); err != nil {
			return err
		}
	}
	if d.msix, err = readMSIX(cfg); err != nil {
		return err
	}
	return d.connectEvents()
}

// msixTable is where a function's MSI-X table is.
type msixTable struct {
	bar          int // -1: none
	offset, size uint64
}

// readMSIX reads the MSI-X capability (PCI Local Bus 3.0, 6.8.2).
func readMSIX(cfg *vfio.Config) (msixTable, error) {
	at, err := cfg.Find(vfio.CapMSIX)
	if err != nil || at == 0 {
		return msixTable{bar: -1}, err
	}
	ctl, err := cfg.Read16(at + 2)
	if err != nil {
		return msixTable{}, err
	}
	table, err := cfg.Read32(at + 4)
	if err != nil {
		return msixTable{}, err
	}
	return msixTable{bar: int(table & 7), offset: uint64(table &^ 7), size: 16 * (uint64(ctl&0x7ff) + 1)}, nil
}

// fail makes the error of an operation. Once the device has ended, that is the
// cause.
func (d *Device) fail(op, object string, err error) error {
	d.mu.Lock()
	if d.err != nil {
		err = d.err
	}
	d.mu.Unlock()
	return &vfio.Error{Addr: d.addr, Op: op, Object: object, Err: err}
}

// use lets a call use the descriptors. When it says yes, the caller calls
// d.hold.exit.
func (d *Device) use(op, object string) error {
	d.mu.Lock()
	err := d.err
	d.mu.Unlock()
	if err == nil && !d.hold.enter() {
		err = vfio.ErrClosed
	}
	if err != nil {
		return &vfio.Error{Addr: d.addr, Op: op, Object: object, Err: err}
	}
	return nil
}

// Addr implements vfio.Device.
func (d *Device) Addr() string { return d.addr }

// Info implements vfio.Device.
func (d *Device) Info() vfio.DeviceInfo { return d.info }

// Region implements vfio.Device.
func (d *Device) Region(i int) (vfio.RegionInfo, error) {
	r, err := d.region(i)
	r.Areas = slices.Clone(r.Areas)
	return r.RegionInfo, err
}

func (d *Device) region(i int) (region, error) {
	object := fmt.Sprint(i)
	if err := d.use("describe region", object); err != nil {
		return region{}, err
	}
	defer d.hold.exit()
	d.mu.Lock()
	r, ok := d.regions[i]
	d.mu.Unlock()
	if ok {
		return r, nil
	}
	fail := func(err error) (region, error) { return region{}, d.fail("describe region", object, err) }
	if i < 0 || i >= d.info.NumRegions {
		return fail(fmt.Errorf("%w: it has %d regions", vfio.ErrNotFound, d.info.NumRegions))
	}
	b, err := infoOf(d.sys, d.fd, uapi.VFIO_DEVICE_GET_REGION_INFO, vfio.RegionInfoSize, uint32(i))
	switch {
	case errors.Is(err, unix.EINVAL) && i >= vfio.RegionVGA:
		r.Index = i // a function without VGA, which is normal
	case err != nil:
		return fail(d.gone(err))
	default:
		if r.RegionInfo, r.offset, err = vfio.ParseRegionInfo(b); err != nil {
			return fail(err)
		}
		if r.Index != i {
			return fail(fmt.Errorf("%w: asked for region %d, got %d", vfio.ErrProtocol, i, r.Index))
		}
		if err := d.mappable(&r, b); err != nil {
			return fail(err)
		}
	}
	d.mu.Lock()
	d.regions[i] = r
	d.mu.Unlock()
	return r, nil
}

// mappable cuts what must not or cannot be mapped out of a region's areas: the
// pages of the MSI-X table where the kernel neither lists areas nor says that
// they may be mapped, and parts of pages.
func (d *Device) mappable(r *region, b []byte) error {
	page := uint64(os.Getpagesize())
	if r.Index == d.msix.bar {
		hole := true
		if r.Flags&vfio.RegionCaps != 0 {
			caps, err := uapi.Capabilities(b, binary.NativeEndian.Uint32(b[12:]), vfio.RegionInfoSize)
			if err != nil {
				return fmt.Errorf("%w: %w", vfio.ErrProtocol, err)
			}
			hole = !slices.ContainsFunc(caps, func(c uapi.Capability) bool {
				return c.ID == uapi.VFIO_REGION_INFO_CAP_SPARSE_MMAP || c.ID == uapi.VFIO_REGION_INFO_CAP_MSIX_MAPPABLE
			})
		}
		if hole {
			first := d.msix.offset &^ (page - 1)
			last := (d.msix.offset + d.msix.size + page - 1) &^ (page - 1) // exclusive
			r.Areas = cutOut(r.Areas, first, last)
		}
	}
	whole := r.Areas[:0]
	for _, a := range r.Areas {
		first, end := (a.Offset+page-1)&^(page-1), (a.Offset+a.Size)&^(page-1)
		if first < end && (r.offset+first)%page == 0 {
			whole = append(whole, vfio.Area{Offset: first, Size: end - first})
		}
	}
	if r.Areas = whole; len(whole) == 0 {
		r.Areas, r.Flags = nil, r.Flags&^vfio.RegionMmap
	}
	return nil
}

// cutOut takes [first, last) out of areas.
func cutOut(areas []vfio.Area, first, last uint64) (out []vfio.Area) {
	for _, a := range areas {
		if a.Offset < first {
			out = append(out, vfio.Area{Offset: a.Offset, Size: min(a.Size, first-a.Offset)})
		}
		if end := a.Offset + a.Size; end > last {
			at := max(a.Offset, last)
			out = append(out, vfio.Area{Offset: at, Size: end - at})
		}
	}
	return out
}

// MapRegion implements vfio.Device.
func (d *Device) MapRegion(i int) (*vfio.Mapping, error) {
	r, err := d.region(i)
	if err != nil {
		return nil, err
	}
	if err := d.use("map region", fmt.Sprint(i)); err != nil {
		return nil, err
	}
	defer d.hold.exit()
	m, err := d.sys.Map(d.fd, r.Size, r.Areas, r.offset, r.Flags&vfio.RegionWrite != 0)
	if err != nil {
		return nil, d.fail("map region", fmt.Sprint(i), d.gone(err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		_ = m.Release()
		return nil, &vfio.Error{Addr: d.addr, Op: "map region", Object: fmt.Sprint(i), Err: d.err}
	}
	d.mappings = slices.DeleteFunc(d.mappings, (*vfio.Mapping).Released)
	d.mappings = append(d.mappings, m)
	return m, nil
}

// ReadRegion implements vfio.Device.
func (d *Device) ReadRegion(i int, off uint64, p []byte) error {
	return d.transfer("read region", d.sys.Pread, i, off, p)
}

// WriteRegion implements vfio.Device.
func (d *Device) WriteRegion(i int, off uint64, p []byte) error {
	return d.transfer("write region", d.sys.Pwrite, i, off, p)
}

func (d *Device) transfer(op string, do func(int, []byte, int64) (int, error), i int, off uint64, p []byte) error {
	r, err := d.region(i)
	if err != nil {
		return err
	}
	object := fmt.Sprintf("%d offset %#x length %d", i, off, len(p))
	if err := d.use(op, object); err != nil {
		return err
	}
	defer d.hold.exit()
	if off > r.Size || uint64(len(p)) > r.Size-off {
		return d.fail(op, object, fmt.Errorf("%w (size %#x)", vfio.ErrRange, r.Size))
	}
	for done := 0; done < len(p); {
		n, err := do(d.fd, p[done:], int64(r.offset+off)+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return d.fail(op, object, d.gone(err))
		case n <= 0:
			return d.fail(op, object, fmt.Errorf("%w: the kernel moved %d of %d bytes", vfio.ErrRange, done, len(p)))
		default:
			done += n
		}
	}
	return nil
}

// ask does a request of the device with a structure that ends in an array.
func (d *Device) ask(req uint, b []byte) (int, error) {
	words := make([]uint64, (len(b)+7)/8) // aligned as the structures are
	all := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	copy(all, b)
	n, err := d.sys.Ioctl(d.fd, req, unsafe.Pointer(&words[0]))
	copy(b, all)
	runtime.KeepAlive(words)
	return n, err
}
