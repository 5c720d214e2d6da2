package softcard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"rnic/hw"
	"rnic/hw/image"
	"rnic/vfio"
)

// imageOf makes an image of n bytes with its manifest.
func imageOf(n int, seed uint64) *image.Image {
	rng := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	sum := sha256.Sum256(data)
	return &image.Image{Data: data, Manifest: &image.Manifest{
		Schema: image.ManifestSchema, Name: fmt.Sprint("made of ", seed), Bytes: int64(n), SHA256: hex.EncodeToString(sum[:]), Part: FlashPart,
		Contract: fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor), Capabilities: []string{"rc"},
	}}
}

// running is the digest of the image that a card made with the flash runs, and its slot.
func running(t *testing.T, f *Flash) (sum [32]byte, slot uint32) {
	t.Helper()
	c, err := New(Config{Flash: f})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := make([]byte, 4)
	for i := range 8 {
		if err := c.ReadRegion(hw.BARCtrl, hw.RegIdentBitstreamDigest+4*uint64(i), sum[4*i:4*i+4]); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ReadRegion(hw.BARCtrl, hw.RegFlashStarted, p); err != nil {
		t.Fatal(err)
	}
	return sum, le.Uint32(p)
}

func load(f image.Flash, started uint32, im *image.Image) error {
	p, err := image.Prepare(f, started, image.AnySlot, im, FlashPart)
	if err != nil {
		return err
	}
	return p.Load(context.Background(), f, im, func(int, int, string) {})
}

// tears are what a pulled plug can leave of an erase or a program, by name.
var tears = []struct {
	name string
	left func(w FlashWrite, cut int, rng *rand.Rand) []byte
}{
	{"bytes up to one are done", func(w FlashWrite, cut int, rng *rand.Rand) []byte {
		left := bytes.Clone(w.Old)
		copy(left, w.New[:cut])
		mask := byte(rng.Uint32()) // of the byte itself some bits are done
		left[cut] = w.Old[cut]&^mask | w.New[cut]&mask
		return left
	}},
	{"bits anywhere are done", func(w FlashWrite, cut int, rng *rand.Rand) []byte {
		left := bytes.Clone(w.Old)
		for i := range left {
			mask := byte(rng.Uint32())
			left[i] = w.Old[i]&^mask | w.New[i]&mask
		}
		return left
	}},
	{"all is done", func(w FlashWrite, cut int, rng *rand.Rand) []byte { return w.New }},
}

// TestBIT_PullAtEveryByte: the plug is pulled at every byte of every write of a load, torn in three ways. The card starts on
// the old image or the new one, on the new one if the load said that it was well, and takes a load again.
func TestBIT_PullAtEveryByte(t *testing.T) {
	old, new := imageOf(3000, 1), imageOf(2500, 2)
	oldSum, newSum := sha256.Sum256(old.Data), sha256.Sum256(new.Data)
	start := NewFlash()
	for _, im := range []*image.Image{imageOf(5000, 0), old} { // the slot to be written has an older image
		_, slot := running(t, start)
		if err := load(start, slot, im); err != nil {
			t.Fatal(err)
		}
	}
	sum, slot := running(t, start)
	if sum != oldSum {
		t.Fatal("the old image does not run before anything is pulled")
	}
	// The writes of a load that nothing interrupts.
	var writes []FlashWrite
	f := NewFlash()
	copy(f.mem, start.mem)
	f.OnWrite(func(w FlashWrite) ([]byte, bool) {
		writes = append(writes, FlashWrite{Erase: w.Erase, At: w.At, Old: bytes.Clone(w.Old)})
		return nil, false
	})
	if err := load(f, slot, new); err != nil {
		t.Fatal(err)
	}
	f.OnWrite(nil)
	if sum, _ := running(t, f); sum != newSum {
		t.Fatal("the new image does not run")
	}
	rng := rand.New(rand.NewPCG(3, 4))
	pulls, onNew := 0, 0
	for n, w := range writes {
		step := 1
		if w.Erase {
			step = 61 // of a sector some bytes, always others
		}
		for cut := rng.IntN(step); cut < len(w.Old); cut += step {
			for _, tear := range tears {
				for i := range writes { // what a load can have touched
					copy(f.mem[writes[i].At:], start.mem[writes[i].At:][:len(writes[i].Old)])
				}
				k := 0
				f.OnWrite(func(w FlashWrite) ([]byte, bool) {
					if k++; k-1 != n {
						return nil, false
					}
					return tear.left(w, cut, rng), true
				})
				err := load(f, slot, new)
				f.OnWrite(nil)
				if !errors.Is(err, ErrPlug) {
					t.Fatalf("write %d, byte %d, %s: the load says %v", n, cut, tear.name, err)
				}
				f.PowerUp()
				slots, err := image.ReadSlots(f, func(int) {})
				if err != nil {
					t.Fatal(err)
				}
				pulls++
				switch s := image.Newest(slots); {
				case s == int(slot) && slots[s].Header.Digest == oldSum:
				case s >= 0 && slots[s].Header.Digest == newSum:
					onNew++
				default:
					t.Fatalf("write %d of %d (erase %v at %#x), byte %d, %s: the card starts slot %d of %+v", n, len(writes), w.Erase, w.At, cut, tear.name, s, slots)
				}
			}
		}
		// What starts is what a card says that it runs, and the next load is well.
		if sum, _ := running(t, f); sum != oldSum && sum != newSum {
			t.Fatalf("write %d: a card runs %x", n, sum)
		}
		if err := load(f, slot, new); err != nil {
			t.Fatalf("write %d: the load after it: %v", n, err)
		}
		if sum, _ := running(t, f); sum != newSum {
			t.Fatalf("write %d: after the next load the new image does not run", n)
		}
	}
	if onNew == 0 {
		t.Error("no pull behind the header's last bit: the new image never ran")
	}
	t.Logf("%d pulls at %d writes: %d on the new image, the others on the old one", pulls, len(writes), onNew)
}

// TestBIT_FlashInAFile: what was written is there for the next card, and no two cards have the file.
func TestBIT_FlashInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flash")
	f, err := OpenFlash(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFlash(path); !errors.Is(err, vfio.ErrBusy) {
		t.Errorf("opened twice: %v", err)
	}
	im := imageOf(100_001, 9)
	if err := load(f, hw.NoSlot, im); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = OpenFlash(path); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if sum, slot := running(t, f); sum != sha256.Sum256(im.Data) || slot != 0 {
		t.Errorf("slot %d runs %x", slot, sum)
	}
}

// TestBIT_Window: the registers of the flash window refuse what the contract says, and change nothing then.
func TestBIT_Window(t *testing.T) {
	f := NewFlash()
	r := newRig(t, Config{Flash: f})
	run := func(c hw.FlashCommand, at, n, key uint32) hw.FlashStatus {
		r.store(hw.RegFlashAddress, at)
		r.store(hw.RegFlashLength, n)
		r.store(hw.RegFlashEnable, key)
		r.store(hw.RegFlashCommand, uint32(c))
		return hw.FlashStatus(r.load(hw.RegFlashCommand) &^ flashFailed)
	}
	for i := range uint64(64) {
		r.store(hw.RegFlashData+4*i, 0x01020304*uint32(i))
	}
	for _, c := range []struct {
		what       string
		command    hw.FlashCommand
		at, n, key uint32
		want       hw.FlashStatus
	}{
		{"program without the key", hw.FlashCommandProgram, 0, 256, 0, hw.FlashStatusLocked},
		{"erase with another key", hw.FlashCommandErase, 0, 0, hw.FlashKey + 1, hw.FlashStatusLocked},
		{"program over a page", hw.FlashCommandProgram, 128, 256, hw.FlashKey, hw.FlashStatusRange},
		{"program of half a word", hw.FlashCommandProgram, 0, 2, hw.FlashKey, hw.FlashStatusRange},
		{"program behind the end", hw.FlashCommandProgram, flashSize, 256, hw.FlashKey, hw.FlashStatusRange},
		{"program of more than the window", hw.FlashCommandProgram, 0, 260, hw.FlashKey, hw.FlashStatusRange},
		{"read behind the end", hw.FlashCommandRead, flashSize - 4, 8, 0, hw.FlashStatusRange},
		{"read far behind the end", hw.FlashCommandRead, 0xfffffffc, 8, 0, hw.FlashStatusRange},
		{"erase within a sector", hw.FlashCommandErase, 256, 0, hw.FlashKey, hw.FlashStatusRange},
		{"no command", 99, 0, 0, hw.FlashKey, hw.FlashStatusCommand},
	} {
		if got := run(c.command, c.at, c.n, c.key); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	if !bytes.Equal(f.mem, bytes.Repeat([]byte{0xff}, flashSize)) {
		t.Fatal("a refused command changed the flash")
	}
	if s := run(hw.FlashCommandProgram, 512, 256, hw.FlashKey); s != hw.FlashStatusOK {
		t.Fatal(s)
	}
	for i := range uint64(64) { // a program clears bits and sets none
		r.store(hw.RegFlashData+4*i, 0x00ff00ff)
	}
	if s := run(hw.FlashCommandProgram, 512, 4, hw.FlashKey); s != hw.FlashStatusOK {
		t.Fatal(s)
	}
	if s := run(hw.FlashCommandRead, 512, 8, 0); s != hw.FlashStatusOK {
		t.Fatal(s)
	}
	if a, b := r.load(hw.RegFlashData), r.load(hw.RegFlashData+4); a != 0 || b != 0x01020304 {
		t.Errorf("reads %#x %#x", a, b)
	}
	r.store(hw.RegFlashEnable, hw.FlashKey)
	r.store(hw.RegFlashCommand, uint32(hw.FlashCommandDone))
	r.store(hw.RegFlashCommand, uint32(hw.FlashCommandErase))
	if s := hw.FlashStatus(r.load(hw.RegFlashCommand) &^ flashFailed); s != hw.FlashStatusLocked {
		t.Errorf("a key allows two commands: %v", s)
	}
}
