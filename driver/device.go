package driver

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/hw/image"
	"rnic/queues"
	"rnic/vfio"
	_ "rnic/vfio/vfiopci"  // PCI addresses
	_ "rnic/vfio/vfiouser" // the address scheme vfio-user
)

// Device is an open card. Close it.
type Device struct {
	addr string
	dev  vfio.Device
	cfg  *vfio.Config
	log  *zap.Logger
	attr DeviceAttr
	port atomic.Pointer[PortAttr]

	ctrl, bells, keyTable *vfio.BAR
	space                 *vfio.Space
	arena                 *vfio.Arena // rings and mailboxes
	regions               *vfio.Arena // small memory regions
	domain                queues.Domain
	cmd                   *commands
	vectors               []*vector
	events                *eventQueue
	trace                 recorder[TraceRecord]
	capture               recorder[CaptureFrame]
	dmaLog                recorder[DMARecord]
	status                *statusServer
	host                  atomic.Pointer[hostGather] // nil: the card gathers
	shadow                shadow
	verify                *verifier // nil: Off

	doorbells, keys, qpns, cqns, pdns, rates *numbers
	keyTags                                  *keyTags

	rung                  chan struct{} // see ringer
	commandRung, kickRung atomic.Bool
	portAsk, lostAsk      chan struct{} // see asking

	mu     sync.Mutex
	closed bool
	cause  error // why the device is gone
	pds    map[uint32]*PD
	mrs    map[uint32]*MR // by key index
	cqs    map[uint32]*CQ
	qps    map[uint32]*QP
	order  []child // all of them, in order of creation
	cqByN  cqTable // the cqs again, for the events

	gone    chan struct{} // closed by die
	stop    chan struct{} // closed by Close
	dieOnce sync.Once
	wg      sync.WaitGroup
	closing sync.Once
}

// child is an object that Close takes along.
type child interface{ forceClose(cause error) }

// Option configures Open.
type Option func(*options)

type options struct {
	log        *zap.Logger
	statusPath string
	statusSet  bool
	verify     VerifyMode
	verifyDir  string
	gather     GatherMode
	manifest   *image.Manifest
}

// VerifyMode says which gathers of the card are done again in software and
// compared (rule G21).
type VerifyMode struct {
	every int
}

// Off verifies nothing. It is the default.
var Off = VerifyMode{}

// Always verifies each gather.
var Always = VerifyMode{every: 1}

// Sample verifies one packet in n, chosen at random by the card; n up to 65,535.
func Sample(n int) VerifyMode { return VerifyMode{every: min(max(n, 1), 1<<16-1)} }

// GatherMode says who gathers.
type GatherMode int

// Who gathers.
const (
	Card GatherMode = iota // the card's engine; the default
	Host                   // this driver's software gather
)

// WithLogger gives the device a logger. By default it is silent.
func WithLogger(l *zap.Logger) Option {
	return func(o *options) {
		if l != nil {
			o.log = l
		}
	}
}

// WithVerify has the card's gathers compared with a software walk (rule G21),
// before the completion of their work request is handed out. One that differs
// freezes its queue pair: see VerifyError. docs/verification.md says which writes
// to a buffer can cause a false one. The card needs a trace ring, else Open is
// ErrNotSupported.
func WithVerify(m VerifyMode) Option { return func(o *options) { o.verify = m } }

// WithVerifyDir chooses the folder for the bundles of packets that differ. By
// default it is $XDG_STATE_HOME/rnic, else ~/.local/state/rnic.
func WithVerifyDir(dir string) Option { return func(o *options) { o.verifyDir = dir } }

// WithGather chooses who gathers. A card without an engine always has the host
// gather. Host needs a card with the rings for it, else Open is ErrNotSupported.
func WithGather(m GatherMode) Option { return func(o *options) { o.gather = m } }

// WithManifest opens the card only if it runs this image: else Open is ErrImage.
// For a card with a flash window the header in the flash is compared without it.
func WithManifest(m *image.Manifest) Option { return func(o *options) { o.manifest = m } }

// WithStatusSocket serves the status socket at path; "" serves none. Without
// this option it is in $XDG_RUNTIME_DIR/rnic, else in /run/rnic.
func WithStatusSocket(path string) Option {
	return func(o *options) { o.statusPath, o.statusSet = path, true }
}

// Open opens the card at addr. The context, or 5 s, bounds it.
//
// errors.Is: ErrNotFound; ErrBusy, naming the pid of the holder where it can
// be known; ErrPermission; ErrContractVersion, naming both versions;
// ErrImage for a card that does not run the image that it says it runs;
// ErrNotSupported for an option or an address scheme that is not there.
func Open(ctx context.Context, addr string, opts ...Option) (*Device, error) {
	o := options{log: zap.NewNop()}
	for _, f := range opts {
		f(&o)
	}
	fail := func(err error) (*Device, error) {
		return nil, &DeviceError{Addr: addr, Op: "open", Err: err}
	}
	switch {
	case o.gather != Card && o.gather != Host:
		return fail(fmt.Errorf("gather mode %d: %w", o.gather, ErrInvalid))
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	// Once the context has ended, that is why, however the end of it shows: the
	// device is closed under whoever waits.
	ended := func(err error) error {
		if ctx.Err() == nil || !isGone(err) && !errors.Is(err, ErrTimeout) {
			return err
		}
		return &DeadlineError{Waited: "the card to come up", Cause: context.Cause(ctx)}
	}
	dev, err := vfio.Open(ctx, addr)
	if err != nil {
		return fail(ended(err))
	}
	d := &Device{
		addr: addr, dev: dev, log: o.log.With(zap.String("device", addr)),
		events: newEventQueue(), rung: make(chan struct{}, 1), portAsk: make(chan struct{}, 1), lostAsk: make(chan struct{}, 1),
		pds: map[uint32]*PD{}, mrs: map[uint32]*MR{}, cqs: map[uint32]*CQ{}, qps: map[uint32]*QP{},
		shadow: shadow{keys: map[uint32]*shadowKey{}},
		gone:   make(chan struct{}), stop: make(chan struct{}),
	}
	// Register accesses know no context: one that ends closes the device
	// under them.
	stop := context.AfterFunc(ctx, func() { dev.Close() })
	err = d.bringUp(ctx, &o)
	if !stop() && err == nil {
		err = ErrClosed
	}
	if err != nil {
		d.Close()
		var waited *DeadlineError
		if !errors.As(err, &waited) {
			err = ended(err)
		}
		return fail(err)
	}
	if !o.statusSet {
		o.statusPath = defaultStatusPath(addr)
	}
	if o.statusPath != "" {
		if err := d.serveStatus(o.statusPath); err != nil {
			if o.statusSet {
				d.Close()
				return fail(err)
			}
			d.log.Warn("no status socket", zap.Error(err))
		}
	}
	return d, nil
}

// bringUp takes the card from reset to where objects can be made.
func (d *Device) bringUp(ctx context.Context, o *options) error {
	var err error
	if d.cfg, err = vfio.NewConfig(d.dev); err != nil {
		return err
	}
	if d.ctrl, err = vfio.NewBAR(d.dev, hw.BARCtrl); err != nil {
		return err
	}
	if err := identify(d.ctrl); err != nil {
		return err
	}
	if d.dev.Info().Reset {
		if err := d.dev.Reset(ctx); err != nil {
			return err
		}
	}
	if err := d.awaitStatus(ctx, "the card's reset", hw.ControlStatusReadyMask, hw.ControlStatusReadyMask); err != nil {
		return err
	}
	if err := d.readAttr(); err != nil {
		return err
	}
	if err := d.checkImage(ctx, o.manifest); err != nil {
		return err
	}
	if d.bells, err = vfio.NewBAR(d.dev, hw.BARDoorbell); err != nil {
		return err
	}
	last := uint64(d.attr.DoorbellPages*d.attr.DoorbellStride - 4)
	if d.bells.Word32(0) == nil || d.bells.Word32(last) == nil {
		return fmt.Errorf("BAR DOORBELL cannot be mapped, and a doorbell by message would be slow: %w", ErrNotSupported)
	}
	if d.keyTable, err = vfio.NewBAR(d.dev, hw.BARKeytable); err != nil {
		return err
	}
	if d.attr.Capabilities&hw.CapabilitySleep != 0 {
		d.domain.Sleep = d.bells.Word32(hw.DomainSleep)
	}
	d.domain.Kick = func() { d.ring(&d.kickRung) }
	if d.space, err = vfio.NewSpace(d.dev, d.attr.DMABits); err != nil {
		return err
	}
	d.arena = vfio.NewArena(d.space, vfio.MemoryOptions{})
	d.regions = vfio.NewArena(d.space, vfio.MemoryOptions{})
	d.doorbells = newNumbers(1, uint32(d.attr.DoorbellPages), 1)
	d.keys = newNumbers(1, uint32(d.attr.MaxMR)+1, 1)
	d.keyTags = newKeyTags()
	const firstQPN, endQPN = 2, 0xffffff // 0 and 1 are management's, the last is multicast's
	d.qpns = newNumbers(firstQPN, endQPN, firstQPN+rand.Uint32N(endQPN-firstQPN))
	d.cqns = newNumbers(0, uint32(d.attr.MaxCQ), 0)
	d.pdns = newNumbers(1, 1<<24, 1)
	d.rates = newNumbers(1, uint32(d.attr.RateLimits)+1, 1)
	d.initRecorders()
	d.shadow.limit = uint32(d.attr.MaxMR) + 1
	d.cqByN = newCQTable(d.attr.MaxCQ)

	// DMA and interrupts begin with this bit; it is the first thing to go.
	if err := d.cfg.SetBusMaster(true); err != nil {
		return err
	}
	if err := d.startCommands(); err != nil {
		return err
	}
	d.wg.Add(2)
	go d.ringer()
	go d.watch()
	if err := d.startVectors(1 + min(runtime.GOMAXPROCS(0), 8)); err != nil {
		return err
	}
	if err := d.awaitStatus(ctx, "the command queue to start", hw.ControlStatusCommandEnabledMask, hw.ControlStatusCommandEnabledMask); err != nil {
		return err
	}
	if err := d.vectors[0].useEQ(ctx, true); err != nil {
		return err
	}
	if err := d.queryPort(ctx); err != nil {
		return err
	}
	d.wg.Add(1)
	go d.asking()
	if o.gather == Host || d.attr.Capabilities&hw.CapabilityGather == 0 {
		if err := d.startHostGather(ctx); err != nil {
			return err
		}
	}
	if o.verify != Off {
		if o.verifyDir == "" {
			o.verifyDir = defaultVerifyDir()
		}
		return d.startVerify(ctx, o.verify, o.verifyDir)
	}
	return nil
}

// identify checks that a card of this contract answers.
func identify(ctrl *vfio.BAR) error {
	magic, err := ctrl.Read32(hw.RegIdentMagic)
	if err != nil {
		return err
	}
	version, err := ctrl.Read32(hw.RegIdentVersion)
	switch v := hw.IdentVersion(version); {
	case err != nil:
		return err
	case magic == ^uint32(0):
		return fmt.Errorf("all registers are ones: %w", ErrDeviceGone)
	case magic != hw.ContractMagic:
		return fmt.Errorf("not a card of this contract: magic %#08x, want %#08x: %w", magic, hw.ContractMagic, ErrContractVersion)
	case v.Major() != hw.ContractMajor:
		return fmt.Errorf("%w: the card has %d.%d, this driver takes %d.x", ErrContractVersion, v.Major(), v.Minor(), hw.ContractMajor)
	}
	return nil
}

// awaitStatus waits until the masked bits of CONTROL.STATUS are as wanted.
func (d *Device) awaitStatus(ctx context.Context, what string, mask, want uint32) error {
	deadline := &DeadlineError{Waited: what}
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		v, err := d.ctrl.Read32(hw.RegControlStatus)
		switch {
		case ctx.Err() != nil: // the device was closed for it
			deadline.Cause = context.Cause(ctx)
			return deadline
		case err != nil:
			return err
		case v == ^uint32(0):
			return fmt.Errorf("all registers are ones: %w", ErrDeviceGone)
		case hw.ControlStatus(v).Fatal():
			return fmt.Errorf("the card has stopped: CONTROL.STATUS %#x; reset it: %w", v, ErrDeviceGone)
		case v&mask == want:
			return nil
		}
		if g, i, err := findRegister("CONTROL.STATUS"); err == nil {
			deadline.Registers = []RegisterValue{decodeRegister(g, i, uint64(v))}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-d.dev.Done():
		}
		t.Stop()
	}
}

// Attr is what the card is and can do.
func (d *Device) Attr() DeviceAttr { return d.attr }

// Addr is the address that the device was opened by.
func (d *Device) Addr() string { return d.addr }

// Done is closed once the device is gone. Close closes it too.
func (d *Device) Done() <-chan struct{} { return d.gone }

// Close closes the device and all its objects, in reverse order of their
// creation, frees their memory and gives the card back. Memory regions' bytes
// are gone after it, also those of a region whose Dereg failed. It is
// idempotent.
func (d *Device) Close() error {
	d.closing.Do(d.close)
	return nil
}

func (d *Device) close() {
	d.mu.Lock()
	d.closed = true
	order := slices.Clone(d.order)
	d.mu.Unlock()
	close(d.stop)
	if d.status != nil {
		d.status.close()
	}
	// No DMA and no interrupt from here on: nothing of the card needs to be
	// told one by one.
	if d.cfg != nil && d.dev.Err() == nil {
		if err := d.cfg.SetBusMaster(false); err != nil && !isGone(err) {
			d.log.Warn("bus mastering off", zap.Error(err))
		}
	}
	if d.cmd != nil {
		d.cmd.kill(ErrClosed)
	}
	for _, c := range slices.Backward(order) {
		c.forceClose(ErrClosed)
	}
	if err := d.dev.Close(); err != nil && !isGone(err) {
		d.log.Warn("close", zap.Error(err))
	}
	d.die(ErrClosed)
	for _, v := range d.vectors {
		v.f.Close()
	}
	d.wg.Wait()
	for _, c := range slices.Backward(order) {
		if m, ok := c.(*MR); ok {
			m.release()
		}
	}
	d.trace.close()
	d.capture.close()
	d.dmaLog.close()
	for _, a := range []*vfio.Arena{d.regions, d.arena} {
		if a != nil {
			if err := a.Close(); err != nil {
				d.log.Warn("free DMA memory", zap.Error(err))
			}
		}
	}
	// No verb is inside: each took its object's lock and found it closed.
	for _, b := range []*vfio.BAR{d.keyTable, d.bells, d.ctrl} {
		if b != nil {
			if err := b.Release(); err != nil {
				d.log.Warn("release BAR", zap.Error(err))
			}
		}
	}
}

// add puts a new object among the device's, unless it is closed or gone.
func (d *Device) add(c child, put func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.aliveLocked(); err != nil {
		return err
	}
	put()
	d.order = append(d.order, c)
	return nil
}

// remove takes an object off the device.
func (d *Device) remove(c child, take func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	take()
	if i := slices.Index(d.order, c); i >= 0 {
		d.order = slices.Delete(d.order, i, i+1)
	}
}

// children are the queues, for die. The caller holds mu.
func (d *Device) children() (cqs []*CQ, qps []*QP) {
	for _, c := range d.cqs {
		cqs = append(cqs, c)
	}
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	return cqs, qps
}

// alloc takes memory for rings and mailboxes.
func (d *Device) alloc(n, align int) (vfio.Block, error) { return d.arena.Alloc(n, align) }

// abandon gives back memory and a doorbell page that a command was to use and
// failed. When nobody can know whether the card uses them, they are kept.
func (d *Device) abandon(err error, b vfio.Block, page uint32) {
	var refused *CommandError
	if errors.As(err, &refused) {
		d.arena.Free(b)
		d.doorbells.free(page)
	}
}

func logOf(n int) uint8 { return uint8(bits.Len(uint(n)) - 1) }

// roundUp is the least power of two that is at least n.
func roundUp(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}
