package softcard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/hw/image"
	"rnic/vfio"
)

// Flash is a card's flash memory. As a chip on a board it outlives the card: one made later with the same Flash is the card
// after a power cycle. It erases sectors to ones, and a program clears bits.
type Flash struct {
	mu     sync.Mutex
	mem    []byte
	file   *os.File // nil: memory alone
	pulled bool
	ask    func(w FlashWrite) (left []byte, pull bool) // of OnWrite
}

// FlashWrite is an erase or a program under way: the bytes from At on as they are, and as they are to be.
type FlashWrite struct {
	Erase    bool
	At       int
	Old, New []byte // not to be changed
}

// The soft card's flash.
const (
	flashSize   = 4 << 20
	flashSector = 4096
	flashPage   = 256
	flashSlots  = 2
)

// FlashPart is the part that a soft card's images are made for.
const FlashPart = "soft"

// ErrPlug is a flash without power.
var ErrPlug = errors.New("the plug is pulled")

// NewFlash is an erased flash in memory.
func NewFlash() *Flash { return &Flash{mem: bytes.Repeat([]byte{0xff}, flashSize)} }

// OpenFlash is a flash in a file, which is made, erased, where there is none. Every erase and program is in the file when it is
// done: it outlives this process. One process at a time has it: ErrBusy.
func OpenFlash(path string) (*Flash, error) {
	fail := func(err error) (*Flash, error) { return nil, fmt.Errorf("flash %s: %w", path, err) }
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fail(err)
	}
	f := NewFlash()
	f.file = file
	if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another card has it: %w", vfio.ErrBusy)
	}
	var info os.FileInfo
	if err == nil {
		info, err = file.Stat()
	}
	switch {
	case err != nil:
	case info.Size() == 0:
		_, err = file.WriteAt(f.mem, 0)
	case info.Size() == flashSize:
		_, err = file.ReadAt(f.mem, 0)
	default:
		err = fmt.Errorf("%d bytes: a soft card's flash has %d: %w", info.Size(), flashSize, vfio.ErrInvalid)
	}
	if err != nil {
		_ = file.Close()
		return fail(err)
	}
	return f, nil
}

// Close lets go of the file.
func (f *Flash) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}

// OnWrite has ask asked before each erase and program. It may pull the plug: left is then what they leave, of the length of
// w.Old, and the flash answers nothing more until PowerUp. Calls of ask come one at a time, and none comes any more when
// OnWrite has put another, or nil, in its place: then power stays on.
func (f *Flash) OnWrite(ask func(w FlashWrite) (left []byte, pull bool)) {
	f.mu.Lock()
	f.ask = ask
	f.mu.Unlock()
}

// PowerUp puts the plug in again.
func (f *Flash) PowerUp() {
	f.mu.Lock()
	f.pulled = false
	f.mu.Unlock()
}

// Geometry is the flash's.
func (f *Flash) Geometry() image.Geometry {
	return image.Geometry{Size: flashSize, Sector: flashSector, Page: flashPage, Slots: flashSlots}
}

// errFlashRange is an access that the flash does not do.
var errFlashRange = errors.New("outside the flash, misaligned, or over a page")

// Read reads bytes.
func (f *Flash) Read(at int, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at < 0 || at > len(f.mem) || len(p) > len(f.mem)-at {
		return errFlashRange
	}
	if f.pulled {
		return ErrPlug
	}
	copy(p, f.mem[at:])
	return nil
}

// Program clears the bits of the flash that are 0 in p.
func (f *Flash) Program(at int, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at < 0 || at%4 != 0 || len(p)%4 != 0 || at >= len(f.mem) || len(p) > flashPage-at%flashPage {
		return errFlashRange
	}
	left := make([]byte, len(p))
	for i := range p {
		left[i] = f.mem[at+i] & p[i]
	}
	return f.write(false, at, left)
}

// Erase sets the bits of a sector.
func (f *Flash) Erase(at int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at < 0 || at%flashSector != 0 || at >= len(f.mem) {
		return errFlashRange
	}
	return f.write(true, at, bytes.Repeat([]byte{0xff}, flashSector))
}

// write changes bytes, or what the pulled plug leaves of that. The caller holds mu.
func (f *Flash) write(erase bool, at int, to []byte) error {
	if f.pulled {
		return ErrPlug
	}
	if f.ask != nil {
		if left, pull := f.ask(FlashWrite{Erase: erase, At: at, Old: f.mem[at : at+len(to)], New: to}); pull {
			to, f.pulled = left, true
		}
	}
	copy(f.mem[at:], to)
	if f.file != nil {
		if _, err := f.file.WriteAt(to, int64(at)); err != nil {
			return err
		}
	}
	if f.pulled {
		return ErrPlug
	}
	return nil
}

// flashWindow is block FLASH of the registers. It is under the register file's lock.
type flashWindow struct {
	enabled bool // FLASH_KEY was stored last
	start   bool // the next reset starts the card anew
}

// powerUp starts the card from its flash: the newest whole image is the one that it says it runs.
func (r *regs) powerUp() {
	f := r.card.cfg.Flash
	r.image, r.started = [32]byte{}, hw.NoSlot
	if f == nil {
		return
	}
	slots, err := image.ReadSlots(f, func(int) {})
	if err != nil {
		return // without a flash that answers, what is built in starts
	}
	if n := image.Newest(slots); n >= 0 {
		r.image, r.started = slots[n].Header.Digest, uint32(n)
	}
}

// flashIdentity fills in what the card says of its flash and image.
func (r *regs) flashIdentity() {
	w := r.word
	for i := range hw.RegIdentBitstreamDigestCount {
		w[hw.RegIdentBitstreamDigest/4+i] = le.Uint32(r.image[4*i:])
	}
	if r.card.cfg.Flash == nil {
		return
	}
	g := r.card.cfg.Flash.Geometry()
	w[hw.RegFlashSize/4], w[hw.RegFlashSector/4], w[hw.RegFlashPage/4] = uint32(g.Size), uint32(g.Sector), uint32(g.Page)
	w[hw.RegFlashSlots/4], w[hw.RegFlashStarted/4] = uint32(g.Slots), r.started
	var part [4 * hw.RegFlashPartCount]byte
	copy(part[:], FlashPart)
	for i := range hw.RegFlashPartCount {
		w[hw.RegFlashPart/4+i] = le.Uint32(part[4*i:])
	}
}

// storeFlash is a store to a writable register of block FLASH.
func (r *regs) storeFlash(off int, v uint32) {
	switch off {
	case hw.RegFlashEnable:
		r.flash.enabled = v == hw.FlashKey
	case hw.RegFlashCommand:
		status := r.runFlash(hw.FlashCommand(v))
		r.flash.enabled = false
		r.word[off/4] = 0
		if status != hw.FlashStatusOK {
			r.word[off/4] = flashFailed | uint32(status)
		}
	default:
		r.word[off/4] = v
	}
}

// flashFailed is the bit of FLASH.COMMAND that says that a command failed.
const flashFailed = 1 << 31

// runFlash does a command.
func (r *regs) runFlash(c hw.FlashCommand) hw.FlashStatus {
	f := r.card.cfg.Flash
	at, n := int(r.word[hw.RegFlashAddress/4]), int(r.word[hw.RegFlashLength/4])
	data := r.word[hw.RegFlashData/4:][:hw.RegFlashDataCount]
	b := make([]byte, 4*len(data))
	if (c == hw.FlashCommandRead || c == hw.FlashCommandProgram) && (at%4 != 0 || n%4 != 0 || n > len(b)) {
		return hw.FlashStatusRange
	}
	var err error
	switch {
	case c == hw.FlashCommandDone:
	case c == hw.FlashCommandStart:
		r.flash.start = true
	case c == hw.FlashCommandRead:
		if err = f.Read(at, b[:n]); err == nil {
			for i := range n / 4 {
				data[i] = le.Uint32(b[4*i:])
			}
		}
	case c != hw.FlashCommandProgram && c != hw.FlashCommandErase:
		return hw.FlashStatusCommand
	case !r.flash.enabled:
		return hw.FlashStatusLocked
	case c == hw.FlashCommandErase:
		err = f.Erase(at)
	default:
		for i := range n / 4 {
			le.PutUint32(b[4*i:], data[i])
		}
		err = f.Program(at, b[:n])
	}
	switch {
	case errors.Is(err, errFlashRange):
		return hw.FlashStatusRange
	case err != nil:
		return hw.FlashStatusDevice
	}
	return hw.FlashStatusOK
}
