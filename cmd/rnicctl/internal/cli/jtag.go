package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rnic/hw/image"
)

// jtagProgram writes a board's flash by JTAG.
const jtagProgram = "openFPGALoader"

// jtagTime bounds a write: the largest flashes take some minutes over a slow cable.
const jtagTime = 15 * time.Minute

// loadJTAG has openFPGALoader write a checked image.
func (a *app) loadJTAG(ctx context.Context, file string, im *image.Image, o *loading) error {
	if o.slot != image.AnySlot {
		return usagef("leave --slot out", "a flash that is written by JTAG has no slots")
	}
	if err := im.Manifest.For(im.Manifest.Part); err != nil {
		return err
	}
	board := o.board
	if board == "" {
		board = im.Manifest.Board
	}
	// A name that begins with a dash would be an option, and is nobody's.
	for _, name := range []string{board, o.cable} {
		if strings.HasPrefix(name, "-") {
			return usagef("name it as `openFPGALoader --list-boards` or `--list-cables` does", "%q is no name of a board or a cable", name)
		}
	}
	if board == "" {
		return usagef("name it with --board, as `openFPGALoader --list-boards` does", "the manifest names no board")
	}
	path, err := exec.LookPath(jtagProgram)
	if err != nil {
		return &failure{exit: exitLacks, code: "no-openfpgaloader", err: fmt.Errorf("%s is missing: %w", jtagProgram, err), fix: "as root: apt-get install openfpgaloader"}
	}
	j := loadJSON{
		Schema: "rnic.bitstream_load.v1", File: file, Address: "jtag:" + board, SHA256: im.Manifest.SHA256, By: "jtag",
		DryRun: o.dryRun, Reset: []rungJSON{},
	}
	switch {
	case o.dryRun:
		return a.showLoad(&j)
	case !o.yes:
		return notAgreed("the flash of board " + board)
	}
	// What was checked is what is written: a copy, with the name whose ending tells the program its form.
	dir, err := os.MkdirTemp("", "rnicctl-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	copied := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(copied, im.Data, 0o600); err != nil {
		return err
	}
	args := []string{"--board", board}
	if o.cable != "" {
		args = append(args, "--cable", o.cable)
	}
	if err := a.runJTAG(ctx, path, append(args, "--write-flash", "--verify", copied)); err != nil {
		return err
	}
	return a.showLoad(&j)
}

// runJTAG runs the program, whose own progress is shown.
func (a *app) runJTAG(ctx context.Context, path string, args []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, jtagTime, fmt.Errorf("not done in %v", jtagTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if !a.json {
		cmd.Stdout = io.MultiWriter(a.err, &said)
		cmd.Stderr = cmd.Stdout
	}
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	const most = 2000
	text := strings.TrimSpace(said.String())
	return &failure{
		exit: exitFound, code: "jtag-failed", err: fmt.Errorf("%s %s: %w: %s", jtagProgram, strings.Join(args, " "), err, text[max(0, len(text)-most):]),
		fix: "see that the board has power and its cable is there (`openFPGALoader --detect`), then load again: the flash may hold a part of the image",
	}
}
