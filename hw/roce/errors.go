package roce

import "strconv"

// ParseError says why a frame is not taken. It is a small integer, so that
// returning one allocates nothing and a card can count drops in an array of
// [NumParseErrors]; as an error it is comparable with errors.Is.
type ParseError uint8

// The reasons, in the order in which Parse looks for them.
const (
	ErrTruncated   ParseError = 1 + iota // the frame ends before its headers or lengths say it does
	ErrNotRoCE                           // another EtherType, IP protocol or UDP port: not RoCEv2 at all
	ErrIPHeader                          // IP version and EtherType disagree, or IPv4 options are present
	ErrIPChecksum                        // the IPv4 header checksum is wrong
	ErrFragment                          // an IPv4 fragment; RoCEv2 is never fragmented
	ErrLength                            // IP, UDP, opcode and pad disagree about the length
	ErrUDPChecksum                       // the UDP checksum is neither zero nor right
	ErrICRC                              // the invariant CRC is wrong
	ErrTVer                              // the transport header version is not 0
	ErrOpcode                            // the opcode is reserved, or of RD or XRC

	// NumParseErrors is one more than the last ParseError.
	NumParseErrors = int(ErrOpcode) + 1
)

var parseErrors = [NumParseErrors]string{
	ErrTruncated:   "frame is truncated",
	ErrNotRoCE:     "frame is not RoCEv2",
	ErrIPHeader:    "IP header is malformed or has options",
	ErrIPChecksum:  "IPv4 header checksum is wrong",
	ErrFragment:    "IPv4 packet is a fragment",
	ErrLength:      "IP, UDP, opcode and pad disagree about the length",
	ErrUDPChecksum: "UDP checksum is wrong",
	ErrICRC:        "ICRC is wrong",
	ErrTVer:        "BTH transport header version is not 0",
	ErrOpcode:      "BTH opcode is reserved or not of RC, UC, UD or CNP",
}

// Error implements error.
func (e ParseError) Error() string { return "roce: " + e.String() }

// String is the reason alone.
func (e ParseError) String() string {
	if e > 0 && int(e) < NumParseErrors {
		return parseErrors[e]
	}
	return "parse error " + strconv.Itoa(int(e))
}
