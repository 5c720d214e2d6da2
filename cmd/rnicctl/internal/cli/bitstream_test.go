package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/image"
	"rnic/hw/softcard"
	"rnic/vfio/vfiouser"
)

// writeImage writes an image of n bytes and its manifest, which change may spoil.
func writeImage(t *testing.T, n int, seed uint64, change func(m *image.Manifest)) (file, sum string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	digest := sha256.Sum256(data)
	m := &image.Manifest{
		Schema: image.ManifestSchema, Name: fmt.Sprint("image ", seed), Bytes: int64(n), SHA256: hex.EncodeToString(digest[:]), Part: softcard.FlashPart,
		Contract: fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor), Capabilities: []string{"gather", "rc"},
		Build: image.Build{Time: "2026-11-30T12:00:00Z", Tools: []string{"a tool 1"}, Inputs: map[string]string{"rtl/engine.sv": strings.Repeat("0", 64)}, Options: []string{}},
	}
	if change != nil {
		change(m)
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "image.bit")
	for name, b := range map[string][]byte{file: data, file + image.ManifestSuffix: text} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file, hex.EncodeToString(digest[:])
}

// plugged is a card behind a socket with a flash whose plug can be pulled: the process that serves it is gone then.
type plugged struct {
	t     *testing.T
	flash *softcard.Flash
	addr  string
	stop  func()
}

func (p *plugged) powerUp() {
	p.t.Helper()
	p.flash.PowerUp()
	card, err := softcard.New(softcard.Config{Name: "plugged", Engine: hw.EngineGo, Flash: p.flash})
	if err != nil {
		p.t.Fatal(err)
	}
	runner := softcard.NewRunner()
	runner.Add(card)
	dir := sockets(p.t)
	l, err := vfiouser.Listen(filepath.Join(dir, "card.sock"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.addr = "vfio-user:" + filepath.Join(dir, "card.sock")
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() { _ = l.Serve(ctx, card, func(error) {}) })
	p.stop = sync.OnceFunc(func() {
		cancel()
		_ = l.Close()
		served.Wait()
		runner.Remove(card)
		runner.Close()
		_ = card.Close()
	})
}

// runs is the digest of the image that the card runs, "" for none.
func (p *plugged) runs() string {
	p.t.Helper()
	f, err := driver.OpenFlash(p.t.Context(), p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	id := f.Identity()
	if f.Started() == hw.NoSlot {
		return ""
	}
	return hex.EncodeToString(id.Digest[:])
}

// TestBIT_PullAtEveryWrite: the plug is pulled at each erase and each program of `rnicctl bitstream load`, torn at a random
// bit. The card that is powered up again is opened by a program, on the old image or the new one, and takes a load.
func TestBIT_PullAtEveryWrite(t *testing.T) {
	old, oldSum := writeImage(t, 9000, 1, nil)
	new, newSum := writeImage(t, 8191, 2, nil)
	p := &plugged{t: t, flash: softcard.NewFlash()}
	p.powerUp()
	defer func() { p.stop() }()
	load := func(file string, code int) result {
		t.Helper()
		r := rnicctl(t, "bitstream", "load", file, "-d", p.addr, "--yes", "--json")
		if r.code != code {
			t.Fatalf("exit %d, want %d\n%s%s", r.code, code, r.out, r.err)
		}
		return r
	}
	writes := 0
	p.flash.OnWrite(func(softcard.FlashWrite) ([]byte, bool) { writes++; return nil, false })
	load(old, exitOK)
	p.flash.OnWrite(nil)
	n := writes
	rng := rand.New(rand.NewPCG(11, 12))
	for pull := 0; pull < n; pull++ {
		load(old, exitOK) // the slots take turns
		if got := p.runs(); got != oldSum {
			t.Fatalf("runs %s before the load", got)
		}
		k := 0
		p.flash.OnWrite(func(w softcard.FlashWrite) ([]byte, bool) {
			if k++; k-1 != pull {
				return nil, false
			}
			left, cut := bytes.Clone(w.Old), rng.IntN(len(w.Old))
			copy(left, w.New[:cut])
			left[cut] = w.Old[cut]&0xf0 | w.New[cut]&0x0f
			return left, true
		})
		r := rnicctl(t, "bitstream", "load", new, "-d", p.addr, "--yes")
		p.flash.OnWrite(nil)
		if k <= pull {
			break // the new image has fewer writes, and this load was whole
		}
		if r.code == exitOK {
			t.Fatalf("write %d: the load is well without power\n%s", pull, r.out)
		}
		p.stop()
		p.powerUp()
		if got := p.runs(); got != oldSum && got != newSum {
			t.Fatalf("write %d of %d: the card runs %q, which is neither the old image nor the new one", pull, n, got)
		}
		d, err := driver.Open(t.Context(), p.addr)
		if err != nil {
			t.Fatalf("write %d: the card is not opened: %v", pull, err)
		}
		d.Close()
	}
	load(new, exitOK)
	if got := p.runs(); got != newSum {
		t.Errorf("runs %s, not the new image", got)
	}
	t.Logf("%d writes", n)
}

// TestBIT_LoadAndRestart: a load on a soft card whose flash is a file: what it prints, and that the image is there for the
// next process; the slots take turns, and one that runs is not written.
func TestBIT_LoadAndRestart(t *testing.T) {
	sockets(t)
	addr := "soft:?flash=" + filepath.Join(t.TempDir(), "flash")
	first, sum1 := writeImage(t, 70_001, 3, nil)
	second, sum2 := writeImage(t, 1, 4, nil)
	text, err := os.ReadFile(first + image.ManifestSuffix)
	if err != nil {
		t.Fatal(err)
	}
	result{out: string(text)}.object(t, "manifest")
	for i, c := range []struct {
		file, sum string
		slot      float64
	}{{first, sum1, 0}, {second, sum2, 1}, {first, sum1, 0}} {
		dry := rnicctl(t, "bitstream", "load", c.file, "-d", addr, "--dry-run", "--json").well(t).object(t, "bitstream_load")
		if dry["running"] != false || dry["dry_run"] != true || dry["slot"] != c.slot {
			t.Fatalf("dry run %v", dry)
		}
		if r := rnicctl(t, "bitstream", "load", c.file, "-d", addr); r.code != exitUsage {
			t.Fatalf("without --yes: exit %d %s", r.code, r.out)
		}
		o := rnicctl(t, "bitstream", "load", c.file, "-d", addr, "--yes", "--json").well(t).object(t, "bitstream_load")
		if o["running"] != true || o["slot"] != c.slot || o["sha256"] != c.sum || o["generation"] != float64(i+1) {
			t.Fatalf("load %d: %v", i, o)
		}
		if v := rnicctl(t, "bitstream", "verify", c.file, "-d", addr, "--json").well(t).object(t, "bitstream_verify"); v["well"] != true {
			t.Errorf("verify %v", v)
		}
		if info := rnicctl(t, "info", "-d", addr, "--json").well(t).object(t, "info"); info["bitstream_sha256"] != c.sum {
			t.Errorf("info: %v", info["bitstream_sha256"])
		}
	}
	o := rnicctl(t, "bitstream", "info", first, "-d", addr, "--json").well(t).object(t, "bitstream_info")
	for i, s := range o["flash"].(map[string]any)["slots"].([]any) {
		s := s.(map[string]any)
		if s["state"] != "whole" || s["running"] != (i == 0) || s["sha256"] != []string{sum1, sum2}[i] {
			t.Errorf("slot %d: %v", i, s)
		}
	}
	r := rnicctl(t, "bitstream", "load", second, "-d", addr, "--slot", "0", "--yes")
	if r.code != exitUsage || !strings.Contains(r.err, "slot 0 has the image that the card falls back to") {
		t.Errorf("the running slot: exit %d %s", r.code, r.err)
	}
	r = rnicctl(t, "bitstream", "verify", second, "-d", addr)
	if r.code != exitFound || !strings.Contains(r.out, "running") || !strings.Contains(r.out, sum2) {
		t.Errorf("verify of an image that does not run: exit %d\n%s", r.code, r.out)
	}
	for _, want := range []string{"70001", sum1, "whole", "part soft"} {
		if r := rnicctl(t, "bitstream", "info", first, "-d", addr).well(t); !strings.Contains(r.out, want) {
			t.Errorf("%q is not in\n%s", want, r.out)
		}
	}
}

// TestBIT_Refusals: what is not loaded, and that nothing is written then.
func TestBIT_Refusals(t *testing.T) {
	sockets(t)
	flash := filepath.Join(t.TempDir(), "flash")
	addr := "soft:?flash=" + flash
	good, _ := writeImage(t, 5000, 5, nil)
	rnicctl(t, "bitstream", "load", good, "-d", addr, "--yes").well(t)
	before, err := os.ReadFile(flash)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(m *image.Manifest)
		code   int
		says   string
	}{
		{"part", func(m *image.Manifest) { m.Part = "xcvu9p" }, exitFound, "part is soft, the manifest says xcvu9p"},
		{"contract", func(m *image.Manifest) { m.Contract = "2.0" }, exitFound, "contract is 1.0, the manifest says 2.0"},
		{"digest", func(m *image.Manifest) { m.SHA256 = strings.Repeat("ab", 32) }, exitFound, "sha256 is"},
		{"length", func(m *image.Manifest) { m.Bytes++ }, exitFound, "bytes is 6000, the manifest says 6001"},
		{"no digest", func(m *image.Manifest) { m.SHA256 = "ab" }, exitUsage, "64 hexadecimal digits"},
		{"schema", func(m *image.Manifest) { m.Schema = "rnic.manifest.v2" }, exitUsage, "rnic.manifest.v1"},
		{"capability", func(m *image.Manifest) { m.Capabilities = []string{"teleport"} }, exitUsage, "teleport"},
		{"long part", func(m *image.Manifest) { m.Part = strings.Repeat("x", 33) }, exitUsage, "from 1 to 32 bytes"},
	} {
		file, _ := writeImage(t, 6000, 6, c.change)
		for _, args := range [][]string{{"load", file, "-d", addr, "--yes"}, {"load", file, "-d", addr, "--dry-run"}} {
			r := rnicctl(t, append([]string{"bitstream"}, args...)...)
			if r.code != c.code || !strings.Contains(r.err, c.says) {
				t.Errorf("%s: exit %d, %s%s", c.name, r.code, r.out, r.err)
			}
		}
	}
	bare, _ := writeImage(t, 6000, 7, nil)
	if err := os.Remove(bare + image.ManifestSuffix); err != nil {
		t.Fatal(err)
	}
	large, _ := writeImage(t, 3<<20, 8, nil)
	for _, c := range []struct {
		file, says string
		code       int
	}{{bare, "no manifest for this image", exitUsage}, {large, "room for", exitUsage}, {bare + "x", "no such file", exitUsage}} {
		if r := rnicctl(t, "bitstream", "load", c.file, "-d", addr, "--yes"); r.code != c.code || !strings.Contains(r.err, c.says) {
			t.Errorf("exit %d, %s", r.code, r.err)
		}
	}
	if r := rnicctl(t, "bitstream", "load", good, "-d", "soft:none", "--yes"); r.code != exitLacks || !strings.Contains(r.err, "--jtag") {
		t.Errorf("a card without a flash: exit %d %s", r.code, r.err)
	}
	if after, err := os.ReadFile(flash); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a refused load wrote: %v", err)
	}
}

// TestBIT_CardDisagrees: a card whose identity is not that of the image that it says it runs is not opened, and a good image
// mends it. A program can name the manifest, too.
func TestBIT_CardDisagrees(t *testing.T) {
	sockets(t)
	addr := "soft:?flash=" + filepath.Join(t.TempDir(), "flash")
	lies, _ := writeImage(t, 5000, 9, func(m *image.Manifest) { m.Contract = fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor+7) })
	good, _ := writeImage(t, 5000, 10, nil)
	r := rnicctl(t, "bitstream", "load", lies, "-d", addr, "--yes")
	if r.code != exitFound || !strings.Contains(r.err, "contract") {
		t.Errorf("load of an image that is not what it says: exit %d %s", r.code, r.err)
	}
	if r := rnicctl(t, "info", "-d", addr); r.code != exitFound || !strings.Contains(r.err, "contract is 1.0, the manifest says 1.7") {
		t.Errorf("info: exit %d %s%s", r.code, r.out, r.err)
	}
	if d, err := driver.Open(t.Context(), addr); !errors.Is(err, driver.ErrImage) {
		if err == nil {
			d.Close()
		}
		t.Errorf("open: %v", err)
	}
	rnicctl(t, "bitstream", "load", good, "-d", addr, "--yes").well(t)
	rnicctl(t, "info", "-d", addr).well(t)
	for file, want := range map[string]error{good: nil, lies: driver.ErrImage} {
		m, err := image.OpenManifest(file + image.ManifestSuffix)
		if err != nil {
			t.Fatal(err)
		}
		d, err := driver.Open(t.Context(), addr, driver.WithManifest(m))
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("open with a manifest: %v, want %v", err, want)
		}
	}
}

// TestBIT_JTAG: openFPGALoader is run with what was checked, and what it does is told. A script stands in for it.
func TestBIT_JTAG(t *testing.T) {
	sockets(t)
	dir := t.TempDir()
	file, sum := writeImage(t, 5000, 13, func(m *image.Manifest) { m.Part, m.Board = "LFE5UM5G-85F", "ecp5_evn" })
	t.Setenv("PATH", dir)
	if r := rnicctl(t, "bitstream", "load", "--jtag", file, "--yes"); r.code != exitLacks || !strings.Contains(r.err, "apt-get install openfpgaloader") {
		t.Errorf("without the program: exit %d %s", r.code, r.err)
	}
	script := "#!/bin/sh\nprintf '%s\\n' \"$@\" > " + dir + "/args\nfor last; do :; done\n/bin/cp \"$last\" " + dir + "/written\necho writing\nexit $(/bin/cat " + dir + "/code)\n"
	for name, text := range map[string]string{"openFPGALoader": script, "code": "0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	args := func() []string {
		b, err := os.ReadFile(filepath.Join(dir, "args"))
		if err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(filepath.Join(dir, "args"))
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	for _, c := range []struct {
		more, want []string
	}{
		{nil, []string{"--board", "ecp5_evn", "--write-flash", "--verify"}},
		{[]string{"--board", "ulx3s", "--cable", "ft232"}, []string{"--board", "ulx3s", "--cable", "ft232", "--write-flash", "--verify"}},
	} {
		o := rnicctl(t, append([]string{"bitstream", "load", "--jtag", file, "--yes", "--json"}, c.more...)...).well(t).object(t, "bitstream_load")
		if o["by"] != "jtag" || o["sha256"] != sum || o["slot"] != nil || o["running"] != false {
			t.Errorf("%v", o)
		}
		got := args()
		if n := len(got) - 1; strings.Join(got[:n], " ") != strings.Join(c.want, " ") || filepath.Base(got[n]) != "image.bit" {
			t.Errorf("run with %q, want %q and the image", got, c.want)
		}
		written, _ := os.ReadFile(filepath.Join(dir, "written"))
		if s := sha256.Sum256(written); hex.EncodeToString(s[:]) != sum {
			t.Error("other bytes were written")
		}
	}
	for _, c := range [][]string{
		{"bitstream", "load", "--jtag", file}, {"bitstream", "load", "--jtag", file, "--yes", "--slot", "1"},
		{"bitstream", "load", "--jtag", file, "--yes", "--board", "--write-sram"}, {"bitstream", "load", "--jtag", file, "--yes", "--cable=-x"},
	} {
		if r := rnicctl(t, c...); r.code != exitUsage {
			t.Errorf("%q: exit %d %s", c, r.code, r.err)
		}
	}
	rnicctl(t, "bitstream", "load", "--jtag", file, "--dry-run").well(t)
	if _, err := os.Stat(filepath.Join(dir, "args")); err == nil {
		t.Error("a load that is refused or dry runs the program")
	}
	if err := os.WriteFile(filepath.Join(dir, "code"), []byte("3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := rnicctl(t, "bitstream", "load", "--jtag", file, "--yes", "--json"); r.code != exitFound || !strings.Contains(r.err, "exit status 3: writing") {
		t.Errorf("a program that fails: exit %d %s", r.code, r.err)
	}
}
