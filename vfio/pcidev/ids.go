package pcidev

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"rnic/vfio"
)

// ID is the vendor and device of a card, with a name for people, "" for that of the PCI ID table.
type ID struct {
	Vendor, Device uint16
	Name           string
}

// Limits of a file of IDs.
const (
	maxIDs    = 256
	maxIDName = 80 // bytes
)

// IDsVariable names the file of additional IDs instead of rnic/pci.ids in Etc.
const IDsVariable = "RNIC_PCI_IDS"

// IDs reads the IDs of boards of one's own: the file that $RNIC_PCI_IDS names, else rnic/pci.ids in Etc, which may be
// missing. What does not have its form is vfio.ErrInvalid, with file and line.
func (t Tree) IDs() ([]ID, error) {
	path := os.Getenv(IDsVariable)
	named := path != ""
	if !named {
		path = filepath.Join(t.Etc, "rnic/pci.ids")
	}
	b, err := readFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("PCI IDs: %w", err)
	}
	ids, err := ParseIDs(b)
	if err != nil {
		return nil, fmt.Errorf("PCI IDs: %s:%w", path, err)
	}
	return ids, nil
}

// ParseIDs reads lines "VVVV:DDDD NAME": vendor and device in four hexadecimal digits each, and a name if there is
// one. Empty lines and those that begin with # are passed over.
func ParseIDs(b []byte) ([]ID, error) {
	var ids []ID
	s := bufio.NewScanner(bytes.NewReader(b))
	n := 0
	fail := func(format string, a ...any) ([]ID, error) {
		return nil, fmt.Errorf("%d: %w: %s", n, vfio.ErrInvalid, fmt.Sprintf(format, a...))
	}
	for s.Scan() {
		n++
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		pair, name, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		name = strings.TrimSpace(name)
		v, d, _ := strings.Cut(pair, ":")
		vendor, err1 := strconv.ParseUint(v, 16, 16)
		device, err2 := strconv.ParseUint(d, 16, 16)
		switch {
		case len(v) != 4 || len(d) != 4 || err1 != nil || err2 != nil:
			return fail("%.20q is no VVVV:DDDD, four hexadecimal digits each", pair)
		case vendor == 0 || vendor == 0xffff:
			return fail("vendor %s is none", v)
		case len(name) > maxIDName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
			return fail("a name has at most %d printable bytes", maxIDName)
		case len(ids) == maxIDs:
			return fail("more than %d IDs", maxIDs)
		}
		ids = append(ids, ID{uint16(vendor), uint16(device), name})
	}
	if err := s.Err(); err != nil {
		n++
		return fail("%v", err)
	}
	return ids, nil
}
