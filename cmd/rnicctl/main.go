// Command rnicctl sets up and looks at an RDMA NIC: it finds cards, shows what they are and
// what they do, also while a program uses them, and runs the suites that check them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"rnic/cmd/rnicctl/internal/cli"
	_ "rnic/hw/softcard/soft" // the address scheme soft:
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
