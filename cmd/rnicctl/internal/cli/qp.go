package cli

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rnic/driver"
)

// tableOptions are what the live tables share.
type tableOptions struct {
	watch      time.Duration
	qpn        uint32
	grep       string
	prometheus bool

	re *regexp.Regexp
}

func (o *tableOptions) flags(c *cobra.Command, qp string) {
	f := c.Flags()
	f.DurationVar(&o.watch, "watch", 0, "show it again and again, so far apart")
	f.Uint32Var(&o.qpn, "qp", 0, qp)
	f.StringVar(&o.grep, "grep", "", "only rows of which a cell fits this regular expression")
	f.BoolVar(&o.prometheus, "prometheus", false, "print Prometheus' text format")
}

func (o *tableOptions) check(a *app) (err error) {
	if o.grep != "" {
		if o.re, err = regexp.Compile(o.grep); err != nil {
			return usagef("see https://pkg.go.dev/regexp/syntax", "--grep: %w", err)
		}
	}
	if o.prometheus && a.json {
		return usagef("leave out one of them", "--prometheus and --json are two formats")
	}
	if o.qpn > 0xffffff {
		return usagef("give a QPN of 24 bits", "--qp %#x has more than 24 bits", o.qpn)
	}
	return nil
}

// write writes the table. Where no row fits --grep it has no heading either, and stderr says so; nothing is wrong
// with a card of which nothing fits.
func (o *tableOptions) write(a *app, t *table) error {
	if o.re != nil && len(t.rows) == 0 {
		a.notef("no row matches --grep %q", o.grep)
		return nil
	}
	return t.write(a)
}

// live shows a table of the card, once or with --watch.
func (a *app) live(ctx context.Context, o *tableOptions, show func(context.Context, *source, *driver.Snapshot) error) error {
	if err := o.check(a); err != nil {
		return err
	}
	a.stream = o.watch > 0
	s, err := a.inspect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	return a.watch(ctx, o.watch, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		snap, err := s.Snapshot(ctx)
		if err != nil {
			return err
		}
		return show(ctx, s, snap)
	})
}

// origin is who answered, in every table's JSON.
type origin struct {
	Schema     string      `json:"schema"`
	Address    string      `json:"address"`
	AnsweredBy string      `json:"answered_by"`
	Holder     *holderJSON `json:"holder"`
}

func (s *source) origin(schema string) origin {
	return origin{schema, s.addr, s.answeredBy(), s.holder}
}

// qpJSON is a QP.
type qpJSON struct {
	QPN          uint32            `json:"qpn"`
	Type         string            `json:"type"`
	State        string            `json:"state"`
	PD           uint32            `json:"pd"`
	MTUBytes     int               `json:"mtu_bytes"`
	DestQPN      uint32            `json:"dest_qpn"`
	DestGID      string            `json:"dest_gid"`
	DestMAC      string            `json:"dest_mac"`
	SendCQN      uint32            `json:"send_cqn"`
	RecvCQN      uint32            `json:"recv_cqn"`
	SQ           ringJSON          `json:"sq"`
	RQ           ringJSON          `json:"rq"`
	SQPSN        uint32            `json:"sq_psn"`
	RQPSN        uint32            `json:"rq_psn"`
	LastAckedPSN uint32            `json:"last_acked_psn"`
	RateBytes    uint64            `json:"rate_bytes_per_s"` // 0: not limited
	BurstBytes   uint32            `json:"burst_bytes"`
	Held         bool              `json:"held"`
	Error        *qpErrorJSON      `json:"error"`
	Stats        map[string]uint64 `json:"stats"`
}

// ringJSON is a queue: entries are 64-byte blocks of a send queue, receives of a receive queue.
type ringJSON struct {
	Entries  uint32 `json:"entries"`
	Producer uint32 `json:"producer"`
	Consumer uint32 `json:"consumer"`
}

type qpErrorJSON struct {
	Reason  string `json:"reason"`
	Segment *int   `json:"segment"`
	Key     string `json:"key"`
}

func (a *app) qp() *cobra.Command {
	var o tableOptions
	c := &cobra.Command{
		Use: "qp", Short: "Queue pairs: state, queues, peers, counters", Args: cobra.NoArgs,
		Long: `qp shows the card's queue pairs, asked of the process that holds the card, or of the card itself where
nobody does. SQ and RQ are entries posted and not yet completed: 64-byte blocks of the send queue,
receives of the receive queue.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.live(c.Context(), &o, func(_ context.Context, s *source, snap *driver.Snapshot) error { return a.showQPs(s, snap, &o) })
		},
	}
	o.flags(c, "only the QP with this number")
	return c
}

func (a *app) showQPs(s *source, snap *driver.Snapshot, o *tableOptions) error {
	t := newTable("QPN", "TYPE", "STATE", "PD", "MTU", "DEST_QPN", "DEST_GID", "SQ", "RQ", "TX_PACKETS", "TX_BYTES", "RX_PACKETS", "LOOKUPS", "RETRANSMITS", "ERROR")
	list := []qpJSON{}
	if o.qpn != 0 {
		if _, err := domainOf(snap, o.qpn); err != nil {
			return err
		}
	}
	var m metrics
	for i := range snap.QPs {
		q := describeQP(&snap.QPs[i])
		if o.qpn != 0 && q.QPN != o.qpn {
			continue
		}
		failed := ""
		if q.Error != nil {
			failed = q.Error.Reason
			if q.Error.Segment != nil {
				failed += fmt.Sprintf(" segment %d key %s", *q.Error.Segment, q.Error.Key)
			}
		}
		fits := t.rowIf(o.re,
			fmt.Sprintf("%#x", q.QPN), q.Type, q.State, fmt.Sprintf("%#x", q.PD), q.MTUBytes, fmt.Sprintf("%#x", q.DestQPN), q.DestGID,
			q.SQ.Producer-q.SQ.Consumer, q.RQ.Producer-q.RQ.Consumer,
			q.Stats["tx_packets"], q.Stats["tx_bytes"], q.Stats["rx_packets"], q.Stats["lookups"], q.Stats["retransmits"], failed)
		if !fits {
			continue
		}
		list = append(list, q)
		labels := []string{"address", s.addr, "qpn", fmt.Sprint(q.QPN)}
		for _, c := range qpCounters(&snap.QPs[i].Stats) {
			m.add("rnic_qp_"+c.name+"_total", "counter", c.value, labels...)
		}
		m.add("rnic_qp_state", "gauge", uint64(snap.QPs[i].Attr.State), labels...)
	}
	switch {
	case a.json:
		return a.printJSON(struct {
			origin
			QPs []qpJSON `json:"qps"`
		}{s.origin("rnic.qp.v1"), list})
	case o.prometheus:
		return m.write(a.out)
	}
	return o.write(a, t)
}

func describeQP(q *driver.QPInfo) qpJSON {
	t := &q.Attr
	j := qpJSON{
		QPN: q.QPN, Type: q.Type.String(), State: t.State.String(), PD: q.PD, MTUBytes: t.PathMTU.Bytes(), DestQPN: t.DestQPN,
		SendCQN: q.SendCQ, RecvCQN: q.RecvCQ,
		SQ:    ringJSON{q.SendBlocks, q.SQProducer, q.SQConsumer},
		RQ:    ringJSON{uint32(q.Caps.MaxRecvWR), q.RQProducer, q.RQConsumer},
		SQPSN: t.SQPSN, RQPSN: t.RQPSN, LastAckedPSN: q.LastAckedPSN, RateBytes: t.Rate, BurstBytes: t.Burst, Held: q.Held,
		Stats: map[string]uint64{},
	}
	if g := t.AV.DGID; !g.IsZero() {
		j.DestGID, j.DestMAC = g.String(), t.AV.DMAC.String()
	}
	if t.ErrorReason != driver.ReasonNone {
		j.Error = &qpErrorJSON{Reason: strings.ToLower(t.ErrorReason.String()), Key: hex32(t.ErrorKey)}
		if t.ErrorSGE >= 0 {
			j.Error.Segment = &t.ErrorSGE
		}
	}
	for _, c := range qpCounters(&q.Stats) {
		j.Stats[c.name] = c.value
	}
	return j
}

// counter is a named value.
type counter struct {
	name  string
	value uint64
}

// qpCounters names a QP's counters as the contract does (struct QPStats).
func qpCounters(s *driver.QPStats) []counter {
	return []counter{
		{"tx_packets", s.TxPackets}, {"tx_bytes", s.TxBytes}, {"rx_packets", s.RxPackets}, {"rx_bytes", s.RxBytes},
		{"messages", s.Messages}, {"lookups", s.Lookups}, {"payload_reads", s.PayloadReads}, {"gathers", s.Gathers},
		{"gathers_multi", s.GathersMulti}, {"gate_holds", s.GateHolds}, {"held_lookups", s.HeldLookups}, {"held_reads", s.HeldReads},
		{"retransmits", s.Retransmits}, {"rnr_naks", s.RNRNAKs}, {"duplicates", s.Duplicates}, {"sequence_errors", s.SequenceErrors},
	}
}
