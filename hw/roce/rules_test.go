package roce_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rnic/hw/roce"
)

// TestOpcodeTable compares the table with the one of Linux soft-RoCE
// (drivers/infiniband/sw/rxe/rxe_opcode.c: masks and offsets of each opcode),
// written here as: code, start and end of message, headers behind the BTH.
func TestOpcodeTable(t *testing.T) {
	want := map[roce.Opcode]string{}
	for code, s := range map[roce.Opcode]string{
		0x00: "S- payload", 0x01: "-- payload", 0x02: "-E payload", 0x03: "-E IMMDT payload",
		0x04: "SE payload", 0x05: "SE IMMDT payload",
		0x06: "S- RETH payload", 0x07: "-- payload", 0x08: "-E payload", 0x09: "-E IMMDT payload",
		0x0A: "SE RETH payload", 0x0B: "SE RETH IMMDT payload",
	} {
		want[code] = "RC " + s
		want[code|0x20] = "UC " + s
	}
	want[0x0C] = "RC SE RETH"
	want[0x0D] = "RC S- AETH payload"
	want[0x0E] = "RC -- payload"
	want[0x0F] = "RC -E AETH payload"
	want[0x10] = "RC SE AETH payload"
	want[0x11] = "RC SE AETH"
	want[0x12] = "RC SE AETH ATMACK"
	want[0x13] = "RC SE ATMETH"
	want[0x14] = "RC SE ATMETH"
	want[0x16] = "RC -E IETH payload"
	want[0x17] = "RC SE IETH payload"
	want[0x64] = "UD SE DETH payload"
	want[0x65] = "UD SE DETH IMMDT payload"
	want[0x81] = "CNP SE payload" // annex A17: 16 reserved bytes behind the BTH

	length := map[string]int{"RETH": 16, "AETH": 4, "ATMETH": 28, "ATMACK": 8, "DETH": 8, "IMMDT": 4, "IETH": 4}
	for i := range 256 {
		o := roce.Opcode(i)
		w, ok := want[o]
		if o.Valid() != ok {
			t.Errorf("0x%02x: valid is %v", i, o.Valid())
		}
		if !ok {
			continue
		}
		got := o.Transport().String() + " "
		mark := func(on bool, c string) {
			if !on {
				c = "-"
			}
			got += c
		}
		mark(o.Position().Starts(), "S")
		mark(o.Position().Ends(), "E")
		for _, x := range []struct {
			ext  roce.Ext
			name string
		}{
			{roce.ExtDETH, "DETH"}, {roce.ExtRETH, "RETH"}, {roce.ExtAtomicETH, "ATMETH"}, {roce.ExtAETH, "AETH"},
			{roce.ExtAtomicAckETH, "ATMACK"}, {roce.ExtImmDt, "IMMDT"}, {roce.ExtIETH, "IETH"},
		} {
			if o.Has(x.ext) {
				got += " " + x.name
			}
		}
		if o.HasPayload() {
			got += " payload"
		}
		if got != w {
			t.Errorf("0x%02x %v: %s, want %s", i, o, got, w)
		}
		n := 0
		for f := range strings.FieldsSeq(w) {
			n += length[f]
		}
		if o.ExtLen() != n {
			t.Errorf("0x%02x %v: %d bytes of extended headers, want %d", i, o, o.ExtLen(), n)
		}
	}
}

// TestOperations: what a responder takes, and what a requester takes.
func TestOperations(t *testing.T) {
	for _, o := range opcodes {
		name := o.String()
		response := strings.Contains(name, "RESP") || strings.Contains(name, "ACK") || name == "CNP"
		if o.Operation().Request() == response {
			t.Errorf("%v is a request: %v", o, o.Operation().Request())
		}
		if send := strings.Contains(name, "SEND"); send != (o.Operation() == roce.OpSend) {
			t.Errorf("%v is a SEND: %v", o, !send)
		}
		if write := strings.Contains(name, "WRITE"); write != (o.Operation() == roce.OpWrite) {
			t.Errorf("%v is a WRITE: %v", o, !write)
		}
	}
}

// TestRNRTimer compares with the names of enum ib_rnr_timeout in Linux
// include/rdma/ib_verbs.h: milliseconds and hundredths, from code 0.
func TestRNRTimer(t *testing.T) {
	const names = `655_36 000_01 000_02 000_03 000_04 000_06 000_08 000_12 000_16 000_24 000_32 000_48 000_64 000_96
		001_28 001_92 002_56 003_84 005_12 007_68 010_24 015_36 020_48 030_72 040_96 061_44 081_92 122_88 163_84 245_76
		327_68 491_52`
	for code, name := range strings.Fields(names) {
		var ms, hundredths int
		if _, err := fmt.Sscanf(name, "%d_%d", &ms, &hundredths); err != nil {
			t.Fatal(err)
		}
		want := time.Duration(ms)*time.Millisecond + time.Duration(hundredths)*10*time.Microsecond
		if got := roce.RNRTimer(uint8(code)); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
	if roce.RNRTimer(0x21) != roce.RNRTimer(1) {
		t.Error("bits above the code are not left out")
	}
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192, 14: 67108864, 16: 268435456, 18: 1073741824, 31: 8796093022208, 32 + 1: 8192,
	} {
		if got := roce.AckTimeout(code); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
}

func TestSyndrome(t *testing.T) {
	for s, want := range map[roce.Syndrome]string{
		0x1F: "ACK credit 31", 0x20: "RNR NAK timer 0 (655.36ms)", 0x2C: "RNR NAK timer 12 (640µs)",
		0x40: "reserved syndrome 0x40", 0x9F: "reserved syndrome 0x9f", 0xE0: "reserved syndrome 0xe0",
		0x60: "NAK PSN sequence error", 0x61: "NAK invalid request", 0x62: "NAK remote access error",
		0x63: "NAK remote operational error", 0x64: "NAK invalid RD request", 0x65: "NAK reserved code 5",
	} {
		if s.String() != want {
			t.Errorf("0x%02x: %v, want %s", uint8(s), s, want)
		}
	}
	if s := roce.SyndromeACK(roce.CreditInvalid); s != 0x1F {
		t.Errorf("ACK is 0x%02x", uint8(s))
	}
	if s := roce.SyndromeRNR(12); s != 0x2C {
		t.Errorf("RNR NAK is 0x%02x", uint8(s))
	}
}

// TestPSN: a circle of 2^24, on which half a turn decides before and after.
func TestPSN(t *testing.T) {
	const turn, half = 1 << 24, 1 << 23
	for _, psn := range []uint32{0, 1, half - 1, half, half + 1, turn - 2, turn - 1, 0x1A2B00} {
		for _, n := range []int32{-half, -half + 1, -4097, -1, 0, 1, 65, half - 1} {
			want := uint32((int64(psn) + int64(n) + turn) % turn)
			got := roce.PSNAdd(psn, n)
			if got != want {
				t.Errorf("0x%06x %+d = 0x%06x, want 0x%06x", psn, n, got, want)
			}
			if d := roce.PSNDiff(got, psn); d != n {
				t.Errorf("0x%06x - 0x%06x = %d, want %d", got, psn, d, n)
			}
			if roce.PSNLess(got, psn) != (n < 0) {
				t.Errorf("0x%06x before 0x%06x: %v", got, psn, n >= 0)
			}
		}
	}
}

func TestParseErrorText(t *testing.T) {
	seen := map[string]bool{}
	for e := roce.ParseError(1); int(e) < roce.NumParseErrors; e++ {
		if s := e.Error(); seen[s] || !strings.HasPrefix(s, "roce: ") || len(s) < 15 {
			t.Errorf("%d: %q", e, s)
		} else {
			seen[s] = true
		}
	}
}

// TestSourcePort: values worked out from rdma_calc_flow_label and
// rdma_flow_label_to_udp_sport of Linux include/rdma/ib_verbs.h, with queue pair
// numbers as large as the recordings do not have.
func TestSourcePort(t *testing.T) {
	for _, c := range []struct {
		flow, lqpn, rqpn uint32
		want             uint16
	}{
		{0x0, 0x123456, 0xABCDEF, 0xC3C8},
		{0x0, 0xFFFFFF, 0xFFFFFF, 0xFF21},
		{0x0, 0xFFFFFF, 0xFFFFFE, 0xFF12},
		{0x0, 0x11, 0x11, 0xC121},
		{0xFFFFF, 0x1, 0x2, 0xFFC0},
		{0x4000, 0x1, 0x2, 0xC001},
	} {
		if got := roce.SourcePort(c.flow, c.lqpn, c.rqpn); got != c.want {
			t.Errorf("flow label 0x%05x, QPs 0x%x and 0x%x: 0x%04x, want 0x%04x", c.flow, c.lqpn, c.rqpn, got, c.want)
		}
	}
}
