package roce

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of an AETH: bit 7 reserved, bits 6–5 the kind,
// bits 4–0 a value that depends on it (IBTA vol. 1, 9.7, table "AETH
// Syndrome Field").
type Syndrome uint8

// SyndromeKind is what an AETH is.
type SyndromeKind uint8

// The kinds.
const (
	ACK SyndromeKind = iota
	RNRNAK
	ReservedSyndrome
	NAK
)

// The NAK codes (table "NAK Codes").
const (
	NAKPSNSequenceError       Syndrome = 0x60
	NAKInvalidRequest         Syndrome = 0x61
	NAKRemoteAccessError      Syndrome = 0x62
	NAKRemoteOperationalError Syndrome = 0x63
	NAKInvalidRDRequest       Syndrome = 0x64
)

// CreditInvalid is the credit code of a responder that gives no end-to-end
// credits, as one with a shared receive queue, and as Linux soft-RoCE does.
const CreditInvalid = 31

// SyndromeACK is an acknowledgement with a credit code of 5 bits.
func SyndromeACK(credit uint8) Syndrome { return Syndrome(credit & 0x1F) }

// SyndromeRNR is a receiver-not-ready NAK with a timer code of 5 bits, see
// RNRTimer.
func SyndromeRNR(timer uint8) Syndrome { return Syndrome(0x20 | timer&0x1F) }

// Kind is what the AETH is. A set bit 7 makes any syndrome a reserved one.
func (s Syndrome) Kind() SyndromeKind {
	if s&0x80 != 0 {
		return ReservedSyndrome
	}
	return SyndromeKind(s >> 5)
}

// Value is the lower five bits: credit code, RNR timer code or NAK code.
func (s Syndrome) Value() uint8 { return uint8(s & 0x1F) }

// String names the syndrome.
func (s Syndrome) String() string {
	switch s.Kind() {
	case ACK:
		return fmt.Sprintf("ACK credit %d", s.Value())
	case RNRNAK:
		return fmt.Sprintf("RNR NAK timer %d (%v)", s.Value(), RNRTimer(s.Value()))
	case NAK:
		switch s {
		case NAKPSNSequenceError:
			return "NAK PSN sequence error"
		case NAKInvalidRequest:
			return "NAK invalid request"
		case NAKRemoteAccessError:
			return "NAK remote access error"
		case NAKRemoteOperationalError:
			return "NAK remote operational error"
		case NAKInvalidRDRequest:
			return "NAK invalid RD request"
		}
		return fmt.Sprintf("NAK reserved code %d", s.Value())
	}
	return fmt.Sprintf("reserved syndrome 0x%02x", uint8(s))
}

// rnrTimers is the table "Encoding for RNR NAK Timer Field".
var rnrTimers = [32]time.Duration{
	655360 * time.Microsecond,
	10 * time.Microsecond, 20 * time.Microsecond, 30 * time.Microsecond,
	40 * time.Microsecond, 60 * time.Microsecond, 80 * time.Microsecond,
	120 * time.Microsecond, 160 * time.Microsecond, 240 * time.Microsecond,
	320 * time.Microsecond, 480 * time.Microsecond, 640 * time.Microsecond,
	960 * time.Microsecond, 1280 * time.Microsecond, 1920 * time.Microsecond,
	2560 * time.Microsecond, 3840 * time.Microsecond, 5120 * time.Microsecond,
	7680 * time.Microsecond, 10240 * time.Microsecond, 15360 * time.Microsecond,
	20480 * time.Microsecond, 30720 * time.Microsecond, 40960 * time.Microsecond,
	61440 * time.Microsecond, 81920 * time.Microsecond, 122880 * time.Microsecond,
	163840 * time.Microsecond, 245760 * time.Microsecond, 327680 * time.Microsecond,
	491520 * time.Microsecond,
}

// RNRTimer is the least time that a requester waits after an RNR NAK with the
// timer code, of which the lower five bits are used. Code 0 is the longest.
func RNRTimer(code uint8) time.Duration { return rnrTimers[code&0x1F] }

// AckTimeout is the nominal transport timeout 4.096 µs · 2^code, of which the
// lower five bits are used; code 0 is zero and means none (IBTA vol. 1,
// 9.7.6, transport timer). A timeout is due between one and four times the nominal.
func AckTimeout(code uint8) time.Duration {
	if code &= 0x1F; code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << code
}
