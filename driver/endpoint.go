package driver

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// MaxPrivate is the most private data that an Endpoint carries, in bytes.
const MaxPrivate = 1024

// Endpoint is what a peer needs to connect to a queue pair. It has a binary
// form (ConnectVia sends it) and a text form for a user to carry.
type Endpoint struct {
	GID     GID
	MAC     MAC    // optional; without it the peer must be on a link-local address made from its MAC
	QPN     uint32 // 24 bits
	PSN     uint32 // 24 bits: the first that this side sends
	MTU     MTU    // largest path MTU that this side takes
	Private []byte // the program's, at most MaxPrivate bytes
}

const (
	endpointMagic = "RNE1"
	endpointFixed = 4 + 16 + 6 + 4 + 4 + 1 + 2 // then the private data
)

func (e Endpoint) check() error {
	bad := func(what string, v any) error {
		return fmt.Errorf("rnic: endpoint: %s %v: %w", what, v, ErrInvalid)
	}
	switch {
	case e.GID.IsZero():
		return bad("GID", "missing")
	case e.QPN < 2 || e.QPN >= 0xffffff:
		return bad("QPN", fmt.Sprintf("%#x is not 2 to 0xfffffe", e.QPN))
	case e.PSN >= 1<<24:
		return bad("PSN", fmt.Sprintf("%#x has more than 24 bits", e.PSN))
	case !e.MTU.Valid():
		return bad("MTU", e.MTU)
	case len(e.Private) > MaxPrivate:
		return bad("private data", fmt.Sprintf("of %d bytes, at most %d", len(e.Private), MaxPrivate))
	}
	return nil
}

// MarshalBinary gives the binary form: "RNE1", GID, MAC, QPN, PSN, MTU, length of
// the private data, private data; numbers big-endian.
func (e Endpoint) MarshalBinary() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, endpointFixed+len(e.Private)), endpointMagic...)
	b = append(b, e.GID[:]...)
	b = append(b, e.MAC[:]...)
	b = binary.BigEndian.AppendUint32(b, e.QPN)
	b = binary.BigEndian.AppendUint32(b, e.PSN)
	b = append(b, byte(e.MTU))
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Private)))
	return append(b, e.Private...), nil
}

// UnmarshalBinary reads the binary form, nothing before it and nothing behind.
func (e *Endpoint) UnmarshalBinary(b []byte) error {
	if len(b) < endpointFixed || string(b[:4]) != endpointMagic {
		return fmt.Errorf("rnic: endpoint: not %q and %d bytes: %w", endpointMagic, endpointFixed-4, ErrInvalid)
	}
	v := Endpoint{
		GID: GID(b[4:20]), MAC: MAC(b[20:26]), QPN: binary.BigEndian.Uint32(b[26:]), PSN: binary.BigEndian.Uint32(b[30:]), MTU: MTU(b[34]),
	}
	if n := int(binary.BigEndian.Uint16(b[35:])); n != len(b)-endpointFixed {
		return fmt.Errorf("rnic: endpoint: %d bytes of private data stated, %d are there: %w", n, len(b)-endpointFixed, ErrInvalid)
	}
	if len(b) > endpointFixed {
		v.Private = append([]byte(nil), b[endpointFixed:]...)
	}
	if err := v.check(); err != nil {
		return err
	}
	*e = v
	return nil
}

// MarshalText gives "gid=10.0.0.1,mac=02:00:00:00:00:01,qpn=0x11,psn=0x3e8,mtu=4096,private=00ff";
// mac and private only where there are some.
func (e Endpoint) MarshalText() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	return []byte(e.String()), nil
}

// String is the text form, whatever the values.
func (e Endpoint) String() string {
	s := "gid=" + e.GID.String()
	if !e.MAC.IsZero() {
		s += ",mac=" + e.MAC.String()
	}
	s += fmt.Sprintf(",qpn=%#x,psn=%#x,mtu=%d", e.QPN, e.PSN, e.MTU.Bytes())
	if len(e.Private) > 0 {
		s += ",private=" + hex.EncodeToString(e.Private)
	}
	return s
}

// UnmarshalText reads the text form. The fields may stand in any order; gid,
// qpn, psn and mtu must be there.
func (e *Endpoint) UnmarshalText(b []byte) error {
	bad := func(field, why string) error {
		return fmt.Errorf("rnic: endpoint: field %.80q %s: %w", field, why, ErrInvalid)
	}
	if len(b) > 4*MaxPrivate {
		return bad(string(b[:40])+"…", "is too long")
	}
	var v Endpoint
	seen := map[string]bool{}
	for field := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		name, val, _ := strings.Cut(field, "=")
		if seen[name] {
			return bad(field, "is there twice")
		}
		seen[name] = true
		var err error
		var n uint64
		switch name {
		case "gid":
			err = v.GID.UnmarshalText([]byte(val))
		case "mac":
			err = v.MAC.UnmarshalText([]byte(val))
		case "qpn":
			n, err = strconv.ParseUint(val, 0, 32)
			v.QPN = uint32(n)
		case "psn":
			n, err = strconv.ParseUint(val, 0, 32)
			v.PSN = uint32(n)
		case "mtu":
			n, err = strconv.ParseUint(val, 10, 16)
			if v.MTU = MTUFromBytes(int(n)); err == nil && v.MTU == 0 {
				return bad(field, "is none of 256, 512, 1024, 2048, 4096")
			}
		case "private":
			v.Private, err = hex.DecodeString(val)
			if len(v.Private) == 0 {
				v.Private = nil
			}
		default:
			return bad(field, "is unknown")
		}
		if err != nil {
			return bad(field, "cannot be read")
		}
	}
	for _, name := range []string{"gid", "qpn", "psn", "mtu"} {
		if !seen[name] {
			return bad(name, "is missing")
		}
	}
	if err := v.check(); err != nil {
		return err
	}
	*e = v
	return nil
}

// MTUFromBytes gives the path MTU of exactly so many bytes, or 0.
func MTUFromBytes(n int) MTU {
	for m := MTU256; m <= MTU4096; m++ {
		if n == m.Bytes() {
			return m
		}
	}
	return 0
}
