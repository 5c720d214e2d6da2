// handover: nothing is retired before its read is over, and a packet is handed over as whole exactly if every
// read of it came and no lookup failed, and nothing before it did that it falls with.
module handover_proof (
    input logic clk,
    input logic entry_valid,
    input logic ends,  // the entry is the packet's end
    input logic start,
    input logic bad,  // its lookup failed
    input logic done_valid,
    input logic [1:0] done_sequence,
    input logic done_error,
    input logic timeout_valid,
    input logic [1:0] timeout_sequence,
    input logic outcome_ready
);
  logic [4:0] step = 0;
  logic rst;
  assign rst = step == 0;
  always_ff @(posedge clk) if (step != 5'd31) step <= step + 1;

  logic entry_ready, entry_done, retired, outcome_valid, trace_valid;
  logic [1:0] sequence_;
  engine_pkg::entry_t e;
  engine_pkg::outcome_t o;
  logic [engine_pkg::OUTCOME_BITS-1:0] outcome;
  logic [engine_pkg::TRACE_BITS-1:0] trace;
  assign o = outcome;
  assign entry_done = ends || bad;
  always_comb begin
    e = '0;
    e.kind = ends ? engine_pkg::PIECE_END : engine_pkg::PIECE_DATA;
    e.start = start;
    e.last = 1'b1;
    e.reason = bad && !ends ? card_pkg::REASON_BOUNDS : card_pkg::REASON_NONE;
  end
  handover #(
      .READS(4)
  ) dut (
      .clk,
      .rst,
      .entry_valid(entry_valid && entry_ready),
      .entry_ready,
      .entry(e),
      .entry_done,
      .entry_sequence(sequence_),
      .done_valid,
      .done_sequence,
      .done_error,
      .timeout_valid,
      .timeout_sequence,
      .retired,
      .outcome_valid,
      .outcome_ready,
      .outcome,
      .trace_valid,
      .trace
  );

  // By sequence: a read that is out, what became of it, and what the entry was.
  logic [3:0] flying, failed, is_end, is_start, done;
  logic [1:0] head;
  logic packet_bad, poisoned;
  logic dead;  // the head falls with what came before
  assign dead = poisoned && !is_start[head];
  always_ff @(posedge clk) begin
    if (rst) begin
      sequence_ <= '0;
      head <= '0;
      flying <= '0;
      failed <= '0;
      done <= '0;
      packet_bad <= 1'b0;
      poisoned <= 1'b0;
    end else begin
      // Only reads that are out are answered, once.
      if (done_valid) assume (flying[done_sequence]);
      if (timeout_valid) assume (flying[timeout_sequence] && !(done_valid && done_sequence == timeout_sequence));
      if (done_valid) begin
        flying[done_sequence] <= 1'b0;
        done[done_sequence]   <= 1'b1;
        failed[done_sequence] <= done_error;
      end
      if (timeout_valid) begin
        flying[timeout_sequence] <= 1'b0;
        done[timeout_sequence]   <= 1'b1;
        failed[timeout_sequence] <= 1'b1;
      end
      if (entry_valid && entry_ready) begin
        sequence_ <= sequence_ + 2'd1;
        flying[sequence_] <= !entry_done;
        done[sequence_] <= entry_done;
        failed[sequence_] <= bad && !ends;
        is_end[sequence_] <= ends;
        is_start[sequence_] <= start;
      end
      if (outcome_valid) assert (is_end[head]);
      if (retired) begin
        head <= head + 2'd1;
        assert (done[head]);
        if (is_start[head]) poisoned <= 1'b0;
        if (is_end[head]) begin
          assert (outcome_valid && outcome_ready);
          assert (o.whole == !(packet_bad || dead));
          packet_bad <= 1'b0;
        end else if (failed[head] && !dead) begin
          packet_bad <= 1'b1;
          poisoned <= 1'b1;
        end
      end
    end
  end
endmodule
