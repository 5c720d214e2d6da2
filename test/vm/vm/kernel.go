package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"rnic/test/vm/debian"
)

// The guest kernels, Debian's.
const (
	Kernel61  = "6.1"  // of bookworm: VFIO by container and group
	Kernel612 = "6.12" // of bookworm-backports, with iommufd and VFIO's character device rebuilt as modules
)

// What is kept of a kernel's modules: what tests load, and what those depend on.
var moduleFolders = []string{
	"arch/x86/crypto", "crypto", "lib", "virt",
	"drivers/char", "drivers/dca", "drivers/i2c", "drivers/infiniband/core", "drivers/infiniband/sw", "drivers/iommu", "drivers/net/dummy.ko", "drivers/net/dummy.ko.xz",
	"drivers/net/ethernet/intel/e1000e", "drivers/net/veth.ko", "drivers/net/veth.ko.xz", "drivers/pps", "drivers/ptp", "drivers/uio", "drivers/vfio", "drivers/virtio",
	"net/core", "net/ipv4", "net/ipv6", "net/802",
}

// A kernel's folder holds vmlinuz, modules/ as the package has them, and rebuilt/ with those that go before them for
// iommufd.
func buildKernel61(ctx context.Context, work, dest string) error {
	a, err := debian.Open(ctx, filepath.Join(work, "apt"), "bookworm")
	if err != nil {
		return err
	}
	image, err := newest(ctx, a, "linux-image-amd64", "bookworm", "linux-image-")
	if err != nil {
		return err
	}
	debs, err := a.Download(ctx, image)
	if err != nil {
		return err
	}
	_, err = unpackImage(ctx, debs[0], dest, "xz")
	return err
}

const backports = "bookworm-backports"

func buildKernel612(ctx context.Context, work, dest string) error {
	for _, program := range []string{"gcc", "make", "ld"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing, and modules have to be built: install gcc and make (%w)", program, err)
		}
	}
	if strings.ContainsAny(dest, " \t:#$%") {
		return fmt.Errorf("the kernel's build cannot stand in %s: set %s to a folder without blanks", dest, CacheVariable)
	}
	a, err := debian.Open(ctx, filepath.Join(work, "apt"), "bookworm", backports)
	if err != nil {
		return err
	}
	image, err := newest(ctx, a, "linux-image-cloud-amd64", backports, "linux-image-")
	if err != nil {
		return err
	}
	headers, err := newest(ctx, a, "linux-headers-cloud-amd64", backports, "linux-headers-")
	if err != nil {
		return err
	}
	source, err := newest(ctx, a, "linux-source", backports, "linux-source-")
	if err != nil {
		return err
	}
	release := strings.TrimSuffix(strings.TrimPrefix(image.Name, "linux-image-"), "-cloud-amd64")
	if image.Version != headers.Version || image.Version != source.Version || headers.Name != "linux-headers-"+release+"-cloud-amd64" {
		return fmt.Errorf("%v, %v and %v do not agree in version (the mirror may be in the midst of an update): %w", image, headers, source, debian.ErrMirrorLacks)
	}
	common := debian.Package{Name: "linux-headers-" + release + "-common", Version: headers.Version}
	debs, err := a.Download(ctx, image, headers, common, source)
	if err != nil {
		return err
	}
	tools, err := a.Closure(ctx, backports, "linux-kbuild-"+release, "xz-utils")
	if err != nil {
		return err
	}

	build := filepath.Join(work, "build")
	if err := errors.Join(os.RemoveAll(build), os.MkdirAll(build, 0o755)); err != nil {
		return err
	}
	for _, deb := range append(tools, debs[1], debs[2]) {
		if strings.HasPrefix(filepath.Base(deb), "libc6_") {
			continue // the programs run with the machine's C library, as gcc does
		}
		if err := debian.Unpack(ctx, deb, build, debian.All); err != nil {
			return err
		}
	}
	xz := filepath.Join(build, "usr/bin/xz")
	if _, err := unpackImage(ctx, debs[0], dest, xz); err != nil {
		return err
	}
	if err := unpackSource(ctx, debs[3], filepath.Join(build, "source"), xz); err != nil {
		return err
	}
	return rebuild(ctx, build, release, filepath.Join(dest, "rebuilt"))
}

// newest resolves a metapackage to the package of the kernel that it stands for.
func newest(ctx context.Context, a *debian.Archive, meta, suite, prefix string) (debian.Package, error) {
	p, err := a.Show(ctx, meta, suite)
	if err != nil {
		return p, err
	}
	return p.Exact(prefix)
}

var compressed = regexp.MustCompile(`\.ko\.(xz|zst|gz)$`)

// unpackImage takes the kernel and modules out of an image's package. Newer ones have modules compressed.
func unpackImage(ctx context.Context, deb, dest, xz string) (release string, err error) {
	tree := dest + "/image"
	err = debian.Unpack(ctx, deb, tree, func(name string) bool {
		if strings.HasPrefix(name, "boot/vmlinuz-") || strings.HasSuffix(name, "/modules.builtin") {
			return true
		}
		_, inside, ok := strings.Cut(name, "/kernel/")
		return ok && debian.Under(moduleFolders...)(inside)
	})
	if err != nil {
		return "", err
	}
	images, err := filepath.Glob(tree + "/boot/vmlinuz-*")
	if err != nil || len(images) != 1 {
		return "", fmt.Errorf("%s has kernels %q, want one (%v)", filepath.Base(deb), images, err)
	}
	release = strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	if err := os.Rename(images[0], dest+"/vmlinuz"); err != nil {
		return "", err
	}
	for _, lib := range []string{"/lib/modules/", "/usr/lib/modules/"} {
		if err = os.Rename(tree+lib+release, dest+"/modules"); err == nil {
			break
		}
	}
	if err := errors.Join(err, os.RemoveAll(tree)); err != nil {
		return "", err
	}
	var pressed []string
	err = filepath.WalkDir(dest+"/modules", func(file string, _ fs.DirEntry, err error) error {
		if compressed.MatchString(file) {
			pressed = append(pressed, file)
		}
		return err
	})
	if err != nil || len(pressed) == 0 {
		return release, err
	}
	_, err = command(ctx, "", libraries(xz), append([]string{xz, "-d"}, pressed...)...)
	return release, err
}

// libraries lets a program of an unpacked package find the libraries that were unpacked with it.
func libraries(program string) []string {
	root := strings.TrimSuffix(filepath.Dir(program), "/usr/bin")
	return []string{"LD_LIBRARY_PATH=" + root + "/usr/lib/x86_64-linux-gnu:" + root + "/lib/x86_64-linux-gnu"}
}

// unpackSource takes the drivers to rebuild out of the source's package, which holds a compressed archive.
func unpackSource(ctx context.Context, deb, dest, xz string) error {
	found := false
	err := debian.Files(ctx, deb, func(t *tar.Reader) error {
		for {
			h, err := t.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if !strings.HasSuffix(h.Name, ".tar.xz") || strings.Contains(filepath.Base(h.Name), "patch") {
				continue
			}
			found = true
			cmd := exec.CommandContext(ctx, xz, "-dc", "-T0")
			cmd.Env, cmd.Stdin = append(os.Environ(), libraries(xz)...), t
			err = debian.Pipe(cmd, func(r io.Reader) error {
				return debian.Untar(tar.NewReader(r), dest, func(name string) bool {
					_, inside, _ := strings.Cut(name, "/")
					return debian.Under("drivers/iommu", "drivers/vfio", "lib/interval_tree.c")(inside)
				})
			})
			if err != nil {
				return err
			}
			return debian.Stop()
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("%s holds no source", filepath.Base(deb))
	}
	if err != nil {
		return err
	}
	tops, err := filepath.Glob(dest + "/*")
	if err != nil || len(tops) != 1 {
		return fmt.Errorf("the source has the folders %q at its top, want one (%v)", tops, err)
	}
	return os.Rename(tops[0], dest+".d")
}

// rebuiltModules are built together: struct vfio_device has other members with the character device.
var rebuiltModules = []string{"iommufd/iommufd", "vfio/vfio", "vfio/vfio_iommu_type1", "vfio/pci/vfio-pci-core", "vfio/pci/vfio-pci"}

// The options that Debian's kernel has not and that need nothing in the kernel itself. They are given to make and to the
// compiler, since the headers' autoconf.h has them off.
var rebuiltOptions = []struct{ name, value string }{
	{"IOMMUFD", "m"}, {"VFIO_DEVICE_CDEV", "y"}, {"INTERVAL_TREE_SPAN_ITER", "y"},
}

var spanIter = regexp.MustCompile(`(?s)#ifdef CONFIG_INTERVAL_TREE_SPAN_ITER\n(.*?)\n#endif`)

// rebuild builds iommufd and VFIO out of the kernel's tree against its headers.
func rebuild(ctx context.Context, build, release, dest string) error {
	source, mod := build+"/source.d", build+"/mod"
	headers := build + "/usr/src/linux-headers-" + release + "-cloud-amd64"
	for _, d := range [][2]string{{source + "/drivers/iommu/iommufd", mod + "/iommufd"}, {source + "/drivers/vfio", mod + "/vfio"}} {
		if err := os.CopyFS(d[1], os.DirFS(d[0])); err != nil {
			return err
		}
	}
	// iommufd includes the IOMMU core's private headers from the folder above it.
	private, err := filepath.Glob(source + "/drivers/iommu/*.h")
	if err != nil {
		return err
	}
	for _, h := range private {
		if err := os.Rename(h, filepath.Join(mod, filepath.Base(h))); err != nil {
			return err
		}
	}
	// The kernel has the span iterator only where iommufd is configured: it goes into the module.
	tree, err := os.ReadFile(source + "/lib/interval_tree.c")
	if err != nil {
		return err
	}
	m := spanIter.FindSubmatch(tree)
	if m == nil {
		return errors.New("lib/interval_tree.c has no span iterator where it is looked for")
	}
	iter := regexp.MustCompile(`(?m)^EXPORT_SYMBOL.*$`).ReplaceAll(m[1], nil)
	makefile, err := os.ReadFile(mod + "/iommufd/Makefile")
	if err != nil {
		return err
	}
	options, flags := []string{"CONFIG_DEBUG_INFO_BTF_MODULES="}, "" // their BTF would need the kernel's vmlinux
	for _, o := range rebuiltOptions {
		name := "CONFIG_" + o.name
		options = append(options, name+"="+o.value)
		if o.value == "m" {
			name += "_MODULE"
		}
		flags += " -D" + name + "=1"
	}
	for name, text := range map[string][]byte{
		mod + "/iommufd/span_iter.c": append([]byte("#include <linux/interval_tree.h>\n"), iter...),
		mod + "/iommufd/Makefile":    append(makefile, "\niommufd-y += span_iter.o\n"...),
		mod + "/Kbuild":              []byte("obj-m += iommufd/ vfio/\n"),
		headers + "/Makefile":        []byte("include " + build + "/usr/src/linux-headers-" + release + "-common/Makefile\n"),
	} {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	line := append([]string{"make", "-s", "-C", headers, "M=" + mod, fmt.Sprintf("-j%d", runtime.GOMAXPROCS(0)), "KCFLAGS=" + flags, "modules"}, options...)
	if _, err := command(ctx, "", libraries(build+"/usr/bin/xz"), line...); err != nil {
		return err
	}
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return err
	}
	for _, m := range rebuiltModules {
		ko := filepath.Join(dest, filepath.Base(m)+".ko")
		if err := os.Rename(mod+"/"+m+".ko", ko); err != nil {
			return err
		}
		if _, err := command(ctx, "", nil, "strip", "-g", ko); err != nil {
			return err
		}
	}
	return nil
}

// command runs a program, and gives what it prints; with an error its end.
func command(ctx context.Context, dir string, env []string, line ...string) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	const most = 4000
	said := strings.TrimSpace(out.String())
	if len(said) > most {
		said = "…" + said[len(said)-most:]
	}
	return out.Bytes(), fmt.Errorf("%s: %w: %s", line[0], err, said)
}
