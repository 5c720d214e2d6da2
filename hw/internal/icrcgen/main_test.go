package main

import (
	"bytes"
	"hash/crc32"
	"os"
	"testing"
)

// TestDrift: the file in the tree is what the generator writes.
func TestDrift(t *testing.T) {
	have, err := os.ReadFile("../../../bitstream/rtl/icrc_pkg.sv")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, generate()) {
		t.Error("bitstream/rtl/icrc_pkg.sv is not what icrcgen writes; run go generate ./hw/internal/icrcgen")
	}
}

// TestZeroes compares with the standard library, whose registers are kept inverted.
func TestZeroes(t *testing.T) {
	for _, n := range []int{0, 1, 2, 4, 14, 18, 64} {
		for _, crc := range []uint32{0, 1, 0xffffffff, 0x80000000, 0xdeadbeef} {
			want := ^crc32.Update(^crc, crc32.IEEETable, make([]byte, n))
			if got := zeroes(crc, n); got != want {
				t.Errorf("%#x over %d zero bytes is %#x, want %#x", crc, n, got, want)
			}
			if got := zeroes(want, -n); got != crc {
				t.Errorf("%#x back over %d zero bytes is %#x, want %#x", want, n, got, crc)
			}
		}
	}
	if got, want := lrh(), ^crc32.ChecksumIEEE(bytes.Repeat([]byte{0xff}, 8)); got != want {
		t.Errorf("eight bytes of ones make %#x, want %#x", got, want)
	}
}
