package pcidev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"rnic/vfio"
)

// A Tree is where a machine keeps what this package reads and writes. Tests put folders of their own there,
// and a kernel of their own behind Write and Exec (package pcitest).
type Tree struct {
	Sys  string // sysfs
	Proc string // procfs
	Dev  string // device nodes
	Run  string // what is to be known until the next boot: records of bind, quarantine
	Etc  string // configuration

	// Write writes a sysfs attribute in one piece; nil writes the file.
	Write func(path, text string) error
	// Exec runs a program of the system to its end; nil runs it.
	Exec func(ctx context.Context, name string, args ...string) error
}

// Host is the running machine.
var Host = Tree{Sys: "/sys", Proc: "/proc", Dev: "/dev", Run: "/run/rnic", Etc: "/etc"}

// Under is a machine whose folders all lie under root.
func Under(root string) Tree {
	return Tree{
		Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"), Dev: filepath.Join(root, "dev"),
		Run: filepath.Join(root, "run/rnic"), Etc: filepath.Join(root, "etc"),
	}
}

// bdf is a PCI address as people write it; the domain may be left out.
var bdf = regexp.MustCompile(`^([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)

// ParseAddress gives a PCI address as sysfs writes it: 03:00.0 is 0000:03:00.0. What is none is vfio.ErrInvalid.
func ParseAddress(s string) (string, error) {
	a := strings.ToLower(s)
	if !bdf.MatchString(a) {
		return "", fmt.Errorf("%w: %q is no PCI address; write it as 0000:03:00.0", vfio.ErrInvalid, s)
	}
	if strings.Count(a, ":") == 1 {
		a = "0000:" + a
	}
	return a, nil
}

// device is a function's folder.
func (t Tree) device(addr string) string { return filepath.Join(t.Sys, "bus/pci/devices", addr) }

// drivers is the folder of the PCI drivers.
func (t Tree) drivers() string { return filepath.Join(t.Sys, "bus/pci/drivers") }

// driver is the driver that has a function now, "" where none has.
func (t Tree) driver(addr string) string { return base(t.device(addr), "driver") }

// write writes an attribute, and waits no longer than the context lasts: an unbind or a reset may wait in the
// kernel for a process that does not let go of the device.
func (t Tree) write(ctx context.Context, path, text string) error {
	w := t.Write
	if w == nil {
		w = writeAttribute
	}
	done := make(chan error, 1)
	go func() { done <- w(path, text) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: the kernel has not done it yet, and still may: %w", vfio.ErrTimeout, context.Cause(ctx))
	}
}

// writeAttribute writes in one write(2), as sysfs wants it, and never makes a file.
func writeAttribute(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// SetAttribute writes an attribute of sysfs, and waits no longer than the context lasts.
func (t Tree) SetAttribute(ctx context.Context, path, text string) error {
	return t.write(ctx, path, text+"\n")
}

// Command runs a program of the system to its end.
func (t Tree) Command(ctx context.Context, name string, args ...string) error {
	if t.Exec != nil {
		return t.Exec(ctx, name, args...)
	}
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(append([]string{name}, args...), " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// base is the last part of where a link points, "" where there is none.
func base(dir, link string) string {
	target, err := os.Readlink(filepath.Join(dir, link))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// maxAttribute bounds what is read of an attribute: sysfs gives a page at most.
const maxAttribute = 4096

func text(dir, file string) string {
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, maxAttribute)
	n, _ := f.Read(b)
	return strings.TrimSpace(string(b[:n]))
}

func number(dir, file string, none int) int {
	n, err := strconv.Atoi(text(dir, file))
	if err != nil {
		return none
	}
	return n
}

// exists tells whether there is a file or folder.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
