package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"rnic/driver"
)

// keyJSON is an entry of the key table.
type keyJSON struct {
	Index       uint32   `json:"index"`
	Key         string   `json:"key"`
	State       string   `json:"state"`
	Type        string   `json:"type"`
	PD          uint32   `json:"pd"`
	Access      []string `json:"access"`
	Base        string   `json:"base"`
	LengthBytes uint64   `json:"length_bytes"`
	IOVA        string   `json:"iova"`
}

// mismatchJSON is a field of a key's entry on which its copies differ.
type mismatchJSON struct {
	Index     uint32  `json:"index"`
	CacheLine *int    `json:"cache_line"` // null where no line has the key
	Field     string  `json:"field"`
	Where     string  `json:"where"` // which copy is not as it should be
	Why       string  `json:"why"`
	Shadow    string  `json:"shadow"`
	Table     string  `json:"table"`
	Cache     *string `json:"cache"` // null where no line has the key
}

func (a *app) keys() *cobra.Command {
	var o tableOptions
	var scrub bool
	c := &cobra.Command{
		Use: "keys", Short: "The keys of regions and windows", Args: cobra.NoArgs,
		Long: `keys shows the keys that are registered. lkey and rkey of a region are one number: index << 8 | tag.

--scrub compares what the driver wrote (its shadow), what the card's key table holds, and what the card's key
cache holds, all of each entry. It says which copy is wrong where the other two agree, and ends with 1 where any is.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if scrub && (o.qpn != 0 || o.grep != "" || o.prometheus) {
				return usagef("leave out --qp, --grep and --prometheus", "--scrub compares all keys")
			}
			wrong := false
			err := a.live(c.Context(), &o, func(ctx context.Context, s *source, snap *driver.Snapshot) error {
				if !scrub {
					return a.showKeys(s, snap, &o)
				}
				r, err := s.Scrub(ctx)
				if err != nil {
					return err
				}
				wrong = wrong || len(r.Mismatches) > 0
				return a.showScrub(s, &r)
			})
			if err == nil && wrong {
				err = errFound
			}
			return err
		},
	}
	o.flags(c, "only the keys of this QP's protection domain")
	c.Flags().BoolVar(&scrub, "scrub", false, "compare shadow, table and cache")
	return c
}

func describeKey(k *driver.KeyInfo) keyJSON {
	access := []string{}
	if k.Access != 0 {
		access = strings.Split(strings.ToLower(k.Access.String()), "|")
	}
	return keyJSON{
		Index: k.Key >> 8, Key: hex32(k.Key), State: strings.ToLower(k.State.String()), Type: strings.ToLower(k.Type.String()),
		PD: k.PD, Access: access, Base: hex64(k.Base), LengthBytes: k.Length, IOVA: hex64(k.IOVA),
	}
}

// domainOf gives the protection domain of a QP.
func domainOf(snap *driver.Snapshot, qpn uint32) (uint32, error) {
	for i := range snap.QPs {
		if snap.QPs[i].QPN == qpn {
			return snap.QPs[i].PD, nil
		}
	}
	return 0, usagef("`rnicctl qp` shows the QPs there are", "there is no QP %#x", qpn)
}

func (a *app) showKeys(s *source, snap *driver.Snapshot, o *tableOptions) error {
	var pd uint32
	if o.qpn != 0 {
		var err error
		if pd, err = domainOf(snap, o.qpn); err != nil {
			return err
		}
	}
	t := newTable("INDEX", "KEY", "STATE", "TYPE", "PD", "ACCESS", "BASE", "LENGTH", "IOVA")
	list := []keyJSON{}
	states := map[string]uint64{"invalid": 0, "valid": 0}
	bytes := uint64(0)
	for i := range snap.Keys {
		k := describeKey(&snap.Keys[i])
		if o.qpn != 0 && k.PD != pd {
			continue
		}
		if !t.rowIf(o.re, fmt.Sprintf("%#x", k.Index), k.Key, k.State, k.Type, fmt.Sprintf("%#x", k.PD), strings.Join(k.Access, "|"), k.Base, k.LengthBytes, k.IOVA) {
			continue
		}
		list = append(list, k)
		states[k.State]++
		bytes += k.LengthBytes
	}
	switch {
	case a.json:
		return a.printJSON(struct {
			origin
			Keys []keyJSON `json:"keys"`
		}{s.origin("rnic.keys.v1"), list})
	case o.prometheus:
		var m metrics
		for _, state := range []string{"invalid", "valid"} {
			m.add("rnic_keys", "gauge", states[state], "address", s.addr, "state", state)
		}
		m.add("rnic_keys_bytes", "gauge", bytes, "address", s.addr)
		return m.write(a.out)
	}
	return o.write(a, t)
}

func (a *app) showScrub(s *source, r *driver.ScrubReport) error {
	if a.json {
		list := []mismatchJSON{}
		for i := range r.Mismatches {
			m := &r.Mismatches[i]
			j := mismatchJSON{Index: m.Index, Field: m.Field, Where: m.Where, Why: m.Why, Shadow: hex64(m.Shadow), Table: hex64(m.Table)}
			if m.Line >= 0 {
				cache := hex64(m.Cache)
				j.CacheLine, j.Cache = &m.Line, &cache
			}
			list = append(list, j)
		}
		return a.printJSON(struct {
			origin
			Keys       int            `json:"keys"`
			Cached     int            `json:"cached"`
			CacheLines int            `json:"cache_lines"`
			Mismatches []mismatchJSON `json:"mismatches"`
		}{s.origin("rnic.scrub.v1"), r.Keys, r.Cached, r.Lines, list})
	}
	if len(r.Mismatches) > 0 {
		t := newTable("INDEX", "FIELD", "WRONG", "SHADOW", "TABLE", "CACHE", "LINE", "WHY")
		for i := range r.Mismatches {
			m := &r.Mismatches[i]
			cache, line := "", ""
			if m.Line >= 0 {
				cache, line = hex64(m.Cache), strconv.Itoa(m.Line)
			}
			t.row(fmt.Sprintf("%#x", m.Index), m.Field, m.Where, hex64(m.Shadow), hex64(m.Table), cache, line, m.Why)
		}
		if err := t.write(a); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.out, "%d keys, %d of %d lines of the key cache in use: %d fields differ\n", r.Keys, r.Cached, r.Lines, len(r.Mismatches))
	return err
}
