// A short queue whose entries may be taken on trial: issue gives them out in order, commit lets the
// oldest one go, rewind goes back to the oldest that was not let go.
module replay #(
    parameter int BITS = 8
) (
    input  logic            clk,
    input  logic            rst,
    input  logic            in_valid,
    output logic            in_ready,
    input  logic [BITS-1:0] in,
    output logic            out_valid,
    output logic [BITS-1:0] out,
    input  logic            issue,
    input  logic            commit,
    input  logic            rewind
);
  logic [BITS-1:0] mem[8];
  logic [3:0] tail, next, oldest, after;

  assign in_ready = tail - oldest != 4'd8;
  assign out_valid = next != tail;
  assign out = mem[next[2:0]];
  assign after = oldest + {3'd0, commit};

  always_ff @(posedge clk) if (in_valid && in_ready) mem[tail[2:0]] <= in;

  always_ff @(posedge clk) begin
    if (rst) begin
      tail   <= '0;
      next   <= '0;
      oldest <= '0;
    end else begin
      if (in_valid && in_ready) tail <= tail + 4'd1;
      oldest <= after;
      if (rewind) next <= after;
      else if (issue) next <= next + 4'd1;
    end
  end
endmodule
