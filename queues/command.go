package queues

import (
	"fmt"
	"math/bits"

	"rnic/hw"
	"rnic/hw/mmio"
)

// Command is the command queue: a ring of commands and a ring of replies of
// the same size. Its doorbell is a register, which its owner stores.
type Command struct {
	cmd      []hw.CommandEntry
	reply    []hw.CommandReply
	log      uint8
	producer uint32 // absolute count of commands
	consumer uint32 // absolute count of replies taken
}

// NewCommand makes a command queue of two zeroed rings of a power of two of
// entries.
func NewCommand(cmd, reply []byte) (*Command, error) {
	n := len(cmd) / hw.CommandEntrySize
	if len(cmd)%hw.CommandEntrySize != 0 || len(reply) != len(cmd) || bits.OnesCount(uint(n)) != 1 || n > 1<<16 {
		return nil, fmt.Errorf("queues: command rings of %d and %d bytes: want the same power of two of entries of %d", len(cmd), len(reply), hw.CommandEntrySize)
	}
	q := &Command{cmd: hw.SliceCommandEntry(cmd), reply: hw.SliceCommandReply(reply), log: uint8(bits.Len(uint(n)) - 1)}
	if q.cmd == nil || q.reply == nil {
		return nil, fmt.Errorf("queues: command rings are not aligned to %d bytes", hw.CommandEntryAlign)
	}
	return q, nil
}

// Entries is the size of each ring.
func (q *Command) Entries() uint32 { return uint32(len(q.cmd)) }

// LogEntries is log2 of Entries.
func (q *Command) LogEntries() uint8 { return q.log }

// Post writes a command and gives the new producer index, to be stored in the
// doorbell register after it (the barrier is in here). It reports false where
// as many commands as the ring has await their replies.
func (q *Command) Post(e *hw.CommandEntry) (producer uint32, ok bool) {
	if q.producer-q.consumer >= uint32(len(q.cmd)) {
		return q.producer, false
	}
	q.cmd[q.producer&uint32(len(q.cmd)-1)] = *e
	q.producer++
	mmio.ToDevice()
	return q.producer, true
}

// Next takes the oldest reply, if there is one.
func (q *Command) Next(r *hw.CommandReply) bool {
	p := &q.reply[q.consumer&uint32(len(q.reply)-1)]
	if (mmio.Load32(&p.Owner)^phase(q.consumer, q.log))&1 != 0 {
		return false
	}
	mmio.FromDevice()
	*r = *p
	q.consumer++
	return true
}
