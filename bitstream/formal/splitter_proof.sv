// splitter: a read lies in its piece, all of it and nothing else, and crosses neither the maximum read
// request nor 4 KiB; it goes out only with a tag and an entry in the handover ring; without a fault only.
module splitter_proof (
    input logic clk,
    input logic found_valid,
    input logic [15:0] address,
    input logic [11:0] bytes,
    input logic bad,
    input logic killed,
    input logic [1:0] entry_ready,
    input logic tag_valid,
    input logic read_ready
);
  logic [4:0] step = 0;
  logic rst;
  assign rst = step == 0;
  always_ff @(posedge clk) if (step != 5'd31) step <= step + 1;

  engine_pkg::found_t f;
  always_comb begin
    f = '0;
    f.kind = engine_pkg::PIECE_DATA;
    f.killed = killed;
    f.reason = bad ? card_pkg::REASON_PD : card_pkg::REASON_NONE;
    f.n = {20'd0, bytes};
    f.word = {112'd0, address};
  end
  logic found_ready, entry_done, tag_ready, read_valid, inline_valid;
  logic [1:0] entry_valid;
  logic [engine_pkg::ENTRY_BITS-1:0] entry;
  logic [1:0] entry_sequence, read_tag;
  logic [engine_pkg::PLACE_BITS-1:0] place;
  logic [63:0] read_address;
  logic [12:0] read_bytes;
  logic [127:0] inline_data;
  splitter #(
      .W(128),
      .CONTEXTS(2),
      .TAGS(4),
      .READS(4),
      .MRRS(512)
  ) dut (
      .clk,
      .rst,
      .found_valid,
      .found_ready,
      .found_context(1'b0),
      .found(f),
      .entry_valid,
      .entry_ready,
      .entry,
      .entry_done,
      .entry_sequence,
      .tag_valid,
      .tag_ready,
      .tag(2'd1),
      .place,
      .read_valid,
      .read_ready,
      .read_tag,
      .read_address,
      .read_bytes,
      .inline_valid,
      .inline_ready(1'b1),
      .inline_data
  );

  // The piece before waits until it is taken.
  logic waits;
  logic [15:0] old_address;
  logic [11:0] old_bytes;
  logic old_bad, old_killed;
  logic [16:0] next;  // first byte that no read has asked for yet
  logic asked;  // a read of this piece was asked for
  logic [16:0] from;
  assign from = asked ? next : {1'b0, address};
  logic expected;
  logic [16:0] expect_address;
  engine_pkg::place_t p;
  assign p = place;
  always_ff @(posedge clk) begin
    assume (bytes != 12'd0);
    old_address <= address;
    old_bytes <= bytes;
    old_bad <= bad;
    old_killed <= killed;
    if (rst) begin
      waits <= 1'b0;
      asked <= 1'b0;
      expected <= 1'b0;
    end else begin
      if (waits) assume (found_valid && address == old_address && bytes == old_bytes && bad == old_bad && killed == old_killed);
      waits <= found_valid && !found_ready;

      if (tag_ready) begin
        assert (tag_valid && found_valid && !bad && !killed);
        assert (entry_valid == 2'b01 && entry_ready[0] && !entry_done);  // its entry is reserved with it
        assert (p.n != 13'd0 && from + {4'd0, p.n} <= {1'b0, address} + {5'd0, bytes});
        next <= from + {4'd0, p.n};
        asked <= !found_ready;
      end
      if (found_valid && found_ready) begin
        asked <= 1'b0;
        // nothing is left out
        if (!bad && !killed) assert (tag_ready && from + {4'd0, p.n} == {1'b0, address} + {5'd0, bytes});
        else assert (!tag_ready && entry_done);
      end
      // What was promised goes out.
      expected <= tag_ready;
      expect_address <= from;
      if (expected) assert (read_valid && read_address == {47'd0, expect_address});
      if (read_valid) begin
        assert (read_bytes != 13'd0 && read_bytes <= 13'd512);
        assert ({4'd0, read_address[8:0]} + read_bytes <= 13'd512);
      end
    end
  end
endmodule
