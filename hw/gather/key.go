package gather

import "rnic/hw"

// LocalRead is the access that a gather of SEND or WRITE needs: reading
// locally is always granted and has no bit.
const LocalRead hw.Access = 0

// remote are the rights that the far end can have.
const remote = hw.AccessRemoteWrite | hw.AccessRemoteRead | hw.AccessRemoteAtomic

// Key is a key-table entry, decoded. Base is the virtual address of the
// region's first byte, IOVA where that byte is for DMA, Length its size in
// bytes. PD and BoundQPN have 24 bits. BoundQPN and Parent (the region's key
// index) have a meaning for memory windows only.
type Key struct {
	State            hw.KeyState
	Type             hw.KeyType
	Tag              uint8
	Access           hw.Access
	PD               uint32
	BoundQPN, Parent uint32
	Base             uint64
	Length           uint64
	IOVA             uint64
}

// Who asks for a translation: the QP, its protection domain, and the access
// it needs: LocalRead for a gather of SEND and WRITE, hw.AccessRemoteRead for
// a READ response, hw.AccessLocalWrite for a receive, and so on.
type Who struct {
	PD, QPN uint32
	Access  hw.Access
}

// IndexOf returns the table index of an lkey or rkey, its upper 24 bits.
func IndexOf(key uint32) uint32 { return key >> 8 }

// TagOf returns the tag of an lkey or rkey, its low 8 bits.
func TagOf(key uint32) uint8 { return uint8(key) }

// Check decides rule G10 for the piece of n bytes at virtual address addr:
// does the key exist (k nil: index beyond the table), does its tag match, may
// this protection domain use it, does the region grant the access, is the
// piece inside the region without wrapping around; the first that fails is
// the reason. Only then iova says where the piece is.
//
// A memory window belongs to one QP (the domain's check) and grants no local
// access (InfiniBand Architecture Specification vol. 1, 10.6.7.2).
func Check(k *Key, key uint32, who Who, addr uint64, n uint32) (iova uint64, r hw.Reason) {
	if k == nil || k.State != hw.KeyStateValid {
		return 0, hw.ReasonKeyIndex
	}
	if k.Tag != TagOf(key) {
		return 0, hw.ReasonKeyTag
	}
	if k.PD != who.PD || k.Type == hw.KeyTypeMW2 && k.BoundQPN != who.QPN {
		return 0, hw.ReasonPD
	}
	if k.Access&who.Access != who.Access || k.Type == hw.KeyTypeMW2 && who.Access&remote == 0 {
		return 0, hw.ReasonAccess
	}
	off := addr - k.Base // meaningful only when addr >= k.Base
	if addr < k.Base || off > k.Length || uint64(n) > k.Length-off {
		return 0, hw.ReasonBounds
	}
	if n != 0 && addr+uint64(n-1) < addr {
		return 0, hw.ReasonBounds
	}
	return k.IOVA + off, hw.ReasonNone
}
