package softcard

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"rnic/hw"
)

// Config describes a card to be made. The zero value of a field means what its
// comment says.
type Config struct {
	Name   string         // up to 32 bytes of UTF-8
	MAC    [6]byte        // the port's address; zero: derived from Name and Seed
	IPs    []netip.Prefix // the port's addresses, GID 0 first; none: derived from Name and Seed
	Engine hw.Engine      // hw.EngineGo or hw.EngineNone
	Seed   uint64         // varies the derived addresses
	Limits Limits
	// Clock gives the card's time in ns; it never goes back. nil: time since New.
	Clock func() int64
	// Flash is the card's flash, which outlives it; whoever made it closes it. nil: the card has no flash window.
	Flash *Flash
	// FuseDebug leaves the debug page out, as on a card that is not for tests.
	FuseDebug bool
}

// Limits of a card, as its registers state them. A zero field takes the default.
type Limits struct {
	QPs, CQs, EQs      uint32 // 4096, 4096, 32
	KeyIndexBits       uint32 // 20, which is the most
	CacheSets          uint32 // 64 sets of the key cache, a power of two
	CacheWays          uint32 // 4 ways in each
	SendSegments       uint32 // 63, which is the most
	RecvSegments       uint32 // 63, which is the most
	Inline             uint32 // 960 bytes, which is the most
	SQLogBlocks        uint32 // 16: log2 of a send ring's 64-byte blocks
	RQLogEntries       uint32 // 15
	CQLogEntries       uint32 // 17
	EQLogEntries       uint32 // 14
	CommandLogEntries  uint32 // 8
	RateLimits         uint32 // 1024, entry 0 included
	Vectors            uint32 // 34 MSI-X vectors, at most 64
	RDAtomic           uint32 // 16 READs and atomics in flight of a QP
	MaxMTU             hw.MTU // 4096 bytes
	DMABits            uint32 // 64
	MaxPayload         uint32 // 512 bytes
	MaxReadRequest     uint32 // 4096 bytes
	CompletionTimeout  uint32 // 5,000,000 µs, that of DMA by message
	ReadTags           uint32 // 1: the card waits for each DMA
	doorbellPageStride uint32
}

func (l *Limits) fill() {
	def := func(p *uint32, v uint32) {
		if *p == 0 {
			*p = v
		}
	}
	def(&l.QPs, 4096)
	def(&l.CQs, 4096)
	def(&l.EQs, 32)
	def(&l.KeyIndexBits, 20)
	def(&l.CacheSets, 64)
	def(&l.CacheWays, 4)
	def(&l.SendSegments, hw.MaxSegments)
	def(&l.RecvSegments, hw.MaxSegments)
	def(&l.Inline, maxInline)
	def(&l.SQLogBlocks, 16)
	def(&l.RQLogEntries, 15)
	def(&l.CQLogEntries, 17)
	def(&l.EQLogEntries, 14)
	def(&l.CommandLogEntries, 8)
	def(&l.RateLimits, 1024)
	def(&l.Vectors, 34)
	def(&l.RDAtomic, 16)
	def(&l.DMABits, 64)
	def(&l.MaxPayload, 512)
	def(&l.MaxReadRequest, 4096)
	def(&l.CompletionTimeout, 5_000_000)
	def(&l.ReadTags, 1)
	if l.MaxMTU == 0 {
		l.MaxMTU = hw.MTU4096
	}
	l.doorbellPageStride = pageSize()
}

// maxInline is what fits behind the control and remote segments of a WQE of
// hw.WQEMaxBlocks blocks, with room for an address vector.
const maxInline = 960

func (l *Limits) check() error {
	pages := uint32(hw.BARDoorbellSize) / l.doorbellPageStride
	switch {
	case l.KeyIndexBits > 20:
		return fmt.Errorf("%d bits of key index: at most 20", l.KeyIndexBits)
	case l.SendSegments > hw.MaxSegments, l.RecvSegments > hw.MaxSegments:
		return fmt.Errorf("%d and %d segments: at most %d", l.SendSegments, l.RecvSegments, hw.MaxSegments)
	case l.Inline > maxInline:
		return fmt.Errorf("%d inline bytes: at most %d", l.Inline, maxInline)
	case l.Vectors > 64:
		return fmt.Errorf("%d MSI-X vectors: at most 64", l.Vectors)
	case l.EQs > 1<<12, l.CQs > 1<<20, l.QPs > 1<<20:
		return fmt.Errorf("%d QPs, %d CQs, %d EQs: at most 2^20, 2^20, 2^12", l.QPs, l.CQs, l.EQs)
	case uint64(l.QPs)+uint64(l.CQs)+uint64(l.EQs)+1 > uint64(pages):
		return fmt.Errorf("%d QPs, %d CQs and %d EQs: there are %d doorbell pages", l.QPs, l.CQs, l.EQs, pages)
	case l.SQLogBlocks > 20, l.RQLogEntries > 20, l.CQLogEntries > 22, l.EQLogEntries > 20, l.CommandLogEntries > 12:
		return errors.New("a ring size is over 2^20 entries (CQ 2^22, commands 2^12)")
	case l.RateLimits > 1<<16, l.RDAtomic > 255:
		return fmt.Errorf("%d rate limits, %d READs in flight: at most 65536 and 255", l.RateLimits, l.RDAtomic)
	case !l.MaxMTU.Valid():
		return fmt.Errorf("path MTU code %d", l.MaxMTU)
	}
	return nil
}

// Card is a soft card.
type Card struct {
	cfg    Config
	lim    Limits
	regs   regs
	cfgs   configSpace
	port   port
	runner atomic.Pointer[Runner]

	// What follows belongs to the caller of Step.
	host   Host  // the client's memory and interrupts, nil without a client
	time   int64 // card time of this Step, ns
	live   posted
	mem    sharedPages
	keys   keyCache
	dma    dmaState
	cmd    commandQueue
	eqs    []*eq
	cqs    []*cq
	liveCQ []*cq // the cqs in use, for scanning
	async  *eq   // EQ of the asynchronous events
	owner  []dbOwner
	trc    ring // trace
	capt   ring // capture
	dlog   ring // DMA log
	count  counters
	ipID   uint32 // IP identification of the next frame
	net    portState
	qps    qpState    // the data path's
	rtl    *rtlEngine // with hw.EngineRTL, else nil
	hosted hostGather
	out    scratch // entries that are being written
	sleeps bool    // asleep, by the flag in the domain page
	closed bool
}

// New makes a card: reset, without client, its port not joined. Close frees it.
func New(cfg Config) (*Card, error) {
	fail := func(err error) (*Card, error) { return nil, fmt.Errorf("softcard: card %q: %w", cfg.Name, err) }
	cfg.Limits.fill()
	if err := cfg.Limits.check(); err != nil {
		return fail(err)
	}
	if len(cfg.Name) > 32 {
		return fail(fmt.Errorf("the name has %d bytes: at most 32", len(cfg.Name)))
	}
	switch cfg.Engine {
	case hw.EngineGo, hw.EngineNone:
	case hw.EngineRTL:
		if cfg.Limits.CacheSets != rtlCacheSets || cfg.Limits.CacheWays != rtlCacheWays {
			return fail(fmt.Errorf("a key cache of %d × %d: that of the RTL engine is %d × %d", cfg.Limits.CacheSets, cfg.Limits.CacheWays, rtlCacheSets, rtlCacheWays))
		}
		cfg.Limits.ReadTags, cfg.Limits.MaxReadRequest = rtlReadTags, rtlReadRequest
	default:
		return fail(fmt.Errorf("engine %v: this card has GO, RTL or NONE", cfg.Engine))
	}
	if len(cfg.IPs) > numGIDs {
		return fail(fmt.Errorf("%d addresses: at most %d", len(cfg.IPs), numGIDs))
	}
	cfg.deriveAddresses()
	if cfg.Clock == nil {
		start := time.Now()
		cfg.Clock = func() int64 { return int64(time.Since(start)) }
	}
	c := &Card{cfg: cfg, lim: cfg.Limits}
	if err := c.mem.open(uint64(c.lim.doorbellPageStride)); err != nil {
		return fail(err)
	}
	c.owner = make([]dbOwner, c.mem.pages)
	c.eqs = make([]*eq, c.lim.EQs)
	c.cqs = make([]*cq, c.lim.CQs)
	if err := c.keys.init(c); err != nil {
		c.mem.close()
		return fail(err)
	}
	if cfg.Engine == hw.EngineRTL {
		var err error
		if c.rtl, err = newRTLEngine(c); err != nil {
			c.mem.close()
			return fail(err)
		}
	}
	c.initQPs()
	c.port.init(c)
	c.regs.init(c)
	c.cfgs.init(c)
	c.reset()
	c.regs.ready(c.regs.resets)
	return c, nil
}

// Close leaves the wire and frees the card's memory. Nobody may step the card
// any more, and no client may be attached.
func (c *Card) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	if c.rtl != nil {
		c.rtl.sim.Close()
	}
	c.port.leave()
	return c.mem.close()
}

// Name is the card's name.
func (c *Card) Name() string { return c.cfg.Name }

// Config is what the card was made with, derived addresses and limits filled in.
func (c *Card) Config() Config { return c.cfg }

// now is the card's time in ns, in this Step.
func (c *Card) now() int64 { return c.time }

// Step does what there is to do, at most about budget packets of it, and
// reports whether there was anything. now is the time by Config.Clock. It is
// for one caller at a time.
func (c *Card) Step(now int64, budget int) (worked bool) {
	ask := c.regs.quiescentAsked() // before sync: a store that comes between asks anew
	worked = c.sync(now)
	if h := c.host; h != nil {
		h.Enter()
		worked = c.serve(budget) || worked
		h.Exit()
	} else {
		worked = c.serve(budget) || worked
	}
	c.publish(worked, ask)
	return worked
}

// serve is Step inside the bracket of DMA.
func (c *Card) serve(budget int) (worked bool) {
	worked = c.runTests()
	worked = c.pollLink() || worked
	worked = c.runCommands(budget) || worked
	worked = c.absorb() || worked
	worked = c.pollHost() || worked
	if c.live.runMode == hw.RunModeFree {
		worked = c.receive(budget) || worked
		worked = c.runTimers() || worked
		worked = c.pollDoorbells(!worked && !c.transmitPending()) || worked
		sent, blocked := c.transmit(budget)
		if blocked {
			c.count[cntWireFull]++
		}
		worked = sent || worked
	} else {
		worked = c.runStep(budget) || worked
	}
	worked = c.pollArms() || worked
	return c.pollEvents() || worked
}

// runStep is the data path of a stepped run: what RUN_STEP asks for.
func (c *Card) runStep(budget int) (worked bool) {
	step := c.regs.runStep()
	if step.Receive() {
		if c.receive(budget) {
			return true // TRANSMIT begins when everything is in
		}
		c.regs.runStepDone(hw.DebugRunStepReceiveMask)
		worked = true
	}
	if step.Transmit() {
		worked = c.runTimers()
		worked = c.pollDoorbells(true) || worked
		sent, blocked := c.transmit(budget)
		if sent || worked {
			return true
		}
		if !blocked && c.hosted.waiting > 0 {
			return false // it ends with the host's answers
		}
		if !blocked {
			c.regs.runStepDone(hw.DebugRunStepTransmitMask)
			return true
		}
		c.count[cntWireFull]++
	}
	return worked
}

// idle reports, after a Step that found nothing to do, whether nothing is left but
// timers: no packet that waits for room on the wire or for the host's gather, and
// nothing for RUN_STEP.
func (c *Card) idle() bool {
	if c.transmitPending() || c.hosted.waiting > 0 {
		return false
	}
	return c.live.runMode == hw.RunModeFree || !c.doorbellsPending() && c.nextTimer() > c.now()
}

// reset brings everything that Step owns to its state after reset. The caller
// has cut off DMA and cleared STATUS.READY.
func (c *Card) reset() {
	c.resetQPs()
	c.hosted = hostGather{}
	clear(c.eqs)
	clear(c.cqs)
	clear(c.owner)
	c.liveCQ, c.async = c.liveCQ[:0], nil
	c.trc, c.capt, c.dlog = ring{}, ring{}, ring{}
	c.cmd = commandQueue{}
	c.dma = dmaState{}
	c.setIPID(0)
	c.regs.tests.dmaSequence.Store(0)
	c.count = counters{}
	c.keys.reset()
	if c.rtl != nil {
		c.rtl.reset()
	}
	c.net.reset(&c.cfg)
	c.port.reset()
	c.mem.clear()
	c.sleeps = false
	c.regs.publishPort(c)
}
