package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"rnic/vfio"
)

// Section names in this file are those of docs/interop/vfio-user.rst. All
// integers are in the host's byte order, which is little-endian on the
// machines that the module supports.

var le = binary.LittleEndian

// command is a message's command (section "Commands").
type command uint16

const (
	cmdVersion       command = 1
	cmdDMAMap        command = 2
	cmdDMAUnmap      command = 3
	cmdGetInfo       command = 4
	cmdGetRegionInfo command = 5
	cmdGetIOFDs      command = 6
	cmdGetIRQInfo    command = 7
	cmdSetIRQs       command = 8
	cmdRegionRead    command = 9
	cmdRegionWrite   command = 10
	cmdDMARead       command = 11 // server to client
	cmdDMAWrite      command = 12 // server to client
	cmdReset         command = 13
	cmdDirtyPages    command = 14 // of former versions
	cmdWriteMulti    command = 15
	cmdFeature       command = 16
	cmdMigRead       command = 17
	cmdMigWrite      command = 18
)

var commandNames = map[command]string{
	cmdVersion: "VERSION", cmdDMAMap: "DMA_MAP", cmdDMAUnmap: "DMA_UNMAP",
	cmdGetInfo: "DEVICE_GET_INFO", cmdGetRegionInfo: "DEVICE_GET_REGION_INFO",
	cmdGetIOFDs: "DEVICE_GET_REGION_IO_FDS", cmdGetIRQInfo: "DEVICE_GET_IRQ_INFO",
	cmdSetIRQs: "DEVICE_SET_IRQS", cmdRegionRead: "REGION_READ", cmdRegionWrite: "REGION_WRITE",
	cmdDMARead: "DMA_READ", cmdDMAWrite: "DMA_WRITE", cmdReset: "DEVICE_RESET",
	cmdDirtyPages: "DIRTY_PAGES", cmdWriteMulti: "REGION_WRITE_MULTI",
	cmdFeature: "DEVICE_FEATURE", cmdMigRead: "MIG_DATA_READ", cmdMigWrite: "MIG_DATA_WRITE",
}

func (c command) String() string {
	if s := commandNames[c]; s != "" {
		return s
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Header flags (section "Header").
const (
	flagTypeMask = 0xf
	flagCommand  = 0
	flagReply    = 1
	flagNoReply  = 1 << 4
	flagError    = 1 << 5
)

// Sizes in bytes.
const (
	headerSize     = 16
	dmaMapSize     = 32
	dmaUnmapSize   = 24
	deviceInfoSize = 16
	irqInfoSize    = 16
	irqSetSize     = 20
	ioFDsSize      = 16
	ioFDSize       = 40
	regionRWSize   = 16
	dmaRWSize      = 16
	writeMultiSize = 24

	// maxTransfer is what this end takes as data of one message
	// (max_data_xfer_size), the default of the specification.
	maxTransfer = 1 << 20
	// maxMessage is the largest message that this end takes.
	maxMessage = headerSize + dmaRWSize + maxTransfer
	// maxFDs is how many descriptors this end takes in a message (max_msg_fds).
	maxFDs = 16
	// maxMaps is how many DMA mappings this end keeps (max_dma_maps).
	maxMaps = 65535

	// A peer's answers are held to these, so that it cannot make this end
	// allocate at will.
	maxRegions    = 128
	maxIRQIndices = 64
	maxVectors    = 2048 // MSI-X
	maxRegionInfo = 64 << 10
)

// VFIO_USER_DMA_UNMAP flags: bit 1 is VFIO_DMA_UNMAP_FLAG_ALL of linux/vfio.h.
const unmapAll = 1 << 1

// SET_IRQS flags (VFIO_IRQ_SET_*).
const (
	irqDataNone    = 1 << 0
	irqDataBool    = 1 << 1
	irqDataEventFD = 1 << 2
	irqDataMask    = irqDataNone | irqDataBool | irqDataEventFD
	irqMask        = 1 << 3
	irqUnmask      = 1 << 4
	irqTrigger     = 1 << 5
	irqActionMask  = irqMask | irqUnmask | irqTrigger
)

// Device flags (VFIO_DEVICE_FLAGS_*).
const (
	deviceReset = 1 << 0
	devicePCI   = 1 << 1
)

// header is what precedes each message.
type header struct {
	id    uint16
	cmd   command
	size  uint32 // of the whole message
	flags uint32
	errno uint32
}

func parseHeader(b []byte) (h header, err error) {
	h = header{
		id: le.Uint16(b), cmd: command(le.Uint16(b[2:])), size: le.Uint32(b[4:]),
		flags: le.Uint32(b[8:]), errno: le.Uint32(b[12:]),
	}
	switch typ := h.flags & flagTypeMask; {
	case h.size < headerSize || h.size > maxMessage:
		err = protocolError("message size %d, want %d to %d", h.size, headerSize, maxMessage)
	case typ != flagCommand && typ != flagReply:
		err = protocolError("message type %d", typ)
	case typ == flagCommand && h.flags&flagError != 0:
		err = protocolError("command with the error flag")
	case typ == flagReply && h.flags&flagError != 0 && h.size != headerSize:
		err = protocolError("error reply of %d bytes", h.size)
	}
	return h, err
}

func (h header) append(b []byte) []byte {
	b = le.AppendUint16(b, h.id)
	b = le.AppendUint16(b, uint16(h.cmd))
	b = le.AppendUint32(b, h.size)
	b = le.AppendUint32(b, h.flags)
	return le.AppendUint32(b, h.errno)
}

func (h header) reply() bool { return h.flags&flagTypeMask == flagReply }

func protocolError(format string, a ...any) error {
	return fmt.Errorf("%w: %s", vfio.ErrProtocol, fmt.Sprintf(format, a...))
}

// message is one message with the descriptors that came with it, which are
// its receiver's to close.
type message struct {
	header
	body []byte
	fds  []int
}

func (m *message) closeFDs() { closeFDs(m.fds); m.fds = nil }

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// words appends 32-bit values.
func words(b []byte, v ...uint32) []byte {
	for _, w := range v {
		b = le.AppendUint32(b, w)
	}
	return b
}

// dwords appends 64-bit values.
func dwords(b []byte, v ...uint64) []byte {
	for _, w := range v {
		b = le.AppendUint64(b, w)
	}
	return b
}

// errnoOf is the errno that an error reply carries.
func errnoOf(err error) unix.Errno {
	var e unix.Errno
	switch {
	case errors.As(err, &e) && e != 0:
		return e
	case errors.Is(err, vfio.ErrNotSupported):
		return unix.EOPNOTSUPP
	case errors.Is(err, vfio.ErrPermission):
		return unix.EACCES
	case errors.Is(err, vfio.ErrExists):
		return unix.EEXIST
	case errors.Is(err, vfio.ErrInvalid), errors.Is(err, vfio.ErrRange):
		return unix.EINVAL
	}
	return unix.EIO
}

// errorOf is the error that an error reply stands for. The errno is optional
// in the protocol.
func errorOf(errno uint32) error {
	if errno == 0 {
		return errors.New("refused by the peer without a reason")
	}
	e := unix.Errno(errno)
	var is error
	switch e {
	case unix.EEXIST:
		is = vfio.ErrExists
	case unix.EINVAL:
		is = vfio.ErrInvalid
	case unix.EACCES, unix.EPERM:
		is = vfio.ErrPermission
	case unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS:
		is = vfio.ErrNotSupported
	case unix.EBUSY:
		is = vfio.ErrBusy
	case unix.ENOSPC:
		is = vfio.ErrExhausted
	default:
		return fmt.Errorf("refused by the peer: %w", e)
	}
	return fmt.Errorf("refused by the peer: %w (%w)", is, e)
}
