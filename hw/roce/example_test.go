package roce_test

import (
	"fmt"

	"rnic/hw/roce"
)

// A payload stands at an aligned place; headers are built in front of it, pad
// and ICRC behind, and the receiver takes the frame apart again.
func Example() {
	h := roce.Header{
		SrcMAC: [6]byte{0x52, 0x54, 0, 0, 0, 0x0A}, DstMAC: [6]byte{0x52, 0x54, 0, 0, 0, 0x0B},
		Src: roce.V4Mapped([4]byte{10, 0, 0, 1}), Dst: roce.V4Mapped([4]byte{10, 0, 0, 2}), HopLimit: 64,
		UDPSrcPort: roce.SourcePort(0, 17, 17),
		Opcode:     roce.RCSendOnly, AckReq: true, PKey: 0xFFFF, DestQP: 17, PSN: 1714944,
	}
	buf := make([]byte, roce.Headroom+roce.MaxMTU+roce.ICRCLen)
	n := copy(buf[roce.Headroom:], "gathered")
	start := h.PutBefore(buf, roce.Headroom, n)
	frame, err := roce.Finish(buf[start:])
	if err != nil {
		fmt.Println(err)
		return
	}

	var p roce.Packet
	if err := roce.Parse(frame, &p); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v to QP %d, PSN %d: %q in %d bytes\n", p.Opcode(), p.BTH().DestQP(), p.BTH().PSN(), p.Payload(), len(frame))

	frame[len(frame)-1] ^= 1
	fmt.Println(roce.Parse(frame, &p))
	// Output:
	// RC_SEND_ONLY to QP 17, PSN 1714944: "gathered" in 66 bytes
	// roce: ICRC is wrong
}
