package main

import (
	"context"
	"errors"
	"hash/crc32"
	"math"
	"time"

	"rnic/hw"
	"rnic/hw/gather"
	"rnic/hw/roce"
)

// region is memory and a key table with one key, as the walk wants them.
type region struct {
	key   gather.Key
	iova  uint64
	bytes []byte
}

var errRefused = errors.New("outside of the region")

// Entry is of gather.KeyTable.
func (r *region) Entry(index uint32) (gather.Key, bool) { return r.key, index == gatherKey>>8 }

// Read is of gather.Memory.
func (r *region) Read(iova uint64, dst []byte) error {
	off := iova - r.iova
	if iova < r.iova || off > uint64(len(r.bytes)) || uint64(len(dst)) > uint64(len(r.bytes))-off {
		return errRefused
	}
	copy(dst, r.bytes[off:])
	return nil
}

const gatherKey = 0x4711<<8 | 0x5a

// measureGather is the walk of a SEND of three segments, packet by packet into a frame, and what makes
// the frame whole, as in a soft card: headers, pad and ICRC (roce.Flow). It is measured against the same bytes
// copied from one place, then a CRC-32 of them.
func measureGather(ctx context.Context, b *bench) error {
	const mtu, total, messages = 4096, 7680, 32 // that many, so that looking at the clock costs nothing
	const base, iova = 0x7000_0000, 0x1_0000
	cache, err := gather.NewCache(gather.Geometry{Sets: 64, Ways: 4})
	if err != nil {
		return err
	}
	m := &region{iova: iova, bytes: make([]byte, 64<<10), key: gather.Key{
		State: hw.KeyStateValid, Type: hw.KeyTypeMR, Tag: gatherKey & 0xff, PD: 3, Base: base, Length: 64 << 10, IOVA: iova}}
	for i := range m.bytes {
		m.bytes[i] = byte(i * 131 >> 3)
	}
	keys := &gather.Keys{Table: m, Cache: cache}
	segs := []gather.Segment{{Addr: base, Length: 1024, Key: gatherKey}, {Addr: base + 8192, Length: 512, Key: gatherKey}, {Addr: base + 16384, Length: 6144, Key: gatherKey}}
	who := gather.Who{PD: 3, QPN: 17, Access: gather.LocalRead}
	h := roce.Header{Src: roce.V4Mapped([4]byte{10, 0, 0, 1}), Dst: roce.V4Mapped([4]byte{10, 0, 0, 2}), HopLimit: 64, UDPSrcPort: 0xC123,
		Opcode: roce.RCSendMiddle, PKey: 0xffff, DestQP: 17}
	var flow roce.Flow
	flow.Set(&h)
	var frames [2][]byte // of the two packets
	for i := range frames {
		frames[i] = make([]byte, roce.Headroom+mtu+64)
	}
	walk := func() (time.Duration, error) {
		start := time.Now()
		for range messages {
			c, fault, ok := gather.Start(segs)
			for i := 0; ok && !c.Done(); i++ {
				f, n := frames[i], 0
				if n, fault, ok = gather.Packet(keys, m, nil, segs, who, &c, mtu, f[roce.Headroom:roce.Headroom+mtu]); ok {
					flow.Frame(f, roce.Headroom, n, &h)
					h.PSN++
				}
			}
			if !ok {
				return 0, errors.New("the walk failed: " + fault.Reason.String())
			}
		}
		return time.Since(start), nil
	}
	plain := func() (time.Duration, error) {
		start := time.Now()
		for range messages {
			for i, off := 0, 0; off < total; i, off = i+1, off+mtu {
				f := frames[i][roce.Headroom:]
				n := copy(f[:mtu], m.bytes[off:total])
				crc32.ChecksumIEEE(f[:n])
			}
		}
		return time.Since(start), nil
	}
	return b.alone(ctx, func() error {
		least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
		rounds := b.atScale(100, 2)
		for range b.times() {
			for i, f := range []func() (time.Duration, error){plain, walk} {
				t, err := best(ctx, rounds, f)
				if err != nil {
					return err
				}
				least[i] = min(least[i], t)
			}
		}
		gbps := func(t time.Duration) float64 { return total * messages / float64(t) }
		b.add("gather-icrc", "gather + ICRC, 3 segments, MTU 4096, of copy, then CRC", "ratio", more, 0.8, 0.95, float64(least[0])/float64(least[1]), "",
			absolute{"gather + ICRC", gbps(least[1]), "GB/s"}, absolute{"copy, then CRC", gbps(least[0]), "GB/s"})
		return nil
	})
}
