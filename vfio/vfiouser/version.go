package vfiouser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"unicode/utf8"

	"rnic/vfio"
)

// The protocol version of this package.
const (
	versionMajor = 0
	versionMinor = 1
)

// maxVersionData bounds the JSON of a VERSION message.
const maxVersionData = 16 << 10

// defaultPageSizes is what a peer that does not say supports: 4 KiB pages.
const defaultPageSizes = 4096

// maxSCMFDs is the kernel's own limit of descriptors in a message (SCM_MAX_FD).
const maxSCMFDs = 253

// versionData is the JSON of a VERSION message (section "VFIO_USER_VERSION").
type versionData struct {
	Capabilities *capabilities `json:"capabilities,omitempty"`
}

type capabilities struct {
	MaxMsgFDs     *uint64     `json:"max_msg_fds,omitempty"`
	MaxDataXfer   *uint64     `json:"max_data_xfer_size,omitempty"`
	MaxDMAMaps    *uint64     `json:"max_dma_maps,omitempty"`
	PageSizes     *uint64     `json:"pgsizes,omitempty"`
	TwinSocket    *twinSocket `json:"twin_socket,omitempty"`
	WriteMultiple *bool       `json:"write_multiple,omitempty"`
	// Holder is ours: a client that proposes it learns from a server that
	// refuses it which process holds the function.
	Holder *holder `json:"holder,omitempty"`
}

type twinSocket struct {
	Supported bool `json:"supported"`
}

type holder struct {
	PID int `json:"pid"`
}

// limits are what the peer takes, as negotiated.
type limits struct {
	fds           int    // descriptors in a message that the peer receives
	transfer      int    // bytes of data in a message that the peer takes
	maps          int    // DMA mappings
	pageSizes     uint64 // of DMA mappings
	writeMultiple bool
}

func p[T any](v T) *T { return &v }

// ourCapabilities are what this end states: the client proposes all, the
// server answers those that were proposed.
func ourCapabilities() *capabilities {
	return &capabilities{
		MaxMsgFDs: p(uint64(maxFDs)), MaxDataXfer: p(uint64(maxTransfer)),
		MaxDMAMaps: p(uint64(maxMaps)), PageSizes: p(uint64(defaultPageSizes)),
		WriteMultiple: p(true),
	}
}

func encodeVersion(minor uint16, c *capabilities) ([]byte, error) {
	j, err := json.Marshal(versionData{Capabilities: c})
	if err != nil {
		return nil, err
	}
	b := le.AppendUint16(nil, versionMajor)
	b = le.AppendUint16(b, minor)
	return append(append(b, j...), 0), nil
}

func decodeVersion(b []byte) (major, minor uint16, c *capabilities, err error) {
	if len(b) < 4 {
		return 0, 0, nil, protocolError("VERSION of %d bytes", len(b))
	}
	major, minor = le.Uint16(b), le.Uint16(b[2:])
	j := b[4:]
	if len(j) == 0 {
		return major, minor, &capabilities{}, nil
	}
	if len(j) > maxVersionData || j[len(j)-1] != 0 || bytes.IndexByte(j, 0) != len(j)-1 || !utf8.Valid(j) {
		return 0, 0, nil, protocolError("version data of %d bytes is not one UTF-8 string with its NUL", len(j))
	}
	var d versionData
	if err := json.Unmarshal(j[:len(j)-1], &d); err != nil {
		return 0, 0, nil, protocolError("version data: %v", err)
	}
	if d.Capabilities == nil {
		d.Capabilities = &capabilities{}
	}
	return major, minor, d.Capabilities, nil
}

// limits gives what the peer's capabilities mean, with the defaults of the
// specification.
func (c *capabilities) limits() (limits, error) {
	value := func(v *uint64, def uint64) uint64 {
		if v == nil {
			return def
		}
		return *v
	}
	l := limits{
		fds:           int(min(value(c.MaxMsgFDs, 1), maxSCMFDs)),
		transfer:      int(min(value(c.MaxDataXfer, maxTransfer), maxTransfer)),
		maps:          int(min(value(c.MaxDMAMaps, maxMaps), maxMaps)),
		pageSizes:     value(c.PageSizes, defaultPageSizes),
		writeMultiple: c.WriteMultiple != nil && *c.WriteMultiple,
	}
	if l.transfer == 0 || l.pageSizes == 0 || bits.TrailingZeros64(l.pageSizes) > 30 {
		return limits{}, protocolError("max_data_xfer_size %d, pgsizes %#x", l.transfer, l.pageSizes)
	}
	return l, nil
}

// accept is the server's part: it checks a proposal and gives the answer,
// whose capabilities are a subset of the proposed ones.
func accept(body []byte) (answer []byte, l limits, err error) {
	major, minor, c, err := decodeVersion(body)
	if err != nil {
		return nil, limits{}, err
	}
	if major != versionMajor {
		return nil, limits{}, fmt.Errorf("client speaks version %d.%d, this server %d.%d: %w",
			major, minor, versionMajor, versionMinor, vfio.ErrNotSupported)
	}
	if l, err = c.limits(); err != nil {
		return nil, limits{}, err
	}
	ours := ourCapabilities()
	l.maps = min(l.maps, maxMaps)
	if c.MaxMsgFDs == nil {
		ours.MaxMsgFDs = nil
	}
	if c.MaxDataXfer == nil {
		ours.MaxDataXfer = nil
	}
	if c.MaxDMAMaps == nil {
		ours.MaxDMAMaps = nil
	} else {
		ours.MaxDMAMaps = p(uint64(l.maps))
	}
	if c.PageSizes == nil {
		ours.PageSizes = nil
	}
	if c.WriteMultiple == nil || !*c.WriteMultiple {
		ours.WriteMultiple = nil
	}
	answer, err = encodeVersion(min(minor, versionMinor), ours)
	return answer, l, err
}

// agree is the client's part: it checks the server's answer.
func agree(body []byte) (limits, error) {
	major, minor, c, err := decodeVersion(body)
	switch {
	case err != nil:
		return limits{}, err
	case major != versionMajor || minor > versionMinor:
		return limits{}, fmt.Errorf("server speaks version %d.%d, this client %d.%d: %w",
			major, minor, versionMajor, versionMinor, vfio.ErrNotSupported)
	case c.Holder != nil:
		return limits{}, &vfio.BusyError{PID: c.Holder.PID}
	case c.TwinSocket != nil && c.TwinSocket.Supported:
		return limits{}, protocolError("twin socket, which was not proposed")
	}
	l, err := c.limits()
	if err == nil && l.pageSizes&-l.pageSizes > uint64(os.Getpagesize()) {
		err = fmt.Errorf("server maps pages of %#x bytes, this machine has %#x: %w", l.pageSizes, os.Getpagesize(), vfio.ErrNotSupported)
	}
	return l, err
}
