package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"rnic/hw"
)

// chip is a plain flash of three slots, some of whose bits may be stuck.
type chip struct {
	mem    []byte
	stuck  map[int]byte // bits that stay 1
	erased []int
}

func newChip() *chip { return &chip{mem: bytes.Repeat([]byte{0xff}, 3*16384), stuck: map[int]byte{}} }

func (c *chip) Geometry() Geometry {
	return Geometry{Size: len(c.mem), Sector: 1024, Page: 128, Slots: 3}
}
func (c *chip) Read(at int, p []byte) error { copy(p, c.mem[at:]); return nil }
func (c *chip) Erase(at int) error {
	c.erased = append(c.erased, at)
	copy(c.mem[at:], bytes.Repeat([]byte{0xff}, 1024))
	return nil
}
func (c *chip) Program(at int, p []byte) error {
	if at%128+len(p) > 128 {
		return errors.New("over a page")
	}
	for i, b := range p {
		c.mem[at+i] &= b | c.stuck[at+i]
	}
	return nil
}

func made(n int, fill byte) *Image {
	data := bytes.Repeat([]byte{fill}, n)
	sum := sha256.Sum256(data)
	return &Image{Data: data, Manifest: &Manifest{
		Schema: ManifestSchema, Bytes: int64(n), SHA256: hex.EncodeToString(sum[:]), Part: "chip", Contract: fmt.Sprintf("%d.0", hw.ContractMajor),
	}}
}

func put(t *testing.T, c *chip, running uint32, slot int, im *Image) *Plan {
	t.Helper()
	p, err := Prepare(c, running, slot, im, "chip")
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	if err := p.Load(t.Context(), c, im, func(done, all int, _ string) {
		if done <= last || done > all {
			t.Fatalf("%d bytes of %d after %d", done, all, last)
		}
		last = done
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestBIT_Turns: which slot is written: the one asked for, else one without a whole image, else the oldest; never the one that
// the card runs. Generations wrap.
func TestBIT_Turns(t *testing.T) {
	c := newChip()
	for i, want := range []int{0, 1, 2, 0, 1, 2, 0} {
		slots, _ := ReadSlots(c, func(int) {})
		running := uint32(hw.NoSlot)
		if n := Newest(slots); n >= 0 {
			running = uint32(n)
		}
		if p := put(t, c, running, AnySlot, made(100+i, byte(i))); p.Slot != want {
			t.Fatalf("load %d: slot %d, want %d", i, p.Slot, want)
		}
	}
	// The card runs slot 1, though slot 0 is newer: a load that was never started.
	if p, err := Prepare(c, 1, AnySlot, made(5, 5), "chip"); err != nil || p.Slot != 2 || p.Keep != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := Prepare(c, 1, 1, made(5, 5), "chip"); !errors.Is(err, ErrSlot) {
		t.Errorf("the running slot: %v", err)
	}
	c.mem[1*16384+1024] ^= 1 // its image is no longer whole: it is the one to mend
	if p, err := Prepare(c, 1, AnySlot, made(5, 5), "chip"); err != nil || p.Slot != 1 || p.Keep != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, slot := range []int{3, -2} {
		if _, err := Prepare(c, 0, slot, made(5, 5), "chip"); !errors.Is(err, ErrSlot) {
			t.Errorf("slot %d: %v", slot, err)
		}
	}
	for _, v := range [][2]uint32{{1, 0}, {0, 1<<32 - 1}, {1 << 31, 1}} {
		if !newer(v[0], v[1]) || newer(v[1], v[0]) {
			t.Errorf("%#x is not newer than %#x alone", v[0], v[1])
		}
	}
}

// TestBIT_Verify: a flash that does not take what is written is found, and the card goes on with the image that it has.
func TestBIT_Verify(t *testing.T) {
	for _, at := range []int{1024, 1024 + 4000, 64} { // first and last byte of the image, a byte of the header
		c := newChip()
		put(t, c, hw.NoSlot, 1, made(3000, 0x33))
		c.stuck[at] = 0xff
		im := made(4001, 0x44)
		p, err := Prepare(c, 1, 0, im, "chip")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Load(t.Context(), c, im, func(int, int, string) {}); !errors.Is(err, ErrVerify) {
			t.Errorf("byte %#x is stuck: %v", at, err)
		}
		if slots, _ := ReadSlots(c, func(int) {}); Newest(slots) != 1 {
			t.Errorf("byte %#x is stuck: slot %d starts", at, Newest(slots))
		}
	}
}

// TestBIT_Cancelled: a load whose context ends stops at once, as by a pulled plug.
func TestBIT_Cancelled(t *testing.T) {
	c, im := newChip(), made(3000, 1)
	put(t, c, hw.NoSlot, 0, made(10, 2))
	p, err := Prepare(c, 0, AnySlot, im, "chip")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.erased = nil
	if err := p.Load(ctx, c, im, func(int, int, string) { cancel() }); !errors.Is(err, context.Canceled) || len(c.erased) != 1 {
		t.Errorf("%v after %d erases", err, len(c.erased))
	}
	if c.erased[0] != 16384 {
		t.Errorf("sector %#x was erased first: the header's is %#x", c.erased[0], 16384)
	}
}

// TestBIT_Geometry: what a card states of its flash is not believed where it makes no sense.
func TestBIT_Geometry(t *testing.T) {
	good := Geometry{Size: 1 << 20, Sector: 4096, Page: 256, Slots: 2}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(g *Geometry){
		func(g *Geometry) { g.Slots = 1 }, func(g *Geometry) { g.Slots = 1 << 30 }, func(g *Geometry) { g.Size = 0 }, func(g *Geometry) { g.Size = -4096 },
		func(g *Geometry) { g.Size = 1 << 31 }, func(g *Geometry) { g.Sector = 0 }, func(g *Geometry) { g.Sector = 3000 }, func(g *Geometry) { g.Page = 64 },
		func(g *Geometry) { g.Page = 512 }, func(g *Geometry) { g.Size = 4096 * 3 }, func(g *Geometry) { g.Size = 8192 }, func(g *Geometry) { g.Slots = 3 },
	} {
		g := good
		change(&g)
		if g.Check() == nil {
			t.Errorf("%+v is believed", g)
		}
	}
}

// FuzzManifest: any bytes are a manifest or an error, and a manifest stays the same when it is written and read again.
func FuzzManifest(f *testing.F) {
	text, _ := json.Marshal(made(10, 1).Manifest)
	f.Add(text)
	f.Add([]byte(`{"schema":"rnic.manifest.v1","bytes":1e9}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrManifest) {
				t.Fatal(err)
			}
			return
		}
		if _, err := m.Header(1); err != nil {
			t.Fatalf("a manifest without a header: %v", err)
		}
		first, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(first)
		if err != nil {
			t.Fatal(err)
		}
		if second, _ := json.Marshal(again); !bytes.Equal(first, second) {
			t.Fatalf("%s is read again as %s", first, second)
		}
	})
}

// FuzzSlots: whatever stands in a flash, it is read without harm, and nothing is taken for whole that has not its digest.
func FuzzSlots(f *testing.F) {
	c := newChip()
	p, err := Prepare(c, hw.NoSlot, 0, made(2000, 7), "chip")
	if err != nil {
		f.Fatal(err)
	}
	if err := p.Load(context.Background(), c, made(2000, 7), func(int, int, string) {}); err != nil {
		f.Fatal(err)
	}
	f.Add(c.mem[:4096])
	f.Add([]byte("RIMG"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newChip()
		copy(c.mem, b)
		slots, err := ReadSlots(c, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		if n := Newest(slots); n >= 0 {
			h := &slots[n].Header
			if sum := sha256.Sum256(c.mem[n*16384+1024:][:h.Length]); sum != h.Digest {
				t.Fatalf("slot %d is taken for whole", n)
			}
		}
	})
}
