package kerneltrace

import (
	"bytes"
	"encoding/binary"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rnic/vfio/uapi"
)

// record is what a program puts into the ring.
func record(t testing.TB, kind, command uint32, result int64, a, b uint64, data any) []byte {
	t.Helper()
	var w bytes.Buffer
	for _, v := range []any{uint64(5e9), uint64(1500), uint64(77)<<32 | 78, kind, command, result, a, b} {
		if err := binary.Write(&w, binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	switch d := data.(type) {
	case nil:
	case string:
		w.WriteString(d)
	default:
		if err := binary.Write(&w, binary.NativeEndian, d); err != nil {
			t.Fatal(err)
		}
	}
	if w.Len() > recordSize {
		t.Fatalf("a record of %d bytes", w.Len())
	}
	w.Write(make([]byte, recordSize-w.Len()))
	return w.Bytes()
}

// TestDecode: each kind of record. The structures are the kernel's, as vfio/uapi checks them against its headers.
func TestDecode(t *testing.T) {
	call := Event{Time: 5 * time.Second, PID: 77, Duration: 1500}
	with := func(f func(*Event)) Event { e := call; f(&e); return e }
	for _, c := range []struct {
		name string
		b    []byte
		want Event
		ok   bool
	}{
		{"map", record(t, recordIoctl, uapi.VFIO_IOMMU_MAP_DMA, 0, 0, 0, []uint64{32 | 3<<32, 0x7f0000001000, 0x100000, 0x2000}),
			with(func(e *Event) { e.Kind, e.Address, e.Size = Map, 0x100000, 0x2000 }), true},
		{"map refused", record(t, recordIoctl, uapi.VFIO_IOMMU_MAP_DMA, -12, 0, 0, []uint64{32 | 3<<32, 0x7f0000001000, 0x100000, 0x2000}),
			with(func(e *Event) { e.Kind, e.Address, e.Size, e.Err = Map, 0x100000, 0x2000, syscall.ENOMEM }), true},
		{"hot reset", record(t, recordIoctl, uapi.VFIO_DEVICE_PCI_HOT_RESET, 0, 0, 0, []uint32{16, 0, 1, 9}),
			with(func(e *Event) { e.Kind = HotReset }), true},
		{"unmap", record(t, recordIoctl, uapi.VFIO_IOMMU_UNMAP_DMA, 0, 0, 0, []uint64{24, 0x100000, 0x2000}),
			with(func(e *Event) { e.Kind, e.Address, e.Size = Unmap, 0x100000, 0x2000 }), true},
		{"QUERY_GFX_PLANE", record(t, recordIoctl, uapi.VFIO_IOMMU_UNMAP_DMA, 0, 0, 0, []uint64{64, 0, 0}), call, false},
		{"iommufd map", record(t, recordIoctl, uapi.IOMMU_IOAS_MAP, 0, 0, 0, []uint64{40 | 7<<32, 2, 0x7f0000001000, 0x3000, 0x200000}),
			with(func(e *Event) { e.Kind, e.Address, e.Size = Map, 0x200000, 0x3000 }), true},
		{"iommufd unmap", record(t, recordIoctl, uapi.IOMMU_IOAS_UNMAP, 0, 0, 0, []uint64{24 | 2<<32, 0x200000, 0x3000}),
			with(func(e *Event) { e.Kind, e.Address, e.Size = Unmap, 0x200000, 0x3000 }), true},
		{"device reset", record(t, recordIoctl, uapi.VFIO_DEVICE_RESET, -22, 0, 0, nil),
			with(func(e *Event) { e.Kind, e.Err = DeviceReset, syscall.EINVAL }), true},
		{"interrupt", record(t, recordInterrupt, 31, 0, 0, 0, "vfio-msix[4](0000:03:00.0)"),
			with(func(e *Event) {
				e.Kind, e.PID, e.Device, e.Detail = Interrupt, 0, "0000:03:00.0", "IRQ 31 vfio-msix[4](0000:03:00.0)"
			}), true},
		{"pin", record(t, recordPin, 0, 2, 0x7f0000001000, 512, nil),
			with(func(e *Event) { e.Kind, e.Address, e.Size = Pin, 0x7f0000001000, 8192 }), true},
		{"pin refused, as int", record(t, recordPin, 0, 0xfffffff2, 0x7f0000001000, 2, nil),
			with(func(e *Event) { e.Kind, e.Address, e.Size, e.Err = Pin, 0x7f0000001000, 8192, syscall.EFAULT }), true},
		{"reset", record(t, recordReset, 0, 0, 0, 0, "0000:03:00.0"), with(func(e *Event) { e.Kind, e.Device = Reset, "0000:03:00.0" }), true},
		{"release", record(t, recordRelease, 0, 0, 0, 0, nil), with(func(e *Event) { e.Kind = Release }), true},
	} {
		e, ok, err := decode(c.b, 4096)
		if err != nil || ok != c.ok || ok && !cmp.Equal(e, c.want) {
			t.Errorf("%s: %v %v %s", c.name, ok, err, cmp.Diff(c.want, e))
		}
	}
	for _, b := range [][]byte{nil, make([]byte, recordSize-1), make([]byte, recordSize)} {
		if e, _, err := decode(b, 4096); err == nil {
			t.Errorf("a record of %d zeroes gave %+v", len(b), e)
		}
	}
}

// TestFaultsInTheLog: lines that kernels wrote.
func TestFaultsInTheLog(t *testing.T) {
	for _, c := range []struct {
		line, device string
		address      uint64
	}{
		{"3,812,5123456,-;DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x120000000 [fault reason 0x06] PTE Read access is not set\n", "0000:00:01.0", 0x120000000},
		{"3,9,5123456,-;DMAR: [DMA Write NO_PASID] Request device [3a:1f.7] fault addr 0xfee01000 [fault reason 0x05] PTE Write access is not set\n SUBSYSTEM=x\n", "0000:3a:1f.7", 0xfee01000},
		{"3,9,5123456,-;virtio_iommu virtio0: page fault from EP 16 at 0x100000 [R]\n", "0000:00:02.0", 0x100000},
		{"4,9,5123456,-,caller=T1;vfio-pci 0000:00:02.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0000 address=0x1000 flags=0x0000]\n", "0000:00:02.0", 0x1000},
		{"4,9,5123456,-;AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:00:02.0 domain=0x0000 address=0xfe flags=0x0020]\n", "0000:00:02.0", 0xfe},
	} {
		e, ok := parseLog(c.line)
		if !ok || e.Kind != Fault || e.Device != c.device || e.Address != c.address || e.Time != 5123456*time.Microsecond || strings.Contains(e.Detail, "\n") {
			t.Errorf("%q: %v, %+v", c.line, ok, e)
		}
	}
	for _, line := range []string{
		"", ";", "6,1,2,-;eth0: link is up\n", "3,1;DMAR: [DMA Read] Request device [00:01.0] fault addr 0x1 ",
		"3,1,-5,-;DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x12 [",
		"3,1,9223372036854775807,-;DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x12 [",
		"3,1,5,-;DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x1ffffffffffffffff [",
		// Facility 1: a program wrote this into the log.
		"11,1,5,-;DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x12 [",
		"3,1,5,-;DMAR: DRHD: handling fault status reg 2",
	} {
		if e, ok := parseLog(line); ok {
			t.Errorf("%q: %+v", line, e)
		}
	}
}

// FuzzLog: whatever stands in the log is a fault with an address, or none.
func FuzzLog(f *testing.F) {
	f.Add("3,812,5123456,-;DMAR: [DMA Read NO_PASID] Request device [00:01.0] fault addr 0x120000000 [fault reason 0x06]")
	f.Add("3,9,5123456,-;virtio_iommu virtio0: page fault from EP 16 at 0x100000 [R]\n")
	f.Add("4,9,5123456,-;vfio-pci 0000:00:02.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0000 address=0x1000 flags=0x0000]")
	f.Fuzz(func(t *testing.T, line string) {
		if e, ok := parseLog(line); ok && (e.Kind != Fault || e.Time < 0 || strings.Contains(e.Detail, "\n")) {
			t.Errorf("%q: %+v", line, e)
		}
	})
}
