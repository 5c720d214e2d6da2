// Address translation: the key cache in front of the key table (rule G11), one lookup for each piece
// (rule G9), and the checks of rule G10 in their order.
//
// A lookup takes four cycles: read the set's indices; compare; read the entry; check. All that it
// changes, it changes in the last: so a fault or a miss takes back what the same context had under way
// behind it, and leaves no mark of it. A context that misses waits for its fill alone. What
// follows a fault passes as killed, up to a job that does not fall with it.
//
// Whatever changes the cache's entries (a fill, a fence) waits until no lookup is under way.
module keycache #(
    parameter int CONTEXTS = 4,
    parameter int SETS = 64,
    parameter int WAYS = 4,
    parameter int BUFFER = 16  // places of the queue behind
) (
    input logic clk,
    input logic rst,

    input  logic [CONTEXTS-1:0] piece_valid,
    output logic [CONTEXTS-1:0] piece_ready,
    input  logic [CONTEXTS*engine_pkg::PIECE_BITS-1:0] piece,

    output logic found_valid,
    input  logic found_ready,
    output logic [$clog2(CONTEXTS)-1:0] found_context,
    output logic [engine_pkg::FOUND_BITS-1:0] found,

    // The key table: an index and who asks go out; the entry comes back, in any order.
    output logic         fill_valid,
    input  logic         fill_ready,
    output logic [ 23:0] fill_index,
    output logic [$clog2(CONTEXTS)-1:0] fill_context,
    input  logic         entry_valid,
    input  logic [$clog2(CONTEXTS)-1:0] entry_context,
    input  logic         entry_exists,  // 0: the index is beyond the table
    input  logic [511:0] entry,

    // Invalidation of an index. It is acknowledged once no copy is in the cache, fills under way
    // are discarded, and all that was looked up before has been retired.
    input  logic        fence_valid,
    output logic        fence_ready,
    input  logic [23:0] fence_index,
    input  logic [CONTEXTS-1:0] retired,  // a piece of the context

    output logic count_lookup,
    output logic count_hit,
    output logic count_eviction,
    output logic [CONTEXTS-1:0] count_discarded
);
  localparam int CW = $clog2(CONTEXTS);
  localparam int SW = $clog2(SETS);
  localparam int YW = WAYS > 1 ? $clog2(WAYS) : 1;
  localparam int PB = engine_pkg::PIECE_BITS;
  localparam int FB = engine_pkg::FOUND_BITS;

  // Pieces wait here, so that they can be looked up again.
  logic [CONTEXTS-1:0] head_valid, issue, commit, rewind;
  logic [CONTEXTS*PB-1:0] head;
  for (genvar c = 0; c < CONTEXTS; c++) begin : g_replay
    replay #(
        .BITS(PB)
    ) queue (
        .clk,
        .rst,
        .in_valid(piece_valid[c]),
        .in_ready(piece_ready[c]),
        .in(piece[PB*c+:PB]),
        .out_valid(head_valid[c]),
        .out(head[PB*c+:PB]),
        .issue(issue[c]),
        .commit(commit[c]),
        .rewind(rewind[c])
    );
  end

  logic queue_ready;
  logic s1_valid, s2_valid, s3_valid;
  logic idle;
  assign idle = !s1_valid && !s2_valid && !s3_valid;

  // Fills, one for each context.
  localparam logic [2:0] NONE = 3'd0;
  localparam logic [2:0] ASK = 3'd1;  // to be asked for
  localparam logic [2:0] WAIT = 3'd2;  // asked for
  localparam logic [2:0] GOT = 3'd3;  // there, not in the cache
  localparam logic [2:0] HAVE = 3'd4;  // the lookup can go on with it
  logic [2:0] fill_state[CONTEXTS];
  logic [23:0] fill_of[CONTEXTS];
  logic [CONTEXTS-1:0] stale;  // a fence came while it was asked for
  logic [engine_pkg::KEY_BITS-1:0] filled[CONTEXTS];

  // Maintenance: fences before fills.
  localparam logic [1:0] REST = 2'd0;
  localparam logic [1:0] LOOK = 2'd1;
  localparam logic [1:0] ACT = 2'd2;
  logic [1:0] work;
  logic fencing;  // the work under way is a fence
  logic fence_waits;  // it is done but for what is in flight
  logic [CW-1:0] filling;
  logic fence_wanted, fill_wanted, hold;
  logic [CW-1:0] fill_next;
  assign fence_wanted = fence_valid && !fence_waits;
  always_comb begin
    fill_wanted = 1'b0;
    fill_next   = '0;
    for (int c = 0; c < CONTEXTS; c++)
      if (fill_state[c] == GOT) begin
        fill_wanted = 1'b1;
        fill_next   = CW'(c);
      end
  end
  assign hold = fence_wanted || fill_wanted || work != REST;

  // Issue, contexts in turn.
  logic [CW-1:0] turn, pick;
  logic issuing;
  logic [CONTEXTS-1:0] can;
  always_comb begin
    for (int c = 0; c < CONTEXTS; c++)
      can[c] = head_valid[c] && (fill_state[c] == NONE || fill_state[c] == HAVE) && !rewind[c]
          // with its fill at hand a context takes one step at a time
          && !(fill_state[c] == HAVE && ((s1_valid && s1_context == CW'(c)) || (s2_valid && s2_context == CW'(c))
          || (s3_valid && s3_context == CW'(c))));
    pick = turn;
    for (int i = CONTEXTS - 1; i >= 0; i--)
      if (can[(32'(turn)+i)%CONTEXTS]) pick = CW'((32'(turn) + i) % CONTEXTS);
    issuing = can[pick] && !hold && queue_ready;
    issue = '0;
    issue[pick] = issuing;
  end

  logic [CONTEXTS-1:0] poisoned;
  engine_pkg::piece_t p0, p1, p2, p3;
  assign p0 = head[PB*pick+:PB];

  // The arrays. One index memory a way, one memory of entries.
  logic [23:0] look_index;
  assign look_index = fencing ? fence_index : fill_of[filling];
  logic [SW-1:0] read_set;
  assign read_set = work == REST ? p0.word[104+:SW] : look_index[SW-1:0];
  logic [WAYS*24-1:0] indices;
  logic [SETS*WAYS-1:0] present;
  logic [WAYS-1:0] here;
  logic [SETS*WAYS*YW-1:0] ages;  // 0: used last
  logic write;
  logic [YW-1:0] write_way;
  for (genvar y = 0; y < WAYS; y++) begin : g_way
    logic [23:0] mem[SETS];
    always_ff @(posedge clk) begin
      if (write && write_way == YW'(y)) mem[look_index[SW-1:0]] <= look_index;
      indices[24*y+:24] <= mem[read_set];
    end
  end
  always_ff @(posedge clk) here <= present[32'(read_set)*WAYS+:WAYS];

  // S1: compare.
  logic [CW-1:0] s1_context, s2_context, s3_context;
  logic s1_killed, s2_killed, s3_killed, s1_fill, s2_fill, s3_fill;
  logic [23:0] compare_with;
  logic match, s2_hit, s3_hit;
  logic [YW-1:0] way, s2_way, s3_way;
  assign compare_with = work == REST ? p1.word[127:104] : look_index;
  always_comb begin
    match = 1'b0;
    way   = '0;
    for (int y = 0; y < WAYS; y++)
      if (here[y] && indices[24*y+:24] == compare_with) begin
        match = 1'b1;
        way   = YW'(y);
      end
  end

  // S2: the entry.
  logic [engine_pkg::KEY_BITS-1:0] entries[SETS*WAYS];
  logic [engine_pkg::KEY_BITS-1:0] cached;
  engine_pkg::key_t k;
  always_ff @(posedge clk) begin
    if (write) entries[{look_index[SW-1:0], write_way}] <= filled[filling];
    cached <= entries[{p1.word[104+:SW], way}];
  end
  assign k = s2_fill ? filled[s2_context] : cached;

  logic [7:0] s3_early;  // the checks before the last
  logic [64:0] off;
  logic [63:0] s3_off, s3_length, s3_iova;
  logic s3_below;
  assign off = {1'b0, p2.word[63:0]} - {1'b0, k.base};
  logic [7:0] early;
  always_comb begin
    early = card_pkg::REASON_NONE;
    if (!k.valid) early = card_pkg::REASON_KEY_INDEX;
    else if (k.tag != p2.word[103:96]) early = card_pkg::REASON_KEY_TAG;
    else if (k.pd != p2.pd || (k.window && k.bound_qpn != p2.qpn)) early = card_pkg::REASON_PD;
    else if ((p2.access & ~k.access) != 8'd0 || (k.window && (p2.access & 8'h0e) == 8'd0)) early = card_pkg::REASON_ACCESS;
  end

  // S3: the bounds, and what comes of it.
  logic wraps, needs;
  logic [64:0] last_byte;
  logic [7:0] reason;
  logic missed, fault;
  engine_pkg::found_t f;
  assign needs = p3.kind == engine_pkg::PIECE_DATA && !s3_killed && !p3.malformed;
  assign missed = needs && !s3_hit && !s3_fill;
  assign last_byte = {1'b0, p3.word[63:0]} + {33'd0, p3.n} - 65'd1;
  assign wraps = last_byte[64];
  always_comb begin
    reason = card_pkg::REASON_NONE;
    if (p3.kind == engine_pkg::PIECE_DATA && !s3_killed) begin
      if (p3.malformed) reason = card_pkg::REASON_MALFORMED;
      else if (s3_early != card_pkg::REASON_NONE) reason = s3_early;
      else if (s3_below || s3_off > s3_length || {32'd0, p3.n} > s3_length - s3_off || wraps || p3.wrap)
        reason = card_pkg::REASON_BOUNDS;
    end
    fault = s3_valid && !missed && reason != card_pkg::REASON_NONE;
    f.kind = p3.kind;
    f.start = p3.start;
    f.trace = p3.trace;
    f.killed = s3_killed;
    f.hit = needs && s3_hit && !s3_fill;
    f.reason = reason;
    f.segment = p3.segment;
    f.offset = p3.offset;
    f.n = p3.n;
    f.key = p3.word[127:96];
    f.word = p3.kind == engine_pkg::PIECE_DATA ? {64'd0, s3_iova} : p3.word;
    f.dest = p3.dest;
    commit = '0;
    rewind = '0;
    if (s3_valid) begin
      commit[s3_context] = !missed;
      rewind[s3_context] = missed || fault;
    end
  end

  // What is behind a miss or a fault in the same context is taken back.
  logic s1_keeps, s2_keeps;
  assign s1_keeps = !rewind[s1_context];
  assign s2_keeps = !rewind[s2_context];

  logic push;
  assign push = s3_valid && !missed;
  fifo #(
      .BITS (CW + FB),
      .DEPTH(BUFFER),
      .SLACK(4)
  ) queue (
      .clk,
      .rst,
      .in_valid(push),
      .in_ready(queue_ready),
      .in({s3_context, f}),
      .out_valid(found_valid),
      .out_ready(found_ready),
      .out({found_context, found})
  );

  assign count_lookup = push && needs;
  assign count_hit = push && f.hit;

  always_ff @(posedge clk) begin
    p1 <= p0;
    s1_context <= pick;
    s1_fill <= fill_state[pick] == HAVE;
    s1_killed <= poisoned[pick] && !p0.start;
    p2 <= p1;
    s2_context <= s1_context;
    s2_fill <= s1_fill;
    s2_killed <= s1_killed;
    s2_hit <= match;
    s2_way <= way;
    p3 <= p2;
    s3_context <= s2_context;
    s3_fill <= s2_fill;
    s3_killed <= s2_killed;
    s3_hit <= s2_hit;
    s3_way <= s2_way;
    s3_early <= early;
    s3_below <= off[64];
    s3_off <= off[63:0];
    s3_length <= k.length;
    s3_iova <= k.iova + off[63:0];
  end

  // The least recently used way, an empty one first.
  logic [YW-1:0] victim;
  logic evicts;
  always_comb begin
    victim = '0;
    for (int y = 0; y < WAYS; y++)
      if (ages[(32'(look_index[SW-1:0])*WAYS+y)*YW+:YW] == YW'(WAYS - 1)) victim = YW'(y);
    evicts = 1'b1;
    for (int y = WAYS - 1; y >= 0; y--)
      if (!here[y]) begin
        victim = YW'(y);
        evicts = 1'b0;
      end
    if (match) begin
      victim = way;
      evicts = 1'b0;
    end
  end
  engine_pkg::key_t to_fill;
  assign to_fill = filled[filling];
  assign write = work == ACT && !fencing && fill_state[filling] == GOT && to_fill.valid;
  assign write_way = victim;
  assign count_eviction = write && evicts;

  // Uses: a hit in S3, or a fill.
  logic use_valid;
  logic [SW-1:0] use_set;
  logic [YW-1:0] use_way, use_age;
  assign use_valid = write || (push && f.hit);
  assign use_set = write ? look_index[SW-1:0] : p3.word[104+:SW];
  assign use_way = write ? victim : s3_way;
  assign use_age = ages[(32'(use_set)*WAYS+32'(use_way))*YW+:YW];

  // Fences: how many pieces of each context were looked up, and how many of them are retired.
  logic [11:0] in_flight[CONTEXTS];
  logic [11:0] older[CONTEXTS];  // of those, looked up before the fence
  logic drained;
  always_comb begin
    drained = 1'b1;
    for (int c = 0; c < CONTEXTS; c++) if (older[c] != 12'd0) drained = 1'b0;
  end
  logic act_fence;
  assign act_fence = work == ACT && fencing;
  assign fence_ready = fence_waits && drained;

  // A key-table entry as the contract has it. What it does not allow is not valid.
  card_pkg::key_entry_t e;
  engine_pkg::key_t decoded;
  assign e = entry;
  always_comb begin
    decoded.valid = entry_exists && e.valid.state == card_pkg::KEY_STATE_VALID[1:0] && !e.valid.type_[1]
        && e.valid.reserved_24 == '0 && e.valid.reserved_14 == '0 && e.valid.reserved_10 == '0
        && e.valid.access[7:5] == '0 && e.reserved_56 == '0 && e.reserved_40 == '0 && e.address_space == '0;
    decoded.window = e.valid.type_[0];
    decoded.tag = e.valid.tag;
    decoded.access = e.valid.access;
    decoded.pd = e.pd[23:0];
    decoded.bound_qpn = e.bound_qpn[23:0];
    decoded.base = e.base;
    decoded.length = e.length;
    decoded.iova = e.iova;
  end

  // Ask for one fill at a time.
  logic asks;
  logic [CW-1:0] asker;
  always_comb begin
    asks  = 1'b0;
    asker = '0;
    for (int c = 0; c < CONTEXTS; c++)
      if (fill_state[c] == ASK) begin
        asks  = 1'b1;
        asker = CW'(c);
      end
  end
  assign fill_valid = asks && !act_fence;
  assign fill_index = fill_of[asker];
  assign fill_context = asker;

  always_comb
    for (int c = 0; c < CONTEXTS; c++)
      count_discarded[c] = (act_fence && fill_of[c] == fence_index && (fill_state[c] == GOT || fill_state[c] == HAVE))
          || (entry_valid && entry_context == CW'(c) && (stale[c] || (act_fence && fill_of[c] == fence_index)));

  always_ff @(posedge clk) begin
    if (entry_valid) filled[entry_context] <= decoded;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      s1_valid <= 1'b0;
      s2_valid <= 1'b0;
      s3_valid <= 1'b0;
      turn <= '0;
      poisoned <= '0;
      present <= '0;
      for (int i = 0; i < SETS; i++) for (int y = 0; y < WAYS; y++) ages[(i*WAYS+y)*YW+:YW] <= YW'(y);
      work <= REST;
      fencing <= 1'b0;
      fence_waits <= 1'b0;
      filling <= '0;
      stale <= '0;
      for (int c = 0; c < CONTEXTS; c++) begin
        fill_state[c] <= NONE;
        fill_of[c] <= '0;
        in_flight[c] <= '0;
        older[c] <= '0;
      end
    end else begin
      s1_valid <= issuing;
      s2_valid <= s1_valid && s1_keeps;
      s3_valid <= s2_valid && s2_keeps;
      if (issuing) turn <= pick == CW'(CONTEXTS - 1) ? '0 : pick + 1'b1;
      if (issuing && p0.start) poisoned[pick] <= 1'b0;
      if (fault) poisoned[s3_context] <= 1'b1;

      if (use_valid)
        for (int y = 0; y < WAYS; y++) begin
          if (YW'(y) == use_way) ages[(32'(use_set)*WAYS+y)*YW+:YW] <= '0;
          else if (ages[(32'(use_set)*WAYS+y)*YW+:YW] < use_age)
            ages[(32'(use_set)*WAYS+y)*YW+:YW] <= ages[(32'(use_set)*WAYS+y)*YW+:YW] + 1'b1;
        end

      // Maintenance.
      case (work)
        REST:
        if (idle && (fence_wanted || fill_wanted)) begin
          fencing <= fence_wanted;
          filling <= fill_next;
          work <= LOOK;
        end
        LOOK: work <= ACT;
        default: begin
          work <= REST;
          if (fencing) begin
            fence_waits <= 1'b1;
            fencing <= 1'b0;
            if (match) present[32'(look_index[SW-1:0])*WAYS+32'(way)] <= 1'b0;
          end else if (write) present[32'(look_index[SW-1:0])*WAYS+32'(victim)] <= 1'b1;
        end
      endcase
      if (fence_ready) fence_waits <= 1'b0;

      for (int c = 0; c < CONTEXTS; c++) begin
        case (fill_state[c])
          NONE:
          if (s3_valid && missed && s3_context == CW'(c)) begin
            fill_state[c] <= ASK;
            fill_of[c] <= p3.word[127:104];
          end
          ASK:
          if (fill_valid && fill_ready && asker == CW'(c)) begin
            fill_state[c] <= WAIT;
            stale[c] <= 1'b0;
          end
          WAIT: begin
            if (act_fence && fill_of[c] == fence_index) stale[c] <= 1'b1;
            if (entry_valid && entry_context == CW'(c))
              fill_state[c] <= stale[c] || (act_fence && fill_of[c] == fence_index) ? ASK : GOT;
          end
          GOT: begin
            if (act_fence && fill_of[c] == fence_index) fill_state[c] <= ASK;
            else if (work == ACT && !fencing && filling == CW'(c)) fill_state[c] <= HAVE;
          end
          default: begin
            if (act_fence && fill_of[c] == fence_index) fill_state[c] <= ASK;
            else if (push && s3_fill && s3_context == CW'(c)) fill_state[c] <= NONE;
          end
        endcase
        in_flight[c] <= in_flight[c] + (push && s3_context == CW'(c) ? 12'd1 : 12'd0) - (retired[c] ? 12'd1 : 12'd0);
        if (act_fence) older[c] <= in_flight[c] - (retired[c] ? 12'd1 : 12'd0);
        else if (retired[c] && older[c] != 12'd0) older[c] <= older[c] - 12'd1;
      end
    end
  end
endmodule
