package cli

import (
	"bytes"
	"context"
	"time"
)

// watch shows what show writes once, or again and again every interval until the context ends. On a
// terminal each picture replaces the one before; elsewhere an empty line parts them, and nothing does in JSON,
// which is one object a line then.
func (a *app) watch(ctx context.Context, interval time.Duration, show func(context.Context) error) error {
	if interval < 0 {
		return usagef("give a time above zero, as --watch 1s", "--watch %v is not above zero", interval)
	}
	if interval == 0 {
		return show(ctx)
	}
	out, live := a.out, !a.json && a.terminal()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for first := true; ; first = false {
		var b bytes.Buffer
		a.out = &b
		err := show(ctx)
		a.out = out
		if err != nil {
			return err
		}
		picture := b.Bytes()
		switch {
		case live && first:
			picture = append([]byte("\x1b[H\x1b[2J"), picture...) // home, clear
		case live:
			picture = append([]byte("\x1b[H"), clearLines(picture)...)
		case !first && !a.json:
			picture = append([]byte("\n"), picture...)
		}
		if _, err := out.Write(picture); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// clearLines erases what an earlier, longer picture left behind each line and below the last.
func clearLines(b []byte) []byte {
	return append(bytes.ReplaceAll(b, []byte("\n"), []byte("\x1b[K\n")), "\x1b[J"...)
}
