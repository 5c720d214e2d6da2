package walkview

import (
	"bufio"
	"fmt"
	"strings"
	"unicode/utf8"
)

// canvas is a grid of characters, each with a colour (0: none).
type canvas struct {
	rows   [][]rune
	colors [][]uint8
}

func newCanvas(rows, columns int) *canvas {
	c := &canvas{}
	for range rows {
		c.rows = append(c.rows, []rune(strings.Repeat(" ", columns)))
		c.colors = append(c.colors, make([]uint8, columns))
	}
	return c
}

func (c *canvas) set(row, column int, r rune, color uint8) {
	c.rows[row][column] = r
	c.colors[row][column] = color
}

func (c *canvas) text(row, column int, s string, color uint8) {
	for _, r := range s {
		c.set(row, column, r, color)
		column++
	}
}

// center writes the first of the texts that fits into [from, to), and
// reports whether there was one.
func (c *canvas) center(row, from, to int, color uint8, texts ...string) bool {
	for _, s := range texts {
		if n := utf8.RuneCountInString(s); n <= to-from {
			c.text(row, from+(to-from-n)/2, s, color)
			return true
		}
	}
	return false
}

// box draws a frame over three rows and columns [from, to]; edges that are
// there already become joints.
func (c *canvas) box(row, from, to int) {
	if from >= to {
		return
	}
	for x := from + 1; x < to; x++ {
		c.set(row, x, '─', 0)
		c.set(row+2, x, '─', 0)
	}
	for _, e := range []struct {
		x                   int
		top, bottom         rune
		topJoin, bottomJoin rune
	}{{from, '┌', '└', '┬', '┴'}, {to, '┐', '┘', '┬', '┴'}} {
		top, bottom := e.top, e.bottom
		if c.rows[row][e.x] != ' ' {
			top, bottom = e.topJoin, e.bottomJoin
		}
		c.set(row, e.x, top, 0)
		c.set(row+1, e.x, '│', 0)
		c.set(row+2, e.x, bottom, 0)
	}
}

func (c *canvas) write(b *bufio.Writer, color bool) {
	for y, row := range c.rows {
		end := len(row)
		for end > 0 && row[end-1] == ' ' {
			end--
		}
		last := uint8(0)
		for x := range end {
			if k := c.colors[y][x]; color && k != last {
				fmt.Fprintf(b, "\x1b[%dm", k)
				last = k
			}
			b.WriteRune(row[x])
		}
		if last != 0 {
			b.WriteString("\x1b[0m")
		}
		b.WriteByte('\n')
	}
}

// ansi are the colours of regions, in the order in which they are met.
var ansi = []uint8{36, 33, 35, 32, 34, 31}

// cuts returns where packets end inside the message, planned ones included.
func (w *Walk) cuts() (at []uint64) {
	for end := uint64(w.in.MTU); end < w.length; end += uint64(w.in.MTU) {
		at = append(at, end)
	}
	return at
}

const label = 10 // columns left of the drawing

// draw writes segments above and packets below, both to the scale of the
// message's bytes, the cut points between them, and each lookup in the piece
// that it was for.
func (w *Walk) draw(b *bufio.Writer, o TextOptions) {
	width := o.Width
	if width == 0 {
		width = 80
	}
	width = max(width, 40) - label - 1
	c := newCanvas(9, label+width+1)
	column := func(at uint64) int {
		if w.length == 0 {
			return label
		}
		return label + int((at*uint64(width)+w.length/2)/w.length)
	}

	const segments, between, marks, packets = 0, 3, 4, 6
	c.text(segments+1, 0, "segments", 0)
	switch {
	case w.in.Gather == "inline":
		c.box(segments, label, label+width)
		c.center(segments+1, label+1, label+width, 0, "inline, in the WQE · "+comma(w.length))
	case w.length == 0:
		c.center(segments+1, label, label+width, 0, "no bytes")
	}
	for i, s := range w.in.Segments {
		if s.Length == 0 {
			continue
		}
		at := w.starts[i]
		from, to := column(at), column(at+uint64(s.Length))
		color := ansi[w.regions[i]%len(ansi)]
		c.box(segments, from, to)
		c.center(segments+1, from+1, to, color, fmt.Sprintf("%d · %s · %s", i, s.MR, comma(uint64(s.Length))), fmt.Sprintf("%d · %s", i, s.MR), fmt.Sprint(i))
	}

	cuts := w.cuts()
	crowded := len(cuts) > width/3
	if !crowded {
		for _, at := range cuts {
			x := column(at)
			for y := segments + 2; y < packets; y++ {
				r := '┆'
				switch {
				case y == segments+2 && c.rows[y][x] == '┴':
					r = '┼'
				case y == segments+2:
					r = '┬'
				}
				c.set(y, x, r, 0)
			}
		}
	}

	if w.in.Gather != "inline" {
		c.text(marks, 0, "lookups", 0)
	}
	for _, p := range w.packets {
		for _, q := range p.pieces {
			at := w.starts[q.segment] + uint64(q.offset)
			from, to := column(at), column(at+uint64(q.bytes))
			how, mark := hitOrMiss(q.hit), "●"
			switch {
			case q.reason != "" || !q.read:
				how, mark = "failed", "✗"
			case q.hit:
				mark = "○"
			}
			if !c.center(marks, from+1, to, ansi[w.regions[q.segment]%len(ansi)], mark+" "+how, mark) {
				c.text(marks, from, mark, ansi[w.regions[q.segment]%len(ansi)])
			}
		}
	}

	c.text(packets+1, 0, "packets", 0)
	if crowded {
		c.box(packets, label, label+width)
		c.center(packets+1, label+1, label+width, 0, plural(w.planned(), "packet")+" of "+comma(uint64(w.in.MTU)), plural(w.planned(), "packet"))
	} else {
		w.drawPackets(c, packets, cuts, column, width)
		for _, at := range cuts {
			c.set(packets, column(at), '┼', 0)
		}
	}
	c.rows = append(c.rows[:between], c.rows[between+1:]...)
	c.colors = append(c.colors[:between], c.colors[between+1:]...)
	c.write(b, o.Color)
	if w.in.Gather != "inline" {
		fmt.Fprintf(b, "%*s● miss  ○ hit  ✗ failed  ┆ cut\n", label, "")
	}
}

// drawPackets draws a box for each planned packet; one that was not handed
// over says so.
func (w *Walk) drawPackets(c *canvas, row int, cuts []uint64, column func(uint64) int, width int) {
	start := uint64(0)
	for n := range w.planned() {
		end := w.length
		if n < uint64(len(cuts)) {
			end = cuts[n]
		}
		from, to := column(start), column(end)
		if w.length == 0 {
			to = label + width
		}
		c.box(row, from, to)
		state := ""
		switch {
		case n >= uint64(len(w.packets)):
			state = " · not begun"
		case !w.packets[n].whole:
			state = " · dropped"
		case w.packets[n].ackReq:
			state = " · AckReq"
		}
		bytes := comma(end - start)
		c.center(row+1, from+1, to, 0, fmt.Sprintf("packet %d · %s%s", n+1, bytes, state), fmt.Sprintf("%d · %s%s", n+1, bytes, state), fmt.Sprintf("%d · %s", n+1, bytes), fmt.Sprint(n+1))
		start = end
	}
}
