package driver

import (
	"fmt"
	"strings"
	"time"

	"rnic/hw"
)

// DeviceAttr is what a card is and can do, read from it once.
type DeviceAttr struct {
	Addr    string // by which it was opened
	Backend string // "vfio-user", "type1v2" or "iommufd"
	Name    string // the card's own

	ContractMajor, ContractMinor int
	Engine                       hw.Engine
	Capabilities                 hw.Capability
	AtomicScope                  hw.AtomicScope
	BuildTime                    time.Time
	BitstreamDigest              [32]byte // SHA-256; zero on a soft card

	MaxQP, MaxCQ, MaxEQ, MaxSRQ int
	MaxMR                       int // key indices, 0 not among them
	KeyIndexBits                int
	MaxSendSGE, MaxRecvSGE      int // scatter-gather entries of a work request
	MaxInline                   int // bytes
	MaxSendBlocks               int // 64-byte blocks of a send queue's ring
	MaxRecvWR                   int // of a queue
	MaxCQE                      int // of a completion queue
	MaxMTU                      MTU
	MaxRDAtomic                 int // READs and atomics in flight of a queue pair, each direction
	MaxGID                      int
	RateLimits                  int // rate-limit entries that can be used

	DoorbellStride    int // bytes
	DoorbellPages     int
	DMABits           int
	Vectors           int // MSI-X
	KeyCacheSets      int
	KeyCacheWays      int
	ClockHz           uint64
	ReadTags          int
	MaxPayload        int           // PCIe, bytes
	MaxReadRequest    int           // PCIe, bytes
	CompletionTimeout time.Duration // of the card's DMA

	// NotSupported names what returns ErrNotSupported, because this card or
	// this driver lacks it.
	NotSupported []string
}

// PortAttr is the port as it was when last asked: at open, after ModifyPort
// and after an event about the port.
type PortAttr struct {
	Link              Link
	MaxMTU, ActiveMTU MTU
	MAC               MAC
	GIDs              []GID // the table; a zero one is not set
	PKeys             []uint16
	SpeedMbps         int
}

// notBuilt is what this driver lacks whatever the card has.
var notBuilt = []string{"UC", "UD", "SRQ", "memory windows", "SEND with invalidate"}

// maxCacheLines is the largest key cache that a card may state: the host gather
// and verification keep one of the same geometry.
const maxCacheLines = 1 << 20

// readAttr reads the identity block. The magic and version were checked.
func (d *Device) readAttr() error {
	var err error
	get := func(off uint64) int {
		v, e := d.ctrl.Read32(off)
		if err == nil {
			err = e
		}
		return int(v)
	}
	get64 := func(off uint64) uint64 {
		v, e := d.ctrl.Read64(off)
		if err == nil {
			err = e
		}
		return v
	}
	logSize := func(off uint64) int { return 1 << min(get(off), 30) }
	version := hw.IdentVersion(get(hw.RegIdentVersion))
	a := DeviceAttr{
		Addr: d.addr, Backend: d.dev.Info().Backend,
		ContractMajor: int(version.Major()), ContractMinor: int(version.Minor()),
		Engine: hw.Engine(get(hw.RegIdentEngine)), Capabilities: hw.Capability(get64(hw.RegIdentCapabilities)),
		AtomicScope: hw.AtomicScope(get(hw.RegIdentAtomicScope)),
		MaxQP:       get(hw.RegIdentMaxQPs), MaxCQ: get(hw.RegIdentMaxCQs), MaxEQ: get(hw.RegIdentMaxEQs), MaxSRQ: get(hw.RegIdentMaxSRQs),
		KeyIndexBits: get(hw.RegIdentKeyIndexBits),
		MaxSendSGE:   get(hw.RegIdentMaxSendSegments), MaxRecvSGE: get(hw.RegIdentMaxRecvSegments), MaxInline: get(hw.RegIdentMaxInline),
		MaxSendBlocks: logSize(hw.RegIdentMaxSQLogBlocks), MaxRecvWR: logSize(hw.RegIdentMaxRQLogEntries), MaxCQE: logSize(hw.RegIdentMaxCQLogEntries),
		MaxMTU: MTUFromBytes(get(hw.RegIdentMaxMTU)), MaxRDAtomic: get(hw.RegIdentMaxRDAtomic), MaxGID: get(hw.RegIdentGIDs),
		RateLimits:     max(get(hw.RegIdentRateLimits)-1, 0),
		DoorbellStride: get(hw.RegIdentDoorbellStride), DoorbellPages: get(hw.RegIdentDoorbellPages),
		DMABits: get(hw.RegIdentDMABits), Vectors: get(hw.RegIdentMSIXVectors),
		KeyCacheSets: get(hw.RegIdentKeyCacheSets), KeyCacheWays: get(hw.RegIdentKeyCacheWays),
		ClockHz: get64(hw.RegIdentClockHz), ReadTags: get(hw.RegIdentReadTags),
		MaxPayload: get(hw.RegIdentMaxPayload), MaxReadRequest: get(hw.RegIdentMaxReadRequest),
		CompletionTimeout: time.Duration(get(hw.RegIdentCompletionTimeout)) * time.Microsecond,
		NotSupported:      append([]string(nil), notBuilt...),
	}
	if t := get64(hw.RegIdentBuildTime); t != 0 {
		a.BuildTime = time.Unix(int64(t), 0).UTC()
	}
	var name [4 * hw.RegIdentCardNameCount]byte
	for i := range hw.RegIdentCardNameCount {
		v := get(hw.RegIdentCardName + uint64(i)*hw.RegIdentCardNameStride)
		name[4*i], name[4*i+1], name[4*i+2], name[4*i+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
		v = get(hw.RegIdentBitstreamDigest + uint64(i)*hw.RegIdentBitstreamDigestStride)
		copy(a.BitstreamDigest[4*i:], []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
	}
	a.Name = strings.ToValidUTF8(strings.TrimRight(string(name[:]), "\x00"), "?")
	a.MaxMR = 1<<min(a.KeyIndexBits, 24) - 1
	for _, c := range []struct {
		cap  hw.Capability
		name string
	}{
		{hw.CapabilityRC, "RC"}, {hw.CapabilityAtomics, "atomics"}, {hw.CapabilityRateLimit, "rate limits"}, {hw.CapabilityTrace, "trace"},
		{hw.CapabilityCapture, "capture"}, {hw.CapabilityHostGather, "host gather"}, {hw.CapabilityDebug, "debug page"}, {hw.CapabilityRetransmit, "retransmission"}, {hw.CapabilityFlash, "flash"},
	} {
		if a.Capabilities&c.cap == 0 {
			a.NotSupported = append(a.NotSupported, c.name)
		}
	}
	if err != nil {
		return err
	}
	// A card that states nonsense would be believed in many places; here once.
	bad := func(what string, v int) error { return fmt.Errorf("the card states %s %d: %w", what, v, ErrInvalid) }
	switch {
	case a.KeyIndexBits < 1 || a.KeyIndexBits > 24:
		return bad("key index bits", a.KeyIndexBits)
	case a.MaxQP < 1 || a.MaxQP > 1<<24:
		return bad("QPs", a.MaxQP)
	case a.MaxCQ < 1 || a.MaxCQ > 1<<24:
		return bad("CQs", a.MaxCQ)
	case a.MaxEQ < 1 || a.MaxEQ > 1<<24:
		return bad("EQs", a.MaxEQ)
	case a.MaxSendSGE > hw.MaxSegments || a.MaxRecvSGE > hw.MaxSegments:
		return bad("segments", max(a.MaxSendSGE, a.MaxRecvSGE))
	case a.MaxInline > hw.WQEMaxBlocks*hw.WQEBlock:
		return bad("inline bytes", a.MaxInline)
	case a.MaxMTU == 0:
		return bad("a largest path MTU that is none, in bytes", get(hw.RegIdentMaxMTU))
	case a.DoorbellPages < 2 || a.DoorbellStride < 4096 || a.DoorbellStride%4096 != 0 || a.DoorbellPages > hw.BARDoorbellSize/a.DoorbellStride:
		return bad("doorbell pages", a.DoorbellPages)
	case a.KeyCacheSets > maxCacheLines || a.KeyCacheWays > maxCacheLines || a.KeyCacheSets*a.KeyCacheWays > maxCacheLines:
		return bad("lines of a key cache", a.KeyCacheSets*a.KeyCacheWays)
	case a.Vectors < 1 || a.Vectors > 2048:
		return bad("MSI-X vectors", a.Vectors)
	case a.DMABits < 20 || a.DMABits > 64:
		return bad("DMA address bits", a.DMABits)
	}
	d.attr = a
	return nil
}
