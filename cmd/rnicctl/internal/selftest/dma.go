package selftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/vfio"
)

// The DMA test engine's commands and its answer while it works or failed (CONTROL.DMA_TEST).
const (
	testRead  = 1
	testWrite = 2
	testFault = 0x80000000
)

const testBytes = 4096 // the test buffer

// prepare turns bus mastering on and makes the address space.
func (f *function) prepare() error {
	if err := errors.Join(f.useConfig(), f.useCtrl()); err != nil {
		return err
	}
	if f.space == nil {
		bits, err := f.ctrl.Read32(hw.RegIdentDMABits)
		if err != nil {
			return err
		}
		if f.space, err = vfio.NewSpace(f.dev, int(bits)); err != nil {
			return err
		}
	}
	return f.cfg.SetBusMaster(true)
}

// test runs the DMA test engine and gives its answer: ReasonNone, or why it failed.
func (f *function) test(ctx context.Context, command uint32, iova uint64, n uint32) (hw.Reason, error) {
	for _, err := range []error{
		f.ctrl.Write64(hw.RegControlDMATestIOVA, iova),
		f.ctrl.Write32(hw.RegControlDMATestLength, n),
		f.ctrl.Write32(hw.RegControlDMATest, command),
	} {
		if err != nil {
			return 0, err
		}
	}
	deadline := time.Now().Add(f.timeout)
	for {
		v, err := f.ctrl.Read32(hw.RegControlDMATest)
		switch {
		case err != nil:
			return 0, err
		case v == ^uint32(0):
			return 0, fmt.Errorf("CONTROL.DMA_TEST reads as all ones: %w", vfio.ErrGone)
		case v == 0:
			return hw.ReasonNone, nil
		case v&testFault != 0:
			return hw.Reason(v &^ testFault), nil
		case time.Now().After(deadline):
			return 0, fmt.Errorf("CONTROL.DMA_TEST is still %#x after %v: the access never ends: %w", v, f.timeout, vfio.ErrTimeout)
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// buffer is mapped memory for the test engine.
func (f *function) buffer(prot vfio.Prot) (*vfio.Memory, *vfio.DMA, error) {
	m, err := vfio.AllocMemory(2*testBytes, vfio.MemoryOptions{})
	if err != nil {
		return nil, nil, err
	}
	d, err := f.space.Map(m, 0, 2*testBytes, prot)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, d, nil
}

// pattern fills b with bytes that show where they came from.
func pattern(b []byte, seed uint32) {
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], (seed+uint32(i))*2654435761)
	}
}

// dmaRead lets the card read this machine's memory: right bytes at several alignments, a fault with
// its reason where it may not, and where bus mastering is off.
func (f *function) dmaRead(ctx context.Context) (found string, err error) {
	if err := f.prepare(); err != nil {
		return "", err
	}
	m, d, err := f.buffer(vfio.ProtRead)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.Unmap(), m.Close()) }()
	pattern(m.Bytes(), 1)
	for _, c := range []struct{ off, n uint32 }{{0, testBytes}, {1, 1}, {63, 130}, {testBytes - 8, 16}, {testBytes, testBytes}} {
		reason, err := f.test(ctx, testRead, d.IOVA()+uint64(c.off), c.n)
		if err != nil {
			return "", err
		}
		if reason != hw.ReasonNone {
			return "", fmt.Errorf("read of %d bytes at IOVA %#x (mapped): %v", c.n, d.IOVA()+uint64(c.off), reason)
		}
		got, err := f.ctrl.Read32(hw.RegControlDMATestCRC)
		if err != nil {
			return "", err
		}
		if want := crc32.ChecksumIEEE(m.Bytes()[c.off : c.off+c.n]); got != want {
			return "", fmt.Errorf("read of %d bytes at IOVA %#x: CRC-32 %#08x, of what is there %#08x", c.n, d.IOVA()+uint64(c.off), got, want)
		}
	}
	outside := f.outside(d)
	reason, err := f.test(ctx, testRead, outside, 64)
	if err != nil {
		return "", err
	}
	if reason != hw.ReasonDMARead {
		return "", fmt.Errorf("read at IOVA %#x, which is not mapped, ended with %v instead of %v: is the IOMMU on?", outside, reason, hw.ReasonDMARead)
	}
	if err := f.cfg.SetBusMaster(false); err != nil {
		return "", err
	}
	reason, err = f.test(ctx, testRead, d.IOVA(), 64)
	if err = errors.Join(err, f.cfg.SetBusMaster(true)); err != nil {
		return "", err
	}
	if reason != hw.ReasonDMARead {
		return "", fmt.Errorf("read with bus mastering off ended with %v instead of %v", reason, hw.ReasonDMARead)
	}
	return "right bytes; refused outside the mappings and without bus mastering", nil
}

// outside is a DMA address in range that is not mapped.
func (f *function) outside(d *vfio.DMA) uint64 { return d.IOVA() + d.Len() + 16*testBytes }

// dmaWrite lets the card write this machine's memory: what it read before, nowhere else; and not
// where the mapping is for reading, if the card can tell.
func (f *function) dmaWrite(ctx context.Context) (found string, err error) {
	if err := f.prepare(); err != nil {
		return "", err
	}
	src, sd, err := f.buffer(vfio.ProtRead)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, sd.Unmap(), src.Close()) }()
	dst, dd, err := f.buffer(vfio.ProtReadWrite)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dd.Unmap(), dst.Close()) }()
	pattern(src.Bytes(), 7)
	for _, c := range []struct{ off, n uint32 }{{0, testBytes}, {3, 1}, {61, 131}, {testBytes - 8, 16}} {
		if reason, err := f.test(ctx, testRead, sd.IOVA(), c.n); err != nil || reason != hw.ReasonNone {
			return "", fmt.Errorf("filling the test buffer by a read: %v, %w", reason, err)
		}
		pattern(dst.Bytes(), 99)
		want := bytes.Clone(dst.Bytes())
		copy(want[c.off:c.off+c.n], src.Bytes())
		reason, err := f.test(ctx, testWrite, dd.IOVA()+uint64(c.off), c.n)
		if err != nil {
			return "", err
		}
		if reason != hw.ReasonNone {
			return "", fmt.Errorf("write of %d bytes at IOVA %#x (mapped): %v", c.n, dd.IOVA()+uint64(c.off), reason)
		}
		if i := firstDifference(dst.Bytes(), want); i >= 0 {
			return "", fmt.Errorf("write of %d bytes at offset %d: byte %d is %#02x, should be %#02x", c.n, c.off, i, dst.Bytes()[i], want[i])
		}
	}
	caps, err := f.ctrl.Read64(hw.RegIdentCapabilities)
	if err != nil {
		return "", err
	}
	if hw.Capability(caps)&hw.CapabilityWriteFault == 0 {
		return "right bytes in place; this card cannot tell a refused write", nil
	}
	before := bytes.Clone(src.Bytes())
	reason, err := f.test(ctx, testWrite, sd.IOVA(), 64)
	if err != nil {
		return "", err
	}
	if reason != hw.ReasonDMAWrite || !bytes.Equal(before, src.Bytes()) {
		return "", fmt.Errorf("write to memory that is mapped for reading ended with %v instead of %v", reason, hw.ReasonDMAWrite)
	}
	return "right bytes in place; refused where it may only read", nil
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// vectors raises each interrupt vector and sees that it arrives, alone and once.
func (f *function) vectors(ctx context.Context) (found string, err error) {
	if err := f.prepare(); err != nil { // an MSI is a DMA write
		return "", err
	}
	irq, err := f.dev.IRQ(vfio.IRQMSIX)
	if err != nil {
		return "", err
	}
	want, err := f.ctrl.Read32(hw.RegIdentMSIXVectors)
	if err != nil {
		return "", err
	}
	if irq.Count != int(want) || irq.Count == 0 {
		return "", fmt.Errorf("%d MSI-X vectors, IDENT.MSIX_VECTORS says %d", irq.Count, want)
	}
	fds := make([]int, 0, irq.Count)
	defer func() {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	for range irq.Count {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return "", fmt.Errorf("eventfd: %w", err)
		}
		fds = append(fds, fd)
	}
	if err := f.dev.SetIRQs(vfio.IRQMSIX, 0, fds); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.dev.DisableIRQs(vfio.IRQMSIX)) }()
	for v := range fds {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if err := f.ctrl.Write32(hw.RegControlInterruptTest, uint32(v)); err != nil {
			return "", err
		}
		if err := await(fds[v], f.timeout); err != nil {
			return "", fmt.Errorf("vector %d of %d: %w", v, len(fds), err)
		}
		for other, fd := range fds {
			if n := take(fd); other == v && n != 1 || other != v && n != 0 {
				return "", fmt.Errorf("vector %d was raised once, vector %d arrived %d times", v, other, n)
			}
		}
	}
	return fmt.Sprintf("%d vectors, each alone and once", len(fds)), nil
}

// await waits until an eventfd can be read.
func await(fd int, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("nothing arrived in %v: %w", timeout, vfio.ErrTimeout)
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if n == 1 {
			return nil
		}
	}
}

// take reads and clears an eventfd.
func take(fd int) uint64 {
	var b [8]byte
	if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}
