package softcard

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"rnic/hw"
)

// regs is the register file, BAR CTRL. The client's connection reads and writes
// it while Step runs, under mu, which is never held across DMA. A store that
// asks for work is posted; Step takes what was posted when it begins.
type regs struct {
	card *Card

	mu     sync.Mutex
	word   []uint32 // by offset / 4; what a load gives where nothing else is said
	access []hw.RegisterAccess
	known  []bool // a register of the contract is there
	host   Host
	resets uint64 // number of the newest reset
	done   uint64 // number of the newest reset that Step has done
	post   posted
	shown  counters // as of the end of the last Step that worked

	clockStepLow uint32 // of CLOCK_STEP, until its high half comes
	steppedNow   int64  // card time while the clock is stepped
	nextTimer    int64  // card time of the next timer

	flash   flashWindow
	image   [32]byte // digest of the image that runs, zero: none
	started uint32   // its slot

	dirty atomic.Bool // something was posted
	quiet quiescence
	tests debugCounts
}

// posted is what register stores ask of Step: levels, which stay, and edges,
// which Step takes.
type posted struct {
	// Levels.
	host        Host
	resets      uint64
	cmdProducer uint32
	clockMode   hw.ClockMode
	runMode     hw.RunMode
	clock       int64 // card time while the clock is stepped
	debug       debugLevels
	// Edges.
	cmdStart, cmdStop bool
	dmaTest           uint32
	interrupts        uint64 // bit n: raise vector n
	kicks             uint64
	flips             []uint32 // FLIP_CACHE
	ipID              uint32   // with ipIDSet
	ipIDSet           bool
}

// maxPostedFlips bounds the stores to FLIP_CACHE that wait for Step.
const maxPostedFlips = 256

func (r *regs) init(c *Card) {
	r.card = c
	r.word = make([]uint32, hw.BARCtrlSize/4)
	r.access = make([]hw.RegisterAccess, len(r.word))
	r.known = make([]bool, len(r.word))
	for i := range hw.Registers {
		g := &hw.Registers[i]
		if g.BAR != hw.BARCtrl || c.cfg.FuseDebug && g.Offset >= hw.BlockDebug && g.Offset < hw.MSIXTableOffset ||
			c.cfg.Flash == nil && g.Offset >= hw.BlockFlash && g.Offset < hw.BlockPort {
			continue
		}
		for n := range max(g.Count, 1) {
			for h := range g.Width / 32 {
				at := int(g.Offset)/4 + n*int(g.Stride)/4 + h
				r.access[at], r.known[at] = g.Access, true
			}
		}
	}
	for at := hw.MSIXTableOffset / 4; at < hw.MSIXTableOffset/4+int(c.lim.Vectors)*4; at++ {
		r.access[at], r.known[at] = hw.RW, true
	}
	r.powerUp()
	r.resetLocked()
}

// resetLocked gives each register its value after reset, forgets what was
// posted and posts the reset itself.
func (r *regs) resetLocked() {
	if r.flash.start {
		r.powerUp()
	}
	r.flash = flashWindow{}
	clear(r.word)
	for i := range hw.Registers {
		if g := &hw.Registers[i]; g.BAR == hw.BARCtrl && r.known[g.Offset/4] && g.Reset != 0 {
			r.word[g.Offset/4] = uint32(g.Reset)
			if g.Width == 64 {
				r.word[g.Offset/4+1] = uint32(g.Reset >> 32)
			}
		}
	}
	for v := range int(r.card.lim.Vectors) {
		r.word[hw.MSIXTableOffset/4+v*4+3] = 1 // vector control: masked (PCI Local Bus 3.0, 6.8.2.9)
	}
	r.identity()
	r.shown = counters{}
	r.resets++
	r.post = posted{host: r.host, resets: r.resets}
	r.steppedNow, r.nextTimer = 0, noTimer
	r.tests.reset()
	r.quiet.post()
	r.dirty.Store(true)
}

// ready ends reset n, if it is still the newest.
func (r *regs) ready(n uint64) {
	r.mu.Lock()
	r.done = n
	r.mu.Unlock()
}

func (r *regs) isReady() bool { return r.done == r.resets }

// put64 sets a register of two words.
func (r *regs) put64(off int, v uint64) {
	r.word[off/4], r.word[off/4+1] = uint32(v), uint32(v>>32)
}

// identity fills block IDENT from the card's limits.
func (r *regs) identity() {
	c, l, w := r.card, &r.card.lim, r.word
	w[hw.RegIdentMagic/4] = hw.ContractMagic
	w[hw.RegIdentVersion/4] = hw.ContractMajor<<16 | hw.ContractMinor
	w[hw.RegIdentEngine/4] = uint32(c.cfg.Engine)
	w[hw.RegIdentAtomicScope/4] = uint32(hw.AtomicScopeCard)
	r.put64(hw.RegIdentCapabilities, uint64(c.capabilities()))
	w[hw.RegIdentMaxQPs/4], w[hw.RegIdentMaxCQs/4], w[hw.RegIdentMaxEQs/4] = l.QPs, l.CQs, l.EQs
	w[hw.RegIdentKeyIndexBits/4] = l.KeyIndexBits
	w[hw.RegIdentMaxSendSegments/4], w[hw.RegIdentMaxRecvSegments/4] = l.SendSegments, l.RecvSegments
	w[hw.RegIdentMaxInline/4] = l.Inline
	w[hw.RegIdentMaxSQLogBlocks/4], w[hw.RegIdentMaxRQLogEntries/4] = l.SQLogBlocks, l.RQLogEntries
	w[hw.RegIdentMaxCQLogEntries/4], w[hw.RegIdentMaxEQLogEntries/4] = l.CQLogEntries, l.EQLogEntries
	w[hw.RegIdentMaxMTU/4] = uint32(l.MaxMTU.Bytes())
	w[hw.RegIdentRateLimits/4] = l.RateLimits
	w[hw.RegIdentDoorbellStride/4], w[hw.RegIdentDoorbellPages/4] = c.mem.stride, c.mem.pages
	w[hw.RegIdentDMABits/4] = l.DMABits
	w[hw.RegIdentMSIXVectors/4] = l.Vectors
	w[hw.RegIdentKeyCacheSets/4], w[hw.RegIdentKeyCacheWays/4] = l.CacheSets, l.CacheWays
	r.put64(hw.RegIdentClockHz, 1e9)
	w[hw.RegIdentReadTags/4] = l.ReadTags
	w[hw.RegIdentMaxPayload/4], w[hw.RegIdentMaxReadRequest/4] = l.MaxPayload, l.MaxReadRequest
	w[hw.RegIdentCompletionTimeout/4] = l.CompletionTimeout
	w[hw.RegIdentMaxRDAtomic/4] = l.RDAtomic
	w[hw.RegIdentGIDs/4] = numGIDs
	w[hw.RegIdentCommandLogEntries/4] = l.CommandLogEntries
	var name [32]byte
	copy(name[:], c.cfg.Name)
	for i := range hw.RegIdentCardNameCount {
		w[hw.RegIdentCardName/4+i] = binary.LittleEndian.Uint32(name[4*i:])
	}
	r.flashIdentity()
}

// capabilities are those of this card.
func (c *Card) capabilities() hw.Capability {
	caps := hw.CapabilitySleep | hw.CapabilityWriteFault | hw.CapabilityTrace | hw.CapabilityCapture | hw.CapabilityKeyWindow | hw.CapabilityHostGather | dataCapabilities
	if c.cfg.Engine != hw.EngineNone {
		caps |= hw.CapabilityGather
	}
	if !c.cfg.FuseDebug {
		caps |= hw.CapabilityDebug
	}
	if c.cfg.Flash != nil {
		caps |= hw.CapabilityFlash
	}
	return caps
}

// read is a load of any width at any offset of BAR CTRL, which the server has
// checked to lie inside. Each register that it touches is loaded once.
func (r *regs) read(off uint64, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(p) > 0 {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], r.load(int(off&^3)))
		n := copy(p, b[off&3:])
		off, p = off+uint64(n), p[n:]
	}
}

// write is a store to BAR CTRL: whole registers of 32 bits, in ascending order.
func (r *regs) write(off uint64, p []byte) error {
	if off%4 != 0 || len(p)%4 != 0 {
		return fmt.Errorf("softcard: store of %d bytes at register offset %#x: registers take aligned 32-bit words: %w", len(p), off, unix.EINVAL)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for ; len(p) > 0; off, p = off+4, p[4:] {
		at := int(off / 4)
		if !r.known[at] || r.access[at] == hw.RO || !r.isReady() {
			continue // as on a bus, a store to nothing is lost
		}
		if err := r.store(int(off), binary.LittleEndian.Uint32(p)); err != nil {
			return err
		}
		r.quiet.post()
	}
	return nil
}

// load gives the word at a register offset, a multiple of 4.
func (r *regs) load(off int) uint32 {
	at := off / 4
	switch {
	case !r.known[at]:
		if off >= hw.MSIXPBAOffset {
			return r.pendingBits(off - hw.MSIXPBAOffset)
		}
		return 0
	case r.access[at] == hw.WO:
		return 0
	case off >= hw.BlockCounters && off < hw.BlockCounters+8*int(numCounters):
		if n := (off - hw.BlockCounters) / 8; off%8 == 0 { // the low half latches the high one
			r.put64(off, r.shown[n])
		}
	case off >= hw.BlockDebug && off < hw.MSIXTableOffset:
		r.loadDebug(off)
	case off == hw.RegControlStatus:
		return uint32(r.status())
	case off == hw.RegPortLink:
		return r.card.port.link.Load()
	}
	return r.word[at]
}

func (r *regs) status() hw.ControlStatus {
	return hw.ControlStatus(r.word[hw.RegControlStatus/4]).WithReady(r.isReady()).WithBusMaster(r.card.cfgs.busMaster())
}

// store is a store of one word to a writable register.
func (r *regs) store(off int, v uint32) error {
	switch off {
	case hw.RegControlCommandEnable:
		v &= 1
		if v == 1 {
			r.post.cmdStart, r.post.cmdProducer = true, 0
		} else {
			r.post.cmdStart, r.post.cmdStop = false, true
		}
	case hw.RegControlCommandDoorbell:
		r.post.cmdProducer = v
	case hw.RegControlInterruptTest:
		if v >= r.card.lim.Vectors {
			return fmt.Errorf("softcard: INTERRUPT_TEST of vector %d: there are %d: %w", v, r.card.lim.Vectors, unix.EINVAL)
		}
		r.post.interrupts |= 1 << v
	case hw.RegControlDMATest:
		if v != dmaTestRead && v != dmaTestWrite {
			return fmt.Errorf("softcard: DMA_TEST of %d: 1 reads, 2 writes: %w", v, unix.EINVAL)
		}
		r.post.dmaTest = v
	case hw.RegKickKick:
		r.post.kicks++
	default:
		switch {
		case off >= hw.BlockFlash && off < hw.BlockPort:
			r.storeFlash(off, v)
			return nil
		case off >= hw.BlockDebug && off < hw.MSIXTableOffset:
			if posts, err := r.storeDebug(off, v); err != nil || !posts {
				return err
			}
		default:
			r.word[off/4] = v // nothing but memory, or read when something else is stored
			return nil
		}
	}
	if r.access[off/4] == hw.RW {
		r.word[off/4] = v
	}
	r.dirty.Store(true)
	r.card.rouse()
	return nil
}

// set is Step's way to change what a register shows.
func (r *regs) set(off int, v uint32) {
	r.mu.Lock()
	r.word[off/4] = v
	r.mu.Unlock()
}

// sync takes what was posted, does a reset if there is one, and sets the clock.
func (c *Card) sync(now int64) (worked bool) {
	r := &c.regs
	if r.dirty.Load() {
		r.dirty.Store(false)
		r.mu.Lock()
		old := c.live.resets
		c.live = r.post
		r.post.cmdStart, r.post.cmdStop, r.post.dmaTest, r.post.interrupts, r.post.kicks, r.post.flips = false, false, 0, 0, 0, nil
		r.post.ipIDSet = false
		c.live.clock = r.steppedNow
		r.mu.Unlock()
		if old != c.live.resets {
			c.host = c.live.host
			c.reset()
			r.ready(c.live.resets)
		}
		if c.live.ipIDSet {
			c.setIPID(c.live.ipID)
		}
		c.takeEdges()
		worked = true
	}
	if c.live.clockMode == hw.ClockModeStepped {
		now = c.live.clock
	}
	c.time = now
	return worked
}

// publish shows the outcome of a Step in the registers. ask is what the step
// began with.
func (c *Card) publish(worked bool, ask uint64) {
	r := &c.regs
	if worked {
		c.readHostStats()
		next := c.nextTimer()
		r.mu.Lock()
		if c.live.resets == r.resets {
			r.shown, r.nextTimer = c.count, next
		}
		r.mu.Unlock()
	} else if ask != 0 && c.idle() {
		r.quiet.found(ask)
	}
}
