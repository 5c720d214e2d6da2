// In-flight transfer state of one context, in two steps. The plan cuts jobs into packets of min(MTU, bytes left)
// (rule G7); the walk cuts packets into pieces of one segment each, in order, and keeps the cursor (rule G8). So the next
// packet is planned while one is walked. A packet passes the gate, and has its place in the packet buffer, before its first
// piece goes out (rule G15): what comes later never waits for either.
module transfer #(
    parameter int W = 512,
    parameter int BUFFER = 16384  // bytes of the context's packet buffer
) (
    input logic clk,
    input logic rst,

    input  logic job_valid,
    output logic job_ready,
    input  logic [engine_pkg::WALK_BITS-1:0] job,

    input  logic segment_valid,
    output logic segment_ready,
    input  logic [127:0] segment,

    output logic        gate_valid,
    input  logic        gate_ready,
    output logic [ 7:0] gate_rate,
    output logic [13:0] gate_bytes,

    output logic packet_valid,
    input  logic packet_ready,
    output logic [engine_pkg::PACKET_BITS-1:0] packet,

    output logic piece_valid,
    input  logic piece_ready,
    output logic [engine_pkg::PIECE_BITS-1:0] piece,

    input logic        free_valid,  // the payload of a packet has been read out
    input logic [15:0] free_rows
);
  localparam int WB = W / 8;
  localparam int LB = $clog2(WB);
  localparam int ROWS = BUFFER / WB;

  // The plan.
  engine_pkg::walk_t j;  // the job; its cursor's left, PSN, … are those of the packet to come
  logic j_valid;
  logic j_first;  // no packet of it was planned
  engine_pkg::packet_t p;
  engine_pkg::plan_t planned;
  logic plan_room;
  logic [15:0] row;  // next free row
  logic [15:0] rows_free;

  // The packet to come.
  logic [12:0] length;
  logic first, last, final_;
  logic [4:0] op;
  logic [7:0] opcode;
  logic [15:0] rows;
  logic room, go;

  assign last = j.kind == engine_pkg::KIND_PLAIN || j.left <= {19'd0, j.mtu};
  assign first = j.packet == 24'd0;
  assign final_ = last || j.packets == 24'd1;
  assign length = j.kind == engine_pkg::KIND_PLAIN ? 13'd0 : last ? j.left[12:0] : j.mtu;

  always_comb begin
    op = engine_pkg::SEND_MIDDLE;
    case (j.kind)
      engine_pkg::KIND_SEND:
      if (last) begin
        if (j.imm) op = first ? engine_pkg::SEND_ONLY_IMM : engine_pkg::SEND_LAST_IMM;
        else if (j.inv) op = first ? engine_pkg::SEND_ONLY_INV : engine_pkg::SEND_LAST_INV;
        else op = first ? engine_pkg::SEND_ONLY : engine_pkg::SEND_LAST;
      end else op = first ? engine_pkg::SEND_FIRST : engine_pkg::SEND_MIDDLE;
      engine_pkg::KIND_WRITE:
      if (last) begin
        if (j.imm) op = first ? engine_pkg::WRITE_ONLY_IMM : engine_pkg::WRITE_LAST_IMM;
        else op = first ? engine_pkg::WRITE_ONLY : engine_pkg::WRITE_LAST;
      end else op = first ? engine_pkg::WRITE_FIRST : engine_pkg::WRITE_MIDDLE;
      default:
      if (last) op = first ? engine_pkg::READ_RESPONSE_ONLY : engine_pkg::READ_RESPONSE_LAST;
      else op = first ? engine_pkg::READ_RESPONSE_FIRST : engine_pkg::READ_RESPONSE_MIDDLE;
    endcase
    opcode = j.kind == engine_pkg::KIND_PLAIN ? j.opcode : {1'b0, j.transport, op};
  end

  // Rule G13.
  logic every, asks;
  assign every = j.ack_every != 16'd0 && j.ack_phase + 16'd1 == j.ack_every;
  always_comb begin
    case (j.kind)
      engine_pkg::KIND_PLAIN: asks = j.ack;
      engine_pkg::KIND_READ_RESPONSE: asks = 1'b0;
      default: asks = j.transport == engine_pkg::TRANSPORT_RC && (last || every);
    endcase
  end

  logic [6:0] exts;
  logic [5:0] ext;
  assign exts = engine_pkg::ext_of(opcode);
  assign ext = engine_pkg::ext_bytes(exts);
  assign rows = ({3'd0, length} + 16'(WB - 1)) >> LB;
  assign room = rows_free >= rows;
  assign gate_valid = j_valid && room && packet_ready && plan_room;
  assign gate_rate = j.rate;
  assign gate_bytes = 14'd38 + (j.vlan ? 14'd4 : 14'd0) + (j.ipv6 ? 14'd40 : 14'd20)
      + {8'd0, ext} + {1'b0, (length + 13'd3) & ~13'd3};
  assign go = gate_valid && gate_ready;
  assign job_ready = !j_valid || (go && final_);
  assign packet_valid = go;
  assign packet = p;
  always_comb begin
    p.token = j.token;
    p.job_last = final_;
    p.opcode = opcode;
    p.solicited = j.solicited && last;
    p.ack = asks;
    p.psn = j.psn;
    p.ip_id = j.ip_id;
    p.length = length;
    p.row = row;
    p.rows = rows;
  end

  always_comb begin
    planned.first = j_first;
    planned.chain = j.chain;
    planned.trace = j.trace;
    planned.is_inline = j.is_inline;
    planned.last = final_;
    planned.length = length;
    planned.row = row;
    planned.packet = j.packet;
    planned.segment = j.segment;
    planned.offset = j.offset;
    planned.left = j.left;
    planned.pd = j.pd;
    planned.qpn = j.qpn;
    planned.access = j.access;
    planned.count = j.count;
    planned.words = j.words;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      j_valid <= 1'b0;
      row <= '0;
      rows_free <= 16'(ROWS);
    end else begin
      rows_free <= rows_free - (go ? rows : 16'd0) + (free_valid ? free_rows : 16'd0);
      if (go) row <= (row + rows) & 16'(ROWS - 1);
      if (job_ready) j_valid <= job_valid;
    end
    if (job_ready) begin
      j <= job;
      j_first <= 1'b1;
    end else if (go) begin
      j_first <= 1'b0;
      j.left <= j.left - {19'd0, length};
      j.packet <= j.packet + 24'd1;
      j.psn <= j.psn + 24'd1;
      j.ip_id <= j.ip_id + 16'd1;
      j.packets <= j.packets == 24'd0 ? 24'd0 : j.packets - 24'd1;
      j.ack_phase <= every ? 16'd0 : j.ack_phase + 16'd1;
    end
  end

  // Two packets wait for the walk, so that it takes one without the plan's seeing it.
  engine_pkg::plan_t head, behind;
  logic [1:0] waiting;
  logic take_plan;
  assign plan_room = !waiting[1];
  always_ff @(posedge clk) begin
    if (rst) waiting <= '0;
    else waiting <= waiting + {1'b0, go} - {1'b0, take_plan};
    if (take_plan) head <= behind;
    if (go && (waiting == 2'd0 || (waiting == 2'd1 && take_plan))) head <= planned;
    if (go) behind <= planned;
  end

  // The walk.
  localparam logic [2:0] IDLE = 3'd0;
  localparam logic [2:0] BEGIN_ = 3'd1;
  localparam logic [2:0] WALK = 3'd2;
  localparam logic [2:0] FINISH = 3'd3;
  localparam logic [2:0] DRAIN = 3'd4;

  logic [2:0] state;
  engine_pkg::plan_t w;  // the packet; segment, offset, left and words are where it stands
  engine_pkg::piece_t piece_out;
  card_pkg::data_segment_t s;
  logic fresh;  // no piece of an unchained job was sent yet
  logic [12:0] packet_left;
  logic [19:0] dest;
  assign s = segment;

  // The piece at the cursor.
  logic [31:0] rest;
  logic [12:0] take;
  logic outside, skips, ends;
  logic [64:0] address;
  assign rest = s.length - w.offset;
  assign take = w.is_inline ? (packet_left < 13'd16 ? packet_left : 13'd16)
      : rest < {19'd0, packet_left} ? rest[12:0] : packet_left;
  assign outside = w.words == 7'd0 || (segment_valid && !w.is_inline && w.offset > s.length);
  assign skips = !w.is_inline && w.offset == s.length;  // ended or empty: passed over (rule G12)
  assign ends = w.is_inline || {19'd0, take} == rest;
  assign address = {1'b0, s.addr} + {33'd0, w.offset};

  logic normal;  // rule G8's normal form
  assign normal = w.left == 32'd0 || w.is_inline || w.words == 7'd0 || (segment_valid && !skips);

  always_comb begin
    piece_valid = 1'b0;
    segment_ready = 1'b0;
    piece_out.kind = engine_pkg::PIECE_DATA;
    piece_out.start = fresh;
    piece_out.malformed = 1'b0;
    piece_out.wrap = address[64];
    piece_out.trace = w.trace;
    piece_out.segment = w.segment;
    piece_out.offset = w.offset;
    piece_out.n = {19'd0, take};
    piece_out.word = {s.lkey, 32'd0, address[63:0]};
    piece_out.dest = dest;
    piece_out.pd = w.pd;
    piece_out.qpn = w.qpn;
    piece_out.access = w.access;
    case (state)
      BEGIN_: begin
        piece_valid = 1'b1;
        piece_out.kind = engine_pkg::PIECE_BEGIN;
        piece_out.n = w.left;
        piece_out.word = {8'd0, w.packet, 96'd0};
      end
      WALK:
      if (outside) begin
        piece_valid = 1'b1;
        piece_out.malformed = 1'b1;
        piece_out.word = '0;
      end else if (segment_valid && skips) segment_ready = 1'b1;
      else if (segment_valid) begin
        piece_valid = 1'b1;
        if (w.is_inline) begin
          piece_out.kind = engine_pkg::PIECE_INLINE;
          piece_out.word = segment;
        end
        segment_ready = piece_ready && ends;
      end
      FINISH:
      if (normal) begin
        piece_valid = 1'b1;
        piece_out.kind = engine_pkg::PIECE_END;
        piece_out.segment = w.left == 32'd0 ? w.count : w.segment;
        piece_out.offset = w.left == 32'd0 ? 32'd0 : w.offset;
        piece_out.n = w.left;
      end else segment_ready = segment_valid;
      DRAIN: segment_ready = w.words != 7'd0;
      default: ;
    endcase
  end
  assign piece = piece_out;

  logic pop, free_to_go, over;
  assign pop = segment_valid && segment_ready;
  assign over = state == FINISH && normal && piece_ready;  // the packet
  assign free_to_go = state == IDLE || (over && !(w.last && w.words != 7'd0));
  assign take_plan = free_to_go && waiting != 2'd0;

  always_ff @(posedge clk) begin
    if (rst) state <= IDLE;
    else
      case (state)
        IDLE: ;
        BEGIN_: if (piece_ready) state <= packet_left == 13'd0 ? FINISH : WALK;
        WALK:
        // A packet that fails ends there. What is left still runs out, so that the job ends.
        if (piece_valid && piece_ready && (outside || take == packet_left)) state <= FINISH;
        FINISH: if (over) state <= w.last && w.words != 7'd0 ? DRAIN : IDLE;
        DRAIN: if (w.words == 7'd0 || (pop && w.words == 7'd1)) state <= IDLE;
        default: state <= IDLE;
      endcase
    if (!rst && take_plan) state <= head.trace ? BEGIN_ : head.length == 13'd0 ? FINISH : WALK;

    if (piece_valid && piece_ready) fresh <= 1'b0;
    if (pop) w.words <= w.words - 7'd1;
    if (state == WALK && piece_valid && piece_ready) begin
      packet_left <= packet_left - take;
      dest <= dest + {7'd0, take};
      w.left <= w.left - {19'd0, outside ? packet_left : take};
      if (!outside) w.offset <= w.offset + {19'd0, take};
    end
    if (pop && !w.is_inline) begin
      w.segment <= w.segment + 6'd1;
      w.offset <= '0;
    end
    if (take_plan) begin
      packet_left <= head.length;
      dest <= 20'({head.row, {LB{1'b0}}});
      if (head.first) begin
        w <= head;
        fresh <= !head.chain;
      end else begin
        w.last <= head.last;
        w.packet <= head.packet;
      end
    end
  end
endmodule
