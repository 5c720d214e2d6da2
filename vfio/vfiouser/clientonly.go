package vfiouser

import (
	"context"
	"fmt"
	"slices"

	"rnic/vfio"
)

// PostRegion writes to a region without waiting: the write is performed before
// any later command is. It is for doorbells; configuration space wants
// WriteRegion.
func (d *Device) PostRegion(i int, off uint64, p []byte) error {
	fail := func(err error) error {
		return d.fail("post to region", fmt.Sprintf("%d offset %#x length %d", i, off, len(p)), err)
	}
	r, err := d.Region(i)
	switch {
	case err != nil:
		return err
	case off > r.Size || uint64(len(p)) > r.Size-off || len(p) > d.lim.transfer:
		return fail(fmt.Errorf("%w (size %#x)", vfio.ErrRange, r.Size))
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	body := append(words(dwords(make([]byte, 0, regionRWSize+len(p)), off), uint32(i), uint32(len(p))), p...)
	if _, err := d.c.send(ctx, header{cmd: cmdRegionWrite, flags: flagNoReply}, body, nil); err != nil {
		return fail(err)
	}
	return nil
}

// RegionWrite is one write of WriteMulti: 1 to 8 bytes.
type RegionWrite struct {
	Region int
	Offset uint64
	Data   []byte
}

// WriteMulti does several small writes in one message, in order, and gives the
// number that the server performed. Fewer than all is an error. A server that
// did not agree to such messages is ErrNotSupported.
func (d *Device) WriteMulti(writes []RegionWrite) (int, error) {
	fail := func(n int, err error) (int, error) {
		return n, d.fail("write regions", fmt.Sprintf("%d writes", len(writes)), err)
	}
	if !d.lim.writeMultiple {
		return fail(0, vfio.ErrNotSupported)
	}
	if 8+writeMultiSize*len(writes) > maxTransfer {
		return fail(0, fmt.Errorf("%w: too many writes", vfio.ErrInvalid))
	}
	body := dwords(nil, uint64(len(writes)))
	for _, w := range writes {
		if len(w.Data) == 0 || len(w.Data) > 8 {
			return fail(0, fmt.Errorf("%w: write of %d bytes", vfio.ErrInvalid, len(w.Data)))
		}
		body = words(dwords(body, w.Offset), uint32(w.Region), uint32(len(w.Data)))
		var data [8]byte
		copy(data[:], w.Data)
		body = append(body, data[:]...)
	}
	m, err := d.call(cmdWriteMulti, body)
	if err != nil {
		return fail(0, err)
	}
	m.closeFDs()
	if len(m.body) != 8 || le.Uint64(m.body) > uint64(len(writes)) {
		return fail(0, protocolError("reply of %d bytes to a multiple write", len(m.body)))
	}
	n := int(le.Uint64(m.body))
	if n < len(writes) {
		return fail(n, fmt.Errorf("%w: the server stopped after %d", vfio.ErrInvalid, n))
	}
	return n, nil
}

// RegionIOFDs asks for the sub-regions of region i whose accesses can be
// directed to a descriptor. The descriptors are the caller's to close; several
// entries may share one. None is ErrNotSupported.
func (d *Device) RegionIOFDs(i int) ([]IOFD, error) {
	fail := func(err error) ([]IOFD, error) {
		return nil, d.fail("ask for I/O descriptors of region", fmt.Sprint(i), err)
	}
	r, err := d.Region(i)
	if err != nil {
		return nil, err
	}
	const room = ioFDsSize + 256*ioFDSize
	m, err := d.call(cmdGetIOFDs, words(nil, room, 0, uint32(i), 0))
	if err != nil {
		return fail(err)
	}
	defer m.closeFDs()
	b := m.body
	if len(b) < ioFDsSize || le.Uint32(b[8:]) != uint32(i) {
		return fail(protocolError("reply of %d bytes", len(b)))
	}
	count := uint64(le.Uint32(b[12:]))
	if uint64(le.Uint32(b)) > room || uint64(len(b)) != ioFDsSize+count*ioFDSize {
		return fail(protocolError("%d sub-regions in %d bytes", count, len(b)))
	}
	var out []IOFD
	for b = b[ioFDsSize:]; len(b) > 0; b = b[ioFDSize:] {
		x := IOFD{Offset: le.Uint64(b), Size: le.Uint64(b[8:]), Type: IOFDType(le.Uint32(b[20:])), Flags: le.Uint32(b[24:]), Data: le.Uint64(b[32:])}
		at := le.Uint32(b[16:])
		if x.Offset > r.Size || x.Size > r.Size-x.Offset || x.Type > IORegionFD || uint64(at) >= uint64(len(m.fds)) {
			return fail(protocolError("sub-region %#x+%#x type %d descriptor %d", x.Offset, x.Size, x.Type, at))
		}
		x.FD = m.fds[at]
		out = append(out, x)
	}
	// What no sub-region names is nobody's.
	m.fds = slices.DeleteFunc(m.fds, func(fd int) bool {
		return slices.ContainsFunc(out, func(x IOFD) bool { return x.FD == fd })
	})
	return out, nil
}
