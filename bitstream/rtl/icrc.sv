// RoCE ICRC (InfiniBand annex A17) over the beats of frames, one a cycle: a matrix for the beat, then
// the loop of 32 bits. A frame's last covered beat is padded with zeros, which are taken back out
// afterwards. The Ethernet header counts as zeros and the masked fields as ones: the caller's part.
module icrc #(
    parameter int W = 512
) (
    input logic clk,
    input logic step,  // the pipeline moves

    input logic [W-1:0] data,
    input logic first,  // beat of a frame
    input logic vlan,  // the Ethernet header has a tag
    input logic [$clog2(W/8)-1:0] bytes,  // covered in the frame's last covered beat: 2 modulo 4

    output logic [31:0] crc  // four steps later, of a frame's last covered beat
);
  localparam int WORDS = W / 32;
  localparam int LB = $clog2(W / 8);

  logic [31:0] sum;
  always_comb begin
    sum = '0;
    for (int i = 0; i < WORDS; i++)
      sum = sum ^ icrc_pkg::times(icrc_pkg::FORWARD[1024*(WORDS-i-1)+:1024], data[32*i+:32]);
  end

  logic [31:0] s1_sum, register, back, back_more;
  logic s1_first, s1_vlan;
  logic [LB-1:0] s1_over, s2_over, s3_over;
  logic [31:0] s3_back;

  always_comb begin  // two bytes always: frames are cut two bytes behind a word
    back = icrc_pkg::times(icrc_pkg::BACK_2, register);
    if (s2_over[2]) back = icrc_pkg::times(icrc_pkg::BACK_4, back);
    back_more = s3_back;
    if (s3_over[3]) back_more = icrc_pkg::times(icrc_pkg::BACK_8, back_more);
  end
  logic [31:0] wider, widest;
  if (LB > 4) begin : g_16
    assign wider = s3_over[4] ? icrc_pkg::times(icrc_pkg::BACK_16, back_more) : back_more;
  end else begin : g_no_16
    assign wider = back_more;
  end
  if (LB > 5) begin : g_32
    assign widest = s3_over[5] ? icrc_pkg::times(icrc_pkg::BACK_32, wider) : wider;
  end else begin : g_no_32
    assign widest = wider;
  end

  always_ff @(posedge clk)
    if (step) begin
      s1_sum <= sum;
      s1_first <= first;
      s1_vlan <= vlan;
      s1_over <= -bytes;
      register <= icrc_pkg::times(icrc_pkg::FORWARD[1024*(WORDS-1)+:1024],
                                  !s1_first ? register : s1_vlan ? icrc_pkg::START_18 : icrc_pkg::START_14) ^ s1_sum;
      s2_over <= s1_over;
      s3_back <= back;
      s3_over <= s2_over;
      crc <= ~widest;
    end
endmodule
