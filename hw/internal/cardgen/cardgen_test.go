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

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
