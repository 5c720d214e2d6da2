// The transmit side on an ECP5 without a host's memory: key table and payload are small memories on the chip, behind a bus of
// 32 bits; frames leave at pins, 16 bytes a cycle, as a MAC takes them. A board's PCIe would be in the bus's and the memories' place.
//
//   bus ► job, segments, rates ► engine ► frames
//     ├─► keys    ◄ fills        │
//     ├─► payload ◄ reads        │
//     └◄ results, trace, counters
module ecp5 #(
    parameter int CONTEXTS = 2,
    parameter int TAGS = 32,
    parameter int KEYS = 64,  // entries of the key table
    parameter int BYTES = 32768  // of payload memory
) (
    input logic clk,
    input logic rst_n,

    // A word is written in the cycle of bus_write, and read three cycles after its address stands.
    input  logic        bus_write,
    input  logic [15:2] bus_address,
    input  logic [31:0] bus_data,
    output logic [31:0] bus_value,

    output logic         frame_valid,
    input  logic         frame_ready,
    output logic [127:0] frame_data,
    output logic [  4:0] frame_bytes,
    output logic         frame_last
);
  localparam int CW = $clog2(CONTEXTS);
  localparam int TW = $clog2(TAGS);
  localparam int KW = $clog2(KEYS);
  localparam int RW = $clog2(BYTES / 16);
  localparam int WALK = engine_pkg::WALK_BITS;
  localparam int HEAD = engine_pkg::HEAD_BITS;
  localparam int RESULT = engine_pkg::RESULT_BITS;
  localparam int TRACE = engine_pkg::TRACE_BITS;

  // The bus, by word address:
  //   0000 walk    0020 head    0040 segment    0044 rate: quantum, burst    0048 job's context: submits
  //   0049 segment's context: puts it in    004a rate's index: sets it    004b counter    004c control: gate ignored, tick
  //   004d fence of an index    004e takes the result    004f takes the trace step
  //   0050 status    0051 counter, 2 words    0054 result    005c trace
  //   0400 keys, 16 words each    2000 payload
  logic rst, reset;
  logic write;
  logic [15:2] at;
  logic [31:0] data;
  always_ff @(posedge clk) begin
    reset <= !rst_n;
    rst   <= reset;
    write <= bus_write;
    at <= bus_address;
    data <= bus_data;
  end
  logic [127:0] hit;  // a register is written
  always_comb begin
    hit = '0;
    hit[at[8:2]] = write && at[15:9] == 7'd0;
  end

  logic [32*11-1:0] walk;
  logic [32*30-1:0] head;
  logic [127:0] segment, rate;
  logic [3:0] context_, segment_context;
  logic [7:0] rate_index;
  logic [3:0] counter;
  logic [23:0] fence_index;
  logic ignored;
  logic job_valid, job_ready, segment_valid, segment_ready, fence_valid, fence_ready, rate_valid, tick;
  always_ff @(posedge clk) begin
    for (int i = 0; i < 11; i++) if (hit[i]) walk[32*i+:32] <= data;
    for (int i = 0; i < 30; i++) if (hit[32+i]) head[32*i+:32] <= data;
    for (int i = 0; i < 4; i++) if (hit[64+i]) segment[32*i+:32] <= data;
    for (int i = 0; i < 4; i++) if (hit[68+i]) rate[32*i+:32] <= data;
    if (hit[72]) context_ <= data[3:0];
    if (hit[73]) segment_context <= data[3:0];
    if (hit[74]) rate_index <= data[7:0];
    if (hit[75]) counter <= data[3:0];
    if (hit[76]) ignored <= data[0];
    if (hit[77]) fence_index <= data[23:0];
    rate_valid <= hit[74];
    tick <= hit[76] && data[1];
    if (rst) begin
      job_valid <= 1'b0;
      segment_valid <= 1'b0;
      fence_valid <= 1'b0;
      ignored <= 1'b0;
    end else begin
      job_valid <= hit[72] || (job_valid && !job_ready);
      segment_valid <= hit[73] || (segment_valid && !segment_ready);
      fence_valid <= hit[77] || (fence_valid && !fence_ready);
    end
  end

  logic fill_valid, fill_ready, entry_valid, entry_exists;
  logic [23:0] fill_index;
  logic [CW-1:0] fill_context, entry_context;
  logic [511:0] entry;
  logic read_valid, read_ready, beat_valid, beat_ready, beat_last;
  logic [TW-1:0] read_tag, beat_tag;
  logic [63:0] read_address;
  logic [12:0] read_bytes;
  logic [8:0] beat_number;
  logic [127:0] beat_data;
  logic beat_error;
  logic result_valid, trace_valid, tick_busy;
  logic [CW-1:0] result_context, trace_context, frame_context;
  logic [RESULT-1:0] result;
  logic [TRACE-1:0] trace;
  logic [63:0] count;

  engine #(
      .W(128),
      .CONTEXTS(CONTEXTS),
      .TAGS(TAGS),
      .BUFFER(8192),
      .JOBS(4),
      .WORDS(64),
      .PACKETS(16),
      .READS(64),
      .SETS(16),
      .WAYS(2),
      .RATES(4)
  ) transmit (
      .clk,
      .rst,
      .job_valid,
      .job_ready,
      .job_context(context_[CW-1:0]),
      .job_walk(walk[WALK-1:0]),
      .job_head(head[HEAD-1:0]),
      .segment_valid,
      .segment_ready,
      .segment_context(segment_context[CW-1:0]),
      .segment,
      .gate_ignored(ignored),
      .tick,
      .tick_busy,
      .rate_valid,
      .rate_index,
      .rate_quantum(rate[63:0]),
      .rate_burst(rate[127:64]),
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
      .read_valid,
      .read_ready,
      .read_tag,
      .read_address,
      .read_bytes,
      .beat_valid,
      .beat_ready,
      .beat_tag,
      .beat_number,
      .beat_data,
      .beat_last,
      .beat_error,
      .frame_valid,
      .frame_ready,
      .frame_data,
      .frame_bytes,
      .frame_last,
      .frame_context,
      .result_valid,
      .result_ready(hit[78]),
      .result_context,
      .result,
      .trace_valid,
      .trace_ready(hit[79]),
      .trace_context,
      .trace,
      .count_index(counter),
      .count_value(count)
  );

  // The key table: a bank for each word of an entry, so that an entry is read at once.
  assign fill_ready = 1'b1;
  logic filling, filling_exists;
  logic [CW-1:0] filling_context;
  logic [511:0] found;
  for (genvar i = 0; i < 16; i++) begin : g_key
    logic [31:0] bank[KEYS];
    always_ff @(posedge clk) begin
      if (write && at[15:12] == 4'd1 && at[5:2] == 4'(i)) bank[at[KW+5:6]] <= data;
      found[32*i+:32] <= bank[fill_index[KW-1:0]];
    end
  end
  always_ff @(posedge clk) begin
    filling <= fill_valid && !rst;
    filling_exists <= fill_index < 24'(KEYS);
    filling_context <= fill_context;
    entry_valid <= filling && !rst;
    entry_exists <= filling_exists;
    entry_context <= filling_context;
    entry <= found;
  end

  // Payload: one read at a time, a row of 16 bytes a cycle. Beyond the memory a read fails.
  logic busy, step, missing;
  logic [TW-1:0] tag;
  logic [RW-1:0] row;
  logic [8:0] number, left;
  logic stage, stage_last, stage_error;  // what rows belongs to
  logic [TW-1:0] stage_tag;
  logic [8:0] stage_number;
  logic [127:0] rows;
  logic [12:0] span;
  assign span = read_bytes + {9'd0, read_address[3:0]} + 13'd15;
  assign step = !beat_valid || beat_ready;
  assign read_ready = !busy;
  for (genvar i = 0; i < 4; i++) begin : g_payload
    logic [31:0] bank[BYTES/16];
    always_ff @(posedge clk) begin
      if (write && at[15] && at[3:2] == 2'(i)) bank[at[RW+3:4]] <= data;
      if (step) rows[32*i+:32] <= bank[row];
    end
  end
  always_ff @(posedge clk) begin
    if (rst) busy <= 1'b0;
    else if (read_valid && read_ready) busy <= 1'b1;
    else if (step && left == 9'd1) busy <= 1'b0;
    if (read_valid && read_ready) begin
      tag <= read_tag;
      row <= read_address[RW+3:4];
      missing <= read_address[63:RW+4] != '0;
      number <= '0;
      left <= span[12:4];
    end else if (busy && step) begin
      row <= row + 1'b1;
      number <= number + 1'b1;
      left <= left - 1'b1;
    end
    if (rst) begin
      stage <= 1'b0;
      beat_valid <= 1'b0;
    end else if (step) begin
      stage <= busy;
      beat_valid <= stage;
    end
    if (step) begin
      stage_last <= left == 9'd1;
      stage_error <= missing;
      stage_tag <= tag;
      stage_number <= number;
      beat_tag <= stage_tag;
      beat_number <= stage_number;
      beat_last <= stage_last;
      beat_error <= stage_error;
      beat_data <= rows;
    end
  end

  // What the bus reads.
  logic [31:0] value[16];
  logic [3:0] which;
  always_ff @(posedge clk) begin
    which <= at[5:2];
    value[0] <= {12'd0, 4'(frame_context), 4'(trace_context), 4'(result_context), 2'd0, tick_busy, fence_valid, segment_valid, job_valid, trace_valid, result_valid};
    value[1] <= count[31:0];
    value[2] <= count[63:32];
    value[3] <= '0;
    for (int i = 0; i < 7; i++) value[4+i] <= 32'(result >> (32 * i));
    value[11] <= '0;
    for (int i = 0; i < 4; i++) value[12+i] <= 32'(trace >> (32 * i));
    bus_value <= value[which];
  end
endmodule
