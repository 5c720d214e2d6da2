package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"rnic/test/vm/port"
)

// initramfs writes the guest's root: init, its job, modules, the payload, and files.
func (g *Guest) initramfs(kernel, udev string) error {
	c := &g.cfg
	init, err := Build(g.ctx, "./test/vm/init")
	if err != nil {
		return err
	}
	job := port.Job{Command: append([]string{"/payload"}, c.Args...), Env: c.environment()}
	if !c.NoBind {
		for i := range c.Cards {
			job.Bind = append(job.Bind, c.Card(i))
		}
	}
	if c.BindDevices {
		for i := range c.Devices {
			job.Bind = append(job.Bind, c.Function(i))
		}
	}
	overlay := ""
	if c.VFIO != Type1 {
		overlay = kernel + "/rebuilt"
	}
	modules, err := findModules(kernel+"/modules", overlay, c.modules())
	if err != nil {
		return err
	}
	f, err := os.Create(g.path("initramfs"))
	if err != nil {
		return err
	}
	defer f.Close()
	w := newArchive(f)
	w.file("init", init, 0o755)
	w.file("payload", c.Binary, 0o755)
	for _, m := range modules {
		name := "modules/" + m.name + ".ko"
		w.file(name, m.file, 0o644)
		job.Modules = append(job.Modules, port.Module{File: "/" + name, Args: c.ModuleArgs[m.name]})
	}
	if udev != "" {
		w.tree(".", udev)
	}
	for _, to := range slices.Sorted(maps.Keys(c.Files)) {
		w.tree(strings.TrimPrefix(path.Clean(to), "/"), c.Files[to])
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	w.bytes(port.JobFile[1:], text, 0o644)
	return w.close()
}

// environment is the payload's.
func (c *Config) environment() []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "RNIC_VM=" + c.Kernel, "RNIC_VM_VFIO=" + c.VFIO, "RNIC_VM_IOMMU=" + c.IOMMU}
	var cards, devices []string
	for i := range c.Cards {
		cards = append(cards, c.Card(i))
	}
	for i := range c.Devices {
		devices = append(devices, c.Function(i))
	}
	env = append(env, "RNIC_VM_CARDS="+strings.Join(cards, ","), "RNIC_VM_DEVICES="+strings.Join(devices, ","))
	for _, name := range []string{"RNIC_FULL", "CI"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, c.Env...)
}

// modules are those that VFIO needs, and those asked for.
func (c *Config) modules() []string {
	m := []string{"vfio-pci"}
	if c.IOMMU == Virtio {
		m = append([]string{"virtio-iommu"}, m...)
	}
	if c.VFIO == Type1 {
		m = append(m, "vfio_iommu_type1")
	} else {
		m = append(m, "iommufd", "vfio_iommu_type1") // all ways, as a machine with a newer kernel has them
	}
	return append(m, c.Modules...)
}

// archive is a cpio archive of the form "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
// The first error stays.
type archive struct {
	w     *bufio.Writer
	off   int64
	ino   int
	made  map[string]bool // folders
	first error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), made: map[string]bool{".": true}}
}

func (a *archive) fail(err error) {
	if a.first == nil {
		a.first = err
	}
}

// Types of a file, in its mode.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioLink = 0o120000
)

// entry writes a header, a name and size bytes of r.
func (a *archive) entry(name string, mode, size int64, r io.Reader) {
	if a.first != nil {
		return
	}
	if name != trailer {
		a.folder(path.Dir(name))
	}
	a.ino++
	// magic ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
	n, err := fmt.Fprintf(a.w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.off += int64(n)
	a.fail(err)
	a.pad()
	copied, err := io.CopyN(a.w, r, size)
	a.off += copied
	if err != nil {
		a.fail(fmt.Errorf("%s: %w", name, err))
	}
	a.pad()
}

// pad fills up to four bytes.
func (a *archive) pad() {
	for ; a.off%4 != 0; a.off++ {
		a.fail(a.w.WriteByte(0))
	}
}

// folder makes a folder and those above it.
func (a *archive) folder(name string) {
	if a.made[name] {
		return
	}
	a.made[name] = true
	a.entry(name, cpioDir|0o755, 0, strings.NewReader(""))
}

func (a *archive) bytes(name string, text []byte, mode fs.FileMode) {
	a.entry(name, cpioFile|int64(mode.Perm()), int64(len(text)), strings.NewReader(string(text)))
}

func (a *archive) file(name, from string, mode fs.FileMode) {
	f, err := os.Open(from)
	if err != nil {
		a.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.fail(err)
		return
	}
	a.entry(name, cpioFile|int64(mode.Perm()), info.Size(), f)
}

// tree puts in a file, or a folder with all under it.
func (a *archive) tree(name, from string) {
	a.fail(filepath.WalkDir(from, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		to := path.Join(name, rest)
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode.IsDir():
			a.folder(to)
		case mode.IsRegular():
			a.file(to, file, mode)
		case mode&fs.ModeSymlink != 0:
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			a.entry(to, cpioLink|0o777, int64(len(target)), strings.NewReader(target))
		default:
			return fmt.Errorf("%s is no file, folder or link", file)
		}
		return a.first
	}))
}

const trailer = "TRAILER!!!"

func (a *archive) close() error {
	a.entry(trailer, 0, 0, strings.NewReader(""))
	if a.first != nil {
		return fmt.Errorf("initramfs: %w", a.first)
	}
	return a.w.Flush()
}

// built are the programs that this process has built.
var built sync.Map

// Build builds a program of the module, static, and gives its file.
func Build(ctx context.Context, pkg string) (string, error) { return build(ctx, pkg, "build") }

// BuildTest builds a package's tests as a static program, and gives its file.
func BuildTest(ctx context.Context, pkg string) (string, error) { return build(ctx, pkg, "test", "-c") }

func build(ctx context.Context, pkg string, how ...string) (string, error) {
	type result struct {
		file string
		err  error
	}
	once, _ := built.LoadOrStore(strings.Join(append(how, pkg), " "), sync.OnceValue(func() result {
		root, err := moduleRoot()
		if err != nil {
			return result{"", err}
		}
		name := strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "-")
		if how[0] == "test" {
			name += ".test"
		}
		dir := filepath.Join(root, ".cache", "bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return result{"", err}
		}
		// Moved to its place: another process may be starting the one that is there.
		file := filepath.Join(dir, name)
		fresh := fmt.Sprintf("%s.%d", file, os.Getpid())
		line := append(append([]string{"go"}, how...), "-o", fresh, pkg)
		if _, err := command(ctx, root, []string{"CGO_ENABLED=0"}, line...); err != nil {
			return result{"", fmt.Errorf("build %s: %w", pkg, err)}
		}
		return result{file, os.Rename(fresh, file)}
	}))
	r := once.(func() result)()
	return r.file, r.err
}
