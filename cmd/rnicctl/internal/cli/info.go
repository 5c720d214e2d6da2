package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rnic/driver"
	"rnic/hw"
)

// limitsJSON are what the card has room for.
type limitsJSON struct {
	QPs              int   `json:"qps"`
	CQs              int   `json:"cqs"`
	EQs              int   `json:"eqs"`
	SRQs             int   `json:"srqs"`
	Keys             int   `json:"keys"`
	KeyIndexBits     int   `json:"key_index_bits"`
	SendSegments     int   `json:"send_segments"`
	RecvSegments     int   `json:"recv_segments"`
	InlineBytes      int   `json:"inline_bytes"`
	SendQueueBlocks  int   `json:"send_queue_blocks"`
	RecvQueueEntries int   `json:"recv_queue_entries"`
	CQEntries        int   `json:"cq_entries"`
	MTUBytes         int   `json:"mtu_bytes"`
	ReadsAndAtomics  int   `json:"reads_and_atomics"`
	GIDs             int   `json:"gids"`
	RateLimits       int   `json:"rate_limits"`
	DoorbellPages    int   `json:"doorbell_pages"`
	DoorbellStride   int   `json:"doorbell_stride_bytes"`
	DMAAddressBits   int   `json:"dma_address_bits"`
	Vectors          int   `json:"vectors"`
	KeyCacheSets     int   `json:"key_cache_sets"`
	KeyCacheWays     int   `json:"key_cache_ways"`
	ReadTags         int   `json:"read_tags"`
	MaxPayload       int   `json:"max_payload_bytes"`
	MaxReadRequest   int   `json:"max_read_request_bytes"`
	DMATimeout       int64 `json:"completion_timeout_us"`
}

type portJSON struct {
	Link      string   `json:"link"`
	MTUBytes  int      `json:"mtu_bytes"`
	MaxMTU    int      `json:"max_mtu_bytes"`
	MAC       string   `json:"mac"`
	GIDs      []string `json:"gids"` // those that are set
	PKeys     []string `json:"pkeys"`
	SpeedMbps int      `json:"speed_mbit_per_s"`
}

type infoJSON struct {
	origin
	Name            string     `json:"name"`
	Backend         string     `json:"backend"`
	Contract        string     `json:"contract"`
	Engine          string     `json:"engine"`
	AtomicScope     string     `json:"atomic_scope"`
	Capabilities    []string   `json:"capabilities"`
	NotSupported    []string   `json:"not_supported"`
	ClockHz         uint64     `json:"clock_hz"`
	BuildTime       *time.Time `json:"build_time"`       // null where the card has none
	BitstreamDigest string     `json:"bitstream_sha256"` // "" where the card runs no image
	Limits          limitsJSON `json:"limits"`
	Port            portJSON   `json:"port"`
}

func (a *app) info() *cobra.Command {
	return &cobra.Command{
		Use: "info", Short: "Identity, contract, engine, limits and port of a card", Args: cobra.NoArgs,
		Long: `info shows what a card is and can do, and what this card or driver lacks. It asks the process that holds
the card if there is one, opens the card only if there is none, and says which it did.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.inspect(c.Context())
			if err != nil {
				return err
			}
			defer s.close()
			ctx, cancel := context.WithTimeout(c.Context(), a.timeout)
			defer cancel()
			snap, err := s.Snapshot(ctx)
			if err != nil {
				return err
			}
			return a.showInfo(s, snap)
		},
	}
}

func describeCard(s *source, snap *driver.Snapshot) infoJSON {
	t, p := &snap.Attr, &snap.Port
	j := infoJSON{
		origin: s.origin("rnic.info.v1"), Name: t.Name, Backend: t.Backend, Contract: fmt.Sprintf("%d.%d", t.ContractMajor, t.ContractMinor),
		Engine: strings.ToLower(t.Engine.String()), AtomicScope: strings.ToLower(t.AtomicScope.String()), Capabilities: flags(t.Capabilities),
		NotSupported: append([]string{}, t.NotSupported...), ClockHz: t.ClockHz,
		Limits: limitsJSON{
			QPs: t.MaxQP, CQs: t.MaxCQ, EQs: t.MaxEQ, SRQs: t.MaxSRQ, Keys: t.MaxMR, KeyIndexBits: t.KeyIndexBits,
			SendSegments: t.MaxSendSGE, RecvSegments: t.MaxRecvSGE, InlineBytes: t.MaxInline, SendQueueBlocks: t.MaxSendBlocks,
			RecvQueueEntries: t.MaxRecvWR, CQEntries: t.MaxCQE, MTUBytes: t.MaxMTU.Bytes(), ReadsAndAtomics: t.MaxRDAtomic,
			GIDs: t.MaxGID, RateLimits: t.RateLimits, DoorbellPages: t.DoorbellPages, DoorbellStride: t.DoorbellStride,
			DMAAddressBits: t.DMABits, Vectors: t.Vectors, KeyCacheSets: t.KeyCacheSets, KeyCacheWays: t.KeyCacheWays,
			ReadTags: t.ReadTags, MaxPayload: t.MaxPayload, MaxReadRequest: t.MaxReadRequest, DMATimeout: t.CompletionTimeout.Microseconds(),
		},
		Port: portJSON{
			Link: strings.ToLower(p.Link.String()), MTUBytes: p.ActiveMTU.Bytes(), MaxMTU: p.MaxMTU.Bytes(), MAC: p.MAC.String(),
			GIDs: []string{}, PKeys: []string{}, SpeedMbps: p.SpeedMbps,
		},
	}
	if !t.BuildTime.IsZero() {
		j.BuildTime = &t.BuildTime
	}
	if t.BitstreamDigest != [32]byte{} {
		j.BitstreamDigest = hex.EncodeToString(t.BitstreamDigest[:])
	}
	for _, g := range p.GIDs {
		if !g.IsZero() {
			j.Port.GIDs = append(j.Port.GIDs, g.String())
		}
	}
	for _, k := range p.PKeys {
		j.Port.PKeys = append(j.Port.PKeys, fmt.Sprintf("%#04x", k))
	}
	return j
}

// flags names the bits of a capability word.
func flags(c hw.Capability) []string {
	list := []string{}
	for bit := hw.Capability(1); bit != 0; bit <<= 1 {
		if c&bit != 0 {
			list = append(list, strings.ToLower(bit.String()))
		}
	}
	return list
}

func (a *app) showInfo(s *source, snap *driver.Snapshot) error {
	j := describeCard(s, snap)
	if a.json {
		return a.printJSON(j)
	}
	by := "the card itself, opened for this"
	if j.Holder != nil {
		by = fmt.Sprintf("its holder, pid %d (%s)", j.Holder.PID, j.Holder.Program)
	}
	none := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	built := "-"
	if j.BuildTime != nil {
		built = j.BuildTime.Format(time.RFC3339)
	}
	l := &j.Limits
	for _, r := range [][2]string{
		{"address", j.Address},
		{"answered by", by},
		{"name", none(j.Name)},
		{"contract", j.Contract},
		{"engine", j.Engine},
		{"backend", none(j.Backend)},
		{"built", built},
		{"bitstream", none(j.BitstreamDigest)},
		{"capabilities", strings.Join(j.Capabilities, " ")},
		{"atomics among", j.AtomicScope},
		{"not supported", none(strings.Join(j.NotSupported, ", "))},
		{"port", fmt.Sprintf("%s, %d Mbit/s, MAC %s, MTU %d of %d", j.Port.Link, j.Port.SpeedMbps, j.Port.MAC, j.Port.MTUBytes, j.Port.MaxMTU)},
		{"GIDs", none(strings.Join(j.Port.GIDs, ", "))},
		{"P_Keys", none(strings.Join(j.Port.PKeys, ", "))},
		{"objects", fmt.Sprintf("%d QPs, %d CQs, %d EQs, %d SRQs, %d keys", l.QPs, l.CQs, l.EQs, l.SRQs, l.Keys)},
		{"work requests", fmt.Sprintf("%d send segments, %d receive segments, %d bytes inline, %d READs and atomics in flight", l.SendSegments, l.RecvSegments, l.InlineBytes, l.ReadsAndAtomics)},
		{"queues", fmt.Sprintf("SQ %d blocks, RQ %d entries, CQ %d entries", l.SendQueueBlocks, l.RecvQueueEntries, l.CQEntries)},
		{"key cache", fmt.Sprintf("%d sets of %d", l.KeyCacheSets, l.KeyCacheWays)},
		{"rate limits", fmt.Sprint(l.RateLimits)},
		{"doorbells", fmt.Sprintf("%d pages, %s apart", l.DoorbellPages, size(uint64(l.DoorbellStride)))},
		{"DMA", fmt.Sprintf("%d address bits, %d reads in flight, payload %d B, read request %d B, timeout %d µs", l.DMAAddressBits, l.ReadTags, l.MaxPayload, l.MaxReadRequest, l.DMATimeout)},
		{"vectors", fmt.Sprint(l.Vectors)},
		{"clock", fmt.Sprintf("%d Hz", j.ClockHz)},
	} {
		name := fmt.Sprintf("%-14s", r[0])
		if a.colored() {
			name = "\x1b[1m" + name + "\x1b[0m"
		}
		if _, err := fmt.Fprintf(a.out, "%s %s\n", name, printable(r[1])); err != nil {
			return err
		}
	}
	return nil
}
