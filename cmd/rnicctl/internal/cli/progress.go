package cli

import (
	"fmt"
	"os"
	"strings"
)

// progress is a bar on a terminal's stderr for long work; elsewhere it is silent.
type progress struct {
	a     *app
	shown bool
}

const barWidth = 24

// at shows that done of all are done and what is under way.
func (p *progress) at(done, all int, what string) {
	f, ok := p.a.err.(*os.File)
	if !ok || p.a.json || all <= 0 || !isTerminal(f) {
		return
	}
	p.shown = true
	full := barWidth * done / all
	fmt.Fprintf(f, "\r[%s%s] %d/%d %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), done, all, what)
}

// end takes the bar away.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.a.err, "\r\x1b[K")
	}
}
