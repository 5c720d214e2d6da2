package vfiopci_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
	"rnic/vfio/vfiotest"
)

// DMA by each way: both directions, rights, bus mastering, and the end.
func TestVFIO_DMA(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		cfg, err := vfio.NewConfig(d)
		must(t, err)
		m := memory(t, 0x4000)
		must(t, d.MapDMA(0x100000, m, 0x1000, 0x2000, vfio.ProtReadWrite))
		if err := f.WriteDMA(0x100000, []byte{1}); err == nil {
			t.Error("DMA before bus mastering")
		}
		must(t, cfg.SetBusMaster(true))
		must(t, f.WriteDMA(0x100010, []byte("from the function")))
		if got := m.Bytes()[0x1010 : 0x1010+17]; string(got) != "from the function" {
			t.Errorf("memory has %q", got)
		}
		copy(m.Bytes()[0x2ff0:], "to the function!")
		got := make([]byte, 16)
		must(t, f.ReadDMA(0x101ff0, got))
		if string(got) != "to the function!" {
			t.Errorf("the function has %q", got)
		}
		must(t, d.MapDMA(0x200000, m, 0, 0x1000, vfio.ProtRead))
		must(t, f.ReadDMA(0x200000, got))
		must(t, d.MapDMA(0x300000, m, 0, 0x1000, vfio.ProtWrite))
		if f.WriteDMA(0x200000, got) == nil || f.ReadDMA(0x300000, got) == nil || f.ReadDMA(0x102000, got) == nil {
			t.Error("an access without the right, or outside")
		}
		must(t, d.UnmapDMA(0x100000, 0x2000))
		if f.ReadDMA(0x100000, got) == nil {
			t.Error("an access after the unmap")
		}
		if err := m.Close(); !errors.Is(err, vfio.ErrInUse) {
			t.Errorf("closing mapped memory: %v", err)
		}
		must(t, d.Close())
		if f.BusMaster() {
			t.Error("bus mastering is on after Close")
		}
		if f.ReadDMA(0x200000, got) == nil {
			t.Error("DMA after Close")
		}
		must(t, m.Close())
	})
}

// Rows 7 to 9: the addresses are the kernel's, the interrupts' window is not
// among them, and a map outside says which would do.
func TestVFIO_IOVARanges(t *testing.T) {
	m := vfiotest.Machine{Ranges: []vfio.IOVARange{{First: 0, Last: 1<<48 - 1}}}
	eachWay(t, m, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		want := []vfio.IOVARange{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: 1<<48 - 1}}
		if got := d.IOVARanges(); !slices.Equal(got, want) {
			t.Errorf("ranges %v, want %v", got, want)
		}
		mem := memory(t, 0x2000)
		for iova, check := range map[uint64]string{
			0xfee00000: vfio.CheckMSIWindow, 0xfedff000: vfio.CheckMSIWindow, 0xfeeff000: vfio.CheckMSIWindow, 1 << 48: vfio.CheckIOVAWidth, 1<<48 - 0x1000: vfio.CheckIOVAWidth,
		} {
			setup(t, d.MapDMA(iova, mem, 0, 0x2000, vfio.ProtRead), check, vfio.ErrInvalid, fmt.Sprintf("%#x", iova), "0xfef00000-0xffffffffffff", "vfio.Space")
		}
		must(t, d.MapDMA(1<<48-0x2000, mem, 0, 0x2000, vfio.ProtRead))
		s, err := vfio.NewSpace(d, 0)
		must(t, err)
		x, err := s.Map(mem, 0, 0x2000, vfio.ProtRead)
		must(t, err)
		must(t, x.Unmap())
		must(t, d.UnmapDMA(1<<48-0x2000, 0x2000))
	})
	// All 64 bits: type 1 cannot unmap the last page, so that its container has none.
	m.Ranges = []vfio.IOVARange{{First: 0, Last: 1<<64 - 1}}
	eachWay(t, m, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		last := uint64(1<<64 - 1 - 64<<10)
		if d.Info().Backend == "iommufd" {
			last = 1<<64 - 1
		}
		if want := []vfio.IOVARange{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: last}}; !slices.Equal(d.IOVARanges(), want) {
			t.Errorf("ranges %v, want %v", d.IOVARanges(), want)
		}
		mem := memory(t, 0x2000)
		must(t, d.MapDMA(last-0x1fff, mem, 0, 0x2000, vfio.ProtRead))
		must(t, d.UnmapDMA(last-0x1fff, 0x2000))
	})
	// Many ranges: both answers are asked for twice.
	m.Ranges = nil
	for i := range uint64(40) {
		m.Ranges = append(m.Ranges, vfio.IOVARange{First: i << 30, Last: i<<30 + 0xffff})
	}
	eachWay(t, m, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		if got := d.IOVARanges(); !slices.Equal(got, m.Ranges) {
			t.Errorf("%d ranges, want %d", len(got), len(m.Ranges))
		}
		ask := "VFIO_IOMMU_GET_INFO"
		if d.Info().Backend == "iommufd" {
			ask = "IOMMU_IOAS_IOVA_RANGES"
		}
		subsequence(t, k.Calls(), ask, ask)
	})
	// An old kernel tells nothing.
	k := vfiotest.New(t, vfiotest.Machine{NoCaps: true})
	k.Add(vfiotest.Function{Addr: bdf})
	d := mustOpen(t, k, bdf+"?vfio=type1")
	if got := d.IOVARanges(); !slices.Equal(got, vfio.FallbackIOVARanges()) || d.MaxMappings() != 65535 {
		t.Errorf("without capabilities: %v, %d mappings", got, d.MaxMappings())
	}
}

// Row 7: a chain that is a cycle, that points outside, or that says more than
// there is, is an error and no crash.
func TestVFIO_HostileIOMMUInfo(t *testing.T) {
	ne := binary.NativeEndian
	for what, edit := range map[string]func(b []byte){
		"cycle":        func(b []byte) { ne.PutUint32(b[24+4:], 24) },
		"into itself":  func(b []byte) { ne.PutUint32(b[16:], 8) },
		"outside":      func(b []byte) { ne.PutUint32(b[16:], 0xfffffffc) },
		"over the end": func(b []byte) { ne.PutUint32(b[16:], uint32(len(b)-4)) },
		"too many":     func(b []byte) { ne.PutUint32(b[24+8:], 1<<28) },
	} {
		k := vfiotest.New(t, vfiotest.Machine{})
		k.Add(vfiotest.Function{Addr: bdf})
		k.Do(vfiotest.Script{Call: "VFIO_IOMMU_GET_INFO", Skip: 1, Edit: edit})
		_, err := open(t, k, bdf+"?vfio=type1")
		if !errors.Is(err, vfio.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, edit := range map[string]func(b []byte){
		"endless": func(b []byte) { ne.PutUint32(b, uint32(len(b))+64) },
		"huge":    func(b []byte) { ne.PutUint32(b, 1<<30) },
	} {
		k := vfiotest.New(t, vfiotest.Machine{})
		k.Add(vfiotest.Function{Addr: bdf})
		k.Do(vfiotest.Script{Call: "VFIO_IOMMU_GET_INFO", Edit: edit})
		_, err := open(t, k, bdf+"?vfio=type1")
		if !errors.Is(err, vfio.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	k := vfiotest.New(t, vfiotest.Machine{})
	k.Add(vfiotest.Function{Addr: bdf})
	k.Do(vfiotest.Script{Call: "IOMMU_IOAS_IOVA_RANGES", Edit: func(b []byte) { ne.PutUint32(b[8:], 1<<20) }})
	_, err := open(t, k, bdf+"?vfio=iommufd")
	wants(t, err, vfio.ErrProtocol)
}

// Rows 10, 11, 16: what cannot be mapped, before the kernel and by it.
func TestVFIO_MapErrors(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		m := memory(t, 0x10000)
		must(t, d.MapDMA(0x100000, m, 0, 0x2000, vfio.ProtReadWrite))
		for _, c := range []struct {
			what         string
			iova, off, n uint64
			p            vfio.Prot
			want         error
		}{
			{"length", 0x200000, 0, 100, vfio.ProtRead, vfio.ErrAlignment},
			{"nothing", 0x200000, 0, 0, vfio.ProtRead, vfio.ErrAlignment},
			{"address", 0x200800, 0, 0x1000, vfio.ProtRead, vfio.ErrAlignment},
			{"place", 0x200000, 0x80, 0x1000, vfio.ProtRead, vfio.ErrAlignment},
			{"outside the memory", 0x200000, 0xf000, 0x2000, vfio.ProtRead, vfio.ErrInvalid},
			{"far outside", 0x200000, ^uint64(0xfff), 0x2000, vfio.ProtRead, vfio.ErrInvalid},
			{"no right", 0x200000, 0, 0x1000, 0, vfio.ErrInvalid},
			{"unknown right", 0x200000, 0, 0x1000, 8, vfio.ErrInvalid},
			{"overlap", 0x101000, 0, 0x2000, vfio.ProtRead, vfio.ErrExists},
			{"wraps", ^uint64(0xfff), 0, 0x2000, vfio.ProtRead, unix.EOVERFLOW},
		} {
			err := d.MapDMA(c.iova, m, c.off, c.n, c.p)
			wants(t, err, c.want, fmt.Sprintf("%#x+%#x", c.iova, c.n))
		}
		call := "VFIO_IOMMU_MAP_DMA"
		if d.Info().Backend == "iommufd" {
			call = "IOMMU_IOAS_MAP"
		}
		for errno, c := range map[unix.Errno]struct {
			want error
			says string
		}{
			unix.EFAULT: {vfio.ErrInvalid, "ProtRead"}, unix.EEXIST: {vfio.ErrExists, "overlaps"}, unix.EINVAL: {vfio.ErrInvalid, "0xfef00000"},
			unix.EOPNOTSUPP: {vfio.ErrNotSupported, "not this value"}, unix.ENOMEM: {unix.ENOMEM, "no memory to pin 4096 bytes"},
		} {
			k.Forget()
			k.Fail(call, errno)
			err := d.MapDMA(0x200000, m, 0, 0x1000, vfio.ProtRead)
			wants(t, err, c.want, c.says)
			if !errors.Is(err, errno) {
				t.Errorf("%v has lost %v", err, errno)
			}
		}
		k.Forget()
		must(t, d.UnmapDMA(0x100000, 0x2000))
		must(t, m.Close()) // no failed map holds it
		wants(t, d.MapDMA(0x200000, m, 0, 0, vfio.ProtRead), vfio.ErrAlignment)
	})
	// 64 KiB pages, as some arm64 kernels have.
	k := vfiotest.New(t, vfiotest.Machine{PageSizes: 1<<16 | 1<<29})
	k.Add(vfiotest.Function{Addr: bdf})
	d := mustOpen(t, k, bdf+"?vfio=type1")
	m := memory(t, 0x20000)
	wants(t, d.MapDMA(0x101000, m, 0, 0x10000, vfio.ProtRead), vfio.ErrAlignment, "0x10000")
	if d.PageSizes() != 1<<16|1<<29 {
		t.Errorf("page sizes %#x", d.PageSizes())
	}
}

// Row 12: an unmap equals a map, and the size that comes back is compared.
func TestVFIO_Unmap(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		m := memory(t, 0x4000)
		must(t, d.MapDMA(0x100000, m, 0, 0x4000, vfio.ProtRead))
		for _, c := range [][2]uint64{{0x100000, 0x1000}, {0x101000, 0x1000}, {0x100000, 0x5000}, {0x200000, 0x1000}, {0x100000, 0}, {0, ^uint64(0)}} {
			wants(t, d.UnmapDMA(c[0], c[1]), vfio.ErrNotMapped)
		}
		call := "VFIO_IOMMU_UNMAP_DMA"
		if d.Info().Backend == "iommufd" {
			call = "IOMMU_IOAS_UNMAP"
		}
		k.Do(vfiotest.Script{Call: call, Times: 1, Edit: func(b []byte) { binary.NativeEndian.PutUint64(b[16:], 0x1000) }})
		wants(t, d.UnmapDMA(0x100000, 0x4000), vfio.ErrProtocol, "0x1000 bytes")
		// The mapping counts as there, and the kernel has none: 0 bytes is no success.
		wants(t, d.UnmapDMA(0x100000, 0x4000), vfio.ErrProtocol, "0x0 bytes")
		if err := m.Close(); !errors.Is(err, vfio.ErrInUse) {
			t.Errorf("memory that may be mapped was freed: %v", err)
		}
		k.Fail(call, unix.EINTR)
		wants(t, d.UnmapDMA(0x100000, 0x4000), unix.EINTR)
		// What cannot be unmapped ends with the address space.
		must(t, d.Close())
		must(t, m.Close())
		wants(t, d.UnmapDMA(0x100000, 0x4000), vfio.ErrClosed)
	})
}

// Row 13: the limit is read, and its message has limit, count and remedy.
func TestVFIO_DMAEntryLimit(t *testing.T) {
	k := vfiotest.New(t, vfiotest.Machine{DMAEntryLimit: 64})
	k.Add(vfiotest.Function{Addr: bdf})
	d := mustOpen(t, k, bdf+"?vfio=type1")
	if d.MaxMappings() != 64 {
		t.Errorf("%d mappings at most", d.MaxMappings())
	}
	m := memory(t, 4096)
	for i := range uint64(64) {
		must(t, d.MapDMA(0x100000+i<<12, m, 0, 4096, vfio.ProtRead))
	}
	err := d.MapDMA(0x200000, m, 0, 4096, vfio.ProtRead)
	setup(t, err, vfio.CheckMappingLimit, vfio.ErrExhausted, "64 mappings are in use", "fewer than 64", "dma_entry_limit", "larger regions", "now 64")
	must(t, d.UnmapDMA(0x100000, 4096))
	must(t, d.MapDMA(0x200000, m, 0, 4096, vfio.ProtRead))
	must(t, d.Close())
	for _, w := range []string{"iommufd", "compat"} { // without a limit
		d := mustOpen(t, k, bdf+"?vfio="+w)
		if d.MaxMappings() != 1<<31-1 {
			t.Errorf("%s: %d mappings at most", w, d.MaxMappings())
		}
		must(t, d.Close())
	}
}

// Rows 14 and 15: needed, locked, limit and remedy, in bytes.
func TestVFIO_Memlock(t *testing.T) {
	m := vfiotest.Machine{Memlock: 65536, Locked: 8192}
	eachWay(t, m, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		mem := memory(t, 1<<20)
		must(t, d.MapDMA(0x100000, mem, 0, 4096, vfio.ProtRead))
		err := d.MapDMA(0x200000, mem, 0, 1<<20, vfio.ProtRead)
		setup(t, err, vfio.CheckMemlockLow, vfio.ErrPermission, "65536 bytes, of which this process has 12288 locked", "at least 1060864 bytes, for 1048576 more", "ulimit -l", "LimitMEMLOCK")
		if !errors.Is(err, unix.ENOMEM) {
			t.Errorf("%v has lost its errno", err)
		}
		if perUser := strings.Contains(err.Error(), "all processes of the user"); perUser != (d.Info().Backend != "type1v2") {
			t.Errorf("%s: %v", d.Info().Backend, err)
		}
		must(t, d.MapDMA(0x200000, mem, 0, 65536-12288, vfio.ProtRead))
		must(t, d.Close())
	})
}

// Mapping what is contiguous takes one call, whatever its size (rows 10, 13).
func TestVFIO_MapsAreWhole(t *testing.T) {
	eachWay(t, vfiotest.Machine{}, vfiotest.Function{}, func(t *testing.T, k *vfiotest.Kernel, f *vfiotest.Function, d *vfiopci.Device) {
		s, err := vfio.NewSpace(d, 40)
		must(t, err)
		m := memory(t, 8<<20)
		fill(m.Bytes(), 7)
		before := len(k.Calls())
		x, err := s.Map(m, 0, m.Size(), vfio.ProtReadWrite)
		must(t, err)
		if n := len(k.Calls()) - before; n != 1 || x.IOVA()%(2<<20) != 0 {
			t.Errorf("%d calls, at %#x", n, x.IOVA())
		}
		cfg, err := vfio.NewConfig(d)
		must(t, err)
		must(t, cfg.SetBusMaster(true))
		got := make([]byte, 100)
		must(t, f.ReadDMA(x.IOVA()+m.Size()-100, got))
		if !bytes.Equal(got, m.Bytes()[:100]) {
			t.Error("the last bytes differ")
		}
		must(t, x.Unmap())
	})
}
