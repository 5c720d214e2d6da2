// tags: a tag is not given again before its read is over, whatever comes back; and a read that has timed
// out never delivers a beat.
module tags_proof (
    input logic clk,
    input logic tag_ready,
    input logic beat_valid,
    input logic beat_tag,
    input logic beat_last,
    input logic beat_error
);
  logic [4:0] step = 0;
  logic rst;
  assign rst = step == 0;
  always_ff @(posedge clk) if (step != 5'd31) step <= step + 1;

  logic tag_valid, tag, out_valid, out_last, out_error, timeout_valid, count_late;
  logic [engine_pkg::PLACE_BITS-1:0] place, out_place, timeout_place;
  logic [8:0] out_number;
  logic [127:0] out_data;
  assign place = {{(engine_pkg::PLACE_BITS - 1) {1'b0}}, tag};  // tells the tag
  tags #(
      .W(128),
      .TAGS(2),
      .TIMEOUT(4)
  ) dut (
      .clk,
      .rst,
      .tag_valid,
      .tag_ready,
      .tag,
      .place,
      .beat_valid,
      .beat_tag,
      .beat_number(9'd0),
      .beat_data(128'd0),
      .beat_last,
      .beat_error,
      .out_valid,
      .out_place,
      .out_number,
      .out_data,
      .out_last,
      .out_error,
      .timeout_valid,
      .timeout_place,
      .count_late
  );

  logic [1:0] flying, expired;  // by tag
  always_ff @(posedge clk) begin
    if (rst) begin
      flying  <= '0;
      expired <= '0;
    end else begin
      if (out_valid) assert (!expired[out_place[0]]);
      if (timeout_valid) begin
        assert (flying[timeout_place[0]] && !expired[timeout_place[0]]);
        expired[timeout_place[0]] <= 1'b1;
      end
      if (beat_valid && flying[beat_tag] && (beat_last || beat_error)) begin
        flying[beat_tag]  <= 1'b0;
        expired[beat_tag] <= 1'b0;
      end
      if (tag_valid && tag_ready) begin
        assert (!flying[tag]);
        flying[tag] <= 1'b1;
      end
    end
  end
endmodule
