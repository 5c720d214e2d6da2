package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// maxOutput bounds what is kept of one stream of a program, in bytes.
const maxOutput = 4 << 20

// tool runs rnicctl on one card.
type tool struct {
	program string
	answer  time.Duration // --timeout
	trace   func(a *answer)
}

// answer is what one run of a program left.
type answer struct {
	args     []string
	out, err clip
	code     int
	took     time.Duration
	failed   error // it did not run to its end: not started, killed at its deadline, interrupted
}

// failure is what rnicctl says of a command that could not do its work.
type failure struct{ Code, Message, Fix string }

// run runs rnicctl with args and --json, for at most limit.
func (t *tool) run(ctx context.Context, limit time.Duration, args ...string) *answer {
	args = append(args, "--json", "--timeout", t.answer.String())
	a := runProgram(ctx, limit, t.program, args...)
	if t.trace != nil {
		t.trace(a)
	}
	return a
}

// runProgram runs a program with everything that it starts: asked to end at the limit, and killed 10 s later.
// It dies with this process.
func runProgram(ctx context.Context, limit time.Duration, program string, args ...string) *answer {
	a := &answer{args: args, out: clip{limit: maxOutput}, err: clip{limit: maxOutput}}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done in %v", limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &a.out, &a.err
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	began := time.Now()
	err := cmd.Run()
	a.took = time.Since(began)
	if cmd.Process != nil { // what it left behind, were it to ignore the signal
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		a.failed = context.Cause(ctx)
	case errors.As(err, &exit) && exit.Exited():
		a.code = exit.ExitCode()
	case err != nil:
		a.failed = err
	}
	return a
}

// object decodes the object of the output that has the schema, and tells whether there is one.
func (a *answer) object(schema string, v any) bool {
	d := json.NewDecoder(bytes.NewReader(a.out.bytes()))
	for {
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return false
		}
		var head struct{ Schema string }
		if json.Unmarshal(raw, &head) == nil && head.Schema == schema {
			return json.Unmarshal(raw, v) == nil
		}
	}
}

// problem is why the command could not do its work, nil where it could: an error with the exit code
// that fits it. A command that found something wrong (exit 1, without an error object) is no problem.
func (a *answer) problem() error {
	if a.failed != nil {
		return &cannot{exitGone, fmt.Errorf("rnicctl %s: %w", a.args[0], a.failed)}
	}
	var o struct{ Error failure }
	said := a.object("rnic.error.v1", &o)
	switch {
	case a.code == exitOK, a.code == exitFailed && !said:
		return nil
	case !said:
		o.Error.Message = strings.TrimSpace(string(a.err.bytes()))
	}
	return &cannot{a.code, fmt.Errorf("rnicctl %s: exit %d: %s", a.args[0], a.code, o.Error.Message)}
}

// cannot is what keeps a card from being tested, with rnicctl's exit code for it.
type cannot struct {
	code int
	error
}

func (e *cannot) Unwrap() error { return e.error }

// clip keeps the beginning and the end of what is written to it, at most limit bytes.
type clip struct {
	limit   int
	head    []byte
	tail    []byte // the last of what did not fit into head, up to twice limit/2
	dropped int
}

func (c *clip) Write(p []byte) (int, error) {
	n := len(p)
	if room := c.limit/2 - len(c.head); room > 0 {
		k := min(room, len(p))
		c.head, p = append(c.head, p[:k]...), p[k:]
	}
	c.tail = append(c.tail, p...)
	if len(c.tail) > c.limit {
		c.cut()
	}
	return n, nil
}

func (c *clip) cut() {
	if over := len(c.tail) - c.limit/2; over > 0 {
		c.dropped += over
		c.tail = append(c.tail[:0], c.tail[over:]...)
	}
}

// bytes are what was kept, with a line in the place of what was not.
func (c *clip) bytes() []byte {
	c.cut()
	if c.dropped == 0 {
		return append(c.head[:len(c.head):len(c.head)], c.tail...)
	}
	return fmt.Appendf(c.head[:len(c.head):len(c.head)], "\n[%d bytes are left out here]\n%s", c.dropped, c.tail)
}

var _ io.Writer = (*clip)(nil)
