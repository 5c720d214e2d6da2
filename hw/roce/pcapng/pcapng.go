// Package pcapng writes frames to a capture file in the pcapng format, with
// nanosecond time, interface and direction, and reads them from pcapng and pcap.
// The format itself is gopacket's pcapgo (draft-ietf-opsawg-pcapng).
package pcapng

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// ErrFormat says that a file is no capture of Ethernet frames, or is damaged.
var ErrFormat = errors.New("not a sound pcapng or pcap file of Ethernet frames")

// Direction is which way a frame went through its interface: the lower two bits
// of the option epb_flags.
type Direction uint8

// The directions. A pcap file does not say.
const (
	Unknown  Direction = 0
	Inbound  Direction = 1 // received
	Outbound Direction = 2 // sent
)

// String is the direction's name.
func (d Direction) String() string {
	switch d {
	case Inbound:
		return "in"
	case Outbound:
		return "out"
	}
	return "?"
}

// Frame is one captured frame.
type Frame struct {
	Time      time.Time // to the nanosecond; microsecond in most pcap files
	Interface int       // as AddInterface gave it; counted through all sections of a file read
	Direction Direction
	Dropped   uint64 // frames lost between the one before of this interface and this one
	Data      []byte // from the Ethernet header on, without FCS
}

// Writer writes a pcapng file. It buffers: call Flush at the end, and whenever
// a reader shall see what was written. It is not safe for concurrent use.
type Writer struct {
	w          *pcapgo.NgWriter
	interfaces int
}

// NewWriter starts a file on w that names the application that writes it and
// one interface, which gets number 0. The caller closes w.
func NewWriter(w io.Writer, application, name string) (*Writer, error) {
	info := pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: application}
	ng, err := pcapgo.NewNgWriterInterface(w, describe(name), pcapgo.NgWriterOptions{SectionInfo: info})
	if err != nil {
		return nil, fmt.Errorf("pcapng: start: %w", err)
	}
	return &Writer{ng, 1}, nil
}

func describe(name string) pcapgo.NgInterface {
	return pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeEthernet, TimestampResolution: 9}
}

// AddInterface describes one more interface and gives its number.
func (w *Writer) AddInterface(name string) (int, error) {
	n, err := w.w.AddInterface(describe(name))
	if err != nil {
		return 0, fmt.Errorf("pcapng: interface %q: %w", name, err)
	}
	w.interfaces++
	return n, nil
}

// Write writes one frame, whole.
func (w *Writer) Write(f *Frame) error {
	if f.Interface < 0 || f.Interface >= w.interfaces {
		return fmt.Errorf("pcapng: frame of interface %d, but only %d are described: call AddInterface first",
			f.Interface, w.interfaces)
	}
	ci := gopacket.CaptureInfo{
		Timestamp: f.Time, CaptureLength: len(f.Data), Length: len(f.Data), InterfaceIndex: f.Interface,
	}
	var o pcapgo.NgPacketOptions
	if f.Direction != Unknown {
		o.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlag(f.Direction)}
	}
	if f.Dropped != 0 {
		o.DropCount = &f.Dropped
	}
	if err := w.w.WritePacketWithOptions(ci, f.Data, o); err != nil {
		return fmt.Errorf("pcapng: frame of %d bytes: %w", len(f.Data), err)
	}
	return nil
}

// Flush hands on what is buffered.
func (w *Writer) Flush() error {
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("pcapng: flush: %w", err)
	}
	return nil
}

// Reader reads a pcapng or pcap file, whichever it is. It is not safe for
// concurrent use.
type Reader struct {
	ng     *pcapgo.NgReader // or
	pcap   *pcapgo.Reader
	n      int // frames read
	base   int // interfaces of the sections before this one
	closed bool
}

const sectionHeader = 0x0A0D0D0A // first word of a pcapng file, in either byte order

// NewReader finds out what r holds. Is: ErrFormat.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReader(r)
	magic, err := br.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("%w: no file header: %w", ErrFormat, unexpected(err))
	}
	out := &Reader{}
	var link layers.LinkType
	if binary.LittleEndian.Uint32(magic) == sectionHeader {
		out.ng, err = pcapgo.NewNgReader(br, pcapgo.NgReaderOptions{
			WantMixedLinkType: true, // each frame is looked at, none passed over unsaid
			SectionEndCallback: func(i []pcapgo.NgInterface, _ pcapgo.NgSectionInfo) {
				out.base += len(i)
			},
		})
		link = layers.LinkTypeEthernet // is an interface's, not the file's
	} else if out.pcap, err = pcapgo.NewReader(br); err == nil {
		link = out.pcap.LinkType()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: file header: %w", ErrFormat, unexpected(err))
	}
	if link != layers.LinkTypeEthernet {
		return nil, fmt.Errorf("%w: link type is %v", ErrFormat, link)
	}
	return out, nil
}

// Next gives the next frame, whose Data is the caller's to keep, or io.EOF
// after the last. Any other error is the file's: Is ErrFormat, and every later
// call gives the end.
func (r *Reader) Next() (Frame, error) {
	if r.closed {
		return Frame{}, io.EOF
	}
	f, err := r.next()
	if err != nil {
		r.closed = true
		if err == io.EOF {
			return Frame{}, err
		}
		return Frame{}, fmt.Errorf("%w: frame %d: %w", ErrFormat, r.n, err)
	}
	r.n++
	return f, nil
}

func (r *Reader) next() (Frame, error) {
	if r.pcap != nil {
		data, ci, err := r.pcap.ReadPacketData()
		if err != nil {
			return Frame{}, err
		}
		return frame(data, ci)
	}
	data, ci, o, err := r.ng.ReadPacketDataWithOptions()
	if err != nil {
		return Frame{}, err
	}
	if link := ci.AncillaryData[0]; link != layers.LinkTypeEthernet {
		return Frame{}, fmt.Errorf("link type is %v", link)
	}
	f, err := frame(data, ci)
	f.Interface += r.base
	if o.Flags != nil {
		f.Direction = Direction(o.Flags.Direction)
	}
	if o.DropCount != nil {
		f.Dropped = *o.DropCount
	}
	return f, err
}

func frame(data []byte, ci gopacket.CaptureInfo) (Frame, error) {
	if ci.CaptureLength != ci.Length {
		return Frame{}, fmt.Errorf("it holds %d of %d bytes: capture whole frames", ci.CaptureLength, ci.Length)
	}
	return Frame{Time: ci.Timestamp, Interface: ci.InterfaceIndex, Data: data}, nil
}

// unexpected is for the end of a file where there must be more.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadAll gives all frames of a file.
func ReadAll(r io.Reader) ([]Frame, error) {
	in, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	var frames []Frame
	for {
		f, err := in.Next()
		if err == io.EOF {
			return frames, nil
		}
		if err != nil {
			return frames, err
		}
		frames = append(frames, f)
	}
}
