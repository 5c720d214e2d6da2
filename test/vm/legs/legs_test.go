// Package legs has the suite "vm": what is shown in a guest, on each kernel and by each interface of VFIO.
package legs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"rnic/test/vm/vm"
)

// leg is a guest in which a suite is run.
type leg struct {
	name string
	full bool // at full scale only
	cfg  vm.Config
}

var trusted = map[string]string{"vfio_iommu_type1": "allow_unsafe_interrupts=1", "iommufd": "allow_unsafe_interrupts=1"}

// legs are those of the gate, and those of make test-full.
var legs = []leg{
	{name: "6.1/type1", cfg: vm.Config{Kernel: vm.Kernel61, VFIO: vm.Type1}},
	{name: "6.12/iommufd", cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.IOMMUFD}},
	{name: "6.12/type1", full: true, cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.Type1}},
	{name: "6.12/compat", full: true, cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.Compat}},
	// Without interrupt remapping VFIO wants to be told that its interrupts are trusted.
	{name: "6.12/type1/virtio-iommu", full: true, cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.Type1, IOMMU: vm.Virtio, ModuleArgs: trusted}},
	{name: "6.12/iommufd/virtio-iommu", full: true, cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.IOMMUFD, IOMMU: vm.Virtio, ModuleArgs: trusted}},
	{name: "6.1/type1/amd-iommu", full: true, cfg: vm.Config{Kernel: vm.Kernel61, VFIO: vm.Type1, IOMMU: vm.AMD}},
}

// each runs a suite on every leg, side by side. A payload that fails is a failure; a guest that cannot be had is a leg
// skipped, but in CI.
func each(t *testing.T, run func(*testing.T, leg)) { on(t, legs, run) }

// on is each on some of the legs.
func on(t *testing.T, legs []leg, run func(*testing.T, leg)) {
	for _, l := range legs {
		if l.full && os.Getenv("RNIC_FULL") != "1" {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.cfg.Say = func(line string) { t.Log(line) }
			run(t, l)
		})
	}
}

// pass runs a guest whose payload has to end well.
func pass(t *testing.T, cfg vm.Config) vm.Result {
	t.Helper()
	r, err := vm.Run(t.Context(), cfg)
	vm.Check(t, err)
	t.Logf("%s: payload after %.1f s, all %.1f s", r.Guest, r.Boot, r.Took.Seconds())
	if !r.Passed() {
		t.Fatalf("exit code %d %s\n%s%s\nkernel:\n%s\nrnicsim:\n%s", r.Exit, r.Signal, r.Stdout, r.Stderr, r.Log(), r.Sim)
	}
	if lines := complaint.FindAllString(r.Kernel, 3); lines != nil {
		t.Errorf("the kernel complains: %q", lines)
	}
	return r
}

// complaint is a line of the kernel's about what should not be, whoever is to blame.
var complaint = regexp.MustCompile(`(?m)^.*(WARNING: CPU|BUG: |Oops|freeing invalid memtype).*$`)

// TestVM_VFIO: QEMU's edu is driven by vfio alone (identity, DMA both ways, MSI, unmap, errors), and two soft cards, whose
// wire is on the host, pass what part 1 asks of them.
func TestVM_VFIO(t *testing.T) {
	t.Parallel()
	tests, err := vm.BuildTest(t.Context(), "./test/vm/guest")
	if err != nil {
		t.Fatal(err)
	}
	rnicctl, err := vm.Build(t.Context(), "./cmd/rnicctl")
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, l leg) {
		cfg := l.cfg
		cfg.Binary, cfg.Args = tests, []string{"-test.v", "-test.run=^Test(Edu|Cards)"}
		cfg.Env = []string{"RNIC_VFIO_WAYS=" + cfg.VFIO}
		cfg.Devices, cfg.BindDevices, cfg.Cards = []string{"edu"}, true, 2
		cfg.Files = map[string]string{"/bin/rnicctl": rnicctl, "/golden": "../../golden"}
		cfg.Limit = 15 * time.Minute
		none(t, pass(t, cfg))
	})
}

// hugeMap is a mapping of one 2 MiB page that QEMU tells a card of.
var hugeMap = regexp.MustCompile(`(?m)^vfio_user_dma_map\s+iova 0x[0-9a-f]+ size 0x200000 `)

// TestVM_HugePages: regions of 2 MiB pages are mapped by entries of 2 MiB.
func TestVM_HugePages(t *testing.T) {
	t.Parallel()
	if os.Getenv("RNIC_FULL") != "1" {
		t.Skip("at full scale only (RNIC_FULL=1)")
	}
	tests, err := vm.BuildTest(t.Context(), "./test/vm/guest")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range legs[:2] {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			cfg := l.cfg
			cfg.Binary, cfg.Args = tests, []string{"-test.v", "-test.run=^TestHugePages$"}
			cfg.Cards, cfg.HugePages, cfg.Trace = 2, 8, filepath.Join(t.TempDir(), "trace")
			none(t, pass(t, cfg))
			trace, err := os.ReadFile(cfg.Trace)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(hugeMap.FindAll(trace, -1)); n != 4 {
				t.Errorf("%d mappings of 2 MiB, want 4: two regions of two pages each", n)
			}
		})
	}
}

// none demands that tests ran in a guest and that none was skipped.
func none(t *testing.T, r vm.Result) {
	t.Helper()
	if bytes.Contains(r.Stdout, []byte("--- SKIP")) || !bytes.Contains(r.Stdout, []byte("--- PASS")) {
		t.Errorf("a test was skipped, or none ran")
	}
	t.Logf("%s", r.Stdout)
}
