package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal gives the two ends of a pseudo-terminal (pty(7)): a program writes to tty, screen gets what it wrote.
func terminal(t *testing.T) (tty *os.File, screen func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			b.Write(buf[:n])
			if err != nil { // EIO once the last program has closed the tty
				got <- b.String()
				return
			}
		}
	}()
	return tty, func() string {
		tty.Close()
		s := <-got
		master.Close()
		return s
	}
}

// TestTerminal: on a terminal there is colour, the drawing is as wide as it, a live table is painted in place, and
// long work shows a bar; $NO_COLOR and --color are heard.
func TestTerminal(t *testing.T) {
	sockets(t)
	t.Setenv("NO_COLOR", "")
	run := func(ctx context.Context, args ...string) (screen string) {
		tty, end := terminal(t)
		if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}); err != nil {
			t.Fatal(err)
		}
		a := &app{out: tty, err: tty, pci: none(t)}
		a.main(ctx, args)
		return end()
	}
	s := run(t.Context(), "walk")
	widest := 0
	for _, l := range strings.Split(s, "\r\n") {
		if strings.Contains(l, "┌") {
			widest = max(widest, len([]rune(l)))
		}
	}
	if !strings.Contains(s, "\x1b[") || widest < 80 {
		t.Errorf("colour %v, drawing of %d columns", strings.Contains(s, "\x1b["), widest)
	}
	if s := run(t.Context(), "walk", "--color", "never"); strings.Contains(s, "\x1b[") {
		t.Error("--color never gives colour")
	}
	if s := run(t.Context(), "stats", "-d", "soft:tty"); !strings.Contains(s, "\x1b[1mCOUNTER\x1b[0m") {
		t.Errorf("the heading is not bold: %.80q", s)
	}
	s = run(interrupted(t, 300*time.Millisecond), "stats", "-d", "soft:tty", "--watch", "20ms", "--grep", "^tx_frames$")
	if strings.Count(s, "\x1b[H\x1b[2J") != 1 || strings.Count(s, "\x1b[H") < 3 {
		t.Errorf("a live table is not painted in place: %.200q", s)
	}
	s = run(t.Context(), "selftest")
	if !strings.Contains(s, "/12 loopback") || !strings.Contains(s, "[####") || !strings.Contains(s, "\r\x1b[K") {
		t.Errorf("no bar: %.200q", s)
	}
	t.Setenv("NO_COLOR", "1")
	if s := run(t.Context(), "stats", "-d", "soft:tty"); strings.Contains(s, "\x1b[") {
		t.Error("colour in spite of NO_COLOR")
	}
}
