package uapi

import (
	"encoding/binary"
	"fmt"
)

// Capability is one entry of the chain that follows an INFO structure. Data
// begins with its header and ends with the buffer.
type Capability struct {
	ID      uint16
	Version uint16
	Data    []byte
}

// maxCapabilities ends a chain that a broken kernel or peer has made a cycle.
const maxCapabilities = 64

// Capabilities walks the chain in b, an INFO structure with all that follows it.
// first is the structure's cap_offset, 0 for none; fixed is the size of the
// structure, which no capability overlaps. It trusts nothing.
func Capabilities(b []byte, first uint32, fixed int) ([]Capability, error) {
	var list []Capability
	const header = 8
	for off := uint64(first); off != 0; {
		switch {
		case len(list) == maxCapabilities:
			return nil, fmt.Errorf("capability chain without end")
		case off < uint64(fixed) || off%4 != 0 || off+header > uint64(len(b)):
			return nil, fmt.Errorf("capability at %#x of %#x", off, len(b))
		}
		c := b[off:]
		list = append(list, Capability{ID: binary.NativeEndian.Uint16(c), Version: binary.NativeEndian.Uint16(c[2:]), Data: c})
		off = uint64(binary.NativeEndian.Uint32(c[4:]))
	}
	return list, nil
}
