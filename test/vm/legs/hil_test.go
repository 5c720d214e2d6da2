package legs

import (
	"bytes"
	"os"
	"testing"
	"time"

	"rnic/test/vm/vm"
)

// TestVM_HIL: the runner of test/hil passes on two soft cards that the guest's kernel drives, binds them and gives them
// back; it refuses one whose identity disagrees; of two runners one waits; a killed one's lease expires. They are tests of
// test/hil itself. The gate has them in one guest, since each opening of a card takes its time there.
func TestVM_HIL(t *testing.T) {
	t.Parallel()
	rnicctl, err := vm.Build(t.Context(), "./cmd/rnicctl")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := vm.BuildTest(t.Context(), "./test/hil")
	if err != nil {
		t.Fatal(err)
	}
	some := legs[:2] // one by each interface
	if os.Getenv("RNIC_FULL") != "1" {
		some = some[1:]
	}
	on(t, some, func(t *testing.T, l leg) {
		cfg := l.cfg
		cfg.Cards, cfg.NoBind, cfg.Limit = 2, true, 10*time.Minute
		cfg.Binary, cfg.Args = tests, []string{"-test.v", "-test.run=^TestProcesses_(Run|Identity|TwoRunners|Killed)$"}
		cfg.Files = map[string]string{"/bin/rnicctl": rnicctl, "/golden/a_walk": "../../golden/a_walk", "/docs/json/hil.schema.json": "../../../docs/json/hil.schema.json"}
		r := pass(t, cfg)
		if bytes.Contains(r.Stdout, []byte("--- SKIP")) || bytes.Count(r.Stdout, []byte("--- PASS: TestProcesses_")) != 4 {
			t.Errorf("not all of it ran:\n%s", r.Stdout)
		}
	})
}
