// Command vm prepares and runs virtual machines in which the kernel's VFIO drives soft cards; docs/vm.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"rnic/test/vm/vm"
)

const usage = `usage: vm prepare [qemu|6.1|6.12 ...]
       vm run [flags] BINARY [ARGS]`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	say := func(line string) { fmt.Fprintln(stderr, line) }
	switch {
	case len(args) > 0 && args[0] == "prepare":
		return 0, vm.Prepare(ctx, say, args[1:]...)
	case len(args) > 0 && args[0] == "run":
		return guest(ctx, args[1:], say, stdout, stderr)
	}
	return 0, errors.New(usage)
}

// list is a flag that can be repeated.
type list []string

func (l *list) String() string     { return fmt.Sprint(*l) }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// guest runs a guest, and gives the payload's exit code.
func guest(ctx context.Context, args []string, say func(string), stdout, stderr io.Writer) (int, error) {
	var c vm.Config
	var devices, modules, moduleArgs, kernelArgs, env, files list
	f := flag.NewFlagSet("vm run", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&c.Kernel, "kernel", "", "6.1 or 6.12; without it the one that --vfio needs")
	f.StringVar(&c.IOMMU, "iommu", vm.Intel, "intel, virtio (6.12), amd (6.1) or none")
	f.StringVar(&c.VFIO, "vfio", vm.Type1, "type1, iommufd or compat (6.12)")
	f.IntVar(&c.Cards, "cards", 0, "soft cards, joined by a wire")
	f.Var(&devices, "device", "one more PCI function, as QEMU's -device takes it, bound to vfio-pci (repeatable)")
	f.Var(&modules, "module", "one more kernel module (repeatable)")
	f.Var(&moduleArgs, "module-arg", "MODULE:PARAMETERS of a kernel module (repeatable)")
	f.Var(&kernelArgs, "kernel-arg", "one more argument of the kernel (repeatable)")
	f.Var(&env, "env", "NAME=VALUE in the payload's environment (repeatable)")
	f.Var(&files, "file", "PATH=FILE: a file or a folder that stands at PATH in the guest (repeatable)")
	f.BoolVar(&c.NoBind, "no-bind", false, "leave cards and functions without vfio-pci")
	f.BoolVar(&c.Udev, "udev", false, "put Debian's udev into the guest")
	f.BoolVar(&c.RootPorts, "root-ports", false, "put each card behind a root port")
	f.IntVar(&c.MemoryMB, "memory", 0, "the guest's memory in MiB")
	f.IntVar(&c.CPUs, "cpus", 0, "the guest's processors")
	f.IntVar(&c.HugePages, "huge-pages", 0, "pages of 2 MiB to set aside")
	f.DurationVar(&c.Limit, "limit", 5*time.Minute, "how long the guest may live")
	f.StringVar(&c.Trace, "trace", "", "file for QEMU's trace of vfio-user messages")
	log := f.Bool("log", false, "print the guest's kernel log")
	if err := f.Parse(args); err != nil {
		return 0, err
	}
	if f.NArg() == 0 {
		return 0, errors.New(usage)
	}
	c.Devices, c.BindDevices, c.Modules, c.KernelArgs, c.Env = devices, !c.NoBind, modules, kernelArgs, env
	c.ModuleArgs = map[string]string{}
	for _, m := range moduleArgs {
		name, args, ok := strings.Cut(m, ":")
		if !ok {
			return 0, fmt.Errorf("--module-arg %s: want MODULE:PARAMETERS", m)
		}
		c.ModuleArgs[name] = args
	}
	c.Files = map[string]string{}
	for _, file := range files {
		to, from, ok := strings.Cut(file, "=")
		if !ok {
			return 0, fmt.Errorf("--file %s: want PATH=FILE", file)
		}
		c.Files[to] = from
	}
	c.Binary, c.Args, c.Say = f.Arg(0), f.Args()[1:], say
	r, err := vm.Run(ctx, c)
	_, _ = stdout.Write(r.Stdout)
	_, _ = stderr.Write(r.Stderr)
	if err != nil {
		return 0, err
	}
	if *log {
		fmt.Fprint(stderr, r.Kernel)
	}
	verdict := fmt.Sprintf("exit code %d", r.Exit)
	if r.Signal != "" {
		verdict = r.Signal
	}
	say(fmt.Sprintf("%s: %s; payload after %.1f s, all %.1f s", r.Guest, verdict, r.Boot, r.Took.Seconds()))
	if r.Signal != "" {
		return 1, nil
	}
	return r.Exit, nil
}
