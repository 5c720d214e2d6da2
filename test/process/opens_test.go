package process

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// held is what opens says.
type held struct {
	Round          int
	FDs            []string
	Mappings       []string
	Anonymous      int
	AnonymousBytes uint64 `json:"anonymous_bytes"`
	Goroutines     int
}

// opens opens and closes two cards that often, and gives what the program held
// after the tenth time and after the last.
func opens(t *testing.T, n int, a, b string) (tenth, last held) {
	t.Helper()
	cmd := exec.Command(program(t, "opens"), "-n", strconv.Itoa(n), a, b)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, h := range []*held{&tenth, &last} {
		if err := json.Unmarshal([]byte(lines[min(i, len(lines)-1)]), h); err != nil {
			t.Fatal(err)
		}
	}
	if tenth.Round != 10 || last.Round != n {
		t.Fatalf("rounds %d and %d, want 10 and %d", tenth.Round, last.Round, n)
	}
	return tenth, last
}

// same checks that a program holds no more than after the tenth time.
func same(t *testing.T, tenth, last held) {
	t.Helper()
	if !slices.Equal(tenth.FDs, last.FDs) {
		t.Errorf("descriptors after %d times:\n%q\nafter the tenth:\n%q", last.Round, last.FDs, tenth.FDs)
	}
	if !slices.Equal(tenth.Mappings, last.Mappings) {
		t.Errorf("mappings after %d times:\n%q\nafter the tenth:\n%q", last.Round, last.Mappings, tenth.Mappings)
	}
	if last.Goroutines != tenth.Goroutines {
		t.Errorf("%d goroutines after %d times, %d after the tenth", last.Goroutines, last.Round, tenth.Goroutines)
	}
	// What is anonymous is Go's heap and stacks, which settle; a BAR's place or
	// a ring that stayed would come once a round.
	const slack = 16
	if last.Anonymous > tenth.Anonymous+slack {
		t.Errorf("%d anonymous mappings after %d times, %d after the tenth", last.Anonymous, last.Round, tenth.Anonymous)
	}
	const slackBytes = 64 << 20 // an arena of Go's heap
	if grown := int64(last.AnonymousBytes - tenth.AnonymousBytes); grown > max(slackBytes, int64(last.Round)<<14) {
		t.Errorf("anonymous mappings have grown by %d bytes in %d times", grown, last.Round-10)
	}
}

func rounds() int {
	if full() {
		return 1000
	}
	return 100
}

func TestProcesses_OpenAndCloseSoft(t *testing.T) {
	t.Parallel()
	tenth, last := opens(t, rounds(), "soft:a?wire=opens", "soft:b?wire=opens")
	same(t, tenth, last)
}

// Over a socket, the cards' process is looked at as well.
func TestProcesses_OpenAndCloseVFIOUser(t *testing.T) {
	t.Parallel()
	w := simulate(t, "a", "b")
	const few = 10
	fds, mappings := w.holds(t) // before any client
	// The first client has the context made in which interrupts are signalled, which stays: a mapping.
	mappings++
	opens(t, few, w.addr("a"), w.addr("b"))
	w.settles(t, fds, mappings, few)
	tenth, last := opens(t, rounds(), w.addr("a"), w.addr("b"))
	same(t, tenth, last)
	w.settles(t, fds, mappings, rounds())
}

// settles waits until rnicsim, which may be about to see its last client go,
// holds what it held before.
func (w *wires) settles(t *testing.T, fds, mappings, n int) {
	t.Helper()
	f, m := w.holds(t)
	for ctx := within(t); (f != fds || m != mappings) && ctx.Err() == nil; f, m = w.holds(t) {
		time.Sleep(10 * time.Millisecond)
	}
	if f != fds || m != mappings {
		t.Errorf("rnicsim has %d descriptors and %d mappings after %d clients, had %d and %d", f, m, 2*n, fds, mappings)
	}
}
