// Command vm prepares and runs virtual machines in which the kernel's VFIO drives soft cards; docs/vm.md describes it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"rnic/test/vm/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "prepare" {
		return vm.Prepare(ctx, func(line string) { fmt.Println(line) }, args[1:]...)
	}
	return fmt.Errorf("usage: vm prepare [PART ...]")
}
