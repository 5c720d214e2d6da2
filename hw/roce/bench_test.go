package roce_test

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"rnic/hw/roce"
)

func testHeader(v6 bool) roce.Header {
	return roce.Header{
		IPv6: v6, Src: roce.V4Mapped([4]byte{10, 0, 0, 1}), Dst: roce.V4Mapped([4]byte{10, 0, 0, 2}), HopLimit: 64,
		UDPSrcPort: 0xC123, Opcode: roce.RCWriteOnlyImm, PKey: 0xFFFF, DestQP: 17, PSN: 1714944, AckReq: true,
	}
}

// TestNoAllocations: nothing on the way of a packet allocates.
func TestNoAllocations(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		h := testHeader(v6)
		buf := make([]byte, roce.Headroom+roce.MaxMTU+roce.ICRCLen)
		start := h.PutBefore(buf, roce.Headroom, roce.MaxMTU)
		frame, err := roce.Finish(buf[start:])
		if err != nil {
			t.Fatal(err)
		}
		bad := append([]byte(nil), frame...)
		bad[len(bad)-1] ^= 1
		var p, refused roce.Packet
		if err := roce.Parse(frame, &p); err != nil {
			t.Fatal(err)
		}
		var back roce.Header
		var flow roce.Flow
		flow.Set(&h)
		for name, f := range map[string]func(){
			"Put":            func() { h.Put(buf[start:], roce.MaxMTU) },
			"PutBefore":      func() { h.PutBefore(buf, roce.Headroom, roce.MaxMTU) },
			"Flow.Set":       func() { flow.Set(&h) },
			"Flow.Frame":     func() { flow.Frame(buf, roce.Headroom, roce.MaxMTU, &h) },
			"Finish":         func() { _, err = roce.Finish(frame) },
			"ICRC":           func() { _, err = roce.ICRC(frame) },
			"CheckICRC":      func() { err = roce.CheckICRC(frame) },
			"Parse":          func() { err = roce.Parse(frame, &p) },
			"Header":         func() { p.Header(&back) },
			"views":          func() { _, _ = p.RETH().VA(), p.ImmDt().Imm(); _ = p.Payload() },
			"Parse refusing": func() { _ = roce.Parse(bad, &refused) },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 || err != nil {
				t.Errorf("IPv6 %v: %s allocates %v times, error %v", v6, name, n, err)
			}
		}
	}
}

var sizes = []int{0, 64, 256, 1024, 4096}

func builtFrame(b *testing.B, n int) []byte {
	b.Helper()
	h := testHeader(false)
	r := rand.New(rand.NewPCG(7, 8))
	return h.Append(nil, randomBytes(r, n))
}

// BenchmarkCRC32 is the bound: the standard library over the payload alone.
func BenchmarkCRC32(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			payload := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				crc32.ChecksumIEEE(payload)
			}
		})
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame := builtFrame(b, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := roce.ICRC(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame := builtFrame(b, n)
			var p roce.Packet
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := roce.Parse(frame, &p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFlow is the same as BenchmarkBuild, from what a connection's frames have in common.
func BenchmarkFlow(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := testHeader(false)
			var f roce.Flow
			f.Set(&h)
			buf := make([]byte, roce.Headroom+n+roce.ICRCLen)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				f.Frame(buf, roce.Headroom, n, &h)
			}
		})
	}
}

// BenchmarkBuild is headers, pad and ICRC around a payload in place.
func BenchmarkBuild(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := testHeader(false)
			buf := make([]byte, roce.Headroom+n+roce.ICRCLen)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				start := h.PutBefore(buf, roce.Headroom, n)
				if _, err := roce.Finish(buf[start:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
