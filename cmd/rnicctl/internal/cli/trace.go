package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rnic/driver"
	"rnic/hw"
)

// streamOptions are what `trace card` and `capture` share.
type streamOptions struct {
	qpn   uint32
	count int
	span  time.Duration
}

func (o *streamOptions) flags(c *cobra.Command, what string) {
	f := c.Flags()
	f.Uint32Var(&o.qpn, "qp", 0, "only the QP with this number")
	f.IntVar(&o.count, "count", 0, "end after so many "+what)
	f.DurationVar(&o.span, "for", 0, "end after this time")
}

func (o *streamOptions) check() error {
	switch {
	case o.qpn > 0xffffff:
		return usagef("give a QPN of 24 bits", "--qp %#x has more than 24 bits", o.qpn)
	case o.count < 0:
		return usagef("give a number above zero", "--count %d is below zero", o.count)
	case o.span < 0:
		return usagef("give a time above zero, as --for 5s", "--for %v is below zero", o.span)
	}
	return nil
}

// errSpan ends a stream whose time is over.
var errSpan = errors.New("the time given with --for is over")

// each hands a stream's records on until their count is reached, --for is over or the context ends. The last is
// an error.
func each[T any](ctx context.Context, o *streamOptions, s driver.Stream[T], take func(T) error) error {
	if o.span > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.span, errSpan)
		defer cancel()
	}
	for n := 0; o.count == 0 || n < o.count; n++ {
		r, err := s.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && errors.Is(context.Cause(ctx), errSpan):
			return nil
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if err := take(r); err != nil {
			return err
		}
	}
	return nil
}

// traceJSON is a trace record.
type traceJSON struct {
	Schema     string     `json:"schema"`
	TimeNS     uint64     `json:"time_ns"`
	QPN        uint32     `json:"qpn"`
	WRID       *string    `json:"wr_id"` // null where the holder does not know it
	WQEIndex   uint32     `json:"wqe_index"`
	Opcode     string     `json:"opcode"`
	Packet     *uint32    `json:"packet"` // from 1; null for a WQE
	PSN        uint32     `json:"psn"`
	Kind       string     `json:"kind"`
	Segment    int        `json:"segment"`
	Offset     uint32     `json:"offset"`
	Bytes      uint32     `json:"bytes"`
	Lookup     string     `json:"lookup"` // hit, miss, or none
	Key        string     `json:"key"`
	Reason     string     `json:"reason"`
	Flags      []string   `json:"flags"`
	PayloadCRC *string    `json:"payload_crc32"` // of a hand-over, else null
	Cursor     cursorJSON `json:"cursor"`
	Lost       uint32     `json:"lost"` // records that did not fit since the one before
}

// cursorJSON is the cursor after the step (rule G8).
type cursorJSON struct {
	Segment int    `json:"segment"`
	Offset  uint32 `json:"offset"`
	Left    uint32 `json:"left"`
}

func (a *app) trace() *cobra.Command {
	c := &cobra.Command{
		Use: "trace", Short: "What a card and the kernel do, as it happens",
		Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.traceCard(), a.traceKernel())
	return c
}

func (a *app) traceCard() *cobra.Command {
	var o streamOptions
	c := &cobra.Command{
		Use: "card", Short: "Steps of gather walks, as the card reports them", Args: cobra.NoArgs,
		Long: `trace card shows each step that the card takes for a work request: the WQE, a packet's begin, each lookup,
each read, the hand-over to TX packet build, the frame's leaving, or the fault that dropped the packet
(rule G22). It ends after --count steps, after --for, or when it is interrupted. LOST counts steps for which
the trace ring had no room.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.traceRun(c.Context(), &o) },
	}
	o.flags(c, "steps")
	return c
}

func (a *app) traceRun(ctx context.Context, o *streamOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	a.stream = true
	s, err := a.inspect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	stream, err := s.Trace(ctx, driver.TraceOptions{QPN: o.qpn, Count: o.count})
	if err != nil {
		return err
	}
	defer stream.Close()
	// A live table: the columns are as wide as what they usually hold.
	const line = "%-16s %-8s %-10s %6s %-8s %7s %10s %10s %-6s %s"
	if !a.json {
		a.line(line, "TIME", "QPN", "WRID", "PACKET", "KIND", "SEGMENT", "OFFSET", "BYTES", "LOOKUP", "NOTE")
	}
	return each(ctx, o, stream, func(r driver.TraceRecord) error {
		if a.json {
			return a.printJSON(describeStep(&r))
		}
		packet, segment, offset := fmt.Sprint(r.Packet+1), "-", "-"
		if r.Kind == hw.TraceKindWQE {
			packet = "-"
		}
		if r.Kind == hw.TraceKindLookup || r.Kind == hw.TraceKindRead || r.Kind == hw.TraceKindFault {
			segment, offset = fmt.Sprint(r.Segment), fmt.Sprint(r.Offset)
		}
		lookup := "-"
		if r.Lookup != hw.LookupNone {
			lookup = strings.ToLower(r.Lookup.String())
		}
		return a.line(line, seconds(r.Time), fmt.Sprintf("%#x", r.QPN), wrid(&r), packet,
			strings.ToLower(r.Kind.String()), segment, offset, fmt.Sprint(r.Bytes), lookup, remarks(&r))
	})
}

// seconds is card time for people.
func seconds(ns uint64) string { return fmt.Sprintf("%d.%09d", ns/1e9, ns%1e9) }

func wrid(r *driver.TraceRecord) string {
	if !r.HasWRID {
		return "-"
	}
	return hex64(r.WRID)
}

// remarks are what a step has besides the columns.
func remarks(r *driver.TraceRecord) string {
	var list []string
	if r.Flags&hw.TraceFlagACKReq != 0 {
		list = append(list, "AckReq")
	}
	if r.Flags&hw.TraceFlagResponse != 0 {
		list = append(list, "READ response")
	}
	if r.Flags&hw.TraceFlagRetransmit != 0 {
		list = append(list, "again")
	}
	if r.Flags&hw.TraceFlagInline != 0 {
		list = append(list, "inline")
	}
	if r.Reason != hw.ReasonNone {
		list = append(list, fmt.Sprintf("%v, key %s", r.Reason, hex32(r.Key)))
	}
	if r.Lost != 0 {
		list = append(list, fmt.Sprintf("%d steps before it were lost", r.Lost))
	}
	return strings.Join(list, ", ")
}

func describeStep(r *driver.TraceRecord) traceJSON {
	j := traceJSON{
		Schema: "rnic.trace.v1", TimeNS: r.Time, QPN: r.QPN, WQEIndex: r.WQEIndex, Opcode: strings.ToLower(r.Opcode.String()),
		PSN: r.PSN, Kind: strings.ToLower(r.Kind.String()), Segment: r.Segment, Offset: r.Offset, Bytes: r.Bytes,
		Lookup: strings.ToLower(r.Lookup.String()), Key: hex32(r.Key), Reason: strings.ToLower(r.Reason.String()), Flags: []string{},
		Cursor: cursorJSON{r.Cursor.Segment, r.Cursor.Offset, r.Cursor.Left}, Lost: r.Lost,
	}
	if r.Kind != hw.TraceKindWQE {
		n := r.Packet + 1
		j.Packet = &n
	}
	if r.HasWRID {
		id := hex64(r.WRID)
		j.WRID = &id
	}
	if r.Flags != 0 {
		j.Flags = strings.Split(strings.ToLower(r.Flags.String()), "|")
	}
	if r.Kind == hw.TraceKindHandover {
		crc := hex32(r.CRC)
		j.PayloadCRC = &crc
	}
	return j
}
