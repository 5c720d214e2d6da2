// gate: what passes by a limited entry is never more than its burst and its ticks together, and between two
// ticks never more than the burst: the bucket is never above it. Nothing passes that did not ask.
module gate_proof (
    input logic clk,
    input logic tick,
    input logic [1:0] valid,
    input logic [3:0] bytes0,
    input logic [3:0] bytes1,
    input logic [3:0] burst,  // bytes
    input logic [3:0] quantum
);
  logic [4:0] step = 0;
  logic rst, set;
  assign rst = step == 0;
  assign set = step == 1;
  always_ff @(posedge clk) if (step != 5'd31) step <= step + 1;

  logic [1:0] ready;
  logic busy, held;
  logic [63:0] full;
  assign full = {60'd0, burst};
  gate #(
      .CONTEXTS(2),
      .RATES(2),
      .UNIT(1)
  ) dut (
      .clk,
      .rst,
      .ignored(1'b0),
      .tick(tick && !set),
      .set_valid(set),
      .set_index(8'd1),
      .set_quantum({60'd0, quantum}),
      .set_burst(full),
      .valid(set ? 2'b00 : valid),
      .ready,
      .rate({8'd1, 8'd1}),
      .bytes({10'd0, bytes1, 10'd0, bytes0}),
      .busy,
      .held
  );

  logic [63:0] allowed, passed, recent;
  logic [4:0] take;
  assign take = (valid[0] && ready[0] ? {1'b0, bytes0} : 5'd0) + (valid[1] && ready[1] ? {1'b0, bytes1} : 5'd0);
  logic [3:0] was_quantum;
  logic [3:0] was_burst;
  always_ff @(posedge clk) begin
    was_quantum <= quantum;
    was_burst <= burst;
    if (step > 1) assume (quantum == was_quantum && burst == was_burst);
    assume (quantum != '0);
    if (set) begin
      allowed <= full;
      passed <= '0;
      recent <= '0;
    end else if (!rst) begin
      assert (take == 5'd0 || !busy);
      if (tick) allowed <= allowed + {60'd0, quantum};
      passed <= passed + {59'd0, take};
      recent <= busy || tick ? '0 : recent + {59'd0, take};
      assert (passed <= allowed);
      assert (recent <= full);
    end
  end
endmodule
