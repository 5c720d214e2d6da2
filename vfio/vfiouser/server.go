package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// DefaultTimeout bounds every wait for the peer that has no bound of its own.
const DefaultTimeout = 5 * time.Second

// DefaultDMATimeout bounds the wait for the client's answer to DMA by message.
// It is less than the 5 s after which QEMU gives up on a server.
const DefaultDMATimeout = 3 * time.Second

type options struct {
	timeout, dmaTimeout time.Duration
}

// Option changes a client or a server from the defaults.
type Option func(*options)

// WithTimeout bounds every wait for the peer; the default is DefaultTimeout.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithDMATimeout bounds a server's wait for the answer to DMA by message; the
// default is DefaultDMATimeout.
func WithDMATimeout(d time.Duration) Option { return func(o *options) { o.dmaTimeout = d } }

func buildOptions(opts []Option) options {
	o := options{timeout: DefaultTimeout, dmaTimeout: DefaultDMATimeout}
	for _, f := range opts {
		f(&o)
	}
	return o
}

// session is one client of a function.
type session struct {
	c       *conn
	f       Function
	h       *host
	lim     limits
	regions map[int]RegionSpec
	count   int // region indices
}

// Serve offers f to the client at the other end of conn until the client
// leaves (nil), the context ends, or the connection fails. It closes conn. f
// is attached to one client at a time: the caller sees to it.
func Serve(ctx context.Context, uc *net.UnixConn, f Function, opts ...Option) error {
	o := buildOptions(opts)
	c := newConn(uc, o.timeout)
	defer c.fail(vfio.ErrClosed)
	defer context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })()
	m, err := greet(c, o.timeout)
	if err != nil {
		return orderly(err)
	}
	return attend(c, m, f, o)
}

// orderly makes the end of a session that is none of anybody's fault nil.
func orderly(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("vfio-user: serve: %w", err)
}

// greet reads the client's VERSION.
func greet(c *conn, timeout time.Duration) (*message, error) {
	_ = c.uc.SetReadDeadline(time.Now().Add(timeout))
	m, err := c.read()
	if err != nil {
		if e := c.cause(); e != nil {
			err = e
		}
		return nil, err
	}
	_ = c.uc.SetReadDeadline(time.Time{})
	m.closeFDs() // none are expected
	if m.cmd != cmdVersion || m.reply() || m.flags&flagNoReply != 0 {
		return nil, protocolError("%v before VERSION", m.cmd)
	}
	return m, nil
}

// attend serves a client that has said VERSION, until its end.
func attend(c *conn, m *message, f Function, o options) error {
	s := &session{c: c, f: f}
	irqs := f.IRQs()
	if err := s.describe(f.Regions(), irqs); err != nil {
		return err
	}
	answer, lim, err := accept(m.body)
	if err != nil {
		c.answer(m, nil, nil, err)
		return orderly(err)
	}
	s.lim = lim
	s.h = newHost(c, lim, o.dmaTimeout)
	s.h.irqs.init(irqs)
	f.Attach(s.h)
	c.answer(m, answer, nil, nil)
	c.run(s.handle)
	c.running.Wait()
	s.h.close()
	f.Detach()
	return orderly(c.cause())
}

// describe checks and keeps what the function says of itself.
func (s *session) describe(regions []RegionSpec, irqs []IRQSpec) error {
	s.regions, s.count = make(map[int]RegionSpec), vfio.NumPCIRegions
	for _, r := range regions {
		bad := func(why string) error {
			return fmt.Errorf("vfio-user: serve: region %d: %s: %w", r.Index, why, vfio.ErrInvalid)
		}
		if r.Index < 0 || r.Index >= maxRegions || s.regions[r.Index].Size > 0 {
			return bad("index out of range or twice")
		}
		if len(r.IOFDs) > maxRegionInfo/ioFDSize {
			return bad("too many I/O descriptors")
		}
		page, end := uint64(os.Getpagesize()), uint64(0)
		for _, a := range r.Areas {
			if a.Offset < end || a.Size == 0 || a.Size > r.Size || a.Offset > r.Size-a.Size || a.Offset%page != 0 || a.Size%page != 0 {
				return bad(fmt.Sprintf("area %#x+%#x", a.Offset, a.Size))
			}
			end = a.Offset + a.Size
		}
		s.regions[r.Index] = r
		s.count = max(s.count, r.Index+1)
	}
	seen := make(map[int]bool)
	for _, q := range irqs {
		if q.Index < 0 || q.Index >= vfio.NumPCIIRQs || seen[q.Index] || q.Count < 0 || q.Count > maxVectors {
			return fmt.Errorf("vfio-user: serve: interrupt index %d with %d vectors: %w", q.Index, q.Count, vfio.ErrInvalid)
		}
		seen[q.Index] = true
	}
	return nil
}

// handle performs one command, on the handler's goroutine.
func (s *session) handle(m *message) {
	defer m.closeFDs()
	body, fds, err := s.perform(m)
	s.c.answer(m, body, fds, err)
}

func (s *session) perform(m *message) (body []byte, fds []int, err error) {
	if len(m.fds) > 0 && m.cmd != cmdDMAMap && m.cmd != cmdSetIRQs {
		return nil, nil, unix.EINVAL
	}
	switch m.cmd {
	case cmdDMAMap:
		return nil, nil, s.dmaMap(m)
	case cmdDMAUnmap:
		return s.dmaUnmap(m.body)
	case cmdGetInfo:
		return s.getInfo(m.body)
	case cmdGetRegionInfo:
		return s.getRegionInfo(m.body)
	case cmdGetIOFDs:
		return s.getIOFDs(m.body)
	case cmdGetIRQInfo:
		return s.getIRQInfo(m.body)
	case cmdSetIRQs:
		return nil, nil, s.setIRQs(m)
	case cmdRegionRead:
		return s.regionRead(m.body)
	case cmdRegionWrite:
		return s.regionWrite(m.body)
	case cmdWriteMulti:
		return s.writeMulti(m.body)
	case cmdReset:
		if len(m.body) != 0 {
			return nil, nil, unix.EINVAL
		}
		s.h.abandon(0, ^uint64(0))
		return nil, nil, s.mastering(func() error { s.f.Reset(); return nil })
	case cmdFeature, cmdMigRead, cmdMigWrite, cmdDirtyPages:
		// Migration and dirty pages are not offered.
		return nil, nil, unix.EOPNOTSUPP
	}
	return nil, nil, unix.EINVAL
}

// mastering runs f, which may turn bus mastering off: then the answer waits
// until no DMA is under way.
func (s *session) mastering(f func() error) error {
	on := s.h.master.Load()
	err := f()
	if on && !s.h.master.Load() {
		s.h.settle()
	}
	return err
}

func (s *session) dmaMap(m *message) error {
	b := m.body
	if len(b) != dmaMapSize || le.Uint32(b) < dmaMapSize || len(m.fds) > 1 {
		return unix.EINVAL
	}
	fd := -1
	if len(m.fds) == 1 {
		fd = m.fds[0]
	}
	return s.h.mapDMA(le.Uint64(b[16:]), le.Uint64(b[24:]), vfio.Prot(le.Uint32(b[4:])), fd, le.Uint64(b[8:]))
}

func (s *session) dmaUnmap(b []byte) ([]byte, []int, error) {
	if len(b) != dmaUnmapSize || le.Uint32(b) < dmaUnmapSize {
		return nil, nil, unix.EINVAL
	}
	flags, first, n := le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])
	last := first + (n - 1)
	switch {
	case flags == unmapAll && first == 0 && n == 0:
		last = ^uint64(0)
	case flags != 0:
		return nil, nil, unix.EOPNOTSUPP
	case n == 0:
		return nil, nil, unix.EINVAL
	case last < first: // QEMU's huge ranges may run over the end
		last = ^uint64(0)
	}
	if err := s.h.unmapDMA(first, last); err != nil {
		return nil, nil, err
	}
	out := slices.Clone(b) // the reply is the request's entry
	le.PutUint32(out, dmaUnmapSize)
	return out, nil, nil
}

func (s *session) getInfo(b []byte) ([]byte, []int, error) {
	if len(b) < deviceInfoSize || le.Uint32(b) < deviceInfoSize {
		return nil, nil, unix.EINVAL
	}
	return words(nil, deviceInfoSize, deviceReset|devicePCI, uint32(s.count), vfio.NumPCIIRQs), nil, nil
}

// region gives the spec of an index that the device has.
func (s *session) region(index uint32) (RegionSpec, error) {
	if uint64(index) >= uint64(s.count) {
		return RegionSpec{}, unix.EINVAL
	}
	r := s.regions[int(index)]
	r.Index = int(index)
	return r, nil
}

func (s *session) getRegionInfo(b []byte) ([]byte, []int, error) {
	if len(b) < vfio.RegionInfoSize || le.Uint32(b) < vfio.RegionInfoSize {
		return nil, nil, unix.EINVAL
	}
	r, err := s.region(le.Uint32(b[8:]))
	if err != nil {
		return nil, nil, err
	}
	out := vfio.AppendRegionInfo(nil, vfio.RegionInfo{Index: r.Index, Size: r.Size, Flags: r.Flags, Areas: r.Areas}, r.FileOffset)
	var fds []int
	if len(r.Areas) > 0 {
		fds = []int{r.FD}
	}
	if uint64(le.Uint32(b)) < uint64(len(out)) { // the client asks again, with room
		return out[:vfio.RegionInfoSize], nil, nil
	}
	return out, fds, nil
}

func (s *session) getIOFDs(b []byte) ([]byte, []int, error) {
	if len(b) < ioFDsSize || le.Uint32(b) < ioFDsSize || le.Uint32(b[4:]) != 0 || le.Uint32(b[12:]) != 0 {
		return nil, nil, unix.EINVAL
	}
	r, err := s.region(le.Uint32(b[8:]))
	if err != nil {
		return nil, nil, err
	}
	var fds []int
	out := words(nil, uint32(ioFDsSize+ioFDSize*len(r.IOFDs)), 0, uint32(r.Index), uint32(len(r.IOFDs)))
	for _, x := range r.IOFDs {
		i := slices.Index(fds, x.FD)
		if i < 0 {
			i, fds = len(fds), append(fds, x.FD)
		}
		out = dwords(out, x.Offset, x.Size)
		out = words(out, uint32(i), uint32(x.Type), x.Flags, 0)
		out = dwords(out, x.Data)
	}
	switch {
	case len(r.IOFDs) == 0:
		return nil, nil, unix.EOPNOTSUPP // a reply has at least one descriptor
	case uint64(le.Uint32(b)) < uint64(len(out)):
		return out[:ioFDsSize], nil, nil
	case len(fds) > s.lim.fds:
		return nil, nil, unix.E2BIG
	}
	return out, fds, nil
}

func (s *session) getIRQInfo(b []byte) ([]byte, []int, error) {
	if len(b) < irqInfoSize || le.Uint32(b) < irqInfoSize || le.Uint32(b[8:]) >= vfio.NumPCIIRQs {
		return nil, nil, unix.EINVAL
	}
	var q IRQSpec
	if x := s.h.irqs.indices[int(le.Uint32(b[8:]))]; x != nil {
		q = x.spec
	}
	return words(nil, irqInfoSize, uint32(q.Flags), le.Uint32(b[8:]), uint32(q.Count)), nil, nil
}

func (s *session) setIRQs(m *message) error {
	b := m.body
	if len(b) < irqSetSize || uint64(le.Uint32(b)) < irqSetSize {
		return unix.EINVAL
	}
	err := s.h.irqs.set(le.Uint32(b[4:]), uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[12:])), uint64(le.Uint32(b[16:])), b[irqSetSize:], m.fds)
	if err == nil {
		m.fds = nil // the table's now
	}
	return err
}

// window checks a region access.
func (s *session) window(b []byte, need vfio.RegionFlags) (r RegionSpec, off uint64, n int, err error) {
	if len(b) < regionRWSize {
		return r, 0, 0, unix.EINVAL
	}
	off = le.Uint64(b)
	count := uint64(le.Uint32(b[12:]))
	if r, err = s.region(le.Uint32(b[8:])); err != nil {
		return r, 0, 0, err
	}
	switch {
	case count > maxTransfer || off > r.Size || count > r.Size-off:
		return r, 0, 0, unix.EINVAL
	case r.Flags&need == 0:
		return r, 0, 0, unix.EACCES
	}
	return r, off, int(count), nil
}

func (s *session) regionRead(b []byte) ([]byte, []int, error) {
	r, off, n, err := s.window(b, vfio.RegionRead)
	if err != nil || len(b) != regionRWSize || n > s.lim.transfer {
		return nil, nil, orInvalid(err)
	}
	out := append(make([]byte, 0, regionRWSize+n), b...)[:regionRWSize+n]
	if n > 0 {
		if err := s.f.ReadRegion(r.Index, off, out[regionRWSize:]); err != nil {
			return nil, nil, err
		}
	}
	return out, nil, nil
}

func (s *session) regionWrite(b []byte) ([]byte, []int, error) {
	r, off, n, err := s.window(b, vfio.RegionWrite)
	if err != nil || len(b) != regionRWSize+n {
		return nil, nil, orInvalid(err)
	}
	if n > 0 {
		err = s.mastering(func() error { return s.f.WriteRegion(r.Index, off, b[regionRWSize:]) })
	}
	return b[:regionRWSize], nil, err
}

// writeMulti performs REGION_WRITE_MULTI. The count of the reply says how many
// of the writes were performed; the first that fails is the last attempted.
func (s *session) writeMulti(b []byte) ([]byte, []int, error) {
	if !s.lim.writeMultiple || len(b) < 8 || (len(b)-8)%writeMultiSize != 0 || le.Uint64(b) != uint64((len(b)-8)/writeMultiSize) {
		return nil, nil, unix.EINVAL
	}
	var done uint64
	for w := b[8:]; len(w) > 0; w = w[writeMultiSize:] {
		r, off, n, err := s.window(w[:regionRWSize], vfio.RegionWrite)
		if err == nil && n > 8 {
			err = unix.EINVAL
		}
		if err == nil && n > 0 {
			err = s.mastering(func() error { return s.f.WriteRegion(r.Index, off, w[regionRWSize:][:n]) })
		}
		if err != nil {
			if done == 0 {
				return nil, nil, err
			}
			break
		}
		done++
	}
	return dwords(nil, done), nil, nil
}

func orInvalid(err error) error {
	if err == nil {
		return unix.EINVAL
	}
	return err
}
