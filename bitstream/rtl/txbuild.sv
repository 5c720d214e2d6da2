// TX packet build: it takes packets whose gather is whole, contexts in turn and those of one context in
// order, puts the headers in front and pad and ICRC behind, and sends the frames out; what fails it
// drops. It tells what has become of each job, after the job's last frame.
//
// Lane 0 of a beat, bits 7:0, is first on the wire.
module txbuild #(
    parameter int W = 512,
    parameter int CONTEXTS = 4,
    parameter int BUFFER = 16384
) (
    input logic clk,
    input logic rst,

    input  logic [CONTEXTS-1:0] packet_valid,
    output logic [CONTEXTS-1:0] packet_ready,
    input  logic [CONTEXTS*engine_pkg::PACKET_BITS-1:0] packet,
    input  logic [CONTEXTS-1:0] outcome_valid,
    output logic [CONTEXTS-1:0] outcome_ready,
    input  logic [CONTEXTS*engine_pkg::OUTCOME_BITS-1:0] outcome,
    input  logic [CONTEXTS-1:0] head_valid,  // of the job that the packet belongs to
    output logic [CONTEXTS-1:0] head_ready,
    input  logic [CONTEXTS*engine_pkg::HEAD_BITS-1:0] head,

    output logic read_enable,
    output logic [$clog2(CONTEXTS)-1:0] read_context,
    output logic [$clog2(BUFFER/(W/8))-1:0] read_row,
    input  logic [W-1:0] read_data,

    output logic [CONTEXTS-1:0] free_valid,
    output logic [15:0] free_rows,

    output logic frame_valid,
    input  logic frame_ready,
    output logic [W-1:0] frame_data,
    output logic [$clog2(W/8):0] frame_bytes,  // in this beat
    output logic frame_last,
    output logic [$clog2(CONTEXTS)-1:0] frame_context,

    output logic result_valid,
    input  logic result_ready,
    output logic [$clog2(CONTEXTS)-1:0] result_context,
    output logic [engine_pkg::RESULT_BITS-1:0] result,

    output logic count_fault
);
  localparam int WB = W / 8;
  localparam int LB = $clog2(WB);
  localparam int CW = $clog2(CONTEXTS);
  localparam int RW = $clog2(BUFFER / WB);
  localparam int PKB = engine_pkg::PACKET_BITS;
  localparam int OB = engine_pkg::OUTCOME_BITS;
  localparam int HB = engine_pkg::HEAD_BITS;
  localparam int RB = engine_pkg::RESULT_BITS;

  // The next packet: contexts in turn.
  logic [CW-1:0] turn, pick;
  logic [CONTEXTS-1:0] can;
  logic any, result_room, taking, whole;
  logic step, c0_valid;
  engine_pkg::packet_t p;
  engine_pkg::outcome_t o;
  assign can = packet_valid & outcome_valid & head_valid;
  assign any = can != '0;
  always_comb begin
    pick = turn;
    for (int i = CONTEXTS - 1; i >= 0; i--)
      if (can[(32'(turn)+i)%CONTEXTS]) pick = CW'((32'(turn) + i) % CONTEXTS);
  end
  assign p = packet[PKB*pick+:PKB];
  assign o = outcome[OB*pick+:OB];
  assign whole = o.whole;

  logic p1_valid, p2_valid, p3_valid, p1_step, p2_step, p3_step, stream_ready;
  assign p3_step = !p3_valid || stream_ready;
  assign p2_step = !p2_valid || p3_step;
  assign p1_step = !p1_valid || p2_step;
  // Rows are given back in the order in which they were taken: a packet that is not whole waits until
  // those before it have been read out.
  logic frees, empty;
  assign empty = !p1_valid && !p2_valid && !p3_valid && !c0_valid;
  assign taking = any && result_room && (whole ? p1_step : empty);
  always_comb begin
    packet_ready = '0;
    outcome_ready = '0;
    head_ready = '0;
    packet_ready[pick] = taking;
    outcome_ready[pick] = taking;
    head_ready[pick] = taking && p.job_last;
  end

  // Results. The cursor and the fault of a context's job are kept until its last packet.
  logic [23:0] psns[CONTEXTS];
  logic [69:0] cursor[CONTEXTS];
  logic [77:0] fault[CONTEXTS];  // reason, segment, offset, key
  logic [CONTEXTS-1:0] faulted;
  logic [15:0] started, sent;
  engine_pkg::result_t r;
  always_comb begin
    r.token = p.token;
    r.psns = psns[pick] + {23'd0, whole};
    {r.reason, r.segment, r.offset, r.key} = faulted[pick] ? fault[pick]
        : whole ? {card_pkg::REASON_NONE, 70'd0} : {o.reason, o.segment, o.offset, o.key};
    {r.cursor_segment, r.cursor_offset, r.cursor_left} = whole ? {o.segment, o.offset, o.left} : cursor[pick];
  end
  assign count_fault = taking && !whole && o.reason != card_pkg::REASON_FLUSHED;

  logic [15:0] waits_for;
  logic queue_valid;
  logic [15:0] beyond;
  assign beyond = sent - waits_for;
  assign result_valid = queue_valid && !beyond[15];
  fifo #(
      .BITS (16 + CW + RB),
      .DEPTH(16)
  ) results (
      .clk,
      .rst,
      .in_valid(taking && p.job_last),
      .in_ready(result_room),
      .in({started + {15'd0, whole}, pick, r}),
      .out_valid(queue_valid),
      .out_ready(result_ready && result_valid),
      .out({waits_for, result_context, result})
  );

  always_ff @(posedge clk) begin
    if (rst) begin
      turn <= '0;
      faulted <= '0;
      started <= '0;
      for (int c = 0; c < CONTEXTS; c++) psns[c] <= '0;
    end else if (taking) begin
      turn <= pick == CW'(CONTEXTS - 1) ? '0 : pick + 1'b1;
      if (whole) started <= started + 16'd1;
      psns[pick] <= p.job_last ? 24'd0 : r.psns;
      faulted[pick] <= !p.job_last && (faulted[pick] || !whole);
    end
  end
  always_ff @(posedge clk)
    if (taking) begin
      if (whole) cursor[pick] <= {o.segment, o.offset, o.left};
      if (!whole && !faulted[pick]) fault[pick] <= {o.reason, o.segment, o.offset, o.key};
    end

  // P1: the packet. Lengths, and the sum over the IPv4 header's fields.
  engine_pkg::packet_t p1;
  engine_pkg::head_t h1, h2;
  logic [CW-1:0] p1_context, p2_context, p3_context;
  logic [5:0] ext1;
  logic [15:0] padded1, udp1, ip1;
  logic [19:0] sum1;
  logic [6:0] exts1;
  assign exts1 = engine_pkg::ext_of(p1.opcode);
  assign ext1 = engine_pkg::ext_bytes(exts1);
  assign padded1 = {3'd0, (p1.length + 13'd3) & ~13'd3};
  assign udp1 = 16'd24 + {10'd0, ext1} + padded1;
  assign ip1 = udp1 + 16'd20;
  assign sum1 = 20'h04500 + {12'd0, h1.traffic_class} + {4'd0, ip1} + {4'd0, p1.ip_id} + 20'h04000
      + {4'd0, h1.hop_limit, 8'd17} + {4'd0, h1.sgid[31:16]} + {4'd0, h1.sgid[15:0]}
      + {4'd0, h1.dgid[31:16]} + {4'd0, h1.dgid[15:0]};

  // P2: the headers.
  engine_pkg::packet_t p2;
  logic [15:0] udp2, ip2, padded2;
  logic [19:0] sum2;
  logic [16:0] fold2;
  logic [15:0] checksum2;
  logic [6:0] length2;
  logic [5:0] ext2;
  assign fold2 = {1'b0, sum2[15:0]} + {13'd0, sum2[19:16]};
  assign checksum2 = ~(fold2[15:0] + {15'd0, fold2[16]});
  assign length2 = 7'd34 + (h2.vlan ? 7'd4 : 7'd0) + (h2.ipv6 ? 7'd40 : 7'd20) + {1'b0, ext2};

  logic [6:0] exts2;
  logic [223:0] ext;  // first byte highest
  assign exts2 = engine_pkg::ext_of(p2.opcode);
  always_comb begin
    ext = '0;
    if ((exts2 & engine_pkg::EXT_DETH) != '0) ext = {h2.qkey, 8'd0, h2.src_qpn, h2.imm, 128'd0};
    else if ((exts2 & engine_pkg::EXT_RETH) != '0) ext = {h2.va, h2.rkey, h2.dma_length, h2.imm, 64'd0};
    else if ((exts2 & engine_pkg::EXT_ATOMIC_ETH) != '0) ext = {h2.va, h2.rkey, h2.swap_add, h2.compare};
    else if ((exts2 & engine_pkg::EXT_AETH) != '0) ext = {h2.syndrome, h2.msn, h2.atomic_ack, 128'd0};
    else if ((exts2 & engine_pkg::EXT_IMMDT) != '0) ext = {h2.imm, 192'd0};
    else if ((exts2 & engine_pkg::EXT_IETH) != '0) ext = {h2.inv_rkey, 192'd0};
  end

  // What the ICRC takes as ones is in mask.
  logic [95:0] bth, bth_mask;
  logic [159:0] ip4, ip4_mask;
  logic [319:0] ip6, ip6_mask;
  logic [63:0] udp, udp_mask;
  logic [703:0] rest, rest_mask;  // from the IP header on
  logic [847:0] all, all_crc;
  logic [1:0] pad2;
  assign pad2 = 2'(-p2.length[1:0]);
  assign bth = {p2.opcode, p2.solicited, h2.migreq, pad2, 4'd0, h2.pkey, h2.fecn, h2.becn, 6'd0, h2.dest_qpn,
                p2.ack, 7'd0, p2.psn};
  assign bth_mask = {32'd0, 8'hff, 56'd0};
  assign udp = {h2.udp_source_port, 16'd4791, udp2, 16'd0};
  assign udp_mask = {48'd0, 16'hffff};
  assign ip4 = {8'h45, h2.traffic_class, ip2, p2.ip_id, 16'h4000, h2.hop_limit, 8'd17, checksum2, h2.sgid[31:0], h2.dgid[31:0]};
  assign ip4_mask = {8'd0, 8'hff, 48'd0, 8'hff, 8'd0, 16'hffff, 64'd0};
  assign ip6 = {4'd6, h2.traffic_class, h2.flow_label, udp2, 8'd17, h2.hop_limit, h2.sgid, h2.dgid};
  assign ip6_mask = {4'd0, 28'hfffffff, 24'd0, 8'hff, 256'd0};
  assign rest = h2.ipv6 ? {ip6, udp, bth, ext} : {ip4, udp, bth, ext, 160'd0};
  assign rest_mask = h2.ipv6 ? {ip6_mask, udp_mask, bth_mask, 224'd0} : {ip4_mask, udp_mask, bth_mask, 384'd0};
  assign all = h2.vlan ? {h2.dmac, h2.smac, 16'h8100, h2.tci, h2.ipv6 ? 16'h86dd : 16'h0800, rest}
      : {h2.dmac, h2.smac, h2.ipv6 ? 16'h86dd : 16'h0800, rest, 32'd0};
  assign all_crc = h2.vlan ? {144'd0, rest | rest_mask} : {112'd0, rest | rest_mask, 32'd0};

  // P3: the headers by lanes.
  logic [1023:0] p3_head, p3_crc;
  logic p3_vlan;
  logic [6:0] p3_length;
  logic [13:0] p3_payload_end, p3_crc_end;  // bytes of the frame
  logic [15:0] p3_row, p3_rows;

  always_ff @(posedge clk) begin
    if (p1_step) begin
      p1 <= p;
      h1 <= head[HB*pick+:HB];
      p1_context <= pick;
    end
    if (p2_step) begin
      p2 <= p1;
      h2 <= h1;
      p2_context <= p1_context;
      udp2 <= udp1;
      ip2 <= ip1;
      sum2 <= sum1;
      padded2 <= padded1;
      ext2 <= ext1;
    end
    if (p3_step) begin
      for (int i = 0; i < 128; i++) begin
        p3_head[8*i+:8] <= i < 106 ? all[8*(105-(i%106))+:8] : 8'd0;
        p3_crc[8*i+:8] <= i < 106 ? all_crc[8*(105-(i%106))+:8] : 8'd0;
      end
      p3_vlan <= h2.vlan;
      p3_length <= length2;
      p3_payload_end <= {7'd0, length2} + {1'b0, p2.length};
      p3_crc_end <= {7'd0, length2} + padded2[13:0];
      p3_row <= p2.row;
      p3_rows <= p2.rows;
      p3_context <= p2_context;
    end
  end
  always_ff @(posedge clk) begin
    if (rst) begin
      p1_valid <= 1'b0;
      p2_valid <= 1'b0;
      p3_valid <= 1'b0;
    end else begin
      if (p1_step) p1_valid <= taking && whole;
      if (p2_step) p2_valid <= p1_valid;
      if (p3_step) p3_valid <= p2_valid;
    end
  end

  // The stream. C0 has what is left of the frame, from this beat on; every step is a beat.
  logic c0_first, c0_vlan;
  logic [1023:0] c0_head, c0_crc;
  logic [6:0] c0_length;  // of the headers
  logic [13:0] c0_payload_end, c0_crc_end, c0_end;
  logic [LB-1:0] c0_turn;
  logic [RW-1:0] c0_row;
  logic [15:0] c0_rows;
  logic [CW-1:0] c0_context;
  logic c0_last, c0_spilled;
  assign c0_last = c0_end <= 14'(WB);
  assign stream_ready = step && (!c0_valid || c0_last);

  function automatic logic [13:0] less(input logic [13:0] n);
    less = n > 14'(WB) ? n - 14'(WB) : 14'd0;
  endfunction
  function automatic logic [LB:0] capped(input logic [13:0] n);
    capped = n > 14'(WB) ? (LB + 1)'(WB) : n[LB:0];
  endfunction

  assign read_enable = step;
  assign read_context = c0_context;
  assign read_row = c0_row;
  assign frees = step && c0_valid && c0_last;
  assign free_rows = frees ? c0_rows : p.rows;
  always_comb begin
    free_valid = '0;
    if (frees) free_valid[c0_context] = 1'b1;
    else free_valid[pick] = taking && !whole;
  end

  always_ff @(posedge clk)
    if (step) begin
      if (stream_ready) begin
        c0_first <= 1'b1;
        c0_vlan <= p3_vlan;
        c0_head <= p3_head;
        c0_crc <= p3_crc;
        c0_length <= p3_length;
        c0_payload_end <= p3_payload_end;
        c0_crc_end <= p3_crc_end;
        c0_end <= p3_crc_end + 14'd4;
        c0_turn <= p3_length[LB-1:0];
        c0_row <= p3_row[RW-1:0];
        c0_rows <= p3_rows;
        c0_context <= p3_context;
        c0_spilled <= 1'b0;
      end else begin
        c0_first <= 1'b0;
        c0_head <= c0_head >> W;
        c0_crc <= c0_crc >> W;
        if (c0_length < 7'(WB)) c0_row <= c0_row + 1'b1;  // a beat with payload was sent
        c0_length <= {7'd0, c0_length} > 14'(WB) ? c0_length - 7'(WB) : 7'd0;
        c0_payload_end <= less(c0_payload_end);
        c0_crc_end <= less(c0_crc_end);
        c0_end <= less(c0_end);
        c0_spilled <= c0_crc_end < 14'(WB) && c0_crc_end != 14'd0;
      end
    end
  always_ff @(posedge clk)
    if (rst) c0_valid <= 1'b0;
    else if (stream_ready) c0_valid <= p3_valid;

  // C1: the row comes out of the buffer. C2: it is turned to its lanes.
  logic c1_valid, c1_first, c1_vlan, c1_last, c1_spilled, c2_valid, c2_first, c2_vlan, c2_last, c2_spilled;
  logic [W-1:0] c1_head, c1_crc, c2_head, c2_crc, c2_row, c2_before;
  logic [LB:0] c1_heads, c2_heads, c1_payload, c2_payload, c1_covered, c2_covered, c1_bytes, c2_bytes;
  logic [LB-1:0] c1_turn, c2_turn;
  logic [CW-1:0] c1_context, c2_context;
  logic [2*W-1:0] twice;
  assign twice = {read_data, read_data} << {c1_turn, 3'd0};

  // The beat: headers, then the end of the row before, then this row; zeros behind the payload.
  logic [W-1:0] body, beat, covered;
  always_comb
    for (int i = 0; i < WB; i++) begin
      body[8*i+:8] = LB'(i) < c2_turn ? c2_before[8*i+:8] : c2_row[8*i+:8];
      if ((LB + 1)'(i) >= c2_payload) body[8*i+:8] = 8'd0;
      beat[8*i+:8] = (LB + 1)'(i) < c2_heads ? c2_head[8*i+:8] : body[8*i+:8];
      covered[8*i+:8] = (LB + 1)'(i) < c2_heads ? c2_crc[8*i+:8] : body[8*i+:8];
    end

  // D0 to D4: the beat waits for its CRC.
  localparam int D = 5;
  logic [W-1:0] d_data[D];
  logic [W-1:0] d0_covered;
  logic [D-1:0] d_valid, d_last, d_spilled;
  logic d0_first, d0_vlan;
  logic [LB:0] d_bytes[D];
  logic [LB:0] d_covered[D];  // bytes of this beat before the ICRC; 0 behind it
  logic [CW-1:0] d_context[D];
  logic [31:0] crc, crc_before;
  icrc #(
      .W(W)
  ) check (
      .clk,
      .step,
      .data(d0_covered),
      .first(d0_first),
      .vlan(d0_vlan),
      .bytes(d_covered[0][LB-1:0]),
      .crc
  );

  // The ICRC, its lowest byte first, stands behind the covered bytes; where two of its bytes are left
  // for the next beat, they stand there alone.
  logic [W-1:0] out_data;
  logic [W+31:0] placed;
  assign placed = {{W{1'b0}}, crc} << {d_covered[D-1], 3'd0};
  always_comb begin
    out_data = d_data[D-1];
    if (d_spilled[D-1]) out_data = {{(W - 16) {1'b0}}, crc_before[31:16]};
    else if (d_covered[D-1] != (LB + 1)'(WB)) out_data = d_data[D-1] | placed[W-1:0];
  end

  assign step = !frame_valid || frame_ready;
  always_ff @(posedge clk)
    if (step) begin
      c1_first <= c0_first;
      c1_vlan <= c0_vlan;
      c1_last <= c0_last;
      c1_spilled <= c0_spilled && c0_crc_end == 14'd0;
      c1_head <= c0_head[W-1:0];
      c1_crc <= c0_crc[W-1:0];
      c1_heads <= capped({7'd0, c0_length});
      c1_payload <= capped(c0_payload_end);
      c1_covered <= capped(c0_crc_end);
      c1_bytes <= capped(c0_end);
      c1_turn <= c0_turn;
      c1_context <= c0_context;

      c2_first <= c1_first;
      c2_vlan <= c1_vlan;
      c2_last <= c1_last;
      c2_spilled <= c1_spilled;
      c2_head <= c1_head;
      c2_crc <= c1_crc;
      c2_heads <= c1_heads;
      c2_payload <= c1_payload;
      c2_covered <= c1_covered;
      c2_bytes <= c1_bytes;
      c2_turn <= c1_turn;
      c2_context <= c1_context;
      c2_row <= twice[2*W-1:W];
      c2_before <= c2_row;

      d_data[0] <= beat;
      d0_covered <= covered;
      d0_first <= c2_first;
      d0_vlan <= c2_vlan;
      d_bytes[0] <= c2_bytes;
      d_covered[0] <= c2_covered;
      d_context[0] <= c2_context;
      for (int i = 1; i < D; i++) begin
        d_data[i] <= d_data[i-1];
        d_bytes[i] <= d_bytes[i-1];
        d_covered[i] <= d_covered[i-1];
        d_context[i] <= d_context[i-1];
      end
      d_last <= {d_last[D-2:0], c2_last};
      d_spilled <= {d_spilled[D-2:0], c2_spilled};
      crc_before <= crc;

      frame_data <= out_data;
      frame_bytes <= d_bytes[D-1];
      frame_last <= d_last[D-1];
      frame_context <= d_context[D-1];
    end
  always_ff @(posedge clk)
    if (rst) begin
      c1_valid <= 1'b0;
      c2_valid <= 1'b0;
      d_valid <= '0;
      frame_valid <= 1'b0;
      sent <= '0;
    end else begin
      if (step) begin
        c1_valid <= c0_valid;
        c2_valid <= c1_valid;
        d_valid <= {d_valid[D-2:0], c2_valid};
        frame_valid <= d_valid[D-1];
      end
      if (frame_valid && frame_ready && frame_last) sent <= sent + 16'd1;
    end
endmodule
