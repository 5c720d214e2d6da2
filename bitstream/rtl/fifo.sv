// A queue. Its memory is read into a register and from there into the output register, so that it
// can be a block RAM; an entry is seen three cycles after it was put in.
//
// in_ready falls while SLACK places are still free, for a writer that has some under way when it
// sees that: it may put them in regardless.
module fifo #(
    parameter int BITS  = 8,
    parameter int DEPTH = 16,  // a power of two, at least 2
    parameter int SLACK = 0
) (
    input  logic            clk,
    input  logic            rst,
    input  logic            in_valid,
    output logic            in_ready,
    input  logic [BITS-1:0] in,
    output logic            out_valid,
    input  logic            out_ready,
    output logic [BITS-1:0] out
);
  localparam int AW = $clog2(DEPTH);

  logic [BITS-1:0] mem[DEPTH];
  logic [BITS-1:0] read;
  logic read_valid;
  logic [AW:0] head, tail, used;
  logic put, take, step_out, step_read;

  assign in_ready = used < (AW + 1)'(DEPTH - SLACK);
  assign put = in_valid && (in_ready || SLACK != 0);
  assign take = out_valid && out_ready;
  assign step_out = !out_valid || out_ready;
  assign step_read = !read_valid || step_out;

  always_ff @(posedge clk) begin
    if (put) mem[tail[AW-1:0]] <= in;
    if (step_read) read <= mem[head[AW-1:0]];
    if (step_out) out <= read;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      head <= '0;
      tail <= '0;
      used <= '0;
      read_valid <= 1'b0;
      out_valid <= 1'b0;
    end else begin
      if (put) tail <= tail + 1'b1;
      if (step_read) begin
        read_valid <= head != tail;
        if (head != tail) head <= head + 1'b1;
      end
      if (step_out) out_valid <= read_valid;
      used <= used + {{AW{1'b0}}, put} - {{AW{1'b0}}, take};
    end
  end
endmodule
