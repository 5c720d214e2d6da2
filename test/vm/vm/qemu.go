package vm

import (
	"bytes"
	"context"
	"fmt"

	"rnic/test/vm/debian"
)

// qemuCommand is QEMU out of its folder, run by the dynamic linker and with the libraries that were unpacked with it.
func qemuCommand(dir string) []string {
	return []string{dir + "/usr/lib64/ld-linux-x86-64.so.2", "--library-path", dir + "/usr/lib/x86_64-linux-gnu",
		dir + "/usr/bin/qemu-system-x86_64", "-L", dir + "/usr/share/qemu", "-L", dir + "/usr/share/seabios"}
}

// qemuEnv keeps it from modules of a QEMU that is installed.
func qemuEnv(dir string) []string {
	return []string{"QEMU_MODULE_DIR=" + dir + "/usr/lib/x86_64-linux-gnu/qemu"}
}

// vfioUserPCI asks QEMU whether it has the device.
func vfioUserPCI(ctx context.Context, dir string) error {
	out, err := command(ctx, "", qemuEnv(dir), append(qemuCommand(dir), "-device", "vfio-user-pci,help")...)
	if bytes.Contains(out, []byte("not found")) || bytes.Contains(out, []byte("not a valid device")) {
		version, _ := command(ctx, "", qemuEnv(dir), append(qemuCommand(dir), "-version")...)
		return fmt.Errorf("%s has no device vfio-user-pci, which 10.1 brought: %w", bytes.SplitN(version, []byte("\n"), 2)[0], debian.ErrMirrorLacks)
	}
	return err
}
