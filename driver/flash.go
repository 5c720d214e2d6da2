package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"rnic/hw"
	"rnic/hw/image"
	"rnic/vfio"
)

// ErrImage is a card that does not run the image that it says it runs, or not the one of WithManifest; the error says in what
// they differ.
var ErrImage = image.ErrMismatch

// Flash is a card's flash window, opened alone: also on a card that Open refuses for its image. Close it. It is for one
// goroutine. Its methods but Close have the cause of the context that it was opened with once that has ended.
type Flash struct {
	ctx      context.Context
	addr     string
	dev      vfio.Device
	ctrl     *vfio.BAR
	geometry image.Geometry
	id       image.Identity
	started  uint32
}

var _ image.Flash = (*Flash)(nil)

// flashTime bounds a command of the flash: the erase of a sector takes up to 3 s on common ones.
const flashTime = 10 * time.Second

// OpenFlash opens the flash window of the card at addr. errors.Is: as Open; ErrNotSupported where the card has none.
func OpenFlash(ctx context.Context, addr string) (*Flash, error) {
	fail := func(err error) (*Flash, error) { return nil, &DeviceError{Addr: addr, Op: "open flash", Err: err} }
	within, cancel := bound(ctx)
	defer cancel()
	dev, err := vfio.Open(within, addr)
	if err != nil {
		return fail(err)
	}
	f := &Flash{ctx: ctx, addr: addr, dev: dev}
	stop := context.AfterFunc(within, func() { dev.Close() })
	err = f.bringUp(within)
	if !stop() && err == nil {
		err = &DeadlineError{Waited: "the flash window", Cause: context.Cause(within)}
	}
	if err != nil {
		_ = f.Close()
		return fail(err)
	}
	return f, nil
}

func (f *Flash) bringUp(ctx context.Context) (err error) {
	if f.ctrl, err = vfio.NewBAR(f.dev, hw.BARCtrl); err != nil {
		return err
	}
	if err := identify(f.ctrl); err != nil {
		return err
	}
	d := &Device{addr: f.addr, dev: f.dev, ctrl: f.ctrl}
	if err := d.awaitStatus(ctx, "the card's reset", hw.ControlStatusReadyMask, hw.ControlStatusReadyMask); err != nil {
		return err
	}
	caps, err := f.ctrl.Read64(hw.RegIdentCapabilities)
	if err != nil {
		return err
	}
	if hw.Capability(caps)&hw.CapabilityFlash == 0 {
		return fmt.Errorf("the card has no flash window: %w", ErrNotSupported)
	}
	if err := f.load(); err != nil {
		return err
	}
	f.id, err = readIdentity(f.ctrl)
	if f.id.Part, err = readText(f.ctrl, hw.RegFlashPart, hw.RegFlashPartCount, err); err != nil {
		return err
	}
	return nil
}

// load reads geometry and slot.
func (f *Flash) load() error {
	var v [5]uint32
	for i, off := range []uint64{hw.RegFlashSize, hw.RegFlashSector, hw.RegFlashPage, hw.RegFlashSlots, hw.RegFlashStarted} {
		var err error
		if v[i], err = f.ctrl.Read32(off); err != nil {
			return err
		}
	}
	f.geometry, f.started = image.Geometry{Size: int(v[0]), Sector: int(v[1]), Page: int(v[2]), Slots: int(v[3])}, v[4]
	if err := f.geometry.Check(); err != nil {
		return fmt.Errorf("the card states %w: %w", err, ErrInvalid)
	}
	if f.started != hw.NoSlot && f.started >= v[3] {
		return fmt.Errorf("the card states that it runs slot %d of %d: %w", f.started, v[3], ErrInvalid)
	}
	return nil
}

// readIdentity reads what a manifest has too, but for the part.
func readIdentity(b *vfio.BAR) (id image.Identity, err error) {
	version, err := b.Read32(hw.RegIdentVersion)
	if err != nil {
		return id, err
	}
	v := hw.IdentVersion(version)
	id.Major, id.Minor = uint16(v.Major()), uint16(v.Minor())
	caps, err := b.Read64(hw.RegIdentCapabilities)
	if err != nil {
		return id, err
	}
	id.Capabilities = hw.Capability(caps)
	for i := range hw.RegIdentBitstreamDigestCount {
		w, err := b.Read32(hw.RegIdentBitstreamDigest + uint64(i)*hw.RegIdentBitstreamDigestStride)
		if err != nil {
			return id, err
		}
		binary.LittleEndian.PutUint32(id.Digest[4*i:], w)
	}
	return id, nil
}

// readText reads zero-filled text, unless there is an error already.
func readText(b *vfio.BAR, off uint64, words int, err error) (string, error) {
	text := make([]byte, 0, 4*words)
	for i := 0; i < words && err == nil; i++ {
		var w uint32
		w, err = b.Read32(off + 4*uint64(i))
		text = binary.LittleEndian.AppendUint32(text, w)
	}
	return strings.ToValidUTF8(strings.TrimRight(string(text), "\x00"), "?"), err
}

// Addr is the card's address.
func (f *Flash) Addr() string { return f.addr }

// Geometry is the flash's, in bytes.
func (f *Flash) Geometry() image.Geometry { return f.geometry }

// Started is the slot whose image the card runs, or hw.NoSlot.
func (f *Flash) Started() uint32 { return f.started }

// Identity is what the card says of itself.
func (f *Flash) Identity() image.Identity { return f.id }

// Read reads bytes of the flash.
func (f *Flash) Read(at int, p []byte) error {
	for len(p) > 0 {
		first := at &^ 3
		n := min((at-first+len(p)+3)&^3, 4*hw.RegFlashDataCount)
		if err := f.run("read", hw.FlashCommandRead, first, n, false); err != nil {
			return err
		}
		b := make([]byte, n)
		if err := f.data(b, false); err != nil {
			return f.fail("read", at, err)
		}
		n = copy(p, b[at-first:])
		at, p = at+n, p[n:]
	}
	return nil
}

// Program clears bits of the flash: whole words within a page.
func (f *Flash) Program(at int, p []byte) error {
	if len(p)%4 != 0 || len(p) > 4*hw.RegFlashDataCount {
		return f.fail("program", at, fmt.Errorf("%d bytes: whole words, up to %d bytes: %w", len(p), 4*hw.RegFlashDataCount, ErrInvalid))
	}
	if err := f.data(p, true); err != nil {
		return f.fail("program", at, err)
	}
	return f.run("program", hw.FlashCommandProgram, at, len(p), true)
}

// Erase sets all bits of the sector at an offset.
func (f *Flash) Erase(at int) error { return f.run("erase", hw.FlashCommandErase, at, 0, true) }

// Restart has the card start from its flash, as after power-up, and resets it. A board may fall off the bus by that: what brings
// it back is a reset of more than the function, once this is closed.
func (f *Flash) Restart() error {
	if err := f.run("start", hw.FlashCommandStart, 0, 0, false); err != nil {
		return err
	}
	ctx, cancel := bound(f.ctx)
	defer cancel()
	if !f.dev.Info().Reset {
		return nil
	}
	if err := f.dev.Reset(ctx); err != nil && !isGone(err) {
		return f.fail("reset", 0, err)
	}
	return nil
}

// Close gives the card back.
func (f *Flash) Close() error {
	err := f.dev.Close()
	if f.ctrl != nil {
		err = errors.Join(err, f.ctrl.Release())
	}
	if isGone(err) {
		return nil
	}
	return err
}

func (f *Flash) fail(op string, at int, err error) error {
	return &DeviceError{Addr: f.addr, Op: op, Object: fmt.Sprintf("flash at %#x", at), Err: err}
}

// data moves bytes to or from the window. A word at a time where the registers are mapped; else one message brings all of them.
func (f *Flash) data(p []byte, store bool) error {
	if f.ctrl.Word32(hw.RegFlashData) == nil {
		if store {
			return f.dev.WriteRegion(hw.BARCtrl, hw.RegFlashData, p)
		}
		return f.dev.ReadRegion(hw.BARCtrl, hw.RegFlashData, p)
	}
	for i := 0; i < len(p); i += 4 {
		off := hw.RegFlashData + uint64(i)
		if store {
			if err := f.ctrl.Write32(off, binary.LittleEndian.Uint32(p[i:])); err != nil {
				return err
			}
			continue
		}
		v, err := f.ctrl.Read32(off)
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(p[i:], v)
	}
	return nil
}

// run does a command and waits for its end.
func (f *Flash) run(op string, c hw.FlashCommand, at, n int, enable bool) error {
	if err := context.Cause(f.ctx); err != nil {
		return f.fail(op, at, err)
	}
	key := uint32(0)
	if enable {
		key = hw.FlashKey
	}
	for _, w := range []struct {
		off uint64
		v   uint32
	}{{hw.RegFlashAddress, uint32(at)}, {hw.RegFlashLength, uint32(n)}, {hw.RegFlashEnable, key}, {hw.RegFlashCommand, uint32(c)}} {
		if err := f.ctrl.Write32(w.off, w.v); err != nil {
			return f.fail(op, at, err)
		}
	}
	for end := time.Now().Add(flashTime); ; time.Sleep(100 * time.Microsecond) {
		const failed = 1 << 31
		switch v, err := f.ctrl.Read32(hw.RegFlashCommand); {
		case err != nil:
			return f.fail(op, at, err)
		case v == 0:
			return nil
		case v == ^uint32(0):
			return f.fail(op, at, fmt.Errorf("all registers are ones: %w", ErrDeviceGone))
		case v&failed != 0:
			return f.fail(op, at, fmt.Errorf("the flash refused: %v", hw.FlashStatus(v&^failed)))
		case time.Now().After(end):
			return f.fail(op, at, fmt.Errorf("%w: FLASH.COMMAND is still %#x after %v", ErrTimeout, v, flashTime))
		}
	}
}

// checkImage refuses a card that does not run the image that it says it runs (the header in its flash), or not that of the
// manifest that Open was given.
func (d *Device) checkImage(ctx context.Context, m *image.Manifest) error {
	if m == nil && d.attr.Capabilities&hw.CapabilityFlash == 0 {
		return nil
	}
	f := &Flash{ctx: ctx, addr: d.addr, dev: d.dev, ctrl: d.ctrl}
	id, err := readIdentity(d.ctrl)
	if err != nil {
		return err
	}
	if d.attr.Capabilities&hw.CapabilityFlash != 0 {
		if err := f.load(); err != nil {
			return err
		}
		if id.Part, err = readText(d.ctrl, hw.RegFlashPart, hw.RegFlashPartCount, nil); err != nil {
			return err
		}
		if f.started != hw.NoSlot {
			h, ok, err := image.ReadHeader(f, int(f.started))
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("%w: the card says that it runs slot %d, which has no whole header", ErrImage, f.started)
			}
			if err := image.Agrees(&h, id); err != nil {
				return fmt.Errorf("slot %d: %w", f.started, err)
			}
		}
	}
	if m == nil {
		return nil
	}
	return m.Agrees(id)
}
