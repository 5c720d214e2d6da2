// Rnicsim serves soft cards over vfio-user, each on a UNIX socket, joined by a
// wire. A program opens one as vfio-user:PATH.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it ends with the context, well, or with an error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := command(stdout)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "rnicsim:", err)
		return exitCode(err)
	}
	return 0
}
