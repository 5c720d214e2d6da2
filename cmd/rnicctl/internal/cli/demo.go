package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/qppair"
	"rnic/cmd/rnicctl/internal/walkview"
	"rnic/driver"
)

// demoJSON is what `demo` did.
type demoJSON struct {
	Schema     string           `json:"schema"`
	Address    string           `json:"address"`
	Peer       string           `json:"peer"`
	Walk       *walkview.Report `json:"walk"`
	Operations []operation      `json:"operations"`
	Capture    struct {
		File   string `json:"file"`
		Frames int    `json:"frames"`
		Bytes  uint64 `json:"bytes"`
	} `json:"capture"`
}

func (a *app) demo() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "demo", Short: "A gather step by step, then five operations between two cards", Args: cobra.NoArgs,
		Long: `demo shows the default request of walk from the card's own trace, then does a SEND, an RDMA WRITE, an RDMA READ, an
inline SEND and an atomic between two soft cards, compares memory at the far end of each, and leaves every
frame in a pcapng file for Wireshark. On a card named with -d, or the only one present, it talks to itself.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.demoRun(c.Context(), file) },
	}
	c.Flags().StringVar(&file, "pcap", "demo.pcapng", "pcapng file to write")
	return c
}

func (a *app) demoRun(ctx context.Context, file string) (err error) {
	b, err := a.bench(ctx, "demo", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	out, err := a.createCapture(file, b.devs[0].Addr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	frames, err := b.devs[0].Capture(ctx, driver.CaptureOptions{})
	if err != nil {
		return err
	}
	defer frames.Close()

	o := walkOptions{mtu: 4096, opcode: opSend, gather: "card"}
	if err := o.check(); err != nil {
		return err
	}
	w, err := a.walkOn(ctx, b, &o)
	if err != nil {
		return err
	}
	if !a.json {
		if err := a.showWalk(w); err != nil {
			return err
		}
	}
	operations, passed, err := a.operations(ctx, b)
	if err != nil {
		return err
	}
	if err := drain(ctx, frames, out.write); err != nil {
		return err
	}
	if err := out.flush(); err != nil {
		return err
	}
	j := demoJSON{Schema: "rnic.demo.v1", Address: b.devs[0].Addr(), Peer: b.devs[1].Addr(), Walk: w.Report(), Operations: operations}
	j.Capture.File, j.Capture.Frames, j.Capture.Bytes = file, out.frames, out.bytes
	if err := a.showDemo(&j); err != nil {
		return err
	}
	if !passed {
		return errFound
	}
	return nil
}

// drain hands on what a stream holds, without waiting for more.
func drain[T any](ctx context.Context, s driver.Stream[T], take func(*T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for {
		v, err := s.Next(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := take(&v); err != nil {
			return err
		}
	}
}

// operations does the five, and says whether all arrived as they should. After one that failed the QP is of
// no use any more, and the others are not tried.
func (a *app) operations(ctx context.Context, b *bench) (list []operation, passed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*a.timeout)
	defer cancel()
	pair, err := qppair.Connect(ctx, b.devs, qppair.Options{MaxInline: 64})
	if err != nil {
		return nil, false, err
	}
	defer pair.CloseAfter(ctx, &err)
	r := &demoRun{pair: pair}
	for i := range r.mrs {
		if r.mrs[i], err = pair[i].MR(ctx, demoMemory); err != nil {
			return nil, false, err
		}
	}
	for _, o := range demoOperations {
		op := operation{Operation: o.name, Result: "pass"}
		err := o.run(r, ctx, &op)
		if errors.Is(err, driver.ErrDeviceGone) || ctx.Err() != nil {
			return list, false, err
		}
		if err != nil {
			op.Result, op.Why = "fail", err.Error()
			return append(list, op), false, nil
		}
		list = append(list, op)
	}
	return list, true, nil
}

func (a *app) showDemo(j *demoJSON) error {
	if a.json {
		return a.printJSON(j)
	}
	fmt.Fprintf(a.out, "\nFive operations, A %s to B %s:\n\n", j.Address, j.Peer)
	t := newTable("OPERATION", "BYTES", "SEGMENTS", "RESULT", "CHECKED AT THE FAR END")
	for _, o := range j.Operations {
		t.row(o.Operation, o.Bytes, o.Segments, o.Result, o.Checked+o.because())
	}
	if err := t.write(a); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "\n%d frames, %d bytes in %s\n", j.Capture.Frames, j.Capture.Bytes, j.Capture.File)
	return err
}

func (o *operation) because() string {
	if o.Why == "" {
		return ""
	}
	return ": " + o.Why
}
