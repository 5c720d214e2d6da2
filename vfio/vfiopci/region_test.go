package vfiopci_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
	"rnic/vfio/vfiotest"
)

var page = uint64(os.Getpagesize())

// areas makes areas of pairs of offset and size.
func areas(v ...uint64) (list []vfio.Area) {
	for i := 0; i < len(v); i += 2 {
		list = append(list, vfio.Area{Offset: v[i], Size: v[i+1]})
	}
	return list
}

// Row 19: what of a BAR is mapped, with the MSI-X table anywhere.
func TestVFIO_BARAreas(t *testing.T) {
	for _, c := range []struct {
		what   string
		bar    vfiotest.BAR
		table  uint64
		vector int
		want   []vfio.Area
	}{
		{"at the start", vfiotest.BAR{Size: 8 * page}, 0, 4, areas(page, 7*page)},
		{"in the middle, not at a page", vfiotest.BAR{Size: 8 * page}, page + 0x200, 4, areas(0, page, 2*page, 6*page)},
		{"over two pages", vfiotest.BAR{Size: 8 * page}, 2*page - 16, 2, areas(0, page, 3*page, 5*page)},
		{"large", vfiotest.BAR{Size: 16 * page}, 2 * page, int(3 * page / 16), areas(0, 2*page, 5*page, 11*page)},
		{"at the end", vfiotest.BAR{Size: 4 * page}, 4*page - 64, 4, areas(0, 3*page)},
		{"alone in the BAR", vfiotest.BAR{Size: page}, 0, 4, nil},
		{"mappable", vfiotest.BAR{Size: 4 * page, MSIXMappable: true}, page, 4, areas(0, 4*page)},
		{"sparse", vfiotest.BAR{Size: 8 * page, Sparse: areas(page, page, 4*page, 2*page)}, 0, 4, areas(page, page, 4*page, 2*page)},
		{"sparse, no whole pages", vfiotest.BAR{Size: 8 * page, Sparse: areas(page+0x10, page, 4*page+0x800, 2*page)}, 0, 4, areas(5*page, page)},
		{"not mappable", vfiotest.BAR{Size: 4 * page, NoMmap: true}, 0, 4, nil},
	} {
		eachWay(t, vfiotest.Machine{}, vfiotest.Function{BARs: [6]vfiotest.BAR{2: c.bar, 4: {Size: 2 * page}}, MSIXBAR: 2, MSIXOffset: c.table, MSIX: c.vector},
			func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
				r, err := d.Region(2)
				must(t, err)
				if !reflect.DeepEqual(r.Areas, c.want) || r.Size != c.bar.Size || (r.Flags&vfio.RegionMmap != 0) != (c.want != nil) {
					t.Errorf("%s: %+v, want areas %v", c.what, r, c.want)
				}
				m, err := d.MapRegion(2)
				if err != nil {
					t.Fatalf("%s: %v", c.what, err)
				}
				if !reflect.DeepEqual(m.Areas(), c.want) {
					t.Errorf("%s: mapped %v, want %v", c.what, m.Areas(), c.want)
				}
				must(t, m.Release())
				if r, err := d.Region(4); err != nil || !reflect.DeepEqual(r.Areas, areas(0, 2*page)) {
					t.Errorf("another BAR: %+v, %v", r, err)
				}
			})
	}
}

// Registers by the mapping and by read and write are the same; a region
// without a mapping works all the same (row 20).
func TestVFIO_Registers(t *testing.T) {
	for _, bar := range []vfiotest.BAR{{Size: 4 * page}, {Size: 256, NoMmap: true}} {
		eachWay(t, vfiotest.Machine{}, vfiotest.Function{BARs: [6]vfiotest.BAR{bar}, MSIXBAR: 5}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
			b, err := vfio.NewBAR(d, 0)
			must(t, err)
			defer b.Release()
			if (b.Word32(0) != nil) == bar.NoMmap {
				t.Errorf("mapped: %v", b.Word32(0) != nil)
			}
			must(t, b.Write32(0x10, 0x12345678))
			must(t, b.Write64(0x20, 0x1122334455667788))
			got := make([]byte, 8)
			must(t, d.ReadRegion(0, 0x10, got[:4]))
			if v := binary.LittleEndian.Uint32(got); v != 0x12345678 {
				t.Errorf("read %#x", v)
			}
			must(t, d.WriteRegion(0, 0x40, []byte{1, 2, 3, 4}))
			if v := b.Load32(0x40); v != 0x04030201 || b.Load64(0x20) != 0x1122334455667788 || b.Err() != nil {
				t.Errorf("mapped %#x, %#x, %v", v, b.Load64(0x20), b.Err())
			}
			wants(t, d.ReadRegion(0, bar.Size-2, got[:4]), vfio.ErrRange)
			wants(t, d.WriteRegion(0, ^uint64(0), got[:4]), vfio.ErrRange)
		})
	}
}

// Row 20: short transfers go on, and end when nothing moves; a function
// without VGA is normal.
func TestVFIO_Transfers(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		must(t, d.WriteRegion(0, 0x10, []byte("12345678")))
		p := make([]byte, 8)
		k.Do(vfiotest.Script{Call: "pread", Times: 2, Err: unix.EINTR})
		must(t, d.ReadRegion(0, 0x10, p))
		if string(p) != "12345678" {
			t.Errorf("read %q", p)
		}
		zero, three := 0, 3
		k.Do(vfiotest.Script{Call: "pwrite", Times: 1, Result: &zero})
		wants(t, d.WriteRegion(0, 0x10, p), vfio.ErrRange, "moved 0 of 8 bytes", "region 0 offset 0x10")
		k.Do(vfiotest.Script{Call: "pwrite", Times: 1, Result: &three})
		k.Do(vfiotest.Script{Call: "pwrite", Times: 1, Result: &zero})
		wants(t, d.WriteRegion(0, 0x10, p), vfio.ErrRange, "moved 3 of 8 bytes")
		if r, err := d.Region(vfio.RegionVGA); err != nil || r.Size != 0 || r.Index != vfio.RegionVGA {
			t.Errorf("VGA: %+v, %v", r, err)
		}
		if r, err := d.Region(3); err != nil || r.Size != 0 {
			t.Errorf("a BAR that is not there: %+v, %v", r, err)
		}
		for _, i := range []int{-1, 9, 1 << 20} {
			_, err := d.Region(i)
			wants(t, err, vfio.ErrNotFound, fmt.Sprint(i))
		}
	})
}

// A region's description is trusted in nothing.
func TestVFIO_HostileRegionInfo(t *testing.T) {
	ne := binary.NativeEndian
	for what, edit := range map[string]func(b []byte){
		"another region": func(b []byte) { ne.PutUint32(b[8:], 1) },
		"cycle":          func(b []byte) { ne.PutUint32(b[32+4:], 32) },
		"outside":        func(b []byte) { ne.PutUint32(b[12:], 4096) },
		"areas":          func(b []byte) { ne.PutUint32(b[32+8:], 1<<28) },
		"area outside":   func(b []byte) { ne.PutUint64(b[32+16:], 1<<40) },
	} {
		k := vfiotest.New(t, vfiotest.Machine{})
		k.Add(vfiotest.Function{Addr: bdf, BARs: [6]vfiotest.BAR{{Size: 4 * page, Sparse: []vfio.Area{{Offset: 0, Size: page}}}}})
		d := mustOpen(t, k, bdf)
		k.Do(vfiotest.Script{Call: "VFIO_DEVICE_GET_REGION_INFO", Skip: 1, Edit: edit})
		if _, err := d.Region(0); !errors.Is(err, vfio.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	for _, edit := range []func(b []byte){
		func(b []byte) { ne.PutUint32(b[4:], 1) },      // no PCI function
		func(b []byte) { ne.PutUint32(b[8:], 3) },      // without configuration space
		func(b []byte) { ne.PutUint32(b[8:], 1<<30) },  // endless regions
		func(b []byte) { ne.PutUint32(b[12:], 1<<30) }, // endless interrupts
	} {
		k.Forget()
		k.Do(vfiotest.Script{Call: "VFIO_DEVICE_GET_INFO", Edit: edit})
		_, err := open(t, k, bdf)
		wants(t, err, vfio.ErrNotSupported)
	}
}

// Row 18: off at open, whatever it was; on by the driver; off at Close.
// Other bits stay.
func TestVFIO_BusMaster(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{Command: 0x0544}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		command := func() uint16 { return binary.LittleEndian.Uint16(f.Config(vfio.ConfigCommand, 2)) }
		if v := command(); v != 0x0542 {
			t.Errorf("after open %#x, want memory on and bus mastering off", v)
		}
		cfg, err := vfio.NewConfig(d)
		must(t, err)
		must(t, cfg.SetBusMaster(true))
		if v := command(); v != 0x0546 {
			t.Errorf("switched on: %#x", v)
		}
		m := memory(t, 4096)
		must(t, d.MapDMA(0x100000, m, 0, 4096, vfio.ProtRead))
		before := len(k.Calls())
		must(t, d.Close())
		if v := command(); v != 0x0542 {
			t.Errorf("after Close %#x", v)
		}
		unmap := "VFIO_IOMMU_UNMAP_DMA"
		if d.Info().Backend == "iommufd" {
			unmap = "IOMMU_IOAS_UNMAP"
		}
		subsequence(t, k.Calls()[before:], "pwrite", unmap, "close")
	})
}
