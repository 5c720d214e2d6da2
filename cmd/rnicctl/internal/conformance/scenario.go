package conformance

import "encoding/json"

// What scenario.json says, as far as a replay needs it (test/golden/README.md,
// schema 1). Codes are those of libibverbs; numbers of 64 bits are plain JSON
// integers.

// Scenario is one scenario.json.
type Scenario struct {
	Schema           int             `json:"schema"`
	Name             string          `json:"scenario"`
	Description      string          `json:"description"`
	Transport        string          `json:"transport"`  // RC, UC or UD
	IPVersion        int             `json:"ip_version"` // 4 or 6
	Path             Path            `json:"path"`
	QPAttr           QPAttr          `json:"qp_attr"`
	Nodes            map[string]Node `json:"nodes"` // A and B
	Steps            []Step          `json:"steps"`
	MemoryAfter      []MemoryRange   `json:"memory_after"`
	RelayRule        json.RawMessage `json:"relay_rule"` // prose: for people
	DeliveredDiffers bool            `json:"delivered_differs"`
	Frames           []FrameInfo     `json:"frames"`
}

// Path is the way between the two nodes.
type Path struct {
	MTU          int    `json:"mtu"` // bytes
	PKey         uint16 `json:"pkey"`
	HopLimit     uint8  `json:"hop_limit"` // as asked for; 64 on the wire
	TrafficClass uint8  `json:"traffic_class"`
	FlowLabel    uint32 `json:"flow_label"` // selects the UDP source port only
}

// QPAttr is the attributes that both QPs get.
type QPAttr struct {
	Timeout         uint8   `json:"timeout"`
	RetryCnt        uint8   `json:"retry_cnt"`
	RNRRetry        uint8   `json:"rnr_retry"`
	MinRNRTimer     uint8   `json:"min_rnr_timer"`
	MaxRDAtomic     uint8   `json:"max_rd_atomic"`
	MaxDestRDAtomic uint8   `json:"max_dest_rd_atomic"`
	Access          uint32  `json:"qp_access"`
	SignalAll       int     `json:"sq_sig_all"`
	QKey            *uint32 `json:"qkey"`
}

// Node is one side.
type Node struct {
	MAC         string   `json:"mac"`
	IP          string   `json:"ip"`
	QPN         uint32   `json:"qpn"`
	SQPSN       uint32   `json:"sq_psn"`
	RQPSN       uint32   `json:"rq_psn"`
	SourcePorts []uint16 `json:"udp_sport_observed"`
	Caps        Caps     `json:"caps"`
	MRs         []MR     `json:"mrs"`
}

// Caps is what the QP was created with.
type Caps struct {
	MaxSendWR  int `json:"max_send_wr"`
	MaxRecvWR  int `json:"max_recv_wr"`
	MaxSendSGE int `json:"max_send_sge"`
	MaxRecvSGE int `json:"max_recv_sge"`
	MaxInline  int `json:"max_inline"`
}

// MR is a memory region.
type MR struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Addr   uint64 `json:"addr"`
	Len    uint64 `json:"len"`
	LKey   uint32 `json:"lkey"`
	RKey   uint32 `json:"rkey"`
	Access uint32 `json:"access"`
	Fill   Fill   `json:"fill"`
}

// Fill is the first content of a region.
type Fill struct {
	Rule  string `json:"rule"` // pat or const
	Seed  uint32 `json:"seed"`
	Value uint32 `json:"value"`
}

// Byte is the content at offset i of the region.
func (f *Fill) Byte(i uint64) byte {
	if f.Rule == "pat" {
		return byte(uint64(f.Seed) + 7*i + 13*(i>>8))
	}
	return byte(f.Value)
}

// The actions of a step.
const (
	actionPostRecv    = "post_recv"
	actionPostSend    = "post_send"
	actionPoll        = "poll"
	actionQueryQP     = "query_qp"
	actionModifyQP    = "modify_qp"
	actionAsyncEvents = "async_events"
)

// Step is one thing that one node did.
type Step struct {
	Node   string `json:"node"`
	Action string `json:"action"`

	WRID     uint64 `json:"wr_id"` // post_recv
	SGEs     []SGE  `json:"sges"`
	WRs      []WR   `json:"wrs"` // post_send: one call with a chain
	RC       int    `json:"rc"`  // both: errno of the call
	Err      string `json:"err"`
	BadIndex int    `json:"bad_index"` // of the work request that was refused; -1: none

	CQ          string       `json:"cq"` // poll: send or recv
	Expected    int          `json:"expected"`
	Completions []Completion `json:"completions"`

	Result *QPState `json:"result"` // query_qp
	State  string   `json:"state"`  // modify_qp
}

// SGE is a scatter-gather entry as posted.
type SGE struct {
	MR     string `json:"mr"`
	Offset uint64 `json:"offset"`
	Addr   uint64 `json:"addr"`
	Len    uint32 `json:"len"`
	LKey   uint32 `json:"lkey"`
}

// The opcodes of a work request.
const (
	opSend     = "SEND"
	opSendImm  = "SEND_IMM"
	opSendInv  = "SEND_INV"
	opWrite    = "WRITE"
	opWriteImm = "WRITE_IMM"
	opRead     = "READ"
	opCAS      = "CAS"
	opFADD     = "FADD"
	opBindMW   = "BIND_MW"
	opLocalInv = "LOCAL_INV"
)

// enum ibv_send_flags.
const (
	flagFence     = 1
	flagSignaled  = 2
	flagSolicited = 4
	flagInline    = 8
)

// WR is a send work request.
type WR struct {
	WRID       uint64 `json:"wr_id"`
	Opcode     string `json:"opcode"`
	Flags      int    `json:"flags"`
	SGEs       []SGE  `json:"sges"`
	Imm        uint32 `json:"imm"`
	InvRKey    uint32 `json:"invalidate_rkey"`
	RemoteAddr uint64 `json:"remote_addr"`
	RKey       uint32 `json:"rkey"`
	CompareAdd uint64 `json:"compare_add"`
	Swap       uint64 `json:"swap"`
	RemoteQPN  uint32 `json:"remote_qpn"`
	RemoteQKey uint32 `json:"remote_qkey"`
	Bind       *Bind  `json:"bind"`
}

// length is the sum of the lengths of the SGEs.
func (w *WR) length() uint64 {
	n := uint64(0)
	for i := range w.SGEs {
		n += uint64(w.SGEs[i].Len)
	}
	return n
}

// Bind is the bind of a memory window.
type Bind struct {
	Addr    uint64 `json:"addr"`
	Length  uint64 `json:"length"`
	MRIndex int    `json:"mr_index"`
	Access  uint32 `json:"access"`
	RKey    uint32 `json:"rkey"`
}

// enum ibv_wc_status, as far as recordings and rulings name them.
const (
	statusSuccess     = 0
	statusLocLen      = 1
	statusLocQPOp     = 2
	statusLocProt     = 4
	statusFlushed     = 5
	statusRemInvReq   = 9
	statusRemAccess   = 10
	statusRemOp       = 11
	statusRetryExc    = 12
	statusRNRRetryExc = 13
)

// enum ibv_wc_opcode.
const (
	wcSend     = 0
	wcWrite    = 1
	wcRead     = 2
	wcCompSwap = 3
	wcFetchAdd = 4
	wcBindMW   = 5
	wcLocalInv = 6
	wcRecv     = 128
	wcRecvImm  = 129
)

// enum ibv_wc_flags.
const (
	wcFlagImm = 2
	wcFlagInv = 4
)

// Completion is one ibv_wc.
type Completion struct {
	WRID    uint64 `json:"wr_id"`
	Status  int    `json:"status"`
	Opcode  int    `json:"opcode"`
	ByteLen uint32 `json:"byte_len"`
	Flags   int    `json:"wc_flags"`
	Imm     uint32 `json:"imm"`
	QPN     uint32 `json:"qp_num"`
}

// IBV_ACCESS_LOCAL_WRITE.
const accessLocalWrite = 1

// enum ibv_qp_state.
const (
	stateRTS = 3
	stateErr = 6
)

// QPState is what query_qp told, as far as it is compared.
type QPState struct {
	RC    int    `json:"rc"`
	State int    `json:"state"`
	SQPSN uint32 `json:"sq_psn"`
}

// MemoryRange is memory that was read back.
type MemoryRange struct {
	Node   string `json:"node"`
	MR     string `json:"mr"`
	Offset uint64 `json:"offset"`
	Len    uint64 `json:"len"`
	What   string `json:"what"`
	SHA256 string `json:"sha256"`
	Hex    string `json:"hex"` // the bytes themselves, where they are few
}

// FrameInfo is what frames[] adds to capture.pcap.
type FrameInfo struct {
	Dir    string `json:"dir"`   // A>B or B>A
	Relay  string `json:"relay"` // pass, drop, or subst: not delivered as sent
	ICRCOK *bool  `json:"icrc_ok"`
}

// Values of FrameInfo.Relay that matter here.
const (
	relayPass  = "pass"
	relaySubst = "subst"
)
