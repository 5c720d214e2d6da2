// fifo: what is put in comes out, in order, once; it never holds more than its depth.
module fifo_proof (
    input logic clk,
    input logic in_valid,
    input logic [3:0] in,
    input logic out_ready
);
  logic [4:0] step = 0;
  logic rst, in_ready, out_valid;
  logic [3:0] out;
  assign rst = step == 0;
  always_ff @(posedge clk) if (step != 5'd31) step <= step + 1;

  fifo #(
      .BITS (4),
      .DEPTH(4)
  ) dut (
      .clk,
      .rst,
      .in_valid,
      .in_ready,
      .in,
      .out_valid,
      .out_ready,
      .out
  );

  // A shift register is the plain model.
  logic [31:0] model;
  logic [3:0] count;
  logic put, take;
  assign put  = in_valid && in_ready;
  assign take = out_valid && out_ready;
  always_ff @(posedge clk) begin
    if (rst) begin
      model <= '0;
      count <= '0;
    end else begin
      assert (count <= 4'd4);
      assert (!out_valid || count != 4'd0);
      assert (!out_valid || out == model[3:0]);
      assert (count == 4'd4 || in_ready);
      case ({put, take})
        2'b01: model <= model >> 4;
        2'b10: model[4*count+:4] <= in;
        2'b11: begin
          model <= model >> 4;
          model[4*(count-1)+:4] <= in;
        end
        default: ;
      endcase
      count <= count + {3'd0, put} - {3'd0, take};
    end
  end
endmodule
