package guest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// full says that the tests run at the scale of the acceptance list.
func full() bool { return os.Getenv("RNIC_FULL") == "1" }

// pair gives two soft cards that a wire joins, as addresses by the way of this machine.
func pair(t *testing.T) (a, b string) {
	t.Helper()
	found := functions(t, "0x10ee", "0x7264")
	if len(found) < 2 {
		t.Skip("not in the guest: no two cards are bound to vfio-pci")
	}
	way := "?vfio=" + os.Getenv("RNIC_VM_VFIO")
	return found[0] + way, found[1] + way
}

// rnicctl runs a command on two cards, and wants it to end well.
func rnicctl(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	// A card answers late on a busy host.
	cmd := exec.CommandContext(ctx, "/bin/rnicctl", append([]string{"--timeout", "1m"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Logf("rnicctl %q: %.1f s, %v\n%s", args, time.Since(began).Seconds(), err, out.Bytes())
	if err != nil {
		t.Fail()
	}
}

// TestCardsSelftest: the stairs of a bring-up, up to the wire.
func TestCardsSelftest(t *testing.T) {
	a, b := pair(t)
	rnicctl(t, "selftest", "-d", a, "--peer", b)
}

// TestCardsRandomWalks: random gathers of random segments, from card to card, each walked again in software.
func TestCardsRandomWalks(t *testing.T) {
	a, b := pair(t)
	count := "200"
	if full() {
		count = "5000"
	}
	rnicctl(t, "verify", "-d", a, "--peer", b, "--count", count, "--bundles", t.TempDir())
}

// TestCardsConformance: part 1's recorded scenarios, every one.
func TestCardsConformance(t *testing.T) {
	a, b := pair(t)
	rnicctl(t, "conformance", "-d", a, "--peer", b, "/golden")
}
