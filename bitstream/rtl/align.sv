// Aligner and merger: the bytes of a beat that were asked for are rotated to their place in the packet
// buffer and written there with byte enables, over two rows where they cross one. So beats of any
// reads come in any order, one a cycle, at any alignment, and nothing waits for another: the packet
// buffer itself is the reorder buffer, each tag's slot in it being reserved before the read goes out.
module align #(
    parameter int W = 512,
    parameter int CONTEXTS = 4,
    parameter int READS = 64
) (
    input logic clk,
    input logic rst,

    input logic beat_valid,
    input logic [engine_pkg::PLACE_BITS-1:0] beat_place,
    input logic [8:0] beat_number,
    input logic [W-1:0] beat_data,
    input logic beat_last,
    input logic beat_error,

    input logic inline_valid,  // taken in a cycle without a beat
    input logic [engine_pkg::PLACE_BITS-1:0] inline_place,
    input logic [127:0] inline_data,

    output logic write_valid,
    output logic [$clog2(CONTEXTS)-1:0] write_context,
    output logic [19-$clog2(W/8):0] write_row,  // the first of the two rows
    output logic [W/4-1:0] write_enable,
    output logic [W-1:0] write_data,

    output logic done_valid,  // the last bytes of a read are being written
    output logic [$clog2(CONTEXTS)-1:0] done_context,
    output logic [$clog2(READS)-1:0] done_sequence,
    output logic done_error
);
  localparam int WB = W / 8;
  localparam int LB = $clog2(WB);
  localparam int CW = $clog2(CONTEXTS);
  localparam int QW = $clog2(READS);

  engine_pkg::place_t p;
  logic [8:0] number;
  logic [W-1:0] data;
  assign p = beat_valid ? beat_place : inline_place;
  assign number = beat_valid ? beat_number : 9'd0;
  assign data = beat_valid ? beat_data : {{(W - 128) {1'b0}}, inline_data};

  // The first beat has skip bytes that were not asked for; the others begin at byte 0.
  logic [12:0] earlier, bytes, room, left;
  logic [19:0] dest;
  logic [LB-1:0] turn, lane;
  assign earlier = number == 9'd0 ? 13'd0 : 13'({number, {LB{1'b0}}}) - {7'd0, p.skip};
  assign room = 13'(WB) - (number == 9'd0 ? {7'd0, p.skip} : 13'd0);
  assign left = p.n - earlier;
  assign bytes = left < room ? left : room;
  assign dest = p.dest + {7'd0, earlier};
  assign lane = dest[LB-1:0];
  assign turn = lane - (number == 9'd0 ? p.skip[LB-1:0] : '0);

  // Rotate by the lower bits of turn, then by the upper ones.
  logic [W-1:0] some, turned;
  logic [LB-1:0] upper;
  localparam int HALF = LB / 2;
  localparam logic [LB-1:0] LOWER = LB'((1 << HALF) - 1);
  logic [2*W-1:0] twice, twice_more;
  assign twice = {data, data} << {turn & LOWER, 3'd0};
  assign some = twice[2*W-1:W];

  logic s_valid, s_write, s_done, s_error;
  logic [CW-1:0] s_context;
  logic [QW-1:0] s_sequence;
  logic [W-1:0] s_data;
  logic [19:0] s_dest;
  logic [12:0] s_bytes;
  assign twice_more = {s_data, s_data} << {upper, 3'd0};
  assign turned = twice_more[2*W-1:W];

  logic [2*WB-1:0] ones;
  assign ones = ~({(2 * WB) {1'b1}} << s_bytes[LB:0]);

  always_ff @(posedge clk) begin
    s_context <= CW'(p.context_);
    s_sequence <= QW'(p.sequence_);
    s_data <= some;
    upper <= turn & ~LOWER;
    s_dest <= dest;
    s_bytes <= bytes;
    s_write <= !(beat_valid && beat_error);
    s_done <= beat_valid ? beat_last : 1'b1;
    s_error <= beat_valid && beat_error;
    write_context <= s_context;
    write_row <= s_dest[19:LB];
    write_enable <= ones << s_dest[LB-1:0];
    write_data <= turned;
    done_context <= s_context;
    done_sequence <= s_sequence;
    done_error <= s_error;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      s_valid <= 1'b0;
      write_valid <= 1'b0;
      done_valid <= 1'b0;
    end else begin
      s_valid <= beat_valid || inline_valid;
      write_valid <= s_valid && s_write;
      done_valid <= s_valid && s_done;
    end
  end
endmodule
