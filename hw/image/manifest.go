package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"rnic/hw"
)

// ErrMismatch is an image that is not what its manifest says, or not for the card; *Mismatch has the values.
var ErrMismatch = errors.New("image, manifest and card disagree")

// ErrManifest is a manifest that is not there or cannot be read as one.
var ErrManifest = errors.New("no manifest for this image")

// Mismatch is one thing in which image, manifest and card differ. It is ErrMismatch.
type Mismatch struct {
	What       string // "sha256", "bytes", "part", "contract", "capabilities"
	Have, Want string // Want is the manifest's
}

// Error names both values.
func (m *Mismatch) Error() string {
	return fmt.Sprintf("%v: %s is %s, the manifest says %s", ErrMismatch, m.What, m.Have, m.Want)
}

// Is makes it ErrMismatch.
func (m *Mismatch) Is(target error) bool { return target == ErrMismatch }

// ManifestSchema names the form, docs/json/manifest.schema.json.
const ManifestSchema = "rnic.manifest.v1"

// ManifestSuffix is what a manifest's file has behind its image's name.
const ManifestSuffix = ".json"

// The most that is read of a file: hostile ones take no more memory.
const (
	maxManifest = 1 << 20
	maxImage    = 1 << 28
)

// Manifest says what an image is, and what it was made of.
type Manifest struct {
	Schema       string   `json:"schema"`
	Name         string   `json:"name"`
	Bytes        int64    `json:"bytes"`
	SHA256       string   `json:"sha256"` // of the image, 64 hexadecimal digits
	Part         string   `json:"part"`   // as FLASH.PART of the cards that take it, up to 32 bytes
	Contract     string   `json:"contract"`
	Capabilities []string `json:"capabilities"` // names of the contract, in lower case
	Build        Build    `json:"build"`
	Timing       Timing   `json:"timing"`
	Board        string   `json:"board,omitempty"` // openFPGALoader's name of the board, where JTAG loads it
}

// Build is what an image was made of.
type Build struct {
	Time    string            `json:"time"`   // RFC 3339
	Tools   []string          `json:"tools"`  // name and version
	Inputs  map[string]string `json:"inputs"` // SHA-256 by file, from the root of the tree
	Options []string          `json:"options"`
}

// Timing is what place and route says of the clock. Without a clock in the design all are 0.
type Timing struct {
	TargetMHz float64 `json:"target_mhz"`
	FmaxMHz   float64 `json:"fmax_mhz"`
	SlackNs   float64 `json:"slack_ns"` // at the target; below 0 it is missed
}

// Parse reads a manifest and checks its form. errors.Is: ErrManifest.
func Parse(text []byte) (*Manifest, error) {
	m := &Manifest{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(m)
	if err == nil && d.More() {
		err = errors.New("more than one object")
	}
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return m, nil
}

func (m *Manifest) check() error {
	if m.Schema != ManifestSchema {
		return fmt.Errorf("schema %q, this program reads %q", m.Schema, ManifestSchema)
	}
	if m.Bytes <= 0 || m.Bytes > maxImage {
		return fmt.Errorf("%d bytes: from 1 to %d", m.Bytes, maxImage)
	}
	if len(m.Part) == 0 || len(m.Part) > len(hw.ImageHeader{}.Part) || !utf8.ValidString(m.Part) || strings.ContainsRune(m.Part, 0) {
		return fmt.Errorf("part %q: from 1 to 32 bytes of UTF-8", m.Part)
	}
	if _, err := m.Digest(); err != nil {
		return err
	}
	if _, _, err := m.Version(); err != nil {
		return err
	}
	_, err := m.Caps()
	return err
}

// Digest is SHA256 in bytes.
func (m *Manifest) Digest() (sum [32]byte, err error) {
	b, err := hex.DecodeString(m.SHA256)
	if err != nil || len(b) != len(sum) {
		return sum, fmt.Errorf("sha256 %q: want 64 hexadecimal digits", m.SHA256)
	}
	return [32]byte(b), nil
}

// Version is Contract in numbers.
func (m *Manifest) Version() (major, minor uint16, err error) {
	if _, err := fmt.Sscanf(m.Contract, "%d.%d", &major, &minor); err != nil || fmt.Sprintf("%d.%d", major, minor) != m.Contract {
		return 0, 0, fmt.Errorf("contract %q: want MAJOR.MINOR", m.Contract)
	}
	return major, minor, nil
}

// Caps are Capabilities in bits.
func (m *Manifest) Caps() (caps hw.Capability, err error) {
	known := map[string]hw.Capability{}
	for bit := hw.Capability(1); bit != 0; bit <<= 1 {
		if bit.Valid() {
			known[strings.ToLower(bit.String())] = bit
		}
	}
	for _, name := range m.Capabilities {
		bit, ok := known[name]
		if !ok {
			return 0, fmt.Errorf("capability %q is not in contract %d.%d", name, hw.ContractMajor, hw.ContractMinor)
		}
		caps |= bit
	}
	return caps, nil
}

// Image is a bitstream that agrees with its manifest.
type Image struct {
	Manifest *Manifest
	Data     []byte
}

// Open reads the image in a file and the manifest beside it (the same name with ManifestSuffix), and compares them. errors.Is:
// ErrManifest, ErrMismatch, fs.ErrNotExist of the image.
func Open(file string) (*Image, error) {
	data, err := read(file, maxImage)
	if err != nil {
		return nil, err
	}
	m, err := OpenManifest(file + ManifestSuffix)
	if err != nil {
		return nil, err
	}
	im := &Image{m, data}
	if err := im.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return im, nil
}

// OpenManifest reads a manifest's file. errors.Is: ErrManifest.
func OpenManifest(file string) (*Manifest, error) {
	text, err := read(file, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	m, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	return m, nil
}

func read(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", file, most)
	}
	return b, err
}

// Check compares the image with its manifest: ErrMismatch.
func (im *Image) Check() error {
	if n := int64(len(im.Data)); n != im.Manifest.Bytes {
		return &Mismatch{"bytes", fmt.Sprint(n), fmt.Sprint(im.Manifest.Bytes)}
	}
	want, err := im.Manifest.Digest()
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(im.Data); sum != want {
		return &Mismatch{"sha256", hex.EncodeToString(sum[:]), im.Manifest.SHA256}
	}
	return nil
}

// For says whether cards of a part take the image, with this version of the contract: ErrMismatch.
func (m *Manifest) For(part string) error {
	major, minor, err := m.Version()
	switch {
	case err != nil:
		return err
	case m.Part != part:
		return &Mismatch{"part", part, m.Part}
	case major != hw.ContractMajor:
		return &Mismatch{"contract", fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor), fmt.Sprintf("%d.%d", major, minor)}
	}
	return nil
}

// Identity is what a card says of itself, as far as a manifest has it.
type Identity struct {
	Digest       [32]byte
	Part         string // "" where the card does not say
	Major, Minor uint16
	Capabilities hw.Capability
}

// Agrees says whether the card with this identity runs the manifest's image: ErrMismatch.
func (m *Manifest) Agrees(id Identity) error {
	h, err := m.Header(0)
	if err != nil {
		return err
	}
	return Agrees(h, id)
}

// Agrees compares a card's identity with the header of the image that it says it runs: ErrMismatch.
func Agrees(h *hw.ImageHeader, id Identity) error {
	version := func(major, minor uint16) string { return fmt.Sprintf("%d.%d", major, minor) }
	switch lacks := h.Capabilities &^ id.Capabilities; {
	case h.Digest != id.Digest:
		return &Mismatch{"sha256", hex.EncodeToString(id.Digest[:]), hex.EncodeToString(h.Digest[:])}
	case id.Part != "" && id.Part != Part(h):
		return &Mismatch{"part", id.Part, Part(h)}
	case id.Major != h.ContractMajor || id.Minor != h.ContractMinor:
		return &Mismatch{"contract", version(id.Major, id.Minor), version(h.ContractMajor, h.ContractMinor)}
	case lacks != 0:
		return &Mismatch{"capabilities", "without " + strings.ToLower(lacks.String()), strings.ToLower(h.Capabilities.String())}
	}
	return nil
}
