// The transmit side of the card, from a fetched WQE to finished frames:
//
//   job ► transfer ► gate            a context each: cursor, packets, pieces
//           └ keycache ► splitter    lookups, reads: contexts in turn
//               beats ► tags ► align ► pktbuf
//           ┌ handover               a context each: the walk's order, faults, trace
//           └ txbuild ► icrc ► frames
//
// A context serves one QP at a time; jobs of one context are sent in order, those of different contexts
// do not wait for one another. The card keeps PSNs and QP contexts.
module engine #(
    parameter int W = 512,  // data path: 128, 256 or 512 bits
    parameter int CONTEXTS = 4,  // a power of two from 2 to 16
    parameter int TAGS = 256,  // reads in flight, a power of two up to 256
    parameter int MRRS = 512,  // maximum read request in bytes
    parameter int BUFFER = 32768,  // bytes of each context's packet buffer, a power of two from 8192 up
    parameter int JOBS = 256,  // waiting or under way in a context
    parameter int WORDS = 128,  // of the jobs' segments, in a context
    parameter int PACKETS = 256,  // under way in a context
    parameter int READS = 512,  // entries under way in a context
    parameter int SETS = 64,  // of the key cache
    parameter int WAYS = 4,
    parameter int RATES = 16,  // rate-limit entries
    parameter int TIMEOUT = 65536  // cycles until a read has failed
) (
    input logic clk,
    input logic rst,

    input  logic job_valid,
    output logic job_ready,
    input  logic [$clog2(CONTEXTS)-1:0] job_context,
    input  logic [engine_pkg::WALK_BITS-1:0] job_walk,
    input  logic [engine_pkg::HEAD_BITS-1:0] job_head,
    input  logic segment_valid,
    output logic segment_ready,
    input  logic [$clog2(CONTEXTS)-1:0] segment_context,
    input  logic [127:0] segment,  // as in the WQE

    input  logic gate_ignored,
    input  logic tick,
    output logic tick_busy,
    input  logic rate_valid,
    input  logic [7:0] rate_index,
    input  logic [63:0] rate_quantum,
    input  logic [63:0] rate_burst,

    output logic fill_valid,
    input  logic fill_ready,
    output logic [23:0] fill_index,
    output logic [$clog2(CONTEXTS)-1:0] fill_context,
    input  logic entry_valid,
    input  logic [$clog2(CONTEXTS)-1:0] entry_context,
    input  logic entry_exists,
    input  logic [511:0] entry,

    input  logic fence_valid,
    output logic fence_ready,
    input  logic [23:0] fence_index,

    output logic read_valid,
    input  logic read_ready,
    output logic [$clog2(TAGS)-1:0] read_tag,
    output logic [63:0] read_address,
    output logic [12:0] read_bytes,
    input  logic beat_valid,
    output logic beat_ready,
    input  logic [$clog2(TAGS)-1:0] beat_tag,
    input  logic [8:0] beat_number,
    input  logic [W-1:0] beat_data,
    input  logic beat_last,
    input  logic beat_error,

    output logic frame_valid,
    input  logic frame_ready,
    output logic [W-1:0] frame_data,
    output logic [$clog2(W/8):0] frame_bytes,
    output logic frame_last,
    output logic [$clog2(CONTEXTS)-1:0] frame_context,

    output logic result_valid,
    input  logic result_ready,
    output logic [$clog2(CONTEXTS)-1:0] result_context,
    output logic [engine_pkg::RESULT_BITS-1:0] result,

    output logic trace_valid,
    input  logic trace_ready,
    output logic [$clog2(CONTEXTS)-1:0] trace_context,
    output logic [engine_pkg::TRACE_BITS-1:0] trace,

    input  logic [$clog2(engine_pkg::COUNTERS)-1:0] count_index,
    output logic [63:0] count_value
);
  localparam int CW = $clog2(CONTEXTS);
  localparam int TW = $clog2(TAGS);
  localparam int QW = $clog2(READS);
  localparam int PIB = engine_pkg::PIECE_BITS;
  localparam int PKB = engine_pkg::PACKET_BITS;
  localparam int OB = engine_pkg::OUTCOME_BITS;
  localparam int TB = engine_pkg::TRACE_BITS;

  logic [CONTEXTS-1:0] walk_room, head_room, word_room;
  assign job_ready = walk_room[job_context] && head_room[job_context];
  assign segment_ready = word_room[segment_context];

  logic [CONTEXTS-1:0] gate_valid, gate_pass;
  logic [CONTEXTS*8-1:0] gate_rate;
  logic [CONTEXTS*14-1:0] gate_bytes;
  logic gate_held;
  gate #(
      .CONTEXTS(CONTEXTS),
      .RATES(RATES)
  ) limiter (
      .clk,
      .rst,
      .ignored(gate_ignored),
      .tick,
      .set_valid(rate_valid),
      .set_index(rate_index),
      .set_quantum(rate_quantum),
      .set_burst(rate_burst),
      .valid(gate_valid),
      .ready(gate_pass),
      .rate(gate_rate),
      .bytes(gate_bytes),
      .busy(tick_busy),
      .held(gate_held)
  );

  logic [CONTEXTS-1:0] piece_valid, piece_ready, retired;
  logic [CONTEXTS*PIB-1:0] piece;
  logic found_valid, found_ready;
  logic [CW-1:0] found_context;
  logic [engine_pkg::FOUND_BITS-1:0] found;
  logic looked_up, hit, eviction;
  logic [CONTEXTS-1:0] discarded;
  keycache #(
      .CONTEXTS(CONTEXTS),
      .SETS(SETS),
      .WAYS(WAYS)
  ) translation (
      .clk,
      .rst,
      .piece_valid,
      .piece_ready,
      .piece,
      .found_valid,
      .found_ready,
      .found_context,
      .found,
      .fill_valid,
      .fill_ready,
      .fill_index,
      .fill_context,
      .entry_valid,
      .entry_context,
      .entry_exists,
      .entry,
      .fence_valid,
      .fence_ready,
      .fence_index,
      .retired,
      .count_lookup(looked_up),
      .count_hit(hit),
      .count_eviction(eviction),
      .count_discarded(discarded)
  );

  logic [CONTEXTS-1:0] entry_put, entry_room;
  logic [engine_pkg::ENTRY_BITS-1:0] walk_entry;
  logic walk_entry_done;
  logic [QW-1:0] walk_sequence;
  logic tag_valid, tag_ready;
  logic [TW-1:0] tag;
  logic [engine_pkg::PLACE_BITS-1:0] place;
  logic inline_valid, inline_ready;
  logic [127:0] inline_data;
  splitter #(
      .W(W),
      .CONTEXTS(CONTEXTS),
      .TAGS(TAGS),
      .READS(READS),
      .MRRS(MRRS)
  ) reader (
      .clk,
      .rst,
      .found_valid,
      .found_ready,
      .found_context,
      .found,
      .entry_valid(entry_put),
      .entry_ready(entry_room),
      .entry(walk_entry),
      .entry_done(walk_entry_done),
      .entry_sequence(walk_sequence),
      .tag_valid,
      .tag_ready,
      .tag,
      .place,
      .read_valid,
      .read_ready,
      .read_tag,
      .read_address,
      .read_bytes,
      .inline_valid,
      .inline_ready,
      .inline_data
  );

  logic placed_valid, placed_last, placed_error, expired;
  logic [engine_pkg::PLACE_BITS-1:0] placed, expired_place;
  logic [8:0] placed_number;
  logic [W-1:0] placed_data;
  logic late;
  tags #(
      .W(W),
      .TAGS(TAGS),
      .TIMEOUT(TIMEOUT)
  ) in_flight (
      .clk,
      .rst,
      .tag_valid,
      .tag_ready,
      .tag,
      .place,
      .beat_valid(beat_valid && beat_ready),
      .beat_tag,
      .beat_number,
      .beat_data,
      .beat_last,
      .beat_error,
      .out_valid(placed_valid),
      .out_place(placed),
      .out_number(placed_number),
      .out_data(placed_data),
      .out_last(placed_last),
      .out_error(placed_error),
      .timeout_valid(expired),
      .timeout_place(expired_place),
      .count_late(late)
  );

  // Inline bytes take a cycle without a beat. Where there is none for long, one beat waits for them.
  logic [2:0] patience;
  assign inline_ready = !placed_valid;
  assign beat_ready = patience != 3'd7;
  always_ff @(posedge clk)
    if (rst || !inline_valid || inline_ready) patience <= '0;
    else if (patience != 3'd7) patience <= patience + 3'd1;

  logic write_valid, done_valid, done_error;
  logic [CW-1:0] write_context, done_context;
  logic [19-$clog2(W/8):0] write_row;
  logic [W/4-1:0] write_enable;
  logic [W-1:0] write_data;
  logic [QW-1:0] done_sequence;
  align #(
      .W(W),
      .CONTEXTS(CONTEXTS),
      .READS(READS)
  ) merger (
      .clk,
      .rst,
      .beat_valid(placed_valid),
      .beat_place(placed),
      .beat_number(placed_number),
      .beat_data(placed_data),
      .beat_last(placed_last),
      .beat_error(placed_error),
      .inline_valid(inline_valid && inline_ready),
      .inline_place(place),
      .inline_data,
      .write_valid,
      .write_context,
      .write_row,
      .write_enable,
      .write_data,
      .done_valid,
      .done_context,
      .done_sequence,
      .done_error
  );

  logic buffer_read;
  logic [CW-1:0] buffer_context;
  logic [$clog2(BUFFER/(W/8))-1:0] buffer_row;
  logic [W-1:0] buffer_data;
  pktbuf #(
      .W(W),
      .CONTEXTS(CONTEXTS),
      .BUFFER(BUFFER)
  ) payload (
      .clk,
      .write_valid,
      .write_context,
      .write_row,
      .write_enable,
      .write_data,
      .read_enable(buffer_read),
      .read_context(buffer_context),
      .read_row(buffer_row),
      .read_data(buffer_data)
  );

  engine_pkg::place_t e_place;
  assign e_place = expired_place;

  logic [CONTEXTS-1:0] packet_valid, packet_take, outcome_valid, outcome_take, head_valid, head_take, free_valid;
  logic [CONTEXTS*PKB-1:0] packet;
  logic [CONTEXTS*OB-1:0] outcome;
  logic [CONTEXTS*engine_pkg::HEAD_BITS-1:0] head;
  logic [15:0] free_rows;
  logic [CONTEXTS-1:0] trace_out, trace_take, trace_lost;
  logic [CONTEXTS*TB-1:0] traces;

  for (genvar c = 0; c < CONTEXTS; c++) begin : g_context
    logic mine;
    assign mine = job_valid && job_ready && job_context == CW'(c);

    logic walk_valid, walk_take, word_valid, word_take;
    logic [engine_pkg::WALK_BITS-1:0] walk;
    logic [127:0] word;
    fifo #(
        .BITS (engine_pkg::WALK_BITS),
        .DEPTH(JOBS < 16 ? JOBS : 16)  // until the plan takes them; what txbuild needs waits for longer
    ) walks (
        .clk,
        .rst,
        .in_valid(mine),
        .in_ready(walk_room[c]),
        .in(job_walk),
        .out_valid(walk_valid),
        .out_ready(walk_take),
        .out(walk)
    );
    fifo #(
        .BITS (engine_pkg::HEAD_BITS),
        .DEPTH(JOBS)
    ) heads (
        .clk,
        .rst,
        .in_valid(mine),
        .in_ready(head_room[c]),
        .in(job_head),
        .out_valid(head_valid[c]),
        .out_ready(head_take[c]),
        .out(head[engine_pkg::HEAD_BITS*c+:engine_pkg::HEAD_BITS])
    );
    fifo #(
        .BITS (128),
        .DEPTH(WORDS)
    ) words (
        .clk,
        .rst,
        .in_valid(segment_valid && segment_context == CW'(c)),
        .in_ready(word_room[c]),
        .in(segment),
        .out_valid(word_valid),
        .out_ready(word_take),
        .out(word)
    );

    logic announced_valid, announced_ready;
    logic [PKB-1:0] announced;
    transfer #(
        .W(W),
        .BUFFER(BUFFER)
    ) cursor (
        .clk,
        .rst,
        .job_valid(walk_valid),
        .job_ready(walk_take),
        .job(walk),
        .segment_valid(word_valid),
        .segment_ready(word_take),
        .segment(word),
        .gate_valid(gate_valid[c]),
        .gate_ready(gate_pass[c]),
        .gate_rate(gate_rate[8*c+:8]),
        .gate_bytes(gate_bytes[14*c+:14]),
        .packet_valid(announced_valid),
        .packet_ready(announced_ready),
        .packet(announced),
        .piece_valid(piece_valid[c]),
        .piece_ready(piece_ready[c]),
        .piece(piece[PIB*c+:PIB]),
        .free_valid(free_valid[c]),
        .free_rows
    );
    fifo #(
        .BITS (PKB),
        .DEPTH(PACKETS)
    ) packets (
        .clk,
        .rst,
        .in_valid(announced_valid),
        .in_ready(announced_ready),
        .in(announced),
        .out_valid(packet_valid[c]),
        .out_ready(packet_take[c]),
        .out(packet[PKB*c+:PKB])
    );

    logic over_valid, over_ready, step_valid, step_room;
    logic [OB-1:0] over;
    logic [TB-1:0] walk_step;
    handover #(
        .READS(READS)
    ) order (
        .clk,
        .rst,
        .entry_valid(entry_put[c]),
        .entry_ready(entry_room[c]),
        .entry(walk_entry),
        .entry_done(walk_entry_done),
        .entry_sequence(walk_sequence),
        .done_valid(done_valid && done_context == CW'(c)),
        .done_sequence,
        .done_error,
        .timeout_valid(expired && e_place.context_ == 4'(c)),
        .timeout_sequence(e_place.sequence_[QW-1:0]),
        .retired(retired[c]),
        .outcome_valid(over_valid),
        .outcome_ready(over_ready),
        .outcome(over),
        .trace_valid(step_valid),
        .trace(walk_step)
    );
    fifo #(
        .BITS (OB),
        .DEPTH(4)
    ) outcomes (
        .clk,
        .rst,
        .in_valid(over_valid),
        .in_ready(over_ready),
        .in(over),
        .out_valid(outcome_valid[c]),
        .out_ready(outcome_take[c]),
        .out(outcome[OB*c+:OB])
    );

    // What does not fit is counted, never waited for.
    assign trace_lost[c] = step_valid && !step_room;
    fifo #(
        .BITS (TB),
        .DEPTH(64)
    ) steps (
        .clk,
        .rst,
        .in_valid(step_valid),
        .in_ready(step_room),
        .in(walk_step),
        .out_valid(trace_out[c]),
        .out_ready(trace_take[c]),
        .out(traces[TB*c+:TB])
    );
  end

  logic faulted;
  txbuild #(
      .W(W),
      .CONTEXTS(CONTEXTS),
      .BUFFER(BUFFER)
  ) builder (
      .clk,
      .rst,
      .packet_valid,
      .packet_ready(packet_take),
      .packet,
      .outcome_valid,
      .outcome_ready(outcome_take),
      .outcome,
      .head_valid,
      .head_ready(head_take),
      .head,
      .read_enable(buffer_read),
      .read_context(buffer_context),
      .read_row(buffer_row),
      .read_data(buffer_data),
      .free_valid,
      .free_rows,
      .frame_valid,
      .frame_ready,
      .frame_data,
      .frame_bytes,
      .frame_last,
      .frame_context,
      .result_valid,
      .result_ready,
      .result_context,
      .result,
      .count_fault(faulted)
  );

  // The trace port: contexts in turn.
  logic [CW-1:0] turn;
  always_comb begin
    trace_valid = trace_out != '0;
    trace_context = turn;
    for (int i = CONTEXTS - 1; i >= 0; i--)
      if (trace_out[(32'(turn)+i)%CONTEXTS]) trace_context = CW'((32'(turn) + i) % CONTEXTS);
    trace_take = '0;
    trace_take[trace_context] = trace_ready;
  end
  assign trace = traces[TB*trace_context+:TB];
  always_ff @(posedge clk)
    if (rst) turn <= '0;
    else if (trace_valid && trace_ready) turn <= trace_context + 1'b1;

  logic [engine_pkg::COUNTERS*16-1:0] add;
  function automatic logic [15:0] ones(input logic [CONTEXTS-1:0] v);
    ones = '0;
    for (int i = 0; i < CONTEXTS; i++) ones = ones + {15'd0, v[i]};
  endfunction
  logic reads, frame_out;
  assign reads = read_valid && read_ready;
  assign frame_out = frame_valid && frame_ready;
  always_comb begin
    add = '0;
    add[16*engine_pkg::COUNT_LOOKUPS] = looked_up;
    add[16*engine_pkg::COUNT_HITS] = hit;
    add[16*engine_pkg::COUNT_MISSES] = looked_up && !hit;
    add[16*engine_pkg::COUNT_EVICTIONS] = eviction;
    add[16*engine_pkg::COUNT_FENCES] = fence_valid && fence_ready;
    add[16*engine_pkg::COUNT_FILLS_DISCARDED+:16] = ones(discarded);
    add[16*engine_pkg::COUNT_READS] = reads;
    add[16*engine_pkg::COUNT_READ_BYTES+:16] = reads ? {3'd0, read_bytes} : 16'd0;
    add[16*engine_pkg::COUNT_READ_FAULTS] = done_valid && done_error;
    add[16*engine_pkg::COUNT_TIMEOUTS] = expired;
    add[16*engine_pkg::COUNT_LATE] = late;
    add[16*engine_pkg::COUNT_FRAMES] = frame_out && frame_last;
    add[16*engine_pkg::COUNT_FRAME_BYTES+:16] = frame_out ? 16'(frame_bytes) : 16'd0;
    add[16*engine_pkg::COUNT_FAULTS] = faulted;
    add[16*engine_pkg::COUNT_GATE_HOLDS] = gate_held;
    add[16*engine_pkg::COUNT_TRACE_LOST+:16] = ones(trace_lost);
  end
  counters events (
      .clk,
      .rst,
      .add,
      .index(count_index),
      .value(count_value)
  );
endmodule
