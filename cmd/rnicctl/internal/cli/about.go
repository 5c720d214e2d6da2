package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"rnic/hw"
)

// version tells which rnicctl this is and which contract it speaks.
func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Which rnicctl this is, and the contract it speaks", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			version, revision := "(devel)", ""
			if bi, ok := debug.ReadBuildInfo(); ok {
				if bi.Main.Version != "" {
					version = bi.Main.Version
				}
				for _, s := range bi.Settings {
					if s.Key == "vcs.revision" {
						revision = s.Value
					}
				}
			}
			contract := fmt.Sprintf("%d.%d", hw.ContractMajor, hw.ContractMinor)
			if a.json {
				return a.printJSON(map[string]string{
					"schema": "rnic.version.v1", "version": version, "revision": revision,
					"contract": contract, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			fmt.Fprintf(a.out, "rnicctl %s, contract %s, %s %s/%s\n", version, contract, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

// completion writes a shell's completion script.
func (a *app) completion() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Completion script for a shell", ValidArgs: []string{"bash", "zsh", "fish"},
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.out)
			default:
				return c.Root().GenFishCompletion(a.out, true)
			}
		},
	}
}

// man writes the manual pages, one a command.
func (a *app) man() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a folder", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return usagef("name a folder that can be made", "%w", err)
			}
			// A fixed date keeps the pages reproducible.
			date := time.Unix(0, 0)
			h := &doc.GenManHeader{Section: "1", Source: "rnic", Manual: "rnicctl", Date: &date}
			if err := doc.GenManTree(c.Root(), h, args[0]); err != nil {
				return err
			}
			pages, err := filepath.Glob(filepath.Join(args[0], "*.1"))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"schema": "rnic.man.v1", "pages": pages})
			}
			fmt.Fprintf(a.out, "%d pages in %s\n", len(pages), args[0])
			return nil
		},
	}
}
