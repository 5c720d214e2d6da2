package walkview

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"unicode/utf8"
)

// The picture's measures, in SVG user units.
const (
	svgWidth   = 960.0
	svgLeft    = 24.0
	svgRight   = svgWidth - svgLeft
	segmentTop = 106.0
	segmentEnd = segmentTop + 46
	packetTop  = segmentEnd + 86
	packetEnd  = packetTop + 54
	legendTop  = packetEnd + 44
	svgHeight  = legendTop + 24
	most       = 400 // packets that are drawn one by one
)

// hues are the colours of regions with the colour of text on them (Okabe and
// Ito's, which colour-blind readers can tell apart).
var hues = [][2]string{
	{"#0072b2", "#fff"}, {"#e69f00", "#111"}, {"#009e73", "#fff"}, {"#cc79a7", "#111"},
	{"#56b4e9", "#111"}, {"#d55e00", "#fff"}, {"#f0e442", "#111"}, {"#7f7f7f", "#fff"},
}

const svgStyle = `
svg{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;font-size:12px}
.bg{fill:#fff}.ink{fill:#1b1f24}.soft{fill:#6a737d}.title{font-size:18px;font-weight:600}
.lane{font-size:11px;letter-spacing:.08em;text-transform:uppercase}.num{font-variant-numeric:tabular-nums}
.mid{text-anchor:middle}.end{text-anchor:end}.strong{font-weight:600}
.packet{fill:none;stroke:#1b1f24;stroke-width:1.5}.missing{stroke-dasharray:4 4;stroke:#b42318}
.cut{stroke:#1b1f24;stroke-width:1.2;stroke-dasharray:4 3}.tick{stroke:#6a737d;stroke-width:1}
.miss{fill:#1b1f24;stroke:#1b1f24}.hit{fill:#fff;stroke:#1b1f24;stroke-width:1.5}.failed{fill:#b42318;stroke:#b42318}
@media (prefers-color-scheme:dark){
.bg{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#8b949e}.packet{stroke:#e6edf3}.cut{stroke:#e6edf3}.tick{stroke:#8b949e}
.miss{fill:#e6edf3;stroke:#e6edf3}.hit{fill:#0d1117;stroke:#e6edf3}}
`

// picture is an SVG document under construction.
type picture struct {
	*bufio.Writer
	w *Walk
}

// x is where a byte of the message lies in the picture.
func (p *picture) x(at uint64) float64 {
	if p.w.length == 0 {
		return svgLeft
	}
	return svgLeft + (svgRight-svgLeft)*float64(at)/float64(p.w.length)
}

func (p *picture) text(x, y float64, class, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(s))
}

// fit writes the first of the texts that fits between from and to, in a
// colour of its own where fill is not empty.
func (p *picture) fit(from, to, y float64, class, fill string, texts ...string) {
	for _, s := range texts {
		if float64(utf8.RuneCountInString(s))*6.8+8 <= to-from {
			if fill != "" {
				fill = fmt.Sprintf(` style="fill:%s"`, fill)
			}
			fmt.Fprintf(p, `<text x="%.1f" y="%.1f" class="mid num %s"%s>%s</text>`+"\n", (from+to)/2, y, class, fill, html.EscapeString(s))
			return
		}
	}
}

// SVG writes the drawing as one self-contained SVG document: segments above,
// packets below, both to the scale of the message's bytes.
func (w *Walk) SVG(out io.Writer) error {
	p := &picture{bufio.NewWriter(out), w}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" aria-labelledby="t d">`+"\n", svgWidth, svgHeight)
	fmt.Fprintf(p, "<title id=\"t\">%s</title>\n<desc id=\"d\">Segments above, packets below, to scale; dashed lines are packet boundaries, circles are lookups.</desc>\n", html.EscapeString(w.title()))
	fmt.Fprintf(p, "<style>%s</style>\n", svgStyle)
	fmt.Fprintf(p, `<rect class="bg" width="%g" height="%g" rx="8"/>`+"\n", svgWidth, svgHeight)
	p.text(svgLeft, 36, "ink title", fmt.Sprintf("%s of %s", w.opcode(), plural(w.length, "byte")))
	p.text(svgLeft, 58, "soft", w.subtitle())
	p.text(svgLeft, segmentTop-22, "soft lane", "segments")
	p.text(svgLeft, packetEnd+21, "soft lane", "packets")
	p.segments()
	p.pieces()
	p.packets()
	p.cuts()
	p.legend()
	fmt.Fprintln(p, "</svg>")
	return p.Flush()
}

func (p *picture) segments() {
	w := p.w
	if w.in.Gather == "inline" || w.length == 0 {
		what := "no bytes"
		if w.in.Gather == "inline" {
			what = "inline, in the WQE"
		}
		fmt.Fprintf(p, `<rect class="packet" x="%.1f" y="%g" width="%.1f" height="46" rx="4"/>`+"\n", svgLeft, segmentTop, svgRight-svgLeft)
		p.fit(svgLeft, svgRight, segmentTop+28, "ink", "", what)
		return
	}
	edge := svgLeft - 100
	for i, s := range w.in.Segments {
		if s.Length == 0 {
			continue
		}
		from, to := p.x(w.starts[i]), p.x(w.starts[i]+uint64(s.Length))
		hue := hues[w.regions[i]%len(hues)]
		fmt.Fprintf(p, `<rect class="segment" x="%.2f" y="%g" width="%.2f" height="46" rx="3" fill="%s"><title>segment %d: %s in %s</title></rect>`+"\n",
			from, segmentTop, max(to-from-1, 0.3), hue[0], i, plural(uint64(s.Length), "byte"), html.EscapeString(s.MR))
		p.fit(from, to, segmentTop+20, "strong", hue[1], fmt.Sprintf("%d · %s", i, s.MR), fmt.Sprint(i))
		p.fit(from, to, segmentTop+36, "", hue[1], plural(uint64(s.Length), "byte"), comma(uint64(s.Length)))
		if from-edge > 52 {
			fmt.Fprintf(p, `<line class="tick" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`+"\n", from, from, segmentTop-5, segmentTop-1)
			p.text(from, segmentTop-8, "soft num", comma(w.starts[i]))
			edge = from
		}
	}
}

func (p *picture) packets() {
	w := p.w
	if w.planned() > most {
		fmt.Fprintf(p, `<rect class="packet" x="%.1f" y="%g" width="%.1f" height="54" rx="4"/>`+"\n", svgLeft, packetTop, svgRight-svgLeft)
		p.fit(svgLeft, svgRight, packetTop+32, "ink", "", plural(w.planned(), "packet")+" of "+comma(uint64(w.in.MTU))+" bytes")
		return
	}
	for n := range w.planned() {
		start := n * uint64(w.in.MTU)
		end := min(start+uint64(w.in.MTU), w.length)
		from, to := p.x(start), p.x(end)
		if w.length == 0 {
			to = svgRight
		}
		class, under, ack := "packet", "", false
		switch {
		case n >= uint64(len(w.packets)):
			class, under = "packet missing", "not begun"
		case !w.packets[n].whole:
			class, under = "packet missing", "dropped whole"
		default:
			under, ack = fmt.Sprintf("PSN %d", w.packets[n].psn), w.packets[n].ackReq
		}
		fmt.Fprintf(p, `<rect class="%s" x="%.2f" y="%g" width="%.2f" height="54" rx="4"/>`+"\n", class, from+1, packetTop, max(to-from-2, 0.3))
		p.fit(from, to, packetTop+23, "ink strong", "", fmt.Sprintf("packet %d · %s", n+1, plural(end-start, "byte")), fmt.Sprintf("packet %d", n+1), fmt.Sprint(n+1))
		if ack {
			p.fit(from, to, packetTop+41, "ink", "", under+" · AckReq", "AckReq", "A")
		} else {
			p.fit(from, to, packetTop+41, "soft", "", under)
		}
	}
}

// pieces draws what each packet took of each segment, and its lookup.
func (p *picture) pieces() {
	w := p.w
	if w.planned() > most {
		return
	}
	for _, k := range w.packets {
		for _, q := range k.pieces {
			at := w.starts[q.segment] + uint64(q.offset)
			from, to := p.x(at), p.x(at+uint64(q.bytes))
			how := hitOrMiss(q.hit)
			if !q.read {
				how = "failed"
			}
			hue := hues[w.regions[q.segment]%len(hues)][0]
			fmt.Fprintf(p, `<rect class="piece" x="%.2f" y="%g" width="%.2f" height="%g" fill="%s" fill-opacity=".22"/>`+"\n",
				from+1, segmentEnd, max(to-from-2, 0.3), packetEnd-segmentEnd, hue)
			y := (segmentEnd+packetTop)/2 - 4
			fmt.Fprintf(p, `<circle class="%s" cx="%.2f" cy="%g" r="%.1f"><title>packet %d looks up segment %d: %s at offset %s, %s</title></circle>`+"\n",
				how, (from+to)/2, y, min(5, max((to-from)/2, 1)), k.number+1, q.segment, plural(uint64(q.bytes), "byte"), comma(uint64(q.offset)), how)
			p.fit(from, to, y+22, "ink", "", "lookup "+fmt.Sprint(q.segment)+", "+how, how)
		}
	}
}

func (p *picture) cuts() {
	w := p.w
	if w.planned() > most {
		return
	}
	edge := svgLeft + 70
	for _, at := range w.cuts() {
		x := p.x(at)
		// In the segment's box only notches, so that its text stays readable.
		fmt.Fprintf(p, `<path class="cut" d="M%.2f %gV%gM%.2f %gV%g"/>`+"\n", x, segmentTop-4, segmentTop+6, x, segmentEnd-6, packetEnd+8)
		if x-edge > 52 && x < svgRight-30 {
			fmt.Fprintf(p, `<text x="%.1f" y="%g" class="soft num mid">%s</text>`+"\n", x, packetEnd+21, comma(at))
			edge = x
		}
	}
	fmt.Fprintf(p, `<text x="%.1f" y="%g" class="soft num end">%s</text>`+"\n", svgRight, packetEnd+21, plural(w.length, "byte"))
}

func (p *picture) legend() {
	x := svgLeft
	entry := func(shape, s string) {
		width := 30 + float64(utf8.RuneCountInString(s))*7
		if x+width > svgRight {
			return
		}
		fmt.Fprintf(p, `<g transform="translate(%.1f %g)">%s<text x="18" y="4" class="soft">%s</text></g>`+"\n", x, legendTop, shape, html.EscapeString(s))
		x += width
	}
	for i, name := range p.w.mrs {
		entry(fmt.Sprintf(`<rect x="0" y="-6" width="12" height="12" rx="2" fill="%s"/>`, hues[i%len(hues)][0]), name)
	}
	if p.w.in.Gather == "inline" {
		return
	}
	entry(`<circle class="miss" cx="6" cy="0" r="5"/>`, "lookup, miss")
	entry(`<circle class="hit" cx="6" cy="0" r="5"/>`, "lookup, hit")
	entry(`<circle class="failed" cx="6" cy="0" r="5"/>`, "failed")
	entry(`<line class="cut" x1="0" x2="14" y1="0" y2="0"/>`, "packet boundary")
}
