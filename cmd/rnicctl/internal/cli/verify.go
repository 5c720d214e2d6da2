package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/qppair"
	"rnic/driver"
	"rnic/hw"
)

// verifyOptions are those of the command.
type verifyOptions struct {
	count       int
	seed        uint64
	replay      string
	fault       string
	bundles     string
	gather      string
	peer        string
	faultNumber hw.WalkFault
}

func (a *app) verify() *cobra.Command {
	o := verifyOptions{}
	c := &cobra.Command{
		Use: "verify", Short: "Random gathers, each walked again in software and compared", Args: cobra.NoArgs,
		Long: `verify posts random SENDs, WRITEs and READs, of random segments, in-line or not, at several path MTUs, and has
the driver repeat the walk of every packet that the card gathers (docs/verification.md). It also looks whether the
payload arrives. It stops at the first packet that differs, says in what, and leaves a bundle from which --replay
walks the packet again, without a card. The same seed posts the same requests.

It runs on the card named with -d or in $RNIC_DEVICE, else on the only card present, else on soft:. The other
end is the card named with --peer, on the same wire; without it a soft card gets one, and another card talks to itself.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.replay != "" {
				return a.verifyReplay(o.replay)
			}
			return a.verifyRun(c.Context(), &o)
		},
	}
	f := c.Flags()
	f.IntVar(&o.count, "count", 1000, "requests to post")
	f.StringVar(&o.peer, "peer", "", "address of a second card on the same wire")
	f.Uint64Var(&o.seed, "seed", 1, "of the random requests")
	f.StringVar(&o.replay, "replay", "", "walk the packet of this bundle again, and do nothing else")
	f.StringVar(&o.bundles, "bundles", "", "folder for bundles (default $XDG_STATE_HOME/rnic, else ~/.local/state/rnic)")
	f.StringVar(&o.gather, "gather", "card", "who gathers: card or host")
	f.StringVar(&o.fault, "fault", "", "put this defect into the card's walk first, to see it found: "+strings.Join(walkFaultNames(), ", "))
	return c
}

// walkFaultNames are the defects of the debug page that are one of a walk, as options.
func walkFaultNames() (names []string) {
	for f := hw.WalkFaultNone + 1; f.Valid(); f++ {
		if f != hw.WalkFaultStaleCache { // it shows only when a region is deregistered
			names = append(names, faultName(f))
		}
	}
	return names
}

func faultName(f hw.WalkFault) string {
	return strings.ReplaceAll(strings.ToLower(f.String()), "_", "-")
}

func (o *verifyOptions) check() error {
	if o.count < 1 {
		return usagef("post at least one", "--count %d", o.count)
	}
	if o.fault == "" {
		return nil
	}
	for f := hw.WalkFaultNone + 1; f.Valid(); f++ {
		if f != hw.WalkFaultStaleCache && faultName(f) == o.fault {
			o.faultNumber = f
			return nil
		}
	}
	return usagef("use one of "+strings.Join(walkFaultNames(), ", "), "--fault %q is no defect of a walk", o.fault)
}

// verifyJSON is the object of a run.
type verifyJSON struct {
	Schema     string         `json:"schema"`
	Device     string         `json:"device"`
	Gather     string         `json:"gather"`
	Seed       uint64         `json:"seed"`
	Requests   int            `json:"requests"` // posted
	Packets    uint64         `json:"packets"`  // walked again
	Mismatches uint64         `json:"mismatches"`
	Lost       uint64         `json:"lost_records"`
	Skipped    uint64         `json:"skipped_packets"`
	Mismatch   *differingJSON `json:"mismatch,omitempty"` // the first
	Arrival    *arrivalJSON   `json:"arrival,omitempty"`  // the first that is wrong, of a request that was walked right
}

// arrivalJSON is a request whose packets are those of the walk, and that brought other bytes to the far end's memory.
type arrivalJSON struct {
	QPN      uint32 `json:"qpn"` // that posted it
	WRID     string `json:"wr_id"`
	Opcode   string `json:"opcode"`
	Bytes    int    `json:"bytes"`
	Segments int    `json:"segments"`
	Differ   int    `json:"differing_bytes"`
	Offset   int    `json:"offset"` // of the first of them
	Sent     string `json:"sent"`   // that byte, as it was gathered
	Found    string `json:"found"`  // and as it lies at the far end
}

// arrival compares what came with what was sent; nil where it is the same.
func arrival(q *driver.QP, wr *driver.SendWR, sent, found []byte) *arrivalJSON {
	j := &arrivalJSON{QPN: q.Number(), WRID: hex64(wr.WRID), Opcode: wr.Opcode.String(), Bytes: len(sent), Segments: len(wr.SGEs)}
	for i := len(sent) - 1; i >= 0; i-- {
		if sent[i] != found[i] {
			j.Differ++
			j.Offset, j.Sent, j.Found = i, fmt.Sprintf("0x%02x", sent[i]), fmt.Sprintf("0x%02x", found[i])
		}
	}
	if j.Differ == 0 {
		return nil
	}
	return j
}

type differingJSON struct {
	QPN         uint32              `json:"qpn"`
	WRID        string              `json:"wr_id,omitempty"`
	Opcode      string              `json:"opcode"`
	Response    bool                `json:"response"`
	Packet      uint32              `json:"packet"`
	Differences []driver.Difference `json:"differences"`
	Bundle      string              `json:"bundle"`
}

func mismatchOf(e *driver.VerifyError) *differingJSON {
	m := &differingJSON{QPN: e.QPN, Opcode: e.Opcode.String(), Response: e.Response, Packet: e.Packet, Differences: e.Differences, Bundle: e.Bundle}
	if e.HasWRID {
		m.WRID = fmt.Sprintf("%#x", e.WRID)
	}
	return m
}

func (a *app) verifyRun(ctx context.Context, o *verifyOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	who, err := gatherMode(o.gather)
	if err != nil {
		return err
	}
	opts := []driver.Option{driver.WithVerify(driver.Always), driver.WithGather(who)}
	if o.bundles != "" {
		opts = append(opts, driver.WithVerifyDir(o.bundles))
	}
	b, err := a.bench(ctx, "verify", o.peer, opts...)
	if err != nil {
		return err
	}
	defer b.close()
	r := &verifyJSON{Schema: "rnic.verify.v1", Device: b.devs[0].Addr(), Gather: "card", Seed: o.seed}
	if b.devs[0].Gather() == driver.Host {
		r.Gather = "host"
	}
	p := &progress{a: a}
	err = a.verifyOn(ctx, b, o, r, p)
	p.end()
	if err != nil {
		return err
	}
	for i, d := range b.devs {
		if i == 1 && b.lone() {
			break
		}
		s := d.Verification()
		r.Packets, r.Mismatches, r.Lost, r.Skipped = r.Packets+s.Packets, r.Mismatches+s.Mismatches, r.Lost+s.Lost, r.Skipped+s.Skipped
	}
	if err := a.showVerify(r); err != nil {
		return err
	}
	if r.Mismatches > 0 || r.Arrival != nil {
		return errFound
	}
	return nil
}

func (a *app) showVerify(r *verifyJSON) error {
	if a.json {
		return a.printJSON(r)
	}
	t := newTable("REQUESTS", "PACKETS", "MISMATCHES", "LOST", "SKIPPED")
	t.row(r.Requests, r.Packets, r.Mismatches, r.Lost, r.Skipped)
	if err := t.write(a); err != nil {
		return err
	}
	if m := r.Mismatch; m != nil {
		what := m.Opcode + " work request " + m.WRID
		if m.Response {
			what = "READ response"
		}
		fmt.Fprintf(a.out, "\nQP %#x, %s, packet %d:\n", m.QPN, what, m.Packet)
		if err := a.showDifferences(m.Differences); err != nil {
			return err
		}
		if m.Bundle != "" {
			fmt.Fprintf(a.out, "\nwalk it again: rnicctl verify --replay %s\n", m.Bundle)
		}
	}
	if m := r.Arrival; m != nil {
		fmt.Fprintf(a.out, "\nQP %#x, %s work request %s of %d bytes in %d segments: its packets are those of the walk, and other bytes lie at the far end:\n"+
			"%d differ, the first at offset %d: sent %s, found %s. See what came over the wire: rnicctl capture\n",
			m.QPN, m.Opcode, m.WRID, m.Bytes, m.Segments, m.Differ, m.Offset, m.Sent, m.Found)
	}
	return nil
}

func (a *app) showDifferences(list []driver.Difference) error {
	t := newTable("WHAT", "CARD", "DRIVER")
	for _, d := range list {
		t.row(d.What, d.Card, d.Driver)
	}
	return t.write(a)
}

// Memory of a verify run, bytes.
const (
	verifySource = 64 << 10 // of each source region
	verifyTarget = 256 << 10
)

// verifyPair is a pair at one path MTU, with its memory: the first end's is gathered.
type verifyPair struct {
	qppair.Pair
	sources []*driver.MR
	result  *driver.MR // of this side's READs and atomics: nothing is gathered from it
	sink    *driver.MR // at the peer
}

// verifyOn posts the requests, on pairs of several path MTUs, and stops at a mismatch.
func (a *app) verifyOn(ctx context.Context, b *bench, o *verifyOptions, r *verifyJSON, p *progress) (err error) {
	rnd := rand.New(rand.NewPCG(o.seed, 0))
	var pairs []*verifyPair
	defer func() {
		for _, v := range pairs {
			v.CloseAfter(ctx, &err)
		}
	}()
	for _, mtu := range []driver.MTU{driver.MTU256, driver.MTU1024, driver.MTU4096} {
		if mtu > b.devs[0].Port().ActiveMTU {
			continue
		}
		v := &verifyPair{}
		if v.Pair, err = qppair.Connect(ctx, b.devs, qppair.Options{MTU: mtu, MaxInline: 256}); err != nil {
			return err
		}
		pairs = append(pairs, v)
		for range 3 {
			m, err := v.Pair[0].MR(ctx, verifySource)
			if err != nil {
				return err
			}
			for i := range m.Bytes() {
				m.Bytes()[i] = byte(rnd.Uint32())
			}
			v.sources = append(v.sources, m)
		}
		if v.result, err = v.Pair[0].MR(ctx, verifySource); err != nil {
			return err
		}
		if v.sink, err = v.Pair[1].MR(ctx, verifyTarget); err != nil {
			return err
		}
	}
	if o.faultNumber != hw.WalkFaultNone {
		g, err := b.devs[0].Debug()
		if err != nil {
			return err
		}
		if err := errors.Join(g.SetWalkFault(o.faultNumber, 0), g.AwaitQuiescent(ctx)); err != nil {
			return err
		}
	}
	for ; r.Requests < o.count; r.Requests++ {
		if r.Requests%64 == 0 {
			p.at(r.Requests, o.count, "requests")
		}
		v := pairs[rnd.IntN(len(pairs))]
		wrong, err := a.verifyOne(ctx, v, rnd, uint64(r.Requests))
		for _, end := range v.Pair {
			if e := end.QP.VerifyError(); e != nil {
				r.Requests++
				r.Mismatch = mismatchOf(e)
				return nil
			}
		}
		if err != nil {
			return fmt.Errorf("request %d of seed %d: %w", r.Requests, o.seed, err)
		}
		if wrong != nil {
			r.Requests++
			r.Arrival = wrong
			return nil
		}
	}
	return nil
}

// verifyOne posts a random request, takes its completion, and looks whether the
// payload arrived.
func (a *app) verifyOne(ctx context.Context, v *verifyPair, rnd *rand.Rand, wrid uint64) (wrong *arrivalJSON, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	walker, other := v.Pair[0], v.Pair[1]
	wr := driver.SendWR{WRID: wrid, Flags: driver.Signaled, Remote: v.sink.Remote()}
	var want []byte
	poster, receives := walker, false
	switch kind := rnd.IntN(7); kind {
	case 0: // a READ response is gathered by this side
		m := v.sources[rnd.IntN(len(v.sources))]
		off := rnd.IntN(m.Len())
		n := rnd.IntN(m.Len() - off + 1)
		poster = other
		wr.Opcode, wr.Remote, wr.SGEs = driver.Read, m.Remote().At(uint64(off)), []driver.SGE{v.sink.SGE(0, n)}
		want = m.Bytes()[off : off+n]
	case 1:
		wr.Opcode = []driver.Opcode{driver.Send, driver.Write}[rnd.IntN(2)]
		receives = wr.Opcode == driver.Send
		for left := rnd.IntN(257); left > 0; {
			b := make([]byte, min(left, 1+rnd.IntN(100)))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			wr.Inline, want, left = append(wr.Inline, b), append(want, b...), left-len(b)
		}
	case 6: // these gather nothing (rule G2), and the card must not report that they do
		wr.Opcode = []driver.Opcode{driver.Read, driver.FetchAdd, driver.CompareSwap}[rnd.IntN(3)]
		n := 8
		if wr.Opcode == driver.Read {
			n = rnd.IntN(verifySource)
		}
		wr.SGEs = []driver.SGE{v.result.SGE(0, n)}
	default:
		wr.Opcode = []driver.Opcode{driver.Send, driver.SendImm, driver.Write, driver.WriteImm}[kind-2]
		receives = wr.Opcode != driver.Write
		for n := rnd.IntN(1 + rnd.IntN(min(63, walker.QP.Caps().MaxSendSGE)+1)); n > 0; n-- {
			m := v.sources[rnd.IntN(len(v.sources))]
			length := rnd.IntN(1 << rnd.IntN(13)) // many short ones, some empty, up to 4 KiB
			off := rnd.IntN(m.Len() - length)
			wr.SGEs = append(wr.SGEs, m.SGE(off, length))
			want = append(want, m.Bytes()[off:off+length]...)
		}
	}
	clear(v.sink.Bytes()[:len(want)])
	if receives {
		if err := other.QP.PostRecv(&driver.RecvWR{WRID: wrid, SGEs: []driver.SGE{v.sink.SGE(0, verifyTarget)}}); err != nil {
			return nil, err
		}
	}
	if err := poster.QP.PostSend(&wr); err != nil {
		return nil, err
	}
	if _, err := poster.Wait(ctx); err != nil {
		walker.Dev.Verification() // the responder's reports may not have been looked at
		return nil, err
	}
	if receives {
		if _, err := other.Wait(ctx); err != nil {
			return nil, err
		}
	}
	// READ responses have no completion at the side that gathers them: they are
	// compared now, before their memory changes (docs/verification.md).
	walker.Dev.Verification()
	other.Dev.Verification()
	if walker.QP.VerifyError() != nil || other.QP.VerifyError() != nil {
		return nil, nil // the caller looks
	}
	return arrival(poster.QP, &wr, want, v.sink.Bytes()), nil
}

// replayJSON is the object of a replay.
type replayJSON struct {
	Schema      string              `json:"schema"`
	Bundle      string              `json:"bundle"`
	Opcode      string              `json:"opcode"`
	Response    bool                `json:"response"`
	Packet      uint32              `json:"packet"`
	AsRecorded  bool                `json:"as_recorded"` // the differences are those that were found on the card
	Differences []driver.Difference `json:"differences"`
}

// verifyReplay walks the packet of a bundle again.
func (a *app) verifyReplay(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return usagef("name a bundle, as `rnicctl verify` and the driver write them", "%w", err)
	}
	defer f.Close()
	b, err := driver.ReadBundle(f)
	if err != nil {
		return usagef("name a bundle, as `rnicctl verify` and the driver write them", "%s: %w", name, err)
	}
	r := replayJSON{
		Schema: "rnic.verify_replay.v1", Bundle: name, Opcode: driver.Opcode(b.Opcode).String(), Response: b.Response, Packet: b.Packet, Differences: b.Replay(),
	}
	if r.Differences == nil {
		r.Differences = []driver.Difference{}
	}
	r.AsRecorded = fmt.Sprint(r.Differences) == fmt.Sprint(b.Differences)
	if a.json {
		err = a.printJSON(r)
	} else {
		err = a.showReplay(&r)
	}
	if err == nil && (len(r.Differences) > 0 || !r.AsRecorded) {
		return errFound
	}
	return err
}

func (a *app) showReplay(r *replayJSON) error {
	what := r.Opcode
	if r.Response {
		what = "READ response"
	}
	fmt.Fprintf(a.out, "%s, packet %d: %d differences", what, r.Packet, len(r.Differences))
	if r.AsRecorded {
		fmt.Fprintln(a.out, ", as recorded")
	} else {
		fmt.Fprintln(a.out, ", other than recorded")
	}
	if len(r.Differences) == 0 {
		return nil
	}
	return a.showDifferences(r.Differences)
}
