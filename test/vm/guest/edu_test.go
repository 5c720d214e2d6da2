// Package guest holds tests that run in a virtual machine, whose kernel's VFIO
// drives functions that QEMU emulates. Built by go test -c without cgo, they are
// one static file. Where there is no such function they are skipped.
//
// The machine needs: -device edu (QEMU's docs/specs/edu.rst) behind an emulated
// IOMMU, bound to vfio-pci.
package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
	"rnic/vfio/vfiopci"
)

// Registers of edu (QEMU, docs/specs/edu.rst).
const (
	eduID       = 0x00
	eduLiveness = 0x04
	eduRaise    = 0x60
	eduAck      = 0x64
	eduSource   = 0x80
	eduDest     = 0x88
	eduCount    = 0x90
	eduCommand  = 0x98

	eduStart, eduToRAM, eduNotify = 1, 2, 4

	eduBuffer = 0x40000
	eduPiece  = 2048 // QEMU 7.2 ends itself over the buffer's last byte
)

// functions gives the functions with these IDs that are on vfio-pci.
func functions(t *testing.T, vendor, device string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/sys/bus/pci/drivers/vfio-pci/*:*:*.*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range dirs {
		v, _ := os.ReadFile(d + "/vendor")
		k, _ := os.ReadFile(d + "/device")
		if strings.TrimSpace(string(v)) == vendor && strings.TrimSpace(string(k)) == device {
			found = append(found, filepath.Base(d))
		}
	}
	return found
}

// ways are the ways to a function: those that RNIC_VFIO_WAYS names, separated by
// commas, else those that this kernel has.
func ways(t *testing.T) (list []string) {
	t.Helper()
	if w := os.Getenv("RNIC_VFIO_WAYS"); w != "" {
		return strings.Split(w, ",")
	}
	exists := func(paths ...string) bool {
		for _, p := range paths {
			if _, err := os.Stat(p); err != nil {
				return false
			}
		}
		return true
	}
	for w, needs := range map[string][]string{
		vfiopci.WayType1: {"/dev/vfio/vfio", "/sys/module/vfio_iommu_type1"}, vfiopci.WayIOMMUFD: {"/dev/iommu", "/dev/vfio/devices"}, vfiopci.WayCompat: {"/dev/iommu"},
	} {
		if exists(needs...) {
			list = append(list, w)
		}
	}
	slices.Sort(list)
	return list
}

// edu is one open edu function.
type edu struct {
	t   *testing.T
	dev vfio.Device
	cfg *vfio.Config
	bar *vfio.BAR
	s   *vfio.Space
}

// eachWay runs f on the function, opened by each way of the kernel.
func eachWay(t *testing.T, f func(e *edu)) {
	t.Helper()
	found := functions(t, "0x1234", "0x11e8")
	if len(found) == 0 {
		t.Skip("not in the guest: no edu function is bound to vfio-pci")
	}
	for _, w := range ways(t) {
		t.Run(w, func(t *testing.T) {
			e := openEdu(t, found[0]+"?vfio="+w)
			f(e)
		})
	}
}

// opened opens a function: QEMU may be slow to give it an address space.
func opened(t *testing.T, addr string) (vfio.Device, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return vfio.Open(ctx, addr)
}

func openEdu(t *testing.T, addr string) *edu {
	t.Helper()
	d, err := opened(t, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	e := &edu{t: t, dev: d}
	if e.cfg, err = vfio.NewConfig(d); err != nil {
		t.Fatal(err)
	}
	if e.bar, err = vfio.NewBAR(d, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.bar.Release() })
	// edu reaches 28 bits unless it is told otherwise.
	if e.s, err = vfio.NewSpace(d, 28); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *edu) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *edu) master(on bool) {
	e.t.Helper()
	e.must(e.cfg.SetBusMaster(on))
}

// dma has the function copy and waits for it, at most 10 s.
func (e *edu) dma(src, dst, n uint64, command uint64) {
	e.t.Helper()
	for _, r := range [][2]uint64{{eduSource, src}, {eduDest, dst}, {eduCount, n}, {eduCommand, command | eduStart}} {
		e.must(e.bar.Write64(r[0], r[1]))
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		v, err := e.bar.Read64(eduCommand)
		e.must(err)
		if v&eduStart == 0 {
			return
		}
		if time.Now().After(end) {
			e.t.Fatal("edu's DMA does not end")
		}
	}
}

// alloc allocates and maps memory.
func (e *edu) alloc(n int, p vfio.Prot) (*vfio.Memory, *vfio.DMA) {
	e.t.Helper()
	m, err := vfio.AllocMemory(n, vfio.MemoryOptions{})
	e.must(err)
	d, err := e.s.Map(m, 0, m.Size(), p)
	e.must(err)
	return m, d
}

func (e *edu) free(m *vfio.Memory, d *vfio.DMA) {
	e.t.Helper()
	e.must(d.Unmap())
	e.must(m.Close())
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func TestEduIdentity(t *testing.T) {
	eachWay(t, func(e *edu) {
		id, err := e.cfg.ID()
		e.must(err)
		if id.Vendor != 0x1234 || id.Device != 0x11e8 || id.Class != 0x00ff00 {
			t.Errorf("%+v", id)
		}
		if e.bar.Word32(0) == nil {
			t.Error("the BAR is not mapped")
		}
		for _, v := range []uint32{0, 0x12345678, 0xffffffff} {
			e.must(e.bar.Write32(eduLiveness, v))
			// By the mapping, and by the kernel's read: the same register.
			got, err := e.bar.Read32(eduLiveness)
			e.must(err)
			var b [4]byte
			e.must(e.dev.ReadRegion(0, eduLiveness, b[:]))
			if got != ^v || binary.LittleEndian.Uint32(b[:]) != ^v {
				t.Errorf("wrote %#x, mapped %#x, read %#x; want its inverse", v, got, b)
			}
		}
		if v := e.bar.Load32(eduID); v != 0x010000ed {
			t.Errorf("identification %#x", v)
		}
		cmd, err := e.cfg.Read16(vfio.ConfigCommand)
		e.must(err)
		if cmd&vfio.CommandMemory == 0 || cmd&vfio.CommandBusMaster != 0 {
			t.Errorf("command register %#x after open; want memory on, bus master off", cmd)
		}
		t.Logf("%s: %+v, addresses %v, page sizes %#x, %d mappings", e.dev.Addr(), e.dev.Info(), e.dev.IOVARanges(), e.dev.PageSizes(), e.dev.MaxMappings())
	})
}

func TestEduDMABothWays(t *testing.T) {
	eachWay(t, func(e *edu) {
		e.master(true)
		a, da := e.alloc(64<<10, vfio.ProtRead)
		b, db := e.alloc(64<<10, vfio.ProtReadWrite)
		fill(a.Bytes(), 1)
		lastByte := uint64(4095)
		if os.Getenv("RNIC_VM_IOMMU") == "virtio" {
			// QEMU's virtio-iommu looks for the mapping of an access's first byte and the one after it
			// (virtio_iommu_translate), and may find the next page's: DMA that begins with a page's last byte goes astray.
			lastByte--
		}
		for _, c := range []struct{ from, to, n uint64 }{
			{0, 0, eduPiece}, {4096 - 100, 8192 - 33, 1000}, {60 << 10, 17, 2047}, {1, lastByte, 1}, {lastByte, 4094, 2},
		} {
			fill(b.Bytes(), 2)
			want := bytes.Clone(b.Bytes())
			copy(want[c.to:c.to+c.n], a.Bytes()[c.from:])
			e.dma(da.IOVA()+c.from, eduBuffer, c.n, 0)
			e.dma(eduBuffer, db.IOVA()+c.to, c.n, eduToRAM)
			for i, v := range b.Bytes() {
				if v != want[i] {
					t.Errorf("%+v: byte %#x is %#x, want %#x", c, i, v, want[i])
				}
			}
		}
		e.free(a, da)
		e.free(b, db)
	})
}

// What is not mapped, or mapped for reading only, or asked for by a function
// that may not, does not change.
func TestEduIsBehindTheIOMMU(t *testing.T) {
	eachWay(t, func(e *edu) {
		e.master(true)
		a, da := e.alloc(4096, vfio.ProtReadWrite)
		fill(a.Bytes(), 3)
		e.dma(da.IOVA(), eduBuffer, eduPiece, 0) // something to write
		try := func(what string, m *vfio.Memory, iova uint64, changes bool) {
			t.Helper()
			fill(m.Bytes(), 4)
			before := bytes.Clone(m.Bytes())
			e.dma(eduBuffer, iova, 512, eduToRAM)
			if changed := !bytes.Equal(before, m.Bytes()); changed != changes {
				t.Errorf("%s: changed %v, want %v", what, changed, changes)
			}
		}
		b, db := e.alloc(4096, vfio.ProtReadWrite)
		try("mapped", b, db.IOVA(), true)
		e.master(false)
		try("bus mastering off", b, db.IOVA(), false)
		e.master(true)
		e.must(db.Unmap())
		try("unmapped", b, db.IOVA(), false)
		e.must(b.Close())
		r, dr := e.alloc(4096, vfio.ProtRead)
		try("read-only", r, dr.IOVA(), false)
		e.free(r, dr)
		e.free(a, da)
	})
}

// awaitEvent reads an eventfd, waiting at most 10 s for it.
func awaitEvent(fd int) (uint64, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 10000); err != nil || n != 1 {
		return 0, fmt.Errorf("no event within 10 s (%w)", err)
	}
	var b [8]byte
	_, err := unix.Read(fd, b[:])
	return binary.NativeEndian.Uint64(b[:]), err
}

func TestEduMSI(t *testing.T) {
	eachWay(t, func(e *edu) {
		q, err := e.dev.IRQ(vfio.IRQMSI)
		e.must(err)
		if q.Count != 1 || q.Flags&vfio.IRQEventFD == 0 {
			t.Fatalf("MSI %+v", q)
		}
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		e.must(err)
		defer unix.Close(fd)
		e.must(e.dev.SetIRQs(vfio.IRQMSI, 0, []int{fd}))
		e.must(e.dev.TriggerIRQs(vfio.IRQMSI, 0, 1)) // the kernel's loopback
		if n, err := awaitEvent(fd); err != nil || n != 1 {
			t.Errorf("loopback: %d, %v", n, err)
		}
		e.master(true)
		e.must(e.bar.Write32(eduRaise, 1))
		if n, err := awaitEvent(fd); err != nil || n != 1 {
			t.Errorf("raised by the function: %d, %v", n, err)
		}
		e.must(e.bar.Write32(eduAck, 1))
		m, d := e.alloc(4096, vfio.ProtRead)
		e.dma(d.IOVA(), eduBuffer, 64, eduNotify)
		if n, err := awaitEvent(fd); err != nil || n != 1 {
			t.Errorf("at the end of DMA: %d, %v", n, err)
		}
		e.must(e.bar.Write32(eduAck, 0x100))
		if err := e.dev.SetIRQs(vfio.IRQINTx, 0, []int{fd}); !errors.Is(err, vfio.ErrInUse) {
			t.Errorf("INTx beside MSI: %v", err)
		}
		e.must(e.dev.DisableIRQs(vfio.IRQMSI))
		e.must(e.dev.DisableIRQs(vfio.IRQMSI))
		e.must(e.bar.Write32(eduRaise, 1))
		if n, err := unix.Read(fd, make([]byte, 8)); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("after DisableIRQs: %d, %v", n, err)
		}
		e.must(e.bar.Write32(eduAck, 1))
		e.free(m, d)
	})
}

// The kernel's own refusals come as the errors that the package promises.
func TestEduMapErrors(t *testing.T) {
	eachWay(t, func(e *edu) {
		m, err := vfio.AllocMemory(64<<10, vfio.MemoryOptions{})
		e.must(err)
		const page = 4096
		e.must(e.dev.MapDMA(0x100000, m, 0, 4*page, vfio.ProtReadWrite))
		ranges := e.dev.IOVARanges()
		last := ranges[len(ranges)-1].Last
		for _, c := range []struct {
			what    string
			iova, n uint64
			want    error
		}{
			{"overlap", 0x100000 + page, page, vfio.ErrExists},
			{"the interrupts' window", 0xfee00000, page, vfio.ErrInvalid},
			{"no whole page", 0x200000, 100, vfio.ErrAlignment},
			{"beyond the last address", last + 1, page, vfio.ErrInvalid},
			{"wraps", ^uint64(0) - page + 1, 2 * page, vfio.ErrInvalid},
		} {
			err := e.dev.MapDMA(c.iova, m, 0, c.n, vfio.ProtReadWrite)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		top := last &^ (page - 1)
		e.must(e.dev.MapDMA(top, m, 0, page, vfio.ProtReadWrite)) // the last page works
		e.must(e.dev.UnmapDMA(top, page))
		for _, c := range [][2]uint64{{0x100000, page}, {0x100000 + page, page}, {0x800000, page}, {0x100000, 5 * page}} {
			if err := e.dev.UnmapDMA(c[0], c[1]); !errors.Is(err, vfio.ErrNotMapped) {
				t.Errorf("unmap %#x: %v", c, err)
			}
		}
		if err := m.Close(); !errors.Is(err, vfio.ErrInUse) {
			t.Errorf("closing mapped memory: %v", err)
		}
		e.must(e.dev.UnmapDMA(0x100000, 4*page))
		e.must(m.Close())
		// Memory that this program may only read cannot be given for writing.
		ro, err := unix.Mmap(-1, 0, page, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		e.must(err)
		defer unix.Munmap(ro)
		w, err := vfio.WrapMemory(ro)
		e.must(err)
		if err := e.dev.MapDMA(0x100000, w, 0, page, vfio.ProtReadWrite); !errors.Is(err, vfio.ErrInvalid) || !errors.Is(err, unix.EFAULT) {
			t.Errorf("read-only memory for writing: %v", err)
		}
		e.must(w.Close())
	})
}

// A second opener is told who holds the function; one that closed it is not in
// the way.
func TestEduHasOneHolder(t *testing.T) {
	eachWay(t, func(e *edu) {
		bdf, _, _ := strings.Cut(e.dev.Addr(), "?")
		for _, w := range ways(t) {
			d, err := opened(t, bdf+"?vfio="+w)
			var busy *vfio.BusyError
			if !errors.Is(err, vfio.ErrBusy) || !errors.As(err, &busy) || busy.PID != os.Getpid() {
				t.Errorf("%s while %s holds it: %v", w, e.dev.Info().Backend, err)
			}
			if err == nil {
				_ = d.Close()
			}
		}
		e.must(e.dev.Close())
		d, err := opened(t, bdf) // by what the machine has
		e.must(err)
		e.must(d.Close())
	})
}

// No descriptor of VFIO outlives an exec.
func TestEduDescriptorsCloseOnExec(t *testing.T) {
	eachWay(t, func(e *edu) {
		fds, err := os.ReadDir("/proc/self/fd")
		e.must(err)
		seen := 0
		for _, fd := range fds {
			to, err := os.Readlink("/proc/self/fd/" + fd.Name())
			if err != nil || !strings.Contains(to, "vfio") && !strings.Contains(to, "/dev/iommu") {
				continue
			}
			seen++
			info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
			e.must(err)
			var pos, flags int64
			if _, err := fmt.Sscanf(string(info), "pos: %d\nflags: %o", &pos, &flags); err != nil || flags&unix.O_CLOEXEC == 0 {
				t.Errorf("%s: flags %#o (%v)", to, flags, err)
			}
		}
		if seen < 2 {
			t.Errorf("%d descriptors of VFIO were found", seen)
		}
	})
}

// 30 times open, use, close: nothing is left behind.
func TestEduReopen(t *testing.T) {
	eachWay(t, func(e *edu) {
		e.must(e.dev.Close())
		count := func() int { l, _ := os.ReadDir("/proc/self/fd"); return len(l) }
		before := count()
		for i := range 30 {
			d, err := opened(t, e.dev.Addr())
			e.must(err)
			m, err := vfio.AllocMemory(4096, vfio.MemoryOptions{})
			e.must(err)
			e.must(d.MapDMA(0x100000, m, 0, 4096, vfio.ProtReadWrite))
			e.must(d.Close()) // with the mapping
			if err := m.Close(); err != nil {
				t.Fatalf("turn %d: %v", i, err)
			}
		}
		if n := count(); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
	})
}
