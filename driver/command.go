package driver

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"rnic/hw"
	"rnic/queues"
	"rnic/vfio"
)

// Sizes of the command queue: so many commands at a time, each with mailboxes
// of its own.
const (
	commandLogEntries = 5
	mailboxIn         = 512
	mailboxOut        = 4096
)

// commands is the card's command queue. Any number of calls may be in
// progress; each has a slot, whose number is in the command's token. A call
// that gives up leaves its slot to the late reply, since the card may still
// write the slot's mailbox.
type commands struct {
	d *Device

	mu    sync.Mutex
	q     *queues.Command
	slots []commandSlot
	bogus uint64 // replies that no call awaits

	free     chan int      // slots that no command uses
	producer atomic.Uint32 // for the doorbell register
	dead     chan struct{} // closed when no reply will come any more
	deadOnce sync.Once
	cause    error // why, once dead is closed
}

type commandSlot struct {
	token     uint32
	busy      bool
	answered  bool // a second reply to the same command is nobody's
	abandoned bool
	reply     chan hw.CommandReply
	in, out   vfio.Block
}

// commandQueries are the registers that explain why a command got no answer.
var commandQueries = []string{"CONTROL.STATUS", "CONTROL.COMMAND_ENABLE", "CONTROL.COMMAND_ERROR", "COUNTERS.COMMANDS", "COUNTERS.DMA_FAULTS"}

// startCommands makes the command queue and starts it on the card, with
// vector 0 for its replies.
func (d *Device) startCommands() error {
	limit, err := d.ctrl.Read32(hw.RegIdentCommandLogEntries)
	if err != nil {
		return err
	}
	log := min(commandLogEntries, limit)
	n := 1 << log
	page := 4096
	cmd, err := d.alloc(n*hw.CommandEntrySize, page)
	if err != nil {
		return err
	}
	reply, err := d.alloc(n*hw.CommandReplySize, page)
	if err != nil {
		return err
	}
	q, err := queues.NewCommand(cmd.Bytes, reply.Bytes)
	if err != nil {
		return err
	}
	c := &commands{d: d, q: q, slots: make([]commandSlot, n), free: make(chan int, n), dead: make(chan struct{})}
	for i := range c.slots {
		s := &c.slots[i]
		s.reply = make(chan hw.CommandReply, 1)
		if s.in, err = d.alloc(mailboxIn, hw.QPContextAlign); err != nil {
			return err
		}
		if s.out, err = d.alloc(mailboxOut, hw.QPContextAlign); err != nil {
			return err
		}
		c.free <- i
	}
	d.cmd = c
	for _, w := range []struct {
		off  uint64
		v    uint64
		wide bool
	}{
		{hw.RegControlCommandRing, cmd.IOVA, true},
		{hw.RegControlReplyRing, reply.IOVA, true},
		{hw.RegControlCommandSize, uint64(log), false},
		{hw.RegControlCommandVector, 0, false},
		{hw.RegControlCommandEnable, 1, false},
	} {
		if w.wide {
			err = d.ctrl.Write64(w.off, w.v)
		} else {
			err = d.ctrl.Write32(w.off, uint32(w.v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kill ends all calls, now and later, with cause.
func (c *commands) kill(cause error) {
	c.deadOnce.Do(func() {
		c.cause = cause
		close(c.dead)
	})
}

// poll hands out the replies that are there.
func (c *commands) poll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var r hw.CommandReply
	for c.q.Next(&r) {
		i := int(r.Token & (1<<commandLogEntries - 1))
		if i >= len(c.slots) || !c.slots[i].busy || c.slots[i].answered || c.slots[i].token != r.Token {
			if c.bogus++; c.bogus == 1 {
				c.d.log.Warn("reply that no command awaits", zap.Uint32("token", r.Token), zap.Stringer("command", r.Opcode))
			}
			continue
		}
		s := &c.slots[i]
		if s.abandoned {
			s.busy, s.abandoned = false, false
			c.free <- i
			continue
		}
		s.answered = true
		s.reply <- r // has room: one reply for each command
	}
}

// Times of awaiting a reply: looking at the ring for spinTime, then sleeping
// until the interrupt, or for pollTime in case it does not come.
const (
	commandSpin = 50 * time.Microsecond
	commandPoll = 5 * time.Millisecond
)

// do has the card do a command. in is copied into the input mailbox, the
// output mailbox into out. The context must end.
func (c *commands) do(ctx context.Context, op hw.Command, object, modifier uint32, in, out []byte) (hw.CommandReply, error) {
	var r hw.CommandReply
	if len(in) > mailboxIn || len(out) > mailboxOut {
		panic(fmt.Sprintf("rnic: %v with mailboxes of %d and %d bytes", op, len(in), len(out)))
	}
	var i int
	select {
	case i = <-c.free:
	case <-c.dead:
		return r, c.cause
	case <-ctx.Done():
		return r, c.deadline(ctx, fmt.Sprintf("a free slot for %v: %d commands have no reply", op, len(c.slots)))
	}
	s := &c.slots[i]
	e := hw.CommandEntry{Opcode: op, Object: object, Modifier: modifier}
	if len(in) > 0 {
		copy(s.in.Bytes, in)
		e.InIOVA, e.InLength = s.in.IOVA, uint32(len(in))
	}
	if len(out) > 0 {
		clear(s.out.Bytes[:len(out)])
		e.OutIOVA, e.OutLength = s.out.IOVA, uint32(len(out))
	}
	c.mu.Lock()
	s.token += 1 << commandLogEntries
	s.token = s.token&^(1<<commandLogEntries-1) | uint32(i)
	s.busy, s.answered = true, false
	e.Token = s.token
	p, ok := c.q.Post(&e)
	if ok {
		c.producer.Store(p)
	}
	c.mu.Unlock()
	if !ok {
		panic("rnic: more commands than slots")
	}
	c.d.ring(&c.d.commandRung)

	start := time.Now()
	for n := 0; ; n++ {
		c.poll()
		select {
		case r = <-s.reply:
			return r, c.finish(i, &r, out)
		default:
		}
		if n%16 == 15 && time.Since(start) > commandSpin {
			break
		}
		runtime.Gosched()
	}
	t := time.NewTicker(commandPoll)
	defer t.Stop()
	for {
		select {
		case r = <-s.reply:
			return r, c.finish(i, &r, out)
		case <-t.C:
			c.poll()
		case <-c.dead:
			return r, c.cause // the slots die with the queue
		case <-ctx.Done():
			c.mu.Lock()
			select {
			case r = <-s.reply: // it came after all
				c.mu.Unlock()
				return r, c.finish(i, &r, out)
			default:
			}
			s.abandoned = true
			c.mu.Unlock()
			return r, c.deadline(ctx, fmt.Sprintf("the reply to %v of %#x", op, object))
		}
	}
}

// finish takes the result out of slot i and frees it.
func (c *commands) finish(i int, r *hw.CommandReply, out []byte) error {
	s := &c.slots[i]
	copy(out, s.out.Bytes[:min(r.OutLength, mailboxOut)])
	c.mu.Lock()
	s.busy = false
	c.mu.Unlock()
	c.free <- i
	if r.Status != hw.CommandStatusOK {
		return &CommandError{Command: r.Opcode, Object: r.Object, Status: r.Status, Syndrome: r.Syndrome}
	}
	return nil
}

// registerGrace is how long the registers have that explain a deadline.
const registerGrace = 100 * time.Millisecond

// deadline makes the error of a call that ended by its context. Registers that
// are all ones say that the device is gone, and end its use: no interrupt tells
// of a card that was pulled out.
func (c *commands) deadline(ctx context.Context, waited string) error {
	type result struct {
		regs []RegisterValue
		gone bool
	}
	got := make(chan result, 1)
	go func() { // ends within the backend's deadline
		var r result
		for _, name := range commandQueries {
			v, err := c.d.ReadRegister(name)
			if err != nil {
				r.gone = errors.Is(err, ErrDeviceGone)
				break
			}
			r.regs = append(r.regs, v)
		}
		if r.gone = r.gone || len(r.regs) > 0 && bits.OnesCount64(r.regs[0].Value) == 32; r.gone {
			c.d.die(fmt.Errorf("%w: its registers are all ones", ErrDeviceGone))
		}
		got <- r
	}()
	e := &DeadlineError{Waited: waited, Cause: context.Cause(ctx)}
	t := time.NewTimer(registerGrace)
	defer t.Stop()
	select {
	case r := <-got:
		if r.gone {
			return fmt.Errorf("%w: waited for %s", ErrDeviceGone, waited)
		}
		e.Registers = r.regs
	case <-t.C:
		e.Waited += "; its registers do not answer either"
	}
	return e
}

// command has the card do a command on one of its objects.
func (d *Device) command(ctx context.Context, op hw.Command, object, modifier uint32, in, out []byte) error {
	_, err := d.cmd.do(ctx, op, object, modifier, in, out)
	return err
}
