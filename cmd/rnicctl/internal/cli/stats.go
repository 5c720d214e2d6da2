package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rnic/driver"
)

func (a *app) stats() *cobra.Command {
	var o tableOptions
	var before map[string]uint64
	var then time.Time
	c := &cobra.Command{
		Use: "stats", Short: "Counters of the card, or of one QP", Args: cobra.NoArgs,
		Long: `stats shows the card's counters; docs/card.md says what each counts. Of a program that verifies
the card's gathers (docs/verification.md), it shows what that did: verify_packets and the others. With --watch, PER_SECOND is the rate
since the picture before. With --qp, the counters of one QP.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.live(c.Context(), &o, func(_ context.Context, s *source, snap *driver.Snapshot) error {
				now := time.Now()
				list, err := countersOf(snap, &o)
				if err != nil {
					return err
				}
				if err := a.showStats(s, list, &o, before, now.Sub(then)); err != nil {
					return err
				}
				before, then = map[string]uint64{}, now
				for _, c := range list {
					before[c.name] = c.value
				}
				return nil
			})
		},
	}
	o.flags(c, "the counters of the QP with this number")
	return c
}

// countersOf takes the counters that were asked for out of a snapshot.
func countersOf(snap *driver.Snapshot, o *tableOptions) ([]counter, error) {
	var list []counter
	if o.qpn == 0 {
		for _, c := range snap.Counters {
			list = append(list, counter{strings.ToLower(c.Name), c.Value})
		}
		if v := snap.Verification; v != nil {
			list = append(list, counter{"verify_packets", v.Packets}, counter{"verify_mismatches", v.Mismatches}, counter{"verify_lost", v.Lost}, counter{"verify_skipped", v.Skipped})
		}
	} else {
		found := false
		for i := range snap.QPs {
			if q := &snap.QPs[i]; q.QPN == o.qpn {
				list, found = qpCounters(&q.Stats), true
			}
		}
		if !found {
			return nil, usagef("`rnicctl qp` shows the QPs there are", "there is no QP %#x", o.qpn)
		}
	}
	kept := list[:0:0]
	for _, c := range list {
		if o.re == nil || o.re.MatchString(c.name) {
			kept = append(kept, c)
		}
	}
	return kept, nil
}

func (a *app) showStats(s *source, list []counter, o *tableOptions, before map[string]uint64, since time.Duration) error {
	switch {
	case a.json:
		values := map[string]uint64{}
		for _, c := range list {
			values[c.name] = c.value
		}
		var qpn *uint32
		if o.qpn != 0 {
			qpn = &o.qpn
		}
		return a.printJSON(struct {
			origin
			QPN      *uint32           `json:"qpn"`
			Counters map[string]uint64 `json:"counters"`
		}{s.origin("rnic.stats.v1"), qpn, values})
	case o.prometheus:
		var m metrics
		for _, c := range list {
			if o.qpn != 0 {
				m.add("rnic_qp_"+c.name+"_total", "counter", c.value, "address", s.addr, "qpn", fmt.Sprint(o.qpn))
				continue
			}
			m.add("rnic_"+c.name+"_total", "counter", c.value, "address", s.addr)
		}
		return m.write(a.out)
	}
	t := newTable("COUNTER", "VALUE")
	if o.watch > 0 {
		t = newTable("COUNTER", "VALUE", "PER_SECOND")
	}
	for _, c := range list {
		row := []any{c.name, c.value}
		if o.watch > 0 {
			rate := ""
			if last, ok := before[c.name]; ok && since > 0 {
				rate = fmt.Sprintf("%.1f", float64(c.value-last)/since.Seconds())
			}
			row = append(row, rate)
		}
		t.row(row...)
	}
	return o.write(a, t)
}
