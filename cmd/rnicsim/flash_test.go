package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/image"
	"rnic/hw/softcard"
)

// killing is a card's flash whose process is killed before a write.
type killing struct {
	*driver.Flash
	left int // writes until then; below 0: never
	cmd  *exec.Cmd
}

func (k *killing) tick() {
	if k.left == 0 {
		_ = k.cmd.Process.Kill()
		_ = k.cmd.Wait()
	}
	k.left--
}

func (k *killing) Erase(at int) error             { k.tick(); return k.Flash.Erase(at) }
func (k *killing) Program(at int, p []byte) error { k.tick(); return k.Flash.Program(at, p) }

func made(n int, fill byte) *image.Image {
	data := bytes.Repeat([]byte{fill}, n)
	sum := sha256.Sum256(data)
	return &image.Image{Data: data, Manifest: &image.Manifest{
		Schema: image.ManifestSchema, Bytes: int64(n), SHA256: hex.EncodeToString(sum[:]), Part: softcard.FlashPart,
		Contract: fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor),
	}}
}

// TestBIT_ServerKilled: rnicsim is killed in the middle of a load. What another one finds in the file of the flash starts.
func TestBIT_ServerKilled(t *testing.T) {
	dir := t.TempDir()
	sock := filepath.Join(dir, "a.sock")
	start := func() (*exec.Cmd, *driver.Flash) {
		t.Helper()
		cmd, out := process(t, "server", "--json", "--card", "a="+sock+",flash="+filepath.Join(dir, "flash"))
		wait(t, out, "ready")
		f, err := driver.OpenFlash(t.Context(), "vfio-user:"+sock)
		if err != nil {
			t.Fatal(err)
		}
		return cmd, f
	}
	load := func(k *killing, im *image.Image) error {
		p, err := image.Prepare(k, k.Started(), image.AnySlot, im, k.Identity().Part)
		if err != nil {
			t.Fatal(err)
		}
		return p.Load(t.Context(), k, im, func(int, int, string) {})
	}
	const writes = 2 + 16 + 1 // sectors, pages, header
	old := made(4096, 0)
	cmd, f := start()
	if err := load(&killing{f, -1, cmd}, old); err != nil {
		t.Fatal(err)
	}
	for i, left := range []int{0, 1, 2, writes / 2, writes - 1} {
		im := made(4096, byte(i+1))
		if err := load(&killing{f, left, cmd}, im); !errors.Is(err, driver.ErrDeviceGone) {
			t.Fatalf("killed before write %d: %v", left, err)
		}
		_ = f.Close()
		cmd, f = start()
		if digest := f.Identity().Digest; f.Started() == hw.NoSlot || digest != sha256.Sum256(old.Data) {
			t.Fatalf("killed before write %d: slot %#x runs %x", left, f.Started(), digest)
		}
	}
	if err := load(&killing{f, -1, cmd}, made(4096, 99)); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	cmd, f = start()
	if f.Identity().Digest != sha256.Sum256(made(4096, 99).Data) {
		t.Error("the new image does not run")
	}
	_ = f.Close()
	_ = cmd.Process.Kill()
}
