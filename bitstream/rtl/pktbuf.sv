// The packet buffer: payload of the packets that are being gathered or wait for txbuild, a ring of
// rows for each context. Even and odd rows lie in two banks, so that bytes which cross a row are
// written at once.
module pktbuf #(
    parameter int W = 512,
    parameter int CONTEXTS = 4,
    parameter int BUFFER = 16384  // bytes of each context
) (
    input logic clk,

    input logic write_valid,
    input logic [$clog2(CONTEXTS)-1:0] write_context,
    input logic [19-$clog2(W/8):0] write_row,
    input logic [W/4-1:0] write_enable,  // of this row and the next
    input logic [W-1:0] write_data,

    input  logic read_enable,
    input  logic [$clog2(CONTEXTS)-1:0] read_context,
    input  logic [$clog2(BUFFER/(W/8))-1:0] read_row,
    output logic [W-1:0] read_data  // in the next cycle, as long as read_enable is low after it
);
  localparam int WB = W / 8;
  localparam int ROWS = BUFFER / WB;
  localparam int RW = $clog2(ROWS);
  localparam int CW = $clog2(CONTEXTS);

  logic [RW-1:0] row, next;
  assign row  = write_row[RW-1:0];
  assign next = row + 1'b1;

  logic [W-1:0] even[CONTEXTS*ROWS/2];
  logic [W-1:0] odd[CONTEXTS*ROWS/2];
  logic [CW+RW-2:0] even_at, odd_at;
  logic [WB-1:0] even_enable, odd_enable;
  assign even_at = {write_context, row[0] ? next[RW-1:1] : row[RW-1:1]};
  assign odd_at = {write_context, row[RW-1:1]};
  assign even_enable = row[0] ? write_enable[2*WB-1:WB] : write_enable[WB-1:0];
  assign odd_enable = row[0] ? write_enable[WB-1:0] : write_enable[2*WB-1:WB];

  always_ff @(posedge clk)
    if (write_valid)
      for (int i = 0; i < WB; i++) begin
        if (even_enable[i]) even[even_at][8*i+:8] <= write_data[8*i+:8];
        if (odd_enable[i]) odd[odd_at][8*i+:8] <= write_data[8*i+:8];
      end

  logic [W-1:0] even_data, odd_data;
  logic is_odd;
  always_ff @(posedge clk)
    if (read_enable) begin
      even_data <= even[{read_context, read_row[RW-1:1]}];
      odd_data <= odd[{read_context, read_row[RW-1:1]}];
      is_odd <= read_row[0];
    end
  assign read_data = is_odd ? odd_data : even_data;
endmodule
