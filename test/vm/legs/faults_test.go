package legs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rnic/test/vm/vm"
)

// cards is a guest with two soft cards in which tests of ./test/vm/guest run.
func cards(t *testing.T, cfg vm.Config, tests string) vm.Config {
	t.Helper()
	program, err := vm.BuildTest(t.Context(), "./test/vm/guest")
	if err != nil {
		t.Fatal(err)
	}
	rnicctl, err := vm.Build(t.Context(), "./cmd/rnicctl")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Binary, cfg.Args, cfg.Cards = program, []string{"-test.v", "-test.run=" + tests}, 2
	cfg.Files = map[string]string{"/bin/rnicctl": rnicctl}
	cfg.Limit = 20 * time.Minute
	return cfg
}

// TestVM_Faults: the IOMMU is in the way and is right; a program that is killed and a function that is taken away in mid-traffic, by the guest
// itself; reset and reopened; completions by interrupt.
func TestVM_Faults(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l leg) {
		if l.cfg.IOMMU != "" {
			t.Skip("the faults of Intel's IOMMU stand for those of the others, which log each 4 or 8 bytes by themselves")
		}
		cfg := cards(t, l.cfg, "^Test(Faults|Life(Unbound|Removed|Killed))")
		cfg.Trace = filepath.Join(t.TempDir(), "trace")
		none(t, pass(t, cfg))
		known(t, cfg.Trace)
	})
}

// TestVM_Unplugged: QEMU's device_del takes a card from behind its root port in mid-traffic.
func TestVM_Unplugged(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l leg) {
		l.cfg.RootPorts = true
		err := taken(t, l.cfg, "^TestLifeTaken$", func(ctx context.Context, g *vm.Guest) error {
			_, err := g.QMP(ctx, "device_del", map[string]any{"id": "card0"})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestVM_ServerKilled: SIGKILL of rnicsim. For the guest's program each card was pulled out. The gate has one of the interfaces.
func TestVM_ServerKilled(t *testing.T) {
	some := legs[:2]
	if os.Getenv("RNIC_FULL") != "1" {
		some = some[1:]
	}
	on(t, some, func(t *testing.T, l leg) {
		// A request of QEMU's own may be under way after all: then QEMU aborts, and nothing is shown.
		for try := 1; ; try++ {
			err := taken(t, l.cfg, "^TestLifeServer$", func(_ context.Context, g *vm.Guest) error {
				g.KillCards()
				return g.Send("killed\n")
			})
			switch {
			case err == nil:
				return
			case try == 5 || !strings.Contains(err.Error(), "error_setv: Assertion"):
				t.Fatal(err)
			}
			t.Logf("try %d: QEMU aborted", try)
		}
	})
}

// taken runs a program's traffic in a guest, has its card taken away, and wants each call of the program to end as it should. The guest ends then:
// QEMU 11.1 aborts when it has taken a vfio-user device out (memory_region_del_subregion). It also aborts when the process that serves a card dies
// while a request to it is under way (error_setv): that is shown without a guest, in test/process.
func taken(t *testing.T, cfg vm.Config, test string, take func(context.Context, *vm.Guest) error) error {
	t.Helper()
	cfg = cards(t, cfg, test)
	cfg.Env = []string{"RNIC_VM_TAKEN=1"}
	g, err := vm.Start(t.Context(), cfg)
	vm.Check(t, err)
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	_, err = g.Await(ctx, "READY")
	if err == nil {
		err = take(ctx, g)
	}
	if err == nil {
		_, err = g.Await(ctx, "ENDED WELL")
	}
	g.Close()
	r, end := g.Wait()
	if err != nil {
		return fmt.Errorf("%w\nthe guest: %w\n%s%s\nkernel:\n%s\nrnicsim:\n%s", err, end, r.Stdout, r.Stderr, r.Log(), r.Sim)
	}
	t.Logf("%s", r.Stdout)
	return nil
}
