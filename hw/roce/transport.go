package roce

// Lengths in bytes of the transport headers.
const (
	BTHLen          = 12
	DETHLen         = 8
	RETHLen         = 16
	AtomicETHLen    = 28
	AETHLen         = 4
	AtomicAckETHLen = 8
	ImmDtLen        = 4
	IETHLen         = 4
)

const mask24 = 1<<24 - 1

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func setBit(b *byte, mask byte, on bool) {
	*b &^= mask
	if on {
		*b |= mask
	}
}

// BTH is a view of the Base Transport Header (IBTA vol. 1, 9.2; annex A17 for
// FECN and BECN).
//
//	byte 0       1             2–3    4                   5–7     8            9–11
//	+--------+----------------+------+-------------------+-------+------------+-----+
//	| opcode |SE M pad:2 tver:4|P_Key|FECN BECN reserved:6|dest QP|A reserved:7| PSN |
//	+--------+----------------+------+-------------------+-------+------------+-----+
type BTH []byte

// Opcode is the packet's opcode, perhaps reserved.
func (b BTH) Opcode() Opcode { return Opcode(b[0]) }

// SE is the solicited event bit.
func (b BTH) SE() bool { return b[1]&0x80 != 0 }

// MigReq is the migration request bit.
func (b BTH) MigReq() bool { return b[1]&0x40 != 0 }

// PadCount is the number of pad bytes, 0 to 3, between payload and ICRC.
func (b BTH) PadCount() uint8 { return b[1] >> 4 & 3 }

// TVer is the transport header version, 0.
func (b BTH) TVer() uint8 { return b[1] & 0xF }

// PKey is the partition key.
func (b BTH) PKey() uint16 { return be.Uint16(b[2:]) }

// FECN is the forward explicit congestion notification bit.
func (b BTH) FECN() bool { return b[4]&0x80 != 0 }

// BECN is the backward explicit congestion notification bit.
func (b BTH) BECN() bool { return b[4]&0x40 != 0 }

// DestQP is the destination queue pair number, 24 bits.
func (b BTH) DestQP() uint32 { return get24(b[5:]) }

// AckReq is the acknowledge request bit.
func (b BTH) AckReq() bool { return b[8]&0x80 != 0 }

// PSN is the packet sequence number, 24 bits.
func (b BTH) PSN() uint32 { return get24(b[9:]) }

// SetOpcode sets the opcode.
func (b BTH) SetOpcode(o Opcode) { b[0] = byte(o) }

// SetSE sets the solicited event bit.
func (b BTH) SetSE(on bool) { setBit(&b[1], 0x80, on) }

// SetMigReq sets the migration request bit.
func (b BTH) SetMigReq(on bool) { setBit(&b[1], 0x40, on) }

// SetPadCount sets the pad count, of which the lower two bits are used.
func (b BTH) SetPadCount(n uint8) { b[1] = b[1]&^0x30 | n&3<<4 }

// SetTVer sets the transport header version, 4 bits.
func (b BTH) SetTVer(v uint8) { b[1] = b[1]&^0xF | v&0xF }

// SetPKey sets the partition key.
func (b BTH) SetPKey(v uint16) { be.PutUint16(b[2:], v) }

// SetFECN sets the forward congestion bit.
func (b BTH) SetFECN(on bool) { setBit(&b[4], 0x80, on) }

// SetBECN sets the backward congestion bit.
func (b BTH) SetBECN(on bool) { setBit(&b[4], 0x40, on) }

// SetDestQP sets the destination queue pair number, 24 bits.
func (b BTH) SetDestQP(v uint32) { put24(b[5:], v) }

// SetAckReq sets the acknowledge request bit.
func (b BTH) SetAckReq(on bool) { setBit(&b[8], 0x80, on) }

// SetPSN sets the packet sequence number, 24 bits.
func (b BTH) SetPSN(v uint32) { put24(b[9:], v) }

// RETH is a view of the RDMA Extended Transport Header (IBTA vol. 1, 9.3).
//
//	0                8        12       16
//	+----------------+--------+--------+
//	| virtual address|  R_Key | length |
//	+----------------+--------+--------+
type RETH []byte

// RETHFields is the content of a RETH.
type RETHFields struct {
	VA     uint64 // virtual address of the first byte
	RKey   uint32
	DMALen uint32 // length of the whole message, in bytes
}

// VA is the virtual address of the first byte.
func (b RETH) VA() uint64 { return be.Uint64(b) }

// RKey is the remote key.
func (b RETH) RKey() uint32 { return be.Uint32(b[8:]) }

// DMALen is the length in bytes of the whole message.
func (b RETH) DMALen() uint32 { return be.Uint32(b[12:]) }

// Fields is the whole header.
func (b RETH) Fields() RETHFields { return RETHFields{b.VA(), b.RKey(), b.DMALen()} }

// Encode writes the whole header.
func (b RETH) Encode(f *RETHFields) {
	be.PutUint64(b, f.VA)
	be.PutUint32(b[8:], f.RKey)
	be.PutUint32(b[12:], f.DMALen)
}

// AtomicETH is a view of the Atomic Extended Transport Header.
//
//	0                8        12              20             28
//	+----------------+--------+---------------+--------------+
//	| virtual address|  R_Key | swap (or add) |   compare    |
//	+----------------+--------+---------------+--------------+
type AtomicETH []byte

// AtomicETHFields is the content of an AtomicETH.
type AtomicETHFields struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64 // what compare-and-swap stores, or fetch-and-add adds
	Compare uint64 // what compare-and-swap compares with
}

// VA is the virtual address of the eight bytes.
func (b AtomicETH) VA() uint64 { return be.Uint64(b) }

// RKey is the remote key.
func (b AtomicETH) RKey() uint32 { return be.Uint32(b[8:]) }

// SwapAdd is the value to swap in or to add.
func (b AtomicETH) SwapAdd() uint64 { return be.Uint64(b[12:]) }

// Compare is the value to compare with.
func (b AtomicETH) Compare() uint64 { return be.Uint64(b[20:]) }

// Fields is the whole header.
func (b AtomicETH) Fields() AtomicETHFields {
	return AtomicETHFields{b.VA(), b.RKey(), b.SwapAdd(), b.Compare()}
}

// Encode writes the whole header.
func (b AtomicETH) Encode(f *AtomicETHFields) {
	be.PutUint64(b, f.VA)
	be.PutUint32(b[8:], f.RKey)
	be.PutUint64(b[12:], f.SwapAdd)
	be.PutUint64(b[20:], f.Compare)
}

// AETH is a view of the ACK Extended Transport Header.
//
//	0          1       4
//	+----------+-------+
//	| syndrome |  MSN  |
//	+----------+-------+
type AETH []byte

// AETHFields is the content of an AETH.
type AETHFields struct {
	Syndrome Syndrome
	MSN      uint32 // message sequence number, 24 bits
}

// Syndrome says whether and why not it is an acknowledgement.
func (b AETH) Syndrome() Syndrome { return Syndrome(b[0]) }

// MSN is the message sequence number, 24 bits.
func (b AETH) MSN() uint32 { return get24(b[1:]) }

// Fields is the whole header.
func (b AETH) Fields() AETHFields { return AETHFields{b.Syndrome(), b.MSN()} }

// Encode writes the whole header.
func (b AETH) Encode(f *AETHFields) {
	b[0] = byte(f.Syndrome)
	put24(b[1:], f.MSN)
}

// AtomicAckETH is a view of the Atomic ACK Extended Transport Header:
// the eight bytes as they were before the atomic.
type AtomicAckETH []byte

// OrigRemoteData is the original content of the remote eight bytes.
func (b AtomicAckETH) OrigRemoteData() uint64 { return be.Uint64(b) }

// SetOrigRemoteData sets it.
func (b AtomicAckETH) SetOrigRemoteData(v uint64) { be.PutUint64(b, v) }

// DETH is a view of the Datagram Extended Transport Header.
//
//	0        4        5        8
//	+--------+--------+--------+
//	|  Q_Key |reserved|source QP|
//	+--------+--------+--------+
type DETH []byte

// DETHFields is the content of a DETH.
type DETHFields struct {
	QKey  uint32
	SrcQP uint32 // 24 bits
}

// QKey is the queue key.
func (b DETH) QKey() uint32 { return be.Uint32(b) }

// SrcQP is the sender's queue pair number, 24 bits.
func (b DETH) SrcQP() uint32 { return get24(b[5:]) }

// Fields is the whole header.
func (b DETH) Fields() DETHFields { return DETHFields{b.QKey(), b.SrcQP()} }

// Encode writes the whole header.
func (b DETH) Encode(f *DETHFields) {
	be.PutUint32(b, f.QKey)
	b[4] = 0
	put24(b[5:], f.SrcQP)
}

// ImmDt is a view of the Immediate Data extended header.
type ImmDt []byte

// Imm is the immediate, read as a big-endian number.
func (b ImmDt) Imm() uint32 { return be.Uint32(b) }

// SetImm sets it.
func (b ImmDt) SetImm(v uint32) { be.PutUint32(b, v) }

// IETH is a view of the Invalidate Extended Transport Header.
type IETH []byte

// RKey is the remote key to invalidate.
func (b IETH) RKey() uint32 { return be.Uint32(b) }

// SetRKey sets it.
func (b IETH) SetRKey(v uint32) { be.PutUint32(b, v) }
