package roce_test

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/hw/roce"
)

// TestG14_ICRCOfEachLength: the ICRC of a payload of any length is the witness's, bit by bit, and no byte
// behind the frame is read, which ends where memory does.
func TestG14_ICRCOfEachLength(t *testing.T) {
	const page = 4096
	mem, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	if err := unix.Mprotect(mem[3*page:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(11, 12))
	h := testHeader(false)
	var f roce.Flow
	f.Set(&h)
	for n := 0; n <= roce.MaxMTU; n++ {
		if n > 700 && n%64 > 4 && n%64 < 60 && n%7 != 0 {
			continue // the kernels work by 16, 64 and 256 bytes
		}
		h.Opcode = roce.RCSendOnly
		if n&1 == 0 {
			h.Opcode = roce.RCWriteOnlyImm // 20 bytes before the payload
		}
		buf := mem[:3*page]
		at := len(buf) - (n+3)&^3 - roce.ICRCLen
		copy(buf[at:], randomBytes(r, n))
		start, end := f.Frame(buf, at, n, &h)
		if end != len(buf) {
			t.Fatalf("%d bytes: the frame ends at %d, want %d", n, end, len(buf))
		}
		checkICRC(t, buf[start:], true)
		buf[start+roce.EthernetLen+roce.IPv4Len+roce.UDPLen+r.IntN(4)] ^= 1 << r.IntN(8)
		buf[at+r.IntN(n+1)] ^= 1 << r.IntN(8)
		if roce.CheckICRC(buf[start:]) != roce.ErrICRC {
			t.Fatalf("%d bytes: two flipped bits are not found", n)
		}
	}
}
