package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"rnic/cmd/rnicctl/internal/qppair"
	"rnic/cmd/rnicctl/internal/walkview"
	"rnic/driver"
	"rnic/hw"
)

func (a *app) walk() *cobra.Command {
	o := walkOptions{}
	c := &cobra.Command{
		Use: "walk", Short: "A gather, step by step and drawn, from the card's own trace", Args: cobra.NoArgs,
		Long: `walk posts one request whose payload is spread over segments, takes the card's trace of it (rule G22), and
shows it: the segments above, the packets below, to scale, with the cut points and the lookups, then each
step. The default is a walk of twelve steps: a SEND of 1 KiB and 512 bytes in MR 1 and 6 KiB in MR 2 at a path
MTU of 4,096 bytes.

It runs on the card named with -d or in $RNIC_DEVICE, else on the only card present, else on soft:. A soft
card gets a peer on its wire; another card talks to itself.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.walkRun(c.Context(), &o) },
	}
	f := c.Flags()
	f.IntVar(&o.mtu, "mtu", 4096, "path MTU: 256, 512, 1024, 2048 or 4096")
	f.StringArrayVar(&o.sges, "sge", nil, "segment MR:LEN, as 1:1024 or log:4KiB (repeatable, up to 63)")
	f.StringVar(&o.opcode, "opcode", opSend, "send, write or read-response")
	f.BoolVar(&o.inline, "inline", false, "copy the payload into the WQE instead")
	f.StringVar(&o.gather, "gather", "card", "who gathers: card or host")
	f.StringVar(&o.svg, "svg", "", "draw it into this SVG file as well")
	return c
}

func (a *app) walkRun(ctx context.Context, o *walkOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	w, err := a.takeWalk(ctx, o)
	if err != nil {
		return err
	}
	if o.svg != "" {
		var b bytes.Buffer
		if err := w.SVG(&b); err != nil {
			return err
		}
		if err := os.WriteFile(o.svg, b.Bytes(), 0o644); err != nil {
			return usagef("name a file that can be written", "--svg: %w", err)
		}
	}
	if a.json {
		return a.printJSON(w.Report())
	}
	return a.showWalk(w)
}

func (a *app) showWalk(w *walkview.Walk) error {
	return w.Text(a.out, walkview.TextOptions{Width: a.columns(), Color: a.colored()})
}

// columns is the terminal's width, 0 where output is none.
func (a *app) columns() int {
	if f, ok := a.out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(size.Col)
		}
	}
	return 0
}

// takeWalk opens the cards, has one of them walk, and gives what it reported.
func (a *app) takeWalk(ctx context.Context, o *walkOptions) (*walkview.Walk, error) {
	var opts []driver.Option
	if o.gather == "host" {
		opts = append(opts, driver.WithGather(driver.Host))
	}
	b, err := a.bench(ctx, "walk", "", opts...)
	if err != nil {
		return nil, err
	}
	defer b.close()
	return a.walkOn(ctx, b, o)
}

// stepTime is what each step of a long walk may take longer.
const stepTime = 100 * time.Microsecond

// walkOn has the bench's first card walk; the second is the peer.
func (a *app) walkOn(ctx context.Context, b *bench, o *walkOptions) (w *walkview.Walk, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout+time.Duration(o.records())*stepTime)
	defer cancel()
	q := qppair.Options{MTU: o.pathMTU}
	if o.inline {
		q.MaxInline = int(o.total)
	}
	pair, err := qppair.Connect(ctx, b.devs, q)
	if errors.Is(err, driver.ErrInline) || o.inline && o.total > uint64(b.devs[0].Attr().MaxInline) {
		return nil, usagef("ask for less, or leave out --inline", "%d bytes inline, the card takes up to %d (rule G3)", o.total, b.devs[0].Attr().MaxInline)
	}
	if err != nil {
		return nil, err
	}
	defer pair.CloseAfter(ctx, &err)
	if got := pair[0].Dev.Port().ActiveMTU; got < o.pathMTU {
		return nil, usagef(fmt.Sprintf("use --mtu %d or less", got.Bytes()), "--mtu %d: the port's is %d", o.mtu, got.Bytes())
	}
	steps, err := o.run(ctx, pair)
	if err != nil {
		return nil, err
	}
	in := walkview.Input{Opcode: o.opcode, MTU: uint32(o.mtu), Gather: o.gather, Steps: steps}
	if b.devs[0].Gather() == driver.Host { // asked for, or the card has no engine
		in.Gather = "host"
	}
	if o.inline {
		in.Gather, in.Inline = "inline", uint32(o.total)
		return walkview.New(in)
	}
	for _, s := range o.parsed {
		in.Segments = append(in.Segments, walkview.Segment{MR: s.mr, Length: s.length})
	}
	return walkview.New(in)
}

// regions makes the MRs that the segments name at an end, and gives the segments in them: those of one region
// one behind the other.
func (o *walkOptions) regions(ctx context.Context, e *qppair.End) ([]driver.SGE, error) {
	size, mrs := map[string]int{}, map[string]*driver.MR{}
	for _, s := range o.parsed {
		size[s.mr] += int(s.length)
	}
	next := map[string]int{}
	var sges []driver.SGE
	for i, s := range o.parsed {
		m := mrs[s.mr]
		if m == nil {
			var err error
			if m, err = e.MR(ctx, max(size[s.mr], 1)); err != nil {
				return nil, fmt.Errorf("region %s of %d bytes: %w", s.mr, size[s.mr], err)
			}
			fill(m.Bytes(), uint32(i))
			mrs[s.mr] = m
		}
		sges = append(sges, m.SGE(next[s.mr], int(s.length)))
		next[s.mr] += int(s.length)
	}
	return sges, nil
}

// run posts the request and gives the trace records of its gather. The walk of a READ response is the
// responder's.
func (o *walkOptions) run(ctx context.Context, pair qppair.Pair) ([]walkview.Step, error) {
	walker, other := pair[0], pair[1]
	sges, err := o.regions(ctx, walker)
	if err != nil {
		return nil, err
	}
	sink, err := other.MR(ctx, max(int(o.total), 1))
	if err != nil {
		return nil, err
	}
	trace, err := walker.Dev.Trace(ctx, driver.TraceOptions{QPN: walker.QP.Number(), Entries: o.records()})
	if err != nil {
		return nil, err
	}
	defer trace.Close()
	poster, wr := walker, driver.SendWR{WRID: 1, Flags: driver.Signaled}
	switch o.opcode {
	case opSend:
		wr.Opcode = driver.Send
		if err := other.QP.PostRecv(&driver.RecvWR{WRID: 1, SGEs: []driver.SGE{sink.SGE(0, int(o.total))}}); err != nil {
			return nil, err
		}
	case opWrite:
		wr.Opcode, wr.Remote = driver.Write, sink.Remote()
	case opReadResponse:
		poster = other
		wr.Opcode, wr.SGEs = driver.Read, []driver.SGE{sink.SGE(0, int(o.total))}
		wr.Remote = driver.RemoteMR{Addr: sges[0].Addr, Length: o.total, RKey: sges[0].LKey}
	}
	switch {
	case o.inline:
		for range o.parsed {
			wr.Inline = append(wr.Inline, nil)
		}
		for i, s := range o.parsed {
			wr.Inline[i] = make([]byte, s.length)
			fill(wr.Inline[i], uint32(i))
		}
	case o.opcode != opReadResponse:
		wr.SGEs = sges
	}
	if err := poster.QP.PostSend(&wr); err != nil {
		return nil, err
	}
	steps, err := o.collect(ctx, trace)
	if err != nil {
		return nil, err
	}
	// A walk that ended in a fault is shown like another: the completion says nothing more.
	var failed *driver.CompletionError
	if _, err := poster.Wait(ctx); err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	return steps, nil
}

// collect takes records until the last packet has left, or one was dropped.
func (o *walkOptions) collect(ctx context.Context, trace driver.Stream[driver.TraceRecord]) ([]walkview.Step, error) {
	last, bound := int64(-1), o.records()
	var steps []walkview.Step
	for len(steps) <= bound {
		r, err := trace.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("after %d steps of the walk: %w", len(steps), err)
		}
		steps = append(steps, step(&r))
		if r.Kind == hw.TraceKindHandover && r.Flags&hw.TraceFlagLast != 0 {
			last = int64(r.Packet)
		}
		if r.Kind == hw.TraceKindFault || r.Kind == hw.TraceKindSent && int64(r.Packet) == last {
			return steps, nil
		}
	}
	return nil, fmt.Errorf("the card reported more than %d steps: %w", bound, walkview.ErrTrace)
}

// step is a trace record as the view takes it.
func step(r *driver.TraceRecord) walkview.Step {
	s := walkview.Step{
		Kind: kinds[r.Kind], Packet: r.Packet, Segment: r.Segment, Offset: r.Offset, Bytes: r.Bytes, Hit: r.Lookup == hw.LookupHit,
		Key: r.Key, PSN: r.PSN, AckReq: r.Flags&hw.TraceFlagACKReq != 0, Lost: r.Lost,
	}
	if r.Reason != hw.ReasonNone {
		s.Reason = r.Reason.String()
	}
	if r.Kind == hw.TraceKindFault && r.Segment == hw.NoSegment {
		s.Segment = -1
	}
	return s
}

var kinds = map[hw.TraceKind]walkview.Kind{
	hw.TraceKindWQE: walkview.WQE, hw.TraceKindPacket: walkview.Packet, hw.TraceKindLookup: walkview.Lookup, hw.TraceKindRead: walkview.Read,
	hw.TraceKindHandover: walkview.Handover, hw.TraceKindSent: walkview.Sent, hw.TraceKindFault: walkview.Fault,
}
