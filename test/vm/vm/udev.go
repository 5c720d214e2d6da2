package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"rnic/test/vm/debian"
)

// udevPart is Debian's udev, with the shell and grep that its rules run, and the tools for users and groups: what a guest
// needs to be a machine with ordinary users.
const udevPart = "udev"

var udevPackages = []string{"udev", "passwd", "login", "base-passwd", "dash", "grep"}

// buildUdev unpacks bookworm's packages with the libraries that they depend on. What their installation would make, which is
// /etc/passwd and /etc/group, comes from base-passwd's masters, as in an installation.
func buildUdev(ctx context.Context, work, dest string) error {
	a, err := debian.Open(ctx, filepath.Join(work, "apt"), "bookworm")
	if err != nil {
		return err
	}
	debs, err := a.Closure(ctx, "bookworm", udevPackages...)
	if err != nil {
		return err
	}
	keep := debian.Under("bin/dash", "bin/sh", "bin/grep", "bin/udevadm", "lib/systemd/systemd-udevd", "lib/systemd/network", "lib/udev", "lib64", "lib/x86_64-linux-gnu",
		"usr/sbin/groupadd", "usr/sbin/useradd", "usr/sbin/usermod", "usr/share/base-passwd", "etc/udev", "etc/login.defs", "etc/default/useradd")
	drop := debian.Under("lib/udev/hwdb.d")
	libraries := debian.Under("usr/lib/x86_64-linux-gnu")
	for _, deb := range debs {
		err := debian.Unpack(ctx, deb, dest, func(name string) bool {
			// Of these the libraries themselves, not folders of plugins.
			lib := libraries(name) && filepath.Dir(name) == "usr/lib/x86_64-linux-gnu"
			return keep(name) && !drop(name) || lib
		})
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"passwd", "group"} {
		text, err := os.ReadFile(filepath.Join(dest, "usr/share/base-passwd", name+".master"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dest, "etc", name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	for _, program := range []string{"lib/systemd/systemd-udevd", "bin/sh", "bin/grep", "usr/sbin/groupadd", "usr/sbin/useradd", "usr/sbin/usermod"} {
		if _, err := os.Lstat(filepath.Join(dest, program)); err != nil {
			return errors.Join(debian.ErrMirrorLacks, err)
		}
	}
	return nil
}
