// Package cli is rnicctl's commands.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"rnic/cmd/rnicctl/internal/doctor"
	"rnic/vfio/pcidev"
)

// app is what every command shares: the global options and where output goes.
type app struct {
	out, err io.Writer
	json     bool
	device   string
	timeout  time.Duration
	verbose  bool
	color    string

	stream  bool                 // JSON objects one a line: the command prints many
	misled  error                // --help was asked of a command that is not there
	patient func(*doctor.Doctor) // what tests put before a doctor
	pci     pcidev.Tree          // where sysfs, procfs and the files of setup are
}

// Main runs rnicctl with args and gives its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return (&app{out: stdout, err: stderr, pci: pcidev.Host}).main(ctx, args)
}

func (a *app) main(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.misled
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil {
		err = &failure{exit: exitInterrupted, code: "interrupted", err: errors.New("interrupted")}
	}
	// A wrong option ends the reading of those behind it.
	a.json = a.json || slices.Contains(args, "--json")
	f := classify(err)
	f.report(a)
	return f.exit
}

func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "rnicctl",
		Short: "Set up and look at an RDMA NIC",
		Long: `rnicctl finds RDMA cards, shows what they are and what they do, also while a program
uses them, and runs the suites that check them.

A card is named by an address:
  0000:03:00.0       a PCI function, through the kernel's VFIO
  vfio-user:PATH     a soft card that another process serves, see rnicsim
  soft:[NAME]        a soft card inside this process`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.color != "auto" && a.color != "always" && a.color != "never" {
				return usagef("use auto, always or never", "--color %q is none of auto, always, never", a.color)
			}
			if a.timeout <= 0 {
				return usagef("give a time above zero, as 5s", "--timeout %v is not above zero", a.timeout)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("see "+c.CommandPath()+" --help", "%w", err)
	})
	p := c.PersistentFlags()
	p.BoolVar(&a.json, "json", false, "print JSON (schemas in docs/json)")
	p.StringVarP(&a.device, "device", "d", "", "card's address (default $RNIC_DEVICE, else the only card present)")
	p.DurationVar(&a.timeout, "timeout", 5*time.Second, "longest wait for one answer of a card")
	p.BoolVarP(&a.verbose, "verbose", "v", false, "log what the driver does to stderr")
	p.StringVar(&a.color, "color", "auto", "colour: auto (on terminals), always, never")
	c.CompletionOptions.DisableDefaultCmd = true
	// Cobra has help of the last command that it knows, and calls that well.
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, args []string) {
		if rest := c.Flags().Args(); c.HasSubCommands() && len(rest) > 0 {
			a.misled = unknown(c, rest[0])
			return
		}
		help(c, args)
	})
	c.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]...", Short: "Help about a command",
		RunE: func(h *cobra.Command, args []string) error {
			about, rest, err := h.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = unknown(about, rest[0])
			}
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	})
	c.AddCommand(a.commands()...)
	usageArgs(c)
	return c
}

// unknown is a command that c does not have.
func unknown(c *cobra.Command, name string) error {
	return usagef("see "+c.CommandPath()+" --help", "unknown command %q for %q", name, c.CommandPath())
}

// usageArgs makes wrong arguments of a command, and of those below it, a usage failure that says what it wants.
func usageArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			if err == nil {
				return nil
			}
			_, wants, _ := strings.Cut(c.Use, " ")
			switch {
			case c.HasSubCommands():
				return unknown(c, args[0])
			case wants == "":
				return usagef("leave it out; see "+c.CommandPath()+" --help", "%s takes no argument, and has %q", c.CommandPath(), args[0])
			case len(args) == 0:
				return usagef(c.CommandPath()+" "+wants+"; see "+c.CommandPath()+" --help", "%s wants an argument: %s", c.CommandPath(), wants)
			case len(c.ValidArgs) > 0 && len(args) == 1:
				return usagef("give "+wants, "%s does not know %q", c.CommandPath(), args[0])
			}
			return usagef(c.CommandPath()+" "+wants, "%s wants %s, and has %d arguments", c.CommandPath(), wants, len(args))
		}
	}
	for _, sub := range c.Commands() {
		usageArgs(sub)
	}
}

// logger is silent unless -v was given.
func (a *app) logger() *zap.Logger {
	if !a.verbose {
		return zap.NewNop()
	}
	cfg := zap.NewDevelopmentConfig()
	cfg.OutputPaths = []string{"stderr"}
	l, err := cfg.Build()
	if err != nil {
		return zap.NewNop()
	}
	return l
}

// colored tells whether output may carry colour: asked for, or on a terminal without NO_COLOR.
func (a *app) colored() bool {
	switch a.color {
	case "always":
		return true
	case "never":
		return false
	}
	return os.Getenv("NO_COLOR") == "" && a.terminal()
}

// terminal tells whether output goes to a terminal.
func (a *app) terminal() bool {
	f, ok := a.out.(*os.File)
	return ok && isTerminal(f)
}
