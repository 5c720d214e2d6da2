package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rnic/cmd/rnicctl/internal/archive"
	"rnic/vfio/pcidev"
)

// reportFile and reportGap are what an archive has and what it lacks.
type reportFile struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	What  string `json:"what"`
}

type reportGap struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// report collects what a bug report needs.
func (a *app) report() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "report", Short: "One archive for a bug report", Args: cobra.NoArgs,
		Long: `report writes one archive (tar, gzip) for a bug report: versions, list, doctor, of each card info, registers,
counters and queue pairs as rnicctl has them in JSON, what sysfs knows of it, the kernel's log lines about
VFIO and IOMMU, modules and their parameters, limits, and the files that set cards up. README.txt in it says what
is inside, and what could not be read and why. Names and order of the files are always the same.

There are no keys of memory regions in it, no payload, no frames. There are MAC addresses, GIDs and names of
processes that hold cards. A card that is free is opened for it, which resets it.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.reportRun(c.Context(), file) },
	}
	c.Flags().StringVarP(&file, "output", "o", "rnic-report.tar.gz", "file to write")
	return c
}

func (a *app) reportRun(ctx context.Context, file string) error {
	// The file first: nothing is asked for an archive that cannot be written.
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return usagef("name a file that can be written, with -o", "%w", err)
	}
	defer f.Close()
	b := archive.New("rnic-report")
	if err := a.collect(ctx, b); err != nil {
		return err
	}
	n, err := b.Write(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	out := struct {
		Schema  string       `json:"schema"`
		File    string       `json:"file"`
		Bytes   int64        `json:"bytes"`
		Files   []reportFile `json:"files"`
		Missing []reportGap  `json:"missing"`
	}{"rnic.report.v1", file, n, []reportFile{}, []reportGap{}}
	for _, e := range b.Files() {
		if e.Why != "" {
			out.Missing = append(out.Missing, reportGap{e.Name, e.Why})
			continue
		}
		out.Files = append(out.Files, reportFile{e.Name, len(e.Data), e.What})
	}
	if a.json {
		return a.printJSON(out)
	}
	fmt.Fprintf(a.out, "%s: %d files, %d bytes; README.txt in it says what is inside\n", file, len(out.Files), n)
	for _, m := range out.Missing {
		fmt.Fprintf(a.out, "  without %s: %s\n", m.Name, m.Why)
	}
	return nil
}

// collect asks for everything. Its error is the context's end.
func (a *app) collect(ctx context.Context, b *archive.Archive) error {
	a.command(ctx, b, "version.json", "this program", "version")
	a.command(ctx, b, "list.json", "every PCI function, and cards that processes hold", "list", "--all")
	a.command(ctx, b, "doctor.json", "what keeps cards from being used", "doctor")
	cards, err := a.cards(ctx, false)
	if err != nil {
		b.Missing("cards/", err.Error())
	}
	var addresses []string
	for i, c := range cards {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		dir := fmt.Sprintf("cards/%d/", i)
		for _, cmd := range []string{"info", "regs", "stats", "qp"} {
			name := dir + cmd + ".json"
			if c.State != pcidev.Ready && c.State != pcidev.Held {
				b.Missing(name, fmt.Sprintf("%s is %s", c.Address, c.State))
				continue
			}
			a.command(ctx, b, name, fmt.Sprintf("%s of %s", cmd, c.Address), cmd, "-d", c.Address)
		}
		if _, err := pcidev.ParseAddress(c.Address); err == nil {
			addresses = append(addresses, c.Address)
			archive.Function(b, a.pci, dir+"sysfs.txt", c.Address)
		}
	}
	archive.System(b, a.pci, addresses)
	var env strings.Builder
	for _, v := range []string{deviceVariable, pcidev.IDsVariable, "XDG_RUNTIME_DIR", "XDG_STATE_HOME"} {
		fmt.Fprintf(&env, "%s=%s\n", v, os.Getenv(v))
	}
	b.Add("environment.txt", "variables that rnicctl reads", []byte(env.String()))
	return ctx.Err()
}

// command runs a command of rnicctl with --json and keeps what it printed. What it could not do is in that, and said
// besides.
func (a *app) command(ctx context.Context, b *archive.Archive, name, what string, args ...string) {
	var out, errs bytes.Buffer
	sub := &app{out: &out, err: &errs, pci: a.pci, patient: a.patient}
	sub.main(ctx, append(args, "--json", "--timeout", a.timeout.String()))
	var failed failureJSON
	if json.Unmarshal(out.Bytes(), &failed) == nil && failed.Error.Message != "" {
		b.Missing(name, failed.Error.Message)
		return
	}
	b.Add(name, what, out.Bytes())
}
