package softcard

import (
	"bytes"
	"testing"

	"rnic/hw"
)

// TestFirstSend is a SEND of three segments from one card's memory to another's.
func TestFirstSend(t *testing.T) {
	p := newPair(t, 64)
	a, b := p.connected(17, defaultLink())
	src := p.a.newMR(0x1000_0000, 64<<10, 0x250, allAccess)
	dst := p.b.newMR(0x2000_0000, 64<<10, 0x28e, allAccess)
	fill(src.mem, 1)
	b.recv(dst.sge(0, 16384))
	index := a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{src.sge(0, 1024), src.sge(8192, 6144), src.sge(100, 512)}})
	p.run()
	es := a.sendCQ.all()
	if len(es) != 1 || es[0].Status != hw.StatusSuccess || es[0].WQEIndex != index {
		t.Fatalf("send completions %+v", es)
	}
	es = b.recvCQ.all()
	if len(es) != 1 || es[0].Status != hw.StatusSuccess || es[0].ByteLen != 7680 {
		t.Fatalf("receive completions %+v", es)
	}
	want := append(append(append([]byte{}, src.mem[:1024]...), src.mem[8192:8192+6144]...), src.mem[100:612]...)
	if !bytes.Equal(dst.mem[:7680], want) {
		t.Fatal("wrong bytes")
	}
}
