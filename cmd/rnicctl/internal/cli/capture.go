package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rnic/driver"
	"rnic/hw"
	"rnic/hw/roce"
	"rnic/hw/roce/pcapng"
)

// frameJSON is a captured frame, decoded.
type frameJSON struct {
	Schema      string   `json:"schema"`
	TimeNS      uint64   `json:"time_ns"`
	Direction   string   `json:"direction"` // tx, rx
	QPN         uint32   `json:"qpn"`       // this card's
	LengthBytes uint32   `json:"length_bytes"`
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Opcode      string   `json:"opcode"` // "" where the frame is not RoCEv2
	DestQPN     uint32   `json:"dest_qpn"`
	PSN         uint32   `json:"psn"`
	AckReq      bool     `json:"ack_req"`
	Flags       []string `json:"flags"`
	Why         string   `json:"why"`  // why it could not be decoded
	Lost        uint32   `json:"lost"` // frames that did not fit since the one before
}

// captureJSON is what `capture -w` has written.
type captureJSON struct {
	origin
	File      string `json:"file"`
	Frames    int    `json:"frames"`
	Bytes     uint64 `json:"bytes"`
	Lost      uint64 `json:"lost"`
	Truncated int    `json:"truncated"`
}

func (a *app) capture() *cobra.Command {
	var o streamOptions
	var file string
	c := &cobra.Command{
		Use: "capture", Short: "Frames that the card sends and receives, to pcapng", Args: cobra.NoArgs,
		Long: `capture takes frames from the card's capture ring, with direction and card time. With -w it writes them to a
pcapng file for Wireshark (- is standard output); without, a line each. It ends after --count frames, after
--for, or when it is interrupted; the file is sound in each case. Frames for which the ring had no room are counted.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.captureRun(c.Context(), &o, file) },
	}
	o.flags(c, "frames")
	c.Flags().StringVarP(&file, "write", "w", "", "pcapng file to write")
	return c
}

func (a *app) captureRun(ctx context.Context, o *streamOptions, file string) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	a.stream = file == ""
	s, err := a.inspect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	var w *captureFile
	if file != "" {
		if w, err = a.createCapture(file, s.addr); err != nil {
			return err
		}
		defer func() {
			if e := w.close(); err == nil {
				err = e
			}
		}()
	}
	stream, err := s.Capture(ctx, driver.CaptureOptions{QPN: o.qpn, Count: o.count})
	if err != nil {
		return err
	}
	defer stream.Close()
	if w == nil && !a.json {
		a.line(frameLine, "TIME", "DIR", "QPN", "LENGTH", "DEST_QPN", "PSN", "OPCODE", "FROM", "TO", "NOTE")
	}
	err = each(ctx, o, stream, func(f driver.CaptureFrame) error {
		if w != nil {
			return w.write(&f)
		}
		return a.showFrame(&f)
	})
	if w == nil {
		return err
	}
	// What was written is said however it ended.
	if e := w.flush(); e != nil {
		return errors.Join(err, e)
	}
	if err == nil && a.json && file != "-" {
		return a.printJSON(captureJSON{s.origin("rnic.capture.v1"), file, w.frames, w.bytes, w.lost, w.truncated})
	}
	a.notef("%d frames, %d bytes in %s; %d lost", w.frames, w.bytes, file, w.lost)
	return err
}

const frameLine = "%-16s %-3s %-8s %6s %-8s %-8s %-24s %-22s %-22s %s"

func (a *app) showFrame(f *driver.CaptureFrame) error {
	j := describeFrame(f)
	if a.json {
		return a.printJSON(j)
	}
	var more []string
	if j.AckReq {
		more = append(more, "AckReq")
	}
	more = append(more, j.Flags...)
	if j.Why != "" {
		more = append(more, j.Why)
	}
	if j.Lost != 0 {
		more = append(more, fmt.Sprintf("%d frames before it were lost", j.Lost))
	}
	return a.line(frameLine, seconds(j.TimeNS), j.Direction, fmt.Sprintf("%#x", j.QPN), fmt.Sprint(j.LengthBytes),
		fmt.Sprintf("%#x", j.DestQPN), fmt.Sprint(j.PSN), j.Opcode, j.Source, j.Destination, strings.Join(more, ", "))
}

func describeFrame(f *driver.CaptureFrame) frameJSON {
	j := frameJSON{
		Schema: "rnic.frame.v1", TimeNS: f.Time, Direction: strings.ToLower(f.Direction.String()), QPN: f.QPN, LengthBytes: f.Length,
		Flags: []string{}, Lost: f.Lost,
	}
	if f.Flags != 0 {
		j.Flags = strings.Split(strings.ToLower(f.Flags.String()), "|")
	}
	var p roce.Packet
	if err := roce.Decode(f.Data, &p); err != nil {
		j.Why = err.Error()
		return j
	}
	if !p.ICRCOK() {
		j.Why = roce.ErrICRC.Error()
	}
	b := p.BTH()
	j.Source, j.Destination = driver.GID(p.SrcGID()).String(), driver.GID(p.DstGID()).String()
	j.Opcode, j.DestQPN, j.PSN, j.AckReq = b.Opcode().String(), b.DestQP(), b.PSN(), b.AckReq()
	return j
}

// captureFile is a pcapng file of one interface.
type captureFile struct {
	f         io.Closer
	w         *pcapng.Writer
	frames    int
	bytes     uint64
	lost      uint64
	truncated int
}

type nothing struct{}

func (nothing) Close() error { return nil }

// createCapture starts a file; "-" is the standard output.
func (a *app) createCapture(name, iface string) (*captureFile, error) {
	var out io.Writer = a.out
	c := &captureFile{f: nothing{}}
	if name != "-" {
		f, err := os.Create(name)
		if err != nil {
			return nil, usagef("name a file that can be written", "%w", err)
		}
		out, c.f = f, f
	}
	w, err := pcapng.NewWriter(out, "rnicctl", iface)
	if err != nil {
		return nil, errors.Join(err, c.f.Close())
	}
	c.w = w
	return c, nil
}

func (c *captureFile) write(f *driver.CaptureFrame) error {
	c.frames++
	c.bytes += uint64(len(f.Data))
	c.lost += uint64(f.Lost)
	if f.Flags&hw.CaptureFlagTruncated != 0 {
		c.truncated++
	}
	d := pcapng.Outbound
	if f.Direction == hw.DirectionRX {
		d = pcapng.Inbound
	}
	return c.w.Write(&pcapng.Frame{Time: time.Unix(0, int64(f.Time)), Direction: d, Dropped: uint64(f.Lost), Data: f.Data})
}

func (c *captureFile) flush() error { return c.w.Flush() }

func (c *captureFile) close() error { return errors.Join(c.w.Flush(), c.f.Close()) }
