package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"rnic/test/vm/debian"
)

// CacheVariable names the environment variable with the folder of what was prepared; without it that is .cache/vm at
// the module's root.
const CacheVariable = "RNIC_VM_CACHE"

// layout is the version of what the parts hold and how it was made: others are made anew.
const layout = 1

// prepareLimit bounds the preparation of a part: downloads of some 200 MB and a minute of gcc.
const prepareLimit = 20 * time.Minute

// A part is one folder of the cache.
type part struct {
	name  string
	build func(ctx context.Context, work, dest string) error
	extra bool // not among all parts
}

var parts = []part{
	{name: "qemu", build: buildQEMU},
	{name: Kernel61, build: buildKernel61},
	{name: Kernel612, build: buildKernel612},
	{name: udevPart, build: buildUdev},
	{name: Perftest, build: buildPerftest, extra: true},
}

// Perftest is the part with bookworm's perftest and all that it needs, as a guest's root has it.
const Perftest = "perftest"

// manifest is a part's list of files, in its folder.
type manifest struct {
	Layout int               `json:"layout"`
	Files  map[string]string `json:"files"` // SHA-256, or "-> TARGET" of a link
}

const manifestName = "manifest.json"

// Prepare brings parts of the cache, side by side: where none is named "qemu", "6.1", "6.12" and "udev". What is there and whole is
// left as it is. say gets a line for each step, from several goroutines.
func Prepare(ctx context.Context, say func(string), names ...string) error {
	cache, err := cacheFolder()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		for _, p := range parts {
			if !p.extra {
				names = append(names, p.name)
			}
		}
	}
	all := make([]error, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() { _, all[i] = prepare(ctx, cache, name, say) })
	}
	wait.Wait()
	return errors.Join(all...)
}

// Part prepares a part and gives its folder, which is not to be changed.
func Part(ctx context.Context, name string, say func(string)) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	return prepare(ctx, cache, name, say)
}

// prepared are the parts that this process has looked through.
var prepared sync.Map

// prepare gives the folder of a part that is whole. Processes that want the same part wait for the one that makes it.
func prepare(ctx context.Context, cache, name string, say func(string)) (string, error) {
	dest := filepath.Join(cache, name)
	if _, ok := prepared.Load(dest); ok {
		return dest, nil
	}
	fail := func(err error) (string, error) { return "", fmt.Errorf("prepare %s: %w", name, err) }
	if runtime.GOARCH != "amd64" {
		return fail(fmt.Errorf("the virtual machine's programs are for amd64, and this is %s", runtime.GOARCH))
	}
	var build func(context.Context, string, string) error
	for _, p := range parts {
		if p.name == name {
			build = p.build
		}
	}
	if build == nil {
		return fail(errors.New("there is no such part"))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, prepareLimit, fmt.Errorf("not done in %v", prepareLimit))
	defer cancel()
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fail(err)
	}
	unlock, err := lock(ctx, dest+".lock")
	if err != nil {
		return fail(err)
	}
	defer unlock()
	began := time.Now()
	if err := check(dest); err == nil {
		say(fmt.Sprintf("%s: there (%.1f s)", name, time.Since(began).Seconds()))
		prepared.Store(dest, true)
		return dest, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		say(fmt.Sprintf("%s: made anew: %v", name, err))
	}
	// It is made beside its place, and moved there whole. What an interrupted one left is removed, but for downloads,
	// which apt verifies.
	work, fresh := dest+".work", dest+".work/tree"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil {
		return fail(err)
	}
	if err := build(ctx, work, fresh); err != nil {
		return fail(err)
	}
	if err := seal(fresh); err != nil {
		return fail(err)
	}
	if err := errors.Join(os.RemoveAll(dest), os.Rename(fresh, dest), os.RemoveAll(work)); err != nil {
		return fail(err)
	}
	say(fmt.Sprintf("%s: made (%.1f s)", name, time.Since(began).Seconds()))
	prepared.Store(dest, true)
	return dest, nil
}

// cacheFolder is where the parts are.
func cacheFolder() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := moduleRoot()
	return filepath.Join(root, ".cache", "vm"), err
}

// moduleRoot is the folder of go.mod, at or above the working folder.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not in a clone of the module: no go.mod at or above it", dir)
		}
	}
}

// lock takes a file's lock, which ends with the process.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("%s is held by another process: %w", file, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// seal writes the manifest of a folder.
func seal(dir string) error {
	files, err := digests(dir)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(manifest{Layout: layout, Files: files}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestName), text, 0o644)
}

// check compares a folder with its manifest. A folder that is not there is fs.ErrNotExist.
func check(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("its manifest: %w", err)
	}
	if m.Layout != layout {
		return fmt.Errorf("its layout is %d, this program's is %d", m.Layout, layout)
	}
	files, err := digests(dir)
	if err != nil {
		return err
	}
	for name, want := range m.Files {
		if files[name] != want {
			return fmt.Errorf("%s was changed", name)
		}
	}
	if len(files) != len(m.Files) {
		return fmt.Errorf("it has %d files, its manifest %d", len(files), len(m.Files))
	}
	return nil
}

// digests reads all files of a folder, as many at a time as there are processors.
func digests(dir string) (map[string]string, error) {
	var (
		mu    sync.Mutex
		all   sync.WaitGroup
		first error
		files = map[string]string{}
		slots = make(chan struct{}, runtime.GOMAXPROCS(0))
	)
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := strings.TrimPrefix(file, dir+"/")
		if name == manifestName {
			return nil
		}
		if e.Type()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(file)
			mu.Lock()
			files[name] = "-> " + to
			mu.Unlock()
			return err
		}
		slots <- struct{}{}
		all.Go(func() {
			sum, err := digest(file)
			mu.Lock()
			files[name] = sum
			first = errors.Join(first, err)
			mu.Unlock()
			<-slots
		})
		return nil
	})
	all.Wait()
	return files, errors.Join(err, first)
}

func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// buildQEMU unpacks QEMU with the libraries that it depends on, down to the dynamic linker: it runs on any distribution.
// QEMU has the device vfio-user-pci from version 10.1 on, which trixie-backports has.
func buildQEMU(ctx context.Context, work, dest string) error {
	a, err := debian.Open(ctx, filepath.Join(work, "apt"), "trixie", "trixie-backports")
	if err != nil {
		return err
	}
	debs, err := a.Closure(ctx, "trixie-backports", "qemu-system-x86")
	if err != nil {
		return err
	}
	keep := debian.Under("usr/bin/qemu-system-x86_64", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/share/qemu", "usr/share/seabios")
	for _, deb := range debs {
		if err := debian.Unpack(ctx, deb, dest, keep); err != nil {
			return err
		}
	}
	return vfioUserPCI(ctx, dest)
}

// buildPerftest unpacks perftest, the RDMA stack's own measure, with libraries and the provider for soft-RoCE.
func buildPerftest(ctx context.Context, work, dest string) error {
	a, err := debian.Open(ctx, filepath.Join(work, "apt"), "bookworm")
	if err != nil {
		return err
	}
	debs, err := a.Closure(ctx, "bookworm", "perftest", "ibverbs-providers")
	if err != nil {
		return err
	}
	keep := debian.Under("usr/bin/ib_write_bw", "usr/lib/x86_64-linux-gnu", "lib", "lib64", "etc/libibverbs.d")
	for _, deb := range debs {
		err := debian.Unpack(ctx, deb, dest, func(name string) bool { return keep(name) && !strings.Contains(name, "/gconv/") })
		if err != nil {
			return err
		}
	}
	return nil
}
