package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// hwDir is hw/, seen from this package.
const hwDir = "../.."

// TestDrift: what is checked in is what the contract gives.
func TestDrift(t *testing.T) {
	files, err := generate(hwDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outputs {
		have, err := os.ReadFile(filepath.Join(hwDir, o.path))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(have, files[o.path]) {
			t.Errorf("%s differs from what hw/card.yaml gives at byte %d: run go generate ./hw, and change the contract, not the file",
				o.path, firstDifference(have, files[o.path]))
		}
	}
}

// TestDeterminism: the same contract gives the same bytes.
func TestDeterminism(t *testing.T) {
	first, err := generate(hwDir)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		again, err := generate(hwDir)
		if err != nil {
			t.Fatal(err)
		}
		for path := range first {
			if !bytes.Equal(first[path], again[path]) {
				t.Errorf("%s differs from run to run", path)
			}
		}
	}
}

// TestBadContractWritesNothing: a contract that is refused leaves the outputs as they are.
func TestBadContractWritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hw")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, source), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(small)
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "card_gen.go"))
	if err != nil {
		t.Fatal(err)
	}
	write(small + "extra: 1\n")
	if err := run(dir); err == nil {
		t.Error("an unknown key was not refused")
	}
	if after, err := os.ReadFile(filepath.Join(dir, "card_gen.go")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the output changed: %v", err)
	}
}

// TestDiagram compares the diagram of the small contract's structure with one drawn by hand.
func TestDiagram(t *testing.T) {
	c, err := load("small.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	const want = `
         3                   2                   1                   0
       1 0 9 8 7 6 5 4 3 2 1 0 9 8 7 6 5 4 3 2 1 0 9 8 7 6 5 4 3 2 1 0
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
0x000 |           mac[1:0]            |               |     color     |
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
0x004 |                           mac[5:2]                            |
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
0x008 |                         inner: Inner                          |
0x00c |                                                               |
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
0x010 |               |                      psn                      |
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
0x014 |                                       | kind  |      low      |
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
0x018 |                                                               |
0x01c |                                                               |
      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
`
	if got := "\n" + diagram(&c.Structs[1]); got != want {
		t.Errorf("got%swant%s", got, want)
	}
}

// TestNames: the spelling of the InfiniBand specification and of Go.
func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"RDMA_WRITE_WITH_IMM": "RDMAWriteWithImm", "wqe_index": "WQEIndex", "lkey": "LKey", "MAX_QPS": "MaxQPs", "sq_psn": "SQPSN",
		"MW2": "MW2", "GID0": "GID0", "status": "Status", "ERR": "Err", "dmac": "DMAC", "256": "256",
	} {
		if got := camel(in); got != want {
			t.Errorf("camel(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"QPContext": "qp_context", "CQE": "cqe", "KeyCacheLine": "key_cache_line", "MTU": "mtu", "UDSegment": "ud_segment"} {
		if got := snake(in); got != want {
			t.Errorf("snake(%q) = %q, want %q", in, got, want)
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
