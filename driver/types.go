package driver

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"rnic/hw"
	"rnic/queues"
)

// The contract's enumerations, which number as rdma-core's do.
type (
	Access  = hw.Access    // access rights of a region or a queue pair
	MTU     = hw.MTU       // path MTU
	QPType  = hw.QPType    // transport service
	QPState = hw.QPState   // state of a queue pair
	Status  = hw.Status    // status of a completion
	Reason  = hw.Reason    // vendor syndrome: why
	Link    = hw.LinkState // state of the port
)

// QPAttrMask names attributes of QPAttr, as enum ibv_qp_attr_mask does.
type QPAttrMask = hw.QPAttr

// Access rights. Local read is always granted.
const (
	LocalWrite   = hw.AccessLocalWrite
	RemoteWrite  = hw.AccessRemoteWrite
	RemoteRead   = hw.AccessRemoteRead
	RemoteAtomic = hw.AccessRemoteAtomic
	MWBind       = hw.AccessMWBind
)

// Transport services.
const (
	RC = hw.QPTypeRC
	UC = hw.QPTypeUC
	UD = hw.QPTypeUD
)

// Path MTUs; the value in bytes is 128 << MTU.
const (
	MTU256  = hw.MTU256
	MTU512  = hw.MTU512
	MTU1024 = hw.MTU1024
	MTU2048 = hw.MTU2048
	MTU4096 = hw.MTU4096
)

// States of a queue pair.
const (
	StateReset = hw.QPStateReset
	StateInit  = hw.QPStateInit
	StateRTR   = hw.QPStateRTR
	StateRTS   = hw.QPStateRTS
	StateSQD   = hw.QPStateSQD
	StateSQE   = hw.QPStateSQE
	StateErr   = hw.QPStateErr
)

// Attributes of QPAttr.
const (
	AttrState           = hw.QPAttrState
	AttrCurState        = hw.QPAttrCurState
	AttrAccess          = hw.QPAttrAccess
	AttrPKeyIndex       = hw.QPAttrPKeyIndex
	AttrQKey            = hw.QPAttrQKey
	AttrAV              = hw.QPAttrAV
	AttrPathMTU         = hw.QPAttrPathMTU
	AttrTimeout         = hw.QPAttrTimeout
	AttrRetryCnt        = hw.QPAttrRetryCnt
	AttrRNRRetry        = hw.QPAttrRNRRetry
	AttrRQPSN           = hw.QPAttrRQPSN
	AttrMaxRDAtomic     = hw.QPAttrMaxQPRDAtomic
	AttrMinRNRTimer     = hw.QPAttrMinRNRTimer
	AttrSQPSN           = hw.QPAttrSQPSN
	AttrMaxDestRDAtomic = hw.QPAttrMaxDestRDAtomic
	AttrDestQPN         = hw.QPAttrDestQPN
	AttrRateLimit       = hw.QPAttrRateLimit
)

// Statuses of a completion.
const (
	StatusSuccess        = hw.StatusSuccess
	StatusLocLenErr      = hw.StatusLocLenErr
	StatusLocQPOpErr     = hw.StatusLocQPOpErr
	StatusLocProtErr     = hw.StatusLocProtErr
	StatusWRFlushErr     = hw.StatusWRFlushErr
	StatusMWBindErr      = hw.StatusMWBindErr
	StatusBadRespErr     = hw.StatusBadRespErr
	StatusLocAccessErr   = hw.StatusLocAccessErr
	StatusRemInvReqErr   = hw.StatusRemInvReqErr
	StatusRemAccessErr   = hw.StatusRemAccessErr
	StatusRemOpErr       = hw.StatusRemOpErr
	StatusRetryExcErr    = hw.StatusRetryExcErr
	StatusRNRRetryExcErr = hw.StatusRNRRetryExcErr
	StatusGeneralErr     = hw.StatusGeneralErr
)

// Reasons of a failure; up to ReasonBounds in the order of rule G10's checks.
const (
	ReasonNone        = hw.ReasonNone
	ReasonKeyIndex    = hw.ReasonKeyIndex
	ReasonKeyTag      = hw.ReasonKeyTag
	ReasonPD          = hw.ReasonPD
	ReasonAccess      = hw.ReasonAccess
	ReasonBounds      = hw.ReasonBounds
	ReasonDMARead     = hw.ReasonDMARead
	ReasonDMAWrite    = hw.ReasonDMAWrite
	ReasonLength      = hw.ReasonLength
	ReasonMalformed   = hw.ReasonMalformed
	ReasonChanged     = hw.ReasonChanged
	ReasonUnsupported = hw.ReasonUnsupported
	ReasonCQOverflow  = hw.ReasonCQOverflow
	ReasonRemoteNAK   = hw.ReasonRemoteNAK
	ReasonTimeout     = hw.ReasonTimeout
	ReasonRNR         = hw.ReasonRNR
	ReasonFlushed     = hw.ReasonFlushed
	ReasonBadResponse = hw.ReasonBadResponse
	ReasonHostGather  = hw.ReasonHostGather
	ReasonVerify      = hw.ReasonVerify // see VerifyError
	ReasonRingRead    = hw.ReasonRingRead
)

// Opcode is the operation of a work request. Send operations number as enum
// ibv_wr_opcode, receives as enum ibv_wc_opcode.
type Opcode uint8

// Operations.
const (
	Write       = Opcode(hw.OpcodeRDMAWrite)
	WriteImm    = Opcode(hw.OpcodeRDMAWriteWithImm)
	Send        = Opcode(hw.OpcodeSend)
	SendImm     = Opcode(hw.OpcodeSendWithImm)
	Read        = Opcode(hw.OpcodeRDMARead)
	CompareSwap = Opcode(hw.OpcodeAtomicCmpAndSwp)
	FetchAdd    = Opcode(hw.OpcodeAtomicFetchAndAdd)
	LocalInv    = Opcode(hw.OpcodeLocalInv)
	BindMW      = Opcode(hw.OpcodeBindMW)
	SendInv     = Opcode(hw.OpcodeSendWithInv)

	Recv         = Opcode(hw.CQEOpcodeRecv)            // completion of a receive, by a SEND
	RecvWriteImm = Opcode(hw.CQEOpcodeRecvRDMAWithImm) // completion of a receive, by a WRITE with immediate
)

// String gives the contract's name of the operation.
func (o Opcode) String() string {
	if o < Recv {
		return hw.Opcode(o).String()
	}
	return hw.CQEOpcode(o).String()
}

// SendFlags are the flags of a send work request.
type SendFlags uint8

// Flags of a send work request.
const (
	Signaled  = SendFlags(hw.WQEFlagSignaled)  // a completion is wanted on success
	Solicited = SendFlags(hw.WQEFlagSolicited) // a solicited event at the far end
	Fence     = SendFlags(hw.WQEFlagFence)     // wait for earlier READs and atomics

	sendFlags = Signaled | Solicited | Fence
)

// SGE is a scatter-gather entry: a piece of a region. MR.SGE makes one; it may
// be built by hand.
type SGE = queues.SGE

// RemoteMR is what a peer needs to reach a region: its first virtual address,
// its length in bytes, its key.
type RemoteMR struct {
	Addr, Length uint64
	RKey         uint32
}

// remoteMRSize is the size of the binary form: address, length, key, big-endian.
const remoteMRSize = 20

// MarshalBinary gives 20 bytes: address, length and key, big-endian.
func (r RemoteMR) MarshalBinary() ([]byte, error) {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, remoteMRSize), r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Length)
	return binary.BigEndian.AppendUint32(b, r.RKey), nil
}

// UnmarshalBinary reads what MarshalBinary gave.
func (r *RemoteMR) UnmarshalBinary(b []byte) error {
	if len(b) != remoteMRSize {
		return fmt.Errorf("rnic: remote MR of %d bytes, want %d: %w", len(b), remoteMRSize, ErrInvalid)
	}
	*r = RemoteMR{Addr: binary.BigEndian.Uint64(b), Length: binary.BigEndian.Uint64(b[8:]), RKey: binary.BigEndian.Uint32(b[16:])}
	return nil
}

// At is the part of the region from off on, for a work request that begins
// there. It does not check off: the far end does.
func (r RemoteMR) At(off uint64) RemoteMR {
	return RemoteMR{Addr: r.Addr + off, Length: r.Length - min(off, r.Length), RKey: r.RKey}
}

// SendWR is a send work request. It and what it points to are the caller's,
// and are not kept after the post returns; memory named by SGEs is the card's
// until the completion.
type SendWR struct {
	WRID   uint64 // comes back in the completion
	Opcode Opcode
	Flags  SendFlags
	SGEs   []SGE    // local memory, 0 to the queue's MaxSendSGE; for Read and atomics, where the result goes
	Inline [][]byte // instead of SGEs: copied at the post, in all at most the queue's MaxInline bytes

	Remote              RemoteMR // for RDMA and atomics: Addr and RKey count
	Imm, InvalidateRKey uint32   // SendImm and WriteImm; SendInv and LocalInv
	CompareAdd, Swap    uint64   // CompareSwap: compare, swap; FetchAdd: CompareAdd is added

	AH                    *AH // UD
	RemoteQPN, RemoteQKey uint32
}

// RecvWR is a receive work request, under the rules of SendWR.
type RecvWR struct {
	WRID uint64
	SGEs []SGE // 0 to the queue's MaxRecvSGE; they need local write access
}

// WCFlags are the flags of a completion.
type WCFlags uint8

// Flags of a completion.
const (
	WCRecv      = WCFlags(hw.CQEFlagRecv)      // of a receive
	WCImm       = WCFlags(hw.CQEFlagImm)       // Imm is immediate data
	WCInv       = WCFlags(hw.CQEFlagInv)       // Imm is the R_Key that was invalidated
	WCSolicited = WCFlags(hw.CQEFlagSolicited) // a solicited event
	WCGRH       = WCFlags(hw.CQEFlagGRH)       // the buffer begins with the 40 bytes of the GRH area (UD)
)

// WC is a work completion. Opcode, ByteLen and Imm mean something only where
// Status is StatusSuccess.
type WC struct {
	WRID    uint64
	QPN     uint32
	Status  Status
	Reason  Reason
	Opcode  Opcode
	Flags   WCFlags
	ByteLen uint32 // payload bytes received, read or exchanged
	Imm     uint32 // immediate data or invalidated R_Key, by Flags
	Time    uint64 // card time, ns

	// Of a receive over UD.
	SrcQPN    uint32
	PKeyIndex uint16

	// As in CompletionError; -1 and zeros in a success.
	AETH         uint8
	FaultKey     uint32
	FaultOffset  uint64
	FaultSegment int
}

// Err is nil for a success, else a *CompletionError.
func (w *WC) Err() error {
	if w.Status == StatusSuccess {
		return nil
	}
	return &CompletionError{
		Status: w.Status, WRID: w.WRID, QPN: w.QPN, Opcode: w.Opcode,
		Segment: w.FaultSegment, Key: w.FaultKey, Offset: w.FaultOffset, Reason: w.Reason, AETH: w.AETH,
	}
}

// GID is a RoCE port's address: an IPv6 address, or an IPv4 one mapped into
// IPv6 (::ffff:a.b.c.d).
type GID [16]byte

// GIDFromIP makes a GID of an address.
func GIDFromIP(a netip.Addr) GID { return GID(a.As16()) }

// Addr is the GID as an address, an IPv4 one unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the GID is not set.
func (g GID) IsZero() bool { return g == GID{} }

// String gives the address.
func (g GID) String() string { return g.Addr().String() }

// MarshalText gives the address.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads an address, without a zone.
func (g *GID) UnmarshalText(b []byte) error {
	a, err := netip.ParseAddr(string(b))
	if err != nil || a.Zone() != "" {
		return fmt.Errorf("rnic: GID %.64q is not an IP address: %w", b, ErrInvalid)
	}
	*g = GIDFromIP(a)
	return nil
}

// MAC is an Ethernet address. The zero MAC is none.
type MAC [6]byte

// IsZero reports whether there is none.
func (m MAC) IsZero() bool { return m == MAC{} }

// String gives "02:00:00:00:00:01".
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText is String.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what net.ParseMAC takes, of 6 bytes.
func (m *MAC) UnmarshalText(b []byte) error {
	a, err := net.ParseMAC(string(b))
	if err != nil || len(a) != len(m) {
		return fmt.Errorf("rnic: MAC %.64q is not an Ethernet address: %w", b, ErrInvalid)
	}
	copy(m[:], a)
	return nil
}
