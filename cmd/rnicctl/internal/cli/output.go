package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// printJSON writes one object: on a line of its own in a stream, else indented for people who look at it.
func (a *app) printJSON(v any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	if !a.stream {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		return err
	}
	text := b.String()
	if strings.IndexFunc(text, steers) >= 0 { // the encoder leaves DEL and C1 as they are
		b.Reset()
		for _, r := range text {
			if steers(r) {
				fmt.Fprintf(&b, `\u%04x`, r)
			} else {
				b.WriteRune(r)
			}
		}
		text = b.String()
	}
	_, err := io.WriteString(a.out, text)
	return err
}

// line writes a line of a live table, without blanks at its end.
func (a *app) line(format string, cells ...any) error {
	_, err := fmt.Fprintln(a.out, strings.TrimRight(fmt.Sprintf(format, cells...), " "))
	return err
}

// table is rows under a heading, aligned when written. Columns of numbers alone stand to the right.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

// row adds a row; an empty cell becomes "-".
func (t *table) row(cells ...any) {
	r := make([]string, len(cells))
	for i, c := range cells {
		r[i] = printable(fmt.Sprint(c))
		if r[i] == "" {
			r[i] = "-"
		}
	}
	t.rows = append(t.rows, r)
}

// printable is text of a card or of the process that holds it, neither of which is believed: what
// would steer a terminal becomes U+FFFD.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if steers(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// steers tells the characters that move a terminal to more than show them.
func steers(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }

// rowIf adds a row if one of its cells fits, or there is nothing to fit, and tells whether it did.
func (t *table) rowIf(re *regexp.Regexp, cells ...any) bool {
	t.row(cells...)
	last := len(t.rows) - 1
	if re != nil && !slices.ContainsFunc(t.rows[last], re.MatchString) {
		t.rows = t.rows[:last]
		return false
	}
	return true
}

// Colours of cells that want to be seen, and of the heading.
var paints = map[string]string{
	"pass": "32", "ok": "32", "RTS": "32", "ready": "32", "hit": "32",
	"fail": "31", "failed": "31", "warn": "33", "ERR": "31", "SQE": "31", "broken": "31", "fault": "31", "FAULT": "31",
	"skip": "33", "miss": "33", "held": "33", "quarantined": "33",
}

func (t *table) write(a *app) error {
	width, right := make([]int, len(t.head)), make([]bool, len(t.head))
	for i, h := range t.head {
		width[i], right[i] = utf8.RuneCountInString(h), len(t.rows) > 0
		for _, r := range t.rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
			right[i] = right[i] && (r[i] == "-" || number.MatchString(r[i]))
		}
	}
	colored := a.colored()
	var b strings.Builder
	line := func(cells []string, paint func(string) string) {
		for i, c := range cells {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if p := paint(c); colored && p != "" {
				c = "\x1b[" + p + "m" + c + "\x1b[0m"
			}
			switch {
			case right[i]:
				b.WriteString(pad + c)
			case i < len(cells)-1:
				b.WriteString(c + pad)
			default:
				b.WriteString(c)
			}
			if i < len(cells)-1 {
				b.WriteString("  ")
			}
		}
		b.WriteByte('\n')
	}
	line(t.head, func(string) string { return "1" })
	for _, r := range t.rows {
		line(r, func(c string) string { return paints[c] })
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}

var number = regexp.MustCompile(`^-?[0-9][0-9,.]*$`)

// hex64 is the form of addresses and keys in JSON.
func hex64(v uint64) string { return fmt.Sprintf("%#x", v) }

// hex32 is the form of keys.
func hex32(v uint32) string { return fmt.Sprintf("0x%08x", v) }

// size is a byte count that people read.
func size(n uint64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
