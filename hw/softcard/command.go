package softcard

import (
	"encoding/binary"

	"rnic/hw"
	"rnic/hw/mmio"
)

var le = binary.LittleEndian

// commandQueue is the command queue, as the control registers started it.
type commandQueue struct {
	enabled       bool
	ring, replies uint64
	log           uint8
	consumer      uint32 // commands taken
	replied       uint32 // replies written
	vector        uint32
}

// command is a command that is being served: a copy of its entry, and what its
// reply says.
type command struct {
	hw.CommandEntry
	value  uint64
	outLen uint32
}

// result is the status and the syndrome of a reply.
type result struct {
	status   hw.CommandStatus
	syndrome hw.CommandSyndrome
}

var ok = result{}

func bad(s hw.CommandStatus, y hw.CommandSyndrome) result { return result{s, y} }

func param(y hw.CommandSyndrome) result { return result{hw.CommandStatusBadParam, y} }

// takeEdges does what was posted and needs no DMA.
func (c *Card) takeEdges() {
	c.count[cntKicks] += c.live.kicks
	c.live.kicks = 0
	for _, v := range c.live.flips {
		c.keys.flip(int(v>>16), int(v&0xffff))
	}
	c.live.flips = nil
	c.releaseInterrupts()
	if c.live.cmdStop || c.live.cmdStart {
		c.stopCommands()
	}
	if c.live.cmdStart {
		c.startCommands()
	}
	c.live.cmdStart, c.live.cmdStop = false, false
}

func (c *Card) startCommands() {
	r := &c.regs
	r.mu.Lock()
	q := commandQueue{
		ring:    uint64(r.word[hw.RegControlCommandRing/4]) | uint64(r.word[hw.RegControlCommandRing/4+1])<<32,
		replies: uint64(r.word[hw.RegControlReplyRing/4]) | uint64(r.word[hw.RegControlReplyRing/4+1])<<32,
		vector:  r.word[hw.RegControlCommandVector/4],
	}
	size := r.word[hw.RegControlCommandSize/4]
	r.mu.Unlock()
	n := uint64(hw.CommandEntrySize) << (size & 31)
	if size == 0 || size > c.lim.CommandLogEntries || q.ring%4096 != 0 || q.replies%4096 != 0 || wraps(q.ring, n) || wraps(q.replies, n) ||
		q.vector != ^uint32(0) && q.vector >= c.lim.Vectors {
		c.commandError(hw.CommandStatusBadParam)
		return
	}
	q.log, q.enabled = uint8(size), true
	c.cmd = q
	c.commandState(true)
}

func (c *Card) stopCommands() {
	c.cmd.enabled = false
	c.commandState(false)
}

func (c *Card) commandState(on bool) {
	r := &c.regs
	r.mu.Lock()
	if r.resets == c.live.resets {
		w := hw.ControlStatus(r.word[hw.RegControlStatus/4])
		r.word[hw.RegControlStatus/4] = uint32(w.WithCommandEnabled(on))
	}
	r.mu.Unlock()
}

// commandError stops the queue: what the client is to read cannot be told it any
// other way.
func (c *Card) commandError(s hw.CommandStatus) {
	c.regs.set(hw.RegControlCommandError, uint32(s))
	c.stopCommands()
}

// runCommands serves commands that wait, at most budget.
func (c *Card) runCommands(budget int) (worked bool) {
	q := &c.cmd
	for ; q.enabled && q.consumer != c.live.cmdProducer && budget > 0; budget-- {
		worked = true
		mask := uint32(1)<<q.log - 1
		if c.live.cmdProducer-q.consumer > mask+1 {
			c.commandError(hw.CommandStatusBadParam)
			break
		}
		if c.dmaRead(q.ring+uint64(q.consumer&mask)*hw.CommandEntrySize, c.out.command.AsBytes()) != hw.ReasonNone {
			c.commandError(hw.CommandStatusDMAError)
			break
		}
		cmd := command{CommandEntry: c.out.command}
		q.consumer++
		r := c.execute(&cmd)
		// In flight writes of the card are in memory: DMA is done in Step's order.
		reply := &c.out.reply
		*reply = hw.CommandReply{
			Opcode: cmd.Opcode, Status: r.status, Syndrome: r.syndrome, Token: cmd.Token, Object: cmd.Object,
			Value: cmd.value, OutLength: cmd.outLen, Owner: phase(q.replied, q.log),
		}
		mmio.ToDevice()
		if c.writeOwned(q.replies+uint64(q.replied&mask)*hw.CommandReplySize, reply.AsBytes()) != hw.ReasonNone {
			c.commandError(hw.CommandStatusDMAError)
			break
		}
		q.replied++
		c.count[cntCommands]++
		if q.vector != ^uint32(0) {
			c.interrupt(q.vector)
		}
	}
	return worked
}

// execute does one command.
func (c *Card) execute(cmd *command) result {
	if !cmd.ReservedZero() {
		return result{status: hw.CommandStatusReservedNotZero}
	}
	switch cmd.Opcode {
	case hw.CommandNop:
		return ok
	case hw.CommandCreateEQ:
		return c.createEQ(cmd)
	case hw.CommandDestroyEQ:
		return c.destroyEQ(cmd)
	case hw.CommandQueryEQ:
		return c.queryEQ(cmd)
	case hw.CommandCreateCQ:
		return c.createCQ(cmd)
	case hw.CommandDestroyCQ:
		return c.destroyCQ(cmd)
	case hw.CommandQueryCQ:
		return c.queryCQ(cmd)
	case hw.CommandCreateQP:
		return c.createQP(cmd)
	case hw.CommandDestroyQP:
		return c.destroyQP(cmd)
	case hw.CommandModifyQP:
		return c.modifyQP(cmd)
	case hw.CommandQueryQP:
		return c.queryQP(cmd)
	case hw.CommandWriteKey:
		return c.writeKey(cmd)
	case hw.CommandReadKey:
		return c.readKey(cmd)
	case hw.CommandFenceKey:
		return c.fenceKey(cmd)
	case hw.CommandReadKeyCache:
		return c.readKeyCache(cmd)
	case hw.CommandSetRate:
		return c.setRate(cmd)
	case hw.CommandQueryRate:
		return c.queryRate(cmd)
	case hw.CommandModifyPort:
		return c.modifyPort(cmd)
	case hw.CommandQueryPort:
		return c.queryPort(cmd)
	case hw.CommandSetTrace:
		return c.setTrace(cmd)
	case hw.CommandSetCapture:
		return c.setCapture(cmd)
	case hw.CommandSetHostGather:
		return c.setHostGather(cmd)
	case hw.CommandSetDMALog:
		return c.setDMALog(cmd)
	case hw.CommandList:
		return c.list(cmd)
	case hw.CommandCreateSRQ, hw.CommandDestroySRQ, hw.CommandModifySRQ, hw.CommandQuerySRQ:
		return result{status: hw.CommandStatusUnsupported}
	}
	return result{status: hw.CommandStatusBadOpcode}
}

// mailbox reads the input mailbox, which must have the size of p.
func (c *Card) mailbox(cmd *command, p []byte) result {
	if cmd.InLength != uint32(len(p)) {
		return param(hw.CommandSyndromeLength)
	}
	if c.dmaRead(cmd.InIOVA, p) != hw.ReasonNone {
		return result{status: hw.CommandStatusDMAError}
	}
	return ok
}

// answer writes the output mailbox, as much as the client has room for.
func (c *Card) answer(cmd *command, p []byte) result { return c.answerAt(cmd, 0, p) }

// answerAt writes p at an offset of the output mailbox.
func (c *Card) answerAt(cmd *command, off int, p []byte) result {
	if uint64(off) >= uint64(cmd.OutLength) {
		return ok
	}
	p = p[:min(len(p), int(cmd.OutLength)-off)]
	if len(p) == 0 {
		return ok
	}
	if c.dmaWrite(cmd.OutIOVA+uint64(off), p) != hw.ReasonNone {
		return result{status: hw.CommandStatusDMAError}
	}
	cmd.outLen = uint32(off + len(p))
	return ok
}

// list answers LIST: the numbers in use from modifier on, as many as there is
// room for; value is how many there are.
func (c *Card) list(cmd *command) result {
	var buf [1024]byte
	n, off, r := 0, 0, ok
	flush := func() {
		if r == ok {
			r = c.answerAt(cmd, off, buf[:n])
		}
		off, n = off+n, 0
	}
	put := func(v uint32) {
		if v < cmd.Modifier {
			return
		}
		cmd.value++
		if uint64(off+n)+4 > uint64(cmd.OutLength) {
			return
		}
		le.PutUint32(buf[n:], v)
		if n += 4; n == len(buf) {
			flush()
		}
	}
	switch hw.ListKind(cmd.Object) {
	case hw.ListKindQP:
		c.eachQPN(put)
	case hw.ListKindCQ:
		for i, q := range c.cqs {
			if q != nil {
				put(uint32(i))
			}
		}
	case hw.ListKindEQ:
		for i, q := range c.eqs {
			if q != nil {
				put(uint32(i))
			}
		}
	case hw.ListKindSRQ:
	case hw.ListKindKey:
		c.mem.eachKey(cmd.Modifier, uint32(1)<<c.lim.KeyIndexBits, put)
	default:
		return bad(hw.CommandStatusBadObject, hw.CommandSyndromeNone)
	}
	flush()
	return r
}
