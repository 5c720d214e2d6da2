// Package rtl is the transmit side in SystemVerilog, bitstream/rtl, as Verilator simulates it: jobs go in,
// reads and fills are asked for, frames, results and the trace come out. It is built with -tags rtl, after
// `make rtl`; without the tag Open says so.
package rtl

import (
	"errors"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// Contexts of the engine. Jobs of one are sent in order; those of different ones do not wait for one
// another.
const Contexts = 4

// MaxAckEvery is the longest AckReq interval that a job can ask for.
const MaxAckEvery = 1<<16 - 1

// Handler takes what comes out of the engine, in the order in which it does. It may call Complete, Fail
// and Entry.
type Handler interface {
	Read(tag uint32, iova uint64, n uint32) // to be answered by Complete or Fail
	Fill(context int, index uint32)         // to be answered by Entry
	Frame(context int, frame []byte)
	Result(context int, r Result)
	Trace(context int, t Trace)
	Fenced(index uint32)
}

// Simulator is one engine under simulation. It is for one caller at a time.
type Simulator interface {
	// Submit queues a job in a context.
	Submit(context int, j *Job)
	// Run runs at most so many cycles, and tells h what happens. It stops early, and reports true, when done
	// does.
	Run(cycles uint32, h Handler, done func() bool) bool
	// Complete answers a read with its bytes, which are copied.
	Complete(tag uint32, iova uint64, data []byte)
	// Fail answers a read of n bytes with an error.
	Fail(tag uint32, iova uint64, n uint32)
	// Entry answers a fill. exists is false for an index beyond the table.
	Entry(context int, entry *hw.KeyEntry, exists bool)
	// Fence invalidates a key index. Fenced is called when no copy of it is left, fills under way are
	// discarded and the reads that used it are over (rule G11).
	Fence(index uint32)
	// Count reads a counter.
	Count(c Counter) uint64
	// Reset resets the engine; jobs, answers and events that wait are dropped.
	Reset()
	// Close frees the engine.
	Close()
}

// ErrNotBuilt says that this program has no RTL engine in it.
var ErrNotBuilt = errors.New("rtl: built without the RTL engine; run `make rtl` and build with -tags rtl")

// Kind is what a job is for.
type Kind uint8

// The kinds of engine_pkg.sv.
const (
	Plain        Kind = iota // one frame without payload, by Header.Opcode
	Send                     // SEND
	Write                    // RDMA WRITE
	ReadResponse             // RDMA READ response
)

// Job is some packets of one message, from a cursor on.
type Job struct {
	Token uint32 // comes back in the result
	Chain bool   // it falls with the job before it in its context: same QP
	Trace bool   // report the steps of the walk (rule G22)
	Kind  Kind
	// Header is the headers' template. Of the first packet: PSN, IPID. Of a Plain job: Opcode, SE, AckReq. The
	// rest of the opcode is Transport, Imm, Inv and the packet's place in the message.
	Header    roce.Header
	Transport roce.Transport
	Imm, Inv  bool // the last packet has the extended header
	Solicited bool // of the last packet

	MTU      uint32 // bytes
	Packet   uint32 // number of the first packet in its message
	Packets  uint32 // at most so many; 0: to the message's end
	AckEvery uint32 // AckReq interval, up to MaxAckEvery (rule G13)
	Rate     uint8  // rate-limit entry; 0: not limited
	Who      gather.Who

	Cursor   gather.Cursor
	Segments []gather.Segment // of the message, all of them
	Inline   []byte           // with IsInline: the message itself
	IsInline bool
}

// Result is what has become of a job.
type Result struct {
	Token  uint32
	PSNs   uint32 // packets sent
	Fault  gather.Fault
	Cursor gather.Cursor // after the last one sent; meaningless where PSNs is 0
}

// Trace is a step of the walk. There is none for the frame itself: it is its own step.
type Trace struct {
	Kind    hw.TraceKind
	Hit     bool
	Reason  hw.Reason
	Segment uint8
	Offset  uint32
	Bytes   uint32 // PACKET, HANDOVER: left of the message
	Key     uint32 // PACKET: the packet's number
}

// Counter is a counter of the engine, by its number in engine_pkg.sv.
type Counter uint32

// The counters.
const (
	Lookups Counter = iota
	Hits
	Misses
	Evictions
	Fences
	FillsDiscarded
	Reads
	ReadBytes
	ReadFaults
	Timeouts
	Late // completions of reads that had timed out
	Frames
	FrameBytes
	Faults // packets dropped whole
	GateHolds
	TraceLost
)
