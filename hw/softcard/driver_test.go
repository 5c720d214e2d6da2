package softcard

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/hw"
	"rnic/hw/mmio"
	"rnic/vfio"
	"rnic/vfio/vfiouser"
)

// rig is a card with a client of its own: a small driver that speaks to it through
// the vfio-user protocol over a socket pair, and fills rings by hand. Nothing but
// the test steps the card, so that each order of events can be forced.
type rig struct {
	t    testing.TB
	card *Card
	time atomic.Int64 // of the card's clock
	dev  vfio.Device
	conf *vfio.Config
	ctrl *vfio.BAR
	bell *vfio.BAR
	keys *vfio.BAR
	mem  *vfio.Memory

	vectors   map[int]int // eventfds
	log       uint8       // of the command ring
	sent      uint32
	token     uint32
	served    chan struct{} // closed when the server has ended
	free      uint64        // next free byte of mem
	unstepped bool          // a Runner steps the card
}

// Where things are: mem is mapped at memBase.
const (
	memBase   = uint64(0x10_0000)
	memBytes  = 8 << 20
	ringAt    = uint64(0)       // command ring
	repliesAt = uint64(0x4000)  // reply ring
	inAt      = uint64(0x8000)  // input mailbox
	outAt     = uint64(0x10000) // output mailbox, 64 KiB
	firstFree = uint64(0x20000)
)

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, vectors: map[int]int{}}
	if cfg.Clock == nil {
		cfg.Clock = func() int64 { return r.time.Load() }
	}
	var err error
	if r.card, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.card.Close() })
	r.attach()
	return r
}

// attach opens the card as its client, up to a card that is ready.
func (r *rig) attach() {
	r.t.Helper()
	client, server, err := vfiouser.Pair()
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan struct{})
	r.served = served
	go func() {
		defer close(served)
		_ = vfiouser.Serve(context.Background(), server, r.card)
	}()
	dev, err := vfiouser.Client(context.Background(), client, "test")
	if err != nil {
		r.t.Fatal(err)
	}
	r.dev = dev
	r.t.Cleanup(r.detach)
	r.conf, err = vfio.NewConfig(dev)
	r.must(err)
	for _, b := range []struct {
		bar **vfio.BAR
		i   int
	}{{&r.ctrl, hw.BARCtrl}, {&r.bell, hw.BARDoorbell}, {&r.keys, hw.BARKeytable}} {
		*b.bar, err = vfio.NewBAR(dev, b.i)
		r.must(err)
	}
	r.mem, err = vfio.AllocMemory(memBytes, vfio.MemoryOptions{})
	r.must(err)
	r.must(dev.MapDMA(memBase, r.mem, 0, memBytes, vfio.ProtReadWrite))
	r.waitReady()
}

// detach closes the client, if it has not gone yet.
func (r *rig) detach() {
	if r.dev == nil {
		return
	}
	for _, b := range []*vfio.BAR{r.ctrl, r.bell, r.keys} {
		_ = b.Release()
	}
	_ = r.dev.Close()
	<-r.served
	_ = r.mem.Close()
	for _, fd := range r.vectors {
		_ = unix.Close(fd)
	}
	r.dev, r.vectors = nil, map[int]int{}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// step steps the card once, at the rig's time.
func (r *rig) step() bool { return r.card.Step(r.time.Load(), 64) }

// run steps the card until it finds nothing to do.
func (r *rig) run() {
	r.t.Helper()
	for range 10_000 {
		if r.unstepped || !r.step() {
			return
		}
	}
	r.t.Fatal("the card finds work without end")
}

// until waits for a condition, stepping the card.
func (r *rig) until(what string, f func() bool) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); {
		if r.unstepped {
			time.Sleep(50 * time.Microsecond)
		} else {
			r.step()
		}
		if time.Now().After(end) {
			r.t.Fatalf("no end: %s", what)
		}
	}
}

func (r *rig) waitReady() {
	r.t.Helper()
	r.until("STATUS.READY", func() bool { return hw.ControlStatus(r.load(hw.RegControlStatus)).Ready() })
}

func (r *rig) load(off uint64) uint32 {
	r.t.Helper()
	v, err := r.ctrl.Read32(off)
	r.must(err)
	return v
}

func (r *rig) load64(off uint64) uint64 {
	r.t.Helper()
	v, err := r.ctrl.Read64(off)
	r.must(err)
	return v
}

func (r *rig) store(off uint64, v uint32) {
	r.t.Helper()
	r.must(r.ctrl.Write32(off, v))
}

func (r *rig) store64(off, v uint64) {
	r.t.Helper()
	r.must(r.ctrl.Write64(off, v))
}

// counter is a counter of block COUNTERS, by its register.
func (r *rig) counter(off uint64) uint64 {
	r.t.Helper()
	return r.load64(off)
}

// doorbell stores a doorbell word as a driver does.
func (r *rig) doorbell(off uint32, v uint32) {
	mmio.ToDevice()
	mmio.Store32(r.bell.Word32(uint64(off)), v)
}

// page is the offset of a doorbell page.
func (r *rig) page(n uint32) uint32 { return n * r.card.mem.stride }

// bytes is memory of the client, by its IOVA.
func (r *rig) bytes(iova uint64, n int) []byte {
	off := iova - memBase
	return r.mem.Bytes()[off : off+uint64(n)]
}

// alloc takes n bytes of the client's memory, page-aligned and zero.
func (r *rig) alloc(n int) (iova uint64) {
	r.t.Helper()
	if r.free == 0 {
		r.free = firstFree
	}
	iova = memBase + r.free
	r.free += (uint64(n) + 4095) &^ 4095
	if r.free > memBytes {
		r.t.Fatal("the rig's memory is used up")
	}
	clear(r.bytes(iova, n))
	return iova
}

// master turns bus mastering on or off.
func (r *rig) master(on bool) {
	r.t.Helper()
	r.must(r.conf.SetBusMaster(on))
}

// start turns bus mastering on and starts the command queue, of 2^log entries.
func (r *rig) start(log uint8) {
	r.t.Helper()
	r.master(true)
	clear(r.bytes(memBase+ringAt, 0x8000))
	r.log, r.sent = log, 0
	r.store64(hw.RegControlCommandRing, memBase+ringAt)
	r.store64(hw.RegControlReplyRing, memBase+repliesAt)
	r.store(hw.RegControlCommandSize, uint32(log))
	r.store(hw.RegControlCommandEnable, 1)
	r.until("COMMAND_ENABLED", func() bool { return hw.ControlStatus(r.load(hw.RegControlStatus)).CommandEnabled() })
}

// post puts a command on the ring without ringing for it.
func (r *rig) post(e hw.CommandEntry) (index uint32) {
	index = r.sent
	slot := uint64(index) & (1<<r.log - 1) * hw.CommandEntrySize
	copy(r.bytes(memBase+ringAt+slot, hw.CommandEntrySize), e.AsBytes())
	r.sent++
	return index
}

// reply waits for the reply number index.
func (r *rig) reply(index uint32) hw.CommandReply {
	r.t.Helper()
	slot := uint64(index) & (1<<r.log - 1) * hw.CommandReplySize
	v := hw.ViewCommandReply(r.bytes(memBase+repliesAt+slot, hw.CommandReplySize))
	r.until(fmt.Sprintf("reply to command %d", index), func() bool {
		return mmio.Load32(&v.Owner)&1 == uint32(^(index>>r.log)&1)
	})
	mmio.FromDevice()
	return *v
}

// command does one command and gives its reply and output.
func (r *rig) command(op hw.Command, object, modifier uint32, in []byte, out int) (hw.CommandReply, []byte) {
	r.t.Helper()
	r.token++
	e := hw.CommandEntry{Opcode: op, Token: r.token, Object: object, Modifier: modifier, InLength: uint32(len(in)), OutLength: uint32(out)}
	if len(in) != 0 {
		e.InIOVA = memBase + inAt
		copy(r.bytes(e.InIOVA, len(in)), in)
	}
	if out != 0 {
		e.OutIOVA = memBase + outAt
		clear(r.bytes(e.OutIOVA, out))
	}
	i := r.post(e)
	r.store(hw.RegControlCommandDoorbell, r.sent)
	p := r.reply(i)
	if p.Token != e.Token || p.Opcode != op || p.Object != object {
		r.t.Fatalf("reply %+v to %+v", p, e)
	}
	if p.OutLength > uint32(out) {
		r.t.Fatalf("%v: %d bytes of output, room for %d", op, p.OutLength, out)
	}
	return p, bytes.Clone(r.bytes(memBase+outAt, int(p.OutLength)))
}

// do does a command that must succeed.
func (r *rig) do(op hw.Command, object, modifier uint32, in []byte, out int) []byte {
	r.t.Helper()
	p, b := r.command(op, object, modifier, in, out)
	if p.Status != hw.CommandStatusOK {
		r.t.Fatalf("%v of %d: %v, %v", op, object, p.Status, p.Syndrome)
	}
	return b
}

// refused does a command that must be refused.
func (r *rig) refused(op hw.Command, object, modifier uint32, in []byte, status hw.CommandStatus, syndrome hw.CommandSyndrome) {
	r.t.Helper()
	if p, _ := r.command(op, object, modifier, in, 4096); p.Status != status || p.Syndrome != syndrome {
		r.t.Errorf("%v of %d: %v, %v; want %v, %v", op, object, p.Status, p.Syndrome, status, syndrome)
	}
}

// vector connects an eventfd to an MSI-X vector.
func (r *rig) vector(n int) {
	r.t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	r.must(err)
	r.vectors[n] = fd
	r.must(r.dev.SetIRQs(vfio.IRQMSIX, n, []int{fd}))
}

// fired is how often a vector fired since the last look.
func (r *rig) fired(n int) uint64 {
	r.t.Helper()
	var b [8]byte
	switch _, err := unix.Read(r.vectors[n], b[:]); err {
	case nil:
		return le.Uint64(b[:])
	case unix.EAGAIN:
		return 0
	default:
		r.t.Fatal(err)
		return 0
	}
}

// testEQ is an event queue of the rig.
type testEQ struct {
	r        *rig
	n        uint32
	iova     uint64
	log      uint8
	bell     uint32
	consumer uint32
}

func (r *rig) createEQ(n uint32, log uint8, vector uint16, async bool) *testEQ {
	r.t.Helper()
	q := &testEQ{r: r, n: n, iova: r.alloc(hw.EQESize << log), log: log, bell: r.page(1+n) + 64*(n%16)}
	x := hw.EQContext{IOVA: q.iova, Doorbell: q.bell, Vector: vector, LogEntries: log}
	if async {
		x.Async = 1
	}
	r.do(hw.CommandCreateEQ, n, 0, x.AsBytes(), 0)
	return q
}

// next takes the next event, if there is one, without telling the card.
func (q *testEQ) next() (hw.EQE, bool) {
	slot := uint64(q.consumer & (1<<q.log - 1) * hw.EQESize)
	v := hw.ViewEQE(q.r.bytes(q.iova+slot, hw.EQESize))
	if mmio.Load32(&v.Owner)&1 != uint32(^(q.consumer>>q.log)&1) {
		return hw.EQE{}, false
	}
	mmio.FromDevice()
	q.consumer++
	return *v, true
}

// told tells the card what was taken.
func (q *testEQ) told() { q.r.doorbell(q.bell, q.consumer) }

// testCQ is a completion queue of the rig.
type testCQ struct {
	r        *rig
	n        uint32
	iova     uint64
	log      uint8
	bell     uint32
	consumer uint32
	sequence uint8
}

func (r *rig) createCQ(n uint32, log uint8, eqn uint32) *testCQ {
	r.t.Helper()
	q := &testCQ{r: r, n: n, iova: r.alloc(hw.CQESize << log), log: log, bell: r.page(40+n) + 64*(n%16)}
	x := hw.CQContext{IOVA: q.iova, Doorbell: q.bell, EQN: eqn, LogEntries: log}
	r.do(hw.CommandCreateCQ, n, 0, x.AsBytes(), 0)
	return q
}

func (q *testCQ) next() (hw.CQE, bool) {
	slot := uint64(q.consumer & (1<<q.log - 1) * hw.CQESize)
	v := hw.ViewCQE(q.r.bytes(q.iova+slot, hw.CQESize))
	if mmio.Load32(&v.Owner)&1 != uint32(^(q.consumer>>q.log)&1) {
		return hw.CQE{}, false
	}
	mmio.FromDevice()
	q.consumer++
	return *v, true
}

func (q *testCQ) told() { q.r.doorbell(q.bell+hw.CQDoorbellCI, q.consumer) }

// arm asks for an event with a new sequence number.
func (q *testCQ) arm(solicited bool) {
	q.sequence++
	q.armWord(q.consumer, q.sequence, solicited)
}

func (q *testCQ) armWord(ci uint32, sequence uint8, solicited bool) {
	w := hw.CQArmWord(0).WithCI(ci & 0xffffff).WithSequence(sequence & 15).WithSolicitedOnly(solicited).WithArmed(true)
	q.r.doorbell(q.bell+hw.CQDoorbellArm, uint32(w))
}

// inside runs f as Step would: in the bracket of DMA.
func (r *rig) inside(f func()) {
	r.t.Helper()
	h := r.card.host
	if h == nil {
		r.t.Fatal("no client")
	}
	h.Enter()
	defer h.Exit()
	f()
	r.card.publish(true, 0)
}

// complete makes the card complete something on a CQ.
func (q *testCQ) complete(e hw.CQE, solicited bool) {
	q.r.t.Helper()
	q.r.inside(func() { q.r.card.cqe(q.r.card.cqs[q.n], &e, solicited) })
}

// pages is n bytes on pages of their own, without a file behind them.
func pages(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}
