// Package hw is the card's contract: its constants, the structures that driver and card share
// in host memory, and its registers. All of it is generated from card.yaml; the
// SystemVerilog package bitstream/rtl/card_pkg.sv and docs/card.md come from the same file.
//
// The structures are overlays: ViewX lays one over the bytes of a mailbox, SliceX as many as a
// ring holds, without a copy. Memory that the other side may write is read once: copy it into a
// local structure by copy(x.AsBytes(), b), then look at it. A word that orders others (an owner
// word, a valid word, a doorbell) is loaded and stored through rnic/hw/mmio by the field's address.
package hw

import "strconv"

//go:generate go run ./internal/cardgen

// RegisterAccess says how software may use a register.
type RegisterAccess uint8

// The kinds of register access, named as in SystemRDL.
const (
	RO  RegisterAccess = iota // read only; stores are ignored
	RW                        // read and write
	WO                        // write only; reads as zero
	W1C                       // read; writing a 1 clears the bit
)

// String gives the contract's name: ro, rw, wo or w1c.
func (a RegisterAccess) String() string {
	switch a {
	case RO:
		return "ro"
	case RW:
		return "rw"
	case WO:
		return "wo"
	case W1C:
		return "w1c"
	}
	return "RegisterAccess(" + strconv.Itoa(int(a)) + ")"
}

// A Register describes one register, or an array of them, for tools that show a card.
type Register struct {
	Block, Name string
	BAR         int    // index of the base address register
	Offset      uint64 // in bytes, from the start of the BAR
	Width       int    // in bits: 32 or 64. The low half of a 64-bit register is read first
	Access      RegisterAccess
	Reset       uint64              // value after a reset
	Count       int                 // number of elements; 0: the register is not an array
	Stride      uint64              // bytes from one element to the next
	Text        func(uint64) string // the value as text where it is an enum, else nil
	Fields      []RegisterField     // from bit 0 up; nil where the value is one number
	Doc         string
}

// FullName is the register's name with its block: BLOCK.NAME.
func (r *Register) FullName() string { return r.Block + "." + r.Name }

// A RegisterField is a bit field of a register.
type RegisterField struct {
	Name   string
	Hi, Lo int                 // first and last bit, both included
	Text   func(uint64) string // the field's value as text where it is an enum, else nil
	Doc    string
}

// Get takes the field's value out of the register's.
func (f *RegisterField) Get(v uint64) uint64 { return v << (63 - f.Hi) >> (63 - f.Hi + f.Lo) }

// hexName names bits that the contract does not define.
func hexName(v uint64) string {
	if v == 0 {
		return "0"
	}
	return "0x" + strconv.FormatUint(v, 16)
}

// Bytes gives the path MTU in bytes, 0 where m is not defined.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// MTUFor gives the code of a path MTU of n bytes; ok is false where there is none.
func MTUFor(n int) (m MTU, ok bool) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == n {
			return m, true
		}
	}
	return 0, false
}
