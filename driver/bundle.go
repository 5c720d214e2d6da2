package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"rnic/hw"
	"rnic/hw/gather"
)

// BundleSchema names the form of a bundle's JSON object.
const BundleSchema = "rnic.bundle.v1"

// maxBundle bounds the file of a bundle, in bytes.
const maxBundle = 4 << 20

// Bundle is all that is needed to walk one packet again, away from the card: the
// request, the keys and the memory that it names, what the card reported, and what
// differed. It holds payload: files are written with mode 0600.
type Bundle struct {
	Schema   string    `json:"schema"`
	Addr     string    `json:"address"`
	Engine   string    `json:"engine"`
	Time     time.Time `json:"time"`
	QPN      uint32    `json:"qpn"`
	PD       uint32    `json:"pd"`
	WQEIndex uint32    `json:"wqe_index"`
	Packet   uint32    `json:"packet"`
	MTU      uint32    `json:"mtu_bytes"`
	Opcode   uint8     `json:"opcode"`
	Response bool      `json:"response"`
	Fault    bool      `json:"request_fault"` // the card refused the request as a whole
	IsInline bool      `json:"is_inline"`
	Inline   []byte    `json:"inline,omitempty"`

	AckReqInterval uint32 `json:"ack_req_interval"` // rule G13
	AckReqMoving   bool   `json:"ack_req_moving"`   // it was being changed

	Segments []bundleSegment `json:"segments"`
	Keys     []bundleKey     `json:"keys"`
	Memory   []bundlePiece   `json:"memory"` // the pieces that the software walk read

	Begin       bundleRecord   `json:"begin"`
	Steps       []bundleRecord `json:"steps"`
	End         bundleRecord   `json:"end"`
	Differences []Difference   `json:"differences"`
}

type bundleSegment struct {
	Addr   hex64  `json:"addr"`
	Length uint32 `json:"length_bytes"`
	Key    hex32  `json:"key"`
}

type bundleKey struct {
	Index  uint32 `json:"index"`
	Exists bool   `json:"exists"` // false: beyond the table
	State  uint8  `json:"state"`
	Type   uint8  `json:"type"`
	Tag    uint8  `json:"tag"`
	Access uint8  `json:"access"`
	PD     uint32 `json:"pd"`
	Base   hex64  `json:"base"`
	Length hex64  `json:"length_bytes"`
	IOVA   hex64  `json:"iova"`
}

type bundlePiece struct {
	IOVA hex64  `json:"iova"`
	Data []byte `json:"data"`
}

// bundleRecord is a record of the trace.
type bundleRecord struct {
	Kind          uint8  `json:"kind"`
	Name          string `json:"kind_name"`
	Opcode        uint8  `json:"opcode"`
	Flags         uint8  `json:"flags"`
	Segment       int    `json:"segment"`
	Offset        uint32 `json:"offset_bytes"`
	Bytes         uint32 `json:"bytes"`
	Key           hex32  `json:"key"`
	Reason        uint8  `json:"reason"`
	CursorSegment int    `json:"cursor_segment"`
	CursorOffset  uint32 `json:"cursor_offset_bytes"`
	CursorLeft    uint32 `json:"cursor_left_bytes"`
	CRC           hex32  `json:"crc"`
}

func packRecord(r *TraceRecord) bundleRecord {
	return bundleRecord{
		Kind: uint8(r.Kind), Name: r.Kind.String(), Opcode: uint8(r.Opcode), Flags: uint8(r.Flags), Segment: r.Segment, Offset: r.Offset, Bytes: r.Bytes, Key: hex32(r.Key),
		Reason: uint8(r.Reason), CursorSegment: r.Cursor.Segment, CursorOffset: r.Cursor.Offset, CursorLeft: r.Cursor.Left, CRC: hex32(r.CRC),
	}
}

func (b *bundleRecord) record() (r TraceRecord) {
	r = TraceRecord{
		Kind: hw.TraceKind(b.Kind), Opcode: Opcode(b.Opcode), Flags: hw.TraceFlag(b.Flags), Segment: b.Segment, Offset: b.Offset, Bytes: b.Bytes, Key: uint32(b.Key),
		Reason: Reason(b.Reason), CRC: uint32(b.CRC),
	}
	setCursor(&r, gather.Cursor{Segment: b.CursorSegment, Offset: b.CursorOffset, Left: b.CursorLeft})
	return r
}

// hex32 and hex64 are "0x…" strings in JSON.
type (
	hex32 uint32
	hex64 uint64
)

// MarshalText gives "0x…".
func (h hex32) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#x", uint32(h)), nil }

// MarshalText gives "0x…".
func (h hex64) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#x", uint64(h)), nil }

// UnmarshalText reads what MarshalText gave.
func (h *hex32) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "0x%x", (*uint32)(h))
	return err
}

// UnmarshalText reads what MarshalText gave.
func (h *hex64) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "0x%x", (*uint64)(h))
	return err
}

// bundle is the packet that was just examined. The shadow may have changed since:
// then the keys are of now, and a replay finds something else.
func (v *verifier) bundle(p *tracedPacket, end *TraceRecord) *Bundle {
	e, x, s := &v.e, &v.x, &v.d.shadow
	b := &Bundle{
		Schema: BundleSchema, Addr: v.d.addr, Engine: v.d.attr.Engine.String(), Time: time.Now().UTC(), QPN: e.qpn, PD: e.pd, WQEIndex: end.WQEIndex, Packet: e.packet,
		MTU: e.mtu, Opcode: uint8(e.opcode), Response: e.response, Fault: e.malformed, IsInline: e.isInline, Inline: append([]byte(nil), e.inline...),
		AckReqInterval: e.ackReq, AckReqMoving: e.ackReqMoving,
		Begin: packRecord(&p.begin), End: packRecord(end), Differences: append([]Difference(nil), x.diffs...),
		Segments: []bundleSegment{}, Keys: []bundleKey{}, Memory: []bundlePiece{}, Steps: []bundleRecord{},
	}
	for i := range p.steps {
		b.Steps = append(b.Steps, packRecord(&p.steps[i]))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[uint32]bool{}
	for _, g := range e.segs {
		b.Segments = append(b.Segments, bundleSegment{hex64(g.Addr), g.Length, hex32(g.Key)})
		i := gather.IndexOf(g.Key)
		if seen[i] {
			continue
		}
		seen[i] = true
		k, ok := s.Entry(i)
		b.Keys = append(b.Keys, bundleKey{
			Index: i, Exists: ok, State: uint8(k.State), Type: uint8(k.Type), Tag: k.Tag, Access: uint8(k.Access), PD: k.PD,
			Base: hex64(k.Base), Length: hex64(k.Length), IOVA: hex64(k.IOVA),
		})
	}
	n := 0
	for i := range x.steps {
		r := &x.steps[i]
		if r.Kind != hw.TraceKindRead || n+int(r.Bytes) > len(x.payload) {
			continue
		}
		k, _ := s.Entry(gather.IndexOf(r.Key))
		iova := k.IOVA + e.segs[r.Segment].Addr + uint64(r.Offset) - k.Base
		b.Memory = append(b.Memory, bundlePiece{hex64(iova), append([]byte(nil), x.payload[n:n+int(r.Bytes)]...)})
		n += int(r.Bytes)
	}
	return b
}

// writeBundle writes the bundle to a new file.
func (v *verifier) writeBundle(p *tracedPacket, end *TraceRecord) (string, error) {
	text, err := json.MarshalIndent(v.bundle(p, end), "", " ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(v.dir, "verify-*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(append(text, '\n'))
	return f.Name(), errors.Join(err, f.Close())
}

// defaultVerifyDir is $XDG_STATE_HOME/rnic, else ~/.local/state/rnic, else the
// folder for temporary files.
func defaultVerifyDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "rnic")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "rnic")
	}
	return filepath.Join(os.TempDir(), "rnic")
}

// ReadBundle reads a bundle. What is not one is ErrInvalid.
func ReadBundle(r io.Reader) (*Bundle, error) {
	bad := func(err error) (*Bundle, error) {
		return nil, fmt.Errorf("verification bundle: %w: %w", err, ErrInvalid)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxBundle+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxBundle {
		return bad(fmt.Errorf("over %d bytes", maxBundle))
	}
	var b Bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return bad(err)
	}
	switch {
	case b.Schema != BundleSchema:
		return bad(fmt.Errorf("schema %q, want %q", b.Schema, BundleSchema))
	case b.MTU == 0 || b.MTU > 1<<stagingLogStride:
		return bad(fmt.Errorf("path MTU of %d bytes", b.MTU))
	case len(b.Segments) > hw.MaxSegments || len(b.Steps) > 4*hw.MaxSegments:
		return bad(fmt.Errorf("%d segments, %d steps", len(b.Segments), len(b.Steps)))
	case len(b.Inline) > hw.WQEMaxBlocks*hw.WQEBlock:
		return bad(fmt.Errorf("%d inline bytes", len(b.Inline)))
	}
	return &b, nil
}

// Replay walks the packet again, with the keys and the memory of the bundle, and
// compares that with what the card reported. It needs no card.
func (b *Bundle) Replay() []Difference {
	s := &shadow{keys: map[uint32]*shadowKey{}}
	for _, k := range b.Keys {
		if !k.Exists {
			continue
		}
		s.limit = max(s.limit, k.Index+1)
		s.keys[k.Index] = &shadowKey{pieces: b.Memory, key: gather.Key{
			State: hw.KeyState(k.State), Type: hw.KeyType(k.Type), Tag: k.Tag, Access: hw.Access(k.Access), PD: k.PD,
			Base: uint64(k.Base), Length: uint64(k.Length), IOVA: uint64(k.IOVA),
		}}
	}
	e := &exam{
		qpn: b.QPN, pd: b.PD, opcode: Opcode(b.Opcode), packet: b.Packet, mtu: b.MTU, response: b.Response, isInline: b.IsInline, inline: b.Inline, malformed: b.Fault,
		ackReq: b.AckReqInterval, ackReqMoving: b.AckReqMoving,
	}
	for _, g := range b.Segments {
		e.segs = append(e.segs, gather.Segment{Addr: uint64(g.Addr), Length: g.Length, Key: uint32(g.Key)})
	}
	var steps []TraceRecord
	for i := range b.Steps {
		steps = append(steps, b.Steps[i].record())
	}
	begin, end := b.Begin.record(), b.End.record()
	x := &examiner{w: walker{s: s}}
	x.walk(e)
	if x.compare(e, &begin, steps, &end) {
		return nil
	}
	return x.diffs
}
