package vfio

import (
	"reflect"
	"testing"
)

// Whatever bytes a capability list has, the walk ends, inside it, at distinct
// places.
func FuzzCapabilities(f *testing.F) {
	good := make([]byte, 256)
	good[6], good[0x34] = 0x10, 0x40
	copy(good[0x40:], []byte{0x10, 0x80})
	copy(good[0x80:], []byte{0x11, 0})
	f.Add(good)
	cycle := append([]byte(nil), good...)
	cycle[0x81] = 0x40
	f.Add(cycle)
	f.Fuzz(func(t *testing.T, b []byte) {
		caps, err := parseCapabilities(b)
		if err != nil {
			return
		}
		seen := make(map[uint64]bool)
		for _, c := range caps {
			if c.Offset < 0x40 || c.Offset > 0xfc || c.Offset%4 != 0 || seen[c.Offset] {
				t.Fatalf("capabilities %v", caps)
			}
			seen[c.Offset] = true
		}
	})
}

// A region's description is refused, or describes areas that lie in it and
// survive being written and read again.
func FuzzRegionInfo(f *testing.F) {
	for _, r := range []RegionInfo{
		{Index: 0, Size: 0x4000, Flags: RegionRead | RegionWrite, Areas: []Area{{0x1000, 0x1000}, {0x3000, 0x1000}}},
		{Index: 2, Size: 0x1000, Flags: RegionRead, Areas: []Area{{0, 0x1000}}},
		{Index: 7, Size: 256, Flags: RegionRead | RegionWrite},
	} {
		f.Add(AppendRegionInfo(nil, r, 0x10000))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, off, err := ParseRegionInfo(b)
		if err != nil {
			return
		}
		end := uint64(0)
		for _, a := range r.Areas {
			if a.Offset < end || a.Size == 0 || a.Offset+a.Size > r.Size || a.Offset+a.Size < a.Offset {
				t.Fatalf("%+v", r)
			}
			end = a.Offset + a.Size
		}
		again, off2, err := ParseRegionInfo(AppendRegionInfo(nil, r, off))
		r.Flags &^= RegionMmap | RegionCaps
		again.Flags &^= RegionMmap | RegionCaps
		if err != nil || off2 != off || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v, %#x; again %+v, %#x, %v", r, off, again, off2, err)
		}
	})
}
