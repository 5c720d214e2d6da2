package vfio

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/hw/mmio"
	"rnic/vfio/uapi"
)

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func TestAllocMemory(t *testing.T) {
	page := os.Getpagesize()
	m, err := AllocMemory(page+1, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Size() != uint64(2*page) || len(m.Bytes()) != 2*page || addr(m.Bytes())%uintptr(page) != 0 {
		t.Errorf("%d bytes at %#x", m.Size(), addr(m.Bytes()))
	}
	// What a peer relies on: the file keeps its size.
	seals, err := unix.FcntlInt(uintptr(m.FD()), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL; err != nil || seals != want {
		t.Errorf("seals %#x, %v, want %#x", seals, err, want)
	}
	if err := unix.Ftruncate(m.FD(), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrinking: %v", err)
	}
	flags, _ := unix.FcntlInt(uintptr(m.FD()), unix.F_GETFD, 0)
	if flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor is inherited")
	}
	// All pages are there before anything touches them, and not for children.
	smaps := mapping(t, addr(m.Bytes()))
	if got := field(t, smaps, "Rss"); got != 2*page/1024 {
		t.Errorf("%d KiB are resident, want %d", got, 2*page/1024)
	}
	if !regexp.MustCompile(`(?m)^VmFlags:.*\bdc\b`).MatchString(smaps) { // VM_DONTCOPY
		t.Errorf("memory is copied at fork:\n%s", smaps)
	}
	if err := m.Retain(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("%v", err)
	}
	m.Unretain()
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if err := m.Retain(); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	for _, n := range []int{0, -1, int(^uint(0) >> 1)} {
		if _, err := AllocMemory(n, MemoryOptions{}); err == nil {
			t.Errorf("%d bytes were allocated", n)
		}
	}
	if _, err := AllocMemory(1, MemoryOptions{NUMANodes: []int{5000}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("node 5000: %v", err)
	}
	n, err := AllocMemory(page, MemoryOptions{NUMANodes: []int{0}})
	if err != nil {
		t.Fatalf("node 0: %v", err)
	}
	_ = n.Close()
}

// mapping gives the smaps entry that begins at an address.
func mapping(t *testing.T, at uintptr) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("%x-", at)
	i := strings.Index("\n"+string(b), "\n"+head)
	if i < 0 {
		t.Fatalf("no mapping at %#x", at)
	}
	s := string(b)[i:]
	if k := strings.Index(s, "VmFlags"); k >= 0 {
		s = s[:k+strings.Index(s[k:], "\n")]
	}
	return s
}

func field(t *testing.T, s, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB`).FindStringSubmatch(s)
	if m == nil {
		t.Fatalf("no %s in:\n%s", name, s)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// Without huge pages in the pool the error comes at once and says what to do;
// with them they are used.
func TestAllocHugeMemory(t *testing.T) {
	m, err := AllocMemory(1, MemoryOptions{Huge: true})
	if err != nil {
		if !strings.Contains(err.Error(), "nr_hugepages") {
			t.Errorf("%v", err)
		}
		return
	}
	defer func() { _ = m.Close() }()
	if m.Size() != 2<<20 || field(t, mapping(t, addr(m.Bytes())), "KernelPageSize") != 2048 {
		t.Errorf("%d bytes:\n%s", m.Size(), mapping(t, addr(m.Bytes())))
	}
}

func TestWrapMemory(t *testing.T) {
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	m, err := WrapMemory(b[page : 3*page])
	if err != nil || m.Size() != uint64(2*page) || m.FD() != -1 {
		t.Fatalf("%v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	b[page] = 1 // it is the caller's still
	for _, bad := range [][]byte{nil, b[:0], b[1:], b[:page+1], b[100 : 100+page]} {
		if _, err := WrapMemory(bad); !errors.Is(err, ErrAlignment) || !strings.Contains(err.Error(), "AllocMemory") {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

// A goroutine that stores to and loads from a mapping while it is revoked sees
// the old words, then all ones, and no fault.
func TestRevokeUnderAccess(t *testing.T) {
	m := mustAlloc(t, 0x4000)
	defer func() { _ = m.Close() }()
	v, err := NewMapping(0x6000, []Area{{0x1000, 0x1000}, {0x3000, 0x1000}}, m.FD(), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	for off, mapped := range map[uint64]bool{0: false, 0xffc: false, 0x1000: true, 0x1ffc: true, 0x2000: false, 0x3ffc: true, 0x4000: false, 0x1002: false} {
		if got := v.Word32(off) != nil; got != mapped {
			t.Errorf("offset %#x mapped: %v", off, got)
		}
	}
	if v.Word64(0x1ffc) != nil || v.Word64(0x1ff8) == nil || v.Bytes(0x1800, 0x1000) != nil || v.Bytes(0x1000, 0) != nil ||
		v.Bytes(0x3000, ^uint64(0)) != nil || len(v.Bytes(0x3000, 0x1000)) != 0x1000 {
		t.Error("windows")
	}
	word := v.Word32(0x1100)
	mmio.Store32(word, 0x11223344)
	stop, started := make(chan struct{}), make(chan struct{}, 2)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := uint32(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if x := mmio.Load32(word); x != 0x11223344 && x != ^uint32(0) {
					t.Errorf("a load gave %#x", x)
					return
				}
				if n == 1000 {
					started <- struct{}{}
				}
			}
		})
	}
	<-started
	<-started
	if err := v.Revoke(); err != nil {
		t.Fatal(err)
	}
	if x := mmio.Load32(word); x != ^uint32(0) {
		t.Errorf("after revoking: %#x", x)
	}
	for i, x := range v.Bytes(0x3000, 0x1000) {
		if x != 0xff {
			t.Fatalf("byte %#x is %#x", i, x)
		}
	}
	close(stop)
	wg.Wait()
	mmio.Store32(word, 5)
	if got := m.Bytes()[0x1100]; got != 0x44 {
		t.Errorf("a store after revoking reached the device: %#x", got)
	}
	// Another revoked mapping still reads as ones: the store was private.
	w, err := NewMapping(0x2000, []Area{{0x1000, 0x1000}}, m.FD(), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Revoke(), w.Revoke()); err != nil {
		t.Fatal(err)
	}
	if x := mmio.Load32(w.Word32(0x1100)); x != ^uint32(0) {
		t.Errorf("a store to one revoked mapping is seen in another: %#x", x)
	}
	if err := errors.Join(v.Release(), v.Release(), w.Release(), v.Revoke()); err != nil {
		t.Error(err)
	}
	if v.Word32(0x1100) != nil {
		t.Error("a released mapping gives words")
	}
}

func TestNewMappingRefusals(t *testing.T) {
	m := mustAlloc(t, 0x4000)
	defer func() { _ = m.Close() }()
	for _, c := range []struct {
		size  uint64
		areas []Area
		base  uint64
	}{
		{1 << 60, nil, 0},
		{0x2000, []Area{{0x1000, 0x2000}}, 0},
		{0x2000, []Area{{0x800, 0x1000}}, 0},
		{0x2000, []Area{{0, 0x800}}, 0},
		{0x2000, []Area{{0, 0}}, 0},
		{0x4000, []Area{{0x1000, 0x1000}, {0x1000, 0x1000}}, 0},
		{0x4000, []Area{{0x2000, 0x1000}, {0x1000, 0x1000}}, 0},
		{0x4000, []Area{{0x1000, 0x1000}}, ^uint64(0xfff)},
		{0x4000, []Area{{0x1000, ^uint64(0xfff)}}, 0},
	} {
		if v, err := NewMapping(c.size, c.areas, m.FD(), c.base, true); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
			if v != nil {
				_ = v.Release()
			}
		}
	}
}

// A bug's fault is not swallowed.
func TestGuardLetsOthersPass(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a nil dereference was taken for a device's fault")
		}
	}()
	var p *int
	_ = Guard(func() { *p = 1 })
}

// Our numbers against the kernel's header, by the C compiler.
func TestKernelHeader(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler and linux/vfio.h")
	}
	type pair struct {
		name, c string
		go_     uint64
	}
	var pairs []pair
	add := func(c string, v uint64) { pairs = append(pairs, pair{c, c, v}) }
	for i, n := range []string{"BAR0", "BAR1", "BAR2", "BAR3", "BAR4", "BAR5", "ROM", "CONFIG", "VGA"} {
		add("VFIO_PCI_"+n+"_REGION_INDEX", []uint64{RegionBAR0, RegionBAR1, RegionBAR2, RegionBAR3, RegionBAR4, RegionBAR5, RegionROM, RegionConfig, RegionVGA}[i])
	}
	for i, n := range []string{"INTX", "MSI", "MSIX", "ERR", "REQ"} {
		add("VFIO_PCI_"+n+"_IRQ_INDEX", []uint64{IRQINTx, IRQMSI, IRQMSIX, IRQERR, IRQREQ}[i])
	}
	add("VFIO_PCI_NUM_REGIONS", NumPCIRegions)
	add("VFIO_PCI_NUM_IRQS", NumPCIIRQs)
	add("VFIO_REGION_INFO_FLAG_READ", uint64(RegionRead))
	add("VFIO_REGION_INFO_FLAG_WRITE", uint64(RegionWrite))
	add("VFIO_REGION_INFO_FLAG_MMAP", uint64(RegionMmap))
	add("VFIO_REGION_INFO_FLAG_CAPS", uint64(RegionCaps))
	add("VFIO_IRQ_INFO_EVENTFD", uint64(IRQEventFD))
	add("VFIO_IRQ_INFO_MASKABLE", uint64(IRQMaskable))
	add("VFIO_IRQ_INFO_AUTOMASKED", uint64(IRQAutomasked))
	add("VFIO_IRQ_INFO_NORESIZE", uint64(IRQNoResize))
	add("VFIO_DMA_MAP_FLAG_READ", uint64(ProtRead))
	add("VFIO_DMA_MAP_FLAG_WRITE", uint64(ProtWrite))
	add("VFIO_REGION_INFO_CAP_SPARSE_MMAP", uapi.VFIO_REGION_INFO_CAP_SPARSE_MMAP)
	add("sizeof(struct vfio_region_info)", RegionInfoSize)
	add("offsetof(struct vfio_region_info, flags)", 4)
	add("offsetof(struct vfio_region_info, index)", 8)
	add("offsetof(struct vfio_region_info, cap_offset)", 12)
	add("offsetof(struct vfio_region_info, size)", 16)
	add("offsetof(struct vfio_region_info, offset)", 24)
	add("sizeof(struct vfio_region_info_cap_sparse_mmap)", regionCapSparseSize)
	add("offsetof(struct vfio_region_info_cap_sparse_mmap, nr_areas)", 8)
	add("sizeof(struct vfio_region_sparse_mmap_area)", 16)
	add("PCI_COMMAND_MEMORY", CommandMemory)
	add("PCI_COMMAND_MASTER", CommandBusMaster)
	add("PCI_COMMAND_INTX_DISABLE", CommandINTxOff)
	add("PCI_STATUS_CAP_LIST", statusCapList)
	add("PCI_CAPABILITY_LIST", ConfigCapPtr)
	add("PCI_CLASS_PROG", ConfigClass)
	add("PCI_SUBSYSTEM_ID", ConfigSubsystem)
	add("PCI_CAP_ID_EXP", CapPCIExpress)
	add("PCI_CAP_ID_MSIX", CapMSIX)
	add("PCI_CAP_ID_MSI", CapMSI)
	add("PCI_EXP_DEVCAP", pcieDevCap)
	add("PCI_EXP_DEVCTL", pcieDevCtl)
	add("PCI_EXP_DEVSTA", pcieDevSta)
	add("PCI_EXP_DEVCAP_FLR", devCapFLR)
	add("PCI_EXP_DEVCTL_BCR_FLR", devCtlFLR)
	add("PCI_EXP_DEVSTA_TRPND", devStaTrans)
	var src strings.Builder
	src.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include <linux/vfio.h>\n#include <linux/pci_regs.h>\nint main(void) {\n")
	for _, p := range pairs {
		fmt.Fprintf(&src, "printf(\"%%llu\\n\", (unsigned long long)(%s));\n", p.c)
	}
	src.WriteString("return 0; }\n")
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	if err := os.WriteFile(file, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-o", bin, file).CombinedOutput(); err != nil {
		t.Skipf("the kernel's headers are not installed: %s", out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	if len(got) != len(pairs) {
		t.Fatalf("%d numbers, want %d", len(got), len(pairs))
	}
	for i, p := range pairs {
		if got[i] != strconv.FormatUint(p.go_, 10) {
			t.Errorf("%s is %s in the kernel's header, %d here", p.name, got[i], p.go_)
		}
	}
}
