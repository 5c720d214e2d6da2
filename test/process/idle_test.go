package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ticks is the CPU time that a process has taken, user and system, in units of
// 10 ms (proc(5), fields 14 and 15; USER_HZ is 100).
func (p *process) ticks(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ") // behind the name
	f := strings.Fields(rest)
	user, err1 := strconv.Atoi(f[14-3])
	system, err2 := strconv.Atoi(f[15-3])
	if err1 != nil || err2 != nil {
		t.Fatalf("stat: %q", b)
	}
	return user + system
}

// Idle cards and the programs that hold them, which have had traffic and wait
// for more, take less than 1 % of a CPU together: fewer than 10 ticks in 10 s.
func TestProcesses_IdleTakesNoCPU(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func(t *testing.T) []*process
	}{
		{"vfio-user", func(t *testing.T) []*process {
			w := simulate(t, "a", "b")
			server := w.listen(t, "b")
			client := w.connect(t, "a", "b", "-count", "100", "-stay")
			client.await(t, "done")
			return []*process{w.process, server, client}
		}},
		{"soft", func(t *testing.T) []*process {
			// A card in the program: alone on its wire, it waits for a peer.
			p := start(t, "peer", "-listen", filepath.Join(t.TempDir(), "idle"), "soft:idle")
			p.await(t, "listening")
			return []*process{p}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := c.start(t)
			time.Sleep(time.Second) // what traffic left behind, the collector's part included
			total := func() (n int) {
				for _, p := range all {
					n += p.ticks(t)
				}
				return n
			}
			before := total()
			if before == 0 && c.name == "vfio-user" {
				t.Error("no CPU time was counted for the traffic")
			}
			time.Sleep(10 * time.Second)
			if took := total() - before; took >= 10 {
				t.Errorf("idle cards and programs took %d ticks of 10 ms in 10 s", took)
			} else {
				t.Logf("%d ticks", took)
			}
		})
	}
}
