// Read splitter: a piece that was looked up becomes DMA reads that never cross a boundary of the
// maximum read request, and so none of 4 KiB. A read goes out only with a tag, a place in the packet
// buffer and an entry in its context's handover ring; what needs no read takes an entry too, so
// that everything is retired in the walk's order.
module splitter #(
    parameter int W = 512,
    parameter int CONTEXTS = 4,
    parameter int TAGS = 64,
    parameter int READS = 64,  // entries of a handover ring
    parameter int MRRS = 512  // maximum read request in bytes, a power of two from W/8 to 4096
) (
    input logic clk,
    input logic rst,

    input  logic found_valid,
    output logic found_ready,
    input  logic [$clog2(CONTEXTS)-1:0] found_context,
    input  logic [engine_pkg::FOUND_BITS-1:0] found,

    output logic [CONTEXTS-1:0] entry_valid,
    input  logic [CONTEXTS-1:0] entry_ready,
    output logic [engine_pkg::ENTRY_BITS-1:0] entry,
    output logic entry_done,  // it waits for nothing
    output logic [$clog2(READS)-1:0] entry_sequence,

    input  logic tag_valid,
    output logic tag_ready,
    input  logic [$clog2(TAGS)-1:0] tag,
    output logic [engine_pkg::PLACE_BITS-1:0] place,

    output logic read_valid,
    input  logic read_ready,
    output logic [$clog2(TAGS)-1:0] read_tag,
    output logic [63:0] read_address,
    output logic [12:0] read_bytes,

    // Inline bytes go to the packet buffer as they are.
    output logic inline_valid,
    input  logic inline_ready,
    output logic [127:0] inline_data
);
  localparam int WB = W / 8;
  localparam int LB = $clog2(WB);
  localparam int QW = $clog2(READS);
  localparam int LM = $clog2(MRRS);

  engine_pkg::found_t f;
  engine_pkg::entry_t e;
  engine_pkg::place_t p;
  assign f = found;

  // What is left of a piece whose first reads have gone out.
  logic again;
  logic [63:0] later_address;
  logic [12:0] later_n;
  logic [19:0] later_dest;

  logic reads, inlines;
  logic [63:0] address;
  logic [12:0] n, most, chunk;
  logic [19:0] dest;
  logic whole;
  assign reads = f.kind == engine_pkg::PIECE_DATA && !f.killed && f.reason == card_pkg::REASON_NONE;
  assign inlines = f.kind == engine_pkg::PIECE_INLINE && !f.killed;
  assign address = again ? later_address : f.word[63:0];
  assign n = again ? later_n : f.n[12:0];
  assign dest = again ? later_dest : f.dest;
  assign most = 13'(MRRS) - 13'(address[LM-1:0]);
  assign chunk = n < most ? n : most;
  assign whole = !reads || chunk == n;

  logic room, goes;
  assign room = entry_ready[found_context];
  // The read register is free, or is being taken.
  assign goes = found_valid && room && (!reads || (tag_valid && (!read_valid || read_ready))) && (!inlines || inline_ready);
  assign tag_ready = goes && reads;
  assign inline_valid = found_valid && room && inlines;
  assign inline_data = f.word;
  assign found_ready = goes && whole;

  logic [QW-1:0] sequences[CONTEXTS];
  assign entry_sequence = sequences[found_context];
  assign entry_done = !reads && !inlines;
  always_comb begin
    entry_valid = '0;
    entry_valid[found_context] = goes;
    e.kind = f.kind;
    e.start = f.start && !again;
    e.trace = f.trace;
    e.killed = f.killed;
    e.hit = f.hit;
    e.last = whole;
    e.reason = f.reason;
    e.segment = f.segment;
    e.offset = f.offset;
    e.n = f.n;
    // PIECE_BEGIN tells the packet's number
    e.key = f.kind == engine_pkg::PIECE_BEGIN ? {8'd0, f.word[119:96]} : f.key;
    p.context_ = 4'(found_context);
    p.sequence_ = 10'(entry_sequence);
    p.dest = dest;
    p.skip = inlines ? 6'd0 : 6'(address[LB-1:0]);
    p.n = inlines ? f.n[12:0] : chunk;
  end
  assign entry = e;
  assign place = p;

  always_ff @(posedge clk) begin
    if (goes && reads) begin
      read_tag <= tag;
      read_address <= address;
      read_bytes <= chunk;
      later_address <= address + {51'd0, chunk};
      later_n <= n - chunk;
      later_dest <= dest + {7'd0, chunk};
    end
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      again <= 1'b0;
      read_valid <= 1'b0;
      for (int c = 0; c < CONTEXTS; c++) sequences[c] <= '0;
    end else begin
      if (goes) begin
        again <= !whole;
        sequences[found_context] <= sequences[found_context] + 1'b1;
      end
      if (goes && reads) read_valid <= 1'b1;
      else if (read_ready) read_valid <= 1'b0;
    end
  end
endmodule
