// Package archive gathers files for a bug report into one tar file, and notes what could not be had.
package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// maxData bounds one file of an archive (bytes); what is longer is cut, and says so.
const maxData = 4 << 20

// File is a file of the archive, or with Why one that could not be had.
type File struct {
	Name string
	What string
	Data []byte
	Why  string
}

// Archive is a report in the making.
type Archive struct {
	dir   string
	files []File
}

// New begins an archive whose files all lie in dir.
func New(dir string) *Archive { return &Archive{dir: dir} }

// Add adds a file.
func (a *Archive) Add(name, what string, data []byte) {
	if len(data) > maxData {
		what += fmt.Sprintf(" (the first %d of %d bytes)", maxData, len(data))
		data = data[:maxData]
	}
	a.files = append(a.files, File{Name: name, What: what, Data: data})
}

// Missing notes what could not be had, and why.
func (a *Archive) Missing(name, why string) {
	a.files = append(a.files, File{Name: name, Why: why})
}

// Files are what was added and what is missing, by name.
func (a *Archive) Files() []File {
	list := slices.Clone(a.files)
	slices.SortStableFunc(list, func(x, y File) int { return cmp.Compare(x.Name, y.Name) })
	return list
}

// readme says what is inside.
func (a *Archive) readme() []byte {
	var b strings.Builder
	b.WriteString("A report of rnicctl. It has no keys of memory regions, no payload and no frames. It has MAC addresses, GIDs, and\nthe names of processes that hold cards.\n\nInside:\n")
	for _, f := range a.Files() {
		if f.Why == "" {
			fmt.Fprintf(&b, "  %-32s %8d bytes  %s\n", f.Name, len(f.Data), f.What)
		}
	}
	b.WriteString("\nNot there, and why:\n")
	none := true
	for _, f := range a.Files() {
		if f.Why != "" {
			fmt.Fprintf(&b, "  %-32s %s\n", f.Name, f.Why)
			none = false
		}
	}
	if none {
		b.WriteString("  nothing is missing\n")
	}
	return []byte(b.String())
}

// Write writes the archive and gives its length in bytes. The same files give the same bytes: README.txt first, then by
// name, without times, owners or rights.
func (a *Archive) Write(w io.Writer) (int64, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range append([]File{{Name: "README.txt", Data: a.readme()}}, a.Files()...) {
		if f.Why != "" {
			continue
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: a.dir + "/" + f.Name, Size: int64(len(f.Data)), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return 0, err
		}
		if _, err := t.Write(f.Data); err != nil {
			return 0, err
		}
	}
	if err := t.Close(); err != nil {
		return 0, err
	}
	if err := z.Close(); err != nil {
		return 0, err
	}
	return out.WriteTo(w)
}
