// What the modules of the transmit side hand to each other. The layouts that a host or the wire sees
// are not here: they are card_pkg's, and txbuild's by the InfiniBand specification.
//
// Members of a packed structure run from the highest bit down; X_BITS is the width of x_t.

package engine_pkg;

  // What a job is for. The walk itself never looks at it (rule G5); transfer and txbuild do.
  localparam logic [1:0] KIND_PLAIN = 2'd0;  // a frame without payload, its opcode as given
  localparam logic [1:0] KIND_SEND = 2'd1;
  localparam logic [1:0] KIND_WRITE = 2'd2;
  localparam logic [1:0] KIND_READ_RESPONSE = 2'd3;

  localparam logic [1:0] TRANSPORT_RC = 2'd0;
  localparam logic [1:0] TRANSPORT_UC = 2'd1;
  localparam logic [1:0] TRANSPORT_UD = 2'd3;

  // BTH opcodes (InfiniBand specification, volume 1, table 38), without the transport in bits 7:5.
  localparam logic [4:0] SEND_FIRST = 5'h00;
  localparam logic [4:0] SEND_MIDDLE = 5'h01;
  localparam logic [4:0] SEND_LAST = 5'h02;
  localparam logic [4:0] SEND_LAST_IMM = 5'h03;
  localparam logic [4:0] SEND_ONLY = 5'h04;
  localparam logic [4:0] SEND_ONLY_IMM = 5'h05;
  localparam logic [4:0] WRITE_FIRST = 5'h06;
  localparam logic [4:0] WRITE_MIDDLE = 5'h07;
  localparam logic [4:0] WRITE_LAST = 5'h08;
  localparam logic [4:0] WRITE_LAST_IMM = 5'h09;
  localparam logic [4:0] WRITE_ONLY = 5'h0a;
  localparam logic [4:0] WRITE_ONLY_IMM = 5'h0b;
  localparam logic [4:0] READ_REQUEST = 5'h0c;
  localparam logic [4:0] READ_RESPONSE_FIRST = 5'h0d;
  localparam logic [4:0] READ_RESPONSE_MIDDLE = 5'h0e;
  localparam logic [4:0] READ_RESPONSE_LAST = 5'h0f;
  localparam logic [4:0] READ_RESPONSE_ONLY = 5'h10;
  localparam logic [4:0] ACKNOWLEDGE = 5'h11;
  localparam logic [4:0] ATOMIC_ACKNOWLEDGE = 5'h12;
  localparam logic [4:0] COMPARE_SWAP = 5'h13;
  localparam logic [4:0] FETCH_ADD = 5'h14;
  localparam logic [4:0] SEND_LAST_INV = 5'h16;
  localparam logic [4:0] SEND_ONLY_INV = 5'h17;

  // The extended headers that follow the BTH, in this order: bits of a set.
  localparam logic [6:0] EXT_DETH = 7'h40;
  localparam logic [6:0] EXT_RETH = 7'h20;
  localparam logic [6:0] EXT_ATOMIC_ETH = 7'h10;
  localparam logic [6:0] EXT_AETH = 7'h08;
  localparam logic [6:0] EXT_ATOMIC_ACK = 7'h04;
  localparam logic [6:0] EXT_IMMDT = 7'h02;
  localparam logic [6:0] EXT_IETH = 7'h01;

  // Which extended headers an opcode has. CNP and what manufacturers define have none.
  function automatic logic [6:0] ext_of(input logic [7:0] opcode);
    case (opcode[4:0])
      SEND_LAST_IMM, SEND_ONLY_IMM, WRITE_LAST_IMM: ext_of = EXT_IMMDT;
      WRITE_FIRST, WRITE_ONLY, READ_REQUEST: ext_of = EXT_RETH;
      WRITE_ONLY_IMM: ext_of = EXT_RETH | EXT_IMMDT;
      READ_RESPONSE_FIRST, READ_RESPONSE_LAST, READ_RESPONSE_ONLY, ACKNOWLEDGE: ext_of = EXT_AETH;
      ATOMIC_ACKNOWLEDGE: ext_of = EXT_AETH | EXT_ATOMIC_ACK;
      COMPARE_SWAP, FETCH_ADD: ext_of = EXT_ATOMIC_ETH;
      SEND_LAST_INV, SEND_ONLY_INV: ext_of = EXT_IETH;
      default: ext_of = '0;
    endcase
    if (opcode[6:5] == TRANSPORT_UD) ext_of = ext_of | EXT_DETH;
    if (opcode[7]) ext_of = '0;
  endfunction

  // Bytes of a set of extended headers.
  function automatic logic [5:0] ext_bytes(input logic [6:0] set);
    ext_bytes = (set[6] ? 6'd8 : 6'd0) + (set[5] ? 6'd16 : 6'd0) + (set[4] ? 6'd28 : 6'd0) + (set[3] ? 6'd4 : 6'd0)
        + (set[2] ? 6'd8 : 6'd0) + (set[1] ? 6'd4 : 6'd0) + (set[0] ? 6'd4 : 6'd0);
  endfunction

  // A job as transfer takes it: some packets of one message, from a cursor on. The words of its
  // segments (or of its inline payload, 16 bytes each) follow on the segment port, those before
  // the cursor's segment left out.
  typedef struct packed {
    logic [31:0] token;  // comes back in the result
    logic chain;  // falls with the job before it in this context: same QP
    logic trace;
    logic [1:0] kind;
    logic [1:0] transport;
    logic is_inline;
    logic imm;  // the last packet carries immediate data
    logic inv;  // the last packet carries an R_Key to invalidate
    logic solicited;  // the last packet has the solicited event bit
    logic ack;  // KIND_PLAIN: AckReq as given
    logic [7:0] opcode;  // KIND_PLAIN: the BTH's opcode
    logic ipv6;
    logic vlan;
    logic [12:0] mtu;  // bytes
    logic [23:0] packet;  // number of the first packet in its message
    logic [23:0] packets;  // at most so many; 0: to the message's end
    logic [15:0] ack_every;  // every Nth packet asks too (rule G13); 0: the last only
    logic [15:0] ack_phase;  // packets since the last that asked by that rule
    logic [23:0] psn;  // of the first packet
    logic [15:0] ip_id;  // of the first packet; it counts up
    logic [7:0] rate;  // rate-limit entry; 0: not limited
    logic [23:0] pd;
    logic [23:0] qpn;
    logic [7:0] access;
    logic [5:0] segment;  // cursor (rule G8)
    logic [31:0] offset;
    logic [31:0] left;
    logic [5:0] count;  // segments of the message in all
    logic [6:0] words;  // that follow on the segment port
  } walk_t;
  localparam int WALK_BITS = 333;

  // The fields of a job's headers, as numbers: their highest byte is the first on the wire.
  typedef struct packed {
    logic [47:0] dmac;
    logic [47:0] smac;
    logic vlan;
    logic [15:0] tci;
    logic ipv6;
    logic [127:0] sgid;
    logic [127:0] dgid;
    logic [7:0] traffic_class;
    logic [7:0] hop_limit;
    logic [19:0] flow_label;
    logic [15:0] udp_source_port;
    logic migreq;
    logic fecn;
    logic becn;
    logic [15:0] pkey;
    logic [23:0] dest_qpn;
    logic [63:0] va;
    logic [31:0] rkey;
    logic [31:0] dma_length;
    logic [63:0] swap_add;
    logic [63:0] compare;
    logic [7:0] syndrome;
    logic [23:0] msn;
    logic [63:0] atomic_ack;
    logic [31:0] imm;
    logic [31:0] inv_rkey;
    logic [31:0] qkey;
    logic [23:0] src_qpn;
  } head_t;
  localparam int HEAD_BITS = 937;

  // A packet as transfer announces it to txbuild.
  typedef struct packed {
    logic [31:0] token;
    logic job_last;
    logic [7:0] opcode;
    logic solicited;
    logic ack;
    logic [23:0] psn;
    logic [15:0] ip_id;
    logic [12:0] length;  // bytes of payload
    logic [15:0] row;  // of the packet buffer, where its payload begins
    logic [15:0] rows;
  } packet_t;
  localparam int PACKET_BITS = 128;

  // A packet that was planned, for the walk.
  typedef struct packed {
    logic first;  // of its job: the walk takes the cursor and what follows it from here
    logic last;
    logic chain;
    logic trace;
    logic is_inline;
    logic [12:0] length;
    logic [15:0] row;
    logic [23:0] packet;
    logic [5:0] segment;
    logic [31:0] offset;
    logic [31:0] left;
    logic [23:0] pd;
    logic [23:0] qpn;
    logic [7:0] access;
    logic [5:0] count;
    logic [6:0] words;
  } plan_t;

  localparam logic [1:0] PIECE_DATA = 2'd0;  // bytes of one segment: a lookup, then reads
  localparam logic [1:0] PIECE_INLINE = 2'd1;  // up to 16 bytes that came with the WQE (rule G3)
  localparam logic [1:0] PIECE_END = 2'd2;  // end of the packet: segment, offset and n are the cursor
  localparam logic [1:0] PIECE_BEGIN = 2'd3;  // with trace only: the cursor before the packet

  // A step of the walk, on its way from transfer to the lookup.
  typedef struct packed {
    logic [1:0] kind;
    logic start;  // first of a job that does not fall with the one before
    logic malformed;  // the cursor lies outside the segments
    logic wrap;  // the segment runs over the end of the address space before this piece
    logic trace;
    logic [5:0] segment;
    logic [31:0] offset;
    logic [31:0] n;  // bytes; PIECE_END and PIECE_BEGIN: bytes left of the message
    logic [127:0] word;  // DATA: key, then address; INLINE: the bytes; BEGIN: packet number, bytes
    logic [19:0] dest;  // byte of the context's packet buffer
    logic [23:0] pd;
    logic [23:0] qpn;
    logic [7:0] access;
  } piece_t;
  localparam int PIECE_BITS = 280;

  // The same, looked up.
  typedef struct packed {
    logic [1:0] kind;
    logic start;
    logic trace;
    logic killed;  // it comes after a fault: nothing of it is done
    logic hit;
    logic [7:0] reason;
    logic [5:0] segment;
    logic [31:0] offset;
    logic [31:0] n;
    logic [31:0] key;
    logic [127:0] word;  // DATA: the IOVA in the low half
    logic [19:0] dest;
  } found_t;
  localparam int FOUND_BITS = 264;

  // A read (or a step without one), in walk's order, as handover retires it.
  typedef struct packed {
    logic [1:0] kind;
    logic start;
    logic trace;
    logic killed;
    logic hit;
    logic last;  // of its piece
    logic [7:0] reason;
    logic [5:0] segment;
    logic [31:0] offset;
    logic [31:0] n;
    logic [31:0] key;
  } entry_t;
  localparam int ENTRY_BITS = 117;

  // What has become of a packet.
  typedef struct packed {
    logic whole;  // its payload is in the packet buffer
    logic [7:0] reason;  // else why not
    logic [5:0] segment;  // cursor after it, or where it failed
    logic [31:0] offset;
    logic [31:0] left;
    logic [31:0] key;
  } outcome_t;
  localparam int OUTCOME_BITS = 111;

  // What has become of a job. Where psns is 0 the cursor is as it was given.
  typedef struct packed {
    logic [31:0] token;
    logic [23:0] psns;  // packets sent
    logic [7:0] reason;  // card_pkg::reason_e; FLUSHED: it fell with the job before
    logic [5:0] segment;  // of the fault
    logic [31:0] offset;
    logic [31:0] key;
    logic [5:0] cursor_segment;
    logic [31:0] cursor_offset;
    logic [31:0] cursor_left;
  } result_t;
  localparam int RESULT_BITS = 204;

  // A step for the trace ring (rule G22). SENT is not among them: it is the frame itself.
  typedef struct packed {
    logic [7:0] kind;  // card_pkg::trace_kind_e
    logic hit;
    logic [7:0] reason;
    logic [5:0] segment;
    logic [31:0] offset;
    logic [31:0] n;  // bytes; PACKET, HANDOVER: bytes left of the message
    logic [31:0] key;  // PACKET: the packet's number
  } trace_t;
  localparam int TRACE_BITS = 119;

  // A key-table entry, as the cache keeps it.
  typedef struct packed {
    logic valid;
    logic window;
    logic [7:0] tag;
    logic [7:0] access;
    logic [23:0] pd;
    logic [23:0] bound_qpn;
    logic [63:0] base;
    logic [63:0] length;
    logic [63:0] iova;
  } key_t;
  localparam int KEY_BITS = 258;

  // Where the bytes of a read go.
  typedef struct packed {
    logic [3:0] context_;
    logic [9:0] sequence_;  // entry of the context's handover ring
    logic [19:0] dest;  // byte of the context's packet buffer
    logic [5:0] skip;  // bytes of the first beat that were not asked for
    logic [12:0] n;
  } place_t;
  localparam int PLACE_BITS = 53;

  // Counters, by number.
  localparam int COUNTERS = 16;
  localparam int COUNT_LOOKUPS = 0;
  localparam int COUNT_HITS = 1;
  localparam int COUNT_MISSES = 2;
  localparam int COUNT_EVICTIONS = 3;
  localparam int COUNT_FENCES = 4;
  localparam int COUNT_FILLS_DISCARDED = 5;
  localparam int COUNT_READS = 6;
  localparam int COUNT_READ_BYTES = 7;
  localparam int COUNT_READ_FAULTS = 8;
  localparam int COUNT_TIMEOUTS = 9;
  localparam int COUNT_LATE = 10;  // completions of reads that had timed out, or of none
  localparam int COUNT_FRAMES = 11;
  localparam int COUNT_FRAME_BYTES = 12;
  localparam int COUNT_FAULTS = 13;  // packets dropped whole
  localparam int COUNT_GATE_HOLDS = 14;
  localparam int COUNT_TRACE_LOST = 15;

endpackage
