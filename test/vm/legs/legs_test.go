// Package legs has the suite "vm": what is shown in a guest, on each kernel and by each interface of VFIO.
package legs

import (
	"bytes"
	"os"
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

// legs are those of the gate, and those of make test-full.
var legs = []leg{
	{name: "6.1/type1", cfg: vm.Config{Kernel: vm.Kernel61, VFIO: vm.Type1}},
	{name: "6.12/iommufd", cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.IOMMUFD}},
	{name: "6.12/type1", full: true, cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.Type1}},
	{name: "6.12/compat", full: true, cfg: vm.Config{Kernel: vm.Kernel612, VFIO: vm.Compat}},
}

// each runs a suite on every leg, side by side. A payload that fails is a failure; a guest that cannot be had is a leg
// skipped, but in CI.
func each(t *testing.T, run func(*testing.T, vm.Config)) {
	for _, l := range legs {
		if l.full && os.Getenv("RNIC_FULL") != "1" {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			cfg := l.cfg
			cfg.Say = func(line string) { t.Log(line) }
			run(t, cfg)
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
	return r
}

// TestVM_VFIO: QEMU's edu is driven by vfio alone (identity, DMA both ways, MSI, unmap, errors), and two soft cards, whose
// wire is on the host, pass what part 1 asks of them.
func TestVM_VFIO(t *testing.T) {
	tests, err := vm.BuildTest(t.Context(), "./test/vm/guest")
	if err != nil {
		t.Fatal(err)
	}
	rnicctl, err := vm.Build(t.Context(), "./cmd/rnicctl")
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, cfg vm.Config) {
		cfg.Binary, cfg.Args = tests, []string{"-test.v", "-test.run=^Test(Edu|Cards)"}
		cfg.Env = []string{"RNIC_VFIO_WAYS=" + cfg.VFIO}
		cfg.Devices, cfg.BindDevices, cfg.Cards = []string{"edu"}, true, 2
		cfg.Files = map[string]string{"/bin/rnicctl": rnicctl, "/golden": "../../golden"}
		cfg.Limit = 15 * time.Minute
		none(t, pass(t, cfg))
	})
}

// none demands that tests ran in a guest and that none was skipped.
func none(t *testing.T, r vm.Result) {
	t.Helper()
	if bytes.Contains(r.Stdout, []byte("--- SKIP")) || !bytes.Contains(r.Stdout, []byte("--- PASS")) {
		t.Errorf("a test was skipped, or none ran")
	}
	t.Logf("%s", r.Stdout)
}
