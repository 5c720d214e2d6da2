// Handover of one context: it retires what the splitter sent out, in the walk's order, and tells
// txbuild what has become of each packet. A packet whose gather is not whole is never handed over
// (rules G1, G17); the first cause in the walk's order is the one that counts. Here the trace of the
// walk is made (rule G22), so that looking ahead does not show in it.
module handover #(
    parameter int READS = 64  // entries under way, a power of two
) (
    input logic clk,
    input logic rst,

    input  logic entry_valid,
    output logic entry_ready,
    input  logic [engine_pkg::ENTRY_BITS-1:0] entry,
    input  logic entry_done,
    input  logic [$clog2(READS)-1:0] entry_sequence,

    input logic done_valid,
    input logic [$clog2(READS)-1:0] done_sequence,
    input logic done_error,
    input logic timeout_valid,
    input logic [$clog2(READS)-1:0] timeout_sequence,

    output logic retired,  // a piece is over, none of its reads is in flight

    output logic outcome_valid,
    input  logic outcome_ready,
    output logic [engine_pkg::OUTCOME_BITS-1:0] outcome,

    output logic trace_valid,
    output logic [engine_pkg::TRACE_BITS-1:0] trace
);
  localparam int QW = $clog2(READS);

  logic head_valid, take;
  logic [engine_pkg::ENTRY_BITS-1:0] head;
  fifo #(
      .BITS (engine_pkg::ENTRY_BITS),
      .DEPTH(READS)
  ) ring (
      .clk,
      .rst,
      .in_valid(entry_valid),
      .in_ready(entry_ready),
      .in(entry),
      .out_valid(head_valid),
      .out_ready(take),
      .out(head)
  );

  engine_pkg::entry_t e;
  engine_pkg::outcome_t o;
  engine_pkg::trace_t t;
  assign e = head;

  logic [READS-1:0] done, failed;
  logic [QW-1:0] at;
  logic ready;
  assign ready = head_valid && done[at];

  logic poisoned;  // a fault came before: what follows falls with it
  logic in_packet;  // of this packet
  logic piece_failed;  // a read of the piece before this one failed
  logic looked;  // the lookup of the piece has been traced
  logic [7:0] reason;
  logic [5:0] segment;
  logic [31:0] offset, key;

  logic skips, bad, dma_bad;
  logic [7:0] why;
  assign skips = e.killed || (poisoned && !e.start);
  assign dma_bad = failed[at] || piece_failed;
  assign why = e.reason != card_pkg::REASON_NONE ? e.reason : card_pkg::REASON_DMA_READ;
  assign bad = e.kind == engine_pkg::PIECE_DATA && !skips && (e.reason != card_pkg::REASON_NONE || dma_bad);

  // A traced piece takes two cycles: its lookup, then its read or its fault.
  logic two;
  assign two = e.trace && e.kind == engine_pkg::PIECE_DATA && e.last && !skips && !looked
      && e.reason != card_pkg::REASON_MALFORMED;  // no lookup was made
  assign take = ready && !two && (e.kind != engine_pkg::PIECE_END || outcome_ready);
  assign retired = take && e.last;

  logic lost;  // the packet that ends here is not whole
  assign lost = skips || in_packet;
  assign outcome_valid = ready && e.kind == engine_pkg::PIECE_END;
  always_comb begin
    o.whole = !lost;
    o.reason = !lost ? card_pkg::REASON_NONE : in_packet ? reason : card_pkg::REASON_FLUSHED;
    o.segment = lost ? segment : e.segment;
    o.offset = lost ? offset : e.offset;
    o.left = e.n;
    o.key = lost ? key : 32'd0;
  end
  assign outcome = o;

  always_comb begin
    trace_valid = 1'b0;
    t.kind = card_pkg::TRACE_KIND_LOOKUP;
    t.hit = e.hit;
    t.reason = card_pkg::REASON_NONE;
    t.segment = e.segment;
    t.offset = e.offset;
    t.n = e.n;
    t.key = e.key;
    if (ready && e.trace && !skips) begin
      case (e.kind)
        engine_pkg::PIECE_BEGIN: begin
          trace_valid = take;
          t.kind = card_pkg::TRACE_KIND_PACKET;
        end
        engine_pkg::PIECE_END: begin
          trace_valid = take && !lost;
          t.kind = card_pkg::TRACE_KIND_HANDOVER;
        end
        engine_pkg::PIECE_DATA: begin
          trace_valid = e.last;
          if (two) t.reason = e.reason;
          else begin
            t.kind = bad ? card_pkg::TRACE_KIND_FAULT : card_pkg::TRACE_KIND_READ;
            t.reason = bad ? why : card_pkg::REASON_NONE;
          end
        end
        default: ;
      endcase
    end
  end
  assign trace = t;

  always_ff @(posedge clk) begin
    if (rst) begin
      done <= '0;
      failed <= '0;
      at <= '0;
      poisoned <= 1'b0;
      in_packet <= 1'b0;
      piece_failed <= 1'b0;
      looked <= 1'b0;
    end else begin
      // No two of these are of the same entry.
      if (take) begin
        done[at] <= 1'b0;
        failed[at] <= 1'b0;
      end
      if (entry_valid && entry_done) done[entry_sequence] <= 1'b1;
      if (done_valid) begin
        done[done_sequence] <= 1'b1;
        failed[done_sequence] <= done_error;
      end
      if (timeout_valid) begin
        done[timeout_sequence] <= 1'b1;
        failed[timeout_sequence] <= 1'b1;
      end
      looked <= ready && two;
      if (take) begin
        at <= at + 1'b1;
        piece_failed <= !e.last && dma_bad;
        if (e.start) poisoned <= 1'b0;
        if (e.last && bad) begin
          poisoned <= 1'b1;
          in_packet <= 1'b1;
        end
        if (e.kind == engine_pkg::PIECE_END) in_packet <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk)
    if (take && e.last && bad) begin
      reason <= why;
      segment <= e.segment;
      offset <= e.offset;
      key <= e.key;
    end
endmodule
