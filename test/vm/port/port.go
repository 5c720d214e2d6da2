// Package port is what a virtual machine's host and its init say to each other: a job, which the initramfs holds, and
// frames over a serial port that nothing else uses.
package port

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// JobFile is where init finds its job.
const JobFile = "/job.json"

// Device is the guest's end of the port.
const Device = "/dev/ttyS1"

// A Job is what init does before it powers off.
type Job struct {
	Modules []Module `json:"modules"` // loaded in this order
	Bind    []string `json:"bind"`    // PCI addresses of functions to be bound to vfio-pci
	Command []string `json:"command"` // the payload
	Env     []string `json:"env"`
}

// A Module is a kernel module.
type Module struct {
	File string `json:"file"` // in the initramfs
	Args string `json:"args"` // parameters, as insmod takes them
}

// A Kind says what a frame holds.
type Kind byte

// Kinds of frames.
const (
	Ready  Kind = 'r' // the payload is about to start; the payload of the frame is the uptime in seconds
	Stdout Kind = 'o' // output of the payload
	Stderr Kind = 'e'
	Log    Kind = 'k' // a piece of the kernel's log
	Failed Kind = 'f' // init could not do its job: why
	Exit   Kind = 'x' // the payload's exit code, or "signal: NAME"; the last frame
	Stdin  Kind = 'i' // to the guest: input of the payload
)

const (
	magic = "\x00RNICVM\n"
	// MaxData is the most that a frame holds, in bytes.
	MaxData = 32 << 10
	header  = len(magic) + 1 + 4
)

// ErrFrame is a frame that is none.
var ErrFrame = errors.New("not a frame")

// Write writes data as frames of a kind, at least one.
func Write(w io.Writer, k Kind, data []byte) error {
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), MaxData)
		b := make([]byte, 0, header+n+4)
		b = append(append(b, magic...), byte(k))
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
		b = append(b, data[:n]...)
		b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b[len(magic):]))
		if _, err := w.Write(b); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// A Reader reads frames.
type Reader struct {
	r      *bufio.Reader
	synced bool
}

// NewReader reads frames from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, header+MaxData+4)} }

// Read gives the next frame. In front of the first one anything may stand: firmware and the kernel's probe of the port
// leave bytes there.
func (r *Reader) Read() (Kind, []byte, error) {
	for !r.synced {
		b, err := r.r.Peek(len(magic))
		if err != nil {
			return 0, nil, err
		}
		if r.synced = string(b) == magic; !r.synced {
			_, _ = r.r.Discard(1)
		}
	}
	var h [header]byte
	if _, err := io.ReadFull(r.r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(h[header-4:])
	if !bytes.HasPrefix(h[:], []byte(magic)) || n > MaxData {
		return 0, nil, fmt.Errorf("%w: %q", ErrFrame, h[:])
	}
	body := make([]byte, n+4)
	if _, err := io.ReadFull(r.r, body); err != nil {
		return 0, nil, fmt.Errorf("%w: cut: %w", ErrFrame, err)
	}
	sum := crc32.Update(crc32.ChecksumIEEE(h[len(magic):]), crc32.IEEETable, body[:n])
	if got := binary.LittleEndian.Uint32(body[n:]); got != sum {
		return 0, nil, fmt.Errorf("%w: checksum %#x, want %#x", ErrFrame, got, sum)
	}
	return Kind(h[len(magic)]), body[:n], nil
}
