package debian

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// Keep says whether a file of a package is wanted, by its path in it without a slash in front.
type Keep func(name string) bool

// All wants every file.
func All(string) bool { return true }

// Under wants what stands under one of the folders, or is one of them.
func Under(prefixes ...string) Keep {
	return func(name string) bool {
		for _, p := range prefixes {
			if name == p || strings.HasPrefix(name, p+"/") {
				return true
			}
		}
		return false
	}
}

// Unpack unpacks what is wanted of a package's files under dest.
func Unpack(ctx context.Context, deb, dest string, keep Keep) error {
	return Files(ctx, deb, func(t *tar.Reader) error { return Untar(t, dest, keep) })
}

// Files hands a package's files to read.
func Files(ctx context.Context, deb string, read func(*tar.Reader) error) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	if err := Pipe(cmd, func(r io.Reader) error { return read(tar.NewReader(r)) }); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(deb), err)
	}
	return nil
}

// errStop ends a read that has what it wants.
var errStop = errors.New("enough")

// Stop is what a reader returns that wants no more: the rest is left, and there is no error.
func Stop() error { return errStop }

// Pipe runs a program and hands its output to read, all of which is read.
func Pipe(cmd *exec.Cmd, read func(io.Reader) error) error {
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = read(out)
	if err != nil {
		_ = cmd.Process.Kill()
	} else {
		_, err = io.Copy(io.Discard, out)
	}
	if e := cmd.Wait(); err == nil && e != nil {
		err = fmt.Errorf("%s: %w: %s", cmd.Args[0], e, strings.TrimSpace(said.String()))
	}
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// Untar writes what is wanted of an archive under dest. Nothing gets outside: not by a name, nor through a link.
func Untar(t *tar.Reader, dest string, keep Keep) error {
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dest)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		if name == "." || !keep(name) {
			continue
		}
		if err := entry(root, t, h, name); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
}

func entry(root *os.Root, t *tar.Reader, h *tar.Header, name string) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(h.Mode)&0o777|0o200)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimPrefix(h.Linkname, "./")), name)
	}
	return fmt.Errorf("file of type %q", h.Typeflag)
}
