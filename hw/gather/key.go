package gather

// Access is a set of verbs access rights, with the codes of
// ibv_access_flags. Reading locally is always granted and has no bit.
type Access uint8

// Access rights (rdma-core, libibverbs/verbs.h, enum ibv_access_flags).
const (
	LocalRead    Access = 0
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
	MWBind       Access = 1 << 4

	remote = RemoteWrite | RemoteRead | RemoteAtomic
)

// KeyState is the state of a key-table entry.
type KeyState uint8

// States of a key-table entry. Only Valid ones translate.
const (
	KeyFree    KeyState = iota // the index belongs to nobody
	KeyInvalid                 // allocated; no memory behind it now
	KeyValid
)

// KeyType says what a key-table entry stands for.
type KeyType uint8

// Types of a key.
const (
	MR  KeyType = iota // memory region: its key is lkey and rkey
	MW2                // memory window type 2B: an rkey of one QP, remote access only
)

// Key is a key-table entry, decoded. Base is the virtual address of the
// region's first byte, IOVA where that byte is for DMA, Length its size in
// bytes. PD and BoundQPN have 24 bits. BoundQPN and Parent (the region's key
// index) have a meaning for memory windows only.
type Key struct {
	State            KeyState
	Type             KeyType
	Tag              uint8
	Access           Access
	PD               uint32
	BoundQPN, Parent uint32
	Base             uint64
	Length           uint64
	IOVA             uint64
}

// Who asks for a translation: the QP, its protection domain, and the access
// it needs (LocalRead for a gather of SEND and WRITE, RemoteRead for a READ
// response, LocalWrite for a receive, …).
type Who struct {
	PD, QPN uint32
	Access  Access
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
func Check(k *Key, key uint32, who Who, addr uint64, n uint32) (iova uint64, r Reason) {
	if k == nil || k.State != KeyValid {
		return 0, ReasonKeyIndex
	}
	if k.Tag != TagOf(key) {
		return 0, ReasonKeyTag
	}
	if k.PD != who.PD || k.Type == MW2 && k.BoundQPN != who.QPN {
		return 0, ReasonPD
	}
	if k.Access&who.Access != who.Access || k.Type == MW2 && who.Access&remote == 0 {
		return 0, ReasonAccess
	}
	off := addr - k.Base // meaningful only when addr >= k.Base
	if addr < k.Base || off > k.Length || uint64(n) > k.Length-off {
		return 0, ReasonBounds
	}
	if n != 0 && addr+uint64(n-1) < addr {
		return 0, ReasonBounds
	}
	return k.IOVA + off, ReasonNone
}
