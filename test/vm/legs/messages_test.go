package legs

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Lines of QEMU's trace (hw/vfio-user/trace-events).
var (
	traceSetIRQs  = regexp.MustCompile(`^vfio_user_set_irqs\s+index (\d+) start (\d+) count (\d+) flags (0x[0-9a-f]+)`)
	traceRegionRW = regexp.MustCompile(`^vfio_user_region_rw\s+region (\d+) offset \S+ count (\d+)`)
	traceHeader   = regexp.MustCompile(`^vfio_user_recv_hdr\s.* cmd (0x[0-9a-f]+) size \S+ flags (0x[0-9a-f]+)`)
	traceOthers   = map[string]*regexp.Regexp{
		"version":     regexp.MustCompile(`^vfio_user_version\s`),
		"device-info": regexp.MustCompile(`^vfio_user_get_info\s`),
		"region-info": regexp.MustCompile(`^vfio_user_get_region_info\s+index (\d+) `),
		"irq-info":    regexp.MustCompile(`^vfio_user_get_irq_info\s+index (\d+) `),
		"dma-map":     regexp.MustCompile(`^vfio_user_dma_map\s.* flags (0x[0-9a-f]+) `),
		"dma-unmap":   regexp.MustCompile(`^vfio_user_dma_unmap\s.* flags (0x[0-9a-f]+) `),
	}
)

// kinds gives the kinds of message in a trace, in the form of vfio/vfiouser/testdata/qemu-messages.txt.
func kinds(trace string) map[string]bool {
	seen := map[string]bool{}
	some := func(n string) string {
		if n != "0" && n != "1" {
			return "more"
		}
		return n
	}
	region := "" // of the access whose answer comes next: QEMU waits for it
	for line := range strings.Lines(trace) {
		if m := traceSetIRQs.FindStringSubmatch(line); m != nil {
			seen[strings.Join([]string{"set-irqs", m[1], m[4], some(m[2]), some(m[3])}, " ")] = true
		}
		if m := traceRegionRW.FindStringSubmatch(line); m != nil {
			n := m[2]
			if len(n) > 1 {
				n = "all"
			}
			region = m[1] + " " + n
		}
		if m := traceHeader.FindStringSubmatch(line); m != nil {
			var command, flags int
			_, _ = fmt.Sscan(m[1]+" "+m[2], &command, &flags)
			// Bits 0 to 3 of the flags: 0 is a command, which is the server's, 1 a reply; bit 5 is an error.
			switch {
			case flags&0xf == 0 && command == 11:
				seen["dma-read"] = true
			case flags&0xf == 0 && command == 12:
				seen["dma-write"] = true
			case flags != 1:
				seen["command "+m[1]+" flags "+m[2]] = true
			case command == 9:
				seen["read "+region] = true
			case command == 10:
				seen["write "+region] = true
			case command == 13:
				seen["reset"] = true
			case command == 6 || command > 10: // of which the trace has no line of their own
				seen["command "+m[1]] = true
			}
		}
		for kind, e := range traceOthers {
			if m := e.FindStringSubmatch(line); m != nil {
				seen[strings.Join(append([]string{kind}, m[1:]...), " ")] = true
			}
		}
	}
	return seen
}

// known wants each kind of message in a trace of QEMU's to be one that a test of vfio/vfiouser makes too.
func known(t *testing.T, file string) {
	t.Helper()
	trace, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("../../../vfio/vfiouser/testdata/qemu-messages.txt")
	if err != nil {
		t.Fatal(err)
	}
	made := strings.Split(string(list), "\n")
	seen := kinds(string(trace))
	for kind := range seen {
		if !slices.Contains(made, kind) {
			t.Errorf("QEMU's trace shows %q, which no test of vfio/vfiouser makes", kind)
		}
	}
	for _, kind := range []string{"version", "device-info", "region-info 0", "irq-info 2", "dma-map 0x3", "dma-unmap 0x0", "read 7 4", "write 7 2", "read 0 4", "write 0 4", "reset", "set-irqs 2 0x24 0 1"} {
		if !seen[kind] {
			t.Errorf("QEMU's trace does not show %q: is it read right? It shows %v", kind, seen)
		}
	}
}

// TestKinds reads lines of QEMU 11.1.3's trace.
func TestKinds(t *testing.T) {
	trace := `vfio_user_recv_hdr  (unix:/tmp/a/card0.sock) id 0x0 cmd 0x1 size 0x8f flags 0x1
vfio_user_version  major 0 minor 0 caps: {"capabilities": {"pgsizes": 4096}}
vfio_user_get_region_info  index 2 flags 0x7 size 0x4000000
vfio_user_dma_map  iova 0x0 size 0x18000000 off 0x0 flags 0x3 async_ops 1
vfio_user_set_irqs  index 2 start 5 count 1 flags 0x24
vfio_user_region_rw  region 7 offset 0x30 count 4
vfio_user_recv_hdr  (unix:/tmp/a/card0.sock) id 0x9 cmd 0xa size 0x20 flags 0x1
vfio_user_recv_hdr  (unix:/tmp/a/card0.sock) id 0x2 cmd 0xb size 0x20 flags 0x0
vfio_user_recv_hdr  (unix:/tmp/a/card0.sock) id 0x9 cmd 0x9 size 0x10 flags 0x21
vfio_user_recv_hdr  (unix:/tmp/a/card0.sock) id 0x9 cmd 0x10 size 0x20 flags 0x1
`
	want := []string{"command 0x10", "command 0x9 flags 0x21", "dma-map 0x3", "dma-read", "region-info 2", "set-irqs 2 0x24 more 1", "version", "write 7 4"}
	seen := kinds(trace)
	for _, k := range want {
		if !seen[k] {
			t.Errorf("no %q in %v", k, seen)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%v, want %q", seen, want)
	}
}
