package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

func init() {
	vfio.Register("vfio-user", func(ctx context.Context, path string) (vfio.Device, error) {
		return Dial(ctx, path)
	})
}

// eventBacklog is how many unread events a device keeps. The last place is
// EventGone's; requests and errors beyond it merge with those already there.
const eventBacklog = 16

// Device is a vfio.Device behind a vfio-user server. Beside the interface it
// has what only this protocol has.
type Device struct {
	c       *conn
	addr    string
	timeout time.Duration
	info    vfio.DeviceInfo
	lim     limits
	dma     clientDMA

	mu       sync.Mutex
	regions  map[int]vfio.RegionInfo
	mappings []*vfio.Mapping
	err      error // set before done is closed

	events   chan vfio.Event
	eventFDs []*vfio.EventFD
	watching sync.WaitGroup
	done     chan struct{}
	closed   sync.Once
}

var _ vfio.Device = (*Device)(nil)

// Dial connects to the server at a socket's path and opens its function. The
// context, or the timeout of the options, bounds it.
func Dial(ctx context.Context, path string, opts ...Option) (*Device, error) {
	addr := "vfio-user:" + path
	ctx, cancel := context.WithTimeout(ctx, buildOptions(opts).timeout)
	defer cancel()
	var d net.Dialer
	uc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
			err = fmt.Errorf("%w: %w; is the server running?", vfio.ErrNotFound, err)
		case errors.Is(err, unix.EACCES):
			err = fmt.Errorf("%w: %w", vfio.ErrPermission, err)
		case ctx.Err() != nil:
			err = fmt.Errorf("%w: %w", vfio.ErrTimeout, err)
		}
		return nil, &vfio.Error{Addr: addr, Op: "open", Err: err}
	}
	return Client(ctx, uc.(*net.UnixConn), addr, opts...)
}

// Client opens the function at the other end of a connected socket, which it
// owns and closes. addr is the address that the device will give as its own.
func Client(ctx context.Context, uc *net.UnixConn, addr string, opts ...Option) (*Device, error) {
	o := buildOptions(opts)
	d := &Device{
		c: newConn(uc, o.timeout), addr: addr, timeout: o.timeout,
		regions: make(map[int]vfio.RegionInfo),
		events:  make(chan vfio.Event, eventBacklog), done: make(chan struct{}),
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := d.negotiate(ctx); err != nil {
		d.c.fail(err)
		return nil, d.fail("open", "", err)
	}
	d.dma.init()
	d.c.run(d.handle)
	d.watching.Go(d.watch)
	if err := d.setup(ctx); err != nil {
		err = d.fail("open", "", err)
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// negotiate exchanges VERSION, before the goroutines run.
func (d *Device) negotiate(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { d.c.fail(timeoutOf(ctx)) })
	defer stop()
	ours := ourCapabilities()
	ours.Holder = &holder{}
	body, err := encodeVersion(versionMinor, ours)
	if err != nil {
		return err
	}
	if _, err := d.c.send(ctx, header{cmd: cmdVersion}, body, nil); err != nil {
		return err
	}
	m, err := d.c.read()
	if err != nil {
		if e := d.c.cause(); e != nil {
			err = e
		}
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: the server closed the connection instead of answering VERSION", vfio.ErrGone)
		}
		return err
	}
	m.closeFDs()
	switch {
	case !m.reply() || m.cmd != cmdVersion || m.id != 0:
		return protocolError("%v instead of the reply to VERSION", m.cmd)
	case m.flags&flagError != 0:
		return errorOf(m.errno)
	}
	d.lim, err = agree(m.body)
	return err
}

// setup asks what the device is and connects its events.
func (d *Device) setup(ctx context.Context) error {
	m, err := d.c.call(ctx, cmdGetInfo, words(nil, deviceInfoSize, 0, 0, 0))
	if err != nil {
		return err
	}
	m.closeFDs()
	if len(m.body) < deviceInfoSize {
		return protocolError("device info of %d bytes", len(m.body))
	}
	flags, regions, irqs := le.Uint32(m.body[4:]), le.Uint32(m.body[8:]), le.Uint32(m.body[12:])
	if regions > maxRegions || irqs > maxIRQIndices {
		return protocolError("%d regions, %d interrupt indices", regions, irqs)
	}
	d.info = vfio.DeviceInfo{
		Backend: "vfio-user", PCI: flags&devicePCI != 0, Reset: flags&deviceReset != 0,
		NumRegions: int(regions), NumIRQs: int(irqs),
	}
	for _, e := range []struct {
		irq   int
		event vfio.Event
	}{{vfio.IRQREQ, vfio.EventRequest}, {vfio.IRQERR, vfio.EventError}} {
		if e.irq >= d.info.NumIRQs {
			continue
		}
		q, err := d.irq(ctx, e.irq)
		if err != nil {
			return err
		}
		if q.Count == 0 || q.Flags&vfio.IRQEventFD == 0 {
			continue
		}
		f, err := vfio.NewEventFD("vfio event")
		if err != nil {
			return err
		}
		d.eventFDs = append(d.eventFDs, f)
		if err := d.setIRQs(ctx, e.irq, 0, []int{f.FD()}); err != nil {
			return err
		}
		d.watching.Go(func() {
			for {
				if err := f.Wait(); err != nil {
					return // closed
				}
				if len(d.events) < eventBacklog-2 { // two of us look at once
					d.events <- e.event
				}
			}
		})
	}
	return nil
}

// watch waits for the end and makes it known: mappings are revoked first.
func (d *Device) watch() {
	<-d.c.done
	d.c.running.Wait()
	d.mu.Lock()
	for _, m := range d.mappings {
		_ = m.Revoke() // what cannot be revoked still maps the server's memory, harmlessly
	}
	d.mappings = nil
	d.err = d.gone(d.c.cause())
	d.mu.Unlock()
	d.dma.close()
	d.events <- vfio.EventGone // its place is kept
	close(d.done)
}

// gone turns the end of the connection into what the caller needs to know.
func (d *Device) gone(cause error) error {
	switch {
	case errors.Is(cause, vfio.ErrClosed), errors.Is(cause, vfio.ErrGone):
		return cause
	case errors.Is(cause, io.EOF), errors.Is(cause, unix.ECONNRESET), errors.Is(cause, unix.EPIPE):
		return fmt.Errorf("%w: the server closed the connection", vfio.ErrGone)
	}
	return fmt.Errorf("%w: %w", vfio.ErrGone, cause)
}

// fail makes the error of an operation. Once the connection has ended, that is
// the cause.
func (d *Device) fail(op, object string, err error) error {
	if cause := d.c.cause(); cause != nil && !errors.Is(err, vfio.ErrBusy) {
		err = d.gone(cause)
	}
	return &vfio.Error{Addr: d.addr, Op: op, Object: object, Err: err}
}

// call does a command under the device's timeout. A server that does not
// answer in it is as good as gone: the order of answers means that no later
// one would come either.
func (d *Device) call(cmd command, body []byte, fds ...int) (*message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	return d.callCtx(ctx, cmd, body, fds...)
}

func (d *Device) callCtx(ctx context.Context, cmd command, body []byte, fds ...int) (*message, error) {
	m, err := d.c.call(ctx, cmd, body, fds...)
	if errors.Is(err, vfio.ErrTimeout) {
		d.c.fail(fmt.Errorf("%v: %w", cmd, err))
	}
	return m, err
}

// Addr implements vfio.Device.
func (d *Device) Addr() string { return d.addr }

// Info implements vfio.Device.
func (d *Device) Info() vfio.DeviceInfo { return d.info }

// Region implements vfio.Device. Areas that cannot be mapped safely (their
// file is not sealed against shrinking) are not listed.
func (d *Device) Region(i int) (vfio.RegionInfo, error) {
	d.mu.Lock()
	r, ok := d.regions[i]
	d.mu.Unlock()
	if ok {
		r.Areas = slices.Clone(r.Areas)
		return r, d.alive("describe region", fmt.Sprint(i))
	}
	r, _, fd, err := d.regionInfo(i)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return r, err
}

// alive is nil while the connection stands.
func (d *Device) alive(op, object string) error {
	if d.c.cause() == nil {
		return nil
	}
	return d.fail(op, object, nil)
}

// regionInfo asks the server for a region and its file, which is the caller's
// to close; -1 where there is nothing to map.
func (d *Device) regionInfo(i int) (r vfio.RegionInfo, fileOffset uint64, fd int, err error) {
	fail := func(err error) (vfio.RegionInfo, uint64, int, error) {
		return vfio.RegionInfo{}, 0, -1, d.fail("describe region", fmt.Sprint(i), err)
	}
	if i < 0 || i >= d.info.NumRegions {
		return fail(fmt.Errorf("%w: it has %d regions", vfio.ErrNotFound, d.info.NumRegions))
	}
	size := uint32(1024) // enough for the sparse areas of an ordinary region
	var m *message
	for {
		m, err = d.call(cmdGetRegionInfo, dwords(words(nil, size, 0, uint32(i), 0), 0, 0))
		if err != nil {
			return fail(err)
		}
		if len(m.body) < vfio.RegionInfoSize {
			m.closeFDs()
			return fail(protocolError("region info of %d bytes", len(m.body)))
		}
		if want := le.Uint32(m.body); want > size && size == 1024 && want <= maxRegionInfo {
			m.closeFDs()
			size = want
			continue
		}
		break
	}
	defer m.closeFDs()
	if want := le.Uint32(m.body); want > size || int(want) > len(m.body) {
		return fail(protocolError("region info of %d bytes, %d came", want, len(m.body)))
	}
	if r, fileOffset, err = vfio.ParseRegionInfo(m.body); err != nil {
		return fail(err)
	}
	switch {
	case r.Index != i:
		return fail(protocolError("asked for region %d, got %d", i, r.Index))
	case len(m.fds) > 1:
		return fail(protocolError("%d descriptors for one region", len(m.fds)))
	case len(m.fds) == 0 || !mappable(m.fds[0], fileOffset, r):
		r.Areas, r.Flags = nil, r.Flags&^vfio.RegionMmap
	}
	fd = -1
	if len(r.Areas) > 0 {
		fd, m.fds = m.fds[0], nil
	}
	d.mu.Lock()
	d.regions[i] = r
	d.mu.Unlock()
	r.Areas = slices.Clone(r.Areas)
	return r, fileOffset, fd, nil
}

// maxMapped is how much of a region is mapped. The number of mappings of a
// process is limited, and one that is revoked takes one for every 2 MiB: a
// server that names more has the rest of its client fail.
const maxMapped = 4 << 30

// mappable says whether a region's file can be mapped without fear: whole
// pages, not too many, sealed against shrinking, large enough for every area.
func mappable(fd int, fileOffset uint64, r vfio.RegionInfo) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	var st unix.Stat_t
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || unix.Fstat(fd, &st) != nil {
		return false
	}
	page, left := uint64(os.Getpagesize()), uint64(maxMapped)
	for _, a := range r.Areas {
		if a.Size > left {
			return false
		}
		left -= a.Size
		end := fileOffset + a.Offset + a.Size
		if a.Offset%page != 0 || a.Size%page != 0 || (fileOffset+a.Offset)%page != 0 || end < fileOffset || end > uint64(st.Size) {
			return false
		}
	}
	return true
}

// MapRegion implements vfio.Device.
func (d *Device) MapRegion(i int) (*vfio.Mapping, error) {
	r, off, fd, err := d.regionInfo(i)
	if err != nil {
		return nil, err
	}
	if fd >= 0 {
		defer func() { _ = unix.Close(fd) }()
	}
	m, err := vfio.NewMapping(r.Size, r.Areas, fd, off, r.Flags&vfio.RegionWrite != 0)
	if err != nil {
		return nil, d.fail("map region", fmt.Sprint(i), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil || d.c.cause() != nil {
		_ = m.Release()
		return nil, d.fail("map region", fmt.Sprint(i), vfio.ErrGone)
	}
	d.mappings = slices.DeleteFunc(d.mappings, (*vfio.Mapping).Released)
	d.mappings = append(d.mappings, m)
	return m, nil
}

// ReadRegion implements vfio.Device.
func (d *Device) ReadRegion(i int, off uint64, p []byte) error {
	return d.transfer(cmdRegionRead, i, off, p)
}

// WriteRegion implements vfio.Device.
func (d *Device) WriteRegion(i int, off uint64, p []byte) error {
	return d.transfer(cmdRegionWrite, i, off, p)
}

func (d *Device) transfer(cmd command, i int, off uint64, p []byte) error {
	op := "read region"
	if cmd == cmdRegionWrite {
		op = "write region"
	}
	fail := func(err error) error {
		return d.fail(op, fmt.Sprintf("%d offset %#x length %d", i, off, len(p)), err)
	}
	r, err := d.Region(i)
	switch {
	case err != nil:
		return err
	case off > r.Size || uint64(len(p)) > r.Size-off:
		return fail(fmt.Errorf("%w (size %#x)", vfio.ErrRange, r.Size))
	}
	for at := off; len(p) > 0; {
		n := min(len(p), d.lim.transfer)
		req := words(dwords(make([]byte, 0, regionRWSize+n), at), uint32(i), uint32(n))
		body, want := req, regionRWSize+n
		if cmd == cmdRegionWrite {
			body, want = append(req, p[:n]...), regionRWSize
		}
		m, err := d.call(cmd, body)
		if err != nil {
			return fail(err)
		}
		m.closeFDs()
		if len(m.body) != want || !slices.Equal(m.body[:regionRWSize], req[:regionRWSize]) {
			return fail(protocolError("reply of %d bytes to a transfer of %d", len(m.body), n))
		}
		if cmd == cmdRegionRead {
			copy(p, m.body[regionRWSize:])
		}
		at, p = at+uint64(n), p[n:]
	}
	return nil
}

// Reset implements vfio.Device. A reset may take any time: only the context
// bounds it, and its end does not harm the device.
func (d *Device) Reset(ctx context.Context) error {
	if !d.info.Reset {
		return d.fail("reset", "", vfio.ErrNotSupported)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	m, err := d.c.call(ctx, cmdReset, nil)
	if err != nil {
		return d.fail("reset", "", err)
	}
	m.closeFDs()
	return nil
}

// Events implements vfio.Device.
func (d *Device) Events() <-chan vfio.Event { return d.events }

// Done implements vfio.Device.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err implements vfio.Device.
func (d *Device) Err() error {
	select {
	case <-d.done:
	default:
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &vfio.Error{Addr: d.addr, Op: "use device", Err: d.err}
}

// Close implements vfio.Device. The server sees the client leave, resets the
// function and forgets its mappings.
func (d *Device) Close() error {
	d.closed.Do(func() {
		d.c.fail(vfio.ErrClosed)
		<-d.done
		for _, f := range d.eventFDs {
			_ = f.Close()
		}
		d.watching.Wait()
		close(d.events)
	})
	return nil
}
