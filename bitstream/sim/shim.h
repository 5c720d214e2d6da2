// The transmit side under Verilator, for Go: ports become calls and events. The shim gives the engine its
// cycles, holds what waits at its inputs, and answers reads after a random latency, in any order, beats
// of several reads mixed. All randomness comes from the seed.
#ifndef RNIC_RTL_SHIM_H
#define RNIC_RTL_SHIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rtl rtl;

enum {
  RTL_READ = 1,  // a: tag, b: bytes, c: address
  RTL_FILL,      // context, a: key index
  RTL_FRAME,     // context, data, c: cycle of its first beat
  RTL_RESULT,    // context, data: engine_pkg::result_t
  RTL_TRACE,     // context, data: engine_pkg::trace_t
  RTL_FENCED,    // a: key index
};

typedef struct {
  uint32_t kind, context, a, b;
  uint64_t c;
  uint64_t cycle;
  uint32_t length;
  uint8_t data[4352];
} rtl_event;

enum {
  RTL_LATENCY_MIN,  // cycles from a read or a fill to its answer
  RTL_LATENCY_MAX,
  RTL_MIX,            // 1: beats of several reads are mixed
  RTL_STALL_READ,     // in percent of the cycles, read_ready is low
  RTL_STALL_FILL,     // fill_ready
  RTL_STALL_FRAME,    // frame_ready
  RTL_STALL_RESULT,   // result_ready
  RTL_STALL_BEAT,     // no beat comes
  RTL_STALL_SEGMENT,  // no segment comes
  RTL_READS_MOST,     // read_ready is low while so many reads are in flight; 0: no bound
  RTL_FETCH_AHEAD,    // WQEs that are fetched, or whose jobs are under way, at the same time
  RTL_OPTIONS
};

int rtl_built(int width);  // 128, 256 or 512: is there an engine of that width
rtl *rtl_open(int width, uint64_t seed);  // 0: not built
void rtl_close(rtl *r);
void rtl_option(rtl *r, int option, uint32_t value);
void rtl_reset(rtl *r);  // what waits at the inputs is dropped

// Inputs wait in queues without a bound. walk and head are the structures of engine_pkg, bit 0 first.
void rtl_job(rtl *r, uint32_t context, const uint8_t *walk, const uint8_t *head);
void rtl_words(rtl *r, uint32_t context, const uint8_t *words, uint32_t n);  // of 16 bytes
// The same, but its WQE of so many bytes is fetched first, over the port that the engine's reads use.
void rtl_fetch(rtl *r, uint32_t context, const uint8_t *walk, const uint8_t *head, const uint8_t *words, uint32_t n, uint32_t bytes);
void rtl_complete(rtl *r, uint32_t tag, uint64_t address, const uint8_t *data, uint32_t n);
void rtl_fail(rtl *r, uint32_t tag, uint64_t address, uint32_t n);
void rtl_entry(rtl *r, uint32_t context, int exists, const uint8_t *entry);
void rtl_fence(rtl *r, uint32_t index);
void rtl_rate(rtl *r, uint32_t index, uint64_t quantum, uint64_t burst);
void rtl_tick(rtl *r, uint32_t ticks);
void rtl_ignore_gate(rtl *r, int ignored);

// Runs until an event is there, or for that many cycles. Gives the cycles that were run.
uint32_t rtl_run(rtl *r, uint32_t cycles);
int rtl_next(rtl *r, rtl_event *e);  // 0: none
uint64_t rtl_now(rtl *r);            // cycles since it was opened
uint64_t rtl_counter(rtl *r, uint32_t index);

#ifdef __cplusplus
}
#endif
#endif
