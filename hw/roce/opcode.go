package roce

import "fmt"

// Opcode is the first byte of the BTH: three bits of transport, five of
// operation (IBTA vol. 1, 9.2, table "OpCode field").
type Opcode uint8

// Reliable Connection.
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImm        Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImm        Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImm       Opcode = 0x09
	RCWriteOnly          Opcode = 0x0A
	RCWriteOnlyImm       Opcode = 0x0B
	RCReadRequest        Opcode = 0x0C
	RCReadResponseFirst  Opcode = 0x0D
	RCReadResponseMiddle Opcode = 0x0E
	RCReadResponseLast   Opcode = 0x0F
	RCReadResponseOnly   Opcode = 0x10
	RCAcknowledge        Opcode = 0x11
	RCAtomicAcknowledge  Opcode = 0x12
	RCCompareSwap        Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInv        Opcode = 0x16
	RCSendOnlyInv        Opcode = 0x17
)

// Unreliable Connection.
const (
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2A
	UCWriteOnlyImm Opcode = 0x2B
)

// Unreliable Datagram, and the Congestion Notification Packet (annex A17),
// whose payload is CNPPayload reserved bytes.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81

	// CNPPayload is the number of reserved bytes behind the BTH of a CNP.
	CNPPayload = 16
)

// Transport is the service that an opcode belongs to: its upper three bits.
type Transport uint8

// The transports that this package knows. RD (2) and XRC (5) are not served.
const (
	RC  Transport = 0
	UC  Transport = 1
	UD  Transport = 3
	CNT Transport = 4 // congestion notification
)

// String is the transport's usual abbreviation.
func (t Transport) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case CNT:
		return "CNP"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Position is a packet's place in its message.
type Position uint8

// The positions.
const (
	First Position = iota
	Middle
	Last
	Only
)

// Starts reports whether the packet is the first of its message.
func (p Position) Starts() bool { return p == First || p == Only }

// Ends reports whether the packet is the last of its message.
func (p Position) Ends() bool { return p == Last || p == Only }

// Operation is what a packet does, whatever its transport and position.
type Operation uint8

// The operations. Requests come before responses: see Operation.Request.
const (
	OpSend Operation = iota
	OpWrite
	OpReadRequest
	OpCompareSwap
	OpFetchAdd
	OpReadResponse
	OpAcknowledge
	OpAtomicAcknowledge
	OpCNP
)

// Request reports whether a requester sends it, to be taken by a responder.
func (o Operation) Request() bool { return o <= OpFetchAdd }

// Ext is a set of extended transport headers.
type Ext uint8

// The extended headers. When an opcode has several they follow the BTH in this
// order (IBTA vol. 1, 9.2, table "OpCode field").
const (
	ExtDETH Ext = 1 << iota
	ExtRETH
	ExtAtomicETH
	ExtAETH
	ExtAtomicAckETH
	ExtImmDt
	ExtIETH
)

type opInfo struct {
	name    string
	op      Operation
	pos     Position
	ext     Ext
	extLen  uint8
	valid   bool
	payload bool
}

// opcodes holds what the table "OpCode field" says of each opcode. It is an array
// over all 256 values, so that a byte off the wire indexes it unchecked.
var opcodes = func() (t [256]opInfo) {
	set := func(o Opcode, name string, op Operation, pos Position, ext Ext, payload bool) {
		n := 0
		for i, size := range [...]int{DETHLen, RETHLen, AtomicETHLen, AETHLen, AtomicAckETHLen, ImmDtLen, IETHLen} {
			if ext&(1<<i) != 0 {
				n += size
			}
		}
		t[o] = opInfo{name, op, pos, ext, uint8(n), true, payload}
	}
	for _, c := range []struct {
		base Opcode
		name string
	}{{RCSendFirst, "RC"}, {UCSendFirst, "UC"}} {
		set(c.base+RCSendFirst, c.name+"_SEND_FIRST", OpSend, First, 0, true)
		set(c.base+RCSendMiddle, c.name+"_SEND_MIDDLE", OpSend, Middle, 0, true)
		set(c.base+RCSendLast, c.name+"_SEND_LAST", OpSend, Last, 0, true)
		set(c.base+RCSendLastImm, c.name+"_SEND_LAST_IMM", OpSend, Last, ExtImmDt, true)
		set(c.base+RCSendOnly, c.name+"_SEND_ONLY", OpSend, Only, 0, true)
		set(c.base+RCSendOnlyImm, c.name+"_SEND_ONLY_IMM", OpSend, Only, ExtImmDt, true)
		set(c.base+RCWriteFirst, c.name+"_WRITE_FIRST", OpWrite, First, ExtRETH, true)
		set(c.base+RCWriteMiddle, c.name+"_WRITE_MIDDLE", OpWrite, Middle, 0, true)
		set(c.base+RCWriteLast, c.name+"_WRITE_LAST", OpWrite, Last, 0, true)
		set(c.base+RCWriteLastImm, c.name+"_WRITE_LAST_IMM", OpWrite, Last, ExtImmDt, true)
		set(c.base+RCWriteOnly, c.name+"_WRITE_ONLY", OpWrite, Only, ExtRETH, true)
		set(c.base+RCWriteOnlyImm, c.name+"_WRITE_ONLY_IMM", OpWrite, Only, ExtRETH|ExtImmDt, true)
	}
	set(RCReadRequest, "RC_READ_REQUEST", OpReadRequest, Only, ExtRETH, false)
	set(RCReadResponseFirst, "RC_READ_RESP_FIRST", OpReadResponse, First, ExtAETH, true)
	set(RCReadResponseMiddle, "RC_READ_RESP_MIDDLE", OpReadResponse, Middle, 0, true)
	set(RCReadResponseLast, "RC_READ_RESP_LAST", OpReadResponse, Last, ExtAETH, true)
	set(RCReadResponseOnly, "RC_READ_RESP_ONLY", OpReadResponse, Only, ExtAETH, true)
	set(RCAcknowledge, "RC_ACK", OpAcknowledge, Only, ExtAETH, false)
	set(RCAtomicAcknowledge, "RC_ATOMIC_ACK", OpAtomicAcknowledge, Only, ExtAETH|ExtAtomicAckETH, false)
	set(RCCompareSwap, "RC_CMP_SWP", OpCompareSwap, Only, ExtAtomicETH, false)
	set(RCFetchAdd, "RC_FETCH_ADD", OpFetchAdd, Only, ExtAtomicETH, false)
	set(RCSendLastInv, "RC_SEND_LAST_INV", OpSend, Last, ExtIETH, true)
	set(RCSendOnlyInv, "RC_SEND_ONLY_INV", OpSend, Only, ExtIETH, true)
	set(UDSendOnly, "UD_SEND_ONLY", OpSend, Only, ExtDETH, true)
	set(UDSendOnlyImm, "UD_SEND_ONLY_IMM", OpSend, Only, ExtDETH|ExtImmDt, true)
	set(CNP, "CNP", OpCNP, Only, 0, true)
	return t
}()

// Valid reports whether the opcode is one of the constants of this package.
// For any other, Operation, Position, Ext and HasPayload mean nothing.
func (o Opcode) Valid() bool { return opcodes[o].valid }

// Transport is the service that the opcode belongs to.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// Operation is what the packet does.
func (o Opcode) Operation() Operation { return opcodes[o].op }

// Position is the packet's place in its message.
func (o Opcode) Position() Position { return opcodes[o].pos }

// Ext is the set of extended headers that follow the BTH.
func (o Opcode) Ext() Ext { return opcodes[o].ext }

// Has reports whether all of x follow the BTH.
func (o Opcode) Has(x Ext) bool { return opcodes[o].ext&x == x }

// ExtLen is the length in bytes of the extended headers together.
func (o Opcode) ExtLen() int { return int(opcodes[o].extLen) }

// HasPayload reports whether payload may follow the headers. It may be empty.
func (o Opcode) HasPayload() bool { return opcodes[o].payload }

// String is the opcode's name, as RC_SEND_FIRST.
func (o Opcode) String() string {
	if i := &opcodes[o]; i.valid {
		return i.name
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}
