package softcard

import (
	"bytes"
	"testing"

	"rnic/hw"
	"rnic/vfio/memtest"
)

// once makes the host's memory one that has other bytes at a second read: whatever the card
// has read is inverted, and a byte that it reads again is reported, unless written was told
// that the client has put another in its place.
func (h *flatHost) once(tb testing.TB) (written func(b []byte)) {
	read := make([]bool, len(h.mem))
	h.onRead = func(iova uint64, p []byte) {
		off := iova - h.base
		for i := range p {
			if at := off + uint64(i); read[at] {
				tb.Errorf("the card reads %#x+%#x again, byte %#x", iova, len(p), h.base+at)
				break
			}
		}
		for i := range p {
			read[off+uint64(i)] = true
			h.mem[off+uint64(i)] ^= 0xff
		}
	}
	return func(b []byte) {
		off := cap(h.mem) - cap(b) // b is a part of mem
		clear(read[off : off+len(b)])
	}
}

// TestH01_ReadOnceWQEs: of a WQE of three blocks over the ring's end and of its payload, of a receive and of
// what a message is made of, each byte is read once.
func TestH01_ReadOnceWQEs(t *testing.T) {
	p := newTwo(t, defaultLink())
	want := append([]byte{}, p.src.mem...)
	// Up to the last block of the ring.
	for range 1<<p.a.ctx.SQLogBlocks - 1 {
		p.a.post(tWR{op: hw.OpcodeRDMAWrite, remote: p.dst.base, rkey: p.dst.key})
	}
	p.run()
	p.pair.a.host.once(t)
	p.pair.b.host.once(t)
	w := tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled}
	for i := range uint32(9) {
		w.sges = append(w.sges, p.src.sge(i*1000, 1000))
	}
	recv := p.b.recv(p.dst.sge(0, 4000), p.dst.sge(4000, 5000))
	index := p.a.post(w)
	p.run()
	wantWCs(t, "sender", p.a.sendCQ, good(index))
	if es := p.b.recvCQ.all(); len(es) != 1 || es[0].WQEIndex != recv || es[0].Status != hw.StatusSuccess {
		t.Errorf("receiver: %+v", es)
	}
	if !bytes.Equal(p.dst.mem[:9000], want[:9000]) {
		t.Error("other bytes arrived")
	}
}

// TestH01_ReadOnceCommands: an entry of the command ring and its mailbox.
func TestH01_ReadOnceCommands(t *testing.T) {
	c, h := fuzzCard(t)
	works(t, c, h)
	h.once(t)
	cq := hw.CQContext{IOVA: h.base + 0x20000, Doorbell: c.mem.stride, LogEntries: 4}
	copy(h.mem[0x4000:], cq.AsBytes())
	eq := hw.EQContext{IOVA: h.base + 0x10000, Doorbell: 2 * c.mem.stride, LogEntries: 4}
	copy(h.mem[0x5000:], eq.AsBytes())
	for i, e := range []hw.CommandEntry{
		{Opcode: hw.CommandCreateEQ, Token: 1, InIOVA: h.base + 0x5000, InLength: hw.EQContextSize},
		{Opcode: hw.CommandCreateCQ, Token: 2, InIOVA: h.base + 0x4000, InLength: hw.CQContextSize},
	} {
		copy(h.mem[(i+1)*hw.CommandEntrySize:], e.AsBytes())
		put32(t, c, hw.RegControlCommandDoorbell, uint32(i+2))
		settle(t, c)
		var p hw.CommandReply
		copy(p.AsBytes(), h.mem[4096+(i+1)*hw.CommandReplySize:])
		if p.Token != e.Token || p.Status != hw.CommandStatusOK {
			t.Fatalf("%+v", p)
		}
	}
}

// TestH01_ReadOnceHostGather: the host's answers and what it staged.
func TestH01_ReadOnceHostGather(t *testing.T) {
	p, g := newHosted(t, 4)
	staging := p.pair.a.card.hosted.ctx.StagingIOVA - p.pair.a.host.base
	want := append([]byte{}, p.src.mem...)
	p.b.recv(p.dst.sge(0, 32<<10))
	written := p.pair.a.host.once(t)
	g.spoil = func(*hw.HostGatherReply) bool { written(p.pair.a.host.mem[staging:][:len(g.staging)]); return false }
	index := p.a.post(tWR{op: hw.OpcodeSend, flags: hw.WQEFlagSignaled, sges: []hw.DataSegment{p.src.sge(100, 900), p.src.sge(5000, 2500)}})
	p.runHost(g)
	wantWCs(t, "sender", p.a.sendCQ, good(index))
	if !bytes.Equal(p.dst.mem[:900], want[100:1000]) || !bytes.Equal(p.dst.mem[900:3400], want[5000:7500]) {
		t.Error("other bytes arrived")
	}
}

// TestH01_ReadOnceKey: an entry of the key table, which the client has mapped, is copied; its
// valid word alone is looked at before and after.
func TestH01_ReadOnceKey(t *testing.T) {
	c, h := fuzzCard(t)
	works(t, c, h)
	e := hw.KeyEntry{Length: 4096, IOVA: h.base}
	e.SetState(hw.KeyStateValid)
	c.mem.setEntry(3, &e)
	for i := range hw.KeyEntrySize {
		limit := 1
		if i >= hw.KeyEntrySize-4 {
			limit = 3
		}
		if n := memtest.Least(t, &c.mem.keys[3].AsBytes()[i], limit, func() func() {
			return func() {
				if k := decodeKey(ptrTo(c.mem.entry(3))); k.State != hw.KeyStateValid {
					t.Fatal(k)
				}
			}
		}); n > limit {
			t.Errorf("byte %d of a key is loaded %d times", i, n)
		}
	}
}

func ptrTo[T any](v T) *T { return &v }

// TestH01_ReadOnceDoorbells: a doorbell is loaded once in a look at it; what is done with it is
// done with that value.
func TestH01_ReadOnceDoorbells(t *testing.T) {
	p := newTwo(t, defaultLink())
	b := p.pair.a.card.mem.doorbellMap.Bytes(uint64(p.a.ctx.SQDoorbell), 4)
	for i := range b {
		if n := memtest.Least(t, &b[i], 1, func() func() { return func() { p.pair.a.card.dbLoad(p.a.ctx.SQDoorbell) } }); n != 1 {
			t.Errorf("byte %d of a doorbell is loaded %d times", i, n)
		}
	}
}
