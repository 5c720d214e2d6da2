#include "shim.h"

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#ifdef RTL_128
#include "Vengine128.h"
#endif
#ifdef RTL_256
#include "Vengine256.h"
#endif
#ifdef RTL_512
#include "Vengine512.h"
#endif
#include "verilated.h"

double sc_time_stamp() { return 0; }

static const int contexts = 4;  // the module's default

namespace {

struct Job {
  uint8_t walk[44], head[120];
};
struct Word {
  uint8_t data[16];
};
struct Answer {  // to a read
  uint32_t tag, n;
  uint64_t address;
  bool error;
  uint64_t due;
  uint32_t beat, beats, fails;  // fails: the beat that says so
  std::vector<uint8_t> data;
  bool fetch;  // of a WQE: its beats take the port, and are not the engine's
  Job job;
  uint32_t context;
  std::vector<Word> words;
};
struct Entry {
  uint32_t context;
  bool exists;
  uint64_t due;
  uint8_t data[64];
};
struct Rate {
  uint32_t index;
  uint64_t quantum, burst;
};

template <class P>
void load(P &port, const uint8_t *from, size_t n) { memcpy(&port[0], from, n); }

}  // namespace

struct rtl {
  virtual ~rtl() {}
  virtual uint32_t run(uint32_t cycles) = 0;
  virtual void reset() = 0;
  virtual uint64_t counter(uint32_t index) = 0;

  uint32_t bytes = 0;  // of a beat
  uint32_t option[RTL_OPTIONS] = {};
  uint64_t now = 0;
  std::mt19937_64 rng;
  std::deque<Job> jobs[contexts];
  std::deque<Word> words[contexts];
  std::vector<Answer> answers;
  std::vector<Entry> entries;
  std::deque<Answer> fetches;  // WQEs that are to be fetched
  uint32_t ahead = 0;  // WQEs that were asked for and whose job is not over
  uint32_t asked = 0;  // bytes of the first fetch that were asked for
  std::deque<uint32_t> fences;
  std::deque<Rate> rates;
  uint32_t ticks = 0;
  bool ignored = false;
  std::deque<rtl_event> events;
  std::vector<uint8_t> frame;
  uint64_t began = 0;  // cycle of the frame's first beat

  bool chance(uint32_t percent) { return percent != 0 && rng() % 100 < percent; }
  uint64_t due() {
    uint64_t lo = option[RTL_LATENCY_MIN], hi = option[RTL_LATENCY_MAX];
    return now + lo + (hi > lo ? rng() % (hi - lo + 1) : 0);
  }
};

namespace {

template <class M, int WB>
struct Engine : rtl {
  VerilatedContext context;
  M m;
  size_t mixing = 0;  // the answer whose beats go on

  Engine() : m(random(context)) {
    m.clk = 0;
    m.rst = 1;
    reset();
  }

  // What is not reset begins with any value.
  static VerilatedContext *random(VerilatedContext &c) {
    c.randReset(2);
    return &c;
  }

  void edge() {
    m.clk = 1;
    m.eval();
    m.clk = 0;
    now++;
  }

  void reset() override {
    for (int c = 0; c < contexts; c++) jobs[c].clear(), words[c].clear();
    answers.clear(), entries.clear(), fetches.clear(), ahead = asked = 0, fences.clear(), rates.clear(), events.clear(), frame.clear();
    ticks = 0;
    m.rst = 1;
    m.job_valid = m.segment_valid = m.tick = m.rate_valid = m.entry_valid = m.fence_valid = m.beat_valid = 0;
    m.fill_ready = m.read_ready = m.frame_ready = m.result_ready = m.trace_ready = 0;
    for (int i = 0; i < 4; i++) {
      m.eval();
      edge();
    }
    m.rst = 0;
  }

  template <class P>
  void emit(uint32_t kind, uint32_t c, const P &port, size_t n) {
    rtl_event e = {};
    e.kind = kind, e.context = c, e.cycle = now, e.length = n;
    memcpy(e.data, &port[0], n);
    events.push_back(e);
  }
  void emit(uint32_t kind, uint32_t c, uint32_t a, uint32_t b, uint64_t address) {
    rtl_event e = {};
    e.kind = kind, e.context = c, e.a = a, e.b = b, e.c = address, e.cycle = now;
    events.push_back(e);
  }

  // The answer whose next beat comes now, or -1.
  int pick() {
    if (answers.empty() || chance(option[RTL_STALL_BEAT])) return -1;
    if (!option[RTL_MIX] && mixing < answers.size() && answers[mixing].beat != 0) return mixing;
    size_t start = option[RTL_MIX] ? rng() % answers.size() : 0;
    for (size_t i = 0; i < answers.size(); i++) {
      size_t at = (start + i) % answers.size();
      if (answers[at].due <= now) return mixing = at;
    }
    return -1;
  }

  uint32_t run(uint32_t cycles) override {
    uint32_t ran = 0;
    while (ran < cycles && events.empty()) {
      cycle();
      ran++;
    }
    return ran;
  }

  void cycle() {
    // Inputs.
    m.job_valid = 0;
    for (int i = 0; i < contexts; i++) {
      int c = (now + i) % contexts;
      if (jobs[c].empty()) continue;
      m.job_valid = 1;
      m.job_context = c;
      load(m.job_walk, jobs[c].front().walk, 44);
      load(m.job_head, jobs[c].front().head, 120);
      break;
    }
    m.segment_valid = 0;
    if (!chance(option[RTL_STALL_SEGMENT]))
      for (int i = 0; i < contexts; i++) {
        int c = (now + i) % contexts;
        if (words[c].empty()) continue;
        m.segment_valid = 1;
        m.segment_context = c;
        load(m.segment, words[c].front().data, 16);
        break;
      }
    m.gate_ignored = ignored;
    m.tick = ticks != 0;
    m.rate_valid = !rates.empty();
    if (m.rate_valid) m.rate_index = rates.front().index, m.rate_quantum = rates.front().quantum, m.rate_burst = rates.front().burst;
    m.fence_valid = !fences.empty();
    if (m.fence_valid) m.fence_index = fences.front();
    m.entry_valid = 0;
    size_t entry = entries.size();
    for (size_t i = 0; i < entries.size(); i++)
      if (entries[i].due <= now) {
        entry = i;
        m.entry_valid = 1;
        m.entry_context = entries[i].context;
        m.entry_exists = entries[i].exists;
        load(m.entry, entries[i].data, 64);
        break;
      }
    int beat = pick();
    m.beat_valid = beat >= 0 && !answers[beat].fetch;
    if (m.beat_valid) {
      Answer &a = answers[beat];
      m.beat_tag = a.tag;
      m.beat_number = a.beat;
      m.beat_error = a.error && a.beat == a.fails;
      m.beat_last = a.beat + 1 == a.beats;
      uint8_t row[WB];
      uint64_t skip = a.address % WB;
      for (int i = 0; i < WB; i++) {
        uint64_t at = (uint64_t)a.beat * WB + i;
        row[i] = at >= skip && at - skip < a.n ? a.data[at - skip] : (uint8_t)rng();  // what was not asked for is anything
      }
      load(m.beat_data, row, WB);
    }
    bool fetching = !fetches.empty() && ahead < option[RTL_FETCH_AHEAD];
    m.read_ready = !fetching && !chance(option[RTL_STALL_READ]) && (!option[RTL_READS_MOST] || answers.size() < option[RTL_READS_MOST]);
    m.fill_ready = !chance(option[RTL_STALL_FILL]);
    m.frame_ready = !chance(option[RTL_STALL_FRAME]);
    m.result_ready = !chance(option[RTL_STALL_RESULT]);
    m.trace_ready = 1;
    m.eval();

    // What is handed over in this cycle.
    if (m.job_valid && m.job_ready) jobs[m.job_context].pop_front();
    if (m.result_valid && m.result_ready && ahead) ahead--;
    if (fetching) {
      // A request of at most 512 bytes a cycle, in the place of a read.
      asked += 512;
      if (asked >= fetches.front().n) {
        fetches.front().due = due();
        answers.push_back(std::move(fetches.front()));
        fetches.pop_front();
        ahead++;
        asked = 0;
      }
    }
    if (m.segment_valid && m.segment_ready) words[m.segment_context].pop_front();
    if (m.rate_valid) rates.pop_front();
    if (m.tick) ticks--;
    if (m.fence_valid && m.fence_ready) {
      emit(RTL_FENCED, 0, fences.front(), 0, 0);
      fences.pop_front();
    }
    if (m.entry_valid) entries.erase(entries.begin() + entry);
    if (beat >= 0 && answers[beat].fetch) {
      Answer &a = answers[beat];
      if (++a.beat == a.beats) {
        jobs[a.context].push_back(a.job);
        for (Word &w : a.words) words[a.context].push_back(w);
        answers.erase(answers.begin() + beat);
      }
    }
    if (m.beat_valid && m.beat_ready) {
      Answer &a = answers[beat];
      if (++a.beat == a.beats || m.beat_error) answers.erase(answers.begin() + beat);
    }
    if (m.read_valid && m.read_ready) emit(RTL_READ, 0, m.read_tag, m.read_bytes, m.read_address);
    if (m.fill_valid && m.fill_ready) emit(RTL_FILL, m.fill_context, m.fill_index, 0, 0);
    if (m.frame_valid && m.frame_ready) {
      uint8_t row[WB];
      memcpy(row, &m.frame_data[0], WB);
      if (frame.empty()) began = now;
      frame.insert(frame.end(), row, row + m.frame_bytes);
      if (m.frame_last) {
        rtl_event e = {};
        e.kind = RTL_FRAME, e.context = m.frame_context, e.c = began, e.cycle = now, e.length = frame.size();
        memcpy(e.data, frame.data(), frame.size() < sizeof e.data ? frame.size() : sizeof e.data);
        events.push_back(e);
        frame.clear();
      }
    }
    if (m.trace_valid) emit(RTL_TRACE, m.trace_context, m.trace, 16);
    if (m.result_valid && m.result_ready) emit(RTL_RESULT, m.result_context, m.result, 28);
    edge();
  }

  uint64_t counter(uint32_t index) override {
    m.count_index = index;
    cycle();
    m.eval();
    return m.count_value;
  }
};

}  // namespace

extern "C" {

rtl *rtl_open(int width, uint64_t seed) {
  rtl *r = nullptr;
#ifdef RTL_128
  if (width == 128) r = new Engine<Vengine128, 16>;
#endif
#ifdef RTL_256
  if (width == 256) r = new Engine<Vengine256, 32>;
#endif
#ifdef RTL_512
  if (width == 512) r = new Engine<Vengine512, 64>;
#endif
  if (r) r->rng.seed(seed), r->bytes = width / 8;
  return r;
}
void rtl_close(rtl *r) { delete r; }
void rtl_option(rtl *r, int option, uint32_t value) { r->option[option] = value; }
void rtl_reset(rtl *r) { r->reset(); }

int rtl_built(int width) {
#ifdef RTL_128
  if (width == 128) return 1;
#endif
#ifdef RTL_256
  if (width == 256) return 1;
#endif
#ifdef RTL_512
  if (width == 512) return 1;
#endif
  return 0;
}

static Job job(const uint8_t *walk, const uint8_t *head) {
  Job j;
  memcpy(j.walk, walk, sizeof j.walk);
  memcpy(j.head, head, sizeof j.head);
  return j;
}
static Word word(const uint8_t *bytes) {
  Word w;
  memcpy(w.data, bytes, sizeof w.data);
  return w;
}
void rtl_job(rtl *r, uint32_t context, const uint8_t *walk, const uint8_t *head) { r->jobs[context].push_back(job(walk, head)); }
void rtl_words(rtl *r, uint32_t context, const uint8_t *words, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) r->words[context].push_back(word(words + 16 * i));
}
void rtl_fetch(rtl *r, uint32_t context, const uint8_t *walk, const uint8_t *head, const uint8_t *words, uint32_t n, uint32_t bytes) {
  Answer a = {};
  a.fetch = true, a.context = context, a.job = job(walk, head), a.n = bytes, a.beats = (bytes + r->bytes - 1) / r->bytes;
  for (uint32_t i = 0; i < n; i++) a.words.push_back(word(words + 16 * i));
  r->fetches.push_back(std::move(a));
}

static void answer(rtl *r, uint32_t tag, uint64_t address, const uint8_t *data, uint32_t n) {
  Answer a = {};
  uint32_t wb = r->bytes;
  a.tag = tag, a.n = n, a.address = address, a.error = data == nullptr, a.due = r->due(), a.beat = 0;
  a.beats = (address % wb + n + wb - 1) / wb;
  a.fails = a.error ? r->rng() % a.beats : 0;
  a.data.resize(n);
  if (data) memcpy(a.data.data(), data, n);
  r->answers.push_back(std::move(a));
}
void rtl_complete(rtl *r, uint32_t tag, uint64_t address, const uint8_t *data, uint32_t n) { answer(r, tag, address, data, n); }
void rtl_fail(rtl *r, uint32_t tag, uint64_t address, uint32_t n) { answer(r, tag, address, nullptr, n); }

void rtl_entry(rtl *r, uint32_t context, int exists, const uint8_t *entry) {
  Entry e;
  e.context = context, e.exists = exists, e.due = r->due();
  memcpy(e.data, entry, 64);
  r->entries.push_back(e);
}
void rtl_fence(rtl *r, uint32_t index) { r->fences.push_back(index); }
void rtl_rate(rtl *r, uint32_t index, uint64_t quantum, uint64_t burst) { r->rates.push_back(Rate{index, quantum, burst}); }
void rtl_tick(rtl *r, uint32_t ticks) { r->ticks += ticks; }
void rtl_ignore_gate(rtl *r, int ignored) { r->ignored = ignored; }

uint32_t rtl_run(rtl *r, uint32_t cycles) { return r->run(cycles); }
int rtl_next(rtl *r, rtl_event *e) {
  if (r->events.empty()) return 0;
  *e = r->events.front();
  r->events.pop_front();
  return 1;
}
uint64_t rtl_now(rtl *r) { return r->now; }
uint64_t rtl_counter(rtl *r, uint32_t index) { return r->counter(index); }
}
