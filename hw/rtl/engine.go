//go:build rtl

package rtl

// #cgo LDFLAGS: -L${SRCDIR}/../../bitstream/sim/build -lrnicrtl -lstdc++ -lm -lpthread -latomic
// #include "../../bitstream/sim/shim.h"
import "C"

import (
	"fmt"

	"rnic/hw"
)

// Option is a property of the engine's surroundings.
type Option int

// The options. A latency is in cycles, from a read or a fill to its answer; a stall is the share of the cycles,
// in percent, in which a port does not take or give.
const (
	LatencyMin   Option = C.RTL_LATENCY_MIN
	LatencyMax   Option = C.RTL_LATENCY_MAX
	Mix          Option = C.RTL_MIX // 1: beats of several reads come mixed
	StallRead    Option = C.RTL_STALL_READ
	StallFill    Option = C.RTL_STALL_FILL
	StallFrame   Option = C.RTL_STALL_FRAME
	StallResult  Option = C.RTL_STALL_RESULT
	StallBeat    Option = C.RTL_STALL_BEAT
	StallSegment Option = C.RTL_STALL_SEGMENT
	ReadsMost    Option = C.RTL_READS_MOST  // reads in flight at the same time; 0: as many as the engine has tags
	FetchAhead   Option = C.RTL_FETCH_AHEAD // WQEs of SubmitFetched that are fetched, or whose jobs are under way, at the same time
)

// Engine is one engine, with its surroundings: memory and key table are the Handler's.
type Engine struct {
	c     *C.rtl
	event C.rtl_event
	cycle uint64
	began uint64
}

// Built says whether there is an engine in this program.
const Built = true

// Widths are those of the engines in this program, in bits, the widest last.
func Widths() (widths []int) {
	for _, w := range []int{128, 256, 512} {
		if C.rtl_built(C.int(w)) != 0 {
			widths = append(widths, w)
		}
	}
	return widths
}

// Open makes an engine of a data path of width bits, one of Widths. Its surroundings answer at once, in
// order and without stalls; what is not reset begins with any value, drawn from seed.
func Open(width int, seed uint64) (Simulator, error) { return open(width, seed) }

func open(width int, seed uint64) (*Engine, error) {
	c := C.rtl_open(C.int(width), C.uint64_t(seed))
	if c == nil {
		return nil, fmt.Errorf("rtl: no engine of %d bits was built; there are %v", width, Widths())
	}
	return &Engine{c: c}, nil
}

// Close frees the engine.
func (e *Engine) Close() {
	if e.c != nil {
		C.rtl_close(e.c)
		e.c = nil
	}
}

// SetOption sets a property of the surroundings.
func (e *Engine) SetOption(o Option, v uint32) { C.rtl_option(e.c, C.int(o), C.uint32_t(v)) }

// Reset resets the engine; jobs, answers and events that wait are dropped.
func (e *Engine) Reset() { C.rtl_reset(e.c) }

// Submit queues a job in a context.
func (e *Engine) Submit(context int, j *Job) {
	w := j.words()
	walk, head := j.walk(len(w)/16), j.head()
	C.rtl_job(e.c, C.uint32_t(context), (*C.uint8_t)(&walk.b[0]), (*C.uint8_t)(&head.b[0]))
	if len(w) > 0 {
		C.rtl_words(e.c, C.uint32_t(context), (*C.uint8_t)(&w[0]), C.uint32_t(len(w)/16))
	}
}

// SubmitFetched queues a job whose WQE of so many bytes is fetched first, over the port that the engine's reads
// use. FetchAhead says how many are on the way before the engine takes them.
func (e *Engine) SubmitFetched(context int, j *Job, bytes int) {
	w := j.words()
	walk, head := j.walk(len(w)/16), j.head()
	w = append(w, 0) // that there is a first byte
	C.rtl_fetch(e.c, C.uint32_t(context), (*C.uint8_t)(&walk.b[0]), (*C.uint8_t)(&head.b[0]), (*C.uint8_t)(&w[0]), C.uint32_t(len(w)/16), C.uint32_t(bytes))
}

// Complete answers a read with its bytes, which are copied.
func (e *Engine) Complete(tag uint32, iova uint64, data []byte) {
	C.rtl_complete(e.c, C.uint32_t(tag), C.uint64_t(iova), (*C.uint8_t)(&data[0]), C.uint32_t(len(data)))
}

// Fail answers a read of n bytes with an error.
func (e *Engine) Fail(tag uint32, iova uint64, n uint32) {
	C.rtl_fail(e.c, C.uint32_t(tag), C.uint64_t(iova), C.uint32_t(n))
}

// Entry answers a fill. exists is false for an index beyond the table.
func (e *Engine) Entry(context int, entry *hw.KeyEntry, exists bool) {
	in := C.int(0)
	if exists {
		in = 1
	}
	C.rtl_entry(e.c, C.uint32_t(context), in, (*C.uint8_t)(&entry.AsBytes()[0]))
}

// Fence invalidates a key index. Fenced is called when no copy of it is left, fills under way are discarded
// and the reads that used it are over (rule G11).
func (e *Engine) Fence(index uint32) { C.rtl_fence(e.c, C.uint32_t(index)) }

// SetRate sets a rate-limit entry: bytes that a tick adds, in nanobytes, and those that the bucket, which is
// full then, holds. Without a quantum the entry does not limit.
func (e *Engine) SetRate(index uint8, quantum uint64, burst uint32) {
	C.rtl_rate(e.c, C.uint32_t(index), C.uint64_t(quantum), C.uint64_t(uint64(burst)*1_000_000_000))
}

// Tick adds ticks to all buckets, as the engine runs.
func (e *Engine) Tick(n uint32) { C.rtl_tick(e.c, C.uint32_t(n)) }

// IgnoreGate lets everything pass the gate.
func (e *Engine) IgnoreGate(on bool) {
	v := C.int(0)
	if on {
		v = 1
	}
	C.rtl_ignore_gate(e.c, v)
}

// Count reads a counter.
func (e *Engine) Count(c Counter) uint64 { return uint64(C.rtl_counter(e.c, C.uint32_t(c))) }

// Now is the cycles that were run.
func (e *Engine) Now() uint64 { return uint64(C.rtl_now(e.c)) }

// Cycle is the cycle of the event that a handler is being told: of a frame, its last beat's.
func (e *Engine) Cycle() uint64 { return e.cycle }

// Began is the cycle of the first beat of the frame that a handler is being told.
func (e *Engine) Began() uint64 { return e.began }

// Run runs at most so many cycles, and tells h what happens. It stops early, and reports true, when done does.
func (e *Engine) Run(cycles uint32, h Handler, done func() bool) bool {
	for !done() {
		if cycles == 0 {
			return false
		}
		cycles -= uint32(C.rtl_run(e.c, C.uint32_t(cycles)))
		for C.rtl_next(e.c, &e.event) != 0 {
			e.deliver(h)
		}
	}
	return true
}

func (e *Engine) deliver(h Handler) {
	v := &e.event
	e.cycle, e.began = uint64(v.cycle), uint64(v.c)
	data := make([]byte, min(int(v.length), len(v.data)))
	for i := range data {
		data[i] = byte(v.data[i])
	}
	switch v.kind {
	case C.RTL_READ:
		h.Read(uint32(v.a), uint64(v.c), uint32(v.b))
	case C.RTL_FILL:
		h.Fill(int(v.context), uint32(v.a))
	case C.RTL_FRAME:
		h.Frame(int(v.context), data)
	case C.RTL_RESULT:
		h.Result(int(v.context), result(data))
	case C.RTL_TRACE:
		h.Trace(int(v.context), traceStep(data))
	case C.RTL_FENCED:
		h.Fenced(uint32(v.a))
	}
}
