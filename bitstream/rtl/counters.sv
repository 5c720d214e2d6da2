// Counters of 64 bits. Each adds what its event is worth in a cycle.
module counters (
    input logic clk,
    input logic rst,
    input logic [engine_pkg::COUNTERS*16-1:0] add,
    input logic [$clog2(engine_pkg::COUNTERS)-1:0] index,
    output logic [63:0] value  // in the next cycle
);
  logic [63:0] count[engine_pkg::COUNTERS];
  always_ff @(posedge clk) begin
    for (int i = 0; i < engine_pkg::COUNTERS; i++)
      if (rst) count[i] <= '0;
      else count[i] <= count[i] + {48'd0, add[16*i+:16]};
    value <= count[index];
  end
endmodule
