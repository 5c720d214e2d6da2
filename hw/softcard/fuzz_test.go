package softcard

import (
	"testing"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/vfio"
)

// fuzzCard is a card and its client's memory, without sockets: fast enough for
// many inputs. flatHost is in rig_test.go.
func fuzzCard(tb testing.TB) (*Card, *flatHost) {
	h := newFlatHost(1 << 20)
	c, err := New(Config{Name: "fuzz", Limits: Limits{QPs: 64, CQs: 64, EQs: 8, KeyIndexBits: 10}, Clock: func() int64 { return 1 }})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c, h
}

// settle steps the card; it must come to an end of its work.
func settle(t *testing.T, c *Card) {
	for range 1000 {
		if !c.Step(1, 64) {
			return
		}
	}
	t.Fatal("the card finds work without end")
}

// works checks that the card still does what a good client wants.
func works(t *testing.T, c *Card, h *flatHost) {
	t.Helper()
	c.Attach(h)
	settle(t, c)
	c.writeConfig(vfio.ConfigCommand, []byte{6, 0})
	for off, v := range map[uint64]uint32{
		hw.RegControlCommandRing: uint32(h.base), hw.RegControlCommandRing + 4: uint32(h.base >> 32),
		hw.RegControlReplyRing: uint32(h.base + 4096), hw.RegControlReplyRing + 4: uint32((h.base + 4096) >> 32), hw.RegControlCommandSize: 2,
	} {
		put32(t, c, off, v)
	}
	clear(h.mem[:8192])
	put32(t, c, hw.RegControlCommandEnable, 1)
	e := hw.CommandEntry{Opcode: hw.CommandNop, Token: 0x1234}
	copy(h.mem, e.AsBytes())
	put32(t, c, hw.RegControlCommandDoorbell, 1)
	settle(t, c)
	var p hw.CommandReply
	copy(p.AsBytes(), h.mem[4096:])
	if p.Token != 0x1234 || p.Status != hw.CommandStatusOK || !p.Phase() {
		t.Fatalf("the card is broken: reply %+v", p)
	}
}

func put32(t *testing.T, c *Card, off uint64, v uint32) {
	t.Helper()
	var b [4]byte
	le.PutUint32(b[:], v)
	if err := c.WriteRegion(hw.BARCtrl, off, b[:]); err != nil {
		t.Fatal(err)
	}
}

// FuzzCommands gives the card commands and mailboxes of any bytes. Each is
// answered, with a status that the contract has; the card lives on.
func FuzzCommands(f *testing.F) {
	add := func(op hw.Command, object uint32, mailbox []byte) {
		e := hw.CommandEntry{Opcode: op, Object: object, InIOVA: 0x10_0000_4000, InLength: uint32(len(mailbox)), OutIOVA: 0x10_0000_6000, OutLength: 4096}
		f.Add(append(e.AsBytes()[:64:64], mailbox...))
	}
	eq := hw.EQContext{IOVA: 0x10_0001_0000, Doorbell: 4096, LogEntries: 4, Async: 1}
	add(hw.CommandCreateEQ, 0, eq.AsBytes())
	cq := hw.CQContext{IOVA: 0x10_0002_0000, Doorbell: 8192, LogEntries: 4}
	add(hw.CommandCreateCQ, 0, cq.AsBytes())
	qp := hw.QPContext{Type: hw.QPTypeRC, SQIOVA: 0x10_0003_0000, RQIOVA: 0x10_0004_0000, SQLogBlocks: 5, RQLogEntries: 2, RQLogStride: 6, SQDoorbell: 12288, RQDoorbell: 12352}
	add(hw.CommandCreateQP, 2, qp.AsBytes())
	key := hw.KeyEntry{Length: 4096, IOVA: 0x10_0000_0000}
	key.SetState(hw.KeyStateValid)
	add(hw.CommandWriteKey, 3, key.AsBytes())
	port := hw.PortContext{MAC: [6]byte{2}, ActiveMTU: hw.MTU4096, PKeyCount: 1}
	add(hw.CommandModifyPort, 1, port.AsBytes())
	ring := hw.RingContext{IOVA: 0x10_0005_0000, LogEntries: 4, LogStride: 7, All: 1}
	add(hw.CommandSetCapture, 0, ring.AsBytes())
	rate := hw.RateLimit{Rate: 1000, Burst: 10000}
	add(hw.CommandSetRate, 1, rate.AsBytes())
	for _, op := range []hw.Command{hw.CommandList, hw.CommandQueryQP, hw.CommandQueryPort, hw.CommandReadKey, hw.CommandReadKeyCache, hw.CommandFenceKey, hw.CommandDestroyCQ} {
		add(op, 1, nil)
	}
	c, h := fuzzCard(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		works(t, c, h)
		sent := uint32(1)
		for ; len(b) >= hw.CommandEntrySize && sent < 40; sent++ {
			var e hw.CommandEntry
			copy(e.AsBytes(), b)
			e.Token = sent
			b = b[hw.CommandEntrySize:]
			if e.InIOVA%4 != 3 { // mostly a mailbox that is there, of the length that it says
				e.InIOVA = h.base + 0x4000
				n := min(int(e.InLength%1024), len(b))
				copy(h.mem[0x4000:], b[:n])
				b = b[n:]
			}
			if e.OutIOVA%4 != 3 {
				e.OutIOVA = h.base + 0x6000
			}
			copy(h.mem[(sent&3)*hw.CommandEntrySize:], e.AsBytes())
			put32(t, c, hw.RegControlCommandDoorbell, sent+1)
			settle(t, c)
			if !c.cmd.enabled {
				if s := hw.CommandStatus(c.regs.word[hw.RegControlCommandError/4]); s != hw.CommandStatusDMAError {
					t.Fatalf("the queue stopped: %v", s)
				}
				break
			}
			var p hw.CommandReply
			copy(p.AsBytes(), h.mem[4096+(sent&3)*hw.CommandReplySize:])
			// A command may have had the reply ring itself as its output.
			overwrote := e.OutLength > 0 && e.OutIOVA < h.base+8192 && e.OutIOVA+uint64(e.OutLength) > h.base
			if !overwrote && c.capt.ctx.IOVA == 0 && c.trc.ctx.IOVA == 0 && len(c.liveCQ) == 0 && c.async == nil &&
				(p.Token != sent || !p.Status.Valid() || !p.Syndrome.Valid() || p.OutLength > e.OutLength) {
				t.Fatalf("reply %+v to %+v", p, e)
			}
		}
		works(t, c, h)
	})
}

// FuzzRegisters gives the card register accesses of any kind, doorbells and key
// entries, between steps. The card lives on.
func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0, 0x10, 0x34, 1, 0, 0, 0, 9, 0x10, 0x38, 1, 0, 0, 0})
	f.Add([]byte{0, 0x80, 0x30, 1, 0, 0, 0, 0, 0x80, 0x34, 3, 0, 0, 0, 0, 0x80, 0x40, 1, 0, 0, 0})
	f.Add([]byte{2, 0x10, 0x00, 1, 2, 3, 4, 3, 0, 0x3c, 0, 2, 0, 0, 1, 0, 4, 6, 0, 0, 0})
	c, h := fuzzCard(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		works(t, c, h)
		for n := 0; len(b) >= 7 && n < 200; n, b = n+1, b[7:] {
			off, v := uint64(b[1])<<8|uint64(b[2]), b[3:7]
			switch b[0] % 9 {
			case 0:
				_ = c.WriteRegion(hw.BARCtrl, off&^3, v)
			case 1: // a store of any length
				_ = c.WriteRegion(hw.BARCtrl, off, b[3:3+b[0]%5])
			case 2:
				_ = c.WriteRegion(hw.BARDoorbell, off&^3, v)
			case 3:
				_ = c.WriteRegion(hw.BARKeytable, off&^3, v)
			case 4:
				p := make([]byte, min(int(v[0])+1, hw.BARCtrlSize-int(off)))
				_ = c.ReadRegion(hw.BARCtrl, off, p)
			case 5:
				if o := off % configBytes; o+4 <= configBytes {
					_ = c.WriteRegion(vfio.RegionConfig, o, v)
				}
			case 6:
				mmio.Store32(c.mem.word(uint32(off)&^3), le.Uint32(v))
			case 7:
				c.Step(int64(n), 8)
			case 8:
				p := make([]byte, 1+int(v[0]))
				_ = c.ReadRegion(hw.BARDoorbell, off, p)
				_ = c.ReadRegion(vfio.RegionConfig, off%(configBytes-256), p)
			}
		}
		works(t, c, h)
	})
}
