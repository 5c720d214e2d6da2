package image

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash/crc32"

	"rnic/hw"
)

// Geometry is a flash's, in bytes.
type Geometry struct {
	Size, Sector, Page int
	Slots              int
}

// Check refuses a geometry that the contract does not allow.
func (g Geometry) Check() error {
	power := func(n int) bool { return n > 0 && n&(n-1) == 0 }
	switch {
	case g.Slots < 2 || g.Slots > 16:
		return fmt.Errorf("a flash of %d slots: from 2 to 16", g.Slots)
	case !power(g.Sector) || !power(g.Page) || g.Page < hw.ImageHeaderSize || g.Page > 256 || g.Page > g.Sector:
		return fmt.Errorf("a flash with sectors of %d bytes and pages of %d: powers of two, a page from 128 to 256", g.Sector, g.Page)
	case g.Size <= 0 || g.Size > 1<<30 || g.Size%g.Slots != 0 || g.Slot()%g.Sector != 0 || g.Slot() < 2*g.Sector:
		return fmt.Errorf("a flash of %d bytes in %d slots: at least two whole sectors of %d each, at most 2^30 bytes", g.Size, g.Slots, g.Sector)
	}
	return nil
}

// Slot is the size of a slot.
func (g Geometry) Slot() int { return g.Size / g.Slots }

// Room is the longest image that a slot takes.
func (g Geometry) Room() int { return g.Slot() - g.Sector }

// Flash is a flash memory. Erase sets all bits of a sector; Program clears those that are 0 in p, within a page. Offsets and
// lengths are multiples of 4, and a read is any number of bytes.
type Flash interface {
	Geometry() Geometry
	Read(at int, p []byte) error
	Program(at int, p []byte) error
	Erase(at int) error
}

// State is that of a slot.
type State string

// The states.
const (
	Empty  State = "empty"  // no header was written
	Broken State = "broken" // a header or an image that is not whole
	Whole  State = "whole"
)

// Slot is what stands in a slot.
type Slot struct {
	Number int
	State  State
	Header hw.ImageHeader // of one that is whole
}

// Part is the part of a header.
func Part(h *hw.ImageHeader) string { return string(bytes.TrimRight(h.Part[:], "\x00")) }

// Header is that of the manifest's image in a flash.
func (m *Manifest) Header(generation uint32) (*hw.ImageHeader, error) {
	h := &hw.ImageHeader{Magic: hw.ImageMagic, Generation: generation, Length: uint32(m.Bytes)}
	var err error
	if h.Digest, err = m.Digest(); err != nil {
		return nil, err
	}
	if h.ContractMajor, h.ContractMinor, err = m.Version(); err != nil {
		return nil, err
	}
	if h.Capabilities, err = m.Caps(); err != nil {
		return nil, err
	}
	copy(h.Part[:], m.Part)
	h.CRC = sum(h)
	return h, nil
}

func sum(h *hw.ImageHeader) uint32 {
	b := h.AsBytes()
	return crc32.ChecksumIEEE(b[:hw.ImageHeaderSize-4])
}

// ReadHeader reads a slot's header; ok says whether it is whole.
func ReadHeader(f Flash, slot int) (h hw.ImageHeader, ok bool, err error) {
	g := f.Geometry()
	if slot < 0 || slot >= g.Slots {
		return h, false, fmt.Errorf("slot %d: there are %d", slot, g.Slots)
	}
	err = f.Read(slot*g.Slot(), h.AsBytes())
	return h, err == nil && h.Magic == hw.ImageMagic && h.CRC == sum(&h) && h.Length > 0 && int(h.Length) <= g.Room(), err
}

// ReadSlot reads a slot, its image too. step is told of the bytes as they are read.
func ReadSlot(f Flash, slot int, step func(bytes int)) (s Slot, err error) {
	g := f.Geometry()
	h, ok, err := ReadHeader(f, slot)
	if err != nil {
		return s, err
	}
	s = Slot{Number: slot, State: Broken}
	if !ok {
		if len(bytes.Trim(h.AsBytes(), "\xff")) == 0 {
			s.State = Empty
		}
		return s, nil
	}
	hash, b := sha256.New(), make([]byte, g.Sector)
	for at := 0; at < int(h.Length); at += g.Sector {
		p := b[:min(g.Sector, int(h.Length)-at)]
		if err := f.Read(slot*g.Slot()+g.Sector+at, p); err != nil {
			return s, err
		}
		hash.Write(p)
		step(len(p))
	}
	if [32]byte(hash.Sum(nil)) == h.Digest {
		s.State, s.Header = Whole, h
	}
	return s, nil
}

// newer says whether generation a is newer than b.
func newer(a, b uint32) bool { return int32(a-b) > 0 }

// Newest is the slot of the newest image that is whole, as a card chooses it at power-up, or -1.
func Newest(slots []Slot) int {
	best := -1
	for i, s := range slots {
		if s.State == Whole && (best < 0 || newer(s.Header.Generation, slots[best].Header.Generation)) {
			best = i
		}
	}
	return best
}

// ReadSlots reads all slots.
func ReadSlots(f Flash, step func(bytes int)) ([]Slot, error) {
	var slots []Slot
	for i := range f.Geometry().Slots {
		s, err := ReadSlot(f, i, step)
		if err != nil {
			return nil, err
		}
		slots = append(slots, s)
	}
	return slots, nil
}
