package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"rnic/test/vm/debian"
)

// Bookworm has yosys, and place and route for iCE40 only: nextpnr-ecp5 and ecppack are taken from trixie, unpacked with all
// that they need, and run there by their own dynamic linker. Nothing of them is installed.
const (
	suite   = "trixie"
	loader  = "/usr/lib64/ld-linux-x86-64.so.2"
	library = "/usr/lib/x86_64-linux-gnu"
)

var unpacked = []string{"nextpnr-ecp5", "fpga-trellis"}

// prepareLimit bounds the downloads, some 150 MB.
const prepareLimit = 20 * time.Minute

// prepare gives the folder with nextpnr-ecp5 and ecppack; it is made where it is not there, beside its place, and moved
// there whole.
func prepare(ctx context.Context, cache string) (dir string, err error) {
	dir = filepath.Join(cache, "ecp5")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("nextpnr-ecp5 is taken for amd64, and this is %s", runtime.GOARCH)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, prepareLimit, fmt.Errorf("not done in %v", prepareLimit))
	defer cancel()
	work := dir + ".work"
	a, err := debian.Open(ctx, filepath.Join(work, "apt"), suite)
	if err != nil {
		return "", err
	}
	debs, err := a.Closure(ctx, suite, unpacked...)
	if err != nil {
		return "", err
	}
	fresh := filepath.Join(work, "tree")
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	// nextpnr has a Python inside, which wants its library.
	keep := debian.Under("usr/bin/nextpnr-ecp5", "usr/bin/ecppack", "usr/lib", "usr/lib64", "usr/share/nextpnr", "usr/share/trellis")
	for _, deb := range debs {
		if err := debian.Unpack(ctx, deb, fresh, keep); err != nil {
			return "", err
		}
	}
	return dir, errors.Join(os.Rename(fresh, dir), os.RemoveAll(work))
}

// caged is the command line that runs one of the unpacked programs with the folder as its root directory: they look for the
// chips' data under /usr/share. Who is not root gets a user namespace for it.
func caged(dir, name string, args ...string) []string {
	command := []string{"unshare", "--user", "--map-root-user", "chroot", dir}
	if os.Geteuid() == 0 {
		command = []string{"chroot", dir}
	}
	return append(append(command, loader, "--library-path", library, "/usr/bin/"+name), args...)
}

// install makes sure that yosys is there: as root it is installed from Debian, else the error says how.
func install(ctx context.Context) error {
	if _, err := exec.LookPath("yosys"); err == nil {
		return nil
	}
	const line = "apt-get install -y --no-install-recommends yosys"
	if os.Geteuid() != 0 {
		return errors.New("yosys is missing; as root: " + line)
	}
	for _, command := range []string{"apt-get update", line} {
		words := strings.Fields(command)
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if log, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, log)
		}
	}
	return nil
}
