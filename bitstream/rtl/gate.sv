// The rate limiter's gate (rules G15, G16): a packet passes when its whole frame's bytes are in the
// token bucket of its rate-limit entry, and takes them. Buckets count in nanobytes; each tick adds an
// entry's quantum (rate in bytes a second × the tick in ns), up to its burst, so that nothing is rounded.
//
// Entry 0, and one whose quantum is 0, is not limited. One request a cycle is decided, contexts in turn; one
// that is held does not keep another from passing. A packet that then fails has taken its bytes.
module gate #(
    parameter int CONTEXTS = 4,
    parameter int RATES = 16,  // entries, a power of two
    parameter int UNIT = 1000000000  // what a byte counts
) (
    input logic clk,
    input logic rst,

    input logic ignored,  // everything passes
    input logic tick,

    input logic set_valid,  // a new limit starts with a full bucket
    input logic [7:0] set_index,
    input logic [63:0] set_quantum,
    input logic [63:0] set_burst,

    input  logic [CONTEXTS-1:0] valid,
    output logic [CONTEXTS-1:0] ready,
    input  logic [CONTEXTS*8-1:0] rate,
    input  logic [CONTEXTS*14-1:0] bytes,

    output logic busy,  // ticks are still being added
    output logic held  // a request was refused, counted once
);
  localparam int RW = $clog2(RATES);
  localparam int CW = $clog2(CONTEXTS);

  logic [63:0] quantum[RATES];
  logic [63:0] burst[RATES];
  logic [63:0] tokens[RATES];
  logic [RATES-1:0] limited;

  logic [15:0] ticks;  // not added yet, the one being added included
  logic [RW-1:0] sweep;
  logic [CW-1:0] turn;
  logic [CONTEXTS-1:0] was_held;

  // Requests without a limit pass at once, all of them.
  logic [CONTEXTS-1:0] free, asks;
  always_comb
    for (int c = 0; c < CONTEXTS; c++) begin
      free[c] = ignored || !limited[rate[8*c+:RW]];
      asks[c] = valid[c] && !free[c];
    end

  logic [RW-1:0] index, at;
  logic [63:0] need, after, filled;
  logic [64:0] sum;
  logic adding, deciding, passes;
  assign adding = ticks != 16'd0;
  assign deciding = !adding && !set_valid && asks[turn];
  assign index = rate[8*turn+:RW];
  assign need = 64'(bytes[14*turn+:14]) * 64'(UNIT);
  assign at = adding ? sweep : index;
  assign passes = deciding && tokens[index] >= need;
  assign after = tokens[index] - need;
  assign sum = {1'b0, tokens[at]} + {1'b0, quantum[at]};
  assign filled = sum > {1'b0, burst[at]} ? burst[at] : sum[63:0];

  always_comb
    for (int c = 0; c < CONTEXTS; c++)
      ready[c] = free[c] || (passes && turn == CW'(c));

  assign held = deciding && !passes && !was_held[turn];
  assign busy = adding;

  always_ff @(posedge clk) begin
    if (set_valid) begin
      quantum[set_index[RW-1:0]] <= set_quantum;
      burst[set_index[RW-1:0]] <= set_burst;
      tokens[set_index[RW-1:0]] <= set_burst;
    end else if (adding) tokens[at] <= filled;
    else if (passes) tokens[at] <= after;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      limited <= '0;
      ticks <= '0;
      sweep <= '0;
      turn <= '0;
      was_held <= '0;
    end else begin
      if (set_valid) limited[set_index[RW-1:0]] <= set_quantum != 64'd0 && set_index != 8'd0;
      if (adding && !set_valid) sweep <= sweep + 1'b1;
      ticks <= ticks + (tick ? 16'd1 : 16'd0) - (adding && !set_valid && sweep == RW'(RATES - 1) ? 16'd1 : 16'd0);
      if (deciding || !asks[turn]) turn <= turn == CW'(CONTEXTS - 1) ? '0 : turn + 1'b1;
      for (int c = 0; c < CONTEXTS; c++)
        if (!valid[c] || ready[c]) was_held[c] <= 1'b0;
        else if (deciding && turn == CW'(c)) was_held[c] <= 1'b1;
    end
  end
endmodule
