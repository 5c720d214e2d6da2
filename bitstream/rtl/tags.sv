// Tags of the reads in flight: which are free, where each one's bytes go, and for how long it has been
// out. A read that is not answered in time has failed; its tag is quarantined until its late
// completion has come whole, which is ignored.
//
// Every beat names its number in its read, as a PCIe completion does by its lower address and byte
// count, so that reads may be answered in any order and interleaved.
module tags #(
    parameter int W = 512,
    parameter int TAGS = 64,  // a power of two
    parameter int TIMEOUT = 65536  // cycles: a read fails after this to one and a half times as many
) (
    input logic clk,
    input logic rst,

    output logic tag_valid,
    input  logic tag_ready,
    output logic [$clog2(TAGS)-1:0] tag,
    input  logic [engine_pkg::PLACE_BITS-1:0] place,

    input logic beat_valid,
    input logic [$clog2(TAGS)-1:0] beat_tag,
    input logic [8:0] beat_number,
    input logic [W-1:0] beat_data,
    input logic beat_last,
    input logic beat_error,  // the read failed; the last beat of it

    output logic out_valid,  // the beat, with its place
    output logic [engine_pkg::PLACE_BITS-1:0] out_place,
    output logic [8:0] out_number,
    output logic [W-1:0] out_data,
    output logic out_last,
    output logic out_error,

    output logic timeout_valid,
    output logic [engine_pkg::PLACE_BITS-1:0] timeout_place,

    output logic count_late
);
  localparam int TW = $clog2(TAGS);

  // Free tags; after reset they are put in one by one.
  logic [TW:0] filled;
  logic filling, back_valid;
  logic [TW-1:0] back;
  assign filling = !filled[TW];
  logic unused_ready;
  fifo #(
      .BITS (TW),
      .DEPTH(TAGS)
  ) free (
      .clk,
      .rst,
      .in_valid(filling || back_valid),
      .in_ready(unused_ready),
      .in(filling ? filled[TW-1:0] : back),
      .out_valid(tag_valid),
      .out_ready(tag_ready),
      .out(tag)
  );

  logic [TAGS-1:0] out, quarantined;
  logic [1:0] era;
  logic [1:0] stamp[TAGS];
  logic [$clog2(TIMEOUT / 2)-1:0] age;
  logic [TW-1:0] scan;
  logic taken, live, ends;
  assign taken = tag_valid && tag_ready;
  assign live = beat_valid && out[beat_tag] && !quarantined[beat_tag];
  assign ends = beat_valid && out[beat_tag] && (beat_last || beat_error);
  assign back_valid = ends;
  assign back = beat_tag;
  assign count_late = beat_valid && !live;

  logic expires;
  assign expires = out[scan] && !quarantined[scan] && era - stamp[scan] == 2'd3 && !(beat_valid && beat_tag == scan);

  logic [engine_pkg::PLACE_BITS-1:0] places[TAGS];
  logic [engine_pkg::PLACE_BITS-1:0] scanned;
  always_ff @(posedge clk) begin
    if (taken) places[tag] <= place;
    if (taken) stamp[tag] <= era;
    out_place <= places[beat_tag];
    scanned <= places[scan];
    out_number <= beat_number;
    out_data <= beat_data;
    out_last <= beat_last || beat_error;
    out_error <= beat_error;
  end
  assign timeout_place = scanned;

  always_ff @(posedge clk) begin
    if (rst) begin
      filled <= '0;
      out <= '0;
      quarantined <= '0;
      era <= '0;
      age <= '0;
      scan <= '0;
      out_valid <= 1'b0;
      timeout_valid <= 1'b0;
    end else begin
      if (filling) filled <= filled + 1'b1;
      age <= age + 1'b1;
      if (&age) era <= era + 2'd1;
      scan <= scan + 1'b1;
      if (taken) out[tag] <= 1'b1;
      if (ends) begin
        out[beat_tag] <= 1'b0;
        quarantined[beat_tag] <= 1'b0;
      end
      timeout_valid <= expires;
      if (expires) quarantined[scan] <= 1'b1;
      out_valid <= live;
    end
  end
endmodule
